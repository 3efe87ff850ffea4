"""Transcripts: what the engine answers, what the command line prints, and what is refused."""

from __future__ import annotations

import pytest

from tests.fixtures.agents import Model, Tools, agent, at_work, of_agent
from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.agents.transcript import Entry, Transcript, transcript_of
from tidemill.cli.render.transcript import print_transcript
from tidemill.errors import Rejected
from tidemill.handlers.contract import Fail

ADD = {"add": {"a": 2, "b": 3}}


@simulated
async def test_a_transcript_has_turns_calls_and_sums(mill: Cluster) -> None:
    worker = await at_work(mill, Model(ADD, {"add": {"a": "x"}}, "It is 5."))
    prices = {"input_per_million": 1.0, "output_per_million": 2.0}
    run = await worker.run(of_agent(prompt="What is 2 + 3?", prices=prices))
    shown = await worker.engine.transcript(run.run_id, "a")
    assert (shown.status, shown.prompt, len(shown.turns)) == ("COMPLETED", "What is 2 + 3?", 3)
    first, second, third = shown.turns
    assert (first.calls[0].name, first.calls[0].arguments, first.calls[0].result) == ("add", {"a": 2, "b": 3}, 5)
    assert (second.calls[0].status, second.calls[0].error) == ("failed", "arguments_invalid")
    assert (third.text, third.calls) == ("It is 5.", [])
    assert shown.usage["cached_tokens"] == 180 and shown.cost == pytest.approx(3 * 140 / 1_000_000)
    events = await mill.events(run.run_id)
    assert events[first.seq - 1].at_ms == first.at_ms


@simulated
async def test_a_transcript_is_printed(mill: Cluster, capsys: pytest.CaptureFixture[str]) -> None:
    model = Model(ADD, "It is 5.\nReally.")
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(prompt="What is 2 + 3?"))
    print_transcript(await worker.engine.transcript(run.run_id, "a"))
    printed = capsys.readouterr().out
    for words in ("What is 2 + 3?", "turn 1", 'add  {"a":2,"b":3}', "ok  5", "turn 2", "  It is 5.\n  Really."):
        assert words in printed, printed


@simulated
async def test_a_route_that_the_answer_names_is_part_of_the_transcript(mill: Cluster) -> None:
    answer = '{"next_nodes": ["b"], "reasoning": "it is large"}'
    worker = await at_work(mill, Model(answer))
    branch = {"type": "agent_driven", "available_next_nodes": ["b", "c"], "default": ["c"]}
    run = await worker.run(document(agent(_branch=branch), node("b", "a"), node("c", "a")))
    shown = await worker.engine.transcript(run.run_id, "a")
    assert (shown.next_nodes, shown.reason) == (["b"], "it is large")
    run = await worker.run(of_agent())
    assert (await worker.engine.transcript(run.run_id, "a")).next_nodes == [], "a node without a branch has no route"


def test_what_was_cut_and_what_the_engine_said_last_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    reply = {"t": "reply", "text": "It is", "finish": "length"}
    told = [{"t": "begin", "prompt": "Go."}, reply, {"t": "note", "text": "Finish now."}]
    entries = [Entry(number, 0, 1, record) for number, record in enumerate(told)]
    print_transcript(transcript_of(Transcript(run_id="r", node="a", visit=1), entries))
    printed = capsys.readouterr().out
    assert "cut short by max_tokens" in printed and printed.rstrip().endswith("Finish now.")


@simulated
async def test_an_agent_at_work_shows_what_it_has_done_so_far(mill: Cluster) -> None:
    tools = Tools()
    worker = await at_work(mill, Model({"ask": {}}, "thanks"), tools)
    run_id = await worker.start(of_agent())
    await mill.until(lambda: tools.calls.total() == 1)
    await mill.until(lambda: worker.cached(run_id) is not None and worker.cached(run_id).peek("a").status == "WAITING")
    shown = await worker.engine.transcript(run_id, "a")
    (call,) = shown.turns[0].calls
    assert (shown.status, call.status, call.waits_for) == ("WAITING", "waiting", "human")
    await worker.engine.decide(run_id, "a", "approve", actor="ann")
    await worker.end(run_id)


@simulated
async def test_a_failure_is_part_of_the_transcript(mill: Cluster) -> None:
    worker = await at_work(mill, Model(Fail("model_unknown", "there is no model tiny", hint="see `model`")))
    run = await worker.run(of_agent())
    shown = await worker.engine.transcript(run.run_id, "a")
    assert [failed.code for failed in shown.open_failures] == ["model_unknown"]
    assert shown.error is not None and shown.error["code"] == "model_unknown"


@simulated
async def test_items_and_visits_have_their_own_transcripts(mill: Cluster) -> None:
    worker = await at_work(mill, Model("done"))
    run = await worker.run(document(agent(_map={"over": ["x", "y"]}, prompt="{{ item }}")))
    prompts = [(await worker.engine.transcript(run.run_id, "a", index=index)).prompt for index in (0, 1)]
    assert prompts == ["x", "y"]


@simulated
async def test_what_has_no_transcript_is_refused(mill: Cluster) -> None:
    worker = await at_work(mill, Model("done"))
    run = await worker.run(document(node("plain"), agent("a", "plain")))
    for place, code in (
        ({"node": "plain"}, "agent_unknown"),
        ({"node": "nobody"}, "node_unknown"),
        ({"node": "a", "visit": 7}, "attempt_unknown"),
        ({"node": "a", "index": 3}, "place_invalid"),
    ):
        with pytest.raises(Rejected) as refused:
            await worker.engine.transcript(run.run_id, **place)  # type: ignore[arg-type]
        assert refused.value.problems[0].code == code


def test_records_of_a_later_version_are_passed_over() -> None:
    shown = transcript_of(
        Transcript(run_id="r", node="a", visit=1),
        [Entry(3, 0, 1, {"t": "begin", "prompt": "p"}), Entry(4, 0, 1, {"t": "dream", "of": "sheep"})],
    )
    assert (shown.prompt, shown.turns) == ("p", [])
