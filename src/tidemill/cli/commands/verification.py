"""`tidemill verify`: kills the worker of a workflow at every boundary, in the simulator, and explains what differs.

Nothing real is touched: the store is in memory, time is simulated, and nodes that touch the world are faked unless
--real names them.
"""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from threading import Event, Thread, current_thread, main_thread
from time import perf_counter
from types import FrameType
from typing import Any

from tidemill.cli import main
from tidemill.cli.inputs import STDIN, read_data, read_inputs, read_source
from tidemill.cli.render.tables import print_hint, print_title, report_refusal
from tidemill.cli.render.terminal import (
    BOLD,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    counted,
    folded,
    print_json,
    reserve_stdout,
    sanitize,
    text_lines,
)
from tidemill.cli.user_code import importable, load_apps
from tidemill.errors import Rejected
from tidemill.testing.cluster import UNDO
from tidemill.testing.fakes import read_fakes
from tidemill.testing.report import CrashFinding, Report, place_in_words
from tidemill.testing.verifier import Verifier, children_of, located

KINDS = ("commit", "send", "effect")
SEEDS_SHOWN_MAX = 3
UNREACHED_SHOWN_MAX = 8
LINE_SECONDS = 10.0
"""How often a long verification says how far it is, where no terminal shows it."""
CALL_SECONDS = 5.0
"""A real call that takes longer is named."""
TICK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    file: str
    given: tuple[str, ...]
    others: tuple[str, ...]
    apps: tuple[str, ...]
    fakes: str | None
    real: tuple[str, ...]
    seeds: int | None
    seed: int | None
    boundaries: int | None
    expect: str | None = None
    strict: bool
    as_json: bool


def verify(options: VerifyOptions) -> int:
    """Exit code 0 if every run ends as without a crash; warnings count with --strict."""
    try:
        source = read_source(options.file)
        folders = importable(source.folder)
        with reserve_stdout() if options.as_json else nullcontext(), folders:
            app = load_apps(options.apps)
            flow = source.workflow
            verifier = Verifier(
                source.document,
                text="" if options.file == STDIN else source.text.decode("utf-8", "replace"),
                inputs=read_inputs(options.given),
                fakes=None if options.fakes is None else read_fakes(read_data(options.fakes)),
                real=options.real,
                functions={**({} if flow is None else flow.functions), **app.functions},
                handlers=app.handlers,
                others=[*children_of(flow), *(read_source(name).document for name in options.others)],
                expect=options.expect or "",
            )
            main.start_collector()
            report = located(_verified(verifier, options), flow)
    except Rejected as refusal:
        report_refusal(refusal, as_json=options.as_json)
        return main.REFUSED
    if options.as_json:
        print_json(report.to_dict())
    else:
        print_report(report, options)
    return main.OK if report.ok and not (options.strict and report.findings) else main.FAILED


def _verified(verifier: Verifier, options: VerifyOptions) -> Report:
    with _Progress(verifier, options) as progress:
        if options.seed is not None:
            return verifier.replay(options.seed)
        return verifier.verify(options.seeds, options.boundaries, progress.show)


