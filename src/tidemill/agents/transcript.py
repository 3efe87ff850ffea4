"""The transcript of an agent's visit, made of its records: turns, calls of tools, and what they took.

Everything is in the log, so a transcript of a visit that still works shows what has happened so far, and one of a fork
begins with what it shares with its origin. Large results are references with previews.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec

from tidemill.agents.conversation import Conversation, Record, chosen_in_text, reply_of, unpacked


class Entry(NamedTuple):
    """A record with its place in the log."""

    seq: int
    at_ms: int
    attempt: int
    record: Record


class TranscriptCall(msgspec.Struct, kw_only=True):
    """A call of a tool."""

    name: str
    arguments: Any = None
    """As JSON, or the text that is none."""
    status: str = "pending"
    """`pending`, `running`, `waiting`, `done` or `failed`."""
    result: Any = None
    """What the model was given."""
    error: str = ""
    unknown_outcome: bool = False
    reference: Any = None
    preview: Any = None
    child: str = ""
    waits_for: str = ""
    seq: int = 0
    duration_ms: int = 0


class FailedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of the model that failed."""

    code: str
    message: str
    at_ms: int = 0
    model: str = ""
    provider: str = ""


class TranscriptTurn(msgspec.Struct, kw_only=True):
    number: int
    seq: int
    at_ms: int
    attempt: int
    model: str = ""
    provider: str = ""
    notes: list[str] = []
    """What the engine told the model before this turn."""
    failed: list[FailedCall] = []
    """Calls that failed before it."""
    text: str = ""
    refusal: str = ""
    calls: list[TranscriptCall] = []
    usage: dict[str, int] | None = None
    cost: float | None = None
    duration_ms: int = 0
    finish_reason: str = ""
    request: str = ""
    """Digest of what the model was asked."""


class Transcript(msgspec.Struct, kw_only=True):
    run_id: str
    node: str
    visit: int
    index: int = -1
    status: str = ""
    error: dict[str, str] | None = None
    """Why the visit failed."""
    prompt: str = ""
    memory: list[list[str]] = []
    """Role and text of what the session remembered."""
    prefix: str = ""
    """Digest of the stable prefix."""
    turns: list[TranscriptTurn] = []
    open_notes: list[str] = []
    """What the engine has told the model since the last turn."""
    open_failures: list[FailedCall] = []
    lost_calls: int = 0
    """Calls of the model that were lost with their workers; they count as spent."""
    usage: dict[str, int] = {}
    cost: float | None = None
    calls: int = 0
    """Calls of models that count for the budget."""
    tool_calls: int = 0
    duration_ms: int = 0
    next_nodes: list[str] = []
    reason: str = ""


def transcript_of(transcript: Transcript, entries: Iterable[Entry], *, routed: bool = False) -> Transcript:
    """Fill a transcript from the records of a visit, in order. `routed`: the agent decides a branch."""
    conversation = Conversation()
    for entry in entries:
        conversation.add(entry.record)
        fold = _FOLDS.get(entry.record.get("t", ""))
        if fold is not None:
            fold(transcript, entry)
    transcript.lost_calls = conversation.lost
    transcript.usage = conversation.usage.to_output()
    transcript.cost = None if conversation.cost is None else round(conversation.cost, 10)
    transcript.calls, transcript.tool_calls = conversation.spent.calls, len(conversation.ended)
    transcript.duration_ms = conversation.work_ms
    chosen, reason = conversation.chosen, conversation.reason
    if chosen is None and routed and conversation.finished:
        chosen, reason = chosen_in_text(transcript.turns[-1].text)
    transcript.next_nodes, transcript.reason = list(chosen or ()), reason
    return transcript


def _begin(transcript: Transcript, entry: Entry) -> None:
    record = entry.record
    transcript.prompt, transcript.prefix = record["prompt"], record.get("prefix", "")
    transcript.memory = [list(each) for each in record.get("memory", ())]


def _reply(transcript: Transcript, entry: Entry) -> None:
    record, reply = entry.record, reply_of(entry.record)
    transcript.turns.append(
        TranscriptTurn(
            number=len(transcript.turns) + 1,
            seq=entry.seq,
            at_ms=entry.at_ms,
            attempt=entry.attempt,
            model=reply.model,
            provider=reply.provider,
            notes=transcript.open_notes,
            failed=transcript.open_failures,
            text=reply.text,
            refusal=reply.refusal,
            calls=[
                TranscriptCall(name=call.name, arguments=_arguments(call.arguments_text)) for call in reply.tool_calls
            ],
            usage=None if reply.usage is None else reply.usage.to_output(),
            cost=reply.cost,
            duration_ms=record.get("ms", 0),
            finish_reason=reply.finish_reason,
            request=record.get("request", ""),
        )
    )
    transcript.open_notes, transcript.open_failures = [], []


def _failed(transcript: Transcript, entry: Entry) -> None:
    record = entry.record
    provider, model = record.get("asked", ("", ""))
    transcript.open_failures.append(
        FailedCall(code=record["code"], message=record["message"], at_ms=entry.at_ms, model=model, provider=provider)
    )


def _note(transcript: Transcript, entry: Entry) -> None:
    transcript.open_notes.append(entry.record["text"])


def _compact(transcript: Transcript, entry: Entry) -> None:
    transcript.open_notes.append(f"{entry.record['turns']} earlier turns were replaced by a summary")


def _start(transcript: Transcript, entry: Entry) -> None:
    if (call := _call(transcript, entry)) is not None:
        call.status, call.seq = "running", entry.seq


def _wait(transcript: Transcript, entry: Entry) -> None:
    if (call := _call(transcript, entry)) is not None:
        call.status, call.seq, call.waits_for = "waiting", entry.seq, unpacked(entry.record["wait"]).get("on", "")


def _tool(transcript: Transcript, entry: Entry) -> None:
    record, call = entry.record, _call(transcript, entry)
    if call is None:
        return
    call.error, call.unknown_outcome = record.get("error", ""), record.get("unknown", False)
    call.status = "failed" if call.error else "done"
    call.result, call.reference = _arguments(record["text"]), record.get("ref")
    call.preview = unpacked(record["preview"]) if "preview" in record else None
    call.child, call.seq, call.duration_ms = record.get("run", ""), entry.seq, record.get("ms", 0)


def _call(transcript: Transcript, entry: Entry) -> TranscriptCall | None:
    calls, position = transcript.turns[-1].calls if transcript.turns else [], entry.record["n"]
    return calls[position] if position < len(calls) else None


_FOLDS = {
    "begin": _begin,
    "reply": _reply,
    "failed": _failed,
    "note": _note,
    "compact": _compact,
    "start": _start,
    "wait": _wait,
    "tool": _tool,
}


def _arguments(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return text
