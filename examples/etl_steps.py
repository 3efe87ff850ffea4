"""The extraction of etl.yaml: a CSV file, here as a text, becomes rows with proper types."""

from __future__ import annotations

import csv
import io
from typing import Any

ORDERS = """\
order,customer,amount,status
1001,Lovelace,120,paid
1002,Hopper,80,paid
1003,Lovelace,45,cancelled
1004,Hamilton,310,paid
1005,Hopper,95,paid
1006,Turing,20,open
"""


def read_orders() -> list[dict[str, Any]]:
    rows = csv.DictReader(io.StringIO(ORDERS))
    return [{**row, "order": int(row["order"]), "amount": int(row["amount"])} for row in rows]
