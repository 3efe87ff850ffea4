"""Parse JSONPath queries with the library, and convert its tree to ours.

The library accepts more than RFC 9535 (lists in filters, `<>`, queries as selectors); that is refused here. Loading it
takes a tenth of a second, so this module is imported with the first query.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, cast

from jsonpath import JSONPath, JSONPathEnvironment, JSONPathError, selectors
from jsonpath import filter as native
from jsonpath.lex import Lexer
from jsonpath.parse import Parser
from jsonpath.segments import JSONPathRecursiveDescentSegment
from jsonpath.stream import TokenStream
from jsonpath.token import TOKEN_EOF

from tidemill.expressions.errors import shorten
from tidemill.expressions.jsonpath import query as tree
from tidemill.expressions.jsonpath.query import is_pattern, why_no_pattern

NESTING_MAX = 100
"""Levels of filters and terms inside of each other; the parser recurses, and must never depend on the stack."""

PARENTHESES_MAX = 50
COMPARISONS = frozenset({"==", "!=", "<", "<=", ">", ">="})

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?P<rest>(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)")
_NAME = r"[\u0080-\U0010FFFFa-zA-Z_][\u0080-\U0010FFFFa-zA-Z0-9_]*"
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"")

_MISTAKES = (
    (r"=~", "write match(@.x, 'pattern') for the whole text, or search(@.x, 'pattern') for a part of it"),
    (r"(?<![=!<>])=(?!=)", "to compare, write =="),
    (r"===|!==", "to compare, write == or !="),
    (r"<>", "to compare, write !="),
    (r"(?<!&)&(?!&)|\band\b", "write && for and"),
    (r"(?<!\|)\|(?!\|)|\bor\b", "write || for or"),
    (r"\bnot\b", "write ! for not"),
    (r"\b(?:in|contains|nin)\b", "a filter has no such operator: write @.x == 1 || @.x == 2"),
    (r"\[\s*[^\W\d]", "a name in brackets is written ['a']"),
    (r"\.length\b", "length stands around a value inside of a filter, length(@.x), and at the end of a query"),
    (r"\.(?:sum|avg|min|max|count|size)\(\)", "the operators sum_gt, avg_gt, min_gt, max_gt and count_gt do that"),
    (r"\.\s*[\w-]*\w-\w", "a name with - in it is written ['a-b']"),
    (r"\b(?:True|False|None|nil|undefined)\b", "the constants are true, false and null"),
)


class QueryFault(Exception):
    """A query is not a query, or not one of those that are allowed."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message, self.hint = message, hint


def read_query(text: str) -> tree.Query:
    """Read a query; raise `QueryFault` if there is something wrong with it."""
    if not text.startswith("$"):
        raise QueryFault("a query begins with $", _with_root(text.strip()))
    if text.count("(") > PARENTHESES_MAX:
        raise QueryFault(f"a query has at most {PARENTHESES_MAX} pairs of parentheses")
    try:
        path = _environment().compile(text)
        if not isinstance(path, JSONPath):
            raise QueryFault("a query is one path")
        return _query(path, absolute=True, depth=0)
    except RecursionError:
        raise _too_deep() from None
    except JSONPathError as error:
        raise _worded(text, error) from None
    except QueryFault:
        raise
    except Exception:
        # The library converts what it takes for numbers without looking at them.
        raise QueryFault("a number in it cannot be read", _hint(text, "")) from None


def _with_root(text: str) -> str:
    if text.startswith("$"):
        return "leave out the space before it"
    dot = "" if text.startswith(("[", "..")) else "."
    return f"write ${dot}{shorten(text.lstrip('@').removeprefix(dot), 60)}" if text else "$ is the whole document"


def _too_deep() -> QueryFault:
    hint = "make several conditions of it"
    return QueryFault(f"its terms are nested more than {NESTING_MAX} levels deep", hint)


class _Lexer(Lexer):
    """The library's names may contain `-` and no character beyond U+FFFF; those of the RFC are the other way round."""

    key_pattern = _NAME


class _Parser(Parser):
    """The library reads integers as floats, which loses digits."""

    def parse_integer_literal(self, stream: TokenStream) -> native.BaseExpression:
        return _number(stream)

    def parse_float_literal(self, stream: TokenStream) -> native.BaseExpression:
        return _number(stream)


class _Environment(JSONPathEnvironment):
    lexer_class = _Lexer
    parser_class = _Parser


@lru_cache(maxsize=1)
def _environment() -> _Environment:
    return _Environment(strict=True, filter_caching=False)


def _number(stream: TokenStream) -> native.BaseExpression:
    text = stream.next().value
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise QueryFault(f"{shorten(text, 40)} is not a number as JSON writes it")
    if not number["rest"]:
        return native.IntegerLiteral(value=int(text))
    value = float(text)
    if value - value != 0:
        raise QueryFault(f"{shorten(text, 40)} is too large")
    return native.FloatLiteral(value=value)


def _worded(text: str, error: JSONPathError) -> QueryFault:
    """Say what the library said, and where, and what is usually meant."""
    said, token = str(error.args[0]) if error.args else "it cannot be read", error.token
    if token is not None and token.kind == TOKEN_EOF:
        return QueryFault("the query ends too early", _hint(text, said))
    if token is not None and "TOKEN_" in said:
        said = f"unexpected {token.value!r}"
    for theirs, ours in _WORDS.items():
        said = said.replace(theirs, ours)
    where = f"column {token.index + 1}: " if token is not None else ""
    return QueryFault(f"{where}{shorten(said, 200)}", _hint(text, said))


