"""The step of invoices.yaml."""

from __future__ import annotations

import time
from typing import Any

from tidemill import Fail, NodeContext


def send(customer: str, number: int, context: NodeContext) -> dict[str, Any]:
    """Send one invoice. The mail server is busy at the first attempt for every third one."""
    time.sleep(0.05)
    if customer.endswith("@"):
        raise Fail("address_invalid", f"invoice {number}: {customer} is not an address")
    if number % 3 == 0 and context.attempt == 1:
        raise Fail("server_busy", "the mail server is busy", retryable=True)
    return {"invoice": number, "customer": customer}
