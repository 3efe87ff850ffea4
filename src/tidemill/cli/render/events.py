"""Events, paths, tokens, node logs and streamed parts of results, one line each.

Much of this text comes from handlers, so everything is sanitised before it reaches a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec

from tidemill.cli.render.board import RunProgress, duration
from tidemill.cli.render.progress import Silence
from tidemill.cli.render.runs import step_name
from tidemill.cli.render.tables import Column, Line, iso, names, print_table, snippet
from tidemill.cli.render.terminal import (
    CYAN,
    DIM,
    GREEN,
    RED,
    YELLOW,
    Styler,
    columns,
    padded,
    print_json_line,
    sanitize,
    truncate,
)
from tidemill.cli.session import StoreSession, item_or_none, plain
from tidemill.client import Tidemill
from tidemill.engine.services.inspection import LogLine
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
"""Fields that only a debugger asks for; --json has them."""

_EVENT_COLOURS = (
    (("Failed", "Lettered", "Cancelled", "Expired"), RED),
    (("Completed", "Decided", "Closed"), GREEN),
    (("Waiting", "Requested", "Paused", "Retried", "Rewound", "Patched", "Overridden", "Discarded"), YELLOW),
    (("Run",), CYAN),
)


class EventPrinter:
    """Prints events as they come; times are told from the first one on."""

    def __init__(self) -> None:
        self._began_ms: int | None = None
        self._paint = Styler()

    def print(self, event: Mapping[str, Any]) -> None:
        """Print one event, or what was shown live, which has no number and no time."""
        kind = str(event["type"])
        said = " ".join(part for part in (where(event), about(event)) if part)
        spent = "" if event.get("live") else self._spent(event["at_ms"])
        head = f"{event.get('seq', ''):>{NUMBER_COLUMNS}}  {spent:>10}  "
        left = columns() - len(head) - max(TYPE_COLUMNS, len(kind)) - 2
        tail = f"  {truncate(sanitize(said), left)}" if said else ""
        colour = next((colour for words, colour in _EVENT_COLOURS if any(word in kind for word in words)), "")
        painted = self._paint(padded(kind, TYPE_COLUMNS) if said else kind, colour)
        print(f"{self._paint(head, DIM)}{painted}{tail}", flush=True)

    def _spent(self, at_ms: int) -> str:
        if self._began_ms is None:
            self._began_ms = at_ms
            print(self._paint(f"times since {iso(at_ms)}", DIM))
        return f"+{duration(max(0, at_ms - self._began_ms))}" if at_ms > self._began_ms else "+0 ms"


def where(event: Mapping[str, Any]) -> str:
    """The activation that an event is about: `node`, `node#2` for a second visit, `node[3]` for an item."""
    node = event.get("node") or ""
    visit, index = event.get("visit") or 1, event.get("index", NOT_AN_ITEM)
    if not node:
        return ""
    return node + (f"#{visit}" if visit > 1 else "") + (f"[{_items(event, index)}]" if index != NOT_AN_ITEM else "")


def _items(event: Mapping[str, Any], index: int) -> str:
    """An item, or the first and the last of those that were queued together."""
    last = (event.get("until") or 0) - 1
    return f"{index}…{last}" if last > index else str(index)


def about(event: Mapping[str, Any]) -> str:
    """What else matters of an event, in words where there are any."""
    words = _WORDS.get(event["type"])
    said = list(words(event) if words is not None else _anything(event))
    if event.get("actor") and "by" not in event:
        said.append(f"by {event['actor']}")
    return " · ".join(part for part in said if part)


def _anything(event: Mapping[str, Any]) -> Iterator[str]:
    """The fields of an event type without wording of its own."""
    for name, value in event.items():
        if name not in _COMMON | _MACHINERY and value not in (None, "", [], {}, False):
            yield f"{name} {snippet(value, 60)}"


def _attempt(event: Mapping[str, Any]) -> str:
    return f"attempt {event['attempt']}" if (event.get("attempt") or 0) > 1 else ""


def _error(event: Mapping[str, Any]) -> str:
    error = event.get("error") or {}
    return f"{error.get('message', '')} [{error.get('code', '')}]" if error else ""


def _taken(event: Mapping[str, Any]) -> str:
    return f"→ {names(event['taken'])}" if event.get("taken") else ""


def _created(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"{event.get('workflow', '')}@{event.get('version', '')}"
    yield f"inputs {snippet(event['inputs'], 60)}" if event.get("inputs") not in (None, {}) else ""


def _scheduled(event: Mapping[str, Any]) -> Iterator[str]:
    # A map that is retried is held too, until its items are let in, whether there is a limit or not.
    yield "held back" if event.get("held") else ""


def _started(event: Mapping[str, Any]) -> Iterator[str]:
    yield _attempt(event)
    yield _admission(event)


def _admission(event: Mapping[str, Any]) -> str:
    """Why the visit happens, if it has a `when`."""
    return str(event["admission"]["reason"]) if event.get("admission") else ""


def _streamed(event: Mapping[str, Any]) -> Iterator[str]:
    yield _attempt(event)
    yield f"{event['number']}: {snippet(event['value'], 60)}"


def _progressed(event: Mapping[str, Any]) -> Iterator[str]:
    yield _attempt(event)
    yield f"{event['fraction']:.0%}" if event["fraction"] is not None else ""
    yield snippet(event["message"], 60) if event["message"] else ""


def _completed(event: Mapping[str, Any]) -> Iterator[str]:
    yield _taken(event)
    yield _decision(event)
    yield snippet(event["output"], 60) if event.get("output") is not None else ""


def _decision(event: Mapping[str, Any]) -> str:
    return told(Route(**event["route"]), event.get("taken") or ()) if event.get("route") else ""


def _failed(event: Mapping[str, Any]) -> Iterator[str]:
    yield _attempt(event)
    yield _error(event)
    if event.get("retry_at_ms"):
        yield f"again in {duration(max(0, event['retry_at_ms'] - event['at_ms']))}"
    yield _taken(event)


def _waiting(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"for {event['on']}" + (f" {event['name']}" if event.get("name") else "")
    until = event.get("until_ms") or event.get("expires_ms")
    yield f"until {iso(until)}" if until else ""
    yield _decision(event)


def _requested(event: Mapping[str, Any]) -> Iterator[str]:
    yield str(event["title"])
    yield f"asks {names(event.get('approvers') or ['anyone'])}"


def _reasoned(event: Mapping[str, Any]) -> Iterator[str]:
    yield str(event.get("reason") or "")


def _lettered(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"given up after {event['attempts']} attempt{'s' if event['attempts'] != 1 else ''}"


def _reopened(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"again: {names(reopened.node for reopened in event['nodes'])}"
    yield from _reasoned(event)


def _patched(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"revision {event['revision']}"
    for name in ("added", "removed", "changed"):
        if event.get(name):
            yield f"{name} {names(event[name])}"
    yield str(event.get("message") or "")


def _rolled_back(event: Mapping[str, Any]) -> Iterator[str]:
    yield str(event["status"])
    left = names(step_name(key) for key in event.get("left") or ())
    yield f"not undone: {left}" if left else ""


def _rolling_back(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"{event['steps']:,} step{'s' if event['steps'] != 1 else ''}"
    unknown = names(step_name(key) for key in event.get("unknown") or ())
    yield f"unknown: {unknown}" if unknown else ""
    yield from _reasoned(event)


def _decided(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"{event.get('decision') or 'changes' * (event['type'] == 'ApprovalReturned') or 'approve'} by {event['by']}"
    yield str(event.get("comments") or "")


def _overridden(event: Mapping[str, Any]) -> Iterator[str]:
    yield str(event["status"])
    yield snippet(event["output"], 60) if event.get("output") is not None else ""
    yield from _reasoned(event)


def _signalled(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"signal {event['name']}"
    yield snippet(event.get("payload"), 60)


def _continued(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"pass {event['iteration'] + 1} begins at {event['entry']}"


def _expanded(event: Mapping[str, Any]) -> Iterator[str]:
    yield f"{event['count']:,} items"
    yield _admission(event)


_WORDS: dict[str, Callable[[Mapping[str, Any]], Iterator[str]]] = {
    "RunCreated": _created,
    "RunFailed": _failed,
    "RunCancelled": _reasoned,
    "RunPaused": _reasoned,
    "RunResumed": _reasoned,
    "NodeScheduled": _scheduled,
    "NodeStarted": _started,
    "LoopContinued": _continued,
    "NodeExpanded": _expanded,
    "NodeWaiting": _waiting,
    "NodeCompleted": _completed,
    "NodeProgressed": _progressed,
    "NodeStreamed": _streamed,
    "NodeFailed": _failed,
    "NodeSkipped": _reasoned,
    "NodeCancelled": _reasoned,
    "NodeOverridden": _overridden,
    "DeadLettered": _lettered,
    "RunRetried": _reopened,
    "RunRewound": _reopened,
    "RunPatched": _patched,
    "ApprovalRequested": _requested,
    "ApprovalVoted": _decided,
    "ApprovalDecided": _decided,
    "ApprovalReturned": _decided,
    "CompensationFailed": _failed,
    "RollbackStarted": _rolling_back,
    "RollbackFinished": _rolled_back,
    "SignalReceived": _signalled,
}


def print_path(steps: Sequence[Mapping[str, Any]]) -> None:
    """Print the visits of a run in the order in which they ended, with why they ended like that."""
    if not steps:
        print("nothing has happened yet")
        return
    heads = (Column("NODE", gives=True), Column("VISIT", number=True), Column("STATUS", status=True))
    lines = (
        Line((step["node"], str(step["visit"]), step["status"], _went(step.get("went"))), step.get("why", ""))
        for step in steps
    )
    print_table((*heads, Column("WENT", gives=True)), lines)


def _went(went: Any) -> str:
    if not went:
        return ""
    return f"→ {went}" if isinstance(went, str) else f"→ {names(went, 200)}"


def print_tokens(tokens: Iterable[Mapping[str, Any]]) -> None:
    """Print the tokens that are under way: which edge each took, and how many edges lay behind it."""
    heads = (Column("FROM", gives=True), Column("TO", gives=True), Column("VISIT", number=True))
    lines = [
        Line((str(each.get("from") or "(start)"), each["to"], str(each["visit"]), str(each.get("hop", ""))))
        for each in tokens
    ]
    if lines:
        print_table((*heads, Column("HOP", number=True)), lines)
    else:
        print("no token is under way")


LABEL_COLUMNS_MAX = 24
_OVER = frozenset({"NodeCompleted", "NodeFailed", "NodeCancelled"})
_LEVEL_COLOURS = {"warning": YELLOW, "error": RED, "critical": RED}


class LogFilter(msgspec.Struct, frozen=True, kw_only=True):
    run: str
    node: str | None
    visit: int | None
    item: int | None
    attempt: int | None
    follow: bool
    timestamps: bool


def print_logs(session: StoreSession, wanted: LogFilter) -> int:
    """Print what handlers have said, and go on until the run ends if that is asked for."""
    if wanted.follow:
        return session.stream(lambda mill: _follow(mill, session, wanted))
    return session.ask_and_print(
        lambda mill: LogOutput(mill.logs(wanted.run, wanted.node, **_narrowed(wanted))), _told(wanted)
    )


class LogOutput:
    def __init__(self, lines: list[LogLine]) -> None:
        self.lines = lines

    def to_dict(self) -> dict[str, Any]:
        return {"lines": [_as_plain(line) for line in self.lines]}


def _narrowed(wanted: LogFilter) -> dict[str, int | None]:
    return {"visit": wanted.visit, "index": wanted.item, "attempt": wanted.attempt}


def _as_plain(line: LogLine) -> dict[str, Any]:
    return {**plain(line), "index": item_or_none(line.index)}


def _told(wanted: LogFilter) -> Callable[[LogOutput], None]:
    def show(said: LogOutput) -> None:
        printer = LogPrinter(wanted)
        for line in said.lines:
            printer.print(line)
        if not said.lines:
            print("nothing was printed or logged")

    return show


def _follow(mill: Tidemill, session: StoreSession, wanted: LogFilter) -> None:
    printer = LogPrinter(wanted)
    for line in mill.follow_logs(wanted.run, wanted.node, **_narrowed(wanted)):
        if session.as_json:
            print_json_line(_as_plain(line))
        else:
            printer.print(line)


class LogPrinter:
    """Prints lines; where those of several activations may come, each says whose it is."""

    def __init__(self, wanted: LogFilter) -> None:
        self._wanted, self._paint = wanted, Styler()

    def print(self, line: LogLine) -> None:
        at = f"{_to_the_millisecond(line.at_ms)}  " if self._wanted.timestamps else ""
        label = "" if self._wanted.node is not None else f"{_label(line):<12}  "
        text = self._paint(sanitize(line.text), _LEVEL_COLOURS.get(line.source, ""))
        print(f"{self._paint(at, DIM)}{self._paint(label, DIM)}{text}".rstrip(), flush=True)


def _label(line: LogLine) -> str:
    """`node`, `node#2` for a second visit, `node[3]` for an item, `node:2` for a second attempt."""
    place = where({"node": line.node, "visit": line.visit, "index": line.index})
    label = place if line.attempt == 1 else f"{place}:{line.attempt}"
    return sanitize(label if len(label) <= LABEL_COLUMNS_MAX else label[: LABEL_COLUMNS_MAX - 1] + "…")


def _to_the_millisecond(at_ms: int) -> str:
    moment = datetime.fromtimestamp(at_ms / 1_000, UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.") + f"{at_ms % 1_000:03d}Z"


class StreamPrinter(Silence):
    """Watches a run, and prints the parts of one node's results as they come: texts as they are, others as JSON."""

    def __init__(self, board: RunProgress, node: str, out: TextIO) -> None:
        super().__init__(board)
        if node not in board.rows:
            message = f"{board.name} has no node {node} whose parts could be printed"
            raise rejected("node_unknown", message, hint=offered(node, board.rows))
        self._node, self._out = node, out
        self._number, self._unfinished = 0, False

    def see(self, event: Mapping[str, Any]) -> None:
        """Print a part, or end the line when the attempt is over."""
        super().see(event)
        if event.get("node") != self._node:
            return
        if event["type"] == "NodeStreamed":
            self._print(event["number"], event["value"])
        elif event["type"] in _OVER:
            self._number = 0
            self._end_line()

    def _print(self, number: int, value: Any) -> None:
        if number > self._number + 1:
            self._end_line()
            self.say(f"{number - self._number - 1} parts were missed here; the whole result is kept")
        self._number = number
        text = sanitize(value) if isinstance(value, str) else msgspec.json.encode(value).decode() + "\n"
        self._out.write(text)
        self._out.flush()
        self._unfinished = bool(text) and not text.endswith("\n")

    def _end_line(self) -> None:
        if self._unfinished:
            self._out.write("\n")
            self._out.flush()
            self._unfinished = False
