"""`tidemill eval` and `tidemill render`: one condition or template, tried over values given as options."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from msgspec.structs import replace

from tidemill.cli import main
from tidemill.cli.inputs import FILE_ENDINGS, read_bytes, read_data, read_exact, read_inputs
from tidemill.cli.render.terminal import DIM, GREEN, YELLOW, Styler, one_line, print_json, report_problems, sanitize
from tidemill.errors import Problem, Rejected, rejected
from tidemill.expressions.conditions import Composite, Condition, Verdict, decide, normal, parse_condition
from tidemill.expressions.errors import NO_OUTPUT, ExpressionError
from tidemill.expressions.sandbox.pool import run_steps
from tidemill.expressions.scope import NODE_MAPS, RESERVED, Scope, Seen
from tidemill.expressions.templates.template import check_template, compile_template

T = TypeVar("T")

PARTS = frozenset({"output", "meta"})
_OWN = frozenset({"inputs", "run", "item", "index", "iteration"})


class OptionReader:
    """Reads several options and collects their problems, so that all are reported at once."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []

    def take(self, read: Callable[[], T]) -> T | None:
        """Read something; None if it was refused."""
        try:
            return read()
        except Rejected as refusal:
            self.problems += refusal.problems
            return None


def read_mapping(option: str, text: str) -> dict[str, Any]:
    """The value of an option that is a JSON object. Raises Rejected."""
    return _mapping(option, read_exact(option, text))


def seen_nodes(outputs: Mapping[str, Any]) -> dict[str, Seen]:
    """The nodes by their ids: `{node: output}`, or `{node: {output, meta}}` if every value has that form."""
    if outputs and all(
        isinstance(each, dict) and "output" in each and each.keys() <= PARTS for each in outputs.values()
    ):
        return {
            node: Seen(each["output"], _mapping(f"meta of {node}", each.get("meta", {})))
            for node, each in outputs.items()
        }
    return {node: Seen(output) for node, output in outputs.items()}


def template_scope(given: Mapping[str, Any], option: str) -> Scope:
    """The scope of a template: reserved names mean what they mean in a document, any other is a node."""
    nodes = {node: Seen(output) for node, output in given.items() if node not in RESERVED}
    for name in sorted(NODE_MAPS & given.keys()):
        nodes |= seen_nodes(_mapping(f"{option}: {name}", given[name]))
    unknown = (RESERVED & given.keys()) - _OWN - NODE_MAPS
    if unknown:
        name = min(unknown)
        message = f"{option}: a template cannot see {name}"
        known = ", ".join(sorted(_OWN | NODE_MAPS))
        raise rejected("option_invalid", message, hint=f"known names: {known}; any other name is a node's id")
    return Scope(
        nodes=nodes,
        inputs=given.get("inputs", {}),
        run=_mapping(f"{option}: run", given.get("run", {})),
        iteration=_count(f"{option}: iteration", given.get("iteration", 0)),
        has_item="item" in given,
        item=given.get("item"),
        index=_count(f"{option}: index", given.get("index", 0)),
    )


