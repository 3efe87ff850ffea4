"""The steps of saga.yaml: bookings, and what gives them back."""

from __future__ import annotations

from typing import Any

from tidemill import Fail, NodeContext


def book(what: str, context: NodeContext) -> dict[str, Any]:
    """The effect key makes a good number: every attempt at this booking has the same one."""
    node, _, index = context.effect_key.split("/")[-3:]
    return {"what": what, "number": f"{node}-{max(int(index), 0) + 1}"}


def give_back(booking: dict[str, Any]) -> str:
    """A compensator is given what the step returned. It may be called more than once, like any step."""
    return f"gave back {booking['what']}"


def rent(cars: int) -> str:
    if cars == 0:
        raise Fail("no_car", "there is no car left")
    return "the red one"
