"""`tidemill run`: publishes a document, starts it, and watches it to its end in this process.

On a terminal the person is asked for the decisions that the run waits for. A question is dropped when it is answered
elsewhere or expires.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, Self, TextIO

from tidemill import client
from tidemill.ambient import RealAmbient
from tidemill.cli import main
from tidemill.cli.inputs import (
    STDIN,
    QuestionOver,
    Source,
    Typed,
    read_inputs,
    read_pairs,
    read_source,
    typed_form,
    undeclared,
)
from tidemill.cli.options import is_server
from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.events import where
from tidemill.cli.render.lists import asked_of, decide_command, has_submitted, may_decide, print_decision
from tidemill.cli.render.progress import Lines, QuietWatcher, node_of
from tidemill.cli.render.runs import print_end, print_quietly, print_trouble, reference
from tidemill.cli.render.tables import names, print_facts, report_refusal
from tidemill.cli.render.terminal import (
    BOLD,
    DIM,
    MAGENTA,
    Styler,
    can_prompt,
    console,
    in_background,
    print_json,
    print_refusal,
    print_warnings,
    reserve_stdout,
    sanitize,
    supports_unicode,
)
from tidemill.cli.session import CLOSE_SECONDS_MAX, StoreSession
from tidemill.cli.user_code import importable, load_apps, warn_of_ignored_config
from tidemill.client import Tidemill
from tidemill.engine.services.approvals import HUMAN
from tidemill.engine.validation import check_run_id
from tidemill.engine.views import ApprovalView, RunView
from tidemill.errors import Rejected, StoreUnusable, TidemillError, rejected
from tidemill.kernel.commands import Verb
from tidemill.kernel.decide.approvals import as_user, consequences
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import Workflow
from tidemill.observability.capture import OutputCapture
from tidemill.settings import Settings, read_settings

ABOUT_LINES_MAX = 20

VERBS: dict[str, Verb] = {"a": "approve", "r": "reject", "c": "changes"}
_QUESTIONS: dict[Verb, str] = {"approve": "[a]pprove", "reject": "[r]eject", "changes": "request [c]hanges"}
LATER = ("l", "later")


def ask_person(
    mill: Tidemill,
    view: ApprovalView,
    actor: str,
    roles: tuple[str, ...],
    later: str = "",
    verbs: Mapping[str, Verb] = VERBS,
) -> None:
    """Ask until the engine accepts an answer, or the question is settled elsewhere; `later` is how to decide then."""
    place: dict[str, Any] = {"visit": view.visit, "index": None if view.index < 0 else view.index}

    def pending() -> bool:
        return mill.approval(view.run_id, view.node, **place).status == "pending"

    typed, shown = Typed(lambda: _still(pending)), view.to_dict()
    paint, lines = Styler(), str(shown["description"]).split("\n")
    print(f"\n{paint('◷', MAGENTA)} {paint(sanitize(shown['title']), BOLD)}  {paint(shown['node'], DIM)}")
    about = "\n".join(lines[:ABOUT_LINES_MAX]) + ("\n…" if len(lines) > ABOUT_LINES_MAX else "")
    print_facts((("about", about), ("asks", asked_of(shown)), ("link", shown["url"])), indent=2)
    try:
        while True:
            verb = _verb(typed, verbs)
            form = typed_form(typed, shown["form"]) if shown["form"] is not None and verb == "approve" else None
            comments = typed.line("  comment (may be empty): ")
            try:
                answer = mill.decide(
                    view.run_id, view.node, verb, actor=actor, roles=roles, comments=comments, form=form, **place
                )
            except Rejected as refusal:
                print_refusal(refusal.problems)
                if not _still(pending):
                    return
            else:
                print_decision(answer.to_dict())
                return
    except QuestionOver:
        if _still(pending):
            print("  left for later; the run keeps waiting (Ctrl-C to leave)")
            if later:
                print(f"  → {later}")
        else:
            print("  this has been decided in the meantime")


def _still(pending: Callable[[], bool]) -> bool:
    """Whether a question is still open; an unknown one is not."""
    try:
        return pending()
    except Rejected:
        return False


def _verb(typed: Typed, verbs: Mapping[str, Verb]) -> Verb:
    question = ", ".join(_QUESTIONS[verb] for verb in verbs.values())
    while True:
        said = typed.line(f"  {question}, or [l]ater? ").lower()
        if said in LATER:
            raise QuestionOver
        for letter, verb in verbs.items():
            if said in (letter, verb):
                return verb
        print(f"  please answer {', '.join(verbs)} or l")


DECISION_UNREACHABLE = (
    "a memory:// store is private to this process: run it on a terminal as a person who may decide, or with --store"
)
SIGNAL_UNREACHABLE = "a memory:// store is private to this process: run it with --store"
_ASKING = ("ApprovalRequested", "ApprovalEscalated", "ApprovalDelegated")
Interrupted = Literal["cancel", "detach", "watch"]
_INTERRUPTED: dict[str, Interrupted] = {"c": "cancel", "d": "detach", "w": "watch"}


class Prompter:
    """Sees every event of a run, and prompts for decisions and signals that it waits for."""

    def __init__(self, mill: Tidemill, options: RunOptions, watcher: Watcher, workflow: Workflow) -> None:
        self._workflow = workflow
        self._mill, self._session, self._watcher = mill, StoreSession(options.store), watcher
        self._actor, self._roles = options.actor, options.roles
        self._may_talk = sys.stdout.isatty() and not options.silent and options.file != STDIN
        self._asks = False

    @property
    def _talks(self) -> bool:
        """Whether this process may prompt now: a shell moves jobs to the background and back."""
        return self._may_talk and can_prompt()

    def see(self, run_id: str, event: Mapping[str, Any]) -> None:
        kind = event["type"]
        if kind in _ASKING:
            self._decision(run_id, event)
        elif kind == "NodeWaiting" and event["on"] == "signal" and not event.get("signal"):
            command = self._session.command("runs", "signal", run_id, event["name"])
            how = SIGNAL_UNREACHABLE if self._session.is_private_store else command
            self._watcher.say(f"◷ {where(event)} waits for the signal {event['name']} · {how}")

    @property
    def is_private(self) -> bool:
        """Whether the run ends with this process."""
        return self._session.is_private_store

    def on_interrupt(self, run_id: str, *, asks: bool) -> Interrupted:
        """What an interrupt means: the person chooses; without a terminal, or if told to end, the run is detached."""
        if self.is_private:
            return "cancel"
        if not asks or not self._talks:
            return "detach"
        question = f"\n  run {run_id}: [d]etach and leave it running, [c]ancel it, or keep [w]atching? "
        try:
            self._asks = True
            self._watcher.leave()
            return _INTERRUPTED.get(Typed(lambda: True).line(question).lower()[:1], "detach")
        except (KeyboardInterrupt, QuestionOver):
            print()
            return "detach"

    def watch_again(self) -> None:
        """Draw again after a question about an interrupt."""
        if self._asks:
            self._watcher.enter()
            self._asks = False

    def _decision(self, run_id: str, event: Mapping[str, Any]) -> None:
        index = event.get("index", NOT_AN_ITEM)
        try:
            view = self._mill.approval(
                run_id, event["node"], visit=event["visit"], index=None if index == NOT_AN_ITEM else index
            )
        except Rejected:
            return  # It has continued since.
        if view.status != "pending":
            return
        command = decide_command(self._session, view, self._actor, self._roles)
        if self._talks and may_decide(view, self._actor, self._roles):
            self._watcher.leave()
            try:
                later = "" if self._session.is_private_store else command
                ask_person(self._mill, view, self._actor, self._roles, later, self._verbs(view))
            finally:
                self._watcher.enter()
            return
        asked = names(view.approval.approvers or ("anyone",))
        if has_submitted(view.approval, as_user(self._actor)):
            asked += f", and not by {self._actor}, who submitted the run (four eyes)"
        how = DECISION_UNREACHABLE if self._session.is_private_store else command
        self._watcher.say(f"◷ {where(event)} waits for a decision by {asked} · {how}")

    def _verbs(self, view: ApprovalView) -> dict[str, Verb]:
        """The decisions that the graph has a way for; the code of other types is called with any."""
        node = self._workflow.by_id.get(view.node)
        if node is None:
            return VERBS
        leads_to = consequences(node, view.index, recall=not node.type.startswith(HUMAN))
        return {letter: verb for letter, verb in VERBS.items() if leads_to[verb].possible}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    file: str
    given: tuple[str, ...]
    apps: tuple[str, ...]
    imports: tuple[str, ...]
    store: str
    actor: str
    roles: tuple[str, ...]
    as_json: bool
    quiet: bool
    labels: tuple[str, ...] = ()
    key: str | None = None
    """The id of the run, of the caller's choice."""
    resume: str | None = None
    """A run that was started earlier and is resumed now."""
    stream: str | None = None
    """A node whose results are printed part by part, and nothing else."""

    @property
    def silent(self) -> bool:
        return self.as_json or self.quiet or self.stream is not None


