"""Records and what they are folded into: replies survive them, and what models write describes no file."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.agents.conversation import packed, record_of, reply_of, restored
from tidemill.blobs.contract import MARKED
from tidemill.handlers.llm.provider import FailedCall, Reply, ToolCall, Usage
from tidemill.kernel.spending import Spend

DIGEST = "sha256:" + "0" * 64
FILE: dict[str, Any] = {"$blob": DIGEST, "size": 1}

REPLY = Reply(
    text=f'see {{"$blob": "{DIGEST}"}}',
    model="m",
    finish_reason="tool_calls",
    usage=Usage(input_tokens=7, output_tokens=3, cached_tokens=2),
    tool_calls=(ToolCall("x", "add", packed(FILE)), ToolCall("x", "add", "{}"), ToolCall("", "pay", "")),
    native={"provider": "anthropic", "content": [FILE]},
    provider="anthropic",
    position=1,
    cost=0.25,
    failed=(FailedCall(provider="openai", model="n", code="rate_limited", message="busy"),),
)


def stored(record: Any) -> Any:
    """A record as an attempt reads it from the log."""
    return msgspec.json.decode(msgspec.json.encode(record))


def test_a_reply_survives_its_record() -> None:
    record = stored(record_of(REPLY, 4, Spend(1, 10, 250_000), 12, "abc"))
    read = reply_of(record)
    assert [call.id for call in read.tool_calls] == ["call_4_0", "call_4_1", "call_4_2"], "results are found by ids"
    same = ("text", "model", "finish_reason", "usage", "native", "provider", "position", "cost")
    assert [getattr(read, name) for name in same] == [getattr(REPLY, name) for name in same]
    assert (record["spent"], record["ms"], record["request"]) == ([1, 10, 250_000], 12, "abc")


def test_nothing_that_a_model_writes_describes_a_file() -> None:
    """A run knows the files that its records describe: a model must not choose them."""
    assert MARKED not in msgspec.json.encode(record_of(REPLY, 1, Spend(), 0, ""))
    assert MARKED not in msgspec.json.encode({"wait": packed({"child": FILE}), "preview": packed([FILE])})


def test_the_same_records_give_the_same_messages() -> None:
    records = [
        {"t": "begin", "prompt": "p", "memory": [["user", "before"]], "ask": [1, 100]},
        record_of(REPLY, 1, Spend(1, 10), 5, ""),
        {"t": "tool", "n": 0, "text": "5", "ms": 1},
        {"t": "start", "n": 2},
        {"t": "wait", "n": 1, "state": packed(["tool", None]), "wait": packed({"on": "human"})},
    ]
    once, again = restored(tuple(records)), restored(tuple(map(stored, records)))
    assert once.messages == again.messages
    assert [message["role"] for message in once.messages] == ["user", "user", "assistant", "tool"]
    left = [(call.position, call.started, call.wait) for call in again.pending]
    assert left == [(1, False, {"on": "human"}), (2, True, None)]


def test_a_call_without_an_answer_counts_as_spent_when_it_is_announced_again() -> None:
    records: list[Any] = [{"t": "begin", "prompt": "p", "ask": [1, 100, 5]}, {"t": "again", "ask": [1, 110, 6]}]
    assert (restored(tuple(records)).spent, restored(tuple(records)).lost) == (Spend(1, 100, 5), 1)
    records.append(record_of(REPLY, 1, Spend(1, 10, 1), 0, ""))
    assert restored(tuple(records)).spent == Spend(2, 110, 6)
