"""The condition `jsonpath`: the values that a query finds, compared with a given one.

A query reads the node's own output, or with `"source": "ctx"` the nodes before it as `{id: {"output": …, "meta": …}}`.
`bind` follows it as far as its keys lead to one value, so that a condition on one field costs no more than that field.
A query that can find several values must say what is compared: their number, sum, minimum, or the whole list. A query
that finds no value yields `NOTHING`: unequal to everything, in no list, empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from tidemill.errors import Problem
from tidemill.expressions import errors
from tidemill.expressions.comparisons import RELATIONS, contains, hopeless, is_number
from tidemill.expressions.conditions import DEADLINE_MS, Raw, no_other_keys, shape
from tidemill.expressions.jsonpath import query as tree
from tidemill.expressions.jsonpath.query import NOTHING, NoValue, is_cheap, queries
from tidemill.expressions.scope import Absent, Json, References, Scope, Seen

_SIGNS = {"eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_AGGREGATES = ("count", "sum", "avg", "min", "max")
_AGGREGATING: Mapping[str, tuple[str, str]] = {
    f"{aggregate}_{ending}": (aggregate, sign) for aggregate in _AGGREGATES for ending, sign in _SIGNS.items()
}
"""Each aggregating operator, taken apart."""

PLAIN = (*RELATIONS, "exists", "empty")
OPERATORS = (*PLAIN, *_AGGREGATING)
ALIASES: Mapping[str, str] = {
    **_SIGNS,
    "=": "==",
    "===": "==",
    "<>": "!=",
    "gte": ">=",
    "lte": "<=",
    "not in": "not_in",
    "nin": "not_in",
    "has": "contains",
    "is_empty": "empty",
    **{aggregate: f"{aggregate}_gt" for aggregate in _AGGREGATES},
    **{f"{aggregate}_{end}te": f"{aggregate}_{end}e" for aggregate in _AGGREGATES for end in "gl"},
}
"""Names of operators in other tools, for hints only."""

ASKING = frozenset({"exists", "empty"})
"""Operators that are true or false by themselves; their value may be left out, or turns them round."""

SHALLOW = ASKING | {operator for operator, (aggregate, _) in _AGGREGATING.items() if aggregate == "count"}
"""Operators that do not read the value that a query for one value finds."""

_SEVERAL_HINT = "choose what to compare: count_gt, sum_gt, min_gt, max_gt, contains, or == with a list"


def subject(operator: str, found: Sequence[Json], single: bool, value: Json) -> Json | NoValue:
    """Make what is compared of what was found; `single` if the query cannot find more than one value."""
    if operator == "exists":
        return bool(found)
    if operator == "empty":
        return not found or (single and is_empty(found[0]))
    if operator in _AGGREGATING:
        values = found[0] if single and found and isinstance(found[0], list) else found
        return _AGGREGATED[_AGGREGATING[operator][0]](values)
    if not single and (operator == "contains" or (operator in ("==", "!=") and isinstance(value, list))):
        return list(found)
    if len(found) > 1:
        raise errors.condition_failed(f"{operator} compares one value, and {len(found)} were found", _SEVERAL_HINT)
    return found[0] if found else NOTHING


def related(operator: str, left: Json | NoValue, value: Json) -> bool:
    """Answer an operator for the value that it compares; raise `ExpressionError` if the two do not go together."""
    if operator in ASKING:
        return left is value
    sign = _AGGREGATING[operator][1] if operator in _AGGREGATING else operator
    if left is NOTHING:
        return sign in ("!=", "not_in")
    if sign == "contains":
        return contains(left, value)
    return RELATIONS[sign](left, value)


def wrong_value(operator: str, value: Json) -> str | None:
    """Say why an operator can never compare something with this value; None if it may."""
    if operator in ASKING:
        kinds, fits = "true or false", isinstance(value, bool)
    elif operator in ("in", "not_in"):
        kinds, fits = "a list", isinstance(value, list)
    elif operator not in _AGGREGATING:
        return hopeless(operator, value, "right")
    elif _AGGREGATING[operator][0] in ("min", "max"):
        kinds, fits = "a number or a string", is_number(value) or isinstance(value, str)
    else:
        kinds, fits = "a number", is_number(value)
    return None if fits else f"the value of {operator} is {kinds}, not {errors.kind_of(value)}"


def is_empty(value: Json) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def length(value: Json) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise errors.condition_failed(f"{errors.kind_of(value)} has no length", "a string, a list and an object have one")


def _sum(values: Sequence[Json]) -> Json:
    """Add integers exactly, and floats with one rounding at the end, so that the order does not matter."""
    _require("sum", values, is_number)
    try:
        return sum(values) if all(isinstance(each, int) for each in values) else math.fsum(values)
    except (OverflowError, ValueError):
        raise errors.condition_failed("the sum is too large for a number") from None


def _average(values: Sequence[Json]) -> Json | NoValue:
    _require("avg", values, is_number)
    try:
        return _sum(values) / len(values) if values else NOTHING
    except OverflowError:
        raise errors.condition_failed("the average is too large for a number") from None


_AGGREGATED: Mapping[str, Callable[[Sequence[Json]], Json | NoValue]] = {
    "count": len,
    "sum": _sum,
    "avg": _average,
    "min": lambda values: min(_ordered("min", values), default=NOTHING),
    "max": lambda values: max(_ordered("max", values), default=NOTHING),
}


def _ordered(aggregate: str, values: Sequence[Json]) -> Sequence[Json]:
    textual = bool(values) and isinstance(values[0], str)
    _require(aggregate, values, _is_text if textual else is_number)
    return values


def _require(aggregate: str, values: Sequence[Json], fits: Callable[[Json], bool]) -> None:
    for value in values:
        if not fits(value):
            kinds = "strings" if fits is _is_text else "numbers"
            message = f"{aggregate} takes {kinds}, and one of the {len(values)} values is {errors.kind_of(value)}"
            raise errors.condition_failed(message, "filter them out first: $.items[?@.price > 0].price")


def _is_text(value: Json) -> bool:
    return isinstance(value, str)


QUERY_MAX = 8192

Source = Literal["output", "ctx"]
_SOURCES: dict[str, Source] = {"output": "output", "current": "output", "ctx": "ctx", "context": "ctx"}
_KEYS = ("type", "query", "operator", "value", "source")
_EXAMPLE = 'such as {"type": "jsonpath", "query": "$.score", "operator": ">", "value": 80}'
_LENGTH = re.compile(r"\s*\.length\(\)\s*$")
_OF_LENGTH = ("==", "!=", ">", "<", ">=", "<=", "in", "not_in")


class JsonPath(msgspec.Struct, frozen=True):
    """A query, split where it begins to branch out, and what is asked of the values that it finds."""

    query: str
    operator: str
    value: Json
    source: Source
    head: tree.Query
    """The way to the one value that the rest of the query looks into."""
    tail: tree.Query
    single: bool
    """The query finds one value at most."""
    measured: bool
    """The query ends in `.length()`."""
    shallow: bool
    """What is found is not looked into, so `bind` can answer with a number or a boolean."""
    title: str
    references: References
    light: bool
    deadline_ms: int = DEADLINE_MS

    def normal(self) -> Json:
        raw = {"type": "jsonpath", "query": self.query, "operator": self.operator, "value": self.value}
        return raw | {"source": "ctx"} if self.source == "ctx" else raw

    def bind(self, scope: Scope) -> list[Json]:
        """Return the value that the query branches out from, or all that is asked about it if that is little."""
        if self.source == "output" and not scope.has_output:
            raise errors.condition_failed("output is not available here", errors.NO_OUTPUT)
        document = scope.output if self.source == "output" else _nodes(self.references, scope)
        value = self.head.value(document, document)
        found = [] if value is NOTHING else [value]
        return [self._subject(found)] if self.shallow else found

    def holds(self, data: Json, scope: Scope) -> bool:
        found = () if self.shallow or not data else self.tail.find(data[0], data[0])
        compared = data[0] if self.shallow else self._subject(found)
        try:
            return related(self.operator, compared, self.value)
        except errors.ExpressionError as failure:
            raise errors.within(self.title, failure) from None

    def told(self) -> str:
        return self.title

    def _subject(self, found: Sequence[Json]) -> Json | NoValue:
        try:
            if not self.measured:
                return subject(self.operator, found, self.single, self.value)
            if not self.single:
                return len(found)
            return length(found[0]) if found else NOTHING
        except errors.ExpressionError as failure:
            raise errors.within(self.title, failure) from None


def parse_jsonpath(raw: Raw, path: str, problems: list[Problem]) -> JsonPath | None:
    before = len(problems)
    no_other_keys(raw, _KEYS, path, problems)
    source = _source(raw, path, problems)
    operator = _operator(raw, path, problems)
    value = _value(raw, operator, path, problems)
    text = _text(raw, path, problems)
    query = None if text is None else _query(_LENGTH.sub("", text), f"{path}/query", problems)
    if text is None or query is None:
        return None
    measured = _LENGTH.search(text) is not None
    if measured and operator is not None and operator not in _OF_LENGTH:
        message = f".length() is one number, and {operator} does not apply to it"
        problems.append(shape(message, f"{path}/operator", f"one of: {errors.listing(_OF_LENGTH)}"))
    absolute = [each for each in queries(query) if each.absolute]
    if source == "ctx":
        problems += _node_problems(absolute, f"{path}/query")
    if len(problems) > before or operator is None or source is None:
        return None
    single = query.keys is not None
    head, tail = _split(query, alone=len(absolute) == 1)
    return JsonPath(
        query=text,
        operator=operator,
        value=value,
        source=source,
        head=head,
        tail=tail,
        single=single,
        measured=measured,
        shallow=single and (measured or operator in SHALLOW),
        title=_title(source, text, operator, value),
        references=_references(source, absolute),
        light=is_cheap(query, text),
    )


def _source(raw: Raw, path: str, problems: list[Problem]) -> Source | None:
    given = raw.get("source", "output")
    source = _SOURCES.get(given) if isinstance(given, str) else None
    if source is None:
        hint = "output is this node's output, ctx are the upstream nodes"
        problems.append(shape("source is output or ctx", f"{path}/source", hint))
    return source


def _operator(raw: Raw, path: str, problems: list[Problem]) -> str | None:
    given = raw.get("operator")
    if isinstance(given, str) and given in OPERATORS:
        return given
    if "operator" not in raw:
        problems.append(shape("a jsonpath condition needs an operator", path, _EXAMPLE))
        return None
    near = ""
    if isinstance(given, str):
        alias = ALIASES.get(given.lower())
        near = errors.meant(given, OPERATORS) if alias is None else f'did you mean "{alias}"?'
    message = f"there is no operator {errors.shorten(repr(given), 60)}"
    problems.append(shape(message, f"{path}/operator", f"{near} {_KNOWN}".strip()))
    return None


_KNOWN = f"operators: {', '.join(PLAIN)}; count_, sum_, avg_, min_ and max_ with eq, ne, gt, ge, lt or le"


def _value(raw: Raw, operator: str | None, path: str, problems: list[Problem]) -> Json:
    """Return the value to compare with; of an operator that is true or false by itself it is true."""
    if operator is None:
        return None
    if "value" not in raw:
        if operator in ASKING:
            return True
        problems.append(shape(f"{operator} needs a value", path, _EXAMPLE))
        return None
    wrong = wrong_value(operator, raw["value"])
    if wrong is not None:
        problems.append(shape(wrong, f"{path}/value"))
    return raw["value"]


def _text(raw: Raw, path: str, problems: list[Problem]) -> str | None:
    text = raw.get("query")
    if "query" not in raw:
        problems.append(shape("a jsonpath condition needs a query", path, _EXAMPLE))
    elif not isinstance(text, str):
        problems.append(shape(f"the query is a string, not {errors.kind_of(text)}", f"{path}/query", _EXAMPLE))
    elif len(text) > QUERY_MAX:
        message = f"a query is limited to {QUERY_MAX} characters"
        problems.append(Problem(code="condition_syntax", message=message, path=f"{path}/query"))
    else:
        return text
    return None


def _query(text: str, path: str, problems: list[Problem]) -> tree.Query | None:
    # Loading the library takes a tenth of a second, so only documents with queries do it.
    from tidemill.expressions.jsonpath.parser import QueryFault, read_query

    try:
        return read_query(text)
    except QueryFault as fault:
        problems.append(Problem(code="condition_syntax", message=fault.message, path=path, hint=fault.hint))
        return None


def _node_problems(absolute: Iterable[tree.Query], path: str) -> Iterable[Problem]:
    """Refuse what no node has: in `ctx` there are only `output` and `meta` below the id of a node."""
    for query in absolute:
        match query.segments:
            case (tree.Segment((tree.Name(node),), False), tree.Segment((tree.Name(part),), False), *_):
                if part not in ("output", "meta"):
                    where = errors.place("$", node)
                    hint = f"write {errors.place(f'{where}.output', part)}; a node has output and meta"
                    message = f'{where} has no "{errors.shorten(part, 60)}"'
                    yield Problem(code="condition_unknown_name", message=message, path=path, hint=hint)


def _references(source: Source, absolute: Iterable[tree.Query]) -> References:
    if source == "output":
        return References(roots=frozenset({"output"}))
    nodes: set[str] = set()
    dynamic = False
    for query in absolute:
        match query.segments:
            case (tree.Segment(selectors, False), *_):
                nodes |= {selector.name for selector in selectors if isinstance(selector, tree.Name)}
                dynamic = dynamic or not all(isinstance(selector, tree.Name) for selector in selectors)
            case _:
                dynamic = True
    return References(nodes=frozenset(nodes), roots=frozenset({"ctx"}), dynamic=dynamic)


def _split(query: tree.Query, *, alone: bool) -> tuple[tree.Query, tree.Query]:
    """Part a query where it branches out; not if its filters look at the whole document again."""
    length = 0
    if query.keys is not None:
        length = len(query.keys)
    elif alone:
        while tree.keys(query.segments[: length + 1]) is not None:
            length += 1
    head, tail = query.segments[:length], query.segments[length:]
    return tree.Query(head, True, tree.keys(head)), tree.Query(tail, False, tree.keys(tail))


def _title(source: Source, query: str, operator: str, value: Json) -> str:
    where = "ctx " if source == "ctx" else ""
    if operator in ASKING and value is True:
        return f"{where}{errors.shorten(query)} {operator}"
    sign = f"{operator} ==" if operator in ASKING else operator
    return f"{where}{errors.shorten(query)} {sign} {errors.shorten(msgspec.json.encode(value).decode(), 60)}"


def _nodes(references: References, scope: Scope) -> dict[str, Json]:
    """Return the available nodes that have something to show."""
    entries = {node: scope.nodes.get(node) for node in (scope.nodes if references.dynamic else references.nodes)}
    return {node: _entry(seen) for node, seen in entries.items() if isinstance(seen, Seen) or (seen and seen.meta)}


def _entry(seen: Seen | Absent) -> dict[str, Json]:
    entry: dict[str, Json] = {"output": seen.output} if isinstance(seen, Seen) else {}
    return entry | {"meta": dict(seen.meta)} if seen.meta else entry