class Watcher(Protocol):
    """Gets every event of a run; prints lines, and releases the terminal for prompts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc: object) -> None: ...

    def see(self, event: Mapping[str, Any]) -> None: ...

    def skip(self, event: Mapping[str, Any]) -> None: ...

    def say(self, text: str, style: str = "") -> None: ...

    def leave(self) -> None: ...

    def enter(self) -> None: ...


def run(options: RunOptions) -> int:
    try:
        if options.stream is not None and (options.as_json or options.quiet):
            message = "--stream prints parts as they arrive; --json and --quiet print only the result"
            raise rejected("option_invalid", message, hint="drop one of them")
        if options.resume is not None and options.key is not None:
            raise rejected("option_invalid", "--key names a new run, --resume an earlier one", hint="drop one of them")
        if options.key is not None:
            check_run_id(options.key)
        if options.resume is not None:
            options = replace(options, resume=StoreSession(options.store).run_id(options.resume))
        source, inputs = read_source(options.file), read_inputs(options.given)
        settings = read_settings(imports=options.imports)
        warn_of_ignored_config(source.folder)
        imports = options.apps or source.workflow is not None or settings.may_import
        folders = importable(source.folder) if imports else nullcontext()
        with reserve_stdout() if options.silent else _whole_lines() as out, folders:
            view, board = _run(options, settings, source, inputs, out)
    except (Rejected, StoreUnusable) as refusal:
        report_refusal(_meant(refusal, options), as_json=options.as_json)
        return main.REFUSED
    if options.as_json:
        print_json(view.to_dict())
    if board.detached:
        return _interrupted(board)
    if options.stream is not None:
        print_trouble(view, board)
    elif options.quiet:
        print_quietly(view, board)
    elif not options.as_json:
        kept = options.store.partition(":")[0] != "memory"
        session, (file, code) = StoreSession(options.store), _named(options)
        patch = session.command("runs", "patch", view.run_id, file, *code, "--retry") if kept else ""
        print_end(view, board, session.command("why", view.run_id) if kept else "", patch)
    if view.status == "COMPLETED":
        return main.OK
    return _interrupted(board) if board.interrupted and view.status == "CANCELLED" else main.FAILED


def _meant(refusal: Rejected | StoreUnusable, options: RunOptions) -> Rejected | StoreUnusable:
    """The refusal of a file that is not there says how to start a workflow of this name, if one is published."""
    if not isinstance(refusal, Rejected) or refusal.code != "file_missing":
        return refusal
    session = StoreSession(options.store)
    try:
        session.asked(lambda mill: mill.workflow(options.file))
    except TidemillError:
        return refusal
    command = session.command("start", options.file)
    return rejected(
        "file_missing", f"there is no file {options.file}", hint=f"to run the published workflow: {command}"
    )


def _interrupted(board: RunProgress) -> int:
    return main.TERMINATED if board.terminated else main.INTERRUPTED


@contextmanager
def _whole_lines() -> Iterator[TextIO]:
    """What functions print and the lines about the run do not share a line; a reader that is gone stops nothing."""
    capture = OutputCapture()
    capture.install(lines=True, marks=node_of)
    try:
        yield sys.stdout
    finally:
        capture.remove()


def _print_detached(options: RunOptions, run_id: str) -> None:
    """Print how to resume a detached run, on standard error."""
    session, (file, code) = StoreSession(options.store), _named(options)
    code += [part for pattern in options.imports for part in ("--allow-import", pattern)]
    who = "the server" if is_server(options.store) else "a worker on this store"
    lines = (
        f"detached: run {run_id} is not cancelled; {who} continues it",
        f"resume it here: {session.command('run', file, '--resume', run_id, *code)}",
        f"cancel it: {session.command('runs', 'cancel', run_id)}",
    )
    print(*(f"→ {sanitize(line)}" for line in lines), sep="\n", file=sys.stderr)


def _named(options: RunOptions) -> tuple[str, list[str]]:
    """The file, and the options for the user's code, as a further command names them."""
    code = [part for app in options.apps for part in ("--app", app)]
    return "FILE" if options.file == STDIN else options.file, code


