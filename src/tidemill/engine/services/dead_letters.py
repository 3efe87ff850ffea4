"""Dead letters: failures that are not retried automatically, and what people do about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.engine.index_rows import DEAD_LETTER, DeadLetterRow, read_dead_letter_row
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import AnyRun, ServiceContext, at_index, run_id_of
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.run_actions import UNSET
from tidemill.engine.services.runs import RunService
from tidemill.engine.validation import check_limit, check_place
from tidemill.engine.views import error_view
from tidemill.errors import Rejected, rejected
from tidemill.kernel.activation import items_merged
from tidemill.kernel.commands import CloseDeadLetter, Retry
from tidemill.kernel.events import AnyEvent, DeadLetterClosed
from tidemill.kernel.evolve import replay
from tidemill.kernel.explain.survey import label
from tidemill.kernel.state import DeadLetter, key_at

OPEN = "status:open"
TERMS = ("status", "run", "workflow", "node", "code")
PAGE = 200
LETTERS_MAX = 100_000
"""Letters that are counted of one run: as many as the items of a map."""


class Reprocessed(msgspec.Struct, frozen=True, kw_only=True):
    """The result of retrying dead letters, or what it would be."""

    matched: int
    """Letters that were found, those of runs that refused included."""
    runs: tuple[ReprocessedRun, ...]
    more: bool = False
    """There are more than `limit` allowed."""

    @property
    def handled(self) -> int:
        return sum(run.letters for run in self.runs if run.result != "refused")


class ReprocessedRun(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    letters: int
    result: str
    """`retried`, `would retry` or `refused`."""
    code: str = ""
    problem: str = ""


class DeadLetterService:
    def __init__(self, context: ServiceContext, runs: RunService, patches: PatchService) -> None:
        self._context, self._runs, self._patches = context, runs, patches

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[DeadLetterRow], str | None]:
        """Failures that are not retried automatically (`run:ID`, `workflow:NAME`, `code:CODE`…), newest first."""
        page = await self._context.page(DEAD_LETTER, checked_terms(terms, TERMS), after, limit)
        return [read_dead_letter_row(row) for row in page.rows], page.after

    async def show(
        self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None
    ) -> dict[str, Any]:
        """One dead letter with the input that the node was given, rendered again from the log.

        Of a map without an index it is that of the item that failed the map.
        """
        check_place(visit, index)
        entry = await self._context.entry(run_id)
        at = visit or entry.state.peek(node).visit
        letters = items_merged(entry.state.letters)
        letter = letters.get(key_at(node, at, at_index(index)))
        if letter is None and index is None and (key := _of_an_item(letters, node, at)):
            letter, index = letters[key], int(key.rsplit("/", 1)[1])
        if letter is None:
            which = node if visit is None and index is None else label(node, at, at_index(index))
            message = f"{which} of this run has no dead letter"
            raise rejected("dead_letter_unknown", message, hint=f"see `tidemill dlq list --run {run_id}`")
        events = await self._context.log(run_id, limit=letter.seq if letter.open else None)
        closed = _closing(events[letter.seq :], node, at, at_index(index))
        return {
            "run_id": run_id,
            "workflow": entry.state.workflow,
            "node": node,
            "visit": at,
            "index": index,
            "status": "open" if closed is None else closed.status,
            "closed_by": None if closed is None else closed.actor,
            "closed_ms": None if closed is None else closed.at_ms,
            "reason": "" if closed is None else closed.reason,
            "attempts": letter.attempts,
            "at_ms": letter.at_ms,
            "error": error_view(letter.error),
            "input": await self._context.input_of(run_id, node, at_index(index), replay(events[: letter.seq])),
        }

    async def discard(
        self,
        run_id: str,
        node: str,
        *,
        visit: int | None = None,
        index: int | None = None,
        reason: str = "",
        actor: str = "",
        command_id: str | None = None,
    ) -> None:
        """Close a dead letter without retrying it; by default that of the node's latest visit."""
        shown = await self.show(run_id, node, visit=visit, index=index)
        if shown["status"] == "reprocessed":
            by = f" by {shown['closed_by']}" if shown["closed_by"] else ""
            hint = f"see `tidemill why {run_id}`"
            raise rejected("dead_letter_closed", f"the dead letter of {node} was closed by a retry{by}", hint=hint)
        place: dict[str, Any] = {"node": node, "visit": shown["visit"], "index": at_index(shown["index"])}
        close = CloseDeadLetter(id=command_id, actor=actor or None, reason=reason, **place)
        await self._context.command(run_id, close, reason=reason)

    async def reprocess(
        self,
        *,
        run_id: AnyRun | None = None,
        node: str | None = None,
        workflow: str | None = None,
        code: str | None = None,
        operations: Any = None,
        config: Any = UNSET,
        did_not_happen: Sequence[str] = (),
        dry_run: bool = False,
        reason: str = "",
        actor: str = "",
        limit: int = 1_000,
    ) -> Reprocessed:
        """Retry the runs of open dead letters: those of a run, a workflow, a node, or an error code.

        `config` is a corrected one for `node`, `operations` a JSON Patch for anything else; each run's document is
        patched with it first. `dry_run` only counts. No further run is retried once `limit` letters are handled;
        a run is retried with all of its dead letters, and a run that refuses does not count.
        """
        check_limit(limit)
        if config is not UNSET:
            operations = _corrected(node, config, operations)
        terms = _terms(None if run_id is None else run_id_of(run_id), node, workflow, code)
        found: dict[str, ReprocessedRun] = {}
        handled = 0
        async for each in self._runs_with(terms):
            if each in found:
                continue
            if handled >= limit:
                return _reprocessed(found, more=True)
            # Counted before the retry, because the retry closes them.
            letters = await self._context.store.count(
                self._context.tenant, DEAD_LETTER, [*terms, f"run:{each}"], at_most=LETTERS_MAX
            )
            again = await self._again(each, letters, operations, tuple(did_not_happen), dry_run, reason, actor)
            found[each] = again
            handled += letters if again.result != "refused" else 0
        return _reprocessed(found)

    async def _runs_with(self, terms: Sequence[str]) -> AsyncIterator[str]:
        """The run of every letter with these terms, newest first; one with many letters comes many times."""
        after: str | None = None
        while True:
            rows, after = await self.find(terms, after=after, limit=PAGE)
            for row in rows:
                yield row.run_id
            if after is None:
                return

    async def _again(
        self, run_id: str, letters: int, operations: Any, sure: tuple[str, ...], dry_run: bool, reason: str, actor: str
    ) -> ReprocessedRun:
        try:
            if operations is not None:
                await self._patches.patch(
                    run_id, operations, retry=True, dry_run=dry_run, did_not_happen=sure, message=reason, actor=actor
                )
            elif dry_run:
                await self._context.rehearse(run_id, Retry(confirmed_not_done=sure))
            else:
                await self._runs.retry(run_id, reason=reason, actor=actor, did_not_happen=sure)
        except Rejected as refusal:
            first = refusal.problems[0]
            return ReprocessedRun(
                run_id=run_id, letters=letters, result="refused", code=first.code, problem=first.message
            )
        return ReprocessedRun(run_id=run_id, letters=letters, result="would retry" if dry_run else "retried")