_WORDS = {
    "NodesType": "a query",
    "ValueType": "a value",
    "must be of": "must be",
    "non-singular query is not comparable": "a query that can find several values cannot be compared",
}


def _hint(text: str, said: str) -> str:
    if "escape sequence" in said:
        return "inside of quotes, a backslash is written twice"
    if "is not defined" in said:
        return "functions: length, count, value, match, search"
    bare = _QUOTED.sub("''", text)
    return next((hint for mistake, hint in _MISTAKES if re.search(mistake, bare)), "")


def _query(path: JSONPath, *, absolute: bool, depth: int) -> tree.Query:
    segments = tuple(
        tree.Segment(
            tuple(_selector(each, depth) for each in segment.selectors),
            isinstance(segment, JSONPathRecursiveDescentSegment),
        )
        for segment in path.segments
    )
    return tree.Query(segments, absolute, tree.keys(segments))


def _selector(selector: selectors.JSONPathSelector, depth: int) -> tree.Selector:
    match selector:
        case selectors.NameSelector():
            return tree.Name(selector.name)
        case selectors.IndexSelector():
            return tree.Index(selector.index)
        case selectors.SliceSelector():
            return tree.Slice(selector.slice.start, selector.slice.stop, selector.slice.step)
        case selectors.WildcardSelector():
            return tree.Wildcard()
        case selectors.Filter():
            return tree.Filter(_test(selector.expression.expression, depth + 1))
    where = f"column {selector.token.index + 1}: "
    raise QueryFault(f"{where}brackets hold names in quotes, numbers, slices, * or ?", "a name is written ['a']")


def _test(expression: native.BaseExpression, depth: int) -> tree.Test:
    if depth > NESTING_MAX:
        raise _too_deep()
    match expression:
        case native.InfixExpression() if expression.logical:
            # Take a chain of the same operator as one.
            operator = cast(Literal["&&", "||"], expression.operator)
            tests: list[tree.Test] = []
            for side in (expression.left, expression.right):
                test = _test(side, depth + 1)
                tests += test.tests if isinstance(test, tree.Joined) and test.operator == operator else (test,)
            return tree.Joined(operator, tuple(tests))
        case native.InfixExpression() if expression.operator in COMPARISONS:
            left, right = _operand(expression.left, depth + 1), _operand(expression.right, depth + 1)
            return tree.Comparison(expression.operator, left, right)
        case native.InfixExpression():
            raise QueryFault(
                f"a filter has no operator {expression.operator}", "the operators are == != < <= > >= && ||"
            )
        case native.PrefixExpression():
            return tree.Not(_test(expression.right, depth + 1))
        case native.RelativeFilterQuery() | native.RootFilterQuery():
            return tree.Found(_inner(expression, depth))
        case native.FunctionExtension() if expression.name in ("match", "search"):
            text, pattern = (_operand(each, depth + 1) for each in expression.args)
            if isinstance(pattern, tree.Constant) and not (
                isinstance(pattern.content, str) and is_pattern(pattern.content)
            ):
                message = f"{expression.name}() has a regular expression that cannot be compiled"
                reason, hint = why_no_pattern(str(pattern.content))
                raise QueryFault(f"{message}: {reason}" if reason else message, hint or "a pattern is a string")
            return tree.Matches(text, pattern, expression.name == "match")
        case native.FunctionExtension():
            raise QueryFault(f"what {expression.name}() gives must be compared with something")
    raise QueryFault("a filter is made of comparisons, queries, match() and search()", "such as ?@.price > 10")


def _operand(expression: native.BaseExpression, depth: int) -> tree.Operand:
    match expression:
        case native.Nil():
            return tree.Constant(None)
        case native.FilterExpressionLiteral() if not isinstance(expression, native.RegexLiteral):
            return tree.Constant(expression.value)
        case native.RelativeFilterQuery() | native.RootFilterQuery():
            query = _inner(expression, depth)
            if query.keys is None:
                raise QueryFault("a query that can find several values cannot be compared", "count(...) can")
            return query
        case native.FunctionExtension(name="length"):
            return tree.Length(_operand(expression.args[0], depth + 1))
        case native.FunctionExtension(name="count"):
            return tree.Count(_argument(expression, depth))
        case native.FunctionExtension(name="value"):
            return tree.Only(_argument(expression, depth))
        case native.FunctionExtension():
            raise QueryFault(f"{expression.name}() is true or false and cannot be compared")
    hint = "compare numbers, strings, true, false, null, queries, length(), count() and value()"
    raise QueryFault("a filter compares something that is not a value", hint)


def _argument(expression: native.FunctionExtension, depth: int) -> tree.Query:
    argument = expression.args[0]
    if not isinstance(argument, native.FilterQuery):
        raise QueryFault(f"{expression.name}() takes a query", f"such as {expression.name}(@.items[*])")
    return _inner(argument, depth)


def _inner(expression: native.FilterQuery, depth: int) -> tree.Query:
    return _query(expression.path, absolute=isinstance(expression, native.RootFilterQuery), depth=depth + 1)
