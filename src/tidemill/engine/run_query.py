"""The query language of runs: `status:failed workflow:billing label.customer=acme waiting:approval started>-2h`.

A query is a list of conditions with spaces between them, and a run has to meet all of them. `read_query` takes text, a
list of conditions, and the keyword arguments of `find`; it returns exact terms and bounds on the time of the start.
Whatever it does not know is refused, every problem at once: a mistyped word must not read as "no such run".
How terms and bounds are looked up is not the business of this module; `summarise` counts what was found.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import msgspec

from tidemill.engine.index_rows import WAITS, RunRow
from tidemill.engine.versions import is_name
from tidemill.engine.views import RunStatus
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.stores.contract import Row

QUERY_LENGTH_MAX = 10_000
CONDITIONS_MAX = 100
PATH = "/query"

Moment = str | datetime | timedelta
"""A time for `since` and `until`: `"2h"` ago, an ISO date, or Python's own types."""

STATUSES = {status.lower(): status.value for status in RunStatus}
_CHOICES: Mapping[str, Mapping[str, str]] = {
    "status": STATUSES,
    "waiting": {name: name for name in WAITS.values()} | WAITS,
    "rollback": {name: name for name in ("running", "done", "partial")},
}
"""Fields with few values, as they are written and as they are looked up."""
_TEXTS = ("workflow", "version", "by", "parent", "root", "forked_from", "failure")
OF_RUNS = ("parent", "root", "forked_from")
"""Fields that name another run."""
_DAYS = ("ended", "retire")
"""Terms of retention: the day of the end, counted from 1970."""
TOP = "top"
FLAGS = ("live", "active", "waiting", "stuck", "idle", "suspect", "kept", TOP)
FIELDS = (
    "status", "workflow", "version", "label", "waiting", "by", "parent", "root", "forked_from", "rollback", "failure",
)  # fmt: skip
_SYNONYMS = {
    "state": "status:",
    "name": "workflow:",
    "flow": "workflow:",
    "user": "by:",
    "submitted_by": "by:",
    "labels": "label.KEY=",
    "tag": "label.KEY=",
    "fingerprint": "failure:",
}
"""What people write first, and what is meant."""
_BY_CODE = "runs are not found by error code: `tidemill runs failures` lists codes, each with its failure:…"
_TIMES = {"created": "started>-2h", "since": "started>-2h", "until": "started<-2h", "age": "started<-2h"}

_QUOTE = '"'
_CONDITION = re.compile(r'(?:[^\s"]|"(?:[^"\\]|\\.)*"?)+', re.DOTALL)
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\])')
_NEGATED = re.compile(r"([\w.:-]+)!=(.*)", re.DOTALL)
_COMPARISON = re.compile(r"(\w+)(>=|<=|>|<)(.*)", re.DOTALL)
_ASSIGNMENT = re.compile(r"(\w+)[:=](.*)", re.DOTALL)
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(s|m|min|h|d|w)")
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_AGO_HINT = "write -2h (s, m, h, d, w), 2026-03-01 or 2026-03-01T08:30Z; without a zone it is UTC"


class RunQuery(msgspec.Struct, frozen=True, kw_only=True):
    terms: tuple[str, ...] = ()
    """A run has all of them."""
    since_ms: int | None = None
    """Started at this time or later."""
    before_ms: int | None = None
    """Started before this time."""
    top: bool = False
    """No other run has started it. No term says so, hence rows are looked through."""

    def accepts(self, row: Row) -> bool:
        """Whether a row with all terms, within the bounds, is wanted."""
        return not (self.top and any(term.startswith("parent:") for term in row.terms))


def read_query(
    query: str | Iterable[str] = "",
    *,
    terms: Iterable[str] = (),
    named: Mapping[str, str | None] = {},
    label: str | Mapping[str, str] | None = None,
    since: Moment | None = None,
    until: Moment | None = None,
    now_ms: int,
) -> RunQuery:
    """Read a query: text, or a list of single conditions, and fields that are given by name. Raises Rejected."""
    reader = _Reader(now_ms)
    for condition, path in (*_conditions(query, reader), *_conditions(list(terms), reader)):
        reader.add(condition, path)
    for name, value in named.items():
        if value is not None:
            value = workflow_name(value) if name == "workflow" else value
            reader.add_field(name, value, f"/{name}")
    reader.add_labels(label)
    if since is not None:
        reader.add_bound(">=", since, "/since")
    if until is not None:
        reader.add_bound("<", until, "/until")
    return reader.finish()


