"""A log that cannot be read is told as damage by whoever asks for it, and what needs it waits: it is not "unknown"."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from tests.durability.harness import FAN, chain, eventually, mill, sql
from tests.fixtures.command_line import process
from tidemill import client
from tidemill.cli import main
from tidemill.engine.attempts.log_store import JOURNAL
from tidemill.engine.engine import Engine
from tidemill.engine.index_rows import RUN
from tidemill.engine.versions import WORKFLOW
from tidemill.engine.worker.leases import ClaimErrors
from tidemill.errors import Rejected, rejected

PAGE = 4096
PARENT: dict[str, Any] = {
    "name": "parent",
    "nodes": [{"id": "kid", "type": "workflow", "config": {"workflow": "chain"}}],
}
SAYING: dict[str, Any] = {
    "name": "saying",
    "nodes": [{"id": "talk", "type": "python", "config": {"function": "talk"}}],
}


def flip(path: Path, kind: str, key: str) -> None:
    """Flip a bit in the last record of a stream; done twice, it is as before."""
    query = (
        "SELECT body FROM records JOIN streams ON streams.id = records.stream"
        " WHERE kind = ? AND key LIKE ? ORDER BY records.version DESC LIMIT 1"
    )
    ((body,),) = sql(path, query, (kind, key))
    content = bytearray(path.read_bytes())
    assert content.count(body) == 1
    content[content.find(body) + len(body) // 2] ^= 1
    path.write_bytes(content)


async def damage_told(name: str, verbs: dict[str, Callable[[], Awaitable[Any]]]) -> None:
    for verb, act in verbs.items():
        with pytest.raises(Rejected) as refused:
            await act()
        assert refused.value.code == "event_unreadable", verb
        assert name in str(refused.value), verb


async def published(path: Path, *documents: dict[str, Any]) -> None:
    async with mill(path, work=False) as engine:
        for document in documents:
            await engine.publish(document)


async def test_a_damaged_workflow_is_not_one_that_was_never_published(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await published(path, chain(), FAN)
    flip(path, WORKFLOW, "chain")
    async with mill(path, work=False) as engine:
        change = [{"op": "add", "path": "/description", "value": "x"}]
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "start": lambda: engine.start("chain"),
            "publish": lambda: engine.publish(chain()),
            "publish something new": lambda: engine.publish(chain(length=2)),
            "patch": lambda: engine.patch_workflow("chain", change),
            "versions": lambda: engine.versions("chain"),
            "document": lambda: engine.workflow_document("chain@1"),
            "tag": lambda: engine.tag("chain", "stable", 1),
            "tags": lambda: engine.tags("chain"),
            "diff": lambda: engine.diff("chain", "chain@1"),
        }
        await damage_told("workflow chain", verbs)
        assert await engine.start("fan"), "another workflow is not concerned"
        (finding,) = (await engine.verify_log()).findings
        assert finding.code == "log_unreadable"


async def test_a_workflow_that_is_listed_was_published(tmp_path: Path) -> None:
    """Lists are written with the records, so a name in them whose records are gone has lost them."""
    path = tmp_path / "a.db"
    await published(path, chain())
    sql(path, "DELETE FROM streams WHERE kind = ?", (WORKFLOW,))
    async with mill(path, work=False) as engine:
        await damage_told("workflow chain", {"start": lambda: engine.start("chain")})
        with pytest.raises(Rejected, match="did you mean `chain`") as refused:
            await engine.start("chian")
        assert refused.value.code == "workflow_unknown"


async def waits(engine: Engine, caplog: pytest.LogCaptureFixture, said: str) -> None:
    """The parent has been tried more than once, and still waits; why was said once."""
    caplog.set_level(logging.WARNING)
    await engine.start("parent", key="p")
    worker, parent = engine.worker, engine.context.stream("p")
    assert worker is not None
    await eventually(lambda: worker.finished >= 3 or engine.run_cache.get(parent) is None, "a second try")
    view = await engine.show("p")
    assert (view.status, view.nodes["kid"]["status"]) == ("RUNNING", "WAITING")
    blocker = (await engine.why("p")).blockers[0]
    async with asyncio.timeout(10):
        # While a worker is at it, nothing more can be said.
        while "started" not in blocker.words:
            await asyncio.sleep(0.02)
            blocker = (await engine.why("p")).blockers[0]
    assert f"p.kid.1 that no worker has started yet: the records of {said} are damaged" in blocker.words
    assert "backup" in blocker.unblock
    (told,) = [record.message for record in caplog.records if "is held until" in record.message]
    assert said in told
    assert "Traceback" not in caplog.text


async def test_a_child_of_a_damaged_workflow_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    await published(path, chain(), PARENT)
    flip(path, WORKFLOW, "chain")
    async with mill(path) as engine:
        await waits(engine, caplog, "workflow chain")
    flip(path, WORKFLOW, "chain")
    async with mill(path) as engine:
        assert (await engine.result("p", timeout_s=10)).status == "COMPLETED"


async def test_a_damaged_child_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also when it could not be started, were it not there: the damage comes first."""
    path = tmp_path / "a.db"
    await published(path, chain(), PARENT)
    async with mill(path, work=False) as engine:
        await engine.start("chain", key="p.kid.1")
    flip(path, RUN, "p.kid.1")
    flip(path, WORKFLOW, "chain")
    async with mill(path) as engine:
        await waits(engine, caplog, "run p.kid.1")


