"""Pipeline node; filtering rows by conditions.

Node type `pipeline`: a table goes through a few steps, one after the other, and comes out as another one.

The steps themselves are pure functions, in `tables`, `grouping`, `joining` and `extraction`; what they must not do in
this process is done in another one. This file leads the table through them, keeps it within its limits, and says of a
step that fails which one it was, and at which row.

Filtering a table by a condition of any kind, each row being the `output` that it looks at.

Rows are decided a few hundred at a time, so that others get their turn in between. What is too much for this process
goes to another one, and not row by row: all rows of a portion that wait for the same condition travel together.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import msgspec

from tidemill.expressions.conditions import (
    Condition,
    EvaluationRequest,
    EvaluationSteps,
    Leaf,
    Verdict,
    compiled,
    decide,
)
from tidemill.expressions.errors import ExpressionError, kind_of, listing
from tidemill.expressions.sandbox import tasks
from tidemill.expressions.sandbox.pool import SandboxExecutor
from tidemill.expressions.sandbox.tasks import FilterRows, Jq
from tidemill.expressions.scope import Scope, Seen
from tidemill.handlers.contract import CapabilityMissing, Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.data.steps import (
    COUNTED,
    JQ_SECONDS,
    SCHEMAS,
    STEPS_MAX,
    Step,
    call_config,
    config_problems,
    one_or_more,
    program_flaws,
)
from tidemill.handlers.data.tables import (
    ABSENT,
    SUFFIX,
    Dates,
    Extract,
    Join,
    Rows,
    TableError,
    aggregation,
    drop_fields,
    extract,
    first_rows,
    group_rows,
    join_rows,
    parse_dates,
    read,
    select_fields,
    sort_keys,
    sort_rows,
    table,
)
from tidemill.kernel.model import NodeType

PORTION = 200
"""Rows that are decided in one go: some milliseconds of work."""


async def filter_rows(rows: Rows, condition: Condition, scope: Scope, carrier: SandboxExecutor) -> Rows:
    """Give the rows for which the condition holds; raise `Wrong` for the first that has no answer."""
    kept: Rows = []
    for start in range(0, len(rows), PORTION):
        portion = rows[start : start + PORTION]
        decided = await _Portion(condition, scope, portion, start, carrier).decided()
        kept += [row for number, row in enumerate(portion) if decided[number]]
        await asyncio.sleep(0)
    return kept


class _Portion:
    """Some rows, and the computation that decides each."""

    def __init__(self, condition: Condition, scope: Scope, rows: Rows, start: int, carrier: SandboxExecutor) -> None:
        self._rows, self._start, self._carrier, self._scope = rows, start, carrier, scope
        scopes = (replace(scope, has_output=True, output=row) for row in rows)
        self._steps = [decide(condition, each) for each in scopes]
        self._known: dict[int, bool] = {}

    async def decided(self) -> dict[int, bool]:
        """Decide every row, by its number in the portion."""
        waiting = dict(self._moved(range(len(self._rows)), None))
        while waiting:
            # The rows may wait for different parts of a composite condition; those of one part go together.
            leaf = next(iter(waiting.values())).leaf
            numbers = [number for number, errand in waiting.items() if errand.leaf is leaf]
            answers = await self._asked(leaf, numbers)
            for number in numbers:
                del waiting[number]
            waiting.update(self._moved(numbers, answers))
        return self._known

    def _moved(
        self, numbers: Iterator[int] | range | list[int], answers: list[bool] | None
    ) -> Iterator[tuple[int, EvaluationRequest]]:
        """Take computations on to their next errand, or to their end."""
        for position, number in enumerate(numbers):
            steps = self._steps[number]
            try:
                yield number, _next(steps) if answers is None else steps.send(answers[position])
            except StopIteration as ended:
                verdict: Verdict = ended.value
                self._known[number] = verdict.value
            except ExpressionError as failure:
                raise self._wrong(failure, number) from None

    async def _asked(self, leaf: Leaf, numbers: list[int]) -> list[bool]:
        try:
            answers: list[bool] = await self._carrier.execute(
                FilterRows(leaf, self._scope, [self._rows[number] for number in numbers])
            )
        except ExpressionError as failure:
            place = failure.path.removeprefix("/")
            raise self._wrong(failure, numbers[int(place)] if place else None) from None
        return answers

    def _wrong(self, failure: ExpressionError, number: int | None) -> TableError:
        row = None if number is None else self._start + number
        return TableError(failure.message, field="condition", row=row, hint=failure.hint)


def _next(steps: EvaluationSteps[Verdict]) -> EvaluationRequest:
    return next(steps)


ROWS_MAX = 100_000
ROWS_MAX_MAX = 1_000_000
BYTES_MAX = 50_000_000
BYTES_MAX_MAX = 1 << 26
"""What fits through the wire to another process."""

THREAD_ROWS = 2_000
"""Rows that are worked on in the loop's own thread; more would keep others waiting."""

