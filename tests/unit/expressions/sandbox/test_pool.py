"""Evaluations in real child processes: what they answer, and what becomes of those that do not."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.child_processes import children_of, deciders, runs, until, worked_ms
from tests.fixtures.scopes import AFTER, SCOPE, WatchedScope
from tidemill.errors import Unavailable
from tidemill.expressions.conditions import Composite, EvaluationRequest, Single, Verdict, compiled, decide
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxPool, render, run_steps
from tidemill.expressions.sandbox.protocol import FRAME_MAX, packed
from tidemill.expressions.sandbox.tasks import RenderTexts
from tidemill.expressions.scope import Json, Scope, Seen
from tidemill.expressions.templates.template import compile_template
from tidemill.processes import child as child_module

SLOW = "inputs.rows.all(row, !inputs.text.matches('(a|aa)+b'))"
"""A minute of native code that holds the interpreter's lock all the while."""

ROWS = replace(SCOPE, inputs={"rows": list(range(9000)), "text": "a" * 1_000_000})


@pytest.fixture
async def processes() -> AsyncIterator[SandboxPool]:
    made = SandboxPool()
    yield made
    await made.close()
    assert deciders() == []


def leaf(raw: Json) -> Single:
    condition = compiled(raw)
    assert not isinstance(condition, Composite)
    return condition


def request(raw: Json, scope: Scope = AFTER, deadline_ms: int = 20_000) -> EvaluationRequest:
    return EvaluationRequest(leaf(raw), scope, deadline_ms)