class _Progress:
    """A line that counts on a terminal, and disappears at the end; elsewhere a line now and then.

    A thread prints it: the first run, or a function that is called for real, may take long by itself.
    """

    def __init__(self, verifier: Verifier, options: VerifyOptions) -> None:
        self._verifier = verifier
        self._on_terminal = sys.stderr.isatty()
        self._shows_bar = self._on_terminal and not options.as_json
        self._done, self._total = 0, 0
        self._printed = perf_counter()
        self._called: dict[str, float] = {}
        self._over = Event()
        self._handlers: dict[int, Any] = {}
        self._thread = Thread(target=self._watch, name="tidemill-progress", daemon=True)

    def __enter__(self) -> _Progress:
        self._thread.start()
        if current_thread() is main_thread():
            known = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
            self._handlers = {each: handler for each, handler in known.items() if callable(handler)}
            for each in self._handlers:
                signal.signal(each, self._interrupt)
        return self

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        """End the run, too: its engine takes what is raised inside it for a failure of a handler."""
        try:
            self._handlers[number](number, frame)
        except BaseException as error:
            self._verifier.give_up(error)
            raise

    def __exit__(self, *exc: object) -> None:
        for each, handler in self._handlers.items():
            signal.signal(each, handler)
        self._over.set()
        self._thread.join()
        if self._shows_bar:
            self._write("\r\033[K")

    def show(self, done: int, total: int) -> None:
        """Called after each history."""
        self._done, self._total = done, total
        if self._shows_bar:
            width = 30 * done // max(1, total)
            self._write(f"\r  {'━' * width}{'─' * (30 - width)} {done} of {total} histories")

    def _watch(self) -> None:
        while not self._over.wait(TICK_SECONDS):
            reached, calls = self._verifier.activity
            waited = {node: seconds for node, seconds in calls.items() if seconds >= CALL_SECONDS}
            if waited.keys() - self._called.keys():
                longest = sorted(waited.items(), key=lambda each: -each[1])
                said = ", ".join(f"{node} for {seconds:.0f} s" for node, seconds in longest)
                self._say(f"still calling {said}: --real calls it, and it has not returned")
            elif perf_counter() - self._printed > LINE_SECONDS and not self._on_terminal:
                now = f"{self._done} of {self._total} histories" if self._total else "the run without a crash"
                self._say(f"{now}; the present one has reached {reached:,} crash points")
            self._called = waited

    def _say(self, text: str) -> None:
        self._printed = perf_counter()
        self._write(("\r\033[K" if self._shows_bar else "") + f"verify: {sanitize(text)}\n")

    def _write(self, text: str) -> None:
        sys.stderr.write(text)
        sys.stderr.flush()


def print_report(report: Report, options: VerifyOptions) -> None:
    """Print what was tried, what was found, and the verdict."""
    as_expected = ", as expected" if report.expect and report.is_as_expected else ""
    print_title(report.workflow, counted(report.nodes, "node"), f"{report.status} without a crash{as_expected}")
    print()
    if report.story:
        for line in report.story:
            print(Styler()(f"  {sanitize(line)}", RED if line.startswith("✗") else DIM))
        print()
    else:
        _print_counts(report)
    for finding in _folded(report.findings):
        _print_finding(finding, options)
    if any(each.kind == "duplicate" and each.severity == "warning" for each in report.findings):
        print_hint("list nodes that may safely run twice under `repeatable` in the --fakes file")
    for node, times in report.once.items():
        again = f"{place_in_words(node)} was tried again in {_histories(times)}"
        said = f"{again}: the store executes its statement exactly once"
        print_hint("\n  ".join(text_lines(said, 2)))
    for node, times in report.keyed.items():
        said = f"{place_in_words(node)} was repeated in {_histories(times)}, under the same effect key"
        lines = text_lines(f"{said}: a receiver that honours it sees one effect", 2)
        print_hint("\n  ".join(lines))
    if report.unsteady:
        said = f"{_first_of(report.unsteady)}: not compared, because two runs without a crash differ there"
        print_hint("\n  ".join(text_lines(said, 2)))
    if report.unreached:
        _print_unreached(report)
    _print_verdict(report, options)


def _print_unreached(report: Report) -> None:
    nodes = [name for name in report.unreached if not name.endswith(UNDO)]
    undo = [name.removesuffix(UNDO) for name in report.unreached if name.endswith(UNDO)]
    if nodes:
        said = f"{len(nodes)} of {counted(report.nodes, 'node')} did not run, and were not tested: {_first_of(nodes)}"
        print_hint("\n  ".join(text_lines(f"{said}; other inputs (-i) or values (--fakes) may lead there", 2)))
    if undo:
        said = f"compensators did not run, and were not tested: those of {_first_of(undo)}"
        print_hint("\n  ".join(text_lines(f"{said}; let a step fail, with `$fail` in --fakes or --real NODE", 2)))


