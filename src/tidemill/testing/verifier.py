"""`verify`: run a workflow in the simulator, kill its worker at every boundary, and compare with a run without crashes.

A seed is one history: 0 has no crash, 1 to n kill the worker at the n-th boundary that the undisturbed run reaches, and
those from `RANDOM_FIRST` on kill workers at random. A history is a function of its seed, so each can be replayed.
What differs from the undisturbed run is explained: an effect that happened twice, a result that was lost, a run
that is stuck. What the document allows is a warning that names the line to change, anything else is an error.
"""

from __future__ import annotations

import random
import re
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec

from tidemill.authoring.decorators import Workflow as Authored
from tidemill.authoring.decorators import authored
from tidemill.engine.index_rows import ApprovalRow
from tidemill.engine.services.workflows import Document
from tidemill.engine.views import RunView
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.handlers.contract import Handler, NodeClass
from tidemill.handlers.python.functions import Function, function_registry
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.reader import format_of, read_document
from tidemill.kernel.model import Json, Node, Workflow
from tidemill.node_types import NodeTypes
from tidemill.testing.cluster import UNDO, Boundary, CrashPlan, simulated_types
from tidemill.testing.fakes import (
    EVERY,
    Faked,
    FakesFile,
    described,
    fake_value,
    given_fakes,
    made_inputs,
    made_payloads,
    name_of,
    names_of,
    places_of,
)
from tidemill.testing.mill import WAKES_MAX, SimulatedMill, StillWaiting
from tidemill.testing.report import (
    CrashFinding,
    FindingKind,
    Repetitions,
    Report,
    Severity,
    place_in_words,
    remedy,
)
from tidemill.testing.simulated_loop import Overdue, SimulatedFunctions

RUN = "verify"
RANDOM_FIRST = 10_000
"""The first seed of the histories with crashes at random boundaries."""
RANDOM_CRASHES = 2.5
RANDOM_CRASHES_MAX = 4
"""Fewer than the number of workers that a node may kill before it is given up on."""
BOUNDARIES_MAX = 200


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

    def story(self) -> Iterator[str]:
        """Every boundary in order, with the places where a worker died."""
        dead = {id(boundary) for boundary in self.crashes}
        for boundary in self.reached:
            if id(boundary) in dead:
                yield f"✗ the worker dies {boundary}"
            elif boundary.when == "after":
                yield f"  {boundary.kind}: {boundary.about}"


