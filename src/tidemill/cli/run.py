"""`tidemill run`: publish a document, start it, watch it to its end, in this process."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any, Protocol, Self, TextIO

from tidemill import front
from tidemill.ambient import RealAmbient
from tidemill.cli import exits
from tidemill.cli.apps import importable, load_apps
from tidemill.cli.asking import CLOSE_SECONDS_MAX, Asking
from tidemill.cli.board import Board
from tidemill.cli.ending import tell_end, tell_quietly, tell_trouble
from tidemill.cli.helping import Helper
from tidemill.cli.lines import Lines, Silence
from tidemill.cli.problems import as_plain, counted, print_json, print_problems, print_refusal
from tidemill.cli.sources import STDIN, Source, read_inputs, read_source
from tidemill.cli.terminal import console, draws, stdout_kept_clean
from tidemill.engine.views import RunView
from tidemill.errors import Rejected, Unfit, rejected
from tidemill.front import Tidemill


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for."""

    file: str
    given: tuple[str, ...]
    apps: tuple[str, ...]
    store: str
    actor: str
    roles: tuple[str, ...]
    as_json: bool
    quiet: bool
    resume: str | None = None
    """A run that was begun earlier and is now carried on."""
    stream: str | None = None
    """A node whose results are printed part by part, and nothing else."""

    @property
    def silent(self) -> bool:
        """Whether nothing is shown before the end."""
        return self.as_json or self.quiet or self.stream is not None


class Watcher(Protocol):
    """Somebody who is shown every event of a run."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def see(self, event: Mapping[str, Any]) -> None: ...

    def say(self, text: str) -> None: ...

    def leave(self) -> None: ...

    def enter(self) -> None: ...


def run(options: RunOptions) -> int:
    """Run a document to its end and tell how it went."""
    try:
        if options.stream is not None and (options.as_json or options.quiet):
            message = "--stream prints parts as they come, --json and --quiet nothing but the end"
            raise rejected("option_invalid", message, hint="drop one of them")
        source, inputs = read_source(options.file), read_inputs(options.given)
        with stdout_kept_clean() if options.silent else nullcontext(sys.stdout) as out, importable(source.folder):
            view, board = _run(options, source, inputs, out)
    except (Rejected, Unfit) as refusal:
        return _refused(options, refusal if isinstance(refusal, Rejected) else Rejected(refusal.problem))
    if options.as_json:
        print_json(view.to_dict())
    elif options.stream is not None:
        tell_trouble(view, board)
    elif options.quiet:
        tell_quietly(view, board)
    else:
        tell_end(view, board)
    return _exit_code(view, board)


def _run(options: RunOptions, source: Source, inputs: dict[str, Any], out: TextIO) -> tuple[RunView, Board]:
    """Work on one run and nothing else: what other runs of the store need, this process may not have."""
    run_id = options.resume or RealAmbient().new_id()
    app = load_apps(options.apps)
    mill = front.open(options.store, only=run_id, functions=app.functions, handlers=app.handlers)
    try:
        reference = _begun(mill, options, source) if options.resume else _published(mill, options, source)
        board = Board(mill.workflow(reference))
        watcher = _watcher(options, board, out)
        # From here on an interrupt finds somebody who cancels the run.
        board.run_id = run_id
        if not options.resume:
            mill.start(reference, inputs, key=run_id, submitted_by=options.actor)
        helper = Helper(
            mill,
            Asking(options.store),
            watcher,
            actor=options.actor,
            roles=options.roles,
            talks=not options.silent and options.file != STDIN,
        )
        # Parts and progress are of no interest to whoever only waits for the end.
        _watch(mill, board, watcher, helper, live=not (options.as_json or options.quiet))
        return mill.show(board.run_id), board
    finally:
        mill.close(timeout_s=CLOSE_SECONDS_MAX)


def _published(mill: Tidemill, options: RunOptions, source: Source) -> str:
    """Publish the document; the version to run."""
    published = mill.publish(source.document, author=options.actor)
    if published.warnings and not options.silent:
        title = f"! {counted(len(published.warnings), 'warning')}"
        print_problems(title, published.warnings, sys.stderr, warning=True)
    return f"{published.name}@{published.version}"


def _begun(mill: Tidemill, options: RunOptions, source: Source) -> str:
    """The version that a run was begun with, if it is a run of this document's workflow."""
    view = mill.show(options.resume or "")
    name = source.document.get("name") if isinstance(source.document, dict) else None
    if view.workflow != name:
        message = f"run {view.run_id} is one of {view.workflow}, and {options.file} describes {name}"
        raise rejected("run_of_another_workflow", message, hint="name the file that the run was begun with")
    return f"{view.workflow}@{view.version}"


def _watcher(options: RunOptions, board: Board, out: TextIO) -> Watcher:
    if options.stream is not None:
        from tidemill.cli.sayings import Parts

        return Parts(board, options.stream, out)
    if options.silent:
        return Silence(board)
    if not draws():
        return Lines(board)
    from tidemill.cli.display import Display

    return Display(board, console())


def _watch(mill: Tidemill, board: Board, watcher: Watcher, helper: Helper, *, live: bool) -> None:
    """Follow the run; an interrupt cancels it, and what follows from that is watched too."""
    with watcher:
        try:
            for event in mill.follow(board.run_id, live=live):
                watcher.see(event)
                helper.see(board.run_id, event)
        except KeyboardInterrupt:
            board.interrupted = True
            # A refusal means that it ended by itself a moment ago; its end is still to be seen.
            with suppress(Rejected):
                mill.cancel(board.run_id, reason="interrupted")
            for event in mill.follow(board.run_id, after=board.seq):
                watcher.see(event)


def _refused(options: RunOptions, refusal: Rejected) -> int:
    if options.as_json:
        print_json({"problems": as_plain(refusal.problems)})
    else:
        print_refusal(refusal.problems)
    return exits.REFUSED


def _exit_code(view: RunView, board: Board) -> int:
    if view.status == "COMPLETED":
        return exits.OK
    return exits.INTERRUPTED if board.interrupted and view.status == "CANCELLED" else exits.FAILED
