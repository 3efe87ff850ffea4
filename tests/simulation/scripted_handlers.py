"""Handlers that do whatever a seed says, and a ledger outside the engine of what they really did."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, Skip, Wait
from tidemill.handlers.control import WAITING
from tidemill.kernel.model import NodeType

BIG = "x" * 70_000
"""Longer than a record may hold, so it becomes a blob."""


TROUBLES = ["retryable"] * 2 + ["retry_after", "final", "raise", "exit"] + ["nan", "big", "skip", "hang", "checkpoint"]

WITHOUT_EFFECT = ("retryable", "retry_after", "final", "raise", "exit", "skip")

Choices = Callable[[str, str], tuple[str, ...]]
"""(run, node) → the nodes that an agent-driven branch may choose from."""


class Ledger:
    """Every call of a handler that really happened, by effect key."""

    def __init__(self) -> None:
        self.calls: dict[str, list[str]] = defaultdict(list)
        self.count = 0
        self.acts: dict[str, list[int]] = defaultdict(list)
        """Numbers of the calls that may have done something that can be undone."""

    def enter(self, context: NodeContext) -> str:
        """Write a call down; the nonce goes into its output."""
        self.count += 1
        nonce = f"{context.attempt}#{self.count}"
        self.calls[context.effect_key].append(nonce)
        if not context.undoing:
            self.acts[context.effect_key].append(self.count)
        return nonce

    def nothing(self, context: NodeContext) -> None:
        """The latest call has done nothing."""
        self.acts[context.effect_key].pop()


class Script:
    """What each attempt does: a function of the seed, the effect key and the attempt, never of the order."""

    def __init__(self, seed: int, ledger: Ledger, behaved: Counter[str], trouble: float, choices: Choices) -> None:
        self._seed, self._ledger, self._behaved, self._trouble = seed, ledger, behaved, trouble
        self._choices = choices

    def handlers(self) -> list[Handler]:
        """Four built-in names with scripted code, one of them an agent, and those that wait for the world."""
        scripted = [
            Handler(
                NodeType(name=name, waits=name == "sleep"),
                lambda context, name=name: self._call(name, context),
                agent=name == "fail",
            )
            for name in ("value", "fail", "sleep", "python")
        ]
        return [*scripted, *WAITING]

    def _call(self, name: str, context: NodeContext) -> Any:
        rng = random.Random(f"{self._seed}/{context.effect_key}/{context.attempt}")
        nonce = self._ledger.enter(context)
        if context.undoing:
            return self._undo(rng)
        if name == "sleep" and rng.random() < 0.9:
            self._behaved["wait"] += 1
            self._ledger.nothing(context)
            return Wait(on="timer", for_ms=rng.choice((0, 10, 700, 5_000, 40_000)))
        if rng.random() < self._trouble:
            return self._misbehave(rng, context, nonce)
        value = _value(rng, nonce)
        choices = self._choices(context.run_id, context.node)
        if choices:
            value["next_nodes"] = [name for name in choices if rng.random() < 0.5]
            if rng.random() < self._trouble / 2:
                value["next_nodes"] = ["nowhere"]
        if context.append is not None:
            return self._append(rng, context, value)
        if rng.random() < 0.5:
            return Done(value)
        self._behaved["async"] += 1
        return self._later(rng, value)

    def _undo(self, rng: random.Random) -> Any:
        """A compensator succeeds, or fails in one of the ways that it can."""
        kind = rng.choice(("done", "done", "later", "retryable", "final", "hang", "pause"))
        self._behaved[f"undo.{kind}"] += 1
        match kind:
            case "later":
                return self._later(rng, {"undone": True})
            case "retryable":
                raise Fail("flaky", "try again", retryable=True)
            case "final":
                raise Fail("broken", "for good")
            case "hang":
                return self._hang()
            case "pause":
                return Wait(on="timer", for_ms=1)
            case _:
                return Done({"undone": True})

    async def _later(self, rng: random.Random, value: Any) -> HandlerOutcome:
        await asyncio.sleep(rng.choice((0.0, 0.001, 0.02, 0.5, 2.0, 9.0)))
        return Done(value)

    def _misbehave(self, rng: random.Random, context: NodeContext, nonce: str) -> Any:
        kind = rng.choice(
            (
                "retryable",
                "retryable",
                "retry_after",
                "final",
                "raise",
                "nan",
                "big",
                "skip",
                "hang",
                "checkpoint",
                "exit",
            )
        )
        self._behaved[kind] += 1
        if kind in WITHOUT_EFFECT:
            self._ledger.nothing(context)
        match kind:
            case "retryable":
                raise Fail("flaky", "try again", retryable=True)
            case "retry_after":
                raise Fail("busy", "later", retryable=True, retry_after_ms=rng.choice((0, 3_000)))
            case "final":
                raise Fail("broken", "for good")
            case "raise":
                raise ValueError("\ud800 not even a message")
            case "exit":
                raise SystemExit(3)
            case "nan":
                return Done({"x": float("nan")})
            case "big":
                return Done({**_value(rng, nonce), "big": BIG})
            case "skip":
                return Skip("not needed")
            case "hang":
                return self._hang()
            case _:
                return self._checkpointed(rng, context, nonce)

    async def _append(self, rng: random.Random, context: NodeContext, value: Any) -> HandlerOutcome:
        """An agent: it continues behind the records of earlier attempts."""
        assert context.append is not None
        for number in range(len(context.appended), rng.randrange(1, 5)):
            self._behaved["append"] += 1
            await context.append({"number": number, "text": BIG if rng.random() < 0.05 else "x"})
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.001, 0.5, 2.0)))
        return Done(value)

    async def _hang(self) -> HandlerOutcome:
        await asyncio.sleep(60)
        return Done(None)

    async def _checkpointed(self, rng: random.Random, context: NodeContext, nonce: str) -> HandlerOutcome:
        assert context.checkpoint is not None
        await context.checkpoint({"at": 1})
        await asyncio.sleep(rng.choice((0.0, 4.0)))
        return Done(_value(rng, nonce))


def _value(rng: random.Random, nonce: str) -> dict[str, Any]:
    return {"x": rng.randrange(10), "nonce": nonce, "items": list(range(rng.choice((0, 1, 3, 6))))}