def _first_of(names: Sequence[str]) -> str:
    more = len(names) - UNREACHED_SHOWN_MAX
    return ", ".join(names[:UNREACHED_SHOWN_MAX]) + (f" and {more} more" if more > 0 else "")


def _histories(number: int) -> str:
    return "1 history" if number == 1 else f"{number} histories"


def _is_repeated_function(finding: CrashFinding) -> bool:
    """Whether a function was called again, which may do no harm: Tidemill cannot see what it touches."""
    return (finding.kind, finding.severity, finding.node_type) == ("duplicate", "warning", "python")


def _folded(findings: Sequence[CrashFinding]) -> list[CrashFinding]:
    """One finding for all functions that are called again, and for all nodes that differ for one reason."""
    repeated = [each for each in findings if _is_repeated_function(each)]
    differing: dict[tuple[str, str], list[CrashFinding]] = {}
    for each in findings:
        if each.kind == "different" and each.node:
            differing.setdefault((each.severity, each.hint), []).append(each)
    many = {id(group[0]): group for group in differing.values() if len({each.node for each in group}) > 1}
    gone = {id(each) for group in many.values() for each in group}
    gone |= {id(each) for each in repeated} if len(repeated) > 1 else set()
    shown = [
        _differ(many[id(each)]) if id(each) in many else each
        for each in findings
        if id(each) in many or id(each) not in gone
    ]
    return shown + ([_together(repeated)] if len(repeated) > 1 else [])


def _differ(findings: Sequence[CrashFinding]) -> CrashFinding:
    """One finding for nodes that differ for one reason."""
    nodes = list(dict.fromkeys(each.node for each in findings))
    seeds = sorted({seed for each in findings for seed in each.seeds})
    what = "have another output" if all("another output" in each.message for each in findings) else "end otherwise"
    message = f"{len(nodes)} nodes {what} after the crash than without it: {_first_of(nodes)}"
    return CrashFinding("different", findings[0].severity, "", message, findings[0].hint, seeds=seeds)


def _together(repeated: Sequence[CrashFinding]) -> CrashFinding:
    """One finding for all functions that are called again."""
    names = ", ".join(place_in_words(each.node) for each in repeated)
    seeds = sorted({seed for each in repeated for seed in each.seeds})
    message = (
        f"{len(repeated)} functions are called again when their worker dies before the result is committed: {names}"
    )
    hint = max((each.hint for each in repeated), key=len)
    hint = f"harmless where a function only computes; else {hint}"
    return CrashFinding("duplicate", "warning", "", message, hint, seeds=seeds)


def _print_counts(report: Report) -> None:
    paint = Styler()
    for kind in (*KINDS, "random"):
        number = report.random if kind == "random" else report.boundaries.get(kind, 0)
        if not number:
            continue
        mine = [each for each in report.findings if any(report.kinds.get(seed) == kind for seed in each.seeds)]
        worst = "✗" if any(each.severity == "error" for each in mine) else "!" if mine else "✓"
        colour = {"✗": RED, "!": YELLOW, "✓": GREEN}[worst]
        found = {seed for each in mine for seed in each.seeds if report.kinds.get(seed) == kind}
        what = "histories with several crashes" if kind == "random" else "crashes"
        notes = f"  {len(found)} with a finding" if found else ""
        print(f"  {paint(worst, colour)} {kind:<7} {number:>5} {what}{paint(notes, DIM)}")
    tried = sum(report.boundaries.values())
    if tried < report.boundaries_reached:
        said = f"{tried} of {report.boundaries_reached:,} crash points, of every kind; --boundaries 0 tries all"
        print(paint(f"    {said}", DIM))
    print()


