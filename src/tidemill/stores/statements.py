"""User SQL: the text of a statement, and statements in the transaction of a commit as far as all stores agree.

A statement is first run dry (executed and rolled back), so that its answer can be recorded as a fact. When the commit
of that fact executes it again, the answer must be the same, else nothing is written. Dry runs happen concurrently until
one of them conflicted; from then on each waits for the commits of the earlier ones, as long as any waits.

Scanning the text of a statement takes linear time, because any author of a workflow can write it.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import msgspec

from tidemill.errors import Rejected, rejected

ROWS_MAX = 10_000
ANSWER_BYTES_MAX = 1_048_576
CONFLICT = "its result differs from that of the dry run: another statement was committed in between"
NONDETERMINISTIC = "its result differs each time: pass random values and the time as parameters"
PATIENCE_SECONDS = 0.2
"""How long to wait for the commit of a dry run: its caller may have been cancelled."""


class StatementSerializer:
    """Orders the dry runs of one process, all in one loop."""

    def __init__(self) -> None:
        self.serialized = False
        self._undecided = 0
        """Dry runs whose commit is not decided yet."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    async def turn(self) -> None:
        """Wait until a dry run may start."""
        if not self.serialized:
            self._undecided += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._admit_waiting()
        await turn

    def decided(self, count: int = 1) -> None:
        """Note that dry runs were committed, or will be repeated."""
        self._undecided = max(0, self._undecided - count)
        self._admit_waiting()

    def _admit_waiting(self) -> None:
        while self._waiting and not self._undecided:
            turn = self._waiting.popleft()
            if not turn.done():
                self._undecided += 1
                turn.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(PATIENCE_SECONDS, lambda: self.decided(self._undecided))
        elif not self._undecided:
            self.serialized = False


def refusal(message: str, hint: str = "") -> Rejected:
    return rejected("statement_refused", message, hint=hint)


class AnswerRows:
    """The rows of an answer; refused as soon as they are too many or too large."""

    def __init__(self) -> None:
        self.rows: list[Sequence[Any]] = []
        self._size = 0

    def add(self, row: Sequence[Any]) -> None:
        self.rows.append(row)
        self._size += sum(len(value) if isinstance(value, (str, bytes)) else 8 for value in row)
        if len(self.rows) > ROWS_MAX or self._size > ANSWER_BYTES_MAX:
            message = f"it returns more than {ROWS_MAX} rows or {ANSWER_BYTES_MAX} bytes"
            raise refusal(message, "ask for less, with WHERE or LIMIT")


def table_refusal(table: str, owner: str | None, workflow: str) -> str:
    """Why a table is not the statement's, with the operator's line that would grant it."""
    grant = f'`{table} = ["{workflow}"]` under `[sql.tables]`'
    whose = "was not created by a workflow" if owner is None else f"belongs to the workflow {owner}"
    return f"the table {table} {whose}; the operator grants it in tidemill.toml: {grant}"


def answer_of(columns: tuple[str, ...], rows: Sequence[Sequence[Any]], changed: int, hex_as: str = "hex({})") -> bytes:
    if len(set(columns)) < len(columns):
        raise refusal("two columns have one name: rename one of them with AS")
    for row in rows:
        for name, value in zip(columns, row, strict=True):
            if isinstance(value, float) and not math.isfinite(value):
                raise refusal(f"the column {name} holds a number that JSON cannot represent")
            if isinstance(value, bytes):
                raise refusal(f"the column {name} holds bytes: ask for {hex_as.format(name)}")
    found = [dict(zip(columns, row, strict=True)) for row in rows]
    answer = msgspec.json.encode({"rows": found, "count": len(found), "changed": changed})
    if len(answer) > ANSWER_BYTES_MAX:
        raise refusal(f"its result has more than {ANSWER_BYTES_MAX} bytes")
    return answer


def to_json(value: Any) -> Any:
    """Convert a value of a database; the documentation of the node type has the table."""
    match value:
        case None | bool() | int() | float() | str() | dict() | bytes():
            return value
        case Decimal():
            # Whole numbers stay exact; others become the nearest double.
            exponent = value.as_tuple().exponent
            return int(value) if isinstance(exponent, int) and exponent >= 0 else float(value)
        case datetime():
            moment = value if value.tzinfo is None else value.astimezone(UTC)
            return moment.isoformat().replace("+00:00", "Z")
        case date() | time():
            return value.isoformat()
        case list():
            return [to_json(each) for each in value]
        case _:
            return str(value)


