"""Index rows: how runs, approvals and dead letters are found. Written in the commit that changes what they show."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import sha256
from math import ceil
from operator import attrgetter
from sys import intern
from typing import Any

import msgspec

from tidemill.kernel.activation import Approval, closed, folded
from tidemill.kernel.events import (
    AnyEvent,
    ApprovalEvent,
    DeadLetterClosed,
    DeadLettered,
    Ending,
    NodeEvent,
    NodeScheduled,
    RunCreated,
)
from tidemill.kernel.evolve import evolve
from tidemill.kernel.model import Retention
from tidemill.kernel.queries import message_of
from tidemill.kernel.spending import NOTHING_SPENT
from tidemill.kernel.state import DeadLetter, State, key_at, peek_at
from tidemill.stores.contract import Row, Stream

ROW_FORMAT = 1
DEFAULT_RETENTION = Retention()
DESCRIPTION_SHOWN_MAX = 500
MESSAGE_SHOWN_MAX = 200

RUN = "run"
DEAD_LETTER = "dead_letter"
APPROVAL = "approval"
SUSPECT = "suspect"
SCHEDULE = "schedule"
"""Kind of the stream and of the row of a schedule, which `triggers` writes."""

ANYONE = "anyone"
"""The term of an approval without approvers."""

DAY_MS = 24 * 3600 * 1000

WAITS = {"human": "approval", **{name: name for name in ("timer", "signal", "child", "retry", "limit")}}
"""What a run can wait for, as `waiting_for` begins, and what it is called in the term `waiting:…`."""

IndexedFacts = tuple[str, bool, str, dict[str, str], int]
"""The changing facts that the terms of a run are derived from."""


class RunRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, array_like=True):
    """A run as lists show it. Stored by position, like events: new fields are appended with a default."""

    run_id: str
    workflow: str
    version: int
    digest: str
    status: str
    created_ms: int
    last_event_ms: int
    counter: int
    events: int
    """How many events the row reflects: its watermark."""
    v: int = ROW_FORMAT
    tag_used: str = ""
    submitted_by: str = ""
    labels: dict[str, str] = {}
    correlation_id: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    tolerated: int = 0
    dead_letters: int = 0
    late_results: int = 0
    waiting_for: tuple[str, ...] = ()
    parent: str = ""
    forked_from: str = ""
    stuck: bool = False
    idle: bool = False
    failed_node: str = ""
    error_code: str = ""
    rollback: str = "none"
    revision: int = 0
    suspect: str = ""
    """The code of what the audit found wrong with the run's log."""
    stuck_reason: str = ""
    """Why a worker or the reconciler gave up on the run for now; valid until the next event."""
    failure: str = ""
    """Of a FAILED run: the fingerprint of its failure, as in the term `failure:…`. From here on the fields are written
    when a run ends; rows of earlier versions lack them."""
    error_message: str = ""
    """Of a FAILED run: the beginning of its error."""
    work_ms: int = 0
    """How long attempts took, all together."""
    output_bytes: int = 0
    tokens: int = 0
    """Tokens that were emitted."""
    model_calls: int = 0
    """Calls of models by its agents, without those of child runs."""
    model_tokens: int = 0
    cached_tokens: int = 0
    """Those of them that came from the provider's cache."""
    model_cost: float = 0.0
    """In the currency of the prices."""

    def __repr__(self) -> str:
        """What tells runs apart; a row has too many fields to be read."""
        return f"RunRow({self.run_id!r}, workflow='{self.workflow}@{self.version}', status={self.status!r})"

    def to_dict(self) -> dict[str, Any]:
        """As a JSON value; the format of the stored row is left out."""
        shown = msgspec.structs.asdict(self) | {"waiting_for": list(self.waiting_for)}
        del shown["v"]
        return shown


class ApprovalRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """An approval as lists show it; the form is read from the run."""

    run_id: str
    workflow: str
    node: str
    visit: int
    index: int
    status: str
    title: str
    description: str
    approvers: tuple[str, ...]
    quorum: int
    requested_ms: int
    requester: str = ""
    four_eyes: bool = False
    votes: tuple[str, ...] = ()
    """Who has approved so far."""
    delegated: tuple[tuple[str, str], ...] = ()
    expires_ms: int | None = None
    on_timeout: str = "fail"
    escalated: bool = False
    url: str = ""
    decision: str = ""
    decided_by: str = ""
    decided_ms: int | None = None
    comments: str = ""
    v: int = ROW_FORMAT


class DeadLetterRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    run_id: str
    workflow: str
    node: str
    visit: int
    index: int
    attempts: int
    code: str
    message: str
    at_ms: int
    status: str = "open"
    closed_by: str = ""
    closed_ms: int | None = None
    reason: str = ""
    v: int = ROW_FORMAT


_ENCODE = msgspec.msgpack.Encoder().encode
_RUN = msgspec.msgpack.Decoder(RunRow)
_DEAD_LETTER = msgspec.msgpack.Decoder(DeadLetterRow)
_APPROVAL = msgspec.msgpack.Decoder(ApprovalRow)


def indexed_facts(state: State) -> IndexedFacts:
    """The facts whose change makes a run findable by other terms."""
    return state.status, state.in_flight > 0, state.rollback, state.labels, quiet_day(state)


def quiet_day(state: State) -> int:
    """The day, counted from 1970, of the last event of an ended run; 0 for any other."""
    return 0 if state.busy else state.last_ms // DAY_MS


def retention_term(day: int, retention: Retention) -> str:
    """The term by which retention finds an ended run."""
    # Without retention in the workflow it is the day of the end: the default is a setting that may change.
    if retention.keep:
        return "kept"
    return f"ended:{day}" if retention.days is None else f"retire:{day + 1 + ceil(retention.days)}"


def root_term(run_id: str) -> str:
    """The term by which all runs below a root run are counted."""
    return f"root:{run_id}"


def run_terms(
    state: State, *, retention: Retention = DEFAULT_RETENTION, stuck: bool = False, idle: bool = False
) -> tuple[str, ...]:
    terms = [f"status:{state.status}", *_version_terms(state.workflow, state.version)]
    if state.labels:
        terms += [f"label:{key}={value}" for key, value in state.labels.items()]
    if state.live:
        # The reconciler checks runs that only wait less often.
        terms += ["live", "active" if state.in_flight else "waiting"]
    elif not state.busy:
        terms.append(retention_term(quiet_day(state), retention))
    if state.rollback != "none":
        terms.append(f"rollback:{state.rollback}")
    if state.parent is not None:
        terms.append(f"parent:{state.parent[0]}")
    if state.root:
        terms.append(root_term(state.root))
    if state.forked_from is not None:
        terms.append(f"forked_from:{state.forked_from[0]}")
    if state.submitted_by:
        terms.append(f"by:{state.submitted_by}")
    if state.status == "FAILED" and state.error is not None:
        terms.append(f"failure:{fingerprint(state.error.code, state.failed_node, state.error.message)}")
    if stuck or idle:
        terms += ["stuck"] * stuck + ["idle"] * idle
    return tuple(terms)


@lru_cache(maxsize=1_024)
def _version_terms(workflow: str, version: int) -> tuple[str, str]:
    return f"workflow:{workflow}", f"version:{workflow}@{version}"


def waiting_terms(waiting_for: Sequence[str]) -> tuple[str, ...]:
    """The terms by which a run is found by what it waits for.

    A row without them is right too: an older version wrote it, or the run was busy. The reconciler adds them.
    """
    kinds = dict.fromkeys(each.partition(" ")[0] for each in waiting_for)
    return tuple(f"waiting:{WAITS[kind]}" for kind in kinds if kind in WAITS)


_FIRST = attrgetter("workflow", "version", "digest", "status", "created_ms", "last_ms", "counter", "seq")
_SECOND = attrgetter(
    "tag_used", "submitted_by", "labels", "correlation_id", "started_ms", "ended_ms", "tolerated", "dead_letters",
    "discarded",
)  # fmt: skip
"""What a run's row has of its state, before and after the format number."""


def run_row(
    stream: Stream,
    state: State,
    terms: tuple[str, ...],
    *,
    waiting_for: tuple[str, ...] = (),
    stuck: bool = False,
    idle: bool = False,
    stuck_reason: str = "",
) -> Row:
    parent = state.parent[0] if state.parent else ""
    forked_from = state.forked_from[0] if state.forked_from else ""
    error_code = state.error.code if state.error else ""
    # The fields of `RunRow` in order, encoded without the struct: this runs at every start and end of a run.
    body = (
        stream.key, *_FIRST(state), ROW_FORMAT, *_SECOND(state), waiting_for, parent, forked_from, stuck, idle,
        state.failed_node, error_code, state.rollback, state.revision, "", stuck_reason, *_known_at_end(state),
    )  # fmt: skip
    return Row(kind=RUN, key=stream.key, sort=state.created_ms, terms=terms, body=_ENCODE(body))


