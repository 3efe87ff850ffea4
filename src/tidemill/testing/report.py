"""What `verify` found: a report of one workflow, and its findings, as values and as JSON.

A finding is one kind of difference from the undisturbed run, with the seeds of all histories that show it. What it
means that an effect happens twice, and what to change so that it does no harm, is known here, too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from types import CodeType
from typing import Any, Literal

from tidemill.handlers.contract import Handler
from tidemill.kernel.model import Compensator, Node
from tidemill.testing.cluster import UNDO
from tidemill.testing.fakes import COMPUTING
from tidemill.testing.simulated_loop import SimulatedFunctions

Severity = Literal["error", "warning"]
FindingKind = Literal["duplicate", "lost", "stuck", "different", "invariant", "unknown_outcome", "undisturbed"]


@dataclass(slots=True)
class CrashFinding:
    """One kind of difference, in all histories that show it."""

    kind: FindingKind
    severity: Severity
    node: str
    """A node, or `node/undo` for its compensator."""
    message: str
    hint: str
    node_type: str = ""
    path: str = ""
    """Where the document would be changed."""
    line: int | None = None
    seeds: list[int] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in ("kind", "severity", "node", "message", "hint", "path", "line")}
        return {**shown, "seeds": self.seeds}


@dataclass(slots=True)
class Report:
    """What `verify` found."""

    workflow: str
    nodes: int
    status: str
    """How the run ends without a crash."""
    boundaries: dict[str, int]
    """Histories with one crash, by kind of boundary."""
    boundaries_reached: int
    random: int
    crashes: int
    keyed: dict[str, int]
    """Effects that were repeated under the same effect key, by node."""
    once: dict[str, int]
    """Statements that were tried again, by node; the store executes each once, with the commit of its result."""
    findings: list[CrashFinding]
    seconds: float = 0.0
    unreached: list[str] = field(default_factory=list)
    """Nodes, and compensators as `node/undo`, that do not run without a crash: nothing is known about them."""
    story: list[str] = field(default_factory=list)
    """What happened, if one seed was replayed."""
    kinds: dict[int, str] = field(default_factory=dict)
    """By seed: the kind of boundary at which its worker died, or `random`."""
    expect: str = ""
    """How every run is to end, if the user says so: COMPLETED or FAILED."""
    rollback: str = ""
    """How far the rollback gets without a crash."""
    ended: dict[str, int] = field(default_factory=dict)
    """Histories by the status in which their run ends."""
    lost: list[str] = field(default_factory=list)
    """Nodes that may not have happened, though a run goes on as if they had."""
    has_missing: bool = False
    """Whether an effect that happens without a crash did not in some history, whatever the reason."""
    unsteady: list[str] = field(default_factory=list)
    """Nodes that end otherwise in another run without a crash: they are not compared."""

    def add(self, finding: CrashFinding, seed: int) -> None:
        """Add a finding of a history, or the seed to one that is the same."""
        for known in self.findings:
            if (known.kind, known.node, known.message) == (finding.kind, finding.node, finding.message):
                known.seeds.append(seed)
                return
        finding.seeds.append(seed)
        self.findings.append(finding)

    def lose(self, node: str) -> None:
        """Note that a run goes on as if a node had happened."""
        if node not in self.lost:
            self.lost.append(node)

    @property
    def claim(self) -> str:
        """What holds for the effects of every history that was judged."""
        if self.lost:
            return f"the effect of {', '.join(self.lost)} may be lost"
        return "no completed node lost its effect" if self.has_missing else "no effect was lost"

    @property
    def is_as_expected(self) -> bool:
        """Whether the run ends without a crash as it is to."""
        return self.status == (self.expect or "COMPLETED")

    @property
    def ok(self) -> bool:
        """Whether there is no error; warnings say what the document allows."""
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        names = (
            "workflow",
            "nodes",
            "status",
            "boundaries",
            "boundaries_reached",
            "random",
            "crashes",
            "keyed",
            "once",
            "unreached",
            "expect",
            "rollback",
            "ended",
            "lost",
            "unsteady",
        )
        shown = {name: getattr(self, name) for name in names}
        found = [finding.to_dict() for finding in self.findings]
        return {
            "ok": self.ok,
            **shown,
            "claim": self.claim,
            "findings": found,
            "seconds": round(self.seconds, 3),
            "story": self.story,
        }


# Repetitions

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
