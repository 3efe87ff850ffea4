"""Node type `pipeline`: a table passes through a list of steps.

The steps are pure functions in `tables.py`, which count what they make; large ones run in a thread, and work that may
not end in a sandbox process. This module reports which step failed, at which field and row.
`table_filter` evaluates rows in portions, so that other tasks of the event loop run in between; the rows of a portion
that need the same sandbox evaluation are sent together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from tidemill.expressions.conditions import (
    Condition,
    EvaluationRequest,
    LoopShare,
    SimpleCondition,
    Verdict,
    compiled,
    decide,
    is_small,
)
from tidemill.expressions.errors import ExpressionError, kind_of, listing
from tidemill.expressions.sandbox import tasks
from tidemill.expressions.sandbox.pool import SandboxExecutor
from tidemill.expressions.sandbox.tasks import FilterRows, Jq
from tidemill.expressions.scope import Scope, Seen
from tidemill.handlers.contract import (
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    object_schema,
)
from tidemill.handlers.data import tables
from tidemill.handlers.data.meter import LOOP_BYTES, Meter, Rows, TableError, metered
from tidemill.handlers.data.steps import (
    COUNTED,
    JQ_SECONDS,
    SCHEMAS,
    STEPS_MAX,
    Step,
    call_config,
    config_problems,
    one_or_more,
    program_problems,
)
from tidemill.kernel.model import NodeType

PORTION = 200
"""Rows that are evaluated at once: some milliseconds of work."""


async def filter_rows(rows: Rows, condition: Condition, scope: Scope, carrier: SandboxExecutor) -> Rows:
    """The rows for which the condition holds; raises `TableError` for the first that cannot be evaluated."""
    kept: Rows = []
    for start in range(0, len(rows), PORTION):
        portion = rows[start : start + PORTION]
        results = await _Portion(condition, scope, portion, start, carrier).results()
        kept += [row for number, row in enumerate(portion) if results[number]]
        await asyncio.sleep(0)
    return kept


class _Portion:
    """Some rows, and the evaluation of the condition for each."""

    def __init__(self, condition: Condition, scope: Scope, rows: Rows, start: int, carrier: SandboxExecutor) -> None:
        self._rows, self._start, self._carrier, self._scope = rows, start, carrier, scope
        scopes = (replace(scope, has_output=True, output=row) for row in rows)
        self._steps = [decide(condition, each) for each in scopes]
        self._known: dict[int, bool] = {}
        self._share = LoopShare()

    async def results(self) -> dict[int, bool]:
        """The result for every row, by its number in the portion."""
        waiting = await self._advance(range(len(self._rows)), None)
        while waiting:
            # Rows may wait for different parts of a composite condition; those of one part are sent together.
            leaf = next(iter(waiting.values())).leaf
            numbers = [number for number, request in waiting.items() if request.leaf is leaf]
            answers = await self._evaluate(leaf, numbers)
            for number in numbers:
                del waiting[number]
            waiting |= await self._advance(numbers, answers)
        return self._known

    async def _advance(self, numbers: Sequence[int], answers: list[bool] | None) -> dict[int, EvaluationRequest]:
        """Continue evaluations up to their next request or their end."""
        requests: dict[int, EvaluationRequest] = {}
        for position, number in enumerate(numbers):
            steps = self._steps[number]
            if self._share.is_spent():
                await asyncio.sleep(0)
            try:
                request = next(steps) if answers is None else steps.send(answers[position])
                while request is None:
                    await asyncio.sleep(0)
                    request = steps.send(False)
                requests[number] = request
            except StopIteration as ended:
                verdict: Verdict = ended.value
                self._known[number] = verdict.value
            except ExpressionError as failure:
                raise self._error(failure, number) from None
        return requests

    async def _evaluate(self, leaf: SimpleCondition, numbers: list[int]) -> Any:
        rows = [self._rows[number] for number in numbers]
        try:
            return await self._carrier.execute(FilterRows(leaf, self._scope, rows))
        except ExpressionError as failure:
            place = failure.path.removeprefix("/")
            raise self._error(failure, numbers[int(place)] if place else None) from None

    def _error(self, failure: ExpressionError, number: int | None) -> TableError:
        row = None if number is None else self._start + number
        return TableError(failure.message, field="condition", row=row, hint=failure.hint)


ROWS_MAX = 100_000
ROWS_MAX_MAX = 1_000_000
BYTES_MAX = 50_000_000
BYTES_MAX_MAX = 1 << 26
"""What fits into a message to a sandbox process."""

LOOP_ITEMS = 20_000
"""Values in the tables of a step that is begun on the event loop."""

_CONFIG = object_schema(
    ("pipeline",),
    rows=True,
    items={"type": "string", "minLength": 1},
    pipeline={
        "type": "array",
        "minItems": 1,
        "maxItems": STEPS_MAX,
        "items": {"type": "object", "properties": {"step": {"enum": list(SCHEMAS)}}, "required": ["step"]},
    },
    report={"type": "boolean", "default": False},
    max_rows={"type": "integer", "minimum": 1, "maximum": ROWS_MAX_MAX, "default": ROWS_MAX},
    max_bytes={"type": "integer", "minimum": 1, "maximum": BYTES_MAX_MAX, "default": BYTES_MAX},
)
_ENCODER = msgspec.json.Encoder()


class Limits(NamedTuple):
    """Size limits of a table, at every step."""

    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX


class PipelineServices(NamedTuple):
    context: NodeContext
    http: Handler
    carrier: SandboxExecutor
    limits: Limits


def pipeline_handler(http: Handler, carrier: SandboxExecutor) -> Handler:
    """The node type; `http` is the handler that its `http_request` steps call."""
    described = NodeType(
        name="pipeline",
        title="Pipeline",
        icon="table",
        description="Processes a table in steps: fetch, sort, filter, select, group, join and more.",
        config_schema=_CONFIG,
        secret_fields=tuple(f"pipeline.*.{field}" for field in ("auth", "headers", "params", "query", "body", "url")),
        check=lambda config: chain(config_problems(config, http.type), program_problems(config)),
        checks_anything=True,
    )

    async def call(context: NodeContext) -> HandlerOutcome:
        for problem in config_problems(context.config, http.type):
            raise Fail("config_invalid", f"{problem.path}: {problem.message}", hint=problem.hint)
        config: dict[str, Any] = context.config
        limits = Limits(config.get("max_rows", ROWS_MAX), config.get("max_bytes", BYTES_MAX))
        return Done(await _run(config, PipelineServices(context, http, carrier, limits)))

    return Handler(described, call)


# Run the steps.


async def _run(config: dict[str, Any], services: PipelineServices) -> Any:
    rows = source_rows(config, services.context)
    size = await _checked_size(rows, services.limits, "the table")
    report: list[dict[str, Any]] = []
    for number, step in enumerate(config["pipeline"]):
        began, before, name = time.monotonic(), len(rows), step["step"]
        label = f"step {number + 1} ({name})"
        rows, size = await _run_step(rows, size, step, number, label, services)
        ms = round((time.monotonic() - began) * 1000, 3)
        await asyncio.sleep(0)
        report.append({"step": name, "rows_in": before, "rows_out": len(rows), "ms": ms})
    return {"rows": rows, "count": len(rows), "steps": report} if config.get("report") else rows


async def _run_step(
    rows: Rows, size: int, step: Step, number: int, label: str, services: PipelineServices
) -> tuple[Rows, int]:
    """Run one step over rows of known size; return its rows and their size. Failures name the step."""
    name = step["step"]
    try:
        if name in _AWAITED:
            made = await _AWAITED[name](rows, step, number, services)
        else:
            small = size <= LOOP_BYTES and is_small(step, LOOP_ITEMS, LOOP_BYTES)
            work = partial(_apply, rows, step, services.limits)
            made, grown = await metered(work, services.limits.bytes_max, small=small)
            return made, size if name in _SHRINKING else grown
    except Fail as failed:
        timing: dict[str, Any] = {"retryable": failed.retryable, "retry_after_ms": failed.retry_after_ms}
        raise type(failed)(failed.code, f"{label}: {failed.message}", hint=failed.hint, **timing) from failed
    except TableError as wrong:
        if wrong.code == "rows_too_large":
            raise _too_large(f"{label}: its result", services.limits, wrong) from None
        raise Fail(wrong.code, f"{label}{_where(wrong)}: {wrong.message}", hint=wrong.hint) from None
    except ExpressionError as failure:
        raise Fail("step_failed", f"{label}: {failure.message}", hint=failure.hint) from None
    if name in _SHRINKING:
        return made, size
    return made, await _checked_size(made, services.limits, f"{label}: its result")


def _where(wrong: TableError) -> str:
    field = f", field {wrong.field}" if wrong.field else ""
    return field if wrong.row is None else f"{field}, row {wrong.row}"


def source_rows(config: dict[str, Any], context: NodeContext) -> Rows:
    """The rows that a node works on: its `rows`, or the output of its only parent."""
    if "rows" in config:
        value = config["rows"]
    elif not context.upstream:
        value = []
    elif len(context.upstream) == 1:
        value = next(iter(context.upstream.values()))
    else:
        message = f"{len(context.upstream)} nodes are directly upstream ({listing(context.upstream)})"
        raise Fail("rows_invalid", message, hint='name the rows to use: rows: "{{ node.output }}"')
    return _table(value, config.get("items"))


def _table(value: Any, items: str | None) -> Rows:
    if items is not None:
        value = tables.read(value, items) if isinstance(value, dict) else tables.ABSENT
        if value is tables.ABSENT:
            raise Fail("rows_invalid", f"there is nothing under {items}")
    try:
        return tables.table(value)
    except TableError as wrong:
        raise Fail("rows_invalid", f"the rows{_where(wrong)}: {wrong.message}", hint=wrong.hint) from None


async def _checked_size(rows: Rows, limits: Limits, what: str) -> int:
    """The bytes of rows as JSON; raises `Fail` if there are too many, or too many rows."""
    if len(rows) > limits.rows_max:
        hint = f"filter earlier, or raise max_rows (at most {ROWS_MAX_MAX})"
        raise Fail("rows_too_many", f"{what} has {len(rows)} rows, and {limits.rows_max} are allowed", hint=hint)
    try:
        return await metered(partial(_size, rows), limits.bytes_max, small=is_small(rows, LOOP_ITEMS, LOOP_BYTES))
    except TableError as wrong:
        raise _too_large(what, limits, wrong) from None


def _size(rows: Rows, meter: Meter) -> int:
    # Rows are encoded one by one up to the limit: rows that share memory here do not share it in the store.
    for row in rows:
        meter.row(row)
    return meter.size


def _too_large(what: str, limits: Limits, wrong: TableError) -> Fail:
    hint = wrong.hint or f"select fewer fields, or raise max_bytes (at most {BYTES_MAX_MAX})"
    return Fail("rows_too_large", f"{what}: {wrong.message}", hint=hint)


async def _fetch(_rows: Rows, step: Step, number: int, services: PipelineServices) -> Rows:
    """Call a URL. The step number makes its effect key different from that of other steps."""
    node = f"{services.context.node}.{number}"
    outcome = services.http.call(msgspec.structs.replace(services.context, config=call_config(step), node=node))
    answer = await outcome if isinstance(outcome, Awaitable) else outcome
    assert isinstance(answer, Done)
    body = answer.value.get("body")
    if "items" not in step and isinstance(body, dict):
        body = [body]
    try:
        return _table(body, step.get("items"))
    except Fail as failure:
        message = f"the answer, {kind_of(answer.value.get('body'))}, is not a table: {failure.message}"
        raise TableError(message, hint="name the list in the answer: items: data.results") from None


async def _filter(rows: Rows, step: Step, _number: int, services: PipelineServices) -> Rows:
    condition = compiled(step["condition"])
    context = services.context
    upstream = {node: Seen(context.upstream[node]) for node in condition.references.nodes if node in context.upstream}
    inputs = context.inputs if "inputs" in condition.references.roots else None
    scope = Scope(nodes=upstream, inputs=inputs, run={"id": context.run_id})
    try:
        return await filter_rows(rows, condition, scope, services.carrier)
    except TableError as wrong:
        if set(condition.references.nodes) <= upstream.keys():
            raise
        reach = f"direct upstream nodes: {listing(context.upstream) or 'none'}"
        raise TableError(wrong.message, field=wrong.field, row=wrong.row, hint=f"{wrong.hint}; {reach}") from None


async def _jq(rows: Rows, step: Step, _number: int, services: PipelineServices) -> Rows:
    """Run a jq program: if its only result is a list, that is the new table; otherwise each result is a row."""
    if not tasks.is_installed():
        raise CapabilityMissing("jq_missing", tasks.MISSING, hint=tasks.INSTALL)
    each, deadline_ms = step.get("each", False), round(step.get("timeout_seconds", JQ_SECONDS) * 1000)
    value = msgspec.Raw(_ENCODER.encode(rows))
    task = Jq(program=step["program"], value=value, each=each, deadline_ms=deadline_ms)
    results = await services.carrier.execute(task)
    return tables.table(results[0] if not each and len(results) == 1 and isinstance(results[0], list) else results)


def _apply(rows: Rows, step: Step, limits: Limits, meter: Meter) -> tuple[Rows, int]:
    """Apply a step; return the rows that it makes and their size as far as the meter knows it."""
    made = _made(rows, step, limits, meter)
    return made, meter.size


def _made(rows: Rows, step: Step, limits: Limits, meter: Meter) -> Rows:
    get = step.get
    match step["step"]:
        case "table_sort":
            by = tables.sort_keys(step["field"], get("order", "asc"), get("nulls", "last"))
            return tables.sort_rows(rows, by, meter)
        case "table_select" if "drop" in step:
            return tables.drop_fields(rows, step["drop"], meter)
        case "table_select":
            return tables.select_fields(rows, step["fields"], meter)
        case "top_k":
            # With a field, the default order is descending.
            by = tables.sort_keys(step["field"], get("order", "desc"), get("nulls", "last")) if "field" in step else []
            return tables.first_rows(rows, step["k"], by, meter=meter)
        case "groupby":
            asked = {name: tables.aggregation(given) for name, given in get("aggregations", {}).items()}
            return tables.group_rows(rows, one_or_more(step["by"]), asked or COUNTED, meter)
        case "join":
            left_on, right_on = (one_or_more(get(side, get("on"))) for side in ("left_on", "right_on"))
            join = tables.Join(left_on, right_on, get("how", "inner"), get("suffix", tables.SUFFIX))
            return tables.join_rows(rows, tables.table(step["with"]), join, limits.rows_max, meter)
        case "regex_extract":
            wanted = tables.Extract(
                step["field"], step["pattern"], get("into"), get("all", False), get("otherwise", "null")
            )
            return tables.extract(rows, wanted, meter)
        case _:
            formats, zone, output = one_or_more(get("format", [])), get("zone", "UTC"), get("output", "iso")
            into, otherwise = get("into"), get("otherwise", "fail")
            dates = tables.Dates(step["field"], formats, zone, output, get("output_zone"), into, otherwise)
            return tables.parse_dates(rows, dates, meter)


_AWAITED: Mapping[str, Callable[[Rows, Step, int, PipelineServices], Awaitable[Rows]]] = {
    "http_request": _fetch,
    "table_filter": _filter,
    "jq_transform": _jq,
}
_SHRINKING = frozenset({"table_sort", "table_filter", "top_k"})
"""Steps that cannot make a table larger."""
