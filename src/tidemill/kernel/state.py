"""What is known of a run after its first n events: plain values that `evolve` changes and `decide` reads.

A state is owned by whoever folds it. `decide` never touches the one it is given: it works on a *draft*, which
shares everything with its base and copies a cell the moment it writes to it, so a decision costs what it
touches and never the size of the run. For the same reason the containers that can grow with the graph (cells,
a join's edges, a map's items) are never copied whole: changes are kept in front of what they change.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeVar

import msgspec

from tidemill.kernel.activation import QUEUED_ITEM, Activation, MapState, NodeStatus, OverlayDict, merged
from tidemill.kernel.events import NOT_AN_ITEM, Error, Payload

RunStatus = Literal["NEW", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
RollbackStatus = Literal["none", "running", "done", "partial"]
UndoStatus = Literal["", "scheduled", "done", "failed"]

DISCARDS_MAX = 10
"""Discarded results recorded per visit; more are dropped without a trace."""

COPIED_EDGES_MAX = 32
"""Joins up to this many decided edges are copied into a draft; larger ones get a layer."""


class Buffered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A signal that nobody has taken yet."""

    name: str
    signal: str
    payload: Payload
    seq: int


class CompletedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A completed visit or item that a rollback has to undo, and how far that has come."""

    node: str
    visit: int
    index: int
    seq: int
    """When it completed: a rollback goes backwards."""
    status: UndoStatus = ""
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    token: int = 0
    retry_at_ms: int | None = None
    error: Error | None = None


class DeadLetter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A failure that nobody will try again by itself, until somebody takes care of it."""

    seq: int
    at_ms: int
    attempts: int
    error: Error
    open: bool = True


