"""Reading what the handlers of a run have printed and logged: so far, or as it is written.

Journals hold what was said as it came, often in pieces. Here it is put together to lines again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator

import msgspec

from tidemill.engine.journals import KEPT_BYTES, Line, Place, Spoken, read_journals
from tidemill.engine.roster import Roster
from tidemill.errors import offered, rejected
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Workflow
from tidemill.kernel.state import State, peek_at
from tidemill.stores.contract import Stream

LOOK_EVERY_MS = 250
"""How often a follower looks; lines are written about once a second, and at the end of an attempt."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that a handler printed or logged."""

    node: str
    visit: int
    index: int
    """The item of a map, -1 where there is none."""
    attempt: int
    at_ms: int
    source: str
    """`stdout`, `stderr`, or the level of a log record in small letters."""
    text: str
    """Without the end of the line."""


class Logs(Roster):
    """The verbs."""

    async def logs(
        self,
        run_id: str,
        node: str | None = None,
        *,
        visit: int | None = None,
        index: int | None = None,
        attempt: int | None = None,
    ) -> list[LogLine]:
        """What handlers have printed and logged, in order of time: about the last megabyte of each attempt.

        Lines of a node, of one visit, item or attempt of it, or of the whole run. They are written once a second, so
        those of an attempt under way may be that late.
        """
        entry = await self._entry(run_id)
        wanted = _wanted(node, visit, index, attempt)
        spoken = await read_journals(self._store, self._tenant, run_id, {}, wanted)
        if not spoken:
            _check_node(entry.flow.workflow, node)
            _check_attempt(entry.state, node, visit, index, attempt)
        lines = Lines()
        return _in_time([*lines.of(_latest(spoken)), *lines.rest()])

    async def follow_logs(
        self,
        run_id: str,
        node: str | None = None,
        *,
        visit: int | None = None,
        index: int | None = None,
        attempt: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """The same lines, then those that are written from now on; ends with the run."""
        _check_node((await self._entry(run_id)).flow.workflow, node)
        wanted, seen, lines = _wanted(node, visit, index, attempt), dict[Stream, int](), Lines()
        busy = True
        while busy:
            # Asked first: whatever was said before the end is written before it is told.
            busy = (await self._entry(run_id)).state.busy
            spoken = await read_journals(self._store, self._tenant, run_id, seen, wanted)
            fresh = list(lines.of(_latest(spoken)))
            for line in _in_time(fresh if busy else [*fresh, *lines.rest()]):
                yield line
            if busy:
                await self._ambient.sleep(LOOK_EVERY_MS)


class Lines:
    """Puts together what was said in pieces."""

    def __init__(self) -> None:
        self._begun: dict[tuple[Place, str], Line] = {}

    def of(self, spoken: Iterable[Spoken]) -> Iterator[LogLine]:
        """The lines that end with what was said now."""
        for each in spoken:
            where = (each.place, each.line.source)
            begun = self._begun.pop(where, None)
            at_ms = each.line.at_ms if begun is None else begun.at_ms
            *whole, last = ((begun.text if begun is not None else "") + each.line.text).split("\n")
            for number, text in enumerate(whole):
                yield _shown(each.place, Line(each.line.at_ms if number else at_ms, each.line.source, text))
            if last:
                self._begun[where] = Line(each.line.at_ms if whole else at_ms, each.line.source, last)

    def rest(self) -> Iterator[LogLine]:
        """The lines that nobody has ended."""
        begun, self._begun = self._begun, {}
        for (place, _), line in begun.items():
            yield _shown(place, line)


def _shown(place: Place, line: Line) -> LogLine:
    return LogLine(
        node=place.node,
        visit=place.visit,
        index=place.index,
        attempt=place.attempt,
        at_ms=line.at_ms,
        source=line.source,
        text=line.text,
    )


def _latest(spoken: list[Spoken]) -> list[Spoken]:
    """About the last megabyte of each attempt: more may still be there."""
    left: dict[Place, int] = {}
    kept: list[Spoken] = []
    for each in reversed(spoken):
        room = left.get(each.place, KEPT_BYTES)
        if room > 0:
            kept.append(each)
            left[each.place] = room - len(each.line.text.encode("utf-8", "surrogatepass"))
    return kept[::-1]


def _in_time(lines: list[LogLine]) -> list[LogLine]:
    """Lines of several attempts by time; those of one stay in their order."""
    return sorted(lines, key=lambda line: line.at_ms)


def _wanted(node: str | None, visit: int | None, index: int | None, attempt: int | None) -> Callable[[Place], bool]:
    asked = {"node": node, "visit": visit, "index": index, "attempt": attempt}
    named = {name: value for name, value in asked.items() if value is not None}
    return lambda place: all(getattr(place, name) == value for name, value in named.items())


def _check_attempt(state: State, node: str | None, visit: int | None, index: int | None, attempt: int | None) -> None:
    """Refuse a visit or an attempt that has not been; of a visit before the last one nobody knows its attempts."""
    if node is None:
        return
    cell = state.peek(node)
    if visit is not None and visit > cell.visit:
        raise rejected("attempt_unknown", f"there is no visit {visit} of node {node}", path="/visit")
    is_known = visit == cell.visit or cell.visit == 1
    act = peek_at(cell, NOT_AN_ITEM if index is None else index)
    if attempt is None or not is_known or act is None or (cell.map is not None and index is None):
        return
    # One that has not ended may be at an attempt whose beginning is not written yet.
    if attempt > act.attempt + (not act.ended_seq):
        message = f"there is no attempt {attempt} of node {node}: it has had {act.attempt}"
        raise rejected("attempt_unknown", message, path="/attempt")


def _check_node(workflow: Workflow, node: str | None) -> None:
    if node is not None and node not in workflow.by_id:
        hint = offered(str(node), workflow.by_id)
        raise rejected("node_unknown", f"the workflow has no node {node}", path="/node", hint=hint)
