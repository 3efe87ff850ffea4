"""The memory of a session: earlier prompts and answers of agents that share its id, within one tenant.

A session is an append-only stream. Each finished visit adds one turn, once per key. When there is more than a prompt
should hold, the oldest turns are replaced by a summary: a record of the stream like any other, made without a model, so
that every reader sees the same memory. What a visit has read of it stands in the first record of the visit.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tidemill.agents.conversation import brief
from tidemill.expressions.errors import shorten
from tidemill.kernel.spending import Spend

TURNS_MAX = 40
"""Turns that are remembered word by word."""
TURNS_KEPT = 20
"""Of which so many stay when the others are compacted."""
TEXT_MAX = 4_000
"""Characters of a prompt or an answer that are remembered."""
SUMMARY_MAX = 8_000
ASKED_SHOWN, ANSWER_SHOWN = 120, 240


class Remembered(msgspec.Struct, frozen=True, kw_only=True, tag="turn"):
    """A prompt and its answer. `key` is the effect key of the visit."""

    key: str
    prompt: str
    answer: str
    at_ms: int = 0


class Compacted(msgspec.Struct, frozen=True, kw_only=True, tag="compacted"):
    """The oldest turns are replaced by a summary, which holds the one before it."""

    turns: int
    """How many turns it replaces."""
    summary: str
    at_ms: int = 0


SessionRecord = Remembered | Compacted


class Memory(msgspec.Struct):
    """What a session holds now."""

    summary: str = ""
    turns: list[Remembered] = []

    def add(self, record: SessionRecord) -> None:
        if isinstance(record, Compacted):
            self.summary = record.summary
            del self.turns[: record.turns]
        else:
            self.turns.append(record)

    def knows(self, key: str) -> bool:
        return any(turn.key == key for turn in self.turns)

    def messages(self, most: int) -> list[tuple[str, str]]:
        """Roles and texts for a prompt: the summary, then the latest turns."""
        found = [("user", f"What was said earlier in this session, in short:\n{self.summary}")] if self.summary else []
        for turn in self.turns[max(0, len(self.turns) - most) :]:
            found += [("user", turn.prompt), ("assistant", turn.answer)]
        return found


def additions(memory: Memory, turn: Remembered) -> list[SessionRecord]:
    """The records of a new turn: itself, and a compaction if there are too many then. None if it is known."""
    if memory.knows(turn.key):
        return []
    records: list[SessionRecord] = [turn]
    if len(memory.turns) + 1 > TURNS_MAX:
        dropped = memory.turns[: len(memory.turns) + 1 - TURNS_KEPT]
        records.append(Compacted(turns=len(dropped), summary=_summary(memory.summary, dropped), at_ms=turn.at_ms))
    return records


def remembered(key: str, prompt: str, answer: str, at_ms: int) -> Remembered:
    return Remembered(key=key, prompt=shorten(prompt, TEXT_MAX), answer=shorten(answer, TEXT_MAX), at_ms=at_ms)


def _summary(before: str, turns: list[Remembered]) -> str:
    lines = before.splitlines() + [
        f"- asked: {brief(turn.prompt, ASKED_SHOWN)}; answered: {brief(turn.answer, ANSWER_SHOWN)}" for turn in turns
    ]
    while len("\n".join(lines)) > SUMMARY_MAX and len(lines) > 1:
        # The oldest lines go first.
        del lines[0]
    return "\n".join(lines)


class Accounts(Protocol):
    """What the engine keeps for the agents of a tenant beyond their runs: session memories, and the day's budget."""

    async def session(self, name: str) -> Memory:
        """The memory of a session; empty if there is none."""

    async def remember(self, name: str, key: str, prompt: str, answer: str) -> None:
        """Add a turn to a session, once per key."""

    async def reserve(self, key: str, amount: Spend, seconds: float) -> str:
        """Set an amount of the day's budget aside for a call that takes at most so many seconds.

        Returns what is used up instead, or an empty text.
        """

    async def settle(self, key: str, spent: Spend) -> None:
        """Count what was spent instead of what was set aside."""


def check_session_name(name: Any) -> str:
    """What is wrong with the id of a session, or an empty text."""
    if not isinstance(name, str) or not name or len(name) > 200 or not name.isprintable():
        return "the id of a session is a text of 1 to 200 characters"
    return ""