def _known_at_end(state: State) -> tuple[object, ...]:
    """The fields that only the row of an ended run has; any other row is as earlier versions wrote it."""
    if state.live:
        return ()
    failure = message = ""
    if state.status == "FAILED" and state.error is not None:
        failure = fingerprint(state.error.code, state.failed_node, state.error.message)
        message = message_of(state.error)[:MESSAGE_SHOWN_MAX]
    known = (failure, message, state.work_ms, state.size, state.emitted)
    if state.spent is NOTHING_SPENT or state.spent == NOTHING_SPENT:
        return known
    spent = state.spent - state.spent_by_children
    return (*known, spent.calls, spent.tokens, spent.cached, spent.cost)


AT_END = ("failure", "error_message", "work_ms", "output_bytes", "tokens")
"""The fields of `_known_at_end`."""
SPENDING = ("model_calls", "model_tokens", "cached_tokens", "model_cost")
"""Those after them, where models were asked."""

_QUOTED = re.compile(r"""(?<!\w)(["'`])(.*?)\1(?!\w)""", re.DOTALL)
_ID = re.compile(r"\b(?:[\w-]*[0-9][\w-]*|[0-9a-fA-F]{8,})")
_FINGERPRINTED_MAX = 1_000


def fingerprint(code: str, node: str, message: str) -> str:
    """What the same failure has in common in many runs: twelve digits, of its code, its node and the message.

    Of the message, quoted values and every word with a digit (numbers, times, ids) are left out.
    """
    text = _ID.sub("#", _QUOTED.sub("?", message[:_FINGERPRINTED_MAX]))
    told = "\n".join((code, node, " ".join(text.split())))
    return sha256(told.encode("utf-8", "surrogatepass")).hexdigest()[:12]


def rows_beside(stream: Stream, before: State, after: State, events: Sequence[AnyEvent]) -> tuple[Row, ...]:
    """Rows of approvals and dead letters that these events change; most runs have neither."""
    rows: list[Row] = []
    if after.approvals:
        changed = _approvals(before, _own(events))
        rows += [_approval_row(stream, after, key, each) for key, each in changed.items()]
    if after.letters or before.letters:
        rows += _letter_rows(stream, after, events)
    return tuple(rows)


Key = tuple[str, int, int]


def rows_along(stream: Stream, events: Iterable[AnyEvent]) -> tuple[State, dict[tuple[str, str], Row]]:
    """Fold a whole log; returns the state and every row that `rows_beside` wrote, however the events were grouped."""
    state, rows = State(), dict[tuple[str, str], Row]()
    own_from = 0
    for event in events:
        if isinstance(event, RunCreated) and event.forked_from:
            own_from = event.forked_from[1]
        own = state.seq >= own_from
        asked = _approvals(state, (event,)) if own and isinstance(event, NodeEvent) else {}
        evolve(state, event)
        found = [_approval_row(stream, state, key, each) for key, each in asked.items()]
        if own and isinstance(event, (DeadLettered, DeadLetterClosed)):
            found += _letter_rows(stream, state, (event,))
        rows.update({(row.kind, row.key): row for row in found})
    return state, rows


def _approvals(before: State, events: Sequence[AnyEvent]) -> dict[Key, Approval]:
    """Approvals as these events leave them. The end of a visit ends its approval."""
    known: dict[Key, Approval] = {}
    for event in events:
        if not isinstance(event, NodeEvent):
            continue
        key = (event.node, event.visit, event.index)
        approval = known.get(key)
        if approval is None:
            current = before.peek(event.node)
            act = peek_at(current, event.index) if current.visit == event.visit else None
            approval = None if act is None else act.approval
        if isinstance(event, ApprovalEvent):
            changed = folded(approval, event)
            if changed is not None:
                known[key] = changed
        elif approval is not None and approval.status == "pending" and _ends(event):
            known[key] = closed(approval)
    return known


def _ends(event: NodeEvent) -> bool:
    """Whether this event ends the wait of a visit or item, whatever it waited for."""
    return isinstance(event, Ending) or (isinstance(event, NodeScheduled) and event.resumed is not None)


def _own(events: Sequence[AnyEvent]) -> Sequence[AnyEvent]:
    """The events of this run itself, without those that a fork shares with its source."""
    first = events[0]
    return events[first.forked_from[1] :] if isinstance(first, RunCreated) and first.forked_from else events


_COPIED = (
    "status", "title", "approvers", "quorum", "requested_ms", "requester", "four_eyes", "delegated", "expires_ms",
    "escalated", "url", "decision", "decided_by", "decided_ms", "comments",
)  # fmt: skip
"""The fields of an approval that its row has unchanged."""


