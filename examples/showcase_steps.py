"""The steps of showcase.yaml: small functions that take their time and give the same answers every time."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tidemill import Fail, NodeContext


def check_stock(sku: str, quantity: int) -> dict[str, Any]:
    """Plain functions may block: they run in threads."""
    time.sleep(0.35)
    return {"sku": sku, "quantity": quantity, "shelf": f"{sku[0].upper()}{len(sku)}"}


async def score_risk(customer: str, score: int) -> dict[str, Any]:
    """Async functions run in the worker's loop."""
    await asyncio.sleep(0.8)
    return {"customer": customer, "score": score}


def charge(items: list[dict[str, Any]], context: NodeContext) -> dict[str, Any]:
    """A function that asks for `context` learns which attempt it is, and its effect key."""
    time.sleep(0.5)
    if context.attempt == 1:
        raise Fail("terminal_busy", "the card terminal is busy", retryable=True)
    amount = sum(item["price"] * item["quantity"] for item in items)
    return {"amount": amount, "receipt": context.effect_key}


def send_text_message(customer: str) -> None:
    time.sleep(0.7)
    raise ConnectionError(f"no route to the phone of {customer}")


async def pack(reserved: dict[str, Any]) -> str:
    await asyncio.sleep(0.45)
    return f"{reserved['quantity']} × {reserved['sku']} from shelf {reserved['shelf']}"


async def shorten_route(stops: int, iteration: int) -> dict[str, Any]:
    await asyncio.sleep(0.5)
    return {"kilometres": 4 * stops - 3 * iteration, "passes": iteration + 1}


async def hand_over(parcels: list[str], kilometres: int) -> dict[str, Any]:
    await asyncio.sleep(0.4)
    return {"tracking": f"TM-{len(parcels):03d}-{kilometres:03d}"}