_CONFIG = {
    "type": "object",
    "properties": {
        "rows": True,
        "items": {"type": "string", "minLength": 1},
        "pipeline": {
            "type": "array",
            "minItems": 1,
            "maxItems": STEPS_MAX,
            "items": {"type": "object", "properties": {"step": {"enum": list(SCHEMAS)}}, "required": ["step"]},
        },
        "report": {"type": "boolean", "default": False},
        "max_rows": {"type": "integer", "minimum": 1, "maximum": ROWS_MAX_MAX, "default": ROWS_MAX},
        "max_bytes": {"type": "integer", "minimum": 1, "maximum": BYTES_MAX_MAX, "default": BYTES_MAX},
    },
    "required": ["pipeline"],
    "additionalProperties": False,
}
_ENCODER = msgspec.json.Encoder()


class Limits(NamedTuple):
    """How large a table may be, at every step."""

    rows_max: int = ROWS_MAX
    bytes_max: int = BYTES_MAX


class PipelineServices(NamedTuple):
    """What steps need beyond the table itself."""

    context: NodeContext
    http: Handler
    carrier: SandboxExecutor
    limits: Limits


def pipeline_handler(http: Handler, carrier: SandboxExecutor) -> Handler:
    """The node type over the one that calls URLs, and over somebody who works in other processes."""
    described = NodeType(
        name="pipeline",
        title="Pipeline",
        icon="table",
        description="Leads a table through steps: fetch, sort, filter, select, group, join and more.",
        config_schema=_CONFIG,
        secret_fields=tuple(f"pipeline.*.{field}" for field in ("auth", "headers", "params", "query", "body", "url")),
        check=lambda config: chain(config_problems(config, http.type), program_flaws(config)),
    )

    async def call(context: NodeContext) -> Ended:
        for flaw in config_problems(context.config, http.type):
            raise Fail("config_invalid", f"{flaw.path}: {flaw.message}", hint=flaw.hint)
        config: dict[str, Any] = context.config
        limits = Limits(config.get("max_rows", ROWS_MAX), config.get("max_bytes", BYTES_MAX))
        return Return(await _run(config, PipelineServices(context, http, carrier, limits)))

    return Handler(described, call)


async def _run(config: dict[str, Any], means: PipelineServices) -> Any:
    rows = source_rows(config, means.context)
    await _bounded(rows, means.limits, "the table")
    report: list[dict[str, Any]] = []
    for number, step in enumerate(config["pipeline"]):
        began, before, name = time.monotonic(), len(rows), step["step"]
        who = f"step {number + 1} ({name})"
        rows = await _stepped(rows, step, number, who, means)
        ms = round((time.monotonic() - began) * 1000, 3)
        report.append({"step": name, "rows_in": before, "rows_out": len(rows), "ms": ms})
    return {"rows": rows, "count": len(rows), "steps": report} if config.get("report") else rows


