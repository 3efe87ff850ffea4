"""Conditions in Python: what is read in the code, what it decides, and what it cannot do."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from pydantic_monty import Monty, MontyError

from tests.fixtures.child_processes import children_of, deciders, until, worked_ms
from tests.fixtures.scopes import AFTER, SCOPE
from tidemill.errors import Problem
from tidemill.expressions.conditions import EvaluationRequest, Verdict, compiled, decide, parse_condition
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.python_condition import MODULES, Sandbox
from tidemill.expressions.sandbox.pool import SandboxPool, run_steps
from tidemill.expressions.scope import Json, References, Scope, Seen

# One child for all of them, because starting it takes longer than most tests.
shared = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def processes() -> AsyncIterator[SandboxPool]:
    made = SandboxPool(1)
    yield made
    await made.close()


def written(body: str, **more: Json) -> Json:
    """Write a condition whose function has these lines."""
    indented = "\n".join(f"    {line}" for line in body.splitlines())
    return {"type": "python_sandbox", "code": f"def evaluate(output, context):\n{indented}", **more}


def sandbox(raw: Json) -> Sandbox:
    condition = compiled(raw)
    assert isinstance(condition, Sandbox)
    return condition


def problems(raw: Json) -> list[Problem]:
    condition, found = parse_condition(raw, "/when")
    assert (condition is None) is bool(found)
    return found


async def decided(processes: SandboxPool, raw: Json, scope: Scope = AFTER) -> bool:
    condition = sandbox(raw)
    return await processes.holds(EvaluationRequest(condition, scope, condition.deadline_ms))


async def failure(processes: SandboxPool, raw: Json, scope: Scope = AFTER) -> ExpressionError:
    with pytest.raises(ExpressionError) as caught:
        await decided(processes, raw, scope)
    assert caught.value.code == "condition_failed"
    return caught.value


GROWTH = """
def evaluate(output, context):
    before = context.get("last_month", {}).get("output", {}).get("revenue", 0)
    growth = (output["revenue"] - before) / before if before > 0 else 0
    return growth > 0.2 and output.get("churn_rate", 1) < 0.05
