"""What a second call of a node does, by its type, its configuration and the code that it calls, and what to change."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from types import CodeType
from typing import Any, Literal

from tidemill.handlers.contract import Handler
from tidemill.kernel.model import Compensator, Node
from tidemill.testing.cluster import UNDO
from tidemill.testing.fakes import COMPUTING
from tidemill.testing.simulated_loop import SimulatedFunctions

Repetition = Literal["harmless", "once", "keyed", "unkeyed"]
"""What a second call does: no harm, nothing, nothing at a receiver that honours its key, or a second effect."""


class Repetitions:
    """Knows what a second call does. `repeatable` are nodes and compensators for which it does no harm."""

    def __init__(self, functions: SimulatedFunctions, handlers: Sequence[Handler], repeatable: Collection[str]) -> None:
        self._functions, self._handlers, self._repeatable = functions, handlers, frozenset(repeatable)

    def of(self, place: str, called: Node | Compensator | None) -> Repetition:
        """What it means that the effect of a node, or of its compensator, happens twice."""
        if called is None or not self._repeatable.isdisjoint((place, place.removesuffix(UNDO))):
            return "harmless"
        name, config = called.type.partition("@")[0], called.config if isinstance(called.config, dict) else {}
        match name:
            case "webhook" | "email":
                return "keyed"
            case "llm" | "classify" | "pipeline":
                return "harmless"
            case "http":
                method = config.get("method") or ("POST" if config.get("body") is not None else "GET")
                if method in ("GET", "HEAD", "OPTIONS"):
                    return "harmless"
                return "keyed" if config.get("idempotency_header", True) else "unkeyed"
            case "sql":
                if str(config.get("statement", "")).lstrip().lower().startswith(("select", "with")):
                    return "harmless"
                if config.get("database", "store") == "store":
                    return "once"
                return "keyed" if ":effect_key" in str(config.get("statement")) else "unkeyed"
            case "python":
                function = self._functions.known(str(config.get("function")))
                return "keyed" if _uses_key(function) else "unkeyed"
            case _:
                own = next((each.call for each in self._handlers if each.type.key == called.type), None)
                return "keyed" if name in COMPUTING or _uses_key(own) else "unkeyed"


def remedy(called: Node | Compensator | None) -> str:
    """What to change so that a second call does no harm; a compensator is always called at least once."""
    keys = {
        "http": "leave `idempotency_header` on",
        "sql": "deduplicate by `:effect_key` in the statement",
        "shell": "",
    }
    name = "" if called is None else called.type.partition("@")[0]
    key = keys.get(name, "let the receiver deduplicate by `context.effect_key`")
    if isinstance(called, Compensator):
        return key or "let the command do no harm when it is repeated"
    return ", or ".join(filter(None, (key, "write `delivery: at_most_once`")))


def place_in_words(place: str) -> str:
    """A node by its name, and the compensator of one as such."""
    return f"the compensator of {place.removesuffix(UNDO)}" if place.endswith(UNDO) else place


def _uses_key(function: Callable[..., Any] | None) -> bool:
    """Whether the code of a function, or of a function inside it, reads `effect_key`."""
    code = getattr(None if function is None else inspect.unwrap(function), "__code__", None)
    return isinstance(code, CodeType) and _reads_key(code)


def _reads_key(code: CodeType) -> bool:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return "effect_key" in code.co_names or any(map(_reads_key, inner))
