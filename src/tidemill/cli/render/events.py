"""Events, paths, tokens, node logs and streamed parts of results, one line each.

Much of this text comes from handlers, so everything is sanitised before it reaches a terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, NamedTuple, TextIO

import msgspec

from tidemill.agents.loop import TURN_BREAK
from tidemill.cli.render.board import NOT_REACHED, RunProgress, duration
from tidemill.cli.render.progress import AgentTurns, QuietWatcher, Told
from tidemill.cli.render.runs import step_name
from tidemill.cli.render.tables import Column, dotted, error_words, iso, names, print_rows, snippet
from tidemill.cli.render.terminal import (
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    counted,
    padded,
    print_json_line,
    sanitize,
    truncate,
)
from tidemill.cli.session import StoreSession, item_or_none
from tidemill.client import Tidemill
from tidemill.engine.attempts.log_store import LogLine
from tidemill.engine.views import plain
from tidemill.errors import offered, rejected
from tidemill.kernel.events import NOT_AN_ITEM, Route
from tidemill.kernel.queries import told

TYPE_COLUMNS = 21
"""As long as the longest name of an event."""
NUMBER_COLUMNS = 4

_COMMON = frozenset({"type", "run", "seq", "v", "at_ms", "cause", "actor", "command", "node", "visit", "index"})
_MACHINERY = frozenset(
    {"counter", "consumed", "emitted", "token", "worker", "hop", "waited_ms", "dead", "dead_escapes", "parents"}
    | {"recall", "signal", "renders", "digest", "document", "trace", "size", "close", "ask", "joins"}
)
"""Fields for debugging; --json has them."""

_EVENT_COLOURS = (
    (("Failed", "Lettered", "Expired"), RED),
    (("Cancelled",), DIM),
    (("Completed", "Decided", "Closed"), GREEN),
    (("Waiting", "Requested", "Paused", "Retried", "Rewound", "Patched", "Overridden", "Discarded"), YELLOW),
    (("Run",), CYAN),
)


class EventPrinter:
    """Prints events as they arrive, with times relative to the first one."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._paint = Styler()

    def print(self, event: Mapping[str, Any]) -> None:
        """Print one event, or what was shown live, which has no number and no time."""
        kind = str(event["type"])
        said = " ".join(part for part in (where(event), about(event)) if part)
        spent = ""
        if not event.get("live"):
            at_ms = event["at_ms"]
            if self._began_ms is None:
                self._began_ms = at_ms
                print(self._paint(f"times since {iso(at_ms)}", DIM))
            spent = f"+{duration(at_ms - self._began_ms)}" if at_ms > self._began_ms else "+0 ms"
        head = f"{event.get('seq', ''):>{NUMBER_COLUMNS}}  {spent:>10}  "
        left = columns() - len(head) - max(TYPE_COLUMNS, len(kind)) - 2
        tail = f"  {truncate(sanitize(said), left)}" if said else ""
        colour = next((colour for words, colour in _EVENT_COLOURS if any(word in kind for word in words)), "")
        if (event.get("error") or {}).get("code") == NOT_REACHED:
            colour = DIM
        painted = self._paint(padded(kind, TYPE_COLUMNS) if said else kind, colour)
        print(f"{self._paint(head, DIM)}{painted}{tail}", flush=True)


def where(event: Mapping[str, Any]) -> str:
    """The activation that an event is about: `node`, `node#2` for a second visit, `node[3]` for an item."""
    node = event.get("node") or ""
    visit, index = event.get("visit") or 1, event.get("index", NOT_AN_ITEM)
    # Of items that were queued together, the first and the last are named.
    last = (event.get("until") or 0) - 1
    items = f"[{index}…{last}]" if last > index else f"[{index}]"
    return node and node + (f"#{visit}" if visit > 1 else "") + (items if index != NOT_AN_ITEM else "")


Part = Callable[[Mapping[str, Any]], str]
"""One thing to say about an event; an empty text is left out."""