async def _stepped(rows: Rows, step: Step, number: int, who: str, means: PipelineServices) -> Rows:
    """Carry out one step, and name it if it fails."""
    name = step["step"]
    try:
        if name in _AWAITED:
            made = await _AWAITED[name](rows, step, number, means)
        else:
            made = await _worked(partial(_PURE[name], rows, step, means.limits), len(rows))
    except Fail as failed:
        # What failed behind a step keeps its code, and whether it is worth another try.
        raise _named(failed, who) from failed
    except TableError as wrong:
        raise Fail("step_failed", f"{who}{_where(wrong)}: {wrong.message}", hint=wrong.hint) from None
    except ExpressionError as failure:
        raise Fail("step_failed", f"{who}: {failure.message}", hint=failure.hint) from None
    if name in _GROWING:
        await _bounded(made, means.limits, f"{who}: its result")
    return made


def _named(failed: Fail, who: str) -> Fail:
    return type(failed)(
        failed.code,
        f"{who}: {failed.message}",
        retryable=failed.retryable,
        retry_after_ms=failed.retry_after_ms,
        hint=failed.hint,
    )


def _where(wrong: TableError) -> str:
    field = f", field {wrong.field}" if wrong.field else ""
    return field if wrong.row is None else f"{field}, row {wrong.row}"


async def _worked(work: Callable[[], Any], size: int) -> Any:
    """Do something that takes time in proportion to the table, in a thread if it is large."""
    return work() if size <= THREAD_ROWS else await asyncio.to_thread(work)


def source_rows(config: dict[str, Any], context: NodeContext) -> Rows:
    """Give the rows that a node works on: what it names, or else the output of the one node before it."""
    if "rows" in config:
        value = config["rows"]
    elif not context.upstream:
        value = []
    elif len(context.upstream) == 1:
        value = next(iter(context.upstream.values()))
    else:
        message = f"{len(context.upstream)} nodes stand before this one ({listing(context.upstream)})"
        raise Fail("rows_invalid", message, hint='say whose rows are meant: rows: "{{ node.output }}"')
    return _table(value, config.get("items"))


def _table(value: Any, items: str | None) -> Rows:
    if items is not None:
        value = read(value, items) if isinstance(value, dict) else ABSENT
        if value is ABSENT:
            raise Fail("rows_invalid", f"there is nothing under {items}")
    try:
        return table(value)
    except TableError as wrong:
        raise Fail("rows_invalid", f"the rows{_where(wrong)}: {wrong.message}", hint=wrong.hint) from None


async def _bounded(rows: Rows, limits: Limits, what: str) -> None:
    """Fail if there is too much of a table."""
    if len(rows) > limits.rows_max:
        hint = f"filter earlier, or raise max_rows (at most {ROWS_MAX_MAX})"
        raise Fail("rows_too_many", f"{what} has {len(rows)} rows, and {limits.rows_max} are allowed", hint=hint)
    if await _worked(partial(_is_larger, rows, limits.bytes_max), len(rows)):
        hint = f"select fewer fields, or raise max_bytes (at most {BYTES_MAX_MAX})"
        raise Fail("rows_too_large", f"{what} has more than {limits.bytes_max} bytes", hint=hint)


def _is_larger(rows: Rows, bytes_max: int) -> bool:
    """Add up the rows only as far as needed: what shares memory here would not share it when it is stored."""
    total = 2
    for row in rows:
        total += len(_ENCODER.encode(row)) + 1
        if total > bytes_max:
            return True
    return False


async def _fetched(_rows: Rows, step: Step, number: int, means: PipelineServices) -> Rows:
    """Call a URL. Each step has an effect key of its own, because its call is not that of another step."""
    context = msgspec.structs.replace(means.context, config=call_config(step), node=f"{means.context.node}.{number}")
    ended = means.http.call(context)
    answer = await ended if isinstance(ended, Awaitable) else ended
    assert isinstance(answer, Return)
    body = answer.value.get("body")
    if "items" not in step and isinstance(body, dict):
        body = [body]
    try:
        return _table(body, step.get("items"))
    except Fail as failure:
        hint = "name the list in the answer: items: data.results"
        raise TableError(
            f"the answer, {kind_of(answer.value.get('body'))}, is no table: {failure.message}", hint=hint
        ) from None


