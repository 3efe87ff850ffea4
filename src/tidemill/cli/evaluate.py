"""`tidemill eval`: one condition, decided here over values that are given on the command line."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from inspect import isawaitable
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from msgspec.structs import replace

from tidemill.cli import exits
from tidemill.cli.paint import DIM, GREEN, YELLOW, Paint
from tidemill.cli.problems import print_json, tell_problems
from tidemill.cli.scopes import Readings, read_mapping, seen_nodes
from tidemill.cli.sources import FILE_ENDINGS, read_data, read_exact
from tidemill.cli.terminal import one_line
from tidemill.errors import Problem, Rejected, rejected
from tidemill.expressions.conditions import Composite, Condition, Verdict, decide, normal, parse_condition
from tidemill.expressions.failure import NO_OUTPUT, ExpressionError
from tidemill.expressions.isolation import settled
from tidemill.expressions.scope import Scope

REASON_COLUMNS = 100
_REFERENCES = {"code_ref": "code", "schema_ref": "schema"}


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What was given, as text."""

    condition: str
    output: str | None
    context: str | None
    inputs: str | None
    iteration: int
    store: str
    as_json: bool


class _Part(NamedTuple):
    path: str
    condition: Condition
    verdict: Verdict


def evaluate(options: EvalOptions) -> int:
    """Decide a condition and tell how; exit code 0 for true and for false."""
    try:
        condition, scope = _read(options)
    except Rejected as refusal:
        tell_problems(refusal.problems, as_json=options.as_json)
        return exits.REFUSED
    try:
        verdict, ms = asyncio.run(_decided(condition, scope))
    except ExpressionError as failure:
        tell_problems([_problem(failure)], as_json=options.as_json)
        return exits.FAILED
    _tell(_Part("", condition, verdict), ms, options.as_json)
    return exits.OK


def _problem(failure: ExpressionError) -> Problem:
    """The same facts; what a run cannot have here can be given."""
    problem = failure.problem()
    return replace(problem, hint="give it one: --output JSON") if failure.hint == NO_OUTPUT else problem


async def _decided(condition: Condition, scope: Scope) -> tuple[Verdict, float]:
    """Decide it, and tell in how many milliseconds."""
    from tidemill.expressions.processes import SandboxPool

    processes = SandboxPool()
    began = perf_counter()
    try:
        found = settled(decide(condition, scope), processes)
        verdict: Verdict = await found if isawaitable(found) else found
        return verdict, (perf_counter() - began) * 1000
    finally:
        await processes.close()


def _read(options: EvalOptions) -> tuple[Condition, Scope]:
    """Read all options; raises Rejected with the problems of all of them."""
    readings = Readings()
    raw = readings.take(lambda: _with_blobs(_raw_condition(options.condition), options.store))
    condition = None
    if not readings.problems:
        condition, problems = parse_condition(raw)
        readings.problems += problems
    has_output = options.output is not None
    output = readings.take(lambda: read_exact("--output", options.output or "")) if has_output else None
    context = readings.take(lambda: seen_nodes(read_mapping("--context", options.context or "{}")))
    inputs = readings.take(lambda: read_mapping("--inputs", options.inputs or "{}"))
    readings.refuse()
    assert condition is not None, "without problems there is a condition"
    scope = Scope(
        nodes=context or {},
        inputs=inputs,
        run={},
        iteration=options.iteration,
        has_output=has_output,
        output=output,
    )
    return condition, scope


def _raw_condition(text: str) -> Any:
    """A file if there is one of that name, JSON if it begins with a brace, else CEL."""
    if text.startswith("@"):
        return read_data(text[1:])
    if "\n" not in text and (text.endswith(FILE_ENDINGS) or _is_file(text)):
        return read_data(text)
    return read_exact("--condition", text) if text.lstrip().startswith("{") else text


def _is_file(text: str) -> bool:
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


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

    from tidemill import front
    from tidemill.bootstrap import check_there
    from tidemill.cli.asking import CLOSE_SECONDS_MAX

    check_there(store)
    mill = front.open(store, work=False)
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


def _tell(whole: _Part, ms: float, as_json: bool) -> None:
    if as_json:
        parts = [{"path": part.path, "type": _kind(part), **_answer(part)} for part in _parts(whole)]
        print_json({**_answer(whole), "parts": parts, "ms": round(ms, 3)})
        return
    paint = Paint()
    print(f"{_coloured(whole, paint)}  {_words(whole)}")
    for part in _parts(whole):
        aligned = " " if part.verdict.value else ""
        print(f"  {_coloured(part, paint)}{aligned}  {paint(part.path, DIM)}  {_words(part)}")


def _answer(part: _Part) -> dict[str, Any]:
    return {"result": part.verdict.value, "reason": part.verdict.reason}


def _kind(part: _Part) -> str:
    return str(normal(part.condition)["type"])


def _coloured(part: _Part, paint: Paint) -> str:
    return paint("true", GREEN) if part.verdict.value else paint("false", YELLOW)


def _words(part: _Part) -> str:
    condition = part.condition
    told = part.verdict.reason if isinstance(condition, Composite) else condition.told()
    return one_line(told, REASON_COLUMNS)