"""


@shared
@pytest.mark.parametrize(
    ("before", "churn_rate", "holds"), [(100, 0.01, True), (125, 0.01, False), (100, 0.1, False), (0, 0.01, False)]
)
async def test_logic_over_the_outputs_of_several_nodes(
    processes: SandboxPool, before: int, churn_rate: float, holds: bool
) -> None:
    output = {"revenue": 130, "churn_rate": churn_rate}
    scope = replace(AFTER, nodes={"last_month": Seen({"revenue": before})}, output=output)
    assert await decided(processes, {"type": "python_sandbox", "code": GROWTH}, scope) is holds


@shared
@pytest.mark.parametrize(
    "body",
    [
        "return output['score'] == 87 and output['tags'] == ['a', 'b'] and output['none'] is None",
        "return context['enrich']['meta']['attempts'] == 2",
        "return 'meta' not in context['text'] and context['null'] == {'output': None}",
        "return 'skipped' not in context and context.get('later') is None",
        "return sorted(context) == ['a-b', 'enrich', 'null', 'text']",
        "import re, math\nreturn math.floor(2.5) == 2 and bool(re.match('a+', 'aab'))",
        "total = 0\nfor each in range(1000):\n    total += each\nreturn total == 499500",
        "print('x' * 1000000)\nreturn True",
        "return type(output['score']) is int and type(output['n']) is float",
    ],
)
async def test_what_the_function_sees(processes: SandboxPool, body: str) -> None:
    assert await decided(processes, written(body))


@shared
async def test_a_part_of_a_composite(processes: SandboxPool) -> None:
    parts = ["output.score > 80", written("return len(output['tags']) == 2")]
    raw = {"type": "composite", "operator": "AND", "conditions": parts}
    verdict = run_steps(decide(compiled(raw), AFTER), processes)
    assert not isinstance(verdict, Verdict)
    assert [part.reason for part in (await verdict).parts][1] == "evaluate(output, context) is true"


@shared
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        pytest.param("return 1", "a number", id="number"),
        ("return None", "None"),
        ("return 'yes'", "a string"),
        ("return [0] * 1000000", "a list"),
    ],
)
async def test_only_a_boolean_decides(processes: SandboxPool, body: str, kind: str) -> None:
    assert (await failure(processes, written(body))).message == (
        f"evaluate must return True or False, and it returned {kind}"
    )


@shared
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return 1 / 0", "evaluate failed in line 2: ZeroDivisionError: division by zero"),
        ("\nraise ValueError('boom')", "evaluate failed in line 3: ValueError: boom"),
        ("return output['nothing']", "evaluate failed in line 2: KeyError: nothing"),
        ("return unknown", "evaluate failed in line 2: NameError: name 'unknown' is not defined"),
        ("raise SystemExit", "evaluate failed in line 2: SystemExit"),
    ],
)
async def test_an_exception_is_told_with_its_line(processes: SandboxPool, body: str, message: str) -> None:
    assert (await failure(processes, written(body))).message == message


@shared
async def test_a_node_without_an_output_is_told_by_its_reason(processes: SandboxPool) -> None:
    found = await failure(processes, written("return context['skipped']['output'] == 1"))
    assert found.message == "evaluate failed in line 2: KeyError: skipped"
    assert found.hint == 'node "skipped" was skipped: ask "skipped" in context first'


@shared
@pytest.mark.parametrize(
    "body",
    [
        "import time\nreturn time.time() > 0",
        "import datetime\nreturn datetime.datetime.now().year > 0",
        "import os\nreturn len(os.environ) >= 0",
        "return len(open('/etc/passwd').read()) > 0",
        "return True.__class__.__name__ == 'bool'",
        "return len(object.__subclasses__()) > 0",
        "return __import__('os') is not None",
    ],
    ids=lambda body: "".join(each if each.isalnum() else "-" for each in body),
)
async def test_the_world_is_out_of_reach(processes: SandboxPool, body: str) -> None:
    assert (await failure(processes, written(body))).message.startswith("evaluate failed in line ")


@shared
@pytest.mark.parametrize(
    "body",
    ["while True: pass", "while True: print('x')", "return sum(range(10 ** 12)) > 0"],
    ids=["loop", "print", "sum"],
)
async def test_time_is_bounded(processes: SandboxPool, body: str) -> None:
    begun = time.monotonic()
    told = await failure(processes, written(body, timeout_ms=200))
    assert told.message == "evaluate took longer than 200 ms"
    assert time.monotonic() - begun < 30


@shared
async def test_sleeping_takes_no_time(processes: SandboxPool) -> None:
    begun = time.monotonic()
    assert await decided(processes, written("import time\ntime.sleep(50)\nreturn True"))
    assert time.monotonic() - begun < 30


@shared
@pytest.mark.parametrize(
    "body",
    [
        "return len([0] * 10 ** 9) > 0",
        "text = 'a'\nwhile True: text += text",
        "return 10 ** 10 ** 10 > 0",
        "return len('a' * 60000000) > 0",
        "return len('a'.ljust(10 ** 10)) > 0",
        "every = []\nwhile True: every.append([0] * 1000)",
    ],
    ids=["list", "text", "power", "modest", "padding", "growth"],
)
async def test_memory_is_bounded(processes: SandboxPool, body: str) -> None:
    told = await failure(processes, written(body))
    assert told.message == "evaluate needs more than 50 MB of memory"
    assert "raise max_memory_mb (at most 1024)" in told.hint


@shared
async def test_memory_can_be_asked_for(processes: SandboxPool) -> None:
    body = "return len('a' * 200000000) > 0"
    assert await decided(processes, written(body, max_memory_mb=1024, timeout_ms=10_000))


async def interpreter_killed(processes: SandboxPool, number: int, body: str) -> tuple[asyncio.Task[bool], int]:
    """Send a signal to the interpreter while it is busy; give what is under way, and the child that it worked for."""
    assert await decided(processes, written("return True"))
    (child,) = deciders()
    (interpreter,) = children_of(child)
    before_ms = worked_ms(interpreter)
    asked = asyncio.create_task(decided(processes, written(body, timeout_ms=30_000)))
    await until(lambda: worked_ms(interpreter) > before_ms + 100)
    os.kill(interpreter, number)
    return asked, child


@shared
async def test_an_interpreter_that_somebody_killed_is_asked_again(processes: SandboxPool) -> None:
    body = "total = 0\nfor each in range(5000000):\n    total += each\nreturn True"
    asked, child = await interpreter_killed(processes, signal.SIGKILL, body)
    assert await asked
    assert deciders() != [child]


@shared
async def test_an_interpreter_that_dies_is_replaced(processes: SandboxPool) -> None:
    asked, child = await interpreter_killed(processes, signal.SIGABRT, "while True: pass")
    with pytest.raises(ExpressionError, match="the interpreter died"):
        await asked
    assert await decided(processes, written("return True"))
    assert deciders() == [child]


@shared
async def test_nothing_survives_from_one_evaluation_to_the_next(processes: SandboxPool) -> None:
    code = "seen = []\ndef evaluate(output, context):\n    seen.append(1)\n    return len(seen) == 1"
    for _ in range(3):
        assert await decided(processes, {"type": "python_sandbox", "code": code})
    assert (await failure(processes, written("return seen == [1]"))).message.endswith("name 'seen' is not defined")


def test_no_code_of_an_author_runs_in_this_process() -> None:
    condition = sandbox(written("return True"))
    assert not condition.light
    with pytest.raises(AssertionError):
        condition.holds({}, SCOPE)


@shared
async def test_there_is_no_output_before_the_node_has_run(processes: SandboxPool) -> None:
    told = await failure(processes, written("return output is None"), SCOPE)
    assert told.message == "output is not available here"
    assert await decided(processes, written("return context['enrich']['output']['score'] > 80"), SCOPE)


@pytest.mark.parametrize(
    ("body", "nodes", "roots", "dynamic"),
    [
        ("return True", set(), set(), False),
        ("return output", set(), {"output"}, False),
        ("return context['a']['output'] or context.get('b')", {"a", "b"}, {"ctx"}, False),
        ("return 'a' in context and 'b' not in context", {"a", "b"}, {"ctx"}, False),
        ("return [context['a'] for _ in output]", {"a"}, {"output", "ctx"}, False),
        pytest.param("return context[output]", set(), {"output", "ctx"}, True, id="computed"),
        ("return context['a'] == 1 and len(context) == 2", {"a"}, {"ctx"}, True),
        ("return context.keys()", set(), {"ctx"}, True),
        ("context = output", set(), {"output", "ctx"}, True),
        ("return (lambda context: context['a'])(output)", {"a"}, {"output", "ctx"}, True),
        ("import json as context", set(), {"ctx"}, True),
        ("return eval('con' + 'text')", set(), {"output", "ctx"}, True),
        ("return output.context and dict(context=1)", set(), {"output"}, False),
    ],
)
def test_what_the_code_refers_to(body: str, nodes: set[str], roots: set[str], dynamic: bool) -> None:
    found = sandbox(written(body)).references
    assert found == References(frozenset(nodes), frozenset(roots), dynamic)


def test_the_parameters_may_have_other_names() -> None:
    code = "def evaluate(mine, theirs, strict=False):\n    return theirs['a'] == mine and context['b']"
    found = sandbox({"type": "python_sandbox", "code": code}).references
    assert found == References(frozenset({"a"}), frozenset({"output", "ctx"}))
    assert sandbox({"type": "python_sandbox", "code": "def evaluate(*both): return True"}).references.dynamic


def test_the_last_definition_counts() -> None:
    code = (
        "_output = _answer = 1\ndef evaluate(a, b): return len(b)\ndef evaluate(output, context): return context['a']"
    )
    found = sandbox({"type": "python_sandbox", "code": code}).references
    assert found == References(frozenset({"a"}), frozenset({"ctx"}))


HIDDEN = [
    "def loud(f):\n    def inner(o, c): return len(c) == 4\n    return inner\n@loud\n{plain}",
    "{plain}\ndef other(o, c): return len(c) == 4\nevaluate = other",
    "{plain}\ndef other(o, c): return len(c) == 4\nevaluate, before = other, evaluate",
    "{plain}\nif True:\n    def evaluate(o, c): return len(c) == 4",
    "{plain}\ndef other(o, c): return len(c) == 4\ndef swap():\n    global evaluate\n    evaluate = other\nswap()",
    "{plain}\nfor evaluate in [lambda o, c: len(c) == 4]: pass",
    "{plain}\n[evaluate := lambda o, c: len(c) == 4]",
    "def evaluate(output, context): return len(_context) == 4 and _output['score'] == 87",
]


@shared
@pytest.mark.parametrize("code", HIDDEN, ids=["decorator", "name", "pair", "if", "global", "for", "walrus", "around"])
async def test_whatever_function_is_called_sees_everything(processes: SandboxPool, code: str) -> None:
    """The body that carries the name is not what is called, so nothing is known of what the code reads."""
    raw = {"type": "python_sandbox", "code": code.format(plain="def evaluate(output, context): return False")}
    assert sandbox(raw).references == References(roots=frozenset({"output", "ctx"}), dynamic=True)
    assert await decided(processes, raw)


def test_the_normal_form_says_everything() -> None:
    code = "def evaluate(output, context): return True"
    condition = sandbox({"type": "python_sandbox", "code": code})
    normal = condition.normal()
    assert normal == {"type": "python_sandbox", "code": code, "timeout_ms": 1000, "max_memory_mb": 50}
    assert compiled(normal) == condition
    assert condition.deadline_ms > 1000


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def evaluate(output, context:\n    return True", "line 1: '(' was never closed"),
        ("x = 1", "the code defines no function called evaluate"),
        ("async def evaluate(output, context): return True", "the code defines no function called evaluate"),
        ("def evaluate(output): return True", "line 1: evaluate is called with two arguments, output and context"),
        ("def evaluate(a, b, c): return 1", "line 1: evaluate is called with two arguments, output and context"),
        ("#" * 65537, "code is limited to 65536 characters"),
        ("-" * 60000 + "1", "the code is nested too deeply"),
        ("a" + ".a" * 20000, "the code is nested too deeply"),
        ("'\ud800'", "the code is not valid Unicode text"),
    ],
    ids=lambda value: value[:30].encode("ascii", "replace").decode(),
)
def test_code_that_cannot_be_called_is_refused(code: str, message: str) -> None:
    (problem,) = problems({"type": "python_sandbox", "code": code})
    assert (problem.code, problem.path, problem.message) == ("condition_syntax", "/when/code", message)


UNSUPPORTED = [
    "import socket",
    "import collections.abc",
    "from . import secrets",
    "from math import *",
    "del output['a']",
    "yield True",
    "class Mine(ValueError): pass",
    "try:\n    pass\nexcept* ValueError:\n    pass",
    "async def later():\n    async for each in output: pass",
]


@pytest.fixture(scope="module")
def interpreters() -> Iterator[Monty]:
    with Monty(max_processes=1) as pool:
        yield pool


@pytest.mark.parametrize("body", UNSUPPORTED)
def test_what_the_interpreter_does_not_know_is_refused_before(interpreters: Monty, body: str) -> None:
    """The second half shows that it is right to refuse it."""
    raw = written(body)
    if body == "from math import *":
        raw = {"type": "python_sandbox", "code": f"{body}\ndef evaluate(output, context): return True"}
    found = problems(raw)
    assert [problem.code for problem in found] == ["condition_syntax"]
    assert found[0].message.startswith("line ")
    with interpreters.checkout() as session, pytest.raises(MontyError):
        session.feed_run(raw["code"] + "\nevaluate({'a': 1}, {})")


def test_the_list_of_modules_is_the_interpreters(interpreters: Monty) -> None:
    found = set()
    for name in sys.stdlib_module_names | {"os.path", "collections.abc"}:
        with interpreters.checkout() as session, suppress(MontyError):
            session.feed_run(f"import {name}")
            found.add(name)
    assert found | {"__future__"} == MODULES


@pytest.mark.parametrize(
    ("more", "path", "message"),
    [
        ({"timeout_ms": 0}, "/when/timeout_ms", "timeout_ms is a whole number from 1 to 60000"),
        ({"timeout_ms": 60_001}, "/when/timeout_ms", "timeout_ms is a whole number from 1 to 60000"),
        ({"max_memory_mb": 1.5}, "/when/max_memory_mb", "max_memory_mb is a whole number from 1 to 1024"),
        ({"timeout": 5}, "/when/timeout", 'there is no key "timeout" here'),
        ({"code_ref": "sha256:00"}, "/when/code_ref", "code and code_ref are mutually exclusive"),
        ({"code": 5}, "/when/code", "code is a string, not a number"),
    ],
)
def test_the_shape_is_checked(more: dict[str, Json], path: str, message: str) -> None:
    (problem,) = problems(written("return True") | more)
    assert (problem.code, problem.path, problem.message) == ("condition_shape", path, message)
    assert problem.hint


def test_code_must_be_there() -> None:
    assert [each.message for each in problems({"type": "python_sandbox"})] == ["a python_sandbox condition needs code"]
    (left_over,) = problems({"type": "python_sandbox", "code_ref": "sha256:00"})
    assert (left_over.code, left_over.path) == ("condition_shape", "/when/code_ref")


def test_every_problem_is_reported_at_once() -> None:
    code = "import socket\nimport ssl\ndef evaluate(output): yield output"
    found = problems({"type": "python_sandbox", "code": code, "timeout_ms": -1, "extra": 1})
    assert len(found) == 6


def test_without_the_interpreter_the_condition_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    (problem,) = problems(written("return False  # not compiled before"))
    assert problem.code == "sandbox_missing"
    assert problem.hint == 'pip install "tidemill[sandbox]"'


@shared
async def test_hundreds_of_evaluations_leave_nothing_behind(processes: SandboxPool) -> None:
    raw = written("return output['score'] == 87 and context['enrich']['output']['name'] == 'Ada'")
    fails = written("return output['nothing']")
    await decided(processes, raw)
    (child,) = deciders()

    async def rounds(number: int) -> tuple[int, int, int, int]:
        for _ in range(number):
            assert await decided(processes, raw)
        await failure(processes, fails)
        (now,) = deciders()
        assert now == child
        (interpreter,) = children_of(child)
        return _files(os.getpid()), _files(child), _files(interpreter), _resident_kb(child)

    before, after = await rounds(100), await rounds(300)
    assert after[:3] == before[:3]
    assert after[3] < before[3] + 4096


def _files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def _resident_kb(pid: int) -> int:
    pages = Path(f"/proc/{pid}/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGE_SIZE") // 1024
