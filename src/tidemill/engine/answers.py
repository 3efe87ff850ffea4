"""What a handler asked for instead of returning a value, checked before it goes into the log.

A handler is somebody else's code: what it answers is written down for ever and read by every later worker, so
a word that cannot be stored or a moment that is none is its failure, here, and not the log's later.
"""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec

from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.contract import Asked, Child, Fail, Pause, Skip
from tidemill.handlers.raised import clipped
from tidemill.kernel.commands import Request, Skips, Waits
from tidemill.kernel.events import INLINE_BYTES_MAX, NOT_AN_ITEM

WAIT_MS_MAX = 3_155_760_000_000
"""A hundred years, as for the node type `sleep`."""
MOMENT_MS_MAX = 253_402_300_800_000
"""The end of the year 9999."""
WORDS_MAX = 500
TEXT_MAX = 20_000
CHILD_ID_LENGTH_MAX = 120
FAMILY_NAME_LENGTH_MAX = 40
PRINCIPALS_MAX = 1_000
WAITED_FOR = ("timer", "signal", "human", "child")
"""What a handler can wait for; nothing would ever end another wait."""


def child_id(run_id: str, node: str, visit: int, index: int) -> str:
    """The id of the run that a visit or item starts: always the same, so that it is started once."""
    tail = f".{node}.{visit}" if index == NOT_AN_ITEM else f".{node}.{visit}.{index}"
    if len((run_id + tail).encode()) <= CHILD_ID_LENGTH_MAX:
        return run_id + tail
    # A family tree that is too deep for names: the same four facts, in fewer letters.
    # It still begins like its eldest ancestor's, by which a process that serves one family knows it.
    eldest = run_id.partition(".")[0]
    brief = "child-" + hashlib.sha256((run_id + tail).encode()).hexdigest()[:40]
    return f"{eldest}.{brief}" if len(eldest) <= FAMILY_NAME_LENGTH_MAX else brief


def asked_for(ended: Pause | Skip, child: str = "") -> tuple[Skips | Waits, bytes | None]:
    """The outcome of a handler that skips or waits, and the text of what it asks of a child.

    `child` is the id that a child of this activation has. Raises `Fail` when the handler asked for something
    impossible.
    """
    if isinstance(ended, Skip):
        return Skips(reason=_word(ended.reason, "reason")), None
    for_ms, until_ms = _moment(ended.for_ms, "for_ms", WAIT_MS_MAX), _moment(ended.until_ms, "until_ms", MOMENT_MS_MAX)
    if ended.on not in WAITED_FOR:
        message = f"a handler cannot wait for {clipped(ended.on, 100)!r}"
        raise Fail("answer_invalid", message, hint=f"it can wait for: {', '.join(WAITED_FOR)}")
    if ended.on == "timer" and for_ms is None and until_ms is None:
        raise Fail("answer_invalid", "a timer without a time never ends", hint="give for_ms or until_ms")
    if (ended.on == "human") is (ended.approval is None) or (ended.on == "child") is (ended.child is None):
        hint = "a person is asked with `approval`, a child with `child`, and nobody else"
        raise Fail("answer_invalid", f"a wait for {clipped(ended.on, 100)!r} is not asked for like this", hint=hint)
    waits = Waits(
        on=ended.on,
        name=child if ended.child is not None else _word(ended.name, "name"),
        for_ms=for_ms,
        until_ms=until_ms,
        recall=bool(ended.resume),
        approval=None if ended.approval is None else _request(ended.approval),
        close="" if ended.child is None else ended.child.close,
    )
    return waits, None if ended.child is None else _ask(ended.child)


def _moment(ms: Any, field: str, most: int) -> int | None:
    if ms is not None and (type(ms) is not int or not 0 <= ms <= most):
        raise Fail("answer_invalid", f"{field} is {clipped(ms, 100)}, not a number of milliseconds")
    return ms


def _word(said: object, field: str, limit: int = WORDS_MAX) -> str:
    if not isinstance(said, str):
        raise Fail("answer_invalid", f"{field} is {type(said).__name__}, not text")
    return clipped(said, limit)


def _request(asked: Asked) -> Request:
    if len(asked.approvers) > PRINCIPALS_MAX or len(asked.escalate_to) > PRINCIPALS_MAX:
        raise Fail("answer_invalid", f"more than {PRINCIPALS_MAX} approvers", hint="ask a role")
    if type(asked.quorum) is not int or asked.quorum < 1:
        raise Fail("answer_invalid", f"a quorum is a number of people, not {clipped(asked.quorum, 100)}")
    return Request(
        title=_word(asked.title, "title"),
        description=_word(asked.description, "description", TEXT_MAX),
        form=None if asked.form is None else _form(asked.form),
        approvers=tuple(_word(each, "approvers") for each in asked.approvers),
        quorum=asked.quorum,
        four_eyes=bool(asked.four_eyes),
        timeout_ms=_moment(asked.timeout_ms, "timeout_ms", WAIT_MS_MAX),
        on_timeout=asked.on_timeout,
        escalate_to=tuple(_word(each, "escalate_to") for each in asked.escalate_to),
        url=_word(asked.url, "url", 2_000),
    )


def _form(form: Any) -> bytes:
    """The schema of a form: one that cannot be used would only be noticed by the person who fills it in."""
    text = encode_value(form)
    if len(text) > INLINE_BYTES_MAX:
        raise Fail("config_invalid", f"the form's schema has more than {INLINE_BYTES_MAX} bytes")
    try:
        compile_schema(form)
    except ExpressionError as error:
        raise Fail("config_invalid", f"the form's schema cannot be used: {error.message}", hint=error.hint) from None
    return text


class ChildAsk(msgspec.Struct, frozen=True, kw_only=True):
    """What a child is asked for, as the log keeps it."""

    workflow: str
    inputs: Any = None
    labels: dict[str, str] = {}


def _ask(child: Child) -> bytes:
    if not all(isinstance(text, str) for pair in child.labels.items() for text in pair):
        raise Fail("answer_invalid", "a child's labels are text")
    workflow = _word(child.workflow, "workflow")
    return encode_value({"workflow": workflow, "inputs": child.inputs, "labels": dict(child.labels)})


def read_ask(text: bytes) -> ChildAsk:
    """What a child was asked for."""
    return ChildAsk(**decode_value(text))
