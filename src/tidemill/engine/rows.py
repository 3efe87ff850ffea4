"""Index rows: how runs and dead letters are found. Written in the commit that changes what they show."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.kernel.events import AnyEvent, DeadLettered
from tidemill.kernel.state import State
from tidemill.stores.contract import Row, Stream

ROW_FORMAT = 1

RUN = "run"
DEAD_LETTER = "dead_letter"


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
    """How many events the row has taken in: its watermark."""
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


class DeadLetterRow(msgspec.Struct, frozen=True, gc=False, kw_only=True, omit_defaults=True):
    """A failure that nobody will try again by itself."""

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
    v: int = ROW_FORMAT


_ENCODE = msgspec.msgpack.Encoder().encode
_RUN = msgspec.msgpack.Decoder(RunRow)
_DEAD_LETTER = msgspec.msgpack.Decoder(DeadLetterRow)


def run_terms(state: State, *, stuck: bool = False, idle: bool = False) -> tuple[str, ...]:
    """The plain strings a run can be found by."""
    terms = [f"status:{state.status}", f"workflow:{state.workflow}", f"version:{state.workflow}@{state.version}"]
    terms += [f"label:{key}={value}" for key, value in state.labels.items()]
    if state.live:
        terms.append("live")
    if state.submitted_by:
        terms.append(f"by:{state.submitted_by}")
    if stuck:
        terms.append("stuck")
    if idle:
        terms.append("idle")
    return tuple(terms)


def run_row(
    stream: Stream,
    state: State,
    terms: tuple[str, ...],
    *,
    waiting_for: tuple[str, ...] = (),
    stuck: bool = False,
    idle: bool = False,
) -> Row:
    """The row of a run after a commit."""
    # The fields of `RunRow` in their order, encoded as it would be: this runs for every start and end of a run.
    body = (
        stream.key,
        state.workflow,
        state.version,
        state.digest,
        state.status,
        state.created_ms,
        state.last_ms,
        state.counter,
        state.seq,
        ROW_FORMAT,
        state.tag_used,
        state.submitted_by,
        state.labels,
        state.correlation_id,
        state.started_ms,
        state.ended_ms,
        state.tolerated,
        state.dead_letters,
        state.discarded,
        waiting_for,
        state.parent[0] if state.parent else "",
        state.forked_from[0] if state.forked_from else "",
        stuck,
        idle,
        state.failed_node,
        state.error.code if state.error else "",
    )
    return Row(kind=RUN, key=stream.key, sort=state.created_ms, terms=terms, body=_ENCODE(body))


def dead_letter_rows(stream: Stream, state: State, events: Iterable[AnyEvent]) -> list[Row]:
    """One row for each failure that was given up on in this commit."""
    return [_dead_letter_row(stream, state, event) for event in events if type(event) is DeadLettered]


def _dead_letter_row(stream: Stream, state: State, event: DeadLettered) -> Row:
    body = DeadLetterRow(
        run_id=stream.key,
        workflow=state.workflow,
        node=event.node,
        visit=event.visit,
        index=event.index,
        attempts=event.attempts,
        code=event.error.code,
        message=event.error.message,
        at_ms=event.at_ms,
    )
    return Row(
        kind=DEAD_LETTER,
        key=f"{stream.key}/{event.node}/{event.visit}/{event.index}",
        sort=event.at_ms,
        terms=(
            "status:open",
            f"run:{stream.key}",
            f"workflow:{state.workflow}",
            f"node:{state.workflow}/{event.node}",
            f"code:{event.error.code}",
        ),
        body=_ENCODE(body),
    )


def read_run_row(row: Row) -> RunRow:
    """A run's row, decoded."""
    return _RUN.decode(row.body)


def read_dead_letter_row(row: Row) -> DeadLetterRow:
    """A dead letter's row, decoded."""
    return _DEAD_LETTER.decode(row.body)