def workflow_name(workflow: Any) -> Any:
    """The name of a workflow that was written in Python; any other value as it is."""
    name = getattr(workflow, "name", None)
    return name if callable(workflow) and isinstance(name, str) else workflow


def quoted(condition: str) -> str:
    """A single condition as it stands in the text of a query."""
    if '"' not in condition and not any(character.isspace() for character in condition):
        return condition
    return '"' + condition.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _unquoted(condition: str) -> str:
    return _QUOTED.sub(lambda match: _ESCAPED.sub(r"\1", match[1]), condition)


def _conditions(query: Any, reader: _Reader) -> Iterable[tuple[str, str]]:
    """The single conditions of a query, each with its place: the column in a text, the position in a list."""
    if query is None:
        return []
    if isinstance(query, str):
        if len(query) > QUERY_LENGTH_MAX:
            reader.problem("query_invalid", PATH, f"a query has at most {QUERY_LENGTH_MAX} characters")
            return []
        found = list(_CONDITION.finditer(query))
        for match in found:
            if _QUOTE in (left := _QUOTED.sub(lambda closed: " " * len(closed[0]), match.group())):
                path = f"{PATH}:{match.start() + left.index(_QUOTE) + 1}"
                reader.problem("query_invalid", path, "a quote is opened and not closed", 'write "two words"')
        return [(_unquoted(match.group()), f"{PATH}:{match.start() + 1}") for match in found]
    if isinstance(query, bytes) or not isinstance(query, Iterable):
        reader.problem("query_invalid", PATH, f"a query is text, or a list of conditions, not {type(query).__name__}")
        return []
    return [(each, f"/terms/{number}") for number, each in enumerate(query)]