async def test_a_damaged_run_is_not_unknown(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with mill(path) as engine:
        await engine.publish(chain())
        run = await engine.result(await engine.start("chain", key="r"), timeout_s=10)
    flip(path, RUN, "r")
    async with mill(path, work=False) as engine:
        verbs: dict[str, Callable[[], Awaitable[Any]]] = {
            "events": lambda: engine.events("r"),
            "fork": lambda: engine.fork("r"),
            "show": lambda: engine.show("r"),
            "show at": lambda: engine.show("r", at=run.events),
            "start": lambda: engine.start("chain", key="r"),
            "follow": lambda: anext(aiter(engine.runs._frames("r", 0))),
        }
        await damage_told("run r", verbs)
        with pytest.raises(Rejected) as refused:
            await engine.events("s")
        assert refused.value.code == "run_unknown"


def test_damaged_lines_are_missed_aloud(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.db"
    with client.open(f"sqlite:///{path}", functions={"talk": lambda: print("a word")}) as talking:
        run = talking.run(SAYING)
        assert [line.text for line in talking.logs(run.run_id)] == ["a word"]
    flip(path, JOURNAL, "%")
    with client.open(f"sqlite:///{path}", work=False) as looking:
        assert looking.logs(run.run_id) == []
    assert "some log lines of talk are damaged" in caplog.text


@pytest.mark.parametrize("table", ["jobs_in_line", "tenants"])
def test_a_run_ends_when_no_work_can_be_claimed(tmp_path: Path, table: str) -> None:
    path = tmp_path / "a.db"
    with client.open(f"sqlite:///{path}", work=False) as engine:
        engine.publish(chain())
    ((page,),) = sql(path, "SELECT rootpage FROM sqlite_schema WHERE name = ?", (table,))
    with path.open("r+b") as file:
        file.seek((page - 1) * PAGE)
        file.write(bytes(PAGE))
    flow = tmp_path / "flow.json"
    flow.write_text(json.dumps(chain()))
    ended = process("run", str(flow), "--store", f"sqlite:///{path}", "--json")
    assert ended.code == main.REFUSED, ended
    assert ended.json["problems"][0]["code"] == "store_damaged"
    assert ended.err == "", "it is said once"


def test_a_refusal_that_heals_ends_nothing() -> None:
    refusals, given_up = ClaimErrors(), list[Rejected]()
    refusals.give_up = given_up.append
    for _ in range(3):
        refusals.report(rejected("store_damaged", "once"))
        refusals.clear()
    assert not given_up
    for _ in range(2):
        refusals.report(rejected("store_damaged", "again"))
    assert [refusal.code for refusal in given_up] == ["store_damaged"]


def test_what_is_in_hand_may_end_first(tmp_path: Path) -> None:
    """A store that gives out nothing more ends a run only when this process has nothing left to do for it."""
    asked: list[str] = []

    async def slow() -> str:
        worker = patient._engine.worker
        assert worker is not None and worker.refusals.give_up is not None
        while not patient._loop._calls:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        for _ in range(2):
            worker.refusals.report(rejected("store_damaged", "no"))
            asked.append("refused")
        await asyncio.sleep(0.05)
        return "done"

    document = {"name": "slow", "nodes": [{"id": "s", "type": "python", "config": {"function": "slow"}}]}
    with client.open(f"sqlite:///{tmp_path / 'a.db'}", only="r", functions={"slow": slow}) as patient:
        patient.publish(document)
        patient.start("slow", key="r")
        assert patient.result("r", timeout_s=10).status == "COMPLETED"
    assert len(asked) == 2
