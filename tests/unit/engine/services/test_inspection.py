"""Looking at a run: its events, what it was after each of them, the way it went, and why it waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import msgspec

from tests.fixtures.approvers import LARGE, child, code_of, human, signal, waits
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import chain, document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.kernel.evolve import replay


@simulated
async def test_events_from_any_place(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain("a", "b"))
    events = worker.engine.events
    whole = await events(run.run_id)
    assert [event["seq"] for event in whole] == list(range(1, run.events + 1))
    assert [event["type"] for event in whole] == await mill.kinds(run.run_id)
    assert json.loads(json.dumps(whole))[0]["entries"] == ["a"]
    assert await events(run.run_id, after=3) == whole[3:]
    assert await events(run.run_id, after=3, limit=2) == whole[3:5]
    assert await events(run.run_id, after=run.events) == await events(run.run_id, after=10_000) == []
    assert await events(run.run_id, limit=0) == []
    assert await code_of(events(run.run_id, after=-1)) == "cursor_invalid"
    assert await code_of(events("nobody")) == "run_unknown"


@simulated
async def test_looking_at_a_part_loads_no_more_than_that(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(chain(*(f"n{number}" for number in range(40))))
    client = await mill.process("client", work=False)

    async def loaded(asked: Awaitable[Any]) -> int:
        before = client.faulty_store.records_loaded
        await asked
        return client.faulty_store.records_loaded - before

    engine, pages = client.engine, -(-run.events // 10)
    assert (
        sum([await loaded(engine.events(run.run_id, after=10 * page, limit=10)) for page in range(pages)]) == run.events
    )
    assert await loaded(engine.events(run.run_id, after=run.events - 3)) == 3
    for look in (engine.show, engine.path, engine.tokens):
        assert await loaded(look(run.run_id, at=7)) == 7
    assert await code_of(engine.show(run.run_id, at=run.events + 1)) == "event_unknown"
    assert await code_of(engine.path(run.run_id, at=-1)) == "event_unknown"


@simulated
async def test_a_run_as_it_was_after_each_event(mill: Cluster) -> None:
    worker = await mill.process()
    run = await worker.run(document(node("a", config=LARGE), node("b", "a", config=2), outputs={"b": "{{ b.output }}"}))
    log = await mill.events(run.run_id)
    for at in range(1, len(log) + 1):
        shown = await worker.engine.show(run.run_id, at=at)
        state = replay(log[:at])
        assert (shown.status, shown.counter, shown.events) == (state.status, state.counter, at)
        assert shown.nodes["a"]["status"] == state.peek("a").status
        assert (shown.nodes["a"]["output"] == LARGE) is (state.peek("a").status == "COMPLETED")
    assert (await worker.engine.show(run.run_id, at=len(log))).to_dict() == run.to_dict()
    assert (await worker.engine.show(run.run_id, at=1)).outputs is None
    for at in (0, -1, len(log) + 1):
        for ask in (worker.engine.show, worker.engine.path, worker.engine.tokens):
            assert await code_of(ask(run.run_id, at=at)) == "event_unknown"


@simulated
async def test_a_run_as_it_was_under_another_graph(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(signal("go"), node("z", "go")))
    await waits(mill, run_id, "go")
    before = (await mill.state(run_id)).seq
    await worker.engine.patch(run_id, [{"op": "remove", "path": "/nodes/z"}])
    assert set((await worker.engine.show(run_id)).nodes) == {"go"}
    was = await worker.engine.show(run_id, at=before)
    assert (set(was.nodes), was.revision) == ({"go", "z"}, 0)


@simulated
async def test_the_way_a_run_went(mill: Cluster) -> None:
    worker = await mill.process()
    branch = {
        "type": "conditional",
        "rules": [{"condition": "output > 1", "next_nodes": ["big"]}],
        "default": ["small"],
    }
    loop = {"condition": "output < 2", "max_iterations": 9}
    run = await worker.run(
        document(
            node("l", config="{{ iteration }}", loop=loop),
            node("b", "l", config="{{ l.output }}", branch=branch),
            node("big", "b"),
            node("small", "b"),
        )
    )
    way = await worker.engine.path(run.run_id)
    assert [(step["node"], step["visit"], step["status"], step["went"]) for step in way] == [
        ("l", 1, "COMPLETED", []),
        ("l", 2, "COMPLETED", []),
        ("l", 3, "COMPLETED", ["b"]),
        ("b", 1, "COMPLETED", ["big"]),
        ("small", 1, "SKIPPED", []),
        ("big", 1, "COMPLETED", []),
    ]
    assert await worker.engine.path(run.run_id, at=1) == []
    assert await code_of(worker.engine.path("nobody")) == "run_unknown"


@simulated
async def test_tokens_add_up_to_the_counter_at_every_event(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(node("a"), node("b", "a"), signal("go", "a"), node("z", "b", "go"), outputs={"z": "{{ z.output }}"})
    )
    await waits(mill, run_id, "go")
    assert {(token["from"], token["to"]) for token in await worker.engine.tokens(run_id)} >= {("a", "go"), ("b", "z")}
    await worker.engine.signal(run_id, "go")
    run = await worker.end(run_id)
    for at in range(1, run.events + 1):
        shown = await worker.engine.show(run_id, at=at)
        assert len(await worker.engine.tokens(run_id, at=at)) == shown.counter, at
    assert await worker.engine.tokens(run_id) == []


@simulated
async def test_why_a_run_waits(mill: Cluster) -> None:
    worker = await mill.process(queues=("default",))
    await worker.publish(document(signal("never"), name="kid"))
    run_id = await worker.start(
        document(
            human("ok", approvers=["user:ada"]),
            signal("go"),
            child("c", "kid"),
            node("s", type="sleep", config={"seconds": 900}),
            node("q", queue="nobody"),
            node("z", "ok", "go", "c", "s", "q"),
        ),
        key="r",
    )
    await waits(mill, "r.c.1", "never")
    found = await worker.engine.why(run_id)
    assert found.status == "RUNNING" and found.headline
    told = {
        blocker.node: json.dumps(msgspec.to_builtins(blocker)) for blocker in found.blockers if hasattr(blocker, "node")
    }
    assert {"ok", "go", "c", "s", "q"} <= set(told)
    assert "user:ada" in told["ok"] and "r.c.1" in told["c"] and "nobody" in told["q"]
    assert await code_of(worker.engine.why("nobody")) == "run_unknown"


@simulated
async def test_why_knows_the_queues_of_all_workers(mill: Cluster) -> None:
    worker = await mill.process(queues=("default",))
    run_id = await worker.start(document(node("a"), node("b", "a", queue="gpu")))
    await asyncio.sleep(1)
    (found,) = (await worker.engine.why(run_id)).blockers
    assert (found.kind, found.node, getattr(found, "need", None)) == ("worker", "b", "no_queue")
    assert "no worker on queue gpu" in found.words
    said = str(await worker.engine.why(run_id))
    assert said == f"{found.words}\n  {found.unblock}", "nothing is told twice"
    onlooker = await mill.process("w2", work=False)
    (found,) = (await onlooker.engine.why(run_id)).blockers
    assert (getattr(found, "need", None), getattr(found, "alive", None)) == ("no_queue", ("w1",))
    assert found.command == "tidemill worker --queues gpu"
    await mill.process("w3", queues=("gpu",))
    assert (await worker.end(run_id)).status == "COMPLETED"


@simulated
async def test_why_leads_on_to_the_child_that_failed(mill: Cluster) -> None:
    worker = await mill.process()
    await worker.publish(document(node("f", type="fail"), name="sub"))
    run = await worker.run(document(child("c", "sub")), key="r")
    found = await worker.engine.why("r")
    assert (run.status, found.command) == ("FAILED", "tidemill why r.c.1")
    assert (await worker.engine.why("r.c.1")).command == "tidemill runs retry r"
    missing = await worker.run(document(child("c", "nowhere")))
    assert (await worker.engine.why(missing.run_id)).command == "tidemill runs retry {run}"


@simulated
async def test_why_a_run_failed_and_what_runs_now(mill: Cluster, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    failed = await worker.run(document(node("a"), node("f", "a", type="fail", config={"kind": "odd"}), node("z", "f")))
    found = await worker.engine.why(failed.run_id)
    assert found.status == "FAILED" and found.first_cause is not None
    assert (found.first_cause.node, found.dead_letters) == ("f", 1)
    assert found.command
    assert str(found).splitlines() == [found.headline, f"  {found.unblock}"]
    running = await worker.start(document(call("w", args={"seconds": 50})))
    await mill.until(lambda: ledger.running == 1)
    found = await worker.engine.why(running)
    assert "w1" in json.dumps([msgspec.to_builtins(blocker) for blocker in found.blockers])
    await worker.engine.pause(running, reason="lunch")
    assert (await worker.engine.why(running)).reason == "lunch"
    await worker.engine.resume(running)
    done = await worker.end(running)
    assert (await worker.engine.why(done.run_id)).blockers == ()


@simulated
async def test_looking_changes_nothing(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(document(human("ok"), node("z", "ok")))
    await waits(mill, run_id, "ok")
    await asyncio.sleep(1)
    before, commits = await mill.events(run_id), len(worker.faulty_store.commits)
    engine = worker.engine
    for look in (engine.show, engine.events, engine.path, engine.tokens, engine.why, engine.document):
        await look(run_id)
    await engine.approval(run_id, "ok")
    await engine.compare(run_id, run_id)
    assert (await mill.events(run_id), len(worker.faulty_store.commits)) == (before, commits)


def _raises(value: int) -> None:
    print("about to fail")
    raise KeyError(f"no {value}")


@simulated
async def test_a_failure_shows_its_traceback_in_every_view(mill: Cluster) -> None:
    worker = await mill.process(functions={"raises": _raises})
    twice = {"max_attempts": 2, "backoff_seconds": 1}
    run = await worker.run(document(call("a", function="raises", args={"value": 7}, retry=twice)))
    engine = worker.engine
    assert run.error is not None and "in _raises" in run.error["traceback"]
    assert run.to_dict()["nodes"]["a"]["error"]["traceback"] == run.error["traceback"]
    assert "in _raises" in (await engine.dead_letter(run.run_id, "a"))["error"]["traceback"]
    cause = (await engine.why(run.run_id)).first_cause
    assert cause is not None and cause.error.traceback == run.error["traceback"]
    of_node = await engine.why_node(run.run_id, "a")
    assert of_node.error is not None and of_node.error.traceback == run.error["traceback"]
    lines = await engine.logs(run.run_id, "a", attempt=2)
    assert (lines[0].source, lines[0].text) == ("stdout", "about to fail")
    assert {line.source for line in lines[1:]} == {"traceback"}
    assert "\n".join(line.text for line in lines[1:]) == run.error["traceback"].rstrip()
    followed = [line async for line in engine.follow_logs(run.run_id)]
    assert sum(line.text == "KeyError: 'no 7'" for line in followed) == 2


@simulated
async def test_the_lines_of_compensators_are_told_apart(mill: Cluster) -> None:
    """They have attempts of their own, and an unfinished line of the node does not run into theirs."""
    calls = iter(range(9))

    def undo() -> None:
        print(f"undoing {next(calls)}")
        raise KeyError("no")

    worker = await mill.process(functions={"say": lambda: print("done", end=""), "undo": undo})
    tried = {"type": "python", "config": {"function": "undo"}, "retry": {"max_attempts": 2, "backoff_seconds": 1}}
    steps = (call("a", function="say", args={}, compensator=tried), node("f", "a", type="fail"))
    run = await worker.run(document(*steps, on_failure={"compensate": "automatic"}))
    lines = await worker.engine.logs(run.run_id)
    said = [(line.undo, line.attempt, line.text) for line in lines if line.source == "stdout"]
    assert said == [(False, 1, "done"), (True, 1, "undoing 0"), (True, 2, "undoing 1")]
    failed = [(line.undo, line.attempt) for line in lines if line.text == "KeyError: 'no'"]
    assert failed == [(True, 1), (True, 2)]


@simulated
async def test_the_item_of_a_map_is_told_once(mill: Cluster) -> None:
    worker = await mill.process(functions={"raises": _raises})
    once = {"max_attempts": 1}
    items = {"over": [5, 6], "max_parallel": 1}
    run = await worker.run(
        document(call("m", function="raises", args={"value": "{{ item }}"}, map=items, retry=once)),
    )
    assert run.error is not None and "in _raises" in run.error["traceback"]
    lines = await worker.engine.logs(run.run_id)
    assert [(line.index, line.text) for line in lines if line.text.startswith("KeyError")] == [(0, "KeyError: 'no 5'")]


@simulated
async def test_why_a_node_shows_the_values_that_it_read(mill: Cluster) -> None:
    worker = await mill.process()
    rule = {"rules": [{"condition": "output > 5 && ctx.a.output != ''", "next_nodes": ["x"]}], "default": ["y"]}
    run = await worker.run(
        document(node("a", config=LARGE), node("b", "a", config=7, branch=rule), node("x"), node("y"))
    )
    found = await worker.engine.why_node(run.run_id, "b")
    assert found.visits[-1].reads.keys() == {"output", "ctx.a"}
    assert found.values == {"output": 7, "ctx.a": LARGE}


@simulated
async def test_a_run_is_named_by_the_beginning_of_its_id(mill: Cluster) -> None:
    worker = await mill.process()
    resolve = worker.engine.resolve
    assert await code_of(resolve("@last")) == "run_unknown"
    await worker.engine.publish(document(node("z", config=1), name="kid"))
    for key in ("order-17", "order-18", "order-1"):
        await worker.run(document(node("a", config=1)), key=key)
    await worker.run(document(child("c", "kid")), key="parent")
    assert [await resolve(text) for text in ("order-17", "order-1", "par", "parent.c.1", "@last")] == [
        *("order-17", "order-1", "parent", "parent.c.1", "parent"),
    ]
    assert await code_of(resolve("order")) == "run_ambiguous"
    assert await resolve("nobody") == "nobody"


@simulated
async def test_a_run_that_came_to_nothing_says_where_its_way_ended(mill: Cluster) -> None:
    worker = await mill.process()
    loop = {"condition": "true", "max_iterations": 5, "loop_back_to": "poll"}
    run = await worker.run(
        document(node("poll", config=1), node("rest", "poll", when="false"), node("again", "rest", loop=loop))
    )
    assert (run.status, run.outputs) == ("COMPLETED", {})
    (warning,) = run.warnings
    assert "rest was skipped" in warning and "again with it, which ended the loop" in warning
    assert run.to_dict()["warnings"] == [warning]
    assert (await worker.engine.why(run.run_id)).warnings == (warning,)
    fine = await worker.run(document(node("poll", config=1)))
    assert fine.warnings == () and "warnings" not in fine.to_dict()


@simulated
async def test_passes_of_a_loop_are_apart_by_its_delay(mill: Cluster) -> None:
    """Nothing holds a worker meanwhile, and another process carries it on."""
    first = await mill.process("w1")
    loop = {"condition": "output < 2", "max_iterations": 5, "delay_seconds": 60}
    run_id = await first.start(document(node("a", config="{{ iteration }}", loop=loop)))
    await asyncio.sleep(30)
    assert (await first.engine.show(run_id)).nodes["a"]["status"] == "WAITING"
    assert first.engine.worker is not None and not first.engine.worker.held_jobs
    first.kill()
    second = await mill.process("w2")
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["visits"], run.outputs) == ("COMPLETED", 3, {"a": 2})
    ends = [event["at_ms"] for event in await second.engine.events(run_id) if event["type"] == "LoopContinued"]
    assert [round((later - ends[0]) / 1_000) for later in ends] == [0, 60]


@simulated
async def test_a_node_says_when_its_next_pass_begins(mill: Cluster) -> None:
    """The delay is rendered once, from the output; another process finds it in the log."""
    first = await mill.process("w1")
    config = {"retry_after": "{{ inputs.s * iteration }}"}
    loop = {"condition": "iteration < 3", "max_iterations": 5, "delay_seconds": "{{ output.retry_after }}"}
    run_id = await first.start(document(node("a", config=config, loop=loop)), {"s": 60})
    await asyncio.sleep(30)
    waiting = (await first.engine.show(run_id)).nodes["a"]
    assert (waiting["status"], waiting["visits"]) == ("WAITING", 2)
    first.kill()
    second = await mill.process("w2")
    run = await second.end(run_id)
    assert (run.status, run.nodes["a"]["visits"]) == ("COMPLETED", 4)
    ends = [event["at_ms"] for event in await second.engine.events(run_id) if event["type"] == "LoopContinued"]
    assert [round((later - ends[0]) / 1_000) for later in ends] == [0, 60, 180]


@simulated
async def test_a_delay_that_is_no_number_of_seconds_fails_the_visit(mill: Cluster) -> None:
    worker = await mill.process()
    for value, given in ((-1, "less"), (1e12, "more"), ("5", "a string"), (True, "a boolean"), (None, "null")):
        loop = {"condition": "true", "max_iterations": 5, "delay_seconds": "{{ output.s }}"}
        run = await worker.run(document(node("a", config={"s": value}, loop=loop)))
        error = run.nodes["a"]["error"]
        assert (run.status, error["code"], run.nodes["a"]["attempts"]) == ("FAILED", "template_failed", 1)
        assert "/loop/delay_seconds" in error["message"] and error["message"].endswith(f"the template gave {given}")
    loop["delay_seconds"] = "{{ output.t }}"
    run = await worker.run(document(node("a", config={}, loop=loop)))
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "template_failed")
    loop |= {"condition": "false", "delay_seconds": "{{ output.t }}"}
    assert (await worker.run(document(node("a", config={}, loop=loop)))).status == "COMPLETED"
