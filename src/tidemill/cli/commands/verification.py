"""`tidemill verify`: kills the worker of a workflow at every boundary, in the simulator, and explains what differs.

Nothing real is touched: the store is in memory, time is simulated, and nodes that touch the world are faked unless
--real names them.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import perf_counter

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    file: str
    given: tuple[str, ...]
    others: tuple[str, ...]
    apps: tuple[str, ...]
    fakes: str | None
    real: tuple[str, ...]
    seeds: int
    seed: int | None
    boundaries: int
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
    if options.seed is not None:
        return verifier.replay(options.seed)
    return verifier.verify(options.seeds, options.boundaries, _progress(options))


def _progress(options: VerifyOptions) -> Callable[[int, int], None] | None:
    """A line that counts on a terminal, and disappears at the end; elsewhere a line now and then."""
    if not sys.stderr.isatty():
        return _now_and_then()
    if options.as_json:
        return None

    def show(done: int, total: int) -> None:
        width = 30 * done // max(1, total)
        bar = "━" * width + "─" * (30 - width)
        sys.stderr.write(f"\r  {bar} {done} of {total} histories" if done < total else "\r\033[K")
        sys.stderr.flush()

    return show


def _now_and_then() -> Callable[[int, int], None]:
    printed = perf_counter()

    def show(done: int, total: int) -> None:
        nonlocal printed
        if done < total and perf_counter() - printed > LINE_SECONDS:
            printed = perf_counter()
            print(f"verify: {done} of {total} histories", file=sys.stderr, flush=True)

    return show


def print_report(report: Report, options: VerifyOptions) -> None:
    """Print what was tried, what was found, and the verdict."""
    print_title(report.workflow, counted(report.nodes, "node"), f"{report.status} without a crash")
    print()
    if report.story:
        for line in report.story:
            print(Styler()(f"  {sanitize(line)}", RED if line.startswith("✗") else DIM))
        print()
    else:
        _print_counts(report)
    repeated = [each for each in report.findings if _is_repeated_function(each)]
    for finding in report.findings:
        if len(repeated) < 2 or finding not in repeated:
            _print_finding(finding, options)
    if len(repeated) >= 2:
        _print_finding(_together(repeated), options)
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
    return shlex.join([*words, "--seed", str(seed)])


def _print_verdict(report: Report, options: VerifyOptions) -> None:
    paint, seconds = Styler(), f"{report.seconds:.1f} s"
    errors = sum(each.severity == "error" for each in report.findings)
    warned = len(report.findings) - errors
    tried = f"1 crash in {seconds}" if report.crashes == 1 else f"{report.crashes:,} crashes in {seconds}"
    mark = paint("✓", GREEN)
    failed = "" if report.status == "COMPLETED" else f"the run ends {report.status} without a crash"
    if errors:
        print(f"{paint('✗', RED)} {counted(errors, 'error')}, {counted(warned, 'warning')}: {tried}")
        return
    if failed:
        mark = paint("⚠", YELLOW)
    if report.crashes:
        ends = "every run ended" if options.seed is None else "the run ended"
        said = f"{ends}, and no effect was lost" if warned else f"{ends} as without a crash, and no effect was lost"
        more = f", but {failed}" if failed else ""
        more += f", {counted(warned, 'warning')}" if warned else ""
        print(mark, "\n  ".join(text_lines(f"{said}{more}: {tried}", 2)))
    else:
        print(f"{mark} {failed or 'no worker was killed'}: {seconds}")