def _run(
    options: RunOptions, settings: Settings, source: Source, inputs: dict[str, Any], out: TextIO
) -> tuple[RunView, RunProgress]:
    """Work on one run only: this process may lack the code that other runs of the store need.

    With a server, its workers do the work.
    """
    run_id, labels = options.resume or options.key or RealAmbient().new_id(), read_pairs("--label", options.labels)
    app = load_apps(options.apps)
    if remote := is_server(options.store):
        mill = client.connect(options.store)
    else:
        mill = client.open(
            options.store, only=run_id, functions=app.functions, handlers=app.handlers, settings=settings
        )
    try:
        if options.key and not remote and _was_started(mill, options.key, inputs):
            options = replace(options, resume=options.key)
        revision, news = 0, ""
        if options.resume:
            version, revision = _resumed(mill, options, source)
        else:
            version, news = _published(mill, options, source)
        workflow = mill.workflow(version)
        board = RunProgress(workflow, reference=f"{version}+{revision}" if revision else version)
        if not options.as_json:
            print_warnings(undeclared(workflow.inputs, inputs), sys.stderr)
        watcher = _watcher(options, board, out)
        main.start_collector()
        # From here on an interrupt cancels the run.
        board.run_id = run_id
        # With --json and --quiet only the end is shown, so parts and progress are not followed.
        live, events = not (options.as_json or options.quiet), None
        if remote and not options.resume:
            board.run_id = mill.start(version, inputs, key=run_id, labels=labels)
        elif not options.resume:
            # It is followed before it starts: no part of a result is missed.
            events = mill.follow(run_id, live=live, awaited=True)
            mill.start(version, inputs, key=run_id, labels=labels, submitted_by=options.actor)
        prompter = Prompter(mill, options, watcher, workflow)
        try:
            if options.resume:
                news = _catch_up(mill, board, watcher)
            with _idle_report(mill, options, board, watcher) if remote else nullcontext():
                _watch(mill, board, watcher, prompter, events, live=live, news="" if options.silent else news)
        finally:
            # Also after a second interrupt, and before one that ends the command while it closes.
            if board.detached:
                _print_detached(options, board.run_id)
        return mill.show(board.run_id), board
    finally:
        mill.close(timeout_s=CLOSE_SECONDS_MAX)