def _approval_row(stream: Stream, state: State, key: Key, approval: Approval) -> Row:
    node, visit, index = key
    body = ApprovalRow(
        run_id=stream.key,
        workflow=state.workflow,
        node=node,
        visit=visit,
        index=index,
        description=approval.description[:DESCRIPTION_SHOWN_MAX],
        votes=tuple(vote.by for vote in approval.votes),
        # Interned, because msgspec omits a default only by identity, and equal rows must be equal bytes.
        on_timeout=intern(approval.on_timeout),
        **{name: getattr(approval, name) for name in _COPIED},
    )
    asked = {*(approval.approvers or (ANYONE,)), *(to for _, to in approval.delegated)}
    terms = [f"status:{approval.status}", f"run:{stream.key}", f"workflow:{state.workflow}"]
    terms += [f"approver:{each}" for each in sorted(asked)]
    if approval.decided_by:
        terms.append(f"decided_by:{approval.decided_by}")
    place = f"{stream.key}/{key_at(node, visit, index)}"
    return Row(kind=APPROVAL, key=place, sort=approval.requested_ms, terms=tuple(terms), body=_ENCODE(body))


def _letter_rows(stream: Stream, state: State, events: Sequence[AnyEvent]) -> Iterator[Row]:
    for event in events:
        if isinstance(event, (DeadLettered, DeadLetterClosed)):
            letter = state.letters.get(key_at(event.node, event.visit, event.index))
            if letter is not None:
                yield _letter_row(stream, state, event, letter)


def _letter_row(stream: Stream, state: State, event: DeadLettered | DeadLetterClosed, failure: DeadLetter) -> Row:
    letter = DeadLetterRow(
        run_id=stream.key,
        workflow=state.workflow,
        node=event.node,
        visit=event.visit,
        index=event.index,
        attempts=failure.attempts,
        code=failure.error.code,
        message=message_of(failure.error),
        at_ms=failure.at_ms,
    )
    if isinstance(event, DeadLetterClosed):
        letter = msgspec.structs.replace(
            letter, status=event.status, closed_by=event.actor or "", closed_ms=event.at_ms, reason=event.reason
        )
    return Row(
        kind=DEAD_LETTER,
        key=f"{letter.run_id}/{key_at(letter.node, letter.visit, letter.index)}",
        sort=letter.at_ms,
        terms=(
            f"status:{letter.status}",
            f"run:{letter.run_id}",
            f"workflow:{letter.workflow}",
            f"node:{letter.workflow}/{letter.node}",
            f"node:{letter.node}",
            f"code:{letter.code}",
        ),
        body=_ENCODE(letter),
    )


def marked_suspect(row: Row, code: str) -> Row:
    """A run's row with the audit's finding and the term for it; an empty code removes both."""
    terms = (*(term for term in row.terms if term != SUSPECT), *([SUSPECT] if code else []))
    return msgspec.structs.replace(row, terms=terms, body=_changed(row, suspect=code))


def marked_stuck(row: Row, reason: str) -> Row:
    """A run's row with the reason why nothing happens, and the term for it."""
    terms = tuple(dict.fromkeys((*row.terms, "stuck")))
    return msgspec.structs.replace(row, terms=terms, body=_changed(row, stuck=True, stuck_reason=reason))


def _changed(row: Row, **fields: object) -> bytes:
    """The body of a run's row with other values; fields that a newer version has appended stay."""
    known = msgspec.structs.replace(_RUN.decode(row.body), **fields)
    appended = msgspec.msgpack.decode(row.body)[len(RunRow.__struct_fields__) :]
    return _ENCODE([*(getattr(known, name) for name in RunRow.__struct_fields__), *appended])


def read_run_row(row: Row) -> RunRow | None:
    """The run's row, or None if a newer version has written it in a form that this one does not know."""
    try:
        found = _RUN.decode(row.body)
    except msgspec.ValidationError:
        if is_newer_row(row):
            return None
        raise
    return found if found.v <= ROW_FORMAT else None


_RUN_FORMAT_AT = RunRow.__struct_fields__.index("v")


def is_newer_row(row: Row) -> bool:
    """Whether a newer version has written a row in a form that this one does not know."""
    body = msgspec.msgpack.decode(row.body)
    if isinstance(body, dict):
        format_ = body.get("v")
    else:
        format_ = body[_RUN_FORMAT_AT] if isinstance(body, list) and len(body) > _RUN_FORMAT_AT else None
    return isinstance(format_, int) and format_ > ROW_FORMAT


def read_dead_letter_row(row: Row) -> DeadLetterRow:
    return _DEAD_LETTER.decode(row.body)


def read_approval_row(row: Row) -> ApprovalRow:
    return _APPROVAL.decode(row.body)