class _Reader:
    """Collects terms and bounds, and everything that is wrong."""

    def __init__(self, now_ms: int) -> None:
        self._now_ms = now_ms
        self._terms: dict[str, None] = {}
        self._asked: dict[str, str] = {}
        """The value of every field of which a run has one."""
        self._since: int | None = None
        self._before: int | None = None
        self._problems: list[Problem] = []

    def problem(self, code: str, path: str, message: str, hint: str = "") -> None:
        self._problems.append(Problem(code=code, path=path, message=message, hint=hint))

    def finish(self) -> RunQuery:
        if len(self._terms) > CONDITIONS_MAX:
            self.problem("query_invalid", PATH, f"a query has at most {CONDITIONS_MAX} conditions")
        if self._problems:
            raise Rejected(self._problems)
        terms = tuple(term for term in self._terms if term != TOP)
        return RunQuery(terms=terms, since_ms=self._since, before_ms=self._before, top=TOP in self._terms)

    def add(self, condition: Any, path: str) -> None:
        if not isinstance(condition, str):
            message = f"a condition is text, not {type(condition).__name__}"
            self.problem("query_invalid", path, message, "write status:failed")
        elif negated := _NEGATED.fullmatch(condition):
            hint = f"ask for the values that are meant, one query for each: {negated[1]}=VALUE"
            self.problem("query_term_unknown", path, f"there is no `!=` in `{_short(condition)}`", hint)
        elif condition.startswith(("label.", "label:")):
            key, mark, value = condition[len("label.") :].partition("=")
            if not mark and ":" in key:
                key, mark, value = key.partition(":")
            if not mark or not key:
                hint = f"write label.{key or 'KEY'}=VALUE"
                self.problem("query_value_invalid", path, f"`{_short(condition)}` has no label value", hint)
            else:
                self.add_label(key, self._as_meant(f"label.{key}=", value, path), path)
        elif compared := _COMPARISON.fullmatch(condition):
            name, operator, value = compared.groups()
            if name == "started":
                self.add_bound(operator, value, path, ago="-")
            else:
                message = f"`{_short(name)}` cannot be compared: only the time of the start can"
                self.problem("query_term_unknown", path, message, "write started>-2h")
        elif assigned := _ASSIGNMENT.fullmatch(condition):
            self.add_field(assigned[1], self._as_meant(f"{assigned[1]}:", assigned[2], path), path)
        elif condition in FLAGS:
            self._terms[condition] = None
        elif condition == "started":
            hint = "write started>-2h, without spaces"
            self.problem("query_term_unknown", path, "`started` is compared with a time", hint)
        else:
            status = condition.lower()
            known = (*(f"{name}:" for name in FIELDS), *FLAGS)
            hint = f"write status:{status}" if status in STATUSES else offered(condition, known)
            self.problem("query_term_unknown", path, f"`{_short(condition)}` is not a condition for runs", hint)

    def _as_meant(self, field: str, value: str, path: str) -> str:
        """A value of a query without the signs of other languages, which no value has; they are refused."""
        plain = value.removeprefix("=")
        if len(plain) > 1 and plain[0] == plain[-1] == "'":
            plain = plain[1:-1]
        if plain != value:
            message = f"`{_short(value)}` is not a value: text stands in double quotes, after one `=` or `:`"
            self.problem("query_value_invalid", path, message, f"write {field}{quoted(_short(plain))}")
        return plain

    def add_field(self, name: str, value: Any, path: str) -> None:
        if name == "workflow" and isinstance(value, str) and "@" in value:
            name = "version"
        if not isinstance(value, str):
            message, hint = f"`{name}` is text, not {type(value).__name__}", "run one query for each value"
            self.problem("query_value_invalid", path, message, hint if isinstance(value, list | tuple | set) else "")
        elif not value and name in (*FIELDS, *_DAYS):
            self.problem("query_value_invalid", path, f"`{name}:` has no value", f"write {name}:VALUE")
        elif name in _CHOICES:
            found = _CHOICES[name].get(value.lower())
            if found is None:
                message = f"`{_short(value)}` is not a value of `{name}`"
                self.problem("query_value_invalid", path, message, offered(value.lower(), _CHOICES[name]))
            else:
                self._one(name, found, path, many=name == "waiting")
        elif name == "workflow" and not is_name(value):
            self._problems.append(_no_workflow(value, path))
        elif name == "version" and not re.fullmatch(r"[^@]+@[0-9]+", value):
            hint = "write version:billing@3"
            self.problem("query_value_invalid", path, f"`{_short(value)}` is not a version of a workflow", hint)
        elif name == "failure" and not re.fullmatch(r"[0-9a-f]{12}", value):
            hint = "`tidemill runs failures` lists them"
            self.problem("query_value_invalid", path, f"`{_short(value)}` is not a fingerprint of a failure", hint)
        elif name in OF_RUNS and value.startswith("@"):
            hint = f"write {name}: and the id of a run; `tidemill runs list` shows ids"
            self.problem("query_value_invalid", path, f"`{_short(value)}` is not the id of a run", hint)
        elif name in _TEXTS or (name in _DAYS and value.isdecimal()):
            self._one(name, value, path)
        else:
            self._unknown(name, value, path)

    def _unknown(self, name: str, value: str, path: str) -> None:
        if name == "started":
            hint = f"compare it: started>{_short(value) or '-2h'}"
        elif name in _TIMES:
            hint = f"write {_TIMES[name]}"
        elif name in ("error", "code"):
            hint = _BY_CODE
        elif name in _SYNONYMS:
            hint = f"write {_SYNONYMS[name]}{_short(value)}"
        else:
            near = offered(name, FIELDS)
            labelled = f"label.{_short(name)}={_short(value)}"
            hint = near if near.startswith("did") else f"for a label write {labelled}; {near}"
        self.problem("query_term_unknown", path, f"runs have no `{_short(name)}` to search by", hint)

    def add_labels(self, labels: Any) -> None:
        if isinstance(labels, Mapping):
            for key, value in labels.items():
                self.add_label(key, value, "/label")
        elif isinstance(labels, str):
            self.add(f"label.{labels}", "/label")
        elif labels is not None:
            message = f"`label` is text or a mapping, not {type(labels).__name__}"
            self.problem("query_value_invalid", "/label", message, 'write label={"env": "prod"}')

    def add_label(self, key: Any, value: Any, path: str) -> None:
        if isinstance(key, str) and isinstance(value, str):
            self._one(f"label:{key}", value, path, mark="=")
        else:
            self.problem("query_value_invalid", path, "a label's key and value are text", 'write {"customer": "acme"}')

    def _one(self, name: str, value: str, path: str, *, mark: str = ":", many: bool = False) -> None:
        """Take a term; a run has one value of most fields, so that a second one would exclude every run."""
        term = f"{name}{mark}{value}"
        if not term.isascii():
            try:
                term.encode()
            except UnicodeEncodeError:
                self.problem("query_value_invalid", path, "half of a surrogate pair is not a character")
                return
        if not many and self._asked.setdefault(name, value) != value:
            two = f"{_short(self._asked[name])} and {_short(value)}"
            message = f"a run has one `{_short(name)}`, and two are asked for: {two}"
            self.problem("query_invalid", path, message, "run one query for each")
        self._terms[term] = None

    def add_bound(self, operator: str, value: Any, path: str, *, ago: str = "") -> None:
        """Take a bound on the start; `ago` must precede a span of time in a query, where `2h` alone says nothing."""
        at_ms = self._moment_ms(value, ago)
        if at_ms is None:
            shown = value if isinstance(value, str) else type(value).__name__
            self.problem("query_value_invalid", path, f"`{_short(shown)}` is not a time", _AGO_HINT)
            return
        if operator.startswith(">"):
            at_ms += operator == ">"
            self._since = at_ms if self._since is None else max(self._since, at_ms)
        else:
            at_ms += operator == "<="
            self._before = at_ms if self._before is None else min(self._before, at_ms)

    def _moment_ms(self, value: Any, ago: str) -> int | None:
        try:
            if isinstance(value, timedelta):
                return max(0, self._now_ms - int(abs(value.total_seconds()) * 1_000))
            if isinstance(value, str):
                span = _AGO.fullmatch(value.removeprefix("-")) if value.startswith(ago) else None
                if span is not None:
                    return max(0, self._now_ms - int(float(span[1]) * _SECONDS[span[2]] * 1_000))
                value = datetime.fromisoformat(value)
                value = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            if isinstance(value, datetime):
                return max(0, round(value.timestamp() * 1_000))
        except (ValueError, OverflowError):
            pass
        return None