async def _filtered(rows: Rows, step: Step, _number: int, means: PipelineServices) -> Rows:
    condition = compiled(step["condition"])
    context = means.context
    upstream = {node: Seen(context.upstream[node]) for node in condition.references.nodes if node in context.upstream}
    inputs = context.inputs if "inputs" in condition.references.roots else None
    scope = Scope(nodes=upstream, inputs=inputs, run={"id": context.run_id})
    try:
        return await filter_rows(rows, condition, scope, means.carrier)
    except TableError as wrong:
        if set(condition.references.nodes) <= upstream.keys():
            raise
        reach = f"nodes directly before this one: {listing(context.upstream) or 'none'}"
        raise TableError(wrong.message, field=wrong.field, row=wrong.row, hint=f"{wrong.hint}; {reach}") from None


async def _queried(rows: Rows, step: Step, _number: int, means: PipelineServices) -> Rows:
    """Run a program in jq: one list is the new table, and otherwise each result is a row."""
    if not tasks.is_installed():
        raise CapabilityMissing("jq_missing", tasks.MISSING, hint=tasks.INSTALL)
    each = step.get("each", False)
    results = await means.carrier.execute(
        Jq(
            program=step["program"],
            value=msgspec.Raw(_ENCODER.encode(rows)),
            each=each,
            deadline_ms=round(step.get("timeout_seconds", JQ_SECONDS) * 1000),
        )
    )
    return table(results[0] if not each and len(results) == 1 and isinstance(results[0], list) else results)


def _sorted(rows: Rows, step: Step, _limits: Limits) -> Rows:
    return sort_rows(rows, sort_keys(step["field"], step.get("order", "asc"), step.get("nulls", "last")))


def _topped(rows: Rows, step: Step, _limits: Limits) -> Rows:
    """With a field, the top are the largest values unless the order says otherwise."""
    by = [] if "field" not in step else sort_keys(step["field"], step.get("order", "desc"), step.get("nulls", "last"))
    return first_rows(rows, step["k"], by)


def _selected(rows: Rows, step: Step, _limits: Limits) -> Rows:
    return drop_fields(rows, step["drop"]) if "drop" in step else select_fields(rows, step["fields"])


def _grouped(rows: Rows, step: Step, _limits: Limits) -> Rows:
    asked = {name: aggregation(given) for name, given in step.get("aggregations", {}).items()}
    return group_rows(rows, one_or_more(step["by"]), asked or COUNTED)


def _joined(rows: Rows, step: Step, limits: Limits) -> Rows:
    left_on, right_on = (one_or_more(step.get(side, step.get("on"))) for side in ("left_on", "right_on"))
    join = Join(left_on, right_on, step.get("how", "inner"), step.get("suffix", SUFFIX))
    return join_rows(rows, table(step["with"]), join, limits.rows_max)


def _extracted(rows: Rows, step: Step, _limits: Limits) -> Rows:
    wanted = Extract(
        step["field"], step["pattern"], step.get("into"), step.get("all", False), step.get("otherwise", "null")
    )
    return extract(rows, wanted)


def _dated(rows: Rows, step: Step, _limits: Limits) -> Rows:
    wanted = Dates(
        step["field"],
        one_or_more(step.get("format", [])),
        step.get("zone", "UTC"),
        step.get("output", "iso"),
        step.get("output_zone"),
        step.get("into"),
        step.get("otherwise", "fail"),
    )
    return parse_dates(rows, wanted)


_PURE: Mapping[str, Callable[[Rows, Step, Limits], Rows]] = {
    "table_sort": _sorted,
    "table_select": _selected,
    "top_k": _topped,
    "groupby": _grouped,
    "join": _joined,
    "regex_extract": _extracted,
    "parse_date": _dated,
}
_AWAITED: Mapping[str, Callable[[Rows, Step, int, PipelineServices], Awaitable[Rows]]] = {
    "http_request": _fetched,
    "table_filter": _filtered,
    "jq_transform": _queried,
}
_GROWING = SCHEMAS.keys() - {"table_sort", "table_filter", "top_k"}
"""Steps after which there may be more of a table than before."""
