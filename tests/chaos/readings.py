"""What a log says, read event by event without folding: attempts, results, tokens, how it ended."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from tidemill.kernel.decide.retries import LOST_IN_A_ROW_MAX
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    AnyEvent,
    ChildFinished,
    CompensationCompleted,
    CompensationFailed,
    Error,
    NodeCancelled,
    NodeCompleted,
    NodeFailed,
    NodeStarted,
    ResultDiscarded,
    RunCompleted,
    RunFailed,
    RunRepaired,
)

Events = Sequence[AnyEvent]

IN_A_ROW = f"{LOST_IN_A_ROW_MAX} workers in a row were lost"
LOST_BEFORE = LOST_IN_A_ROW_MAX - 1
"""Losses that the log has before the one that was one too many."""

ELSEWHERE = object()
"""A value that the log only refers to."""


def place_of(event: Any) -> str:
    """The effect key of an activation, without its run."""
    return f"{event.node}/{event.visit}/{event.index}"


def attempts(events: Events) -> Counter[str]:
    """How many calls under each effect key the log admits to."""
    found: Counter[str] = Counter()
    for event in events:
        match event:
            case NodeStarted() | NodeCompleted() | NodeFailed():
                found[place_of(event)] = max(found[place_of(event)], event.attempt)
            case CompensationCompleted() | CompensationFailed():
                found[f"{place_of(event)}/undo"] = max(found[f"{place_of(event)}/undo"], event.attempt)
            case NodeCancelled():
                # Whoever was at work on it is cut off, and whatever comes of it is discarded.
                found[place_of(event)] += 1
    return found


def completions(events: Events) -> dict[str, Any]:
    """The result of every completed activation."""
    return {
        place_of(event): json.loads(event.output) if isinstance(event.output, bytes) else ELSEWHERE
        for event in events
        if isinstance(event, NodeCompleted)
    }


def given_up(events: Events) -> str:
    """Why a run may end otherwise than planned: too many workers died over it, or nobody knows what one did."""
    for event in events:
        match event:
            case RunFailed(error=Error(code="unknown_outcome")):
                return "unknown_outcome"
            case RunFailed(error=error) | CompensationFailed(error=error) if IN_A_ROW in error.message:
                return "worker_killer"
            case ChildFinished(status="FAILED"):
                return "its child"
    return ""


def hasty_killers(events: Events) -> Iterator[str]:
    """Nothing is called a killer of workers before it has cost as many in a row as that takes."""
    lost: Counter[str] = Counter()
    for event in events:
        if isinstance(event, NodeFailed):
            place = place_of(event)
            if event.error.code == "worker_killer" and event.error.index == NOT_AN_ITEM and lost[place] < LOST_BEFORE:
                yield f"{place} is given up after {lost[place]} lost workers"
            lost[place] = lost[place] + 1 if event.lost else 0


def returned(events: Events) -> Any:
    """What the run returned as `value`, of a list that of each entry."""
    (outputs,) = (event.outputs for event in events if isinstance(event, RunCompleted))
    if not isinstance(outputs, bytes):
        return ELSEWHERE
    value = json.loads(outputs)["value"]
    return [item["value"] for item in value] if isinstance(value, list) else value


def one_result_each(events: Events) -> Iterator[str]:
    """Exactly one result is committed for each activation."""
    results = Counter(place_of(event) for event in events if isinstance(event, NodeCompleted))
    yield from (f"{place} was completed {count} times" for place, count in results.items() if count > 1)


def growing_tokens(events: Events) -> Iterator[str]:
    """Every attempt has a higher fence token than the one before it."""
    last: Counter[str] = Counter()
    for event in events:
        if isinstance(event, NodeStarted):
            place = place_of(event)
            if event.token <= last[place]:
                yield f"token {event.token} of {place} comes after {last[place]}"
            last[place] = event.token


def led_to(events: Events) -> Counter[str]:
    """What the faults led to, as far as the log tells."""
    seen: Counter[str] = Counter()
    in_a_row: Counter[str] = Counter()
    for event in events:
        seen["events"] += 1
        match event:
            case NodeFailed():
                place = place_of(event)
                in_a_row[place] = in_a_row[place] + 1 if event.lost else 0
                seen["attempts lost with their worker"] += event.lost
                seen["lost again while being recovered"] += in_a_row[place] == 2
                seen["attempts that failed"] += not event.lost
                seen["unknown outcomes"] += event.error.code == "unknown_outcome"
            case CompensationFailed():
                seen["undoing lost with its worker"] += event.lost
            case ResultDiscarded():
                seen["late results discarded"] += 1
            case RunRepaired():
                seen["repairs by the keeper"] += 1
    return seen