def _mapping(what: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise rejected("option_invalid", f"{what} is not a JSON object", hint='write {"name": value, …}')
    return value


def _count(what: str, value: Any) -> int:
    if type(value) is not int or value < 0:
        raise rejected("option_invalid", f"{what} is a whole number from 0", hint="the first is 0")
    return value


REASON_COLUMNS = 100
_REFERENCES = {"code_ref": "code", "schema_ref": "schema"}


@dataclass(frozen=True, slots=True)
class EvalOptions:
    condition: str
    output: str | None
    context: str | None
    inputs: str | None
    given: tuple[str, ...]
    """Inputs by name, beside those of `inputs`."""
    iteration: int
    store: str
    as_json: bool


class _Part(NamedTuple):
    path: str
    condition: Condition
    verdict: Verdict


def evaluate(options: EvalOptions) -> int:
    """Evaluate a condition and print why; exit code 0 for true and for false."""
    try:
        condition, scope = _read_condition(options)
    except Rejected as refusal:
        report_problems(refusal.problems, as_json=options.as_json)
        return main.REFUSED
    try:
        verdict, ms = asyncio.run(_decided(condition, scope))
    except ExpressionError as failure:
        problem = failure.problem()
        if failure.hint == NO_OUTPUT:
            # What a run cannot have can be given here.
            problem = replace(problem, hint="give it one: --output JSON")
        report_problems([problem], as_json=options.as_json)
        return main.FAILED
    _print_verdict(_Part("", condition, verdict), ms, options.as_json)
    return main.OK


async def _decided(condition: Condition, scope: Scope) -> tuple[Verdict, float]:
    """Evaluate it, and measure the milliseconds."""
    from tidemill.expressions.sandbox.pool import SandboxPool

    processes = SandboxPool()
    began = perf_counter()
    try:
        found = run_steps(decide(condition, scope), processes)
        verdict: Verdict = await found if isawaitable(found) else found
        return verdict, (perf_counter() - began) * 1000
    finally:
        await processes.close()


def _read_condition(options: EvalOptions) -> tuple[Condition, Scope]:
    """Read all options; raises Rejected with the problems of all of them."""
    readings = OptionReader()
    raw = readings.take(lambda: _with_blobs(_raw_condition(options.condition), options.store))
    condition = None
    if not readings.problems:
        condition, problems = parse_condition(raw)
        readings.problems += problems
    has_output = options.output is not None
    output = readings.take(lambda: read_exact("--output", options.output or "")) if has_output else None
    context = readings.take(lambda: seen_nodes(read_mapping("--context", options.context or "{}")))
    inputs = readings.take(lambda: read_mapping("--inputs", options.inputs or "{}") | read_inputs(options.given))
    if readings.problems or condition is None:
        raise Rejected(readings.problems)
    scope = Scope(
        nodes=context or {}, inputs=inputs, run={}, iteration=options.iteration, has_output=has_output, output=output
    )
    return condition, scope


def _raw_condition(text: str) -> Any:
    """A file if there is one of that name, JSON if it begins with a brace, else CEL."""
    if text.startswith("@"):
        return read_data(text[1:])
    is_file = False
    with suppress(OSError, ValueError):
        is_file = Path(text).is_file()
    if "\n" not in text and (text.endswith(FILE_ENDINGS) or is_file):
        return read_data(text)
    return read_exact("--condition", text) if text.lstrip().startswith("{") else text


def _with_blobs(raw: Any, store: str) -> Any:
    """The condition with the code and schemas it refers to; the store is opened only if there are any."""
    if not isinstance(raw, dict):
        return raw
    filled = dict(raw)
    if isinstance(raw.get("conditions"), list):
        filled["conditions"] = [_with_blobs(each, store) for each in raw["conditions"]]
    for reference, key in _REFERENCES.items():
        if isinstance(raw.get(reference), str) and key not in raw:
            text = _blob(store, filled.pop(reference))
            filled[key] = text if key == "code" else read_exact(reference, text)
    return filled


def _blob(store: str, digest: str) -> str:
    import io

    from tidemill import client
    from tidemill.cli.session import CLOSE_SECONDS_MAX
    from tidemill.storage_urls import require_store_exists

    require_store_exists(store)
    mill = client.open(store, work=False)
    found = io.BytesIO()
    try:
        mill.save_blob(digest, found)
        return found.getvalue().decode()
    except UnicodeDecodeError:
        raise rejected("not_utf8", f"{digest} is not text in UTF-8") from None
    finally:
        mill.close(timeout_s=CLOSE_SECONDS_MAX)


def _parts(whole: _Part) -> Iterator[_Part]:
    """The parts of a composite condition that were asked, in order, with those inside of them."""
    if isinstance(whole.condition, Composite):
        for number, (condition, verdict) in enumerate(zip(whole.condition.parts, whole.verdict.parts, strict=False)):
            part = _Part(f"{whole.path}/conditions/{number}", condition, verdict)
            yield part
            yield from _parts(part)


def _print_verdict(whole: _Part, ms: float, as_json: bool) -> None:
    if as_json:
        parts = [{"path": part.path, "type": normal(part.condition)["type"], **_answer(part)} for part in _parts(whole)]
        print_json({**_answer(whole), "parts": parts, "ms": round(ms, 3)})
        return
    paint = Styler()
    for part in (whole, *_parts(whole)):
        result = paint("true", GREEN) if part.verdict.value else paint("false", YELLOW)
        condition = part.condition
        reason = part.verdict.reason if isinstance(condition, Composite) else condition.told()
        aligned = " " if part.verdict.value else ""
        head = f"{result}  " if part is whole else f"  {result}{aligned}  {paint(part.path, DIM)}  "
        print(head + one_line(reason, REASON_COLUMNS))


def _answer(part: _Part) -> dict[str, Any]:
    return {"result": part.verdict.value, "reason": part.verdict.reason}


def render(template: str, scope: str, given: Sequence[str], *, as_json: bool) -> int:
    readings = OptionReader()
    value = readings.take(lambda: _template(template))
    if not readings.problems:
        readings.problems += check_template(value)[0]
    seen = readings.take(lambda: template_scope(read_mapping("--scope", scope), "--scope"))
    more = readings.take(lambda: read_inputs(given))
    if seen is not None and more:
        seen.inputs = {**(seen.inputs if isinstance(seen.inputs, dict) else {}), **more}
    if readings.problems or seen is None:
        report_problems(readings.problems, as_json=as_json)
        return main.REFUSED
    try:
        rendered = compile_template(value).render(seen)
    except ExpressionError as failure:
        report_problems([failure.problem()], as_json=as_json)
        return main.FAILED
    if as_json or not isinstance(rendered, str):
        print_json(rendered)
    else:
        print(sanitize(rendered))
    return main.OK


def _template(text: str) -> Any:
    """A text, or what a file holds: a value if it is JSON or YAML by its name, else one text."""
    if not text.startswith("@"):
        return text
    name = text[1:]
    if name.endswith(FILE_ENDINGS):
        return read_data(name)
    try:
        return read_bytes(name).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise rejected("not_utf8", f"{name} is not UTF-8", hint="save the file as UTF-8") from None
