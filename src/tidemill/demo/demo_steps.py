"""The functions of the demo's workflows: each takes its time, or fails as real systems do, and calls no network."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.handlers.contract import Fail, NodeContext

RATES = {"EUR": 1.0, "USD": 1.09, "GBP": 0.85, "CHF": 0.95}
SALES = {"north": 48_210.50, "south": 39_975.25, "east": 21_408.00, "west": 57_330.75}
REJECTED_ROWS = 7
"""One in this many rows of a catalogue has no price."""


class ReportError(Exception):
    """The report cannot be written."""


class Steps:
    """`pace` is how long a step takes, as a factor; 0 does not wait."""

    def __init__(self, pace: float = 1.0) -> None:
        self._pace = pace

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        names = (name for name in vars(type(self)) if not name.startswith("_") and name != "functions")
        return {name: getattr(self, name) for name in names}

    async def _take(self, seconds: float) -> None:
        await asyncio.sleep(seconds * self._pace)

    # Orders

    async def check_stock(self, sku: str, quantity: int, context: NodeContext) -> dict[str, Any]:
        await self._take(2.5)
        context.log.info("reserved %d × %s", quantity, sku)
        return {"sku": sku, "quantity": quantity, "shelf": f"{sku[0].upper()}{len(sku)}"}

    async def score_risk(self, customer: str, score: int, context: NodeContext) -> dict[str, Any]:
        context.log.info("scoring %s by 14 rules", customer)
        await self._take(4)
        return {"customer": customer, "score": score, "rules": {"address known": True, "card seen before": score < 50}}

    async def charge(self, items: list[dict[str, Any]], context: NodeContext) -> dict[str, Any]:
        context.log.info("asking the card terminal, effect key %s", context.effect_key)
        await self._take(3)
        if context.attempt == 1:
            raise Fail("terminal_busy", "the card terminal is busy", retryable=True)
        amount = sum(item["price"] * item["quantity"] for item in items)
        return {"amount": amount, "currency": "EUR", "receipt": context.effect_key}

    async def send_text_message(self, customer: str) -> None:
        await self._take(2)
        raise ConnectionError(f"no route to the phone of {customer}")

    async def pack(self, reserved: dict[str, Any]) -> str:
        await self._take(3)
        return f"{reserved['quantity']} × {reserved['sku']} from shelf {reserved['shelf']}"

    async def shorten_route(self, stops: int, iteration: int) -> dict[str, Any]:
        await self._take(4)
        return {"kilometres": 4 * stops - 3 * iteration, "passes": iteration + 1}

    async def hand_over(self, parcels: list[str], kilometres: int) -> dict[str, Any]:
        await self._take(2)
        return {"tracking": f"TM-{len(parcels):03d}-{kilometres:03d}", "parcels": len(parcels)}

    # Reports

    async def fetch_sales(self, region: str, context: NodeContext) -> dict[str, Any]:
        context.log.info("reading the sales of %s", region)
        await self._take(1.5)
        if region not in SALES:
            raise Fail("region_unknown", f"there is no region {region}")
        return {"region": region, "amount": SALES[region], "currency": "EUR"}

    async def convert_currency(self, sales: list[dict[str, Any]], currency: str, context: NodeContext) -> Any:
        context.log.info("converting %d amounts to %s", len(sales), currency)
        await self._take(1)
        return [{**each, "amount": _converted(each["amount"], currency), "currency": currency} for each in sales]

    async def render_report(self, sales: list[dict[str, Any]], context: NodeContext) -> Any:
        lines = ["# Sales of the day", ""]
        for each in sales:
            lines.append(f"- {each['region']}: {each['amount']:,.2f} {each['currency']}")
            context.stream(lines[-1] + "\n")
            await self._take(0.8)
        return {"markdown": "\n".join(lines), "total": round(sum(each["amount"] for each in sales), 2)}

    # Imports, syncs and payouts

    async def import_row(self, row: int) -> dict[str, Any]:
        await self._take(1 + row % 3)
        if row % REJECTED_ROWS == REJECTED_ROWS - 1:
            raise Fail("price_missing", f"row {row} has no price")
        return {"row": row, "sku": f"SKU-{row:05d}", "price": round(4.5 + row * 1.37 % 90, 2)}

    async def pull_prices(self, supplier: str, context: NodeContext) -> None:
        context.log.info("attempt %d: no answer from %s", context.attempt, supplier)
        await self._take(2)
        try:
            raise TimeoutError("timed out after 2.0 s")
        except TimeoutError as error:
            raise ConnectionError(f"{supplier} does not answer") from error

    async def send_payout(self, amount: float, account: str, context: NodeContext) -> str:
        context.log.info("sending %.2f EUR to %s", amount, account)
        await asyncio.sleep(3600)  # The bank never answers; the node's time-out ends this.
        return "sent"

    async def probe(self, service: str) -> dict[str, Any]:
        await self._take(0.5)
        return {"service": service, "status": "up", "milliseconds": 40 + zlib.crc32(service.encode()) % 60}

    # Bookings

    async def book(self, what: str, context: NodeContext) -> dict[str, Any]:
        await self._take(2)
        return {
            "what": what,
            "number": f"{context.node.upper()}-{zlib.crc32(context.effect_key.encode()) % 10_000:04d}",
        }

    async def give_back(self, booking: dict[str, Any], context: NodeContext) -> str:
        context.log.info("cancelling %s", booking["number"])
        await self._take(2)
        return f"gave back {booking['what']}"

    async def rent_car(self, city: str) -> str:
        await self._take(2)
        raise Fail("no_car", f"there is no car left in {city}", hint="try another day, or the airport")

    # Texts

    async def write_draft(self, topic: str, iteration: int, context: NodeContext) -> dict[str, Any]:
        words = (
            f"Pass {iteration + 1}: what is new about {topic}, in plain words, for people who have two minutes.".split()
        )
        for word in words:
            context.stream(word + " ")
            await self._take(0.3)
        return {"text": " ".join(words), "pass": iteration + 1}

    async def review_draft(self, text: str, iteration: int) -> dict[str, Any]:
        await self._take(3)
        return {"quality": min(10, 2 + iteration), "remark": "shorter, please" if iteration < 7 else "good"}

    async def read_invoice(self, number: str, supplier: str, amount: float) -> dict[str, Any]:
        await self._take(1.5)
        lines = [
            {"text": "Consulting", "amount": round(amount * 0.8, 2)},
            {"text": "Travel", "amount": round(amount * 0.2, 2)},
        ]
        return {"number": number, "supplier": supplier, "amount": amount, "currency": "EUR", "lines": lines}

    async def match_order(self, supplier: str, amount: float, context: NodeContext) -> dict[str, Any]:
        context.log.info("looking for an order of %s over %.2f EUR", supplier, amount)
        await self._take(1.5)
        return {"order": f"PO-{zlib.crc32(supplier.encode()) % 9_000 + 1_000}", "difference": round(amount * 0.03, 2)}


def _converted(amount: float, currency: str) -> float:
    try:
        rate = RATES[currency]
    except KeyError as error:
        raise ReportError(f"no exchange rate for {currency!r}; there are {', '.join(RATES)}") from error
    return round(amount * rate, 2)