def about(event: Mapping[str, Any]) -> str:
    """What else matters of an event; an event type without wording of its own shows its fields."""
    parts = _WORDS.get(event["type"])
    if parts is not None:
        said = [part(event) for part in parts]
    else:
        fields = ((name, value) for name, value in event.items() if name not in _COMMON | _MACHINERY)
        said = [f"{name} {snippet(value, 60)}" for name, value in fields if value not in (None, "", [], {}, False)]
    return dotted(*said, f"by {event['actor']}" if event.get("actor") and "by" not in event else "")


def _text(field: str) -> Part:
    return lambda event: str(event.get(field) or "")


def _steps(label: str, field: str) -> Part:
    def say(event: Mapping[str, Any]) -> str:
        found = names(step_name(key) for key in event.get(field) or ())
        return f"{label}: {found}" if found else ""

    return say


def _attempt(event: Mapping[str, Any]) -> str:
    return f"attempt {event['attempt']}" if (event.get("attempt") or 0) > 1 else ""


def _error(event: Mapping[str, Any]) -> str:
    return error_words(event["error"]) if event.get("error") else ""


def _retry(event: Mapping[str, Any]) -> str:
    at_ms = event.get("retry_at_ms")
    return f"retry in {duration(max(0, at_ms - event['at_ms']))}" if at_ms else ""


def _taken(event: Mapping[str, Any]) -> str:
    return f"→ {names(event['taken'])}" if event.get("taken") else ""


def _inputs(event: Mapping[str, Any]) -> str:
    return f"inputs {snippet(event['inputs'], 60)}" if event.get("inputs") not in (None, {}) else ""


def _output(event: Mapping[str, Any]) -> str:
    return snippet(event["output"], 60) if event.get("output") is not None else ""


def _admission(event: Mapping[str, Any]) -> str:
    """Why the visit happens, if it has a `when`."""
    return str(event["admission"]["reason"]) if event.get("admission") else ""


def _decision(event: Mapping[str, Any]) -> str:
    return told(Route(**event["route"]), event.get("taken") or ()) if event.get("route") else ""


def _until(event: Mapping[str, Any]) -> str:
    until_ms = event.get("until_ms") or event.get("expires_ms")
    return f"until {iso(until_ms)}" if until_ms else ""


def _vote(event: Mapping[str, Any]) -> str:
    default = "changes" if event["type"] == "ApprovalReturned" else "approve"
    return f"{event.get('decision') or default} by {event['by']}"


def _changes(event: Mapping[str, Any]) -> str:
    return dotted(*(f"{name} {names(event[name])}" for name in ("added", "removed", "changed") if event.get(name)))


def _blocked(event: Mapping[str, Any]) -> str:
    return f"blocked its worker's loop for {duration(event['blocked_ms'])}" if event.get("blocked_ms") else ""


_REASON = _text("reason")
_FAILED = (_attempt, _error, _retry, _taken, _blocked)
_REOPENED: tuple[Part, ...] = (lambda event: f"again: {names(each['node'] for each in event['nodes'])}", _REASON)
_DECIDED = (_vote, _text("comments"))

_WORDS: dict[str, tuple[Part, ...]] = {
    "RunCreated": (lambda event: f"{event.get('workflow', '')}@{event.get('version', '')}", _inputs),
    "RunFailed": _FAILED,
    "RunCancelled": (_REASON,),
    "RunPaused": (_REASON,),
    "RunResumed": (_REASON,),
    # A map that is retried is held too, until its items are let in, whether there is a limit or not.
    "NodeScheduled": (lambda event: "held back" if event.get("held") else "",),
    "NodeStarted": (_attempt, _admission),
    "LoopContinued": (lambda event: f"pass {event['iteration'] + 1} begins at {event['entry']}",),
    "NodeExpanded": (lambda event: counted(event["count"], "item"), _admission),
    "NodeWaiting": (lambda event: f"for {event['on']} {event.get('name') or ''}".rstrip(), _until, _decision),
    "NodeCompleted": (_taken, _decision, _output, _blocked),
    "NodeProgressed": (
        _attempt,
        lambda event: f"{event['fraction']:.0%}" if event["fraction"] is not None else "",
        lambda event: snippet(event["message"], 60) if event["message"] else "",
    ),
    "NodeStreamed": (_attempt, lambda event: f"{event['number']}: {snippet(event['value'], 60)}"),
    "NodeFailed": _FAILED,
    "NodeSkipped": (_REASON,),
    "NodeCancelled": (_REASON,),
    "NodeOverridden": (_text("status"), _output, _REASON),
    "DeadLettered": (lambda event: f"given up after {counted(event['attempts'], 'attempt')}",),
    "RunRetried": _REOPENED,
    "RunRewound": _REOPENED,
    "RunPatched": (lambda event: f"revision {event['revision']}", _changes, _text("message")),
    "ApprovalRequested": (_text("title"), lambda event: f"asks {names(event.get('approvers') or ['anyone'])}"),
    "ApprovalVoted": _DECIDED,
    "ApprovalDecided": _DECIDED,
    "ApprovalReturned": _DECIDED,
    "CompensationFailed": _FAILED,
    "RollbackStarted": (lambda event: counted(event["steps"], "step"), _steps("unknown", "unknown"), _REASON),
    "RollbackFinished": (_text("status"), _steps("not undone", "left")),
    "SignalReceived": (lambda event: f"signal {event['name']}", lambda event: snippet(event.get("payload"), 60)),
}