# The text of a statement: its strings, comments, parameters and end

Dialect = Literal["sqlite", "postgresql"]

_QUOTED = r"""'[^']*(?:'|\Z)|"[^"]*(?:"|\Z)"""
_TOKENS: Mapping[Dialect, re.Pattern[str]] = {
    "sqlite": re.compile(
        rf"(?P<comment>--[^\n]*|/\*.*?(?:\*/|\Z))|(?P<quoted>{_QUOTED}|`[^`]*(?:`|\Z)|\[[^\]]*(?:\]|\Z))|(?P<end>;)",
        re.DOTALL,
    ),
    "postgresql": re.compile(
        r"(?P<comment>--[^\n]*)|(?P<nested>/\*)"
        rf"|(?P<quoted>(?<![\w$])[eE]'(?:[^'\\]|\\.)*(?:'|\Z)|{_QUOTED})"
        r"|(?P<dollars>(?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?(?:\$(?P=tag)\$|\Z))"
        r"|(?P<cast>::)|(?<!\w):(?P<name>[^\W\d]\w*)|(?P<mark>\?)|(?P<end>;)",
        re.DOTALL,
    ),
}
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_COPY = re.compile(r"(?>\s|;|--[^\n]*\n|(?>/\*.*?\*/))*+COPY\b", re.IGNORECASE | re.DOTALL)
_COMPOUND = re.compile(
    r"(?>\s|--[^\n]*\n|(?>/\*.*?\*/))*+CREATE\s+(?:OR\s+REPLACE\s+)?(?:(?:TEMP|TEMPORARY|CONSTRAINT)\s+)?"
    r"(?:TRIGGER|FUNCTION|PROCEDURE|RULE)\b",
    re.IGNORECASE | re.DOTALL,
)
"""Statements that contain statements; only the database knows where they end."""


class Token(NamedTuple):
    kind: str
    start: int
    stop: int
    name: str | None = None


def is_several(text: str, dialect: Dialect) -> bool:
    if _COMPOUND.match(text):
        return False
    ended = False
    for kind, holds_sql in _pieces(text, dialect):
        if ended and holds_sql:
            return True
        ended = ended or kind == "end"
    return False


def is_nothing(text: str, dialect: Dialect) -> bool:
    """Whether a text holds no statement, only comments and semicolons."""
    return not any(holds_sql for _, holds_sql in _pieces(text, dialect))


def _pieces(text: str, dialect: Dialect) -> Iterator[tuple[str, bool]]:
    """For each token, and the rest, its kind and whether it or the text before it is part of a statement."""
    position = 0
    for token in tokens(text, dialect):
        between = text[position : token.start].strip()
        yield token.kind, bool(between) or token.kind not in ("comment", "nested", "end")
        position = token.stop
    yield "", bool(text[position:].strip())


def is_copy(text: str) -> bool:
    """Whether a statement is PostgreSQL's COPY, which uses a protocol of its own."""
    return _COPY.match(text) is not None


def with_placeholders(text: str, parameters: list[Any] | dict[str, Any]) -> str:
    """Replace `?` or, with named parameters, `:name` by placeholders of the PostgreSQL driver. Raises KeyError."""
    named = isinstance(parameters, dict)
    parts: list[str] = []
    position = 0
    for token in tokens(text, "postgresql"):
        if named and token.kind == "name":
            name = token.name or ""
            if name not in parameters:
                raise KeyError(name)
            placeholder = f"%({name})s"
        elif not named and token.kind == "mark":
            placeholder = "%s"
        else:
            continue
        parts += (_literal(text[position : token.start]), placeholder)
        position = token.stop
    return "".join([*parts, _literal(text[position:])])


def _literal(text: str) -> str:
    return text.replace("%", "%%")


def tokens(text: str, dialect: Dialect) -> Iterator[Token]:
    """Strings, comments, parameters and semicolons, in order."""
    position = 0
    while found := _TOKENS[dialect].search(text, position):
        kind = found.lastgroup or ""
        position = _comment_end(text, found.start()) if kind == "nested" else found.end()
        yield Token(kind, found.start(), position, found["name"] if kind == "name" else None)


def _comment_end(text: str, start: int) -> int:
    """The end of a comment that may contain comments."""
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, start):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return len(text)
