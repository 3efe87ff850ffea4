"""From a state to what an expression may look at. Values are decoded only when an expression asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidemill.blobs.payloads import decode_value
from tidemill.engine.map_values import outputs_of
from tidemill.engine.values import Fetched, shared_value, text_of
from tidemill.expressions.scope import Absent, Scope, Seen
from tidemill.kernel.activation import ENDED, QUEUED_ITEM
from tidemill.kernel.events import NOT_AN_ITEM, BlobRef, Payload
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.routing import ancestors
from tidemill.kernel.sight import Output, iteration, upstream, visible
from tidemill.kernel.standing import phase_of
from tidemill.kernel.state import Cell, State, peek_at

NOTHING_FETCHED: Fetched = {}

RUN_READER = Node(id="", type="")
"""Who reads when the run's outputs are rendered: it is in no loop and sees every node as it ended."""


class SeenNodes(Mapping[str, Seen | Absent]):
    """The nodes as one reader sees them."""

    __slots__ = ("_ancestors", "_fetched", "_known", "_reader", "_state", "_workflow", "looked_at")

    def __init__(self, workflow: Workflow, state: State, reader: Node, fetched: Fetched) -> None:
        self._workflow, self._state, self._reader, self._fetched = workflow, state, reader, fetched
        self._known: dict[str, Seen | Absent] = {}
        self.looked_at: dict[str, Payload] = {}
        """The outputs that somebody has asked for."""
        self._ancestors: set[str] | None = None

    def __getitem__(self, name: str) -> Seen | Absent:
        known = self._known.get(name)
        if known is None:
            if name not in self._workflow.by_id:
                raise KeyError(name)
            known = self._known[name] = self._look(name)
        return known

    def _look(self, name: str) -> Seen | Absent:
        if self._hidden(name):
            return Absent("is not an ancestor")
        seen = visible(self._workflow, self._state, self._reader, name)
        if isinstance(seen, str):
            cell = self._state.peek(name)
            ended = cell.status in ENDED and name not in self._reader.reads_past
            return Absent(seen, self._meta(cell, cell.status) if ended else {})
        if not fetched_before(seen.payload, self._fetched):
            return Absent("has not ended")
        cell = self._state.peek(name)
        self.looked_at[name] = seen.payload
        meta = self._meta(cell, seen.status) if seen.visit == cell.visit else {"status": seen.status}
        return Seen(shared_value(seen.payload, self._fetched), meta)

    def _meta(self, cell: Cell, status: str) -> dict[str, Any]:
        return {"status": status, "attempts": cell.attempt, "duration_ms": cell.duration_ms}

    def _hidden(self, name: str) -> bool:
        """Whether a computed reference points at a node that the reader does not follow. Static ones were checked."""
        reader = self._reader
        if not reader.reads_all or name in reader.reads or name in reader.reads_past:
            return False
        if self._ancestors is None:
            self._ancestors = ancestors(self._workflow, reader.id)
        return name not in self._ancestors

    def __iter__(self) -> Iterator[str]:
        return iter(self._workflow.by_id)

    def __len__(self) -> int:
        return len(self._workflow.by_id)


def fetched_before(payload: Payload, fetched: Fetched) -> bool:
    """Whether a value can be read.

    A large one of a node that ended after the attempt began, past a join that did not wait for it, was not loaded.
    """
    return not isinstance(payload, BlobRef) or payload.digest in fetched


class Upstream(Mapping[str, Any]):
    """Outputs of the parents whose edges were taken, looked up and decoded only when a handler asks for them."""

    __slots__ = ("_fetched", "_found", "_node", "_state", "_workflow")

    def __init__(self, workflow: Workflow, state: State, node: Node, fetched: Fetched) -> None:
        self._workflow, self._state, self._node, self._fetched = workflow, state, node, fetched
        self._found: dict[str, Payload] | None = None

    def _payloads(self) -> dict[str, Payload]:
        if self._found is None:
            found = upstream(self._workflow, self._state, self._node)
            self._found = {name: value for name, value in found.items() if fetched_before(value, self._fetched)}
        return self._found

    def __getitem__(self, name: str) -> Any:
        return decode_value(text_of(self._payloads()[name], self._fetched))

    def __iter__(self) -> Iterator[str]:
        return iter(self._payloads())

    def __len__(self) -> int:
        return len(self._payloads())


def facts_of(run_id: str, state: State) -> dict[str, Any]:
    """The root `run`."""
    return {"id": run_id, "workflow": state.workflow, "version": state.version}


def scope_of(workflow: Workflow, state: State, run_id: str, reader: Node, fetched: Fetched = NOTHING_FETCHED) -> Scope:
    """What a node's templates and `when` may refer to."""
    return Scope(
        nodes=SeenNodes(workflow, state, reader, fetched),
        inputs=shared_value(state.inputs, fetched),
        run=facts_of(run_id, state),
        iteration=iteration(state, reader),
    )


def blobs_of(workflow: Workflow, state: State, node: Node) -> Iterable[BlobRef]:
    """References that must be loaded before an attempt at `node` can be rendered and called."""
    for payload in _payloads(workflow, state, node):
        if isinstance(payload, BlobRef):
            yield payload


def needed_for(
    workflow: Workflow, state: State, node: Node, index: int = NOT_AN_ITEM, *, list_known: bool = False
) -> dict[str, None]:
    """Addresses of all that must be loaded before a try at a node, or at an item of a map whose list may be known."""
    cell = state.peek(node.id)
    act, items = peek_at(cell, index) or QUEUED_ITEM, cell.map
    more: list[Payload | None] = [act.resumed, act.checkpoint]
    if items is not None and phase_of(node, cell, index) != "call":
        more += outputs_of(items)
    elif items is not None and not list_known:
        more.append(items.items)
    refs = [*blobs_of(workflow, state, node), *(ref for ref in more if isinstance(ref, BlobRef))]
    return dict.fromkeys(ref.digest for ref in refs)


def needed_for_outputs(workflow: Workflow, state: State) -> dict[str, None]:
    """Addresses of all that must be loaded before the outputs of a run can be rendered."""
    reader = msgspec.structs.replace(RUN_READER, reads=workflow.output_reads)
    return dict.fromkeys(ref.digest for ref in blobs_of(workflow, state, reader))


def _payloads(workflow: Workflow, state: State, node: Node) -> Iterable[Payload]:
    yield state.inputs
    names: Iterable[str] = state.cells if node.reads_all else node.reads + node.reads_past
    for name in names:
        seen = visible(workflow, state, node, name)
        if isinstance(seen, Output):
            yield seen.payload
    yield from upstream(workflow, state, node).values()
