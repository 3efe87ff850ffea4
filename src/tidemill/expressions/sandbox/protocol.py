"""The messages between a worker and the children of its sandbox: a request or task, and its answer.

A message carries only what the condition refers to. The child runs native code over untrusted data, so the worker
decodes answers as JSON of a fixed shape and a bounded size.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from tidemill.expressions.conditions import Composite, EvaluationRequest, compiled
from tidemill.expressions.errors import ExpressionError, condition_failed
from tidemill.expressions.limits import json_excess
from tidemill.expressions.sandbox.tasks import FilterRows, Jq, RenderTexts, RunCode, RunQuery, SandboxTask
from tidemill.expressions.scope import NOTHING, Absent, Json, References, Scope, Seen

FRAME_MAX = 1 << 26
"""Bytes of a condition together with the values that it reads."""

ANSWER_MAX = 1 << 16
"""Bytes of the answer to a request."""

RESULT_MAX = 1 << 26
"""Bytes of the answer to a task."""


class Answer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a request or task as JSON, or why there is none."""

    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    message: str = ""
    hint: str = ""
    path: str = ""
    retire: bool = False
    """The child has grown too large for another call."""

    def value(self) -> Json:
        """Return the result; raise `ExpressionError` if there is none."""
        if self.result is msgspec.UNSET:
            raise ExpressionError(code="condition_failed", message=self.message, hint=self.hint, path=self.path)
        return msgspec.json.decode(self.result)


class _SentNode(msgspec.Struct, omit_defaults=True):
    output: Json = None
    meta: dict[str, Json] = {}
    absent: str | None = None


class _SentScope(msgspec.Struct, kw_only=True, omit_defaults=True):
    nodes: dict[str, _SentNode]
    inputs: Json = None
    run: dict[str, Json] = {}
    iteration: int = 0
    has_output: bool = False
    output: Json = None
    has_item: bool = False
    item: Json = None
    index: int = 0


class _SentRequest(msgspec.Struct, kw_only=True, tag="errand"):
    leaf: Json
    deadline_ms: int
    scope: _SentScope


class _SentRender(msgspec.Struct, kw_only=True, tag="render"):
    texts: list[tuple[str, str]]
    deadline_ms: int
    scope: _SentScope


class _SentFilterRows(msgspec.Struct, kw_only=True, tag="sift"):
    errand: _SentRequest
    rows: list[Json]


_Sent = _SentRequest | _SentFilterRows | _SentRender | Jq | RunQuery | RunCode
_SENT: msgspec.json.Decoder[_Sent] = msgspec.json.Decoder(_Sent)
_ANSWER = msgspec.json.Decoder(Answer)
_ENCODER = msgspec.json.Encoder()


def packed(work: EvaluationRequest | SandboxTask) -> bytes:
    """Encode a request or task, with nothing of a scope but what the condition refers to."""
    try:
        body = _ENCODER.encode(_outgoing(work))
    except RecursionError:
        raise condition_failed("a value is nested too deeply") from None
    except ValueError:
        raise condition_failed("a string is not valid Unicode, or a number has thousands of digits") from None
    if len(body) > FRAME_MAX:
        hint = "read a part of it only, or compute the decisive value in a node before"
        raise condition_failed(f"what {work.what} reads is larger than {FRAME_MAX >> 20} MB", hint)
    return body


def _outgoing(work: EvaluationRequest | SandboxTask) -> _Sent:
    match work:
        case EvaluationRequest():
            return _sent_request(work)
        case FilterRows():
            return _SentFilterRows(
                errand=_sent_request(EvaluationRequest(work.leaf, work.scope, work.deadline_ms)), rows=work.rows
            )
        case RenderTexts():
            scope = _sent_scope(work.references, work.scope)
            return _SentRender(texts=work.texts, deadline_ms=work.deadline_ms, scope=scope)
        case Jq() | RunQuery() | RunCode():
            return work
        case _:
            assert_never(work)


