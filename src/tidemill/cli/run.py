"""`tidemill run`: publish a document, start it, watch it to its end, in this process."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from tidemill import front
from tidemill.cli import exits
from tidemill.cli.asking import CLOSE_SECONDS_MAX, Asking
from tidemill.cli.board import Board
from tidemill.cli.ending import tell_end, tell_quietly
from tidemill.cli.helping import Helper
from tidemill.cli.lines import Lines, Silence
from tidemill.cli.problems import as_plain, counted, print_json, print_problems, print_refusal
from tidemill.cli.sources import STDIN, Source, read_inputs, read_source
from tidemill.cli.terminal import console, draws, stdout_kept_clean
from tidemill.engine.views import RunView
from tidemill.errors import Rejected
from tidemill.front import Tidemill


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for."""

    file: str
    given: tuple[str, ...]
    store: str
    actor: str
    roles: tuple[str, ...]
    as_json: bool
    quiet: bool

    @property
    def silent(self) -> bool:
        """Whether nothing is shown before the end."""
        return self.as_json or self.quiet


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
        source, inputs = read_source(options.file), read_inputs(options.given)
        with stdout_kept_clean() if options.silent else nullcontext(), _importable(source.folder):
            view, board = _run(options, source, inputs)
    except Rejected as refusal:
        return _refused(options, refusal)
    if options.as_json:
        print_json(view.to_dict())
    elif options.quiet:
        tell_quietly(view, board)
    else:
        tell_end(view, board)
    return _exit_code(view, board)


def _run(options: RunOptions, source: Source, inputs: dict[str, Any]) -> tuple[RunView, Board]:
    mill = front.open(options.store)
    try:
        published = mill.publish(source.document, author=options.actor)
        if published.warnings and not options.silent:
            title = f"! {counted(len(published.warnings), 'warning')}"
            print_problems(title, published.warnings, sys.stderr, warning=True)
        reference = f"{published.name}@{published.version}"
        board = Board(mill.workflow(reference))
        watcher = _watcher(options, board)
        # From here on an interrupt finds somebody who cancels the run.
        board.run_id = mill.start(reference, inputs, submitted_by=options.actor)
        helper = Helper(
            mill,
            Asking(options.store),
            watcher,
            actor=options.actor,
            roles=options.roles,
            talks=not options.silent and options.file != STDIN,
        )
        _watch(mill, board, watcher, helper)
        return mill.show(board.run_id), board
    finally:
        mill.close(timeout_s=CLOSE_SECONDS_MAX)


def _watcher(options: RunOptions, board: Board) -> Watcher:
    if options.silent:
        return Silence(board)
    if not draws():
        return Lines(board)
    from tidemill.cli.display import Display

    return Display(board, console())


def _watch(mill: Tidemill, board: Board, watcher: Watcher, helper: Helper) -> None:
    """Follow the run; an interrupt cancels it, and what follows from that is watched too."""
    with watcher:
        try:
            for event in mill.follow(board.run_id):
                watcher.see(event)
                helper.see(board.run_id, event)
        except KeyboardInterrupt:
            board.interrupted = True
            # A refusal means that it ended by itself a moment ago; its end is still to be seen.
            with suppress(Rejected):
                mill.cancel(board.run_id, reason="interrupted")
            for event in mill.follow(board.run_id, after=board.seq):
                watcher.see(event)


@contextmanager
def _importable(folder: Path | None) -> Iterator[None]:
    """Let functions be imported from beside the document, and from where the command was given."""
    places = [str(place) for place in (folder, Path.cwd()) if place is not None]
    before = list(sys.path)
    sys.path[:0] = [place for place in dict.fromkeys(places) if place not in before]
    try:
        yield
    finally:
        sys.path[:] = before


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
