"""Why a run or a node is in its state, in text: what it waits for and what ends that, or what decided it."""

from __future__ import annotations

import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Self

from tidemill.cli.options import acting, is_server
from tidemill.cli.render.board import RunProgress
from tidemill.cli.render.events import where
from tidemill.cli.render.runs import step_name
from tidemill.cli.render.tables import (
    COMMAND,
    EXCEPTION,
    error_words,
    moment,
    names,
    print_facts,
    print_headline,
    print_hint,
    print_traceback,
    snippet,
)
from tidemill.cli.render.terminal import BOLD, DIM, MAGENTA, RED, Styler, columns, print_warning, sanitize
from tidemill.cli.session import StoreSession, item_or_none
from tidemill.client import Tidemill
from tidemill.engine.views import plain
from tidemill.errors import TidemillError
from tidemill.kernel.decide.approvals import as_user, who_words
from tidemill.kernel.explain.blockers import Failure, Person, Worker
from tidemill.kernel.explain.ended import Cause, Link, NodeHistory
from tidemill.kernel.explain.explain import Alike, Explanation, folded
from tidemill.kernel.queries import PathStep

SHOWN_MAX = 12
RUN_MARK = "{run}"
VALUE_COLUMNS_BESIDE = 20

_SAID = frozenset({"kind", "node", "visit", "index", "status", "words", "unblock", "command", "since_ms", "until_ms"})
_LEFT_OUT = frozenset(
    {"root", "undecided", "origins", "more_origins", "listed", "broken"}
    | {"window", "body_count", "wakes_ms", "title", "name", "reason"}
)
"""What the words say already, or what takes more than a line; --json has it."""
_AFTER_TIMEOUT = frozenset({"on_timeout", "escalate_to"})
_NOTHING: tuple[Any, ...] = (None, "", [], {}, False, -1, 0)


class WhyOutput(NamedTuple):
    run_id: str
    found: Explanation

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints: commands name the run."""
        shown: dict[str, Any] = plain(self.found)
        blockers = (*shown["blockers"], *filter(None, (shown["deadline"],)))
        for each in (shown, *blockers):
            each["command"] = _for_run(self.run_id, each["command"])
        for each in (*blockers, *filter(None, (shown["first_cause"],))):
            each["index"] = item_or_none(each["index"])
        return shown


class NodeReasons(NamedTuple):
    run_id: str
    found: NodeHistory

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints: commands name the run."""
        shown: dict[str, Any] = plain(self.found)
        for each in shown["blockers"]:
            each["command"] = _for_run(self.run_id, each["command"])
            each["index"] = item_or_none(each["index"])
        return shown


def _for_run(run_id: str, command: str) -> str:
    # Replaced, not formatted: the rest of the line may hold braces of its own.
    return command.replace(RUN_MARK, shlex.quote(run_id))


def print_why(session: StoreSession, reasons: WhyOutput) -> None:
    run_id, found = reasons
    print_headline(found.headline)
    roots = folded([each for each in found.blockers if each.root] or found.blockers)
    _print_blockers(session, run_id, roots, found)
    if found.first_cause is not None:
        print()
        _print_cause(found, found.first_cause)
    if facts := [(label, value) for label, value in _whole(found) if value]:
        print()
        print_facts(facts)
    print_traceback(plain(found.left_error))
    for warning in found.warnings:
        print_warning(warning)
    listed = sum(1 + each.more for each in roots[:SHOWN_MAX])
    if more := len(found.blockers) - listed + found.more_roots + found.more_followers:
        print()
        others = "1 more node waits" if more == 1 else f"{more:,} more nodes wait"
        print_hint(f"{others} for the same; see --json")
    if found.command:
        print()
        print_hint(command_of(session, run_id, found.command))


def print_why_node(session: StoreSession, reasons: NodeReasons) -> None:
    run_id, found = reasons
    print_headline(found.headline)
    _print_blockers(session, run_id, folded(found.blockers), found)
    latest = found.visits[-1].reads if found.visits else {}
    facts = [
        ("visits", "\n".join(map(_step, found.visits)) if len(found.visits) > 1 else ""),
        ("read", "\n".join(f"{name} {_read(found, name, digest)}" for name, digest in latest.items())),
        ("before", "\n".join(map(_step, found.before))),
    ]
    if any(value for _, value in facts):
        print()
        print_facts(facts)
    print_traceback(plain(found.error))


def _read(found: NodeHistory, name: str, digest: str) -> str:
    """A value that a decision read; its digest where the value is not known any more."""
    if name not in found.values:
        return digest
    return snippet(found.values[name], columns() - VALUE_COLUMNS_BESIDE)


def _step(step: PathStep) -> str:
    place = where({"node": step.node, "visit": step.visit})
    went = f" → {names(step.went, VALUE_COLUMNS_BESIDE * 5)}" if step.went else ""
    return f"{place} {step.status}{went}" + (f" · {step.why}" if step.why else "")


def _print_blockers(
    session: StoreSession, run_id: str, blockers: Sequence[Alike], found: Explanation | NodeHistory
) -> None:
    """Print the first blockers; items of a map that wait for the same are one, with the progress of their map."""
    progress = {each.node: each.words for each in found.blockers if each.kind == "items"}
    for alike in blockers[:SHOWN_MAX]:
        blocker, items = alike.first, progress.get(alike.first.node, "") if alike.more else ""
        shown, why = plain(blocker), blocker.words if blocker.words != found.headline else ""
        asks = f" {shlex.join(who)}" if isinstance(blocker, Person) and (who := _deciding(session, blocker)) else ""
        command = command_of(session, run_id, blocker.command + asks) if blocker.command else ""
        print()
        _print_head("◷", MAGENTA, shown, blocker.kind, alike.others)
        facts = [("why", why), *_facts(shown), ("items", items), ("unblock", blocker.unblock), (COMMAND, command)]
        print_facts(facts, indent=2)
        print_traceback(shown.get("error"), indent=2)


