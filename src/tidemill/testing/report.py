"""What `verify` found: a report of one workflow, and its findings, as values and as JSON.

A finding is one kind of difference from the undisturbed run, with the seeds of all histories that show it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

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
        )
        shown = {name: getattr(self, name) for name in names}
        found = [finding.to_dict() for finding in self.findings]
        return {"ok": self.ok, **shown, "findings": found, "seconds": round(self.seconds, 3), "story": self.story}
