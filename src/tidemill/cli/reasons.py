"""Why a run does not go on, in text: each blocker, since when, until when, and the command that ends it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tidemill.cli.ages import age, iso
from tidemill.cli.asking import Asking
from tidemill.cli.logbook import where
from tidemill.cli.paint import BOLD, DIM, MAGENTA, RED, Paint, columns
from tidemill.cli.snippets import names, snippet
from tidemill.cli.tables import print_facts, print_hint
from tidemill.cli.terminal import clean

BLOCKERS_SHOWN_MAX = 20
RUN_MARK = "{run}"

_SAID = frozenset({"kind", "node", "visit", "index", "status", "words", "unblock", "command", "since_ms", "until_ms"})
_LEFT_OUT = frozenset({"root", "title", "undecided", "origins", "more_origins", "listed", "broken", "url"})
"""What `words` say already, or what takes more than a line."""


def tell_why(asking: Asking, run_id: str, explanation: Mapping[str, Any]) -> None:
    """Print an explanation."""
    paint = Paint()
    print(paint(clean(_named(explanation.get("headline", ""), run_id)), BOLD))
    blockers = list(explanation.get("blockers") or ())
    shown = [each for each in blockers if each.get("root", True)] or blockers
    for blocker in shown[:BLOCKERS_SHOWN_MAX]:
        print()
        _tell_blocker(asking, run_id, blocker)
    if cause := explanation.get("first_cause"):
        print()
        _tell_cause(cause, explanation.get("chain") or ())
    rest = len(blockers) - min(len(shown), BLOCKERS_SHOWN_MAX)
    if rest:
        print()
        print_hint(f"{rest:,} more follow from these; --json lists them all")
    if command := explanation.get("command"):
        print()
        print_hint(command_of(asking, run_id, str(command)))


def _tell_blocker(asking: Asking, run_id: str, blocker: Mapping[str, Any]) -> None:
    paint = Paint()
    place = where(blocker) or "the run"
    kind = str(blocker.get("kind", "")).replace("_", " ")
    print(f"{paint('◷', MAGENTA)} {paint(clean(place), BOLD)}  {paint(kind, DIM)}")
    print_facts(_facts(asking, run_id, blocker), indent=2)


def _facts(asking: Asking, run_id: str, blocker: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "why", _named(blocker.get("words", ""), run_id)
    for label, name in (("since", "since_ms"), ("until", "until_ms")):
        if blocker.get(name) is not None:
            yield label, f"{age(blocker[name])} ({iso(blocker[name])})"
    for name, value in blocker.items():
        if name not in _SAID | _LEFT_OUT and value not in (None, "", [], (), {}, False, -1):
            yield _label(name), _value(name, value)
    yield "look at", blocker.get("url")
    yield "unblock", _named(blocker.get("unblock", ""), run_id)
    if blocker.get("command"):
        yield "run", command_of(asking, run_id, str(blocker["command"]))


def _label(name: str) -> str:
    return name.removesuffix("_ms").replace("_", " ")


def _value(name: str, value: Any) -> str:
    if name.endswith("_ms") and isinstance(value, int):
        return f"{age(value)} ({iso(value)})"
    if isinstance(value, Mapping) and "code" in value:
        return f"{value.get('message', '')} [{value['code']}]"
    if isinstance(value, (list, tuple)) and all(isinstance(entry, str) for entry in value):
        return names(value, columns() - 20)
    return snippet(value, columns() - 20)


def _tell_cause(cause: Any, chain: Sequence[Any]) -> None:
    paint = Paint()
    if not isinstance(cause, Mapping):
        print(f"{paint('✗', RED)} {clean(str(cause))}")
        return
    error = cause.get("error") if isinstance(cause.get("error"), Mapping) else cause
    print(f"{paint('✗', RED)} {paint(clean(where(cause) or 'the run'), BOLD)}  {paint('first cause', DIM)}")
    print_facts(_cause_facts(cause, error or {}, chain), indent=2)


def _cause_facts(
    cause: Mapping[str, Any], error: Mapping[str, Any], chain: Sequence[Any]
) -> Iterator[tuple[str, Any]]:
    if "code" in error:
        yield "error", f"{error.get('message', '')} [{error['code']}]"
    else:
        yield "why", cause.get("words") or error.get("message")
    yield "hint", error.get("hint")
    yield "cause", "\n".join(map(str, error.get("causes") or ()))
    if cause.get("at_ms") is not None:
        yield "when", f"{age(cause['at_ms'])} ({iso(cause['at_ms'])})"
    if cause.get("seq"):
        yield "event", cause["seq"]
    yield "then", "\n".join(_step(step) for step in chain)


def _step(step: Any) -> str:
    if not isinstance(step, Mapping):
        return str(step)
    number = f"{step['seq']:>5}  " if step.get("seq") else ""
    said = step.get("words") or step.get("what") or step.get("type") or ""
    return " ".join(part for part in (f"{number}{where(step)}".rstrip(), str(said)) if part)


def _named(text: Any, run_id: str) -> str:
    return str(text).replace(RUN_MARK, run_id)


def command_of(asking: Asking, run_id: str, command: str) -> str:
    """A command line that an explanation gives, for this run and this store."""
    said = command.replace(RUN_MARK, run_id)
    store = asking.command().removeprefix("tidemill").strip()
    return f"{said} {store}".strip() if said.startswith("tidemill") else said
