"""Sessions: agents that share an id remember what was said, within bounds, each turn once."""

from __future__ import annotations

from typing import Any

from tests.fixtures.agents import Model, at_work, of_agent
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tidemill.agents.memory import (
    SUMMARY_MAX,
    TEXT_MAX,
    TURNS_KEPT,
    TURNS_MAX,
    Compacted,
    Memory,
    Remembered,
    additions,
    remembered,
)
from tidemill.engine.agents.accounts import DAY, DAYS_KEPT, SESSION, SESSION_DAYS_KEPT, AgentAccounts
from tidemill.engine.index_rows import DAY_MS
from tidemill.kernel.spending import Budget, Spend
from tidemill.stores.memory import MemoryStore


def turn(number: int) -> Remembered:
    return remembered(f"k{number}", f"question {number}", f"answer {number}", number)


def filled(count: int) -> Memory:
    memory = Memory()
    for number in range(count):
        for record in additions(memory, turn(number)):
            memory.add(record)
    return memory


def test_a_turn_is_remembered_once() -> None:
    memory = filled(2)
    assert additions(memory, turn(1)) == []
    assert memory.messages(1) == [("user", "question 1"), ("assistant", "answer 1")]


def test_the_oldest_turns_become_a_summary() -> None:
    memory = filled(TURNS_MAX)
    assert memory.summary == ""
    added = additions(memory, turn(TURNS_MAX))
    assert [type(record) for record in added] == [Remembered, Compacted]
    memory = filled(TURNS_MAX + 1)
    assert len(memory.turns) == TURNS_KEPT and memory.turns[-1].key == f"k{TURNS_MAX}"
    assert memory.summary.startswith("- asked: question 0; answered: answer 0")
    (role, text), *rest = memory.messages(3)
    assert role == "user" and "question 0" in text and len(rest) == 6


def test_a_memory_is_bounded_however_much_is_said() -> None:
    memory = Memory()
    for number in range(500):
        for record in additions(memory, remembered(f"k{number}", "q" * 50_000, "a" * 50_000, 0)):
            memory.add(record)
    assert len(memory.turns) <= TURNS_MAX and len(memory.summary) <= SUMMARY_MAX
    assert all(len(each.prompt) <= TEXT_MAX and len(each.answer) <= TEXT_MAX for each in memory.turns)


@simulated
async def test_agents_of_a_session_share_a_memory(mill: Cluster) -> None:
    model = Model("Blue.")
    worker = await at_work(mill, model)
    await worker.run(of_agent(session="ann", prompt="My colour is blue."))
    model.script = ("You said blue.",)
    run = await worker.run(of_agent(session="ann", prompt="Which colour?"))
    asked = [(message["role"], message["content"]) for message in model.questions[-1].messages]
    assert asked == [("user", "My colour is blue."), ("assistant", "Blue."), ("user", "Which colour?")]
    await worker.run(of_agent(session="bob", prompt="Which colour?"))
    assert len(model.questions[-1].messages) == 1, "another session"
    transcript = await worker.engine.transcript(run.run_id, "a")
    assert transcript.memory == [["user", "My colour is blue."], ["assistant", "Blue."]]


@simulated
async def test_a_long_session_is_read_from_its_snapshot(mill: Cluster) -> None:
    accounts = AgentAccounts(mill.store).of(TENANT)
    for number in range(3 * TURNS_MAX):
        await accounts.remember("a session with / and ü", f"k{number}", f"question {number}", "yes")
        await accounts.remember("a session with / and ü", f"k{number}", "again", "no")
    memory = await accounts.session("a session with / and ü")
    assert TURNS_KEPT <= len(memory.turns) <= TURNS_MAX
    assert memory.turns[-1].prompt == f"question {3 * TURNS_MAX - 1}"
    (stream,) = await mill.store.streams("agent_session")
    (tail,) = await mill.store.load({stream: 0})
    assert tail.snapshot is not None and len(tail.records) <= TURNS_MAX
    assert (await AgentAccounts(mill.store).of("other").session("a session with / and ü")).turns == []


async def test_maintenance_forgets_old_days_and_sessions_that_nobody_uses() -> None:
    clock = [1_000 * DAY_MS]
    store = MemoryStore(clock=lambda: clock[0])
    accounts = AgentAccounts(store, Budget(1_000, None, None))

    async def sweep() -> None:
        cursor, more = dict[str, Any](), True
        while more:
            cursor, _, more = await accounts.forget_old(TENANT, cursor)

    async def kept() -> tuple[int, set[str]]:
        days, sessions = [await store.streams(kind) for kind in (DAY, SESSION)]
        return len(days), {f"{stream.tenant}/{stream.key}" for stream in sessions}

    for tenant, name in ((TENANT, "old"), (TENANT, "used"), ("other", "old")):
        await accounts.of(tenant).remember(name, "k1", "question", "answer")
    await accounts.reserve(TENANT, "k", Spend(1))
    await sweep()
    assert await kept() == (1, {f"{TENANT}/old", f"{TENANT}/used", "other/old"})
    clock[0] += (DAYS_KEPT + 2) * DAY_MS
    await accounts.of(TENANT).remember("used", "k2", "question", "answer")
    await sweep()
    assert await kept() == (0, {f"{TENANT}/old", f"{TENANT}/used", "other/old"})
    clock[0] += (SESSION_DAYS_KEPT - DAYS_KEPT) * DAY_MS
    await sweep()
    assert await kept() == (0, {f"{TENANT}/used", "other/old"}), "what another tenant has is not its business"
    await accounts.of(TENANT).remember("old", "k1", "question", "answer")
    assert len((await accounts.of(TENANT).session("old")).turns) == 1