def _deciding(session: StoreSession, asked: Person) -> tuple[str, ...]:
    """The options that name one of those who are asked, where the person at the terminal is not one of them."""
    person = as_user(acting(None))
    barred = person in asked.barred or any(by == person for by, _ in asked.delegated)
    if is_server(session.store) or (not barred and (not asked.approvers or person in asked.approvers)):
        return ()
    return who_words(asked.approvers, person if barred else "")


def _print_head(mark: str, colour: str, place: dict[str, Any], kind: str, others: str = "") -> None:
    paint = Styler()
    name = f"{where(place) or 'the run'} {others}".rstrip()
    print(f"{paint(mark, colour)} {paint(sanitize(name), BOLD)}  {paint(kind, DIM)}")


def _facts(shown: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "since", moment(shown["since_ms"])
    yield "until", moment(shown["until_ms"])
    for name, value in shown.items():
        if name in _AFTER_TIMEOUT and shown["until_ms"] is None:
            continue
        if name not in _SAID | _LEFT_OUT and value not in _NOTHING and (name, value) != ("quorum", 1):
            yield name.removesuffix("_ms").replace("_", " "), _value(name, value)


def _value(name: str, value: Any) -> str:
    width = columns() - VALUE_COLUMNS_BESIDE
    if name.endswith("_ms") and isinstance(value, int):
        return moment(value)
    if isinstance(value, dict) and "code" in value:
        return error_words(value)
    if name == "left":
        return names((step_name(key) for key in value), width)
    if isinstance(value, list):
        return names((" → ".join(map(str, entry)) if isinstance(entry, list) else entry for entry in value), width)
    return "yes" if value is True else snippet(value, width)


def _print_cause(found: Explanation, cause: Cause) -> None:
    _print_head("✗", RED, {"node": cause.node, "visit": cause.visit, "index": cause.index}, "the first cause")
    error = cause.error
    facts = [
        # The headline and the traceback say it already.
        ("error", "" if error.traceback and error.message in found.headline else error_words(plain(error))),
        ("type", error.type if error.type != "Fail" and error.code != EXCEPTION else ""),
        ("hint", error.hint),
        ("when", moment(cause.at_ms)),
        ("chain", "\n".join(_link(link, error) for link in found.chain)),
    ]
    print_facts(facts, indent=2)
    print_traceback(plain(error), indent=2)


def _link(link: Link, error: Failure) -> str:
    """One link of the chain, without the error if it is shown above."""
    told = link.words.find(f" with {error.code}: ")
    words = link.words if told < 0 or not link.words.endswith(error.message) else link.words[:told]
    return ": ".join(filter(None, (words, names(link.nodes.names))))


def _whole(found: Explanation) -> Iterator[tuple[str, str]]:
    yield "since", moment(found.since_ms) if found.first_cause is None and not found.blockers else ""
    yield "reason", found.reason if not found.blockers else ""
    yield "deadline", moment(found.deadline.until_ms) if found.deadline is not None else ""
    yield "tolerated", names(found.tolerated.names)
    yield "unread", names(f"{name} ({number})" for name, number in found.unread.items())
    yield "dead letters", str(found.dead_letters or "")
    if found.rollback != "none":
        left = names(step_name(key) for key in found.left.names)
        yield "rollback", found.rollback + (f", not undone: {left}" if left else "")
        yield "why not", error_words(plain(found.left_error)) if found.left_error else ""
    yield "unblock", found.unblock


# While a run is watched.

LOOK_SECONDS = 2.0
HOPELESS = frozenset({"no_worker", "no_queue", "no_type", "lacking"})
"""Why a node waits until an operator starts a worker."""


class IdleReport:
    """Asks why a run waits whenever it has not moved for a while; use it in a `with`. Says everything once."""

    def __init__(self, mill: Tidemill, session: StoreSession, board: RunProgress, say: Callable[[str], None]) -> None:
        self._mill, self._session, self._board, self._say = mill, session, board, say
        self._told: set[tuple[str, ...]] = set()
        self._over, self._lock = threading.Event(), threading.Lock()
        self._thread = threading.Thread(target=self._look_often, name="tidemill-idle", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(LOOK_SECONDS)

    def look(self) -> None:
        """Say what waits in vain for a worker, if anything new does."""
        try:
            found = self._mill.why(self._board.run_id).blockers
        except TidemillError:
            return  # The caller, who follows the run, meets the same trouble and reports it.
        for each in found:
            if isinstance(each, Worker) and each.need in HOPELESS and self._is_new(each):
                self._say(f"◷ {each.words} · {command_of(self._session, self._board.run_id, each.command)}")

    def _is_new(self, blocker: Worker) -> bool:
        """Whether this has not been said yet, of any node."""
        lacks = "" if blocker.lacking is None else blocker.lacking.message
        what = (blocker.need, blocker.queue, blocker.type, lacks)
        with self._lock:
            new = what not in self._told
            self._told.add(what)
        return new

    def _look_often(self) -> None:
        seen = -1
        while not self._over.wait(LOOK_SECONDS):
            if self._board.seq == seen:
                self.look()
            seen = self._board.seq


def command_of(session: StoreSession, run_id: str, command: str) -> str:
    """A command line that an explanation gives, for this run and this store."""
    said = _for_run(run_id, command)
    store = session.command().removeprefix("tidemill").strip()
    return f"{said} {store}".strip() if said.startswith("tidemill ") else said