def _published(mill: Tidemill, options: RunOptions, source: Source) -> tuple[str, str]:
    """The version that is run, and what to say of it if it is new."""
    with source.located():
        published = mill.publish(source.published, author=options.actor)
    if not options.silent:
        print_warnings(published.warnings, sys.stderr)
    version, is_kept = f"{published.name}@{published.version}", not StoreSession(options.store).is_private_store
    replaces = ", now latest" if published.version > 1 else ""
    return version, f"published as {version}{replaces}" if published.created and is_kept else ""


def _resumed(mill: Tidemill, options: RunOptions, source: Source) -> tuple[str, int]:
    """The version that a run was started with, if it is a run of this document's workflow, and its own revision."""
    if source.workflow is not None and not is_server(options.store):
        mill.register(source.workflow)
    view = mill.show(options.resume or "")
    name = source.document.get("name") if isinstance(source.document, dict) else None
    if view.workflow != name:
        message = f"run {view.run_id} belongs to workflow {view.workflow}, but {options.file} describes {name}"
        raise rejected("run_of_another_workflow", message, hint="pass the file that the run was started with")
    session = StoreSession(options.store)
    if options.given and not options.key:
        given = [part for each in options.given for part in ("-i", each)]
        hint = f"fork the run to change its inputs: {session.command('runs', 'fork', view.run_id, *given)}"
        raise rejected("option_invalid", "--resume keeps the run's inputs", path="--input", hint=hint)
    if not options.silent and _has_changed(mill, view, source):
        file, code = _named(options)
        words = ("runs", "patch", view.run_id, file, *code, "--retry")
        if view.status == "COMPLETED" or not _may_patch(mill, view, source):
            words = ("run", file, *code)
        follows = reference(view.workflow, view.version, view.revision)
        said = f"! this run follows {follows}, which differs from {file}; to use the file: {session.command(*words)}"
        print(sanitize(said), file=sys.stderr, flush=True)
    return reference(view.workflow, view.version, None), view.revision


