"""The steps of a pipeline as documents write them: their schemas and checks.

Everything that does not depend on a template is checked when a workflow is published, and all of it again after a
pipeline has been rendered. Nothing here touches rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from tidemill.expressions.conditions import parse_condition
from tidemill.expressions.errors import ExpressionError, meant, pointer, shorten
from tidemill.expressions.sandbox.tasks import PROGRAM_MAX, check_jq
from tidemill.expressions.schema import compile_schema
from tidemill.expressions.scope import is_template
from tidemill.expressions.templates.dates import check_forms, check_zone
from tidemill.expressions.templates.regex import compile_pattern
from tidemill.handlers.contract import object_schema
from tidemill.handlers.data.tables import FUNCTIONS, OUTPUT_WORDS, Aggregation, aggregation
from tidemill.kernel.model import ConfigProblem, NodeType

STEPS_MAX = 100
FIELDS_MAX = 1_000
JQ_SECONDS = 30

Step = dict[str, Any]

ROW_HINT = "the row is called output: output.FIELD; besides, there are inputs, ctx.NODE.output, iteration and run"

_TEXT = {"type": "string"}
_FIELD = {"type": "string", "minLength": 1}
_FIELDS = {"type": "array", "items": _FIELD, "minItems": 1, "maxItems": FIELDS_MAX}
_ONE_OR_MORE = {"anyOf": [_FIELD, _FIELDS]}
_ORDER = {"enum": ["asc", "desc"]}
_NULLS = {"enum": ["first", "last"]}
_OTHERWISE = {"enum": ["null", "drop", "fail"]}
_SORT_KEY = {"anyOf": [_FIELD, object_schema(("field",), field=_FIELD, order=_ORDER, nulls=_NULLS)]}
_SORT_KEYS = {"anyOf": [_SORT_KEY, {"type": "array", "items": _SORT_KEY, "minItems": 1, "maxItems": FIELDS_MAX}]}
_ONE_FIELD = {"type": "object", "minProperties": 1, "maxProperties": 1, "additionalProperties": _FIELD}
_AGGREGATIONS = {"type": "object", "additionalProperties": {"anyOf": [_TEXT, _ONE_FIELD]}, "minProperties": 1}
_TABLE = {"anyOf": [{"type": "array", "items": {"type": "object"}}, _TEXT]}
"""A string only if it is a template."""


def _object(required: tuple[str, ...], **properties: Any) -> dict[str, Any]:
    return object_schema(required, step=True, **properties)


SCHEMAS: Mapping[str, dict[str, Any]] = {
    "http_request": {"type": "object", "properties": {"items": _FIELD}, "required": ["url"]},
    "table_sort": _object(("field",), field=_SORT_KEYS, order=_ORDER, nulls=_NULLS),
    "table_filter": _object(("condition",), condition=True),
    "table_select": _object(
        (), fields={"anyOf": [_FIELDS, {"type": "object", "additionalProperties": _FIELD}]}, drop=_FIELDS
    )
    | {"oneOf": [{"required": ["fields"]}, {"required": ["drop"]}]},
    "top_k": _object(("k",), k={"type": "integer", "minimum": 0}, field=_SORT_KEYS, order=_ORDER, nulls=_NULLS),
    "groupby": _object(("by",), by=_ONE_OR_MORE, aggregations=_AGGREGATIONS),
    "join": _object(
        ("with",),
        **{"with": _TABLE},
        on=_ONE_OR_MORE,
        left_on=_ONE_OR_MORE,
        right_on=_ONE_OR_MORE,
        how={"enum": ["inner", "left", "right", "full"]},
        suffix={"type": "string", "minLength": 1},
    )
    | {"oneOf": [{"required": ["on"]}, {"required": ["left_on", "right_on"]}]},
    "jq_transform": _object(
        ("program",),
        program={"type": "string", "minLength": 1, "maxLength": PROGRAM_MAX},
        each={"type": "boolean"},
        timeout_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 300},
    ),
    "regex_extract": _object(
        ("field", "pattern"), field=_FIELD, pattern=_FIELD, into=_FIELD, all={"type": "boolean"}, otherwise=_OTHERWISE
    ),
    "parse_date": _object(
        ("field",),
        **{"field": _FIELD, "format": _ONE_OR_MORE} | dict.fromkeys(("zone", "output", "output_zone", "into"), _FIELD),
        otherwise=_OTHERWISE,
    ),
}


def one_or_more(given: Any) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def call_config(step: Step) -> dict[str, Any]:
    """The config of the `http` call of a step; a URL without a scheme gets https."""
    config = {key: value for key, value in step.items() if key not in ("step", "params", "items")}
    if "params" in step:
        config["query"] = step["params"]
    url = config.get("url")
    if isinstance(url, str) and "://" not in url and not url.startswith("{"):
        config["url"] = f"https://{url}"
    return config


def _named_steps(config: Any) -> Iterator[tuple[int, str, Step]]:
    """The steps whose name is known: not templates, which are checked again after rendering, and no wrong ones."""
    steps = config.get("pipeline")
    for number, step in enumerate(steps[:STEPS_MAX] if isinstance(steps, list) else ()):
        name = step.get("step") if isinstance(step, dict) else None
        if isinstance(name, str) and name in SCHEMAS:
            yield number, name, step


def config_problems(config: Any, http: NodeType) -> Iterator[ConfigProblem]:
    """Report what is wrong with the steps; the schema of the type has reported steps without a known name."""
    for number, name, step in _named_steps(config):
        schema, path = SCHEMAS[name], f"/pipeline/{number}"
        problems = compile_schema(schema).problems(step, path, wildcard=is_template)
        yield from (ConfigProblem(each.path, each.message, each.hint) for each in problems)
        if not problems:
            if name == "http_request":
                yield from _check_http(step, path, http)
            elif name in _CHECKS:
                yield from _CHECKS[name](step, path)


def program_problems(config: Any) -> Iterator[ConfigProblem]:
    """Report jq programs that do not compile; only at publication, because a run compiles them in the sandbox."""
    for number, name, step in _named_steps(config):
        program = step.get("program") if name == "jq_transform" else None
        if isinstance(program, str) and not is_template(program):
            for problem in _try(partial(check_jq, program), f"/pipeline/{number}/program"):
                yield ConfigProblem(problem.path, f"step {number + 1} (jq_transform): {problem.message}", problem.hint)


def _check_http(step: Step, path: str, http: NodeType) -> Iterator[ConfigProblem]:
    if "params" in step and "query" in step:
        yield ConfigProblem(f"{path}/params", "params and query are the same", "leave one of them out")
        return
    config = call_config(step)
    problems = compile_schema(http.config_schema).problems(config, "", wildcard=is_template)
    found = [ConfigProblem(each.path, each.message, each.hint) for each in problems]
    if not found and http.check is not None:
        # The credentials of an agent's tool have been filled in, so a warning of them would be wrong.
        found = [each for each in http.check(config) if not each.warning]
    for problem in found:
        sub_path = problem.path.replace("/query", "/params", 1) if "params" in step else problem.path
        yield ConfigProblem(path + sub_path, problem.message, problem.hint)


def _check_condition(step: Step, path: str) -> Iterator[ConfigProblem]:
    if holds_template(step["condition"]):
        return
    _, problems = parse_condition(step["condition"], f"{path}/condition")
    for each in problems:
        yield ConfigProblem(each.path, each.message, ROW_HINT if each.code == "condition_unknown_name" else each.hint)


def holds_template(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(holds_template, value.values()))
    return any(map(holds_template, value)) if isinstance(value, list) else is_template(value)


def _check_group(step: Step, path: str) -> Iterator[ConfigProblem]:
    by, asked = step["by"], step.get("aggregations", {})
    if is_template(asked):
        return
    for name, given in asked.items():
        where = pointer(f"{path}/aggregations", name)
        if not is_template(by) and name in one_or_more(by):
            message = f"{name} is already the name of what the rows are grouped by"
            yield ConfigProblem(where, message, "choose another name")
        if is_template(given):
            continue
        function, field = aggregation(given)
        if function not in FUNCTIONS:
            hint = meant(function, FUNCTIONS) or f"one of: {', '.join(FUNCTIONS)}"
            yield ConfigProblem(where, f"there is no function {shorten(function, 60)}", hint)
        elif field is None and function != "count":
            yield ConfigProblem(where, f"{function} needs a field", f"such as {{{function}: amount}}")


def _check_join(step: Step, path: str) -> Iterator[ConfigProblem]:
    left, right = step.get("left_on", ()), step.get("right_on", ())
    if not holds_template([left, right]) and len(one_or_more(left)) != len(one_or_more(right)):
        yield ConfigProblem(f"{path}/right_on", "left_on and right_on name different numbers of fields", "pair them up")
    if isinstance(step["with"], str) and not is_template(step["with"]):
        yield ConfigProblem(f"{path}/with", "the other table is a list of rows", "such as {{ node.output }}")


def _check_pattern(step: Step, path: str) -> Iterator[ConfigProblem]:
    if not is_template(step["pattern"]):
        yield from _try(partial(compile_pattern, step["pattern"]), f"{path}/pattern")


def _check_dates(step: Step, path: str) -> Iterator[ConfigProblem]:
    forms = [each for each in one_or_more(step.get("format", [])) if not is_template(each)]
    yield from _try(partial(check_forms, forms, readable=True), f"{path}/format")
    output = step.get("output", "iso")
    if output not in OUTPUT_WORDS and not is_template(output):
        if "%" not in output:
            hint = f"a format such as %d.%m.%Y, or one of: {', '.join(OUTPUT_WORDS)}"
            yield ConfigProblem(f"{path}/output", f"{output} is neither a format nor a known word", hint)
        yield from _try(partial(check_forms, [output], readable=False), f"{path}/output")
    for key in ("zone", "output_zone"):
        zone = step.get(key, "UTC")
        if not is_template(zone):
            yield from _try(partial(check_zone, zone), f"{path}/{key}")


def _try(check: Callable[[], object], path: str) -> Iterator[ConfigProblem]:
    """Report the `ExpressionError` that a check raises."""
    try:
        check()
    except ExpressionError as failure:
        yield ConfigProblem(path, failure.message, failure.hint)


_CHECKS: Mapping[str, Callable[[Step, str], Iterator[ConfigProblem]]] = {
    "groupby": _check_group,
    "join": _check_join,
    "parse_date": _check_dates,
    "regex_extract": _check_pattern,
    "table_filter": _check_condition,
}

COUNTED = {"count": Aggregation("count")}
"""Default of `aggregations`."""
