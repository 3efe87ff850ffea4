"""The state of a run after its first n events: plain values that `evolve` changes and `decide` reads.

The caller that folds a state owns it. `decide` works on a *draft*, which shares everything with its base and copies a
visit on its first write, so that a decision costs what it touches, not the size of the run. Containers that grow
with the graph (visits, edges, items) are never copied whole: an OverlayDict holds the changes until `adopt`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tidemill.kernel.activation import QUEUED_ITEM, Activation, MapState, NodeStatus, OverlayDict, merged
from tidemill.kernel.events import NOT_AN_ITEM, Error, Payload
from tidemill.kernel.spending import NOTHING_SPENT, Budget, Spend

RunStatus = Literal["NEW", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
RollbackStatus = Literal["none", "running", "done", "partial"]
UndoStatus = Literal["", "scheduled", "done", "failed"]

DISCARDS_MAX = 10
"""Discarded results recorded per visit; more are ignored."""

COPIED_EDGES_MAX = 32
"""Joins up to this many decided edges are copied into a draft; larger ones get an overlay."""


class Buffered(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A signal that no node has taken yet."""

    name: str
    signal: str
    payload: Payload
    seq: int


class CompletedStep(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A completed visit or item that a rollback has to compensate, and its progress."""

    node: str
    visit: int
    index: int
    seq: int
    """When it completed; a rollback goes backwards."""
    status: UndoStatus = ""
    attempt: int = 0
    failures: int = 0
    lost: int = 0
    token: int = 0
    retry_at_ms: int | None = None
    error: Error | None = None


class DeadLetter(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A failure that is not retried automatically; open until an operator handles it."""

    seq: int
    at_ms: int
    attempts: int
    error: Error
    open: bool = True


class PreviousPass(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """How the latest visit of a node had ended when a pass of a loop began."""

    visit: int
    status: NodeStatus
    output: Payload | None


class Visit(Activation, array_like=True, gc=False):
    visit: int = 1
    settled: bool = False
    """The join fired or was skipped in this pass; later tokens are absorbed."""
    fired: bool = False
    """The visit was made ready, and counted."""
    edges: dict[str, bool] = msgspec.field(default_factory=dict)
    """Inbound edges decided so far: taken or dead."""
    taken: int = 0
    dead: int = 0
    tokens: int = 0
    """Tokens that this visit consumes when it ends."""
    has_start_token: bool = False
    """Its token came from no edge, but from the start of the run or of a pass."""
    hop: int = 0
    edges_taken: tuple[str, ...] | None = None
    """Edges taken when the visit ended."""
    left_by_exit: bool = False
    """It completed by an exit of its wait or by the time-out path of its loop, not by its plain edges."""
    tolerated: bool = False
    passes: int = 0
    """On a looping node: passes before the present one."""
    past: dict[str, PreviousPass] | None = None
    """By looping node: how the latest visit had ended when its present pass began."""
    map: MapState | None = None
    held: bool = False
    next_held: str = ""
    """The next node in the queue of held nodes."""
    why: str = ""
    """Why it was skipped or cancelled."""
    reported_before: int = 0
    """`reported` of the previous visit."""
    discarded_before: int = 0
    """`discarded` of the previous visit."""


UNVISITED = Visit()
LIVE = ("RUNNING", "PAUSED")
"""The statuses of a run that has not ended."""
"""The visit of a node without a history. Shared: never written."""


class State(msgspec.Struct, array_like=True, gc=False):
    """A run. `cells` holds the latest visit of every node with a history."""

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
    root: str = ""
    forked_from: tuple[str, int] | None = None
    revision: int = 0
    """Number of patches applied."""
    patched_by: tuple[str, ...] = ()
    created_ms: int = 0
    started_ms: int | None = None
    ended_ms: int | None = None
    ended_seq: int = 0
    """The seq of the latest end of the run."""
    last_ms: int = 0
    deadline_ms: int | None = None
    outputs: Payload | None = None
    rendering: bool = False
    """All visits have ended; the rendering of the run's outputs holds one token."""
    error: Error | None = None
    failed_node: str = ""
    reason: str = ""
    visits: int = 0
    in_flight: int = 0
    """Activations that own a job: QUEUED or RUNNING."""
    items: int = 0
    """Items that maps have queued in their latest visits; with `cells`, a measure of the size of this state."""
    size: int = 0
    """Bytes of all outputs."""
    blobs: int = 0
    """Values stored outside the log; while there are none, no reader searches for them."""
    tolerated: int = 0
    dead_letters: int = 0
    """Number of open dead letters."""
    discarded: int = 0
    repairs: int = 0
    first_held: str = ""
    last_held: str = ""
    approvals: int = 0
    """Approvals ever requested; while there are none, no reader searches for them."""
    signals: tuple[Buffered, ...] = ()
    """Buffered signals, oldest first."""
    listening: dict[str, tuple[tuple[str, int, int], ...]] = {}
    """By signal: activations that started to wait for it, oldest first; some may no longer wait."""
    rollback: RollbackStatus = "none"
    undo_order: tuple[str, ...] = ()
    """Keys of the rollback's steps, in order."""
    undo_at: int = 0
    """Number of steps that have ended."""
    undo_left: tuple[str, ...] = ()
    """Keys that the rollback could not compensate."""
    unknown: tuple[str, ...] = ()
    """Keys of visits and items with an unknown outcome that neither an operator nor a later attempt has settled."""
    undo: dict[str, CompletedStep] = {}
    """By key: completed visits and items whose nodes have compensators."""
    letters: dict[str, DeadLetter] = {}
    """By key: dead letters, closed ones included."""
    commands: dict[str, int] = {}
    """Ids of commands carried out, with the seq of their first event."""
    cells: dict[str, Visit] = {}
    work_ms: int = 0
    """Time that attempts have taken, also failed ones and those of earlier visits; for usage."""
    emitted: int = 0
    """Tokens ever emitted; for usage."""
    budget: Budget | None = None
    """Of a child run: what its parent allows it to spend on language models."""
    spent: Spend = NOTHING_SPENT
    """What the run and its children have spent on language models."""
    reserved: Spend = NOTHING_SPENT
    """What is reserved of its budget for calls in flight and child runs."""
    spent_by_children: Spend = NOTHING_SPENT
    """The part of `spent` that child runs have spent."""
    behind: dict[str, Visit] | None = None
    """In a draft only: the visits of its base, which it never changes."""

    def peek(self, node: str) -> Visit:
        """The node's latest visit, to read."""
        visit = self.cells.get(node)
        if visit is None and self.behind is not None:
            visit = self.behind.get(node)
        return UNVISITED if visit is None else visit

    def edit(self, node: str) -> Visit:
        """The node's latest visit, to write; a draft copies it first."""
        visit = self.cells.get(node)
        if visit is None:
            known = None if self.behind is None else self.behind.get(node)
            visit = self.cells[node] = Visit() if known is None else _copy_visit(known)
        return visit

    @property
    def live(self) -> bool:
        return self.status in LIVE

    @property
    def busy(self) -> bool:
        """Whether the run has not ended, or is being rolled back."""
        return self.status in LIVE or self.rollback == "running"


def draft_of(state: State) -> State:
    """A state that can be changed without changing `state`; O(1) in the size of the run."""
    draft: State = state.__copy__()  # type: ignore[attr-defined]
    draft.cells, draft.behind = {}, state.cells
    return draft


def notes(state: State, name: Literal["commands", "letters", "undo", "listening"]) -> dict[str, Any]:
    """One of the state's mappings, to write; a draft creates an overlay on the first write."""
    mapping: dict[str, Any] = getattr(state, name)
    if state.behind is not None and type(mapping) is not OverlayDict:
        mapping = OverlayDict(mapping)
        setattr(state, name, mapping)
    return mapping


def adopt(draft: State) -> State:
    """Turn a draft into the state once its events are committed; its base must not be used any more.

    Equals folding the draft's events into the base, but costs only what the draft changed.
    """
    if draft.behind is not None:
        for visit in draft.cells.values():
            if type(visit.edges) is OverlayDict:
                visit.edges = merged(visit.edges)
            if visit.map is not None:
                visit.map.by_index = merged(visit.map.by_index)
        draft.behind.update(draft.cells)
        draft.cells, draft.behind = draft.behind, None
        if type(draft.commands) is OverlayDict:
            draft.commands = merged(draft.commands)
        if draft.letters or draft.undo or draft.listening:
            draft.letters, draft.undo = merged(draft.letters), merged(draft.undo)
            draft.listening = merged(draft.listening)
    return draft


def _copy_visit(visit: Visit) -> Visit:
    """A copy to write, with overlays on containers that can be large."""
    own: Visit = visit.__copy__()  # type: ignore[attr-defined]
    own.edges = visit.edges.copy() if len(visit.edges) <= COPIED_EDGES_MAX else OverlayDict(visit.edges)
    if visit.map is not None:
        own.map = visit.map.__copy__()  # type: ignore[attr-defined]
        own.map.by_index = OverlayDict(visit.map.by_index)
    return own


def peek_at(visit: Visit, index: int) -> Activation | None:
    """The visit or its item, to read; None if there is no such item."""
    if index == NOT_AN_ITEM:
        return visit
    items = visit.map
    if items is None or not 0 <= index < items.next:
        return None
    return items.get(index) or QUEUED_ITEM


def edit_at(visit: Visit, index: int) -> Activation:
    """The visit or its item, to write. The visit must come from `edit`."""
    if index == NOT_AN_ITEM:
        return visit
    items = visit.map
    assert items is not None, "an item's event follows NodeExpanded"
    return items.edit(index)


def key_at(node: str, visit: int, index: int) -> str:
    """The name of an activation within its run: the tail of its effect key."""
    return f"{node}/{visit}/{index}"


def find_activation(state: State, key: str) -> Activation | None:
    """The activation with this key, to read; None unless it belongs to its node's latest visit."""
    node, number, index = key.rsplit("/", 2)
    visit = state.peek(node)
    if visit.visit != int(number):
        return None
    return visit if index == "-1" or visit.map is None else visit.map.get(int(index))