def print_path(steps: Sequence[Mapping[str, Any]]) -> None:
    if not steps:
        print("nothing has happened yet")
        return
    columns = (
        Column("NODE", itemgetter("node"), gives=True),
        Column("VISIT", itemgetter("visit"), number=True),
        Column("STATUS", itemgetter("status"), status=True),
        Column("WENT", lambda step: _went(step.get("went")), gives=True),
    )
    print_rows(columns, steps, lambda step: step.get("why", ""))


def _went(went: Any) -> str:
    if not went:
        return ""
    return f"→ {went}" if isinstance(went, str) else f"→ {names(went, 200)}"


def print_tokens(tokens: Sequence[Mapping[str, Any]]) -> None:
    """Print the tokens in flight: which edge each took, and how many edges it has passed."""
    columns = (
        Column("FROM", lambda token: token.get("from") or "(start)", gives=True),
        Column("TO", itemgetter("to"), gives=True),
        Column("VISIT", itemgetter("visit"), number=True),
        Column("HOP", lambda token: token.get("hop", ""), number=True),
    )
    if tokens:
        print_rows(columns, tokens)
    else:
        print("no token is in flight")


LABEL_COLUMNS_MAX = 24
_OVER = frozenset({"NodeCompleted", "NodeFailed", "NodeCancelled"})
_LEVEL_COLOURS = {"warning": YELLOW, "error": RED, "critical": RED, "traceback": RED}


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    node: str | None
    visit: int | None
    item: int | None
    attempt: int | None
    follow: bool
    timestamps: bool


def print_logs(session: StoreSession, wanted: LogFilter) -> int:
    """Print what handlers logged, and with `follow` continue until the run ends."""
    printer = LogPrinter(wanted)
    narrowed = {"visit": wanted.visit, "index": wanted.item, "attempt": wanted.attempt}

    def follow(mill: Tidemill) -> None:
        for line in mill.follow_logs(wanted.run, wanted.node, **narrowed):
            if session.as_json:
                print_json_line(_as_plain(line))
            else:
                printer.print(line)

    def show(output: LogOutput) -> None:
        for line in output.lines:
            printer.print(line)
        if not output.lines:
            print("nothing was printed or logged")

    if wanted.follow:
        return session.stream(follow)
    return session.ask_and_print(lambda mill: LogOutput(mill.logs(wanted.run, wanted.node, **narrowed)), show)


class LogOutput(NamedTuple):
    lines: list[LogLine]

    def to_dict(self) -> dict[str, Any]:
        return {"lines": [_as_plain(line) for line in self.lines]}


def _as_plain(line: LogLine) -> dict[str, Any]:
    return {**plain(line), "index": item_or_none(line.index)}