def _no_workflow(name: str, path: str) -> Problem:
    meant = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    hint = f"did you mean `{_short(meant)}`?" if meant else "write workflow:billing"
    message = f"`{_short(name)}` is not the name of a workflow: lower-case letters, digits and -"
    return Problem(code="query_value_invalid", path=path, message=message, hint=hint)


def checked_terms(terms: Any, fields: Sequence[str]) -> list[str]:
    """The terms of another list, or a refusal of those that nothing in it is found by; text is split at its spaces."""
    if not isinstance(terms, Iterable):
        message = f"terms are text, or a list of them, not {type(terms).__name__}"
        raise rejected("query_invalid", message, path="/terms", hint=f"such as {fields[0]}:…")
    given: list[Any] = terms.split() if isinstance(terms, str) else list(terms)
    problems = [
        Problem(
            code="query_term_unknown",
            path=f"/terms/{number}",
            message=f"`{_short(str(term))}` is not a term of this list",
            hint=offered(str(term).partition(":")[0], fields),
        )
        for number, term in enumerate(given)
        if not isinstance(term, str) or term.partition(":")[0] not in fields
    ]
    for number, term in enumerate(given):
        field, _, value = str(term).partition(":")
        if field == "workflow" and re.search(r"[A-Z_\s]", value):
            problems.append(_no_workflow(value, f"/terms/{number}"))
    if problems:
        raise Rejected(problems)
    return given


def _short(text: str) -> str:
    """Text of the caller for a message: short, and printable."""
    short = text if len(text) <= 60 else f"{text[:59]}…"
    return short if short.isprintable() else ascii(short)[1:-1]


# What the matches of a query have in common

SUMMARISED_MAX = 10_000
"""Matches that a summary reads, the newest ones."""
BUCKETS = 30
BUCKETS_MAX = 500
LABEL_KEYS_MAX = 50
VALUES_MAX = 50
"""Label values, workflows and versions that are counted separately, the most frequent ones."""
GROUPS_MAX = 200


class RunFacets(msgspec.Struct, frozen=True, kw_only=True):
    """How many of the matches have which value."""

    counted: int
    complete: bool
    """Whether all matches were counted; otherwise every number is a lower bound."""
    status: dict[str, int]
    workflow: dict[str, int]
    version: dict[str, int]
    """By `name@3`."""
    labels: dict[str, dict[str, int]]


class HistogramBucket(msgspec.Struct, frozen=True, kw_only=True):
    since_ms: int
    until_ms: int
    """Not included."""
    count: int
    status: dict[str, int]


class RunHistogram(msgspec.Struct, frozen=True, kw_only=True):
    """When the matches were started."""

    counted: int
    complete: bool
    buckets: tuple[HistogramBucket, ...]


class FailureGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that failed in the same way."""

    failure: str
    """The fingerprint, as in `failure:…`; empty for runs that an earlier version ended, until `tidemill reindex`."""
    count: int
    code: str
    node: str
    workflow: str
    """Of the example; a failure may occur in several workflows."""
    message: str
    example: str
    """The run that failed last."""
    first_ms: int
    last_ms: int


class FailureGroups(msgspec.Struct, frozen=True, kw_only=True):
    """The failures among the matches, the most frequent first."""

    counted: int
    """Failed runs."""
    complete: bool
    groups: tuple[FailureGroup, ...]


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    counted: int
    complete: bool
    facets: RunFacets
    histogram: RunHistogram
    failures: FailureGroups


def checked_buckets(buckets: int) -> int:
    if isinstance(buckets, bool) or not 1 <= buckets <= BUCKETS_MAX:
        message = f"a histogram has 1 to {BUCKETS_MAX} buckets, not {_short(str(buckets))}"
        raise Rejected(Problem(code="limit_invalid", path="/buckets", message=message, hint="leave it out for 30"))
    return buckets


def summarise(rows: Sequence[RunRow], query: RunQuery, buckets: int, now_ms: int, *, complete: bool) -> RunSummary:
    """Count rows, newest first; they are not all matches unless `complete`."""
    whole: dict[str, Any] = {"complete": complete, "counted": len(rows)}
    labels: dict[str, Counter[str]] = {}
    for (key, value), count in Counter(chain.from_iterable(row.labels.items() for row in rows)).items():
        labels.setdefault(key, Counter())[value] = count
    shown = sorted(labels, key=lambda key: (-labels[key].total(), key))[:LABEL_KEYS_MAX]
    workflows, versions = Counter[str](), Counter((row.workflow, row.version) for row in rows)
    for (workflow, _), count in versions.items():
        workflows[workflow] += count
    facets = RunFacets(
        status=_most(Counter(row.status for row in rows)),
        workflow=_most(workflows),
        version=_most(Counter({f"{name}@{version}": count for (name, version), count in versions.items()})),
        labels={key: _most(labels[key]) for key in shown},
        **whole,
    )
    failed = [row for row in rows if row.status == "FAILED"]
    failures = FailureGroups(counted=len(failed), complete=complete, groups=_groups(failed))
    histogram = RunHistogram(buckets=_buckets(rows, query, buckets, now_ms, complete), **whole)
    return RunSummary(facets=facets, histogram=histogram, failures=failures, **whole)


def _most(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda each: (-each[1], each[0]))[:VALUES_MAX])


def _buckets(
    rows: Sequence[RunRow], query: RunQuery, buckets: int, now_ms: int, complete: bool
) -> tuple[HistogramBucket, ...]:
    if not rows:
        return ()
    # What was not read is older than what was.
    oldest = min(row.created_ms for row in rows)
    first = oldest if query.since_ms is None or not complete else query.since_ms
    last = max(row.created_ms for row in rows) + 1
    last = max(last, now_ms if query.before_ms is None else min(query.before_ms, now_ms))
    width = max(1, -(-(last - first) // buckets))
    counts: dict[int, Counter[str]] = {}
    found = Counter(((row.created_ms - first) // width, row.status) for row in rows)
    for (number, status), count in found.items():
        counts.setdefault(number, Counter())[status] = count
    return tuple(
        HistogramBucket(
            since_ms=first + number * width,
            until_ms=first + (number + 1) * width,
            count=counts[number].total() if number in counts else 0,
            status=_most(counts.get(number, Counter())),
        )
        for number in range(-(-(last - first) // width))
    )


def _groups(failed: Sequence[RunRow]) -> tuple[FailureGroup, ...]:
    found: dict[tuple[str, str, str], list[RunRow]] = {}
    for row in failed:
        found.setdefault((row.failure, row.error_code, row.failed_node), []).append(row)
    groups = [_group(rows) for rows in found.values()]
    return tuple(sorted(groups, key=lambda group: (-group.count, -group.last_ms, group.failure))[:GROUPS_MAX])


def _group(rows: Sequence[RunRow]) -> FailureGroup:
    ends = [row.last_event_ms if row.ended_ms is None else row.ended_ms for row in rows]
    last = max(range(len(rows)), key=lambda number: (ends[number], rows[number].run_id))
    return FailureGroup(
        failure=rows[last].failure,
        count=len(rows),
        code=rows[last].error_code,
        node=rows[last].failed_node,
        workflow=rows[last].workflow,
        message=rows[last].error_message,
        example=rows[last].run_id,
        first_ms=min(ends),
        last_ms=ends[last],
    )
