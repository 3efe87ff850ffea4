"""Budgets of agents: of the node, of the run with all its agents and children, and of the tenant's day."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from tests.fixtures.agents import Answer, Model, Tools, agent, at_work, handlers, of_agent, records, tags
from tests.fixtures.cluster import TENANT, Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.bootstrap import engine_at
from tidemill.engine.agents.accounts import SETTLED_WITHIN_MS, AgentAccounts
from tidemill.errors import Rejected
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm.accounting import amount_of
from tidemill.handlers.llm.classify import classify_handler
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.provider import OnText, Prices, Question, Reply, Usage, bounded_usage
from tidemill.kernel.events import NodeWaiting
from tidemill.kernel.spending import Budget, Spend

ADD = {"add": {"a": 1}}
PRICES = {"input_per_million": 100.0, "output_per_million": 1_000.0}


def steps(count: int) -> list[dict[str, dict[str, int]]]:
    return [{"add": {"a": number}} for number in range(count)]


@simulated
async def test_a_node_stops_when_its_calls_are_used_up(mill: Cluster) -> None:
    model = Model(*steps(20))
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(budget={"calls": 3}))
    assert (run.status, run.nodes["a"]["error"]["code"], len(model.asked)) == ("FAILED", "budget_exceeded", 3)
    assert "3 of 3 calls" in run.nodes["a"]["error"]["message"]


@simulated
async def test_what_was_done_can_be_the_result(mill: Cluster) -> None:
    model = Model(*steps(20))
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(budget={"tokens": 250, "on_exceeded": "finish"}))
    assert (run.status, run.outputs["a"]["stopped"], run.outputs["a"]["turns"]) == ("COMPLETED", "budget_exceeded", 3)


@simulated
async def test_the_model_is_warned_once_and_a_cheaper_one_is_asked(mill: Cluster) -> None:
    model = Model(*steps(4), "finished")
    worker = await at_work(mill, model)
    cheaper = {"provider": "other", "model": "small"}
    run = await worker.run(of_agent(budget={"calls": 10, "warn_at": 0.3, "degrade": True}, fallbacks=[cheaper]))
    assert run.status == "COMPLETED"
    notes = [record for record in await records(mill, run.run_id) if record["t"] == "note"]
    assert len(notes) == 1 and "3 of 10 calls" in notes[0]["text"]
    assert [question.settings.provider for question in model.questions] == [*["scripted"] * 3, *["other"] * 2]
    assert model.questions[3].messages[-1]["content"] == notes[0]["text"]


@pytest.mark.parametrize(
    ("code", "unknown", "counted"),
    [
        ("connection_failed", False, 1),
        ("connection_failed", True, 21),
        ("egress_refused", False, 1),
        ("timeout", False, 21),
    ],
)
@simulated
async def test_a_call_that_may_have_been_billed_counts(mill: Cluster, code: str, unknown: bool, counted: int) -> None:
    model = Model(Fail(code, "it failed", unknown_outcome=unknown))
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(max_tokens=20))
    (failed,) = [record for record in await records(mill, run.run_id) if record["t"] == "failed"]
    assert sum(failed["spent"]) >= counted and (sum(failed["spent"]) == 1) is (counted == 1)


@simulated
async def test_money_is_counted_by_the_price_table(mill: Cluster) -> None:
    model = Model(*steps(20))
    worker = await at_work(mill, model)
    run = await worker.run(of_agent(prices=PRICES, budget={"money": 0.1}))
    assert (run.nodes["a"]["error"]["code"], len(model.asked)) == ("budget_exceeded", 4)
    assert (await mill.state(run.run_id)).spent == Spend(4, 480, 4 * 30_000, 240)


@pytest.mark.parametrize("whose", ["run", "day"])
@simulated
async def test_a_model_without_prices_is_not_asked_where_money_is_limited(mill: Cluster, whose: str) -> None:
    """It could spend without end: what it costs is not known."""
    model = Model("done")
    worker = await at_work(mill, model)
    limits: dict[str, Any] = {}
    if whose == "run":
        limits = {"limits": {"budget": {"money": 1}}}
    else:
        worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(None, None, 1_000_000))
    run = await worker.run(document(agent(provider="other", model="big"), **limits))
    assert (run.nodes["a"]["error"]["code"], model.asked) == ("price_unknown", [])
    free = {"input_per_million": 0, "output_per_million": 0}
    run = await worker.run(document(agent(provider="other", model="big", prices=free), **limits))
    assert (run.status, len(model.asked), run.spent["cost"]) == ("COMPLETED", 1, 0.0)


async def test_a_budget_of_money_needs_prices_of_every_model() -> None:
    config = {"model": "big", "prompt": "Go.", "budget": {"money": 1}, "fallbacks": [{"model": "b"}]}
    config["fallbacks"] += [{"model": "c", "prices": PRICES}, {"provider": "scripted", "answers": ["x"]}]
    async with engine_at("memory://") as made:
        with pytest.raises(Rejected) as refused:
            await made.publish({"name": "x", "nodes": [{"id": "a", "type": "agent", "config": config}]})
    paths = [each.path.removeprefix("/nodes/0/config") for each in refused.value.problems]
    assert paths == ["/prices", "/fallbacks/0/prices"]


@simulated
async def test_many_agents_of_a_run_never_make_more_calls_than_it_may(mill: Cluster) -> None:
    model = Model(*steps(5), "done", takes_s=1.0)
    worker = await at_work(mill, model)
    flow = document(agent(_map={"over": list(range(40)), "tolerate": 40}), limits={"budget": {"calls": 25}})
    run = await worker.run(flow)
    assert len(model.asked) == 25 and model.most_flying > 10
    state = await mill.state(run.run_id)
    assert (state.spent.calls, state.reserved) == (25, Spend())


@pytest.mark.parametrize("whose", ["run", "day"])
@simulated
async def test_agents_wait_for_what_is_only_set_aside(mill: Cluster, whose: str) -> None:
    """Each sets 4,000 tokens aside and spends 120: all five together stay far below the budget."""
    model = Model("done", takes_s=1.0)
    worker = await at_work(mill, model)
    limits: dict[str, Any] = {}
    if whose == "run":
        limits = {"limits": {"budget": {"tokens": 10_000}}}
    else:
        worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(None, 10_000, None))
    run = await worker.run(document(agent(max_tokens=4_000, _map={"over": list(range(5))}), **limits))
    assert (run.status, len(model.asked), run.spent["tokens"]) == ("COMPLETED", 5, 600)
    assert model.most_flying <= 3


@simulated
async def test_children_spend_the_budget_of_their_parent(mill: Cluster) -> None:
    model, tools = Model({"delegate": {}}, {"delegate": {}}, "done"), Tools()
    worker = await at_work(mill, model, tools)
    child = agent("k", tools=["add"])
    child["config"]["prompt"] = "child"
    await worker.publish({"name": "kid", "nodes": [child]})
    run_id = await worker.start(document(agent(), limits={"budget": {"calls": 50}}))
    run = await worker.end(run_id)
    assert run.status == "COMPLETED"
    state = await mill.state(run_id)
    # A child's model has no `delegate`: it is refused twice, and then done.
    assert (len(model.asked), state.spent.calls, state.reserved) == (9, 9, Spend())


class Spender(Model):
    """A model whose calls take 10 tokens, and 600 in child runs."""

    def __init__(self, *script: Answer) -> None:
        super().__init__(*script)
        self.by_children = 0

    async def ask(self, question: Question, on_text: OnText) -> Reply:
        if any(message["content"] == "child" for message in question.messages):
            self.by_children += 1
            return Reply(text="done", model="big", usage=Usage(input_tokens=500, output_tokens=100, cached_tokens=50))
        reply = await super().ask(question, on_text)
        return msgspec.structs.replace(reply, usage=Usage(input_tokens=8, output_tokens=2))


async def with_spending_kid(mill: Cluster, model: Model, tools: Tools | None = None, name: str = "w1") -> Process:
    worker = await at_work(mill, model, tools, name)
    await worker.publish({"name": "kid", "nodes": [agent("k", tools=[], prompt="child")]})
    return worker


@pytest.mark.parametrize("whose", ["node", "run"])
@simulated
async def test_what_children_spend_stops_their_parent(mill: Cluster, whose: str) -> None:
    model = Spender(*[{"delegate": {}}] * 5, "done")
    worker = await with_spending_kid(mill, model)
    limit = {"tokens": 1_000}
    flow = document(agent(budget=limit)) if whose == "node" else document(agent(), limits={"budget": limit})
    run = await worker.run(flow)
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "budget_exceeded")
    assert (len(model.asked), model.by_children) == (2, 2), "nothing is asked after the second child"
    told = [record["child"] for record in await records(mill, run.run_id) if "child" in record]
    assert told == [[1, 600, 0, 50]] * 2
    state = await mill.state(run.run_id)
    assert state.spent == Spend(4, 1_220, 0, 100) and state.reserved == Spend()
    assert run.spent == {"calls": 4, "tokens": 1_220, "cached_tokens": 100, "cost": 0.0}


@simulated
async def test_what_a_child_has_spent_counts_once_after_a_crash(mill: Cluster) -> None:
    model, tools = Spender({"delegate": {}}, "done"), Tools()
    first = await with_spending_kid(mill, model, tools)
    tools.during = lambda name: first.kill() if name == "answered" else None
    run_id = await first.start(document(agent(budget={"tokens": 10_000})))
    await mill.until(lambda: any(key.startswith("answered") for key in tools.calls))
    tools.during = None
    second = await at_work(mill, model, tools, name="w2")
    run = await second.end(run_id)
    assert (run.status, run.spent["tokens"], run.spent["calls"]) == ("COMPLETED", 620, 3)
    assert [record["child"] for record in await records(mill, run_id) if "child" in record] == [[1, 600, 0, 50]]


@simulated
async def test_usage_tells_what_models_took_by_workflow(mill: Cluster) -> None:
    """What a child has spent is told of its own workflow only."""
    worker = await with_spending_kid(mill, Spender({"delegate": {}}, "done"))
    run = await worker.run(document(agent(prices=PRICES)))
    assert run.spent["tokens"] == 620 and run.spent["cost"] > 0
    rows = {row.workflow: row for row in (await worker.engine.usage.find()).rows}
    kid, parent = rows["kid"], rows["test"]
    assert (kid.model_calls, kid.model_tokens, kid.cached_tokens, kid.model_cost) == (1, 600, 50, 0.0)
    assert (parent.model_calls, parent.model_tokens, parent.cached_tokens) == (2, 20, 0)
    assert parent.model_cost == run.spent["cost"]
    assert (await mill.row(run.run_id)).model_tokens == 20


@simulated
async def test_a_child_gets_no_more_than_the_node_has_left(mill: Cluster) -> None:
    model = Model({"delegate": {}}, *steps(20))
    worker = await at_work(mill, model)
    await worker.publish({"name": "kid", "nodes": [agent("k", tools=["add"])]})
    run = await worker.end(await worker.start(of_agent(budget={"calls": 4})))
    assert run.nodes["a"]["error"]["code"] == "budget_exceeded"
    kid = (await mill.of(run.run_id, NodeWaiting, "a"))[0]
    assert kid.budget == Budget(calls=3)


@simulated
async def test_a_run_without_budget_left_is_retried_after_a_patch(mill: Cluster) -> None:
    model = Model(*steps(4), "done")
    worker = await at_work(mill, model)
    run_id = await worker.start(document(agent(), limits={"budget": {"calls": 2}}))
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["error"]["code"]) == ("FAILED", "budget_exceeded")
    patch = [{"op": "replace", "path": "/limits/budget/calls", "value": 20}]
    await worker.engine.patch(run_id, patch, retry=True)
    run = await worker.end(run_id)
    assert (run.status, model.asked) == ("COMPLETED", [0, 1, 2, 3, 4])


# The tenant's day


@simulated
async def test_a_thousand_reservations_of_two_processes_never_exceed_the_day(mill: Cluster) -> None:
    one, other = (AgentAccounts(mill.store, Budget(100, None, None)) for _ in range(2))
    turns = enumerate([one, other] * 500)
    answers = await asyncio.gather(*(each.reserve(TENANT, str(number), Spend(1, 5, 0)) for number, each in turns))
    assert answers.count("") == 100 and answers.count("calls") == 900
    assert await AgentAccounts(mill.store).reserve("other", "x", Spend(1)) == "", "no budget, no limit"


@simulated
async def test_what_was_not_spent_is_left_for_others(mill: Cluster) -> None:
    accounts = AgentAccounts(mill.store, Budget(None, 100, None))
    assert await accounts.reserve(TENANT, "a", Spend(1, 90, 0)) == ""
    assert await accounts.reserve(TENANT, "b", Spend(1, 90, 0)) == "", "the last call may spend more than is left"
    assert await accounts.reserve(TENANT, "c", Spend(1, 1, 0)) == "budget_reserved"
    await accounts.settle(TENANT, "a", Spend(1, 20, 0))
    await accounts.settle(TENANT, "a", Spend(1, 20, 0))
    assert (await accounts.spent_today(TENANT)) == Spend(1, 20, 0)
    assert await accounts.reserve(TENANT, "c", Spend(1, 1, 0)) == ""


@simulated
async def test_reservations_of_lost_workers_count_as_spent_when_they_expire(mill: Cluster) -> None:
    lost = AgentAccounts(mill.store, Budget(None, 100, None))
    assert await lost.reserve(TENANT, "a", Spend(1, 90, 0), seconds=3_600) == ""
    other = AgentAccounts(mill.store, Budget(None, 100, None))
    await asyncio.sleep(3_600)
    await other.settle_expired(TENANT, {})
    assert await other.spent_today(TENANT) == Spend(), "a call may take as long as its time-out says"
    await asyncio.sleep(SETTLED_WITHIN_MS / 1_000 + 1)
    await other.settle_expired(TENANT, {})
    assert await other.spent_today(TENANT) == Spend(1, 90, 0)
    assert await other.reserve(TENANT, "b", Spend(1, 50, 0)) == ""
    assert await other.reserve(TENANT, "c", Spend(1, 50, 0)) == "budget_reserved", "10 tokens were left"


@simulated
async def test_a_call_that_is_cancelled_counts_as_spent_for_the_day(mill: Cluster) -> None:
    asked = asyncio.Event()

    class Slow(Model):
        async def ask(self, question: Question, on_text: OnText) -> Reply:
            asked.set()
            await asyncio.sleep(10**6)
            return await super().ask(question, on_text)

    worker = await at_work(mill, Slow("done"))
    worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(10, None, None))
    run_id = await worker.start(document(agent(timeout_seconds=30, max_tokens=100)))
    await asked.wait()
    await worker.engine.cancel(run_id)
    await worker.end(run_id)
    await asyncio.sleep(30 + SETTLED_WITHIN_MS / 1_000 + 1)
    await worker.engine.agents.accounts.settle_expired(TENANT, {})
    spent = (await mill.state(run_id)).spent
    assert spent.calls == 1 and spent.tokens > 100
    assert await worker.engine.agents.accounts.spent_today(TENANT) == spent


@simulated
async def test_a_call_that_outlives_its_reservation_is_counted_once(mill: Cluster) -> None:
    accounts = AgentAccounts(mill.store, Budget(10, None, None))
    assert await accounts.reserve(TENANT, "a", Spend(1, 50, 0), seconds=1) == ""
    await asyncio.sleep(1 + SETTLED_WITHIN_MS / 1_000 + 1)
    await accounts.settle_expired(TENANT, {})
    await accounts.settle(TENANT, "a", Spend(1, 70, 0))
    await accounts.settle(TENANT, "a", Spend(1, 70, 0))
    assert await accounts.spent_today(TENANT) == Spend(1, 70, 0)
    assert await AgentAccounts(mill.store).spent_today(TENANT) == Spend(1, 70, 0)


@simulated
async def test_an_agent_stops_when_the_day_s_budget_is_used_up(mill: Cluster) -> None:
    model = Model(*steps(10), "done")
    worker = await at_work(mill, model)
    worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(4, None, None))
    run = await worker.run(of_agent())
    assert (run.nodes["a"]["error"]["code"], len(model.asked)) == ("budget_exceeded", 4)
    assert (await tags(mill, run.run_id)).endswith("tool failed")
    assert (await mill.state(run.run_id)).spent.calls == 4, "the refused call counts for nobody"
    assert (await worker.engine.agents.accounts.spent_today(TENANT)).calls == 4


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"budget": {"tokens": 10**30}}, "/budget/tokens"),
        ({"budget": {"calls": 0}}, "/budget/calls"),
        ({"budget": {"money": 1e300}}, "/budget/money"),
        ({"max_tokens": 10**30}, "/max_tokens"),
        ({"first_token_seconds": 3}, "/first_token_seconds"),
        ({"prices": {"input_per_million": 1e300, "output_per_million": 1}}, "/prices/input_per_million"),
    ],
)
async def test_amounts_that_cannot_hold_are_refused(fields: dict[str, Any], path: str) -> None:
    async with engine_at("memory://") as made:
        config = {"provider": "scripted", "prompt": "Go.", "answers": ["hi"], **fields}
        with pytest.raises(Rejected) as refused:
            await made.publish({"name": "x", "nodes": [{"id": "a", "type": "agent", "config": config}]})
        assert [each.path for each in refused.value.problems] == [f"/nodes/0/config{path}"]


LIES = [
    Usage(input_tokens=-(10**9), output_tokens=-5),
    Usage(input_tokens=1, cached_tokens=10**9),
    Usage(input_tokens=5, cached_tokens=5, cache_write_tokens=5),
    Usage(input_tokens=10**40, output_tokens=10**40),
]


@pytest.mark.parametrize("lie", LIES)
def test_a_usage_that_cannot_be_gives_nothing_back_and_can_be_stored(lie: Usage) -> None:
    prices = Prices(input_per_million=10**8, output_per_million=10**8, cached_input_per_million=0)
    spent = amount_of(bounded_usage(lie), prices, None)
    assert spent.tokens >= 0 and spent.micros >= 0
    assert max(msgspec.structs.astuple(spent)) < 2**62
    assert amount_of(lie, prices, -1e300).micros == 0


# Chains of models


class Chain(Model):
    """Models of which some fail; each is asked by its name."""

    def __init__(self, **failures: Fail) -> None:
        super().__init__("done")
        self.failures = failures

    async def ask(self, question: Question, on_text: OnText) -> Reply:
        reply = await super().ask(question, on_text)
        if question.settings.model in self.failures:
            raise self.failures[question.settings.model]
        return reply

    @property
    def models(self) -> list[str]:
        return [question.settings.model for question in self.questions]


def chain_of(*models: str, **config: Any) -> dict[str, Any]:
    """An agent that may ask these models; the first is dear, the others cost a tenth of it."""
    first, *others = models
    cheap = {"input_per_million": 10.0, "output_per_million": 100.0}
    fallbacks = [{"provider": "other", "model": model, "prices": cheap} for model in others]
    return agent(model=first, prices=PRICES, fallbacks=fallbacks, max_tokens=1_000, **config)


BUSY, CUT = Fail("provider_unavailable", "busy", retryable=True), Fail("stream_cut", "cut", retryable=True)


@simulated
async def test_every_call_of_a_chain_is_recorded_and_paid_once(mill: Cluster) -> None:
    model = Chain(one=BUSY, two=CUT)
    worker = await at_work(mill, model)
    worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(100, None, None))
    run = await worker.run(document(chain_of("one", "two", "three")))
    assert (run.status, model.models) == ("COMPLETED", ["one", "two", "three"])
    assert await tags(mill, run.run_id) == "begin failed again failed again reply"
    busy, cut = (record for record in await records(mill, run.run_id) if record["t"] == "failed")
    assert (busy["asked"], busy["spent"]) == (["scripted", "one"], [1])
    calls, tokens, micros = cut["spent"]
    assert cut["asked"] == ["other", "two"] and calls == 1 and tokens > 1_000
    assert 100_000 < micros < 110_000, "it may have been billed: at its own prices, not at those of the first model"
    state = await mill.state(run.run_id)
    assert state.spent == Spend(3, tokens + 120, micros + 3_000, 60) and state.reserved == Spend()
    assert await worker.engine.agents.accounts.spent_today(TENANT) == state.spent
    (turn,) = (await worker.engine.transcript(run.run_id, "a")).turns
    assert [(each.model, each.code) for each in turn.failed] == [("one", BUSY.code), ("two", CUT.code)]


@simulated
async def test_a_chain_ends_where_the_budget_does(mill: Cluster) -> None:
    model = Chain(one=BUSY, two=BUSY)
    worker = await at_work(mill, model)
    run = await worker.run(document(chain_of("one", "two", "three", budget={"calls": 2})))
    assert (run.nodes["a"]["error"]["code"], model.models) == ("budget_exceeded", ["one", "two"])
    assert (await mill.state(run.run_id)).spent.calls == 2


@simulated
async def test_a_chain_whose_models_all_fail_counts_every_call(mill: Cluster) -> None:
    model = Chain(one=BUSY, two=Fail("auth_failed", "no key"))
    worker = await at_work(mill, model)
    run = await worker.run(document(chain_of("one", "two", _retry={"max_attempts": 1})))
    assert (run.nodes["a"]["error"]["code"], model.models) == ("provider_unavailable", ["one", "two"] * 3)
    assert (await mill.state(run.run_id)).spent == Spend(6)
    assert len((await worker.engine.transcript(run.run_id, "a")).open_failures) == 6


# Nodes that ask once


ONCE: dict[str, dict[str, Any]] = {
    "llm": {"prompt": "Tides?"},
    "classify": {"text": "It broke", "labels": ["bug", "other"]},
}


def asking(kind: str, name: str = "a", **config: Any) -> dict[str, Any]:
    return node(name, type=kind, config={"provider": "scripted", "answers": ["-"], **ONCE[kind], **config})


async def with_model(mill: Cluster, model: Model, name: str = "w1") -> Process:
    providers = {"scripted": model.once, "other": model.once}
    asking_once = [llm_handler(providers), classify_handler(providers)]
    others = [each for each in handlers(model) if each.type.name not in ONCE]
    return await mill.process(name, handlers=[*others, *asking_once])


LABEL = '{"label": "bug", "confidence": 1}'


@pytest.mark.parametrize("kind", ONCE)
@simulated
async def test_what_a_node_that_asks_once_spends_counts_for_the_run(mill: Cluster, kind: str) -> None:
    worker = await with_model(mill, Model(LABEL))
    worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(100, None, None))
    run = await worker.run(document(asking(kind, prices=PRICES)))
    assert run.status == "COMPLETED"
    assert run.spent == {"calls": 1, "tokens": 120, "cached_tokens": 60, "cost": 0.03}
    assert (await mill.state(run.run_id)).reserved == Spend()
    assert await worker.engine.agents.accounts.spent_today(TENANT) == Spend(1, 120, 30_000, 60)
    (row,) = (await worker.engine.usage.find()).rows
    assert (row.model_calls, row.model_tokens, row.cached_tokens, row.model_cost) == (1, 120, 60, 0.03)
    with pytest.raises(Rejected) as refused:
        await worker.engine.transcript(run.run_id, "a")
    assert refused.value.code == "agent_unknown"


@simulated
async def test_what_a_compensator_spends_counts_for_the_run_and_the_day(mill: Cluster) -> None:
    worker = await with_model(mill, Chain(one=CUT))
    worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(100, None, None))
    config = asking("llm", model="one", prices=PRICES, max_tokens=1_000)["config"]
    fallbacks = [{"provider": "other", "model": "two", "prices": PRICES}]
    undo = {"type": "llm", "config": config | {"fallbacks": fallbacks}}
    flow = document(node("a", type="value", compensator=undo), node("b", "a", type="fail", config={"kind": "boom"}))
    run = await worker.run(flow | {"on_failure": {"compensate": "automatic"}})
    await asyncio.sleep(60)
    spent = (await mill.state(run.run_id)).spent
    assert spent.calls == 2 and spent.tokens > 1_000 and spent.micros > 0
    assert await worker.engine.agents.accounts.spent_today(TENANT) == spent
    (row,) = (await worker.engine.usage.find()).rows
    assert (row.model_calls, row.model_tokens) == (2, spent.tokens)


@simulated
async def test_repairs_and_failed_calls_of_a_node_that_asks_once_count(mill: Cluster) -> None:
    model = Chain(one=BUSY, two=CUT)
    worker = await with_model(mill, model)
    schema = {"type": "object"}
    fallbacks = [{"provider": "other", "model": name} for name in ("two", "three")]
    flow = asking("llm", model="one", schema=schema, fallbacks=fallbacks, max_tokens=1_000)
    run = await worker.run(document(flow | {"retry": {"max_attempts": 1}}))
    assert (run.nodes["a"]["error"]["code"], model.models) == ("output_invalid", ["one", "two", "three", "three"])
    found = [record for record in await records(mill, run.run_id) if record["t"] == "call"]
    assert [record.get("code", "") for record in found] == [BUSY.code, CUT.code, "", ""]
    tokens = found[1]["spent"][1]
    assert tokens > 1_000 and (await mill.state(run.run_id)).spent == Spend(4, tokens + 240, 0, 120)


@pytest.mark.parametrize("whose", ["run", "day"])
@simulated
async def test_nodes_that_ask_once_stop_at_the_budget(mill: Cluster, whose: str) -> None:
    model = Model(LABEL, takes_s=1.0)
    worker = await with_model(mill, model)
    if whose == "day":
        worker.engine.agents.accounts = AgentAccounts(mill.store, Budget(5, None, None))
    limits = {"budget": {"calls": 5}} if whose == "run" else {}
    flow = asking("llm") | {"map": {"over": list(range(20)), "tolerate": 20}}
    run = await worker.run(document(flow, limits=limits))
    assert (len(model.asked), run.spent["calls"], (await mill.state(run.run_id)).reserved) == (5, 5, Spend())


@simulated
async def test_a_lost_call_of_a_node_that_asks_once_counts(mill: Cluster) -> None:
    model = Model(LABEL, takes_s=5.0)
    first = await with_model(mill, model)
    run_id = await first.start(document(asking("llm", max_tokens=1_000)))
    await mill.until(lambda: bool(model.asked))
    first.kill()
    run = await (await with_model(mill, model, "w2")).end(run_id)
    assert (run.status, run.spent["calls"], len(model.asked)) == ("COMPLETED", 2, 2)
    assert run.spent["tokens"] > 1_120, "what became of the first call is unknown"
