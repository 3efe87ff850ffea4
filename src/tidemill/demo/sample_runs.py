"""Fills a store with workflows in every state, and starts further runs for as long as it is served."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from tidemill.engine.engine import Engine
from tidemill.errors import Rejected
from tidemill.triggers.service import ScheduleService

ROLES = ("admin", "finance", "people", "risk", "sales", "support")
"""The roles of the user of the page; every approval of the demo asks one of them."""
TEAMS = {
    "account": "people",
    "catalogue-import": "shop",
    "complaint-desk": "support",
    "employee-onboarding": "people",
    "invoice-approval": "finance",
    "lead-triage": "sales",
    "newsletter-draft": "marketing",
    "nightly-report": "finance",
    "order-fulfilment": "shop",
    "parcel-dispatch": "shop",
    "supplier-payout": "finance",
    "supplier-sync": "shop",
    "trial-reminder": "sales",
    "trip-booking": "travel",
    "uptime-check": "operations",
}
"""The workflows, and the label `team` of their runs."""
BREAKING = ({"op": "replace", "path": "/nodes/convert/config/args/currency", "value": "EURO"},)
"""The second version of the nightly report names a currency that there is not."""
FIRST: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("order-fulfilment", {"customer": "Ada Lovelace", "order": "A-1001"}),
    ("order-fulfilment", {"customer": "Grace Hopper", "order": "A-1002", "score": 93}),
    ("invoice-approval", {"number": "IN-2044", "supplier": "Northwind Traders", "amount": 4_820.5}),
    ("invoice-approval", {"number": "IN-2045", "supplier": "Contoso Print", "amount": 640, "hours": 0.25}),
    ("invoice-approval", {"number": "IN-2046", "supplier": "Bakery Müller", "amount": 38.4}),
    ("complaint-desk", {"customer": "Ada Lovelace", "complaint": "My desk came almost a week late."}),
    ("employee-onboarding", {"person": "Katherine"}),
    ("trip-booking", {"city": "Lisbon"}),
    ("catalogue-import", {"rows": 120}),
    ("supplier-sync", {"supplier": "Northwind"}),
    ("newsletter-draft", {"topic": "durable workflows"}),
    ("parcel-dispatch", {"parcel": "TM-008-009"}),
    ("supplier-payout", {"account": "DE02 1203 0000 0000 2020 51", "amount": 1_250}),
    ("trial-reminder", {"customer": "Acme", "days": 11}),
    ("lead-triage", {"message": "We need 200 seats. What is the price?"}),
    ("lead-triage", {"message": "The export is broken, and it is the end of the month!"}),
)
LATER: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("order-fulfilment", {"customer": "Annie Easley"}),
    ("invoice-approval", {"number": "IN-2050", "supplier": "Office Supplies", "amount": 72.9}),
    ("lead-triage", {"message": "I cannot sign in: an error every time."}),
    ("complaint-desk", {"customer": "Grace Hopper", "complaint": "The chair was late, and I heard nothing of it."}),
    ("newsletter-draft", {"topic": "what changed this week"}),
    ("nightly-report", {"day": "today"}),
    ("catalogue-import", {"rows": 40}),
    ("order-fulfilment", {"customer": "Hedy Lamarr", "score": 41}),
    ("trip-booking", {"city": "Porto"}),
)
"""Runs that are started one after the other, over and over."""
PAUSE_SECONDS = 20.0


async def fill(engine: Engine) -> None:
    """Publish the workflows, and start runs that reach every state by themselves."""
    for name in TEAMS:
        await engine.publish(document(name), author="ada", message="first version")
    # Two nights went well; the second version of the report fails.
    for day in ("Friday", "Saturday"):
        await _start(engine, "nightly-report", {"day": day})
    await engine.tag("nightly-report", "stable", 1, actor="ada")
    await engine.patch_workflow("nightly-report", list(BREAKING), author="grace", message="report in euros")
    for name, inputs in FIRST:
        await _start(engine, name, inputs)
    for day in ("Sunday", "Monday"):
        await _start(engine, "nightly-report", {"day": day})
    paused = await _start(engine, "catalogue-import", {"rows": 300})
    await engine.pause(paused, reason="the supplier asked us to wait", actor="grace")
    cancelled = await _start(engine, "newsletter-draft", {"topic": "a product that was stopped"})
    await engine.cancel(cancelled, reason="the product was stopped", actor="ada")
    schedules = ScheduleService(engine.context)
    await schedules.create("uptime", "uptime-check", every="2m", labels={"team": "operations"}, actor="ada")
    await schedules.trigger("uptime", actor="ada")


async def keep_going(engine: Engine, pause_seconds: float = PAUSE_SECONDS) -> None:
    """Start a further run now and then, until cancelled."""
    for number, (name, inputs) in enumerate(itertools.cycle(LATER), 1_003):
        await asyncio.sleep(pause_seconds)
        order = {"order": f"A-{number}"} if name == "order-fulfilment" else {}
        try:
            await _start(engine, name, {**inputs, **order})
        except Rejected:
            # A user has published a version that wants other inputs, or deleted the workflow.
            continue


def document(name: str) -> str:
    return resources.files(__package__).joinpath(f"documents/{name}.yaml").read_text("utf-8")


async def _start(engine: Engine, name: str, inputs: Mapping[str, Any]) -> str:
    return await engine.start(name, inputs, labels={"team": TEAMS[name]}, submitted_by="ada")