class PreviousPass(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How a node's visit had ended when a pass of a loop began."""

    visit: int
    status: NodeStatus
    output: Payload | None


class Visit(Activation, array_like=True, gc=False):
    """A node's latest visit."""

    visit: int = 1
    settled: bool = False
    """The join fired or was skipped in this pass of the loop around it: later tokens are absorbed."""
    fired: bool = False
    """This visit was made ready (and counted)."""
    edges: dict[str, bool] = msgspec.field(default_factory=dict)
    """Inbound edges decided so far: taken or dead. The join's state is this set, never a bare number."""
    taken: int = 0
    dead: int = 0
    tokens: int = 0
    """Tokens that arrived and that this visit will consume when it ends."""
    has_start_token: bool = False
    """It was started by a token that no edge brought: the run's start, or its loop's next pass."""
    hop: int = 0
    edges_taken: tuple[str, ...] | None = None
    """Edges taken when the visit ended."""
    left_by_exit: bool = False
    """It completed by another way than its plain edges: an exit of its wait, or the end of its loop's patience."""
    tolerated: bool = False
    passes: int = 0
    """On a looping node: passes made before the present one."""
    past: dict[str, PreviousPass] | None = None
    """By looping node: how the latest visit had ended when that loop's present pass began."""
    map: MapState | None = None
    held: bool = False
    next_held: str = ""
    """The next node in the queue of those held by a limit."""
    why: str = ""
    """Why it was skipped or cancelled."""
    reported_before: int = 0
    """`reported` of the visit before this one."""
    discarded_before: int = 0
    """`discarded` of the visit before this one."""


UNVISITED = Visit()
"""The cell of a node that nothing has happened to. Shared: never written."""


class State(msgspec.Struct, array_like=True, gc=False):
    """A run. `cells` holds the nodes that something has happened to."""

    seq: int = 0
    status: RunStatus = "NEW"
    counter: int = 0
    """Tokens emitted minus tokens consumed: zero if and only if nothing is in flight."""
    workflow: str = ""
    version: int = 0
    digest: str = ""
    inputs: Payload = b"null"
    submitted_by: str = ""
    labels: dict[str, str] = {}
    correlation_id: str = ""
    trace: str = ""
    tag_used: str = ""
    parent: tuple[str, str, int, int] | None = None
    close: str = ""
    depth: int = 0
    forked_from: tuple[str, int] | None = None
    revision: int = 0
    """Patches this run has had."""
    patched_by: tuple[str, ...] = ()
    created_ms: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    ended_seq: int = 0
    """The seq at which the run ended, last time it did."""
    last_ms: int = 0
    deadline_ms: int | None = None
    outputs: Payload | None = None
    rendering: bool = False
    """Every visit has ended and the run's outputs are being rendered, which holds one token."""
    error: Error | None = None
    failed_node: str = ""
    reason: str = ""
    visits: int = 0
    in_flight: int = 0
    """Activations that own a job: QUEUED or RUNNING."""
    items: int = 0
    """Items that maps have queued in their present visits: together with the cells, how large this state is."""
    size: int = 0
    """Bytes of all outputs."""
    blobs: int = 0
    """Values that live outside the log; while there are none, nobody has to look for them."""
    tolerated: int = 0
    dead_letters: int = 0
    """Those that are open."""
    discarded: int = 0
    repairs: int = 0
    first_held: str = ""
    last_held: str = ""
    approvals: int = 0
    """Approvals ever requested; while there are none, nobody has to look for them."""
    signals: tuple[Buffered, ...] = ()
    """Signals that nobody has taken, oldest first."""
    listening: dict[str, tuple[tuple[str, int, int], ...]] = {}
    """By signal: activations that began to wait for it, oldest first. Those that no longer do are passed over."""
    rollback: RollbackStatus = "none"
    undo_order: tuple[str, ...] = ()
    """The keys of what a rollback undoes, in its order."""
    undo_at: int = 0
    """How many of them are over."""
    undo_left: tuple[str, ...] = ()
    """What a rollback could not undo."""
    unknown: tuple[str, ...] = ()
    """Visits and items of which nobody knows whether they happened, and nobody has said so since."""
    undo: dict[str, CompletedStep] = {}
    """Completed visits and items whose nodes have compensators."""
    letters: dict[str, DeadLetter] = {}
    """Dead letters, those included that somebody has taken care of."""
    commands: dict[str, int] = {}
    """Ids of commands that were carried out, with the seq of their first event."""
    cells: dict[str, Visit] = {}
    behind: dict[str, Visit] | None = None
    """In a draft only: the cells of the state it was drawn from, which it never changes."""

    def peek(self, node: str) -> Visit:
        """The node's cell, to read."""
        cell = self.cells.get(node)
        if cell is None and self.behind is not None:
            cell = self.behind.get(node)
        return UNVISITED if cell is None else cell

    def edit(self, node: str) -> Visit:
        """The node's cell, to write; in a draft, a copy of its own."""
        cell = self.cells.get(node)
        if cell is None:
            known = None if self.behind is None else self.behind.get(node)
            cell = self.cells[node] = Visit() if known is None else _fork(known)
        return cell

    @property
    def live(self) -> bool:
        """Whether the run has not ended."""
        return self.status == "RUNNING" or self.status == "PAUSED"

    @property
    def busy(self) -> bool:
        """Whether the run can still change by itself: it has not ended, or is being rolled back."""
        return self.live or self.rollback == "running"


S = TypeVar("S", bound=msgspec.Struct)


def _twin(value: S) -> S:
    """A shallow copy, without the detour that `copy.copy` makes."""
    twin: S = value.__copy__()  # type: ignore[attr-defined]
    return twin


def draft_of(state: State) -> State:
    """A state that can be changed without changing `state`; O(1), whatever the size of the run."""
    draft = _twin(state)
    draft.cells, draft.behind = {}, state.cells
    return draft


def notes(state: State, name: Literal["commands", "letters", "undo", "listening"]) -> dict[str, Any]:
    """One of the state's own books, to write; a draft puts a layer in front of its base's the first time."""
    book: dict[str, Any] = getattr(state, name)
    if state.behind is not None and type(book) is not OverlayDict:
        book = OverlayDict(book)
        setattr(state, name, book)
    return book


def adopt(draft: State) -> State:
    """Make a draft the state itself, once its events are committed; the state it was drawn from is used up.

    It equals folding the draft's events into that state, but costs only what the draft has changed.
    """
    if draft.behind is not None:
        for cell in draft.cells.values():
            if type(cell.edges) is OverlayDict:
                cell.edges = merged(cell.edges)
            if cell.map is not None:
                cell.map.by_index = merged(cell.map.by_index)
        draft.behind.update(draft.cells)
        draft.cells, draft.behind = draft.behind, None
        if type(draft.commands) is OverlayDict:
            draft.commands = merged(draft.commands)
        if draft.letters or draft.undo or draft.listening:
            draft.letters, draft.undo = merged(draft.letters), merged(draft.undo)
            draft.listening = merged(draft.listening)
    return draft


def _fork(cell: Visit) -> Visit:
    """A copy that may be written, sharing what can be large."""
    own = _twin(cell)
    own.edges = cell.edges.copy() if len(cell.edges) <= COPIED_EDGES_MAX else OverlayDict(cell.edges)
    if cell.map is not None:
        own.map = _twin(cell.map)
        own.map.by_index = OverlayDict(cell.map.by_index)
    return own


def peek_at(cell: Visit, index: int) -> Activation | None:
    """The activation a command or event speaks of, to read; None when there is no such item."""
    if index == NOT_AN_ITEM:
        return cell
    items = cell.map
    if items is None or not 0 <= index < items.next:
        return None
    return items.get(index) or QUEUED_ITEM


def edit_at(cell: Visit, index: int) -> Activation:
    """The activation an event speaks of, to write. The cell must be the caller's own (from `edit`)."""
    if index == NOT_AN_ITEM:
        return cell
    items = cell.map
    assert items is not None, "an item's event follows NodeExpanded"
    return items.edit(index)


def key_at(node: str, visit: int, index: int) -> str:
    """The name of an activation within its run: the tail of its effect key."""
    return f"{node}/{visit}/{index}"


SNAPSHOT_FORMAT = 1
"""The first byte of a snapshot. Raise it whenever the form of `State` changes; a test notices.

Snapshots of earlier versions had no such byte: they begin with 0xdc, or with 0x90 to 0x9f, as msgpack arrays do. So it
stays below 0x80.
"""

_FORMAT = bytes([SNAPSHOT_FORMAT])
_ENCODER = msgspec.msgpack.Encoder()


class SnapshotFormatUnknown(ValueError):
    """Another version wrote the snapshot: the log has to be folded from its first event."""


def encode_state(state: State) -> bytes:
    """A snapshot: folding it equals folding the log from the start."""
    return _FORMAT + _ENCODER.encode(state)


def decode_state(raw: bytes) -> State:
    """Read a snapshot."""
    if raw[:1] != _FORMAT:
        raise SnapshotFormatUnknown(f"a snapshot of another format: it begins with {raw[:1].hex() or 'nothing'}")
    return _decoder().decode(memoryview(raw)[1:])


@cache
def _decoder() -> msgspec.msgpack.Decoder[State]:
    return msgspec.msgpack.Decoder(State)
