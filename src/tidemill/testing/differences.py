"""What differs between a history and the run without a crash, explained: what the document allows, and what is a bug.

Effects are judged by their keys, in every history: a visit that counts as done has had its effect. Whatever else
differs is judged where no race, unknown outcome or real function decides it. Nothing here runs a workflow.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tidemill.engine.views import RunView
from tidemill.kernel.model import Compensator, Json, Node, Workflow
from tidemill.testing.cluster import Boundary, RunLog, VisitEnd
from tidemill.testing.fakes import COMPUTING, places_of
from tidemill.testing.report import CrashFinding, FindingKind, Repetitions, Report, Severity, place_in_words, remedy

REPORT_IT = "this is a bug in Tidemill: please report it with the document and the seed"
ORDER = "the order in which nodes end decides here (a join, a failure), and a crash changes it"
REPEATED = "what --real calls decides here: it may end otherwise when it is called again"
RECOMPUTED = "an output that depends on the attempt or on randomness differs when it is computed again"
RACING = "an output that depends on the order in which nodes end, on the attempt or on randomness may differ"
UNSETTLED = "it was being called when the run failed, and may have happened: an operator settles that with `override`"
ENDED = ("COMPLETED", "FAILED", "CANCELLED")
ONCE = "`delivery: at_most_once` asks for that"

Finder = Callable[[FindingKind, Severity, str, str, str], CrashFinding]
"""Makes a finding of its kind, severity, node, message and hint."""


@dataclass(slots=True)
class History:
    """One simulated run, with what happened in it."""

    seed: int
    reached: list[Boundary]
    crashes: list[Boundary]
    view: RunView | None
    stuck: str
    returned: Counter[str]
    """How often each effect happened, by effect key."""
    nodes: dict[str, tuple[str, str]]
    """Workflow and node by effect key."""
    complaints: list[str]
    logs: dict[str, RunLog] = field(default_factory=dict)
    """What the logs of the run and of its children say."""
    is_overdue: bool = False
    """It is stuck because something outside the simulation takes too long."""
    is_random: bool = False
    """Its crashes are at random boundaries."""

    def story(self) -> Iterator[str]:
        """Every boundary in order, with the places where a worker died."""
        dead = {id(boundary) for boundary in self.crashes}
        for boundary in self.reached:
            if id(boundary) in dead:
                yield f"✗ the worker dies {boundary}"
            elif boundary.when == "after":
                yield f"  {boundary.kind}: {boundary.about}"

    def ends(self) -> dict[str, tuple[str, VisitEnd]]:
        """Workflow and end of every visit, item and compensation, by effect key."""
        return {key: (log.workflow, end) for log in self.logs.values() for key, end in log.ends.items()}


class Baseline:
    """The undisturbed history that others are compared with.

    `again` is a second one, if something is called for real: what differs between the two is not judged. `flows` are
    the workflow and those that it starts, by name; `expect` is how the run has to end, if the user says so.
    """

    def __init__(
        self,
        first: History,
        again: History | None,
        flow: Workflow,
        flows: Mapping[str, Workflow],
        repetitions: Repetitions,
        expect: str,
    ) -> None:
        assert first.view is not None
        self.first, self.view, self.is_real = first, first.view, again is not None
        self.flow, self.flows, self.repetitions, self.expect = flow, flows, repetitions, expect
        self.places = {name: places_of(each) for name, each in flows.items()}
        self.unsteady: list[str] = []
        """Nodes that end otherwise in the second history without a crash."""
        self.effects = list(first.returned)
        """Keys of the effects that happen whenever there is no crash."""
        statuses = {self.view.status, *(log.status for log in first.logs.values())}
        if again is not None:
            other = None if again.view is None else again.view
            self.unsteady = [name for name in self.view.nodes if other is None or _differs(self.view, other, name)]
            self.effects = [key for key in first.returned if again.returned[key]]
            statuses.add("" if other is None else other.status)
        joins = {node.join for each in flows.values() for node in each.nodes}
        self.is_racing = statuses != {"COMPLETED"} or not joins.isdisjoint(("any", "quorum"))
        """Whether the result may depend on the order in which nodes end."""

    def after(self, nodes: Collection[str]) -> set[str]:
        """Nodes of the workflow, and all that may depend on how they end."""
        found, new = set[str](), set(nodes) & self.flow.by_id.keys()
        while new:
            found |= new
            reached = [self.flow.by_id[name] for name in new]
            bodies = [self.flow.by_id[loop].loop for node in reached for loop in node.loops]
            new = {each for node in reached for each in node.outbound}.union(*(loop.body for loop in bodies if loop))
            new -= found
        return found


class Comparison:
    """One history beside the undisturbed one."""

    def __init__(self, base: Baseline, report: Report, history: History, view: RunView, found: Finder) -> None:
        self._base, self._report, self._history, self._view, self._found = base, report, history, view, found
        self._unknown: set[str] = set()
        """Nodes whose outcome is unknown."""
        self._led: set[str] = set()
        """Nodes of the root whose ends depend on an unknown outcome."""
        self._told: set[str] = set()
        """Nodes with a finding in this history."""
        self._is_late = False

    def judge(self) -> None:
        """Add what differs to the report."""
        self._judge_unknown_outcomes()
        self._judge_end()
        self._judge_nodes()
        self._judge_effects()
        self._judge_repetitions()

    def _add(self, kind: FindingKind, severity: Severity, node: str, message: str, hint: str = REPORT_IT) -> None:
        self._told.add(node)
        self._report.add(self._found(kind, severity, node, message, hint), self._history.seed)

    def _judge_unknown_outcomes(self) -> None:
        view = self._view
        for name, (flow, end) in self._unknown_ends().items():
            self._unknown.add(name)
            node = self._base.flows[flow].by_id.get(name)
            message = f"the outcome of {name} is unknown when its worker dies during the call"
            hint = f"{ONCE}; handle it with `on_error`, or let an operator `retry`"
            if view.status == "COMPLETED" and node is not None and node.on_error == "route" and end.tolerated:
                message += f", and the run continues at {', '.join(node.error_path)}"
                hint = f"{ONCE}; find out there whether it has happened"
            elif view.status == "COMPLETED":
                message = f"{name} may never have happened, and the run completes as if it had"
                is_item = node is not None and node.on_error == "fail"
                cause = "tolerate" if is_item else "on_error: continue"
                instead = (
                    "a smaller number fails the map" if is_item else "`route: [NODE]` leads to a node that finds out"
                )
                hint = f"{ONCE}, and `{cause}` lets the run continue: {instead}"
                self._report.lose(name)
            elif view.failed_node == name:
                message = f"the run fails at {name} when its worker dies during the call: the outcome is unknown"
            else:
                message += f", and the run ends {view.status} at {view.failed_node}"
            self._add("unknown_outcome", "warning", name, message, hint)

    def _unknown_ends(self) -> dict[str, tuple[str, VisitEnd]]:
        """Workflow and end by node; where a child fails by it, only the node that has started the child."""
        found: dict[str, tuple[str, VisitEnd]] = {}
        ends = self._history.ends()
        for log in self._history.logs.values():
            _, above = ends.get(log.parent, ("", None))
            if log.status == "FAILED" and above is not None and above.status == "FAILED":
                continue
            unknown = {end.node: (log.workflow, end) for end in log.ends.values() if _is_unknown(end)}
            found |= unknown
            if unknown:
                self._led |= self._starters(log) or unknown.keys()
        return found

    def _starters(self, log: RunLog) -> set[str]:
        """The node of the root that has started a child, directly or by a child in between."""
        node, logs = "", self._history.logs.values()
        while above := next((each for each in logs if log.parent in each.ends), None):
            node, log = above.ends[log.parent].node, above
        return {node} if node else set()

    def _judge_end(self) -> None:
        """Compare how the runs end, and what their rollbacks leave."""
        base, view, error = self._base, self._view, self._view.error or {}
        self._is_late = "deadline_exceeded" in (error.get("code"), *error.get("causes", ()))
        self._is_late &= view.status != base.view.status
        if self._is_late:
            message = "the deadline of the run passes while the work of a dead worker is taken over"
            hint = "other workers take over after `--dead-after` seconds, 15 by default: leave room for that"
            self._add("different", "warning", "", message, hint)
        elif base.expect == base.view.status != view.status and not self._unknown:
            said = f": {error['message']}" if error else ""
            message = f"the run ends {view.status} after the crash, and is to end {base.expect}{said}"
            self._add("different", "error", view.failed_node or "", message, _cause(base))
        left = [] if base.view.rollback["left"] else view.rollback["left"]
        if left:
            names = ", ".join(dict.fromkeys(key.rsplit("/", 2)[0] for key in left))
            is_open = bool(view.rollback.get("unknown")) or base.is_real
            message = f"the rollback is partial after the crash: {names} stays as it is"
            hint = UNSETTLED if view.rollback.get("unknown") else REPEATED if is_open else REPORT_IT
            self._add("different", "warning" if is_open else "error", "", message, hint)

    def _judge_nodes(self) -> None:
        """Compare how nodes end, but for those that an unknown outcome, a failure or randomness leads elsewhere."""
        base, view = self._base, self._view
        skipped = base.after(self._led) | {*base.unsteady}
        is_cut = self._is_late or (self._unknown and view.status != "COMPLETED")
        is_as_expected = base.expect == "FAILED" == view.status
        severity: Severity = "warning" if base.is_racing or base.is_real else "error"
        for name, node in view.nodes.items():
            before, after = base.view.nodes[name]["status"], node["status"]
            if name in skipped or not _differs(view, base.view, name):
                continue
            if before == after:
                message = f"{name} has another output after the crash than without it"
                self._add("different", "warning", name, message, RACING if base.is_racing else RECOMPUTED)
            # Of a run that is to fail, how far other nodes get is of no interest.
            elif not is_cut and not (is_as_expected and "FAILED" not in (before, after)):
                error = f": {node['error']['message']}" if node["error"] and severity == "error" else ""
                message = f"{name} ends {after} after the crash and {before} without it{error}"
                self._add("different", severity, name, message, _cause(base))

    def _judge_effects(self) -> None:
        """Find effects of which the run claims that they happened, and which did not."""
        base, history, view, ends = self._base, self._history, self._view, self._history.ends()
        lost = [
            end.node
            for key, (flow, end) in ends.items()
            if end.status == "COMPLETED" and not history.returned[key] and self._has_effect(flow, end.node, key)
        ]
        for name in dict.fromkeys(lost):
            said = f"the effect of {place_in_words(name)} is lost"
            self._add("lost", "error", name, f"{said}: the node counts as done and its handler never returned")
        missing = [key for key in base.effects if not history.returned[key]]
        self._report.has_missing |= bool(missing)
        if view.status != "COMPLETED":
            return
        # A failure cancels what runs beside it, and an abandoned child goes on: how far both get depends on the order.
        is_cut = any(end.status == "CANCELLED" for _, end in ends.values())
        is_live = any(log.status not in ENDED for each in (history, base.first) for log in each.logs.values())
        is_open = base.is_racing or base.is_real or is_cut or is_live or bool(self._told)
        for key in missing:
            (_, name), (_, end) = base.first.nodes[key], ends.get(key, ("", None))
            if end is not None and end.status == "FAILED" and not _is_unknown(end):
                self._report.lose(name)
                code = "" if end.error is None else end.error.code
                message = f"{name} fails after the crash ({code}), and the run completes as if it had not"
                if name not in self._told:
                    self._add("lost", "warning" if is_open else "error", name, message, _cause(base))
            elif (end is None or end.status != "COMPLETED") and not is_open:
                said = f"the effect of {place_in_words(name)} is lost"
                self._add("lost", "error", name, f"{said}: it does not run after the crash, and the run completes")

    def _has_effect(self, flow: str, place: str, key: str) -> bool:
        """Whether a visit, an item or a compensation has an effect of its own; a map has those of its items."""
        called = self._base.places[flow].get(place) if flow in self._base.places else None
        if called is None or called.type.partition("@")[0] in COMPUTING:
            return False
        return not (isinstance(called, Node) and called.map is not None and key.endswith("/-1"))

    def _judge_repetitions(self) -> None:
        base, report, history = self._base, self._report, self._history
        again = [key for key, times in history.returned.items() if times > max(1, base.first.returned[key])]
        for flow, name in dict.fromkeys(history.nodes[key] for key in again):
            called: Node | Compensator | None = base.places[flow].get(name) if flow in base.places else None
            if isinstance(called, Node) and called.delivery == "at_most_once":
                self._add(
                    "duplicate", "error", name, f"{name} is delivered at most once, and its effect happened twice"
                )
                continue
            match base.repetitions.of(name, called):
                case "once":
                    report.once[name] = report.once.get(name, 0) + 1
                case "keyed":
                    report.keyed[name] = report.keyed.get(name, 0) + 1
                case "unkeyed":
                    said = f"the effect of {place_in_words(name)} happens twice"
                    message = f"{said} when its worker dies before the result is committed"
                    self._add("duplicate", "warning", name, message, remedy(called))


def judge(report: Report, history: History, base: Baseline, found: Finder) -> None:
    """Count a history, and add what differs from the undisturbed one."""
    if history.is_random:
        report.random += 1
        report.kinds[history.seed] = "random"
    elif history.crashes:
        kind = report.kinds[history.seed] = history.crashes[0].kind
        report.boundaries[kind] = report.boundaries.get(kind, 0) + 1
    report.crashes += len(history.crashes)
    for complaint in history.complaints:
        report.add(found("invariant", "error", "", complaint, REPORT_IT), history.seed)
    if history.view is None:
        hint = "it is called for real: let it return sooner, or fake it" if history.is_overdue else REPORT_IT
        message = f"after the crash the run does not end: {history.stuck}"
        report.add(found("stuck", "error", "", message, hint), history.seed)
        return
    report.ended[history.view.status] = report.ended.get(history.view.status, 0) + 1
    Comparison(base, report, history, history.view, found).judge()


def _cause(base: Baseline) -> str:
    return ORDER if base.is_racing else REPEATED if base.is_real else REPORT_IT


def _is_unknown(end: VisitEnd) -> bool:
    # The causes of a parent's error begin with the code of its child's.
    codes = () if end.error is None else (end.error.code, *end.error.causes[:1])
    return end.status == "FAILED" and any(code.startswith("unknown_outcome") for code in codes)


def _differs(view: RunView, other: RunView, name: str) -> bool:
    one, two = view.nodes[name], other.nodes[name]
    return bool(one["status"] != two["status"] or _without_times(one["output"]) != _without_times(two["output"]))


def _without_times(output: Any) -> Json:
    """An output without the time of a decision, which a crash shifts."""
    match output:
        case dict():
            return {key: _without_times(value) for key, value in output.items() if key != "decided_at"}
        case list():
            return [_without_times(value) for value in output]
        case _:
            return output