class Verifier:
    """The histories of one workflow."""

    def __init__(
        self,
        document: Mapping[str, Any],
        *,
        text: str = "",
        inputs: Mapping[str, Any] | None = None,
        fakes: FakesFile | None = None,
        real: Collection[Faked] = (),
        functions: Mapping[str, Function] | None = None,
        handlers: Sequence[Handler | NodeClass] = (),
        others: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._fakes = fakes or FakesFile()
        self._functions = SimulatedFunctions(functions or {})
        self._types: NodeTypes = simulated_types(self._functions, handlers)
        self._document, self._text, self._others, self._real = document, text, others, frozenset(map(name_of, real))
        self.workflow: Workflow = compile_document(document, self._types.by_name, self._types.unusable_types).workflow
        compiled = (compile_document(each, self._types.by_name, self._types.unusable_types) for each in others)
        flows = (*(each.workflow for each in compiled), self.workflow)
        self._places = {flow.name: places_of(flow) for flow in flows}
        self._callers: dict[str, set[str]] = {}
        """Nodes and compensators by the task or workflow that they call."""
        for flow, places in self._places.items():
            for place, each in places.items():
                if called := names_of(flow, place, each.type, each.config)[-1]:
                    self._callers.setdefault(called, set()).add(place)
        self._repetitions = Repetitions(self._functions, self._types.handlers, self._fakes.repeatable)
        self._require_known()
        self._inputs = {**made_inputs(self.workflow.inputs), **self._fakes.inputs, **(inputs or {})}
        self._given = {*self._fakes.inputs, *(inputs or {})}
        self._payloads = made_payloads(self.workflow)
        self._has_signals = any("signal" in str(each) for each in (document, *others))
        self._undisturbed: History | None = None

    def _require_known(self) -> None:
        """Refuse what is given for nodes that are not there: the real thing, or a made value, would be used instead."""
        known = {place for places in self._places.values() for place in places}
        named = {f"{flow}.{place}" for flow, places in self._places.items() for place in places}
        for name in sorted({*self._real} - {EVERY} - known - named - self._callers.keys()):
            hint = offered(name, sorted(known))
            raise rejected("node_unknown", f"--real {name}: the workflow has no such node", hint=hint)
        fakes = self._fakes
        allowed = (
            ("nodes", map(name_of, fakes.nodes), known | named | self._types.by_name.keys() | self._callers.keys()),
            ("approvals", fakes.approvals, known),
            ("repeatable", fakes.repeatable, known),
        )
        problems = [
            Problem(code="fakes_invalid", message=said, path=f"/{key}", hint=offered(name, known))
            for key, given, names in allowed
            for name in sorted(set(given) - names)
            for said in [f"no node calls the {name}" if " " in name else f"there is no node {name}"]
        ]
        if problems:
            raise Rejected(problems)

    @property
    def undisturbed(self) -> History:
        """The history without a crash."""
        if self._undisturbed is None:
            self._undisturbed = self._live(0, lambda plan: False)
        return self._undisturbed

    def history(self, seed: int) -> History:
        """Live through one seed."""
        if seed == 0:
            return self.undisturbed
        if seed < RANDOM_FIRST:
            if seed > len(self.undisturbed.reached):
                message = f"there is no seed {seed}: the run reaches {len(self.undisturbed.reached)} boundaries"
                raise rejected("seed_unknown", message, hint=f"random histories begin at {RANDOM_FIRST}")
            return self._live(seed, lambda plan: len(plan.reached) == seed)
        rng = random.Random(seed)
        share = RANDOM_CRASHES / max(1, len(self.undisturbed.reached))

        def at_random(plan: CrashPlan) -> bool:
            return len(plan.crashes) < RANDOM_CRASHES_MAX and rng.random() < share

        return self._live(seed, at_random, workers=rng.choice((1, 2)))

    def _live(self, seed: int, dies: Callable[[CrashPlan], bool], workers: int = 1) -> History:
        plan = CrashPlan(lambda boundary: dies(plan))
        fakes = {name: described(given) for name, given in self._fakes.nodes.items()}
        view, stuck, complaints = None, "", []
        with warnings.catch_warnings():
            # A killed process leaves coroutines that were never started: that is what being killed means.
            warnings.simplefilter("ignore", RuntimeWarning)
            mill = SimulatedMill(
                self._types, self._functions, fakes=fakes, real=self._real, real_code=False, workers=workers, plan=plan
            )
            try:
                for other in self._others:
                    mill.publish(other)
                view = self._ended(mill, self._started(mill))
                mill.take_over()
                complaints = mill.complaints()
            except StillWaiting as waiting:
                stuck = f"{waiting}".partition(": ")[0]
                stuck = f"{stuck}; why: {mill.why(RUN).headline}"
            except (Overdue, RuntimeError) as error:
                stuck = str(error)
            finally:
                mill.close()
        done = [effect for effect in mill.effects() if effect.outcome == "returned"]
        returned = Counter(effect.key for effect in done)
        nodes = {effect.key: (effect.workflow, effect.node) for effect in done}
        return History(seed, plan.reached, plan.crashes, view, stuck, returned, nodes, complaints)

    def _started(self, mill: SimulatedMill) -> str:
        try:
            return mill.start(self._document, self._inputs, key=RUN)
        except Rejected as refusal:
            raise _made_up(
                refusal,
                self._inputs.keys() - self._given,
                "`-i {wrong}=…`, or `--fakes FILE` with `inputs: {{{wrong}: …}}`",
            ) from None

    def _ended(self, mill: SimulatedMill, run_id: str) -> RunView:
        """Let a run end, doing what people and other systems would do as soon as it waits for them."""
        for _ in range(WAKES_MAX):
            answered = self._answer(mill)
            if not mill.step(run_id) and not answered and not self._answer(mill):
                return mill.result(run_id)
        raise StillWaiting(f"it has not ended after {WAKES_MAX:,} timers, and may never end")

    def _answer(self, mill: SimulatedMill) -> bool:
        """Decide what waits for people, and send signals that nodes wait for; whether there was anything."""
        pending, _ = mill.approvals(["status:pending"])
        for row in pending:
            self._decide(mill, row)
        signals = mill.awaited_signals() if self._has_signals else []
        for run_id, name in signals:
            mill.signal(run_id, name, self._fakes.signals.get(name, self._payloads.get(name)))
        return bool(pending or signals)

    def _decide(self, mill: SimulatedMill, row: ApprovalRow) -> None:
        given = self._fakes.approvals.get(row.node, {})
        verb = given.get("decision", "approve")
        place: dict[str, Any] = {"visit": row.visit, "index": None if row.index < 0 else row.index}
        schema = mill.approval(row.run_id, row.node, **place).to_dict()["form"]
        form = given.get("form", fake_value(schema)) if schema is not None and verb == "approve" else None
        roles = [name.removeprefix("role:") for name in row.approvers if name.startswith("role:")]
        members = [f"user:approver-{number}" for number in range(row.quorum + 1)]
        refusal: Rejected | None = None
        for principal in (*(name for name in row.approvers if name.startswith("user:")), *members):
            who: dict[str, Any] = {"actor": principal.removeprefix("user:")}
            if principal in members:
                who["roles"] = roles
            try:
                comments = str(given.get("comments", ""))
                mill.decide(row.run_id, row.node, verb, form=form, comments=comments, **who, **place)
            except Rejected as refused:
                refusal = refused
            if mill.approval(row.run_id, row.node, **place).status != "pending":
                return
        if refusal is not None and isinstance(form, dict) and "form" not in given:
            raise _made_up(
                refusal, form, f"`--fakes FILE` with `approvals: {{{{{row.node}: {{{{form: {{shown}}}}}}}}}}`", form
            ) from None
        if refusal is not None:
            raise refusal

    # Judging

    def verify(self, seeds: int = 20, boundaries_max: int = BOUNDARIES_MAX, progress: Progress | None = None) -> Report:
        """Live through every boundary, or as many as are allowed, and through `seeds` random histories."""
        began, total = perf_counter(), len(self.undisturbed.reached)
        chosen = [1 + at for at in _spread(self.undisturbed.reached, boundaries_max or total)]
        report = self._report()
        if self.undisturbed.stuck:
            chosen, seeds = [], 0
        wanted = [*chosen, *range(RANDOM_FIRST, RANDOM_FIRST + seeds)]
        for number, seed in enumerate(wanted):
            self._judge(report, self.history(seed))
            if progress is not None:
                progress(number + 1, len(wanted))
        report.seconds = perf_counter() - began
        return report

    def replay(self, seed: int) -> Report:
        """Replay one seed, and report what happened."""
        began, report, history = perf_counter(), self._report(), self.history(seed)
        if seed:
            self._judge(report, history)
        report.story = list(history.story())
        report.seconds = perf_counter() - began
        return report

    def _report(self) -> Report:
        """The report before any crash: only what is wrong without one."""
        first = self.undisturbed
        status = "STUCK" if first.view is None else first.view.status
        report = Report(self.workflow.name, len(self.workflow.nodes), status, {}, len(first.reached), 0, 0, {}, {}, [])
        report.unreached = [] if first.view is None else _unreached(first.view, self.workflow)
        if first.view is None:
            hint = "give what it waits for with --fakes, or change the workflow"
            said = f"the run does not end without a crash: {first.stuck}"
            self._add(report, 0, "undisturbed", "error", "", said, hint)
        elif status != "COMPLETED":
            error = first.view.error or {}
            said = f"the run ends {status} without a crash: {error.get('message', '')} [{error.get('code', '')}]"
            self._add(
                report,
                0,
                "undisturbed",
                "warning",
                first.view.failed_node or "",
                said,
                _lead_out(first.view, error, [] if EVERY in self._real else self._made_up(first)),
            )
        left = [] if first.view is None else first.view.rollback["left"]
        if left:
            names = ", ".join(dict.fromkeys(key.rsplit("/", 2)[0] for key in left))
            said = f"the rollback is partial without a crash: {names} stays as it is"
            hint = "see that its compensator can succeed, or change what --fakes gives for it"
            self._add(report, 0, "undisturbed", "warning", "", said, hint)
        for complaint in first.complaints:
            self._add(report, 0, "invariant", "error", "", complaint, REPORT_IT)
        return report

    def _made_up(self, history: History) -> list[str]:
        """The nodes whose values are neither given nor real."""
        given = {*map(name_of, self._fakes.nodes), *self._real}
        given = given.union(*(self._callers.get(name, ()) for name in given))
        names = {name for _, name in history.nodes.values()} - given
        return sorted(name for name in names if not name.endswith(UNDO))

    def _judge(self, report: Report, history: History) -> None:
        """Add what differs from the undisturbed history."""
        if history.seed >= RANDOM_FIRST:
            report.random += 1
            report.kinds[history.seed] = "random"
        elif history.crashes:
            kind = report.kinds[history.seed] = history.crashes[0].kind
            report.boundaries[kind] = report.boundaries.get(kind, 0) + 1
        report.crashes += len(history.crashes)
        for complaint in history.complaints:
            self._add(report, history.seed, "invariant", "error", "", complaint, REPORT_IT)
        if history.view is None:
            message = f"after the crash the run does not end: {history.stuck}"
            self._add(report, history.seed, "stuck", "error", "", message, REPORT_IT)
            return
        unknown = self._unknown_outcomes(history.view)
        for node in unknown:
            message = f"the run fails at {node} when its worker dies during the call: the outcome is unknown"
            hint = "`delivery: at_most_once` asks for that; handle it with `on_error`, or let an operator `retry`"
            self._add(report, history.seed, "unknown_outcome", "warning", node, message, hint)
        if not unknown:
            self._judge_results(report, history, history.view)
        self._judge_repetitions(report, history)

    def _unknown_outcomes(self, view: RunView) -> list[str]:
        errors = {name: node["error"] or {} for name, node in view.nodes.items()}
        # The causes of a parent's error begin with the code of its child's.
        codes = {name: (str(error.get("code")), *error.get("causes", ())[:1]) for name, error in errors.items()}
        return [name for name, found in codes.items() if any(each.startswith("unknown_outcome") for each in found)]

    def _judge_results(self, report: Report, history: History, view: RunView) -> None:
        first = self.undisturbed
        assert first.view is not None
        late, racing = (view.error or {}).get("code") == "deadline_exceeded", self._is_racing
        if late and view.status != first.view.status:
            message = "the deadline of the run passes while the work of a dead worker is taken over"
            hint = "other workers take over after `--dead-after` seconds, 15 by default: leave room for that"
            self._add(report, history.seed, "different", "warning", "", message, hint)
            return
        for name, node in view.nodes.items():
            before = first.view.nodes[name]
            if node["status"] != before["status"] and racing:
                message = f"{name} ends {node['status']} after the crash and {before['status']} without it"
                hint = "the order in which nodes end decides here (a join, a failure), and a crash changes it"
                self._add(report, history.seed, "different", "warning", name, message, hint)
            elif node["status"] != before["status"]:
                error = f": {node['error']['message']}" if node["error"] else ""
                message = f"{name} ends {node['status']} after the crash and {before['status']} without it{error}"
                self._add(report, history.seed, "different", "error", name, message, REPORT_IT)
            elif _without_times(node["output"]) != _without_times(before["output"]) and not self._real:
                message = f"{name} has another output after the crash than without it"
                hint = "an output that depends on the attempt or on randomness differs when it is computed again"
                self._add(report, history.seed, "different", "warning", name, message, hint)
        if racing:
            return
        lost = Counter(first.nodes[key][1] for key in first.returned if not history.returned[key])
        for name in lost:
            message = (
                f"the effect of {place_in_words(name)} is lost: the node counts as done and its handler never returned"
            )
            self._add(report, history.seed, "lost", "error", name, message, REPORT_IT)

    @property
    def _is_racing(self) -> bool:
        """Whether the result may depend on the order in which nodes end."""
        first = self.undisturbed.view
        fails = first is not None and first.status != "COMPLETED"
        return fails or any(node.join in ("any", "quorum") for node in self.workflow.nodes)

    def _judge_repetitions(self, report: Report, history: History) -> None:
        before = self.undisturbed.returned
        again = [key for key, times in history.returned.items() if times > max(1, before[key])]
        for flow, name in dict.fromkeys(history.nodes[key] for key in again):
            called = self._places[flow].get(name) if flow in self._places else None
            if isinstance(called, Node) and called.delivery == "at_most_once":
                message = f"{name} is delivered at most once, and its effect happened twice"
                self._add(report, history.seed, "duplicate", "error", name, message, REPORT_IT)
                continue
            match self._repetitions.of(name, called):
                case "once":
                    report.once[name] = report.once.get(name, 0) + 1
                case "keyed":
                    report.keyed[name] = report.keyed.get(name, 0) + 1
                case "unkeyed":
                    said = f"the effect of {place_in_words(name)} happens twice"
                    message = f"{said} when its worker dies before the result is committed"
                    self._add(report, history.seed, "duplicate", "warning", name, message, remedy(called))

    def _add(
        self, report: Report, seed: int, kind: FindingKind, severity: Severity, node: str, message: str, hint: str
    ) -> None:
        for known in report.findings:
            if (known.kind, known.node, known.message) == (kind, node, message):
                known.seeds.append(seed)
                return
        path, line = self._place(node.removesuffix(UNDO))
        called = self._places[self.workflow.name].get(node)
        type_ = "" if called is None else called.type.partition("@")[0]
        report.findings.append(CrashFinding(kind, severity, node, message, hint, type_, path, line, [seed]))

    def _place(self, node: str) -> tuple[str, int | None]:
        """Where a node is in the document, and in its text if there is one."""
        written = [each for each in self._document.get("nodes", []) if isinstance(each, dict)]
        ids = [each.get("id", each.get("node_id")) for each in written]
        if not node or node not in ids:
            return "", None
        found = re.search(rf"""["']?\b(?:node_)?id["']?\s*:\s*["']?{re.escape(node)}(?![\w-])""", self._text)
        line = self._text.count("\n", 0, found.start()) + 1 if found else None
        return f"/nodes/{ids.index(node)}", line


def _spread(reached: Sequence[Boundary], most: int) -> list[int]:
    """The places of at most so many boundaries: first all that are rare, then as many of each other kind.

    A map reaches the same boundaries once per item, and a loop once per pass.
    """
    groups: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for at, boundary in enumerate(reached):
        groups.setdefault((boundary.when, boundary.kind, boundary.nodes), []).append(at)
    chosen: list[int] = []
    for left, group in zip(range(len(groups), 0, -1), sorted(groups.values(), key=len), strict=True):
        number = min(len(group), -(-(most - len(chosen)) // left))
        chosen += [group[place * len(group) // number] for place in range(number)]
    return sorted(chosen)


Progress = Callable[[int, int], None]
REPORT_IT = "this is a bug in Tidemill: please report it with the document and the seed"


def _unreached(view: RunView, workflow: Workflow) -> list[str]:
    ended = ("COMPLETED", "FAILED")
    found = [
        name
        for name, node in view.nodes.items()
        if not node["attempts"]
        and (node["status"] not in ended or (node["error"] or {}).get("code") == "upstream_failed")
    ]
    tried = {key.rsplit("/", 2)[0] for key in (*view.rollback["undone"], *view.rollback.get("errors", ()))}
    undo = [node.id for node in workflow.nodes if node.compensator is not None and node.id not in tried]
    return found + [f"{name}{UNDO}" for name in undo]


def _lead_out(view: RunView, error: Mapping[str, Any], made_up: Sequence[str]) -> str:
    """What to give so that a run completes that fails without a crash."""
    missing = re.match(r".*: no workflow (\S+) is published", str(error.get("message", "")))
    if missing and "workflow_unknown" in (error.get("code"), *error.get("causes", ())):
        given = f"`--fakes FILE` with `nodes: {{{view.failed_node}: …}}`"
        return f"give its document, `--with {missing[1]}.yaml`, or what the node returns: {given}"
    if not made_up:
        return "if it should complete, give other inputs, `-i NAME=VALUE`, or values, `--fakes FILE`"
    first, names = made_up[0], ", ".join(made_up[:3]) + (", …" if len(made_up) > 3 else "")
    instead = f"`--fakes FILE` with `nodes: {{{first}: …}}`, or call it, `--real {first}`"
    return f"if the made-up values of {names} are the cause, give others: {instead}"


def _made_up(
    refusal: Rejected, made: Collection[str], remedy: str, values: Mapping[str, Json] | None = None
) -> Rejected:
    """A refusal that says which values `verify` has made up, by key, and what to write instead."""
    keys = [next(iter(problem.path.split("/")[2:]), "") for problem in refusal.problems]
    encoded = {key: "…" if key in keys else msgspec.json.encode(each).decode() for key, each in (values or {}).items()}
    shown = "{" + ", ".join(f"{key}: {value}" for key, value in encoded.items()) + "}"
    said = "verify made this value up; give one that fits:"
    return Rejected(
        [
            msgspec.structs.replace(each, hint=f"{said} {remedy.format(wrong=key, shown=shown)}")
            if key in made
            else each
            for each, key in zip(refusal.problems, keys, strict=True)
        ]
    )


def _without_times(output: Json) -> Json:
    """An output without the time of a decision, which a crash shifts."""
    match output:
        case dict():
            return {key: _without_times(value) for key, value in output.items() if key != "decided_at"}
        case list():
            return [_without_times(value) for value in output]
        case _:
            return output


def verify(
    document: Document | Authored[..., Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    fakes: Mapping[Any, Any] | None = None,
    real: Collection[Faked] = (),
    functions: Mapping[str, Function] | Sequence[Function] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    children: Sequence[Document] = (),
    seeds: int = 20,
) -> Report:
    """Kill the worker of a workflow at every boundary, and in `seeds` random histories; report what goes wrong.

    `document` is what `publish` takes: a mapping, YAML or JSON text, a `Path`, or a workflow written in Python, which
    brings its functions and the workflows that it starts. `functions` are those of `tidemill.open`: they are called
    for nodes that `real` names, and their code is searched for `effect_key`. `fakes` has the form of the command's
    file: `inputs`, `nodes`, `approvals`, `signals`, `repeatable`; or it is that of `open`, by node, task or workflow,
    which is its part `nodes`. Nodes that touch the world, functions included, are
    faked unless `real` names them. `children` are the documents of the workflows that it starts.
    """
    flow = None if isinstance(document, (str, Mapping)) else authored(document)
    read, text = (flow.document(), "") if flow is not None else _read(document)
    verifier = Verifier(
        read,
        text=text,
        inputs=inputs if flow is None or inputs is None else flow.run_inputs(inputs),
        fakes=given_fakes(fakes or {}),
        real=real,
        functions={**({} if flow is None else flow.functions), **function_registry(functions)},
        handlers=handlers,
        others=[*children_of(flow), *(_read(each)[0] for each in children)],
    )
    return located(verifier.verify(seeds), flow)


def _read(document: Any) -> tuple[Mapping[str, Any], str]:
    """A document, and its text if it was written as text."""
    if isinstance(document, Mapping):
        return document, ""
    is_file = isinstance(document, Path)
    text = document.read_bytes() if is_file else document
    read = read_document(text, format=format_of(document.suffix) if is_file else None)
    return read, text if isinstance(text, str) else text.decode("utf-8", "replace")


def children_of(flow: Authored[..., Any] | None) -> list[dict[str, Any]]:
    """The documents of the workflows that a workflow written in Python starts."""
    return [] if flow is None else [each.document() for each in flow.family() if each is not flow]


def located(report: Report, flow: Authored[..., Any] | None) -> Report:
    """A report that names lines and options of a workflow written in Python instead of those of its document."""
    if flow is None:
        return report
    for finding in report.findings:
        finding.path = flow.place_of(finding.node.removesuffix(UNDO)) or finding.path
        finding.hint = finding.hint.replace("`delivery: at_most_once`", "`at_most_once=True`")
    return report