def _corrected(node: str | None, config: Any, operations: Any) -> list[dict[str, Any]]:
    if node is None or operations is not None:
        hint = "name the node, or write a patch"
        raise rejected("correction_unclear", "a corrected config needs a node", path="/config", hint=hint)
    return [{"op": "add", "path": f"/nodes/{node}/config", "value": config}]


def _reprocessed(found: dict[str, ReprocessedRun], *, more: bool = False) -> Reprocessed:
    return Reprocessed(matched=sum(run.letters for run in found.values()), runs=tuple(found.values()), more=more)


def _of_an_item(letters: Mapping[str, DeadLetter], node: str, visit: int) -> str:
    """The key of the latest letter of a map's items; empty without one."""
    keys = [key for key in letters if key.startswith(key_at(node, visit, 0).removesuffix("0"))]
    return max(keys, key=lambda key: letters[key].seq, default="")


def _closing(events: Sequence[AnyEvent], node: str, visit: int, index: int) -> DeadLetterClosed | None:
    """The actor who closed a dead letter, from the events after it."""
    closed = (event for event in events if isinstance(event, DeadLetterClosed))
    return next((each for each in closed if (each.node, each.visit, each.index) == (node, visit, index)), None)


def _terms(run_id: str | None, node: str | None, workflow: str | None, code: str | None) -> list[str]:
    if run_id is None and node is None and workflow is None and code is None:
        hint = "name a run, a workflow, a node or an error code"
        raise rejected("letters_unnamed", "no filter says which dead letters to retry", hint=hint)
    of_workflow = node if node is None or workflow is None else f"{workflow}/{node}"
    named = {"run": run_id, "workflow": workflow, "node": of_workflow, "code": code}
    return [OPEN, *(f"{name}:{value}" for name, value in named.items() if value is not None)]