def _print_finding(finding: CrashFinding, options: VerifyOptions) -> None:
    paint = Styler()
    is_error = finding.severity == "error"
    mark = paint("✗", RED) if is_error else paint("!", YELLOW)
    name = "standard input" if options.file == STDIN else sanitize(options.file)
    place = f"  {name}:{finding.line}" if finding.line else f"  {finding.path}" if finding.path else ""
    *lines, last = text_lines(finding.message, 2) or [""]
    for number, line in enumerate(lines):
        print(f"{' ' if number else mark} {paint(line, BOLD)}")
    # The place stays in one piece.
    place = f"\n{place}" if len(last) + len(place) + 2 > columns() else place
    print(f"{' ' if lines else mark} {paint(last, BOLD)}{paint(place, DIM)}")
    for number, line in enumerate(folded(sanitize(finding.hint), columns() - 4)):
        print(f"  {'→' if number == 0 else ' '} {line}")
    if options.seed is None and finding.seeds != [0]:
        shown = ", ".join(str(seed) for seed in finding.seeds[:SEEDS_SHOWN_MAX])
        more = len(finding.seeds) - SEEDS_SHOWN_MAX
        others = f" and {more} more" if more > 0 else ""
        print(paint(f"  seeds {shown}{others}; replay: {_command(options, finding.seeds[0])}", DIM))
    print()


def _command(options: VerifyOptions, seed: int) -> str:
    """The command that replays one seed."""
    words = ["tidemill", "verify", options.file]
    pairs = (("--with", options.others), ("-i", options.given), ("--app", options.apps), ("--real", options.real))
    words += [word for option, values in pairs for value in values for word in (option, value)]
    words += ["--fakes", options.fakes] if options.fakes is not None else []
    words += ["--expect", options.expect] if options.expect is not None else []
    return shlex.join([*words, "--seed", str(seed)])


def _print_verdict(report: Report, options: VerifyOptions) -> None:
    paint, seconds = Styler(), f"{report.seconds:.1f} s"
    errors = sum(each.severity == "error" for each in report.findings)
    warned = len(report.findings) - errors
    tried = f"1 crash in {seconds}" if report.crashes == 1 else f"{report.crashes:,} crashes in {seconds}"
    failed = "" if report.is_as_expected else f"the run ends {report.status} without a crash"
    is_partial = report.expect and report.rollback == "partial"
    mark = paint("⚠", YELLOW) if failed or is_partial or report.lost else paint("✓", GREEN)
    if errors:
        print(f"{paint('✗', RED)} {counted(errors, 'error')}, {counted(warned, 'warning')}: {tried}")
    elif report.crashes:
        more = f", but {failed}" if failed else ""
        more += f", {counted(warned, 'warning')}" if warned else ""
        print(
            mark,
            "\n  ".join(text_lines(f"{_ends(report, options)}, {_joint(report)} {report.claim}{more}: {tried}", 2)),
        )
    else:
        print(f"{mark} {failed or 'no worker was killed'}: {seconds}")


def _ends(report: Report, options: VerifyOptions) -> str:
    """How the runs ended."""
    ends = "every run ended" if options.seed is None else "the run ended"
    if report.expect:
        ends += f" {report.expect} as expected" if set(report.ended) == {report.expect} else ""
        is_partial = any("the rollback is partial" in each.message for each in report.findings)
        return f"{ends}, its rollback done" if report.rollback == "done" and not is_partial else ends
    others = {status: number for status, number in report.ended.items() if status != report.status}
    if others and options.seed is None:
        total = sum(report.ended.values())
        return f"{ends}, {' and '.join(f'{number} of {total} {status}' for status, number in others.items())}"
    if others:
        return f"{ends} {next(iter(others))}"
    return ends if report.findings else f"{ends} as without a crash"


def _joint(report: Report) -> str:
    return "but" if report.lost else "and"
