"""The progress of a run as a watcher sees it, folded from its events, and the words for the status of a node.

Nothing is drawn here. The board keeps counts and the few rows that matter now, so that showing 10,000 nodes costs no
more than showing ten. It is not the kernel's state: it knows only what a watcher needs, and may lag behind.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal, get_args

from tidemill.cli.render.tables import EXCEPTION
from tidemill.cli.render.terminal import counted, one_line
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import NOT_TAKEN
from tidemill.pictures.history import VisitTimes
from tidemill.pictures.labels import duration as duration

Phase = Literal[
    "PENDING", "ACTIVE", "RETRYING", "WAITING",
    "COMPLETED", "TOLERATED", "FAILED", "SKIPPED", "CANCELLED", "UNREACHED",
]  # fmt: skip
BUSY: frozenset[Phase] = frozenset({"ACTIVE", "RETRYING", "WAITING"})
ENDED: frozenset[Phase] = frozenset({"COMPLETED", "TOLERATED", "FAILED", "SKIPPED", "CANCELLED", "UNREACHED"})

RECENT_MAX = 40
SAID_MAX = 60
"""The end of what an agent is saying, in its row."""
WAITS = {"human": "a decision", "signal": "signal", "child": "a child run"}
"""What visits wait for, where another word is plainer."""
NOT_REACHED = "upstream_failed"
"""The code of a node that failed because one before it did, and never began."""


@dataclass(slots=True)
class NodeProgress:
    number: int
    name: str
    phase: Phase = "PENDING"
    attempt: int = 0
    passes: int = 1
    passes_max: int | None = None
    loops: bool = False
    begun: bool = False
    until_ms: int | None = None
    reason: str = ""
    code: str = ""
    count: int | None = None
    """Items of a map, when their number is known."""
    done: int = 0
    """Items that have ended, failed and cancelled ones included."""
    failed: int = 0
    cancelled: int = 0
    tolerated: int = 0
    """Failed items that a retry leaves as they are."""
    given_up: int = 0
    """Items that a retry runs again: cancelled ones, and failed ones that were not tolerated."""
    quorum: int = 1
    """How many people have to agree, when people are asked."""
    agreed: int = 0
    progress: float | None = None
    """The progress that it reports, from 0 to 1."""
    said: str = ""


class RunProgress:
    def __init__(self, workflow: Workflow, run_id: str = "", *, reference: str = "") -> None:
        self.name, self.run_id = reference or workflow.name, run_id
        self.rows = {node.id: NodeProgress(number, node.id) for number, node in enumerate(workflow.nodes)}
        self.agents = frozenset(node.id for node in workflow.nodes if node.type.partition("@")[0] == "agent")
        self._ordered = list(self.rows.values())
        for node in workflow.nodes:
            if node.loop is not None:
                row = self.rows[node.id]
                row.loops, row.passes_max = True, node.loop.max_iterations
        self.counts: Counter[Phase] = Counter({"PENDING": len(self.rows)})
        self.seq = 0
        self.began_ms: int | None = None
        self.ended_ms: int | None = None
        self.paused = False
        self.interrupted = self.terminated = self.detached = False
        self.failed_node = ""
        self.error: Mapping[str, Any] | None = None
        self.tolerated = 0
        self.told = ""
        """The node whose failure stands, with its reason, in the last rows that were printed."""
        self._times = VisitTimes()
        self._busy: dict[str, NodeProgress] = {}
        self._failed: dict[str, NodeProgress] = {}
        """Nodes that failed by themselves, tolerated or not."""
        self._recent: deque[NodeProgress] = deque(maxlen=RECENT_MAX)

    @property
    def ended(self) -> int:
        """How many nodes have ended."""
        return sum(self.counts[phase] for phase in ENDED)

    def elapsed_ms(self, now_ms: int) -> int:
        return (self.ended_ms or now_ms) - self.began_ms if self.began_ms is not None else 0

    def spent(self, row: NodeProgress, now_ms: int) -> str:
        """The time that the latest visit of a node has taken, in words; `runs show` says the same of one that ended."""
        spent = self._times.elapsed_ms(row.name, now_ms) if row.begun else None
        return "" if spent is None else duration(spent)

    def apply(self, event: Mapping[str, Any]) -> NodeProgress | None:
        """Fold one event; return the row whose visit it moved, None for everything else."""
        if event.get("live"):
            # Of the items of a map, the latest report counts.
            row = self.rows.get(event["node"])
            if row is not None and row.phase in BUSY and event["type"] == "NodeProgressed":
                row.progress, row.said = event["fraction"], event["message"]
            elif row is not None and row.name in self.agents and isinstance(event["value"], str):
                row.said = (row.said + event["value"])[-SAID_MAX:]
            return None
        self.seq = event["seq"]
        kind: str = event["type"]
        if kind.startswith("Run"):
            self._see_run(kind, event)
            return None
        row = self.rows.get(event.get("node", ""))
        if row is None:
            return None
        self._times.fold(event)
        if kind == "LoopContinued":
            self._reopen(event["body"])
            row.passes = event["iteration"] + 1
            return row
        if "index" not in event:
            return row if self._see_visit(row, kind, event) else None
        row.attempt = max(row.attempt, event.get("attempt", 0))
        if kind in ("NodeCompleted", "NodeOverridden", "NodeCancelled") and self.ended_ms is None:
            row.done += 1
            row.cancelled += kind == "NodeCancelled"
            row.given_up += kind == "NodeCancelled"
        elif kind == "NodeFailed" and "retry_at_ms" not in event:
            row.done, row.failed = row.done + 1, row.failed + 1
            row.tolerated += bool(event.get("tolerated"))
            row.given_up += not event.get("tolerated")
        elif kind == "NodeScheduled" and row.phase == "PENDING":
            # The items of a map that continues after a retry.
            self._begin(row, event)
        return None

    def window(self, height: int) -> list[NodeProgress]:
        """The rows that matter most, at most `height`, in the order of the document."""
        if len(self.rows) <= height:
            return self._ordered
        failed, busy = self._failed.values(), self._busy.values()
        groups = (islice(failed, height // 3), islice(busy, 2 * height // 3), reversed(self._recent))
        chosen = dict.fromkeys(islice((row.number for group in groups for row in group), 2 * height))
        numbers = sorted(islice(chosen, height))
        return [self._ordered[number] for number in numbers]

    def _see_run(self, kind: str, event: Mapping[str, Any]) -> None:
        if kind in ("RunCompleted", "RunFailed", "RunCancelled"):
            self.ended_ms = event["at_ms"]
        match kind:
            case "RunCreated" | "RunForked":
                # A fork repeats the events of its source.
                self.began_ms, self.ended_ms = event["at_ms"], None
            case "RunPaused":
                self.paused = True
            case "RunResumed":
                self.paused = False
            case "RunRewound" | "RunRetried":
                self.ended_ms = None
                self._reopen([reopened["node"] for reopened in event["nodes"]], again=kind == "RunRewound")
            case "RunPatched":
                self._repaint(event.get("added", ()), event.get("removed", ()))
            case "RunFailed":
                self.failed_node, self.error = event["node"], event["error"]
            case "RunCompleted":
                self.tolerated = event.get("tolerated", 0)

    def _see_visit(self, row: NodeProgress, kind: str, event: Mapping[str, Any]) -> bool:
        """Fold an event about the visit itself; return whether its phase is news."""
        row.attempt = event.get("attempt", row.attempt)
        match kind:
            case "NodeScheduled":
                self._begin(row, event)
            case "NodeExpanded":
                row.count, row.done, row.failed, row.cancelled = event["count"], 0, 0, 0
                row.tolerated = row.given_up = 0
            case "NodeWaiting":
                row.reason = WAITS.get(event["on"], event["on"]) + (f" {event['name']}" if event.get("name") else "")
                row.until_ms = event.get("until_ms", event.get("expires_ms"))
                self._move(row, "WAITING")
            case "ApprovalRequested" | "ApprovalVoted" | "ApprovalEscalated":
                self._ask(row, kind, event)
            case "NodeAppended":
                # A turn or a call has ended; the text of the next one begins empty.
                row.said = ""
                return False
            case "NodeCompleted":
                self._end(row, "COMPLETED", event)
            case "NodeOverridden" if event["status"] != "QUEUED":
                self._end(row, "SKIPPED" if event["status"] == "SKIPPED" else "COMPLETED", event)
            case "NodeFailed":
                error = event["error"]
                kind = f"{error['type']}: " if error["code"] == EXCEPTION and error.get("type") else ""
                row.reason, row.code = kind + error["message"], error["code"]
                if "retry_at_ms" in event:
                    row.until_ms = event["retry_at_ms"]
                    self._move(row, "RETRYING")
                elif row.code == NOT_REACHED:
                    self._end(row, "UNREACHED", event)
                else:
                    self._end(row, "TOLERATED" if event.get("tolerated") or event.get("taken") else "FAILED", event)
            case "NodeSkipped" | "NodeCancelled":
                row.reason, row.code = event.get("reason", ""), ""
                self._end(row, "SKIPPED" if kind == "NodeSkipped" else "CANCELLED", event)
            case _:
                return False
        return row.phase in ENDED or row.phase == "RETRYING"

    def _begin(self, row: NodeProgress, event: Mapping[str, Any]) -> None:
        if event.get("held"):
            row.reason = "held by max_parallel"
            return
        row.begun, row.reason, row.until_ms = True, "", None
        self._move(row, "ACTIVE")

    def _ask(self, row: NodeProgress, kind: str, event: Mapping[str, Any]) -> None:
        """Record who is asked for an approval, or who has voted."""
        if kind == "ApprovalVoted":
            row.agreed += 1
        else:
            asked = event.get("approvers") or event.get("to") or ("anyone",)
            row.reason, row.agreed = f"a decision by {', '.join(asked)}", 0
            row.quorum = event.get("quorum", row.quorum)
            row.until_ms = event.get("expires_ms")

    def _end(self, row: NodeProgress, phase: Phase, event: Mapping[str, Any]) -> None:
        row.until_ms = None
        self._move(row, phase)
        self._recent.append(row)

    def _reopen(self, names: Iterable[str], *, again: bool = True) -> None:
        """Take nodes for new visits (`again`), or for retried ones: a retried map keeps its list and its results."""
        for row in [self.rows[name] for name in names if name in self.rows]:
            # Every visit has its own time: added up, a loop would seem to slow down.
            row.attempt, row.reason, row.passes, row.begun = 0, "", 1, False
            row.count, row.failed = (None, 0) if again else (row.count, row.tolerated)
            row.done, row.given_up, row.cancelled = row.done - row.given_up, 0, 0
            self._move(row, "PENDING")

    def _repaint(self, added: Iterable[str], removed: Iterable[str]) -> None:
        """Take over the graph of a patched run."""
        for name in removed:
            if (gone := self.rows.pop(name, None)) is not None:
                self._move(gone, "PENDING")
                self.counts["PENDING"] -= 1
        for name in added:
            self.rows[name] = NodeProgress(0, name)
            self.counts["PENDING"] += 1
        self._ordered = list(self.rows.values())
        for number, row in enumerate(self._ordered):
            row.number = number
        self._recent = deque((row for row in self._recent if row.name in self.rows), maxlen=RECENT_MAX)

    def _move(self, row: NodeProgress, phase: Phase) -> None:
        self.counts[row.phase] -= 1
        self.counts[phase] += 1
        row.phase, row.progress, row.said = phase, None, ""
        self._busy.pop(row.name, None)
        self._failed.pop(row.name, None)
        if phase in BUSY:
            self._busy[row.name] = row
        elif phase in ("FAILED", "TOLERATED"):
            self._failed[row.name] = row


REASON_COLUMNS_MAX = 160
SIGNS: dict[str, str] = dict(zip(get_args(Phase), "○●↻◷✓!✗⊘⊘○", strict=True))


def detail(row: NodeProgress, now_ms: int) -> str:
    """What there is to say about a row besides its name and time."""
    return " · ".join(filter(None, (_items(row), _passes(row), _attempts(row), _happening(row, now_ms))))


def _happening(row: NodeProgress, now_ms: int) -> str:
    left = "" if row.until_ms is None else duration(max(0, row.until_ms - now_ms))
    match row.phase:
        case "PENDING":
            return row.reason
        case "ACTIVE":
            share = "" if row.progress is None else f"{row.progress:.0%}"
            return f"{share} {one_line(row.said, REASON_COLUMNS_MAX)}".strip()
        case "COMPLETED":
            return ""
        case "RETRYING" if row.until_ms is not None and row.until_ms <= now_ms:
            return f"attempt {row.attempt + 1}"
        case "RETRYING":
            return f"attempt {row.attempt} failed: {blame(row)} · retry in {left}"
        case "WAITING":
            return _waiting(row, left)
        case "TOLERATED":
            return f"failed, tolerated: {blame(row)}"
        case "UNREACHED":
            return f"not reached: {blame(row)}"
        case "FAILED":
            return blame(row)
        case "SKIPPED":
            return (
                "skipped" if row.reason in ("", NOT_TAKEN) else f"skipped: {one_line(row.reason, REASON_COLUMNS_MAX)}"
            )
        case "CANCELLED":
            return "cancelled"


def _waiting(row: NodeProgress, left: str) -> str:
    reason = row.reason
    if reason == "timer":
        return f"sleeps, {left} left" if left else "sleeps"
    if reason == "loop":
        return f"next pass in {left}" if left else "waiting for the rest of its loop"
    agreed = f", {row.agreed} of {row.quorum} agreed" if row.quorum > 1 else ""
    return f"waits for {one_line(reason, REASON_COLUMNS_MAX)}{agreed}" + (f", {left} left" if left else "")


def blame(row: NodeProgress) -> str:
    """Why a node failed, as its row tells it."""
    reason = one_line(row.reason, REASON_COLUMNS_MAX)
    return reason if row.code in ("", NOT_REACHED) else f"{reason} [{row.code}]"


def _passes(row: NodeProgress) -> str:
    if not row.loops or (row.phase in ("PENDING", "SKIPPED") and row.passes == 1):
        return ""
    if row.phase == "COMPLETED":
        return f"{row.passes} pass{'es' if row.passes != 1 else ''}"
    return passes(row)


def passes(row: NodeProgress) -> str:
    """Which pass of how many a looping node is in."""
    return f"pass {row.passes}" + (f" of {row.passes_max}" if row.passes_max is not None else "")


def _attempts(row: NodeProgress) -> str:
    if row.attempt < 2 or row.phase in ("RETRYING", "PENDING"):
        return ""
    return f"attempt {row.attempt}" if row.phase == "ACTIVE" else f"{row.attempt} attempts"


def _items(row: NodeProgress) -> str:
    if row.count is None:
        return ""
    return items_told(row.count, row.done, row.failed, row.cancelled, completed=row.phase == "COMPLETED")


def items_told(count: int, done: int, failed: int, cancelled: int, *, completed: bool) -> str:
    """How many items of a map have ended by themselves, and how, in words."""
    words = counted(count, "item") if completed else f"{done - cancelled:,}/{counted(count, 'item')}"
    told = (f"{number:,} {how}" for number, how in ((failed, "failed"), (cancelled, "cancelled")) if number)
    return ", ".join((words, *told))
