"""Changes to a log that obeys all laws, one of which it breaks afterwards: what the checker of logs is tried with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tests.kernel.acts import Acts
from tests.kernel.tables import Run
from tidemill.kernel.events import AnyEvent
from tidemill.kernel.invariants import checker
from tidemill.kernel.invariants.checker import check_log
from tidemill.kernel.invariants.ledger import Violation
from tidemill.kernel.model import Workflow

Log = list[AnyEvent]
Change = Callable[[Log], Log]
Nodes = dict[str, dict[str, Any]] | None


class Told(NamedTuple):
    """A log, the graph it began with, and those that patches led to."""

    flow: Workflow
    log: Log
    graphs: Mapping[str, Workflow]


def play(graph: str, script: str, nodes: Nodes = None, **top: Any) -> Acts:
    """A run to which the steps of a script happened: `done a; fail b retryable=True`, methods of `Acts`."""
    run = Acts(graph, nodes, **top)
    run.start(submitted_by="rita")
    perform(run, script)
    return run


def perform(run: Acts, script: str) -> None:
    for step in filter(None, map(str.strip, script.split(";"))):
        verb, *words = step.split()
        given = [word for word in words if "=" not in word]
        named = dict(word.split("=", 1) for word in words if "=" in word)
        getattr(run, verb)(*map(value, given), **{key: value(word) for key, word in named.items()})


def value(word: str) -> Any:
    if word.isdigit():
        return int(word)
    return {"True": True, "False": False}.get(word, word)


def told(run: Run, *graphs: Workflow) -> Told:
    """The log of a run; the first of several graphs is the one it began with.

    Causes are left out: a change that moves events would break them as well.
    """
    first, *others = graphs or (run.flow,)
    log = [msgspec.structs.replace(event, cause=0) for event in run.kernel.events]
    return Told(first, log, {flow.digest: flow for flow in others})


def check(case: Told, changed: Change | None = None) -> list[Violation]:
    """What the checker finds in a log, as it is or changed."""
    return check_log(case.flow, case.log if changed is None else changed(case.log), case.graphs)


def law_names() -> set[str]:
    """The laws that the checker knows by name, read from its sources."""
    texts = [path.read_text() for path in Path(checker.__file__).parent.glob("*.py")]
    return {part.split('"')[1] for text in texts for part in text.split("self._check(")[1:]}


def nth(log: Log, kind: type, number: int) -> int:
    return [place for place, event in enumerate(log) if isinstance(event, kind)][number]


def change(kind: type, number: int = 0, **fields: Any) -> Change:
    def apply(log: Log) -> Log:
        place = nth(log, kind, number)
        return [*log[:place], msgspec.structs.replace(log[place], **fields), *log[place + 1 :]]

    return apply


def drop(kind: type, number: int = 0) -> Change:
    def apply(log: Log) -> Log:
        place = nth(log, kind, number)
        return [*log[:place], *log[place + 1 :]]

    return apply


def again(kind: type, number: int = 0, **fields: Any) -> Change:
    """The event once more, right behind itself."""

    def apply(log: Log) -> Log:
        place = nth(log, kind, number)
        return [*log[: place + 1], msgspec.structs.replace(log[place], **fields), *log[place + 1 :]]

    return apply


def behind(kind: type, event: AnyEvent, number: int = 0) -> Change:
    def apply(log: Log) -> Log:
        place = nth(log, kind, number)
        return [*log[: place + 1], event, *log[place + 1 :]]

    return apply


def before(kind: type, event: AnyEvent, number: int = 0) -> Change:
    def apply(log: Log) -> Log:
        place = nth(log, kind, number)
        return [*log[:place], event, *log[place:]]

    return apply


def until(kind: type, number: int = 0) -> Change:
    """Everything up to an event, as if the commit ended with it."""
    return lambda log: log[: nth(log, kind, number) + 1]


def swap(kind: type, first: int = 0, second: int = 1) -> Change:
    """Two events in each other's place."""

    def apply(log: Log) -> Log:
        one, other = nth(log, kind, first), nth(log, kind, second)
        swapped = list(log)
        swapped[one], swapped[other] = log[other], log[one]
        return swapped

    return apply


def both(*changes: Change) -> Change:
    def apply(log: Log) -> Log:
        for each in changes:
            log = each(log)
        return log

    return apply
