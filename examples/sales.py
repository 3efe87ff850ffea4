"""ETL in Python: ask every shop for its sales, retry a shop that does not answer, and sum up what they sold.

Values are typed: a task gets the dataclass that another one has returned, although JSON is what is stored.

tidemill run examples/sales.py
tidemill run examples/sales.py --input 'shops=["Oslo", "Lima"]'
"""

from __future__ import annotations

from dataclasses import dataclass

import tidemill

FILES = {"Oslo": "ada;30\nben;12.5", "Rome": "eve;100\ntotal;?", "Lima": "kim;7"}
SHOPS = list(FILES)
unreachable = {"Rome"}


@dataclass
class Export:
    shop: str
    text: str


@dataclass
class Sale:
    shop: str
    customer: str
    amount: float


# Each item of a map is an attempt of its own: while Rome is retried, the others go on.
@tidemill.task(retries=3, retry_delay=0.1, timeout=10)
def extract(shop: str) -> Export:
    if shop in unreachable:
        unreachable.remove(shop)
        raise ConnectionError(f"{shop} does not answer")
    return Export(shop, FILES[shop])


@tidemill.task
def transform(export: Export) -> list[Sale]:
    rows = [line.split(";") for line in export.text.splitlines()]
    return [Sale(export.shop, name, float(amount)) for name, amount in rows if amount != "?"]


@tidemill.task
def load(batches: list[list[Sale]]) -> dict[str, float]:
    # A run that crashed may call this again, so a real one writes rows by their key.
    return {batch[0].shop: sum(sale.amount for sale in batch) for batch in batches}


# The function is called once, to draw the graph: what the tasks return are references to values of the run.
@tidemill.workflow
def sales(shops: list[str] = SHOPS) -> dict[str, float]:
    exports = extract.map(shops)
    return load(transform.map(exports))