def _sent_request(request: EvaluationRequest) -> _SentRequest:
    scope = _sent_scope(request.leaf.references, request.scope)
    return _SentRequest(leaf=request.leaf.normal(), deadline_ms=request.deadline_ms, scope=scope)


def _sent_scope(references: References, scope: Scope) -> _SentScope:
    roots, names = references.roots, scope.nodes if references.dynamic else references.nodes
    shows_output = scope.has_output and not roots.isdisjoint(("output", "current"))
    shows_item = scope.has_item and not roots.isdisjoint(("item", "index"))
    return _SentScope(
        nodes={node: _sent(seen) for node in names if (seen := scope.nodes.get(node)) is not None},
        inputs=scope.inputs if "inputs" in roots else None,
        run=dict(scope.run) if "run" in roots else {},
        iteration=scope.iteration,
        has_output=shows_output,
        output=scope.output if shows_output else None,
        has_item=shows_item,
        item=scope.item if shows_item and "item" in roots else None,
        index=scope.index,
    )


def _sent(seen: Seen | Absent) -> _SentNode:
    if isinstance(seen, Absent):
        return _SentNode(absent=seen.reason, meta=dict(seen.meta))
    return _SentNode(output=seen.output, meta=dict(seen.meta))


def unpacked(body: bytes) -> EvaluationRequest | SandboxTask:
    """Decode a request or task, and compile its condition."""
    sent = _SENT.decode(body)
    match sent:
        case _SentRequest():
            return _received_request(sent)
        case _SentFilterRows():
            request = _received_request(sent.errand)
            return FilterRows(request.leaf, request.scope, sent.rows, request.deadline_ms)
        case _SentRender():
            return RenderTexts(sent.texts, NOTHING, _received_scope(sent.scope), sent.deadline_ms)
        case Jq() | RunQuery() | RunCode():
            return sent
        case _:
            assert_never(sent)


def _received_request(sent: _SentRequest) -> EvaluationRequest:
    condition = compiled(sent.leaf)
    assert not isinstance(condition, Composite)
    return EvaluationRequest(condition, _received_scope(sent.scope), sent.deadline_ms)


def _received_scope(sent: _SentScope) -> Scope:
    return Scope(
        nodes={
            node: (Seen(each.output, each.meta) if each.absent is None else Absent(each.absent, each.meta))
            for node, each in sent.nodes.items()
        },
        inputs=sent.inputs,
        run=sent.run,
        iteration=sent.iteration,
        has_output=sent.has_output,
        output=sent.output,
        has_item=sent.has_item,
        item=sent.item,
        index=sent.index,
    )


def answer_of(value: bytes | ExpressionError, *, retire: bool = False) -> Answer:
    """Build the answer from the text of a result, or from a failure."""
    if isinstance(value, ExpressionError):
        return Answer(message=value.message, hint=value.hint, path=value.path, retire=retire)
    return Answer(result=msgspec.Raw(value), retire=retire)


def packed_answer(answer: Answer) -> bytes:
    """Encode an answer; an answer that is too large or not valid text becomes a failure."""
    try:
        body = _ENCODER.encode(answer)
    except ValueError:
        body = b""
    most = ANSWER_MAX if answer.result is msgspec.UNSET else RESULT_MAX
    if not 0 < len(body) <= most:
        message = "there is no answer that could be sent" if body else "the condition could not be decided"
        if len(body) > RESULT_MAX:
            message = f"the result is larger than {RESULT_MAX >> 20} MB"
        body = _ENCODER.encode(Answer(message=message, retire=answer.retire))
    elif excess := json_excess(body):
        body = _ENCODER.encode(Answer(message=f"the result is too large: {excess}", retire=answer.retire))
    return body


def unpacked_answer(body: bytes) -> Answer | None:
    """Decode an answer; None if it is malformed."""
    try:
        return _ANSWER.decode(body)
    except msgspec.DecodeError:
        return None
