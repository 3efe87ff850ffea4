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
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

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
from tidemill.kernel.model import Json, Workflow
from tidemill.node_types import NodeTypes
from tidemill.testing.cluster import UNDO, Boundary, CrashPlan, simulated_types
from tidemill.testing.differences import REPORT_IT, UNSETTLED, Baseline, History, judge
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
from tidemill.testing.report import CrashFinding, FindingKind, Repetitions, Report, Severity
from tidemill.testing.simulated_loop import Overdue, SimulatedFunctions

RUN = "verify"
RANDOM_CRASHES = 2.5
RANDOM_CRASHES_MAX = 4
"""Fewer than the number of workers that a node may kill before it is given up on."""
RANDOM_FIRST = 10_000
"""The first seed of the histories with crashes at random boundaries."""
RANDOM_LATER = 1_000_000
"""The same for a run that reaches so many boundaries that their seeds come close."""
BOUNDARIES_MAX = 200
SEEDS = 20
REACHED_MAX = 100_000
"""How many boundaries a run may reach without a crash."""
WORK_MAX = 1_000_000
"""How many boundaries all histories may reach together, if the user does not say how many histories there are."""
HISTORIES_MIN = 10


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
        expect: str = "",
    ) -> None:
        self._fakes = fakes or FakesFile()
        self._expect = (expect or self._fakes.expect).upper()
        self._functions = SimulatedFunctions(functions or {})
        self._types: NodeTypes = simulated_types(self._functions, handlers)
        self._document, self._text, self._others, self._real = document, text, others, frozenset(map(name_of, real))
        self.workflow: Workflow = compile_document(document, self._types.by_name, self._types.unusable_types).workflow
        compiled = (compile_document(each, self._types.by_name, self._types.unusable_types) for each in others)
        flows = (*(each.workflow for each in compiled), self.workflow)
        self._flows = {flow.name: flow for flow in flows}
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
        self._live_mill: SimulatedMill | None = None

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

    @cached_property
    def _baseline(self) -> Baseline:
        again = self._live(0, lambda plan: False) if self._real else None
        return Baseline(self.undisturbed, again, self.workflow, self._flows, self._repetitions, self._expect)

    @property
    def _random_first(self) -> int:
        return RANDOM_FIRST if len(self.undisturbed.reached) < RANDOM_FIRST else RANDOM_LATER

    @property
    def activity(self) -> tuple[int, dict[str, float]]:
        """Boundaries that the present run has reached, and real calls with their seconds; another thread may ask."""
        mill = self._live_mill
        return (0, {}) if mill is None else (len(mill.boundaries), mill.calling)

    def history(self, seed: int) -> History:
        """Live through one seed."""
        if seed == 0:
            return self.undisturbed
        if seed < self._random_first:
            if seed > len(self.undisturbed.reached):
                message = f"there is no seed {seed}: the run reaches {len(self.undisturbed.reached)} boundaries"
                raise rejected("seed_unknown", message, hint=f"random histories begin at {self._random_first}")
            return self._live(seed, lambda plan: len(plan.reached) == seed)
        rng = random.Random(seed)
        share = RANDOM_CRASHES / max(1, len(self.undisturbed.reached))

        def at_random(plan: CrashPlan) -> bool:
            return len(plan.crashes) < RANDOM_CRASHES_MAX and rng.random() < share

        return self._live(seed, at_random, workers=rng.choice((1, 2)), is_random=True)

    def give_up(self, error: BaseException) -> None:
        """Have the present run end with an error."""
        if self._live_mill is not None:
            self._live_mill.give_up(error)

    def _live(
        self, seed: int, dies: Callable[[CrashPlan], bool], workers: int = 1, *, is_random: bool = False
    ) -> History:
        def meets(boundary: Boundary) -> bool:
            if len(plan.reached) > REACHED_MAX:
                mill.give_up(Overdue(TOO_LONG))
            return dies(plan)

        plan = CrashPlan(meets)
        fakes = {name: described(given) for name, given in self._fakes.nodes.items()}
        view, stuck, complaints, logs, is_overdue = None, "", [], {}, False
        with warnings.catch_warnings():
            # A killed process leaves coroutines that were never started: that is what being killed means.
            warnings.simplefilter("ignore", RuntimeWarning)
            mill = SimulatedMill(
                self._types, self._functions, fakes=fakes, real=self._real, real_code=False, workers=workers, plan=plan
            )
            self._live_mill = mill
            try:
                for other in self._others:
                    mill.publish(other)
                view = self._ended(mill, self._started(mill))
                mill.take_over()
                complaints, logs = mill.complaints(), mill.run_logs()
            except StillWaiting as waiting:
                stuck = f"{waiting}".partition(": ")[0]
                stuck = f"{stuck}; why: {mill.why(RUN).headline}"
            except (Overdue, RuntimeError) as error:
                stuck, is_overdue = str(error), isinstance(error, Overdue)
            finally:
                self._live_mill = None
                mill.close()
        done = [effect for effect in mill.effects() if effect.outcome == "returned"]
        returned = Counter(effect.key for effect in done)
        nodes = {effect.key: (effect.workflow, effect.node) for effect in done}
        shown = None if stuck else view
        found = History(seed, plan.reached, plan.crashes, shown, stuck, returned, nodes, complaints, logs)
        found.is_overdue, found.is_random = is_overdue, is_random
        return found

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

    def verify(
        self, seeds: int | None = None, boundaries_max: int | None = None, progress: Progress | None = None
    ) -> Report:
        """Live through every boundary, or as many as are allowed, and through `seeds` random histories.

        Where nothing else is asked for, these are fewer if the run reaches very many boundaries.
        """
        began, total = perf_counter(), len(self.undisturbed.reached)
        most = max(HISTORIES_MIN, WORK_MAX // max(1, total))
        allowed = min(BOUNDARIES_MAX, most) if boundaries_max is None else boundaries_max or total
        seeds = min(SEEDS, most) if seeds is None else seeds
        chosen = [1 + at for at in _spread(self.undisturbed.reached, allowed)]
        report = self._report()
        if self.undisturbed.view is None:
            chosen, seeds = [], 0
        wanted = [*chosen, *range(self._random_first, self._random_first + seeds)]
        for number, seed in enumerate(wanted):
            history = self.history(seed)
            self._judge(report, history)
            if progress is not None:
                progress(number + 1, len(wanted))
            if history.is_overdue:
                break
        report.seconds = perf_counter() - began
        return report

    def replay(self, seed: int) -> Report:
        """Replay one seed, and report what happened."""
        began, report, history = perf_counter(), self._report(), self.history(seed)
        if seed and self.undisturbed.view is not None:
            self._judge(report, history)
        report.story = list(history.story())
        report.seconds = perf_counter() - began
        return report

    def _report(self) -> Report:
        """The report before any crash: only what is wrong without one."""
        first, view = self.undisturbed, self.undisturbed.view
        status = "STUCK" if view is None else view.status
        report = Report(self.workflow.name, len(self.workflow.nodes), status, {}, len(first.reached), 0, 0, {}, {}, [])
        report.expect = self._expect

        def add(kind: FindingKind, severity: Severity, node: str, message: str, hint: str = REPORT_IT) -> None:
            report.add(self._finding(kind, severity, node, message, hint), 0)

        for complaint in first.complaints:
            add("invariant", "error", "", complaint)
        if view is None:
            hint = "give what it waits for with --fakes, or change the workflow"
            if first.is_overdue:
                is_long = first.stuck == TOO_LONG
                hint = "give it less to do: other inputs (-i), or other values (--fakes)" if is_long else SLOW
            add("undisturbed", "error", "", f"the run does not end without a crash: {first.stuck}", hint)
            return report
        report.unreached, report.rollback = _unreached(view, self.workflow), view.rollback["status"]
        report.unsteady = self._baseline.unsteady
        if not report.is_as_expected:
            error, node = view.error or {}, view.failed_node or ""
            said = f"the run ends {status} without a crash"
            said += f", and is to end {self._expect}" if self._expect else ""
            said += f": {error.get('message', '')} [{error.get('code', '')}]" if error else ""
            hint = "let a step fail, with `$fail` in --fakes, or leave out `--expect`"
            if status != "COMPLETED":
                hint = _lead_out(view, error, [] if EVERY in self._real else self._made_up(first), self._expect)
            add("undisturbed", "error" if self._expect else "warning", node, said, hint)
        if view.rollback["left"]:
            names = ", ".join(dict.fromkeys(key.rsplit("/", 2)[0] for key in view.rollback["left"]))
            said = f"the rollback is partial without a crash: {names} stays as it is"
            hint = "see that its compensator can succeed, or change what --fakes gives for it"
            hint = UNSETTLED if view.rollback.get("unknown") else hint
            add("undisturbed", "warning", "", said, hint)
        return report

    def _made_up(self, history: History) -> list[str]:
        """The nodes whose values are neither given nor real."""
        given = {*map(name_of, self._fakes.nodes), *self._real}
        given = given.union(*(self._callers.get(name, ()) for name in given))
        names = {name for _, name in history.nodes.values()} - given
        return sorted(name for name in names if not name.endswith(UNDO))

    def _judge(self, report: Report, history: History) -> None:
        """Add what differs from the undisturbed history."""
        judge(report, history, self._baseline, self._finding)

    def _finding(self, kind: FindingKind, severity: Severity, node: str, message: str, hint: str) -> CrashFinding:
        path, line = self._place(node.removesuffix(UNDO))
        called = self._places[self.workflow.name].get(node)
        type_ = "" if called is None else called.type.partition("@")[0]
        return CrashFinding(kind, severity, node, message, hint, type_, path, line)

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
TOO_LONG = f"it reaches more than {REACHED_MAX:,} places at which a worker may die"
SLOW = "it is called for real: let it return sooner, or fake it"


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


def _lead_out(view: RunView, error: Mapping[str, Any], made_up: Sequence[str], expect: str) -> str:
    """What to give so that a run completes that fails without a crash."""
    missing = re.match(r".*: no workflow (\S+) is published", str(error.get("message", "")))
    if missing and "workflow_unknown" in (error.get("code"), *error.get("causes", ())):
        given = f"`--fakes FILE` with `nodes: {{{view.failed_node}: …}}`"
        return f"give its document, `--with {missing[1]}.yaml`, or what the node returns: {given}"
    meant = "" if expect or view.status != "FAILED" else "; if it is meant to fail, `--expect failed`"
    if not made_up:
        return f"if it should complete, give other inputs, `-i NAME=VALUE`, or values, `--fakes FILE`{meant}"
    first, names = made_up[0], ", ".join(made_up[:3]) + (", …" if len(made_up) > 3 else "")
    instead = f"`--fakes FILE` with `nodes: {{{first}: …}}`, or call it, `--real {first}`"
    return f"if the made-up values of {names} are the cause, give others: {instead}{meant}"


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


def verify(
    document: Document | Authored[..., Any],
    *,
    inputs: Mapping[str, Any] | None = None,
    fakes: Mapping[Any, Any] | None = None,
    real: Collection[Faked] = (),
    functions: Mapping[str, Function] | Sequence[Function] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    children: Sequence[Document] = (),
    seeds: int | None = None,
    expect: Literal["completed", "failed"] | None = None,
) -> Report:
    """Kill the worker of a workflow at every boundary, and in `seeds` random histories (20); report what goes wrong.

    `document` is what `publish` takes: a mapping, YAML or JSON text, a `Path`, or a workflow written in Python, which
    brings its functions and the workflows that it starts. `functions` are those of `tidemill.open`: they are called
    for nodes that `real` names, and their code is searched for `effect_key`. `fakes` has the form of the command's
    file: `inputs`, `nodes`, `approvals`, `signals`, `repeatable`, `expect`; or it is that of `open`, by node, task or
    workflow, which is its part `nodes`. Nodes that touch the world, functions included, are faked unless `real` names
    them. `children` are the documents of the workflows that it starts. `expect` says how every run is to end: another
    end is an error.
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
        expect=expect or "",
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