class LogPrinter:
    """Prints lines; where those of several activations may come, each says whose it is."""

    def __init__(self, wanted: LogFilter) -> None:
        self._wanted, self._paint = wanted, Styler()

    def print(self, line: LogLine) -> None:
        moment = datetime.fromtimestamp(line.at_ms / 1_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        at = f"{moment}.{line.at_ms % 1_000:03d}Z  " if self._wanted.timestamps else ""
        label = where({"node": line.node, "visit": line.visit, "index": line.index})
        if self._wanted.node is not None:
            label = "undo" if line.undo else ""
        elif line.undo:
            label = f"undo {label}"
        label += f":{line.attempt}" if label and line.attempt > 1 else ""
        label = sanitize(label if len(label) <= LABEL_COLUMNS_MAX else label[: LABEL_COLUMNS_MAX - 1] + "…")
        label = f"{label:<12}  " if label else ""
        text = self._paint(sanitize(line.text), _LEVEL_COLOURS.get(line.source, ""))
        print(f"{self._paint(at, DIM)}{self._paint(label, DIM)}{text}".rstrip(), flush=True)


class StreamPrinter(QuietWatcher):
    """Watches a run, and prints the parts of one node's results as they come: texts as they are, others as JSON.

    Turns of an agent are kept apart: each ends its line, and its header and its calls go to standard error.
    """

    def __init__(self, board: RunProgress, node: str, out: TextIO) -> None:
        super().__init__(board)
        if node not in board.rows:
            message = f"{board.name} has no node {node} whose parts could be printed"
            raise rejected("node_unknown", message, hint=offered(node, board.rows))
        self._node, self._out = node, out
        self._number, self._unfinished = 0, False
        self._turns, self._paint = AgentTurns(), Styler(sys.stderr)
        self._agents = board.agents
        self._said = ""
        """What the agent has said in this turn, as far as it is printed."""
        self._late = ""
        """What is printed already, because its record came before its parts."""

    def see(self, event: Mapping[str, Any]) -> None:
        """Print a part, or end the line when the turn or the attempt is over."""
        super().see(event)
        if event.get("node") != self._node:
            return
        if event["type"] == "NodeStreamed":
            self._print(event)
        elif event["type"] == "NodeAppended":
            self._see_record(event)
        elif event["type"] in _OVER:
            self._number, self._late = 0, ""
            self._end_line()

    def skip(self, event: Mapping[str, Any]) -> None:
        super().skip(event)
        if event.get("node") == self._node:
            self._turns.see(event)

    def _print(self, event: Mapping[str, Any]) -> None:
        number, value = event["number"], event["value"]
        if self._node in self._agents and isinstance(value, str):
            self._number = number
            self._say_part(event, value)
            return
        if number > self._number + 1:
            self._end_line()
            self.say(f"{number - self._number - 1} parts were missed here; the stored result is complete")
        self._number = number
        self._write(sanitize(value) if isinstance(value, str) else msgspec.json.encode(value).decode() + "\n")

    def _say_part(self, event: Mapping[str, Any], part: str) -> None:
        """Print a part of what an agent says, unless its record has come before it."""
        if self._late:
            known = min(len(self._late), len(part))
            if self._late[:known] == part[:known]:
                self._late, part = self._late[known:], part[known:]
        if part and part != TURN_BREAK:
            self._header(event)
            self._said += part
            self._write(sanitize(part))

    def _see_record(self, event: Mapping[str, Any]) -> None:
        record = event["value"] if isinstance(event["value"], dict) else {}
        if record.get("t") == "reply":
            text = record["text"]
            rest = text[len(self._said) :] if text.startswith(self._said) else ""
            self._header(event)
            self._write(sanitize(rest))
            self._late += rest
        if record.get("t") in ("reply", "failed"):
            self._said = ""
        self._end_line()
        self._tell(self._turns.see(event, text=False))

    def _header(self, event: Mapping[str, Any]) -> None:
        if not self._said:
            self._end_line()
            self._tell([self._turns.header(event)])

    def _tell(self, told: Iterable[Told]) -> None:
        for text, style in told:
            print(self._paint(text, style), file=sys.stderr, flush=True)

    def _write(self, text: str) -> None:
        self._out.write(text)
        self._out.flush()
        self._unfinished = not text.endswith("\n") if text else self._unfinished

    def _end_line(self) -> None:
        if self._unfinished:
            self._write("\n")