def smaller(monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    """Have the next children start with another limit."""
    boot = child_module._BOOT.replace("main(", f"import tidemill.expressions.sandbox.child as c; {change}; main(")
    monkeypatch.setattr(child_module, "_BOOT", boot)


async def busy(processes: SandboxPool, condition: EvaluationRequest) -> tuple[asyncio.Task[bool], int]:
    """Have a warm child work on something that takes long."""
    assert await processes.holds(request("true"))
    (pid,) = deciders()
    before_ms = worked_ms(pid)
    asked = asyncio.create_task(processes.holds(condition))
    await until(lambda: worked_ms(pid) > before_ms + 50)
    return asked, pid


async def stopped(processes: SandboxPool) -> tuple[asyncio.Task[bool], int]:
    """Have a warm child stand still over a question, however fast it would answer."""
    assert await processes.holds(request("true"))
    (pid,) = deciders()
    os.kill(pid, signal.SIGSTOP)
    scope = replace(SCOPE, inputs={"rows": list(range(3000))})
    asked = asyncio.create_task(processes.holds(request("inputs.rows.map(row, row + 1).size() == 3000", scope)))
    await asyncio.sleep(0.1)
    return asked, pid


@pytest.mark.parametrize(
    ("expression", "holds"),
    [
        ("output.score == 87", True),
        ("output.score == 87.5", False),
        ("inputs.customer == 'acme' && run.version == 4 && iteration == 2", True),
        ("ctx.enrich.output.name == 'Ada' && ctx.enrich.meta.attempts == 2", True),
        ("has(ctx.skipped.output)", False),
        ("'text' in ctx && !('skipped' in ctx)", True),
        ("current.tags[1] == 'b'", True),
    ],
)
async def test_a_child_sees_what_the_condition_refers_to(processes: SandboxPool, expression: str, holds: bool) -> None:
    assert await processes.holds(request(expression)) is holds


async def test_large_values_are_decided_in_a_child(processes: SandboxPool) -> None:
    scope = replace(AFTER, output={"rows": [{"n": each} for each in range(5000)]})
    verdict = run_steps(decide(compiled("output.rows.exists(row, row.n == 4999)"), scope), processes)
    assert not isinstance(verdict, Verdict)
    assert (await verdict).value
    assert len(deciders()) == 1


async def test_a_failure_keeps_its_words(processes: SandboxPool) -> None:
    with pytest.raises(ExpressionError) as failure:
        await processes.holds(request("ctx.skipped.output.n > 1"))
    assert failure.value.code == "condition_failed"
    assert 'node "skipped" was skipped' in failure.value.message
    assert failure.value.hint == "check has(ctx.skipped.output) first"


def test_nothing_travels_but_what_is_referred_to() -> None:
    nodes = WatchedScope(SCOPE.nodes)
    frame = packed(request("ctx.enrich.output.score > 1", replace(AFTER, nodes=nodes)))
    assert nodes.asked == {"enrich"}
    assert b"acme" not in frame and b"s3cr3t" not in frame and b'"tags"' not in frame


@pytest.mark.parametrize("value", ["\ud800", 10**5000, "x" * FRAME_MAX], ids=["surrogate", "digits", "size"])
async def test_what_cannot_travel_is_a_failure(processes: SandboxPool, value: Json) -> None:
    with pytest.raises(ExpressionError, match=r"Unicode|digits|larger than 64 MB"):
        await processes.holds(request("inputs.v == 1", replace(SCOPE, inputs={"v": value})))


async def test_a_condition_that_takes_too_long_is_killed_in_time(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child's own alarm would end it too, but here it comes after a minute."""
    smaller(monkeypatch, "c.GRACE_MS = 60_000")
    assert await processes.holds(request("true"))
    (pid,) = deciders()
    with pytest.raises(ExpressionError, match="took longer than 300 ms"):
        async with asyncio.timeout(10):
            await processes.holds(request(SLOW, ROWS, deadline_ms=300))
    assert not runs(pid)
    assert await processes.holds(request("output.score > 1"))


async def test_waiting_for_a_child_to_start_does_not_count(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    smaller(monkeypatch, "import time; time.sleep(1.2)")
    assert await processes.holds(request("true", deadline_ms=1_000))


async def test_a_child_that_died_while_idle_is_replaced(processes: SandboxPool) -> None:
    assert await processes.holds(request("true"))
    (pid,) = deciders()
    os.kill(pid, signal.SIGSEGV)
    await until(lambda: not runs(pid))
    assert await processes.holds(request("true"))


async def test_a_child_that_somebody_killed_is_asked_again(processes: SandboxPool) -> None:
    asked, pid = await stopped(processes)
    os.kill(pid, signal.SIGKILL)
    assert await asked
    assert deciders() != [pid]


async def test_a_child_that_crashes_is_a_failure_of_the_condition(processes: SandboxPool) -> None:
    asked, pid = await busy(processes, request(SLOW, ROWS))
    os.kill(pid, signal.SIGSEGV)
    with pytest.raises(ExpressionError, match=r"died \(SIGSEGV\)"):
        await asked
    assert await processes.holds(request("true"))


async def test_signals_for_the_parent_do_not_disturb_a_child(processes: SandboxPool) -> None:
    assert await processes.holds(request("true"))
    before = deciders()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(before[0], number)
    assert await processes.holds(request("true"))
    assert deciders() == before
    assert os.getpgid(before[0]) != os.getpgid(0)


async def test_memory_is_bounded(processes: SandboxPool) -> None:
    scope = replace(SCOPE, inputs={"s": "x" * 30_000_000})
    bomb = "size([" + ", ".join(["inputs.s + inputs.s"] * 30) + "]) > 0"
    with pytest.raises(ExpressionError, match="memory"):
        await processes.holds(request(bomb, scope))
    assert await processes.holds(request("true"))


async def test_values_that_grow_when_they_are_unpacked_are_bounded(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child is given a small limit, because filling the real one takes seconds."""
    smaller(monkeypatch, "import resource; c._LIMITS[resource.RLIMIT_DATA] = 100 << 20")
    with pytest.raises(ExpressionError, match="needs more than 1280 MB of memory"):
        await processes.holds(request("size(inputs.rows) > 0", replace(SCOPE, inputs={"rows": [[]] * 2_000_000})))
    assert await processes.holds(request("true"))


async def test_a_child_has_nothing_that_it_does_not_need(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_TOKEN", "s3cr3t")
    assert await processes.holds(request("true"))
    (pid,) = deciders()
    here = Path(f"/proc/{pid}")
    assert "s3cr3t" not in (here / "environ").read_text()
    assert (here / "cwd").readlink() == Path("/")
    open_files = {str(each.readlink()).split(":")[0] for each in (here / "fd").iterdir()}
    assert open_files == {"/dev/null", "socket"}
    limits = dict(line.split("  ", 1) for line in (here / "limits").read_text().splitlines())
    assert limits["Max core file size"].split()[:2] == ["0", "0"]
    assert limits["Max file size"].split()[:2] == ["0", "0"]
    assert limits["Max open files"].split()[:2] == ["64", "64"]
    assert (here / "oom_score_adj").read_text().strip() == "1000"


async def test_many_askers_get_their_own_answers(processes: SandboxPool) -> None:
    async def ask(number: int) -> bool:
        scope = replace(SCOPE, inputs={"n": number})
        return await processes.holds(request(f"inputs.n == {number} && inputs.n % 2 == 0", scope))

    answers = await asyncio.gather(*(ask(number) for number in range(20)))
    assert answers == [number % 2 == 0 for number in range(20)]
    assert len(deciders()) == 2


async def test_an_asker_who_goes_away_leaves_no_answer_behind(processes: SandboxPool) -> None:
    asked, pid = await busy(processes, request(SLOW, ROWS))
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert not runs(pid)
    assert await processes.holds(request("output.score == 0")) is False


async def test_a_child_that_has_grown_is_replaced(processes: SandboxPool, monkeypatch: pytest.MonkeyPatch) -> None:
    smaller(monkeypatch, "c.RETIRE_MB = 0")
    assert await processes.holds(request("true"))
    assert deciders() == []
    assert await processes.holds(request("true"))


async def test_a_machine_that_starts_no_process_is_not_the_conditions_fault(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for executable in ("/bin/false", "/nowhere/python"):
        monkeypatch.setattr(sys, "executable", executable)
        with pytest.raises(Unavailable):
            await processes.holds(request("true"))


async def test_closing_ends_everything_and_may_be_done_twice() -> None:
    processes = SandboxPool()
    asked, pid = await busy(processes, request(SLOW, ROWS))
    waiting = [asyncio.create_task(processes.holds(request("true"))) for _ in range(3)]
    await asyncio.sleep(0)
    await processes.close()
    await processes.close()
    assert not runs(pid) and deciders() == []
    results = await asyncio.gather(asked, *waiting, return_exceptions=True)
    assert isinstance(results[0], RuntimeError)
    assert await processes.holds(request("true")), "an engine that is opened again begins with new ones"
    await processes.close()
    assert deciders() == []


def test_every_loop_has_its_own_processes_in_any_thread() -> None:
    answers: list[bool] = []

    async def ask() -> None:
        processes = SandboxPool(1)
        answers.append(await processes.holds(request("output.score == 87")))
        await processes.close()

    threads = [threading.Thread(target=asyncio.run, args=(ask(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [True, True]


PARENT = """
import asyncio, sys
from tests.unit.expressions.sandbox.test_pool import ENDLESS, ROWS, SLOW, request
from tidemill.expressions.sandbox.pool import SandboxPool

async def main():
    processes = SandboxPool()
    assert await processes.holds(request("true"))
    print("ready", flush=True)
    condition, deadline_ms = (ENDLESS, 60_000) if sys.argv[1] == "sandbox" else (SLOW, int(sys.argv[2]))
    await processes.holds(request(condition, ROWS, deadline_ms))

asyncio.run(main())
"""
ENDLESS: Json = {
    "type": "python_sandbox",
    "code": "def evaluate(output, context):\n while True: pass",
    "timeout_ms": 60_000,
}


def parent(kind: str, deadline_ms: int = 60_000) -> subprocess.Popen[str]:
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PARENT, kind, str(deadline_ms)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
    assert started.stdout is not None
    with started.stdout as said:
        assert said.readline() == "ready\n"
    return started


@pytest.mark.parametrize("kind", ["native", "sandbox"])
async def test_no_child_survives_its_parent(kind: str) -> None:
    started = parent(kind)
    try:
        (supervisor,) = children_of(started.pid)
        (child,) = children_of(supervisor)
        family = [child]
        if kind == "sandbox":
            await until(lambda: len(children_of(child)) == 1)
            family += children_of(child)
        before_ms = worked_ms(family[-1])
        await until(lambda: worked_ms(family[-1]) > before_ms + 50)
    finally:
        started.kill()
        started.wait()
    try:
        await until(lambda: not any(runs(pid) for pid in family), seconds=3)
        assert len(family) == (2 if kind == "sandbox" else 1)
    finally:
        for pid in filter(runs, family):
            os.kill(pid, signal.SIGKILL)


async def test_a_child_ends_at_its_deadline_also_when_nobody_watches() -> None:
    """The parent is stopped, so it cannot kill anybody."""
    started = parent("native", deadline_ms=500)
    (supervisor,) = children_of(started.pid)
    (child,) = children_of(supervisor)
    before_ms = worked_ms(child)
    await until(lambda: worked_ms(child) > before_ms + 50)
    os.kill(started.pid, signal.SIGSTOP)
    try:
        await until(lambda: not runs(child), seconds=4)
        assert runs(started.pid), "the parent only stands still"
    finally:
        started.kill()
        started.wait()


async def test_the_value_of_a_node_that_is_not_named_is_reached_by_a_computed_name(processes: SandboxPool) -> None:
    scope = replace(SCOPE, nodes={"a": Seen({"v": 1}), "b": Seen({"v": 2})}, inputs={"which": "b"})
    assert await processes.holds(request("ctx[inputs.which].output.v == 2", scope))


async def test_a_child_whose_supervisor_was_killed_ends_and_is_replaced(processes: SandboxPool) -> None:
    asked, pid = await stopped(processes)
    (supervisor,) = children_of(os.getpid())
    os.kill(supervisor, signal.SIGKILL)
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGCONT)
    assert await asked
    await until(lambda: not runs(pid))


def test_a_pool_that_was_closed_serves_another_loop() -> None:
    processes = SandboxPool(1)

    async def ask() -> None:
        assert await asyncio.gather(*(processes.holds(request("true")) for _ in range(3))) == [True] * 3
        await processes.close()

    asyncio.run(ask())
    asyncio.run(ask())


def test_a_child_loads_neither_the_engine_nor_an_event_loop() -> None:
    script = "import sys, tidemill.expressions.sandbox.child; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    heavy = ("asyncio", "subprocess", "tidemill.engine", "tidemill.handlers", "tidemill.kernel", "tidemill.stores")
    assert "tidemill.expressions.sandbox.child" in said and not set(heavy) & set(said)


# Templates.

SLOW_TEMPLATE = "{% for i in range(400) %}{% for j in range(400) %}{% if i == j %}x{% endif %}{% endfor %}{% endfor %}"


async def test_a_template_that_takes_long_is_rendered_in_a_child(processes: SandboxPool) -> None:
    scope = replace(AFTER, has_item=True, item={"n": 3}, index=7, secrets={"KEY": "s3cret"})
    source = {
        "slow": SLOW_TEMPLATE,
        "key": "Token {{ secrets.KEY }}",
        "seen": "{{ output.score }} {{ item.n }} {{ index }} {{ enrich.output.name }} {{ run.version }}",
        "missing": "{{ skipped.output | default('none') }}",
    }
    template = compile_template(source)
    assert deciders() == []
    rendered = await render(template, scope, processes)
    assert rendered == template.render(scope)
    assert rendered["slow"] == "x" * 400 and rendered["key"] == "Token s3cret"
    assert len(deciders()) == 1
    assert b"s3cret" not in packed(RenderTexts(template.texts(), template.references, scope))


async def test_a_short_template_needs_no_child(processes: SandboxPool) -> None:
    assert await render(compile_template("{{ inputs.customer | upper }}"), AFTER, processes) == "ACME"
    assert deciders() == []


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "takes more than"),
        (SLOW_TEMPLATE + "{{ inputs.nothing }}", 'inputs has no key "nothing"'),
    ],
)
async def test_a_template_that_fails_in_a_child_says_so_as_here(
    processes: SandboxPool, source: str, message: str
) -> None:
    with pytest.raises(ExpressionError) as failed:
        await render(compile_template({"a": ["x", source]}), AFTER, processes)
    assert (failed.value.code, failed.value.path) == ("template_failed", "/a/1")
    assert message in failed.value.message


# Conditions that take turns with others.


async def test_the_parts_of_a_condition_let_others_run_in_between(
    processes: SandboxPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemill.expressions.conditions.LOOP_SECONDS", 0.0)
    parts = [{"type": "cel", "expression": f"output.score > {number}"} for number in range(5)]
    condition = compiled({"type": "composite", "operator": "AND", "conditions": parts})
    others = 0

    async def other() -> None:
        nonlocal others
        while True:
            others += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    deciding = run_steps(decide(condition, AFTER), processes)
    assert not isinstance(deciding, Verdict)
    assert (await deciding).value
    task.cancel()
    assert others >= len(parts)
    assert deciders() == []