def _was_started(mill: Tidemill, key: str, inputs: Mapping[str, Any]) -> bool:
    """Whether there is a run of this key with these inputs; a server compares them by itself."""
    try:
        known = mill.show(key).inputs
    except Rejected as refusal:
        if refusal.code != "run_unknown":
            raise
        return False
    if isinstance(known, dict) and {**known, **inputs} != known:
        hint = "use a new key for a new run; --resume follows this one"
        raise rejected("key_reused", f"run {key} was started with other inputs", path="--key", hint=hint)
    return True


def _has_changed(mill: Tidemill, view: RunView, source: Source) -> bool:
    """Whether a file holds another document than that of a run, ignoring versions of node types.

    A run that was patched on purpose differs from its file, which may still hold what the run was started with.
    """
    from tidemill.engine.services.patches import unpinned
    from tidemill.kernel.document.reader import normalise

    wanted, problems = normalise(source.document)
    known = [mill.document(view.run_id).document]
    if view.revision:
        known.append(mill.workflow_document(reference(view.workflow, view.version, None)))
    return bool(problems) or all(unpinned(each, wanted) != wanted for each in known)


def _may_patch(mill: Tidemill, view: RunView, source: Source) -> bool:
    """Whether a run could take over a file: nodes that have their results may not change."""
    try:
        mill.patch(view.run_id, document=source.document, retry=True, dry_run=True)
    except Rejected:
        return False
    return True


def _idle_report(
    mill: Tidemill, options: RunOptions, board: RunProgress, watcher: Watcher
) -> AbstractContextManager[object]:
    """Says what the workers of a server cannot run; in a process of its own, a run needs no other worker."""
    from tidemill.cli.render.why import IdleReport

    return nullcontext() if options.silent else IdleReport(mill, StoreSession(options.store), board, watcher.say)


_AGAIN = {"RunRetried": "retry", "RunForked": "fork", "RunRewound": "rewind"}


def _catch_up(mill: Tidemill, board: RunProgress, watcher: Watcher) -> str:
    """Take in the events up to the latest retry, rewind or fork, and return what to say instead of printing them."""
    events = mill.events(board.run_id)
    again = {event["type"]: event["seq"] for event in events if event["type"] in _AGAIN}
    for event in events[: max(again.values(), default=0)]:
        watcher.skip(event)
    completed = [row.name for row in board.rows.values() if row.phase == "COMPLETED"]
    what = next((_AGAIN[each] for each in _AGAIN if each in again), "")
    return f"✓ completed before the {what}: {names(completed)}" if again and completed else ""


def _watcher(options: RunOptions, board: RunProgress, out: TextIO) -> Watcher:
    if options.stream is not None:
        from tidemill.cli.render.events import StreamPrinter

        return StreamPrinter(board, options.stream, out)
    if options.silent:
        return QuietWatcher(board)
    if not supports_unicode() or in_background(sys.stdout):
        return Lines(board)
    from tidemill.cli.render.live_display import Display

    return Display(board, console())


def _watch(
    mill: Tidemill,
    board: RunProgress,
    watcher: Watcher,
    prompter: Prompter,
    events: Iterator[dict[str, Any]] | None,
    *,
    live: bool,
    news: str,
) -> None:
    """Follow the run; an interrupt may cancel it, and what follows from that is watched too."""
    answer: Interrupted = "watch"
    with main.terminable(), watcher:
        if news:
            watcher.say(news, DIM)
        while answer != "detach":
            try:
                if answer == "cancel":
                    # A refusal means that it ended by itself a moment ago; its end is still to be seen.
                    with suppress(Rejected):
                        mill.cancel(board.run_id, reason="interrupted")
                prompter.watch_again()
                events = events or mill.follow(board.run_id, after=board.seq, live=live)
                for event in events:
                    watcher.see(event)
                    prompter.see(board.run_id, event)
                return
            except KeyboardInterrupt as interrupt:
                events = None
                board.terminated = isinstance(interrupt, main.Terminated)
                board.detached = not prompter.is_private
                answer = prompter.on_interrupt(board.run_id, asks=not board.terminated)
                board.detached = answer == "detach"
                board.interrupted = board.interrupted or answer != "watch"
