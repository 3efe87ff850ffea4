"""Operators, approvers and other runs' messengers: whatever people do to a run, at any moment, several at a time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from tests.simulation.waits import PEOPLE, ROLES, SIGNALS
from tidemill.engine.engine import Engine
from tidemill.errors import Rejected, Unavailable

if TYPE_CHECKING:
    from tests.simulation.world import World

ASKED_MAX = 20

ACTS = (
    ["decide"] * 5 + ["signal"] * 3 + ["retry"] * 4 + ["rewind"] * 2 + ["override"] * 2 + ["patch"] * 4
    + ["fix"] * 2 + ["fork", "rollback", "rollback", "relabel", "discard", "delegate"]
)  # fmt: skip


class Operators:
    """The people of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.rng = random.Random(f"{world.seed}/operators")
        self.number = 0

    async def act(self) -> None:
        """Do something; sometimes two do the same thing, or contrary things, at once."""
        name = self.rng.choice(ACTS)
        times = 2 if self.rng.random() < 0.2 else 1
        await asyncio.gather(*(getattr(self, f"_{name}")(self._client()) for _ in range(times)))

    def _client(self) -> Engine:
        return self.rng.choice(self.world.clients)

    def _run(self) -> str:
        return self.rng.choice(list(self.world.checkers))

    def _id(self, kind: str) -> str:
        self.number += 1
        return f"{kind}-{self.number}"

    async def _ask(self, kind: str, run: str, command: str, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Ask until there is an answer; remember it if it is a yes."""
        for _ in range(ASKED_MAX):
            try:
                answer = await ask()
            except Unavailable:
                continue
            except Rejected as refusal:
                self.world.behaved[f"refused.{refusal.code}"] += 1
                return None
            self.world.behaved[f"act.{kind}"] += 1
            if command:
                self.world.acknowledged.append((run, command))
            return answer
        return None

    async def _node(self, client: Engine, run: str) -> str:
        nodes = list(self.world.checkers[run].workflow.by_id)
        return self.rng.choice(nodes)

    # People

    async def _decide(self, client: Engine) -> None:
        rows = await self._pending(client, ["status:pending"] if self.rng.random() < 0.8 else [])
        if not rows:
            return
        row = self.rng.choice(rows)
        person = self.rng.choice(PEOPLE)
        # A role may have been revoked since the approval was asked for.
        roles = ROLES[person] if self.rng.random() < 0.8 else ()
        verb = self.rng.choice(("approve", "approve", "approve", "reject", "changes"))
        index = None if row.index < 0 else row.index
        command = self._id("decide") if self.rng.random() < 0.5 else None
        await self._ask(
            "decide", row.run_id, "", lambda: client.decide(
                row.run_id, row.node, verb, actor=person, roles=roles, visit=row.visit, index=index,
                command_id=command,
            ),
        )  # fmt: skip

    async def _delegate(self, client: Engine) -> None:
        rows = await self._pending(client, ["status:pending"])
        if rows:
            row, (by, to) = self.rng.choice(rows), self.rng.sample(PEOPLE, 2)
            index = None if row.index < 0 else row.index
            await self._ask(
                "delegate", row.run_id, "", lambda: client.delegate(
                    row.run_id, row.node, to, actor=by, roles=ROLES[by], visit=row.visit, index=index
                ),
            )  # fmt: skip

    async def _pending(self, client: Engine, terms: list[str]) -> list[Any]:
        found = await self._ask("list", "", "", lambda: client.approvals.find(terms, limit=50))
        return [] if found is None else found[0]

    async def _signal(self, client: Engine) -> None:
        run, name, sent = self._run(), self.rng.choice(SIGNALS), self._id("signal")
        await self._ask("signal", run, "", lambda: client.signal(run, name, {"sent": sent}, signal_id=sent))

    # Operators

    async def _retry(self, client: Engine) -> None:
        run, command = self._run(), self._id("retry")
        sure = [node for node in self.world.checkers[run].workflow.by_id if self.rng.random() < 0.5]
        await self._ask(
            "retry", run, command, lambda: client.retry(run, actor="op", did_not_happen=sure, command_id=command)
        )

    async def _rewind(self, client: Engine) -> None:
        run, command = self._run(), self._id("rewind")
        node = await self._node(client, run)
        await self._ask("rewind", run, command, lambda: client.rewind(run, node, actor="op", command_id=command))

    async def _override(self, client: Engine) -> None:
        run, command = self._run(), self._id("override")
        node = await self._node(client, run)
        index = self.rng.choice((None, None, None, 0, 1))
        settled: dict[str, Any] = {"skip": True} if self.rng.random() < 0.3 else {"value": {"x": 1, "items": [1]}}
        await self._ask(
            "override", run, command,
            lambda: client.override(run, node, index=index, actor="op", command_id=command, **settled),
        )  # fmt: skip

    async def _relabel(self, client: Engine) -> None:
        run, command = self._run(), self._id("relabel")
        await self._ask("relabel", run, command, lambda: client.relabel(run, {"k": command}, command_id=command))

    async def _rollback(self, client: Engine) -> None:
        run, command = self._run(), self._id("rollback")
        await self._ask("rollback", run, command, lambda: client.rollback(run, actor="op", command_id=command))

    async def _discard(self, client: Engine) -> None:
        found = await self._ask("list", "", "", lambda: client.dead_letters.find(["status:open"], limit=20))
        if found is not None and found[0]:
            row = self.rng.choice(found[0])
            index = None if row.index < 0 else row.index
            await self._ask(
                "discard", row.run_id, "",
                lambda: client.discard(row.run_id, row.node, visit=row.visit, index=index, actor="op"),
            )  # fmt: skip

    async def _fork(self, client: Engine) -> None:
        run = self._run()
        if len(self.world.checkers) >= 8:
            return
        key = self._id("fork")
        at = self.rng.randint(1, max(1, self.world.checkers[run].seq)) if self.rng.random() < 0.7 else None
        node = await self._node(client, run) if self.rng.random() < 0.4 else None
        await self._ask("fork", run, "", lambda: client.fork(run, at=at, node=node, actor="op", key=key))

    async def _patch(self, client: Engine) -> None:
        await self._patch_run(client, retry=self.rng.random() < 0.3)

    async def _fix(self, client: Engine) -> None:
        """Fix and continue: patch a run that has failed, and let it go on."""
        await self._patch_run(client, retry=True)

    async def _patch_run(self, client: Engine, retry: bool) -> None:
        run, command = self._run(), self._id("patch")
        found = await self._ask("read", "", "", lambda: client.document(run))
        if found is None:
            return
        operations = self._operations(found.document)
        sure = list(self.world.checkers[run].workflow.by_id)
        await self._ask(
            "patch", run, command, lambda: client.patch(
                run, operations, base_digest=found.digest if self.rng.random() < 0.5 else None, retry=retry,
                did_not_happen=sure, actor=self.rng.choice(PEOPLE), command_id=command,
            ),
        )  # fmt: skip

    def _operations(self, document: dict[str, Any]) -> list[dict[str, Any]]:
        """A random change of the graph, which the run may be past."""
        rng, ids = self.rng, [node["id"] for node in document["nodes"]]
        kind = rng.choice(("node", "node", "edge", "cut", "remove", "config", "limits"))
        if kind == "node":
            new = f"p{rng.randrange(10_000)}"
            operations = [{"op": "add", "path": f"/nodes/{new}", "value": {"id": new, "type": "value"}}]
            sources = rng.sample(ids, min(len(ids), rng.choice((0, 1, 1, 2))))
            operations += [{"op": "add", "path": "/edges/-", "value": {"from": each, "to": new}} for each in sources]
            if rng.random() < 0.5:
                operations.append({"op": "add", "path": "/edges/-", "value": {"from": new, "to": rng.choice(ids)}})
            return operations
        if kind == "edge":
            ends = {"from": rng.choice(ids), "to": rng.choice(ids)}
            return [{"op": "add", "path": "/edges/-", "value": ends}]
        if kind == "cut" and document["edges"]:
            return [{"op": "remove", "path": f"/edges/{rng.randrange(len(document['edges']))}"}]
        if kind == "remove":
            return [{"op": "remove", "path": f"/nodes/{rng.choice(ids)}"}]
        if kind == "config":
            return [{"op": "add", "path": f"/nodes/{rng.choice(ids)}/priority", "value": rng.randrange(10)}]
        return [{"op": "add", "path": "/limits", "value": {"max_parallel": rng.choice((1, 2, 8))}}]

    # After the trouble

    async def diligent(self) -> None:
        """Somebody does what everybody waits for, so that every run can come to its end."""
        client = self._client()
        for row in await self._pending(client, ["status:pending"]):
            index = None if row.index < 0 else row.index
            # Those who patched the run may be everybody who was asked: then others are given the role.
            for person in (*PEOPLE, "yan", "zoe"):
                if f"user:{person}" in row.votes:
                    continue
                await self._ask(
                    "decide", row.run_id, "", lambda person=person, row=row, index=index: client.decide(
                        row.run_id, row.node, "approve", actor=person, roles=("boss", "clerk"), visit=row.visit,
                        index=index,
                    ),
                )  # fmt: skip
        for run, checker in list(self.world.checkers.items()):
            if checker.status in ("RUNNING", "PAUSED"):
                for name in SIGNALS:
                    sent = self._id("signal")
                    await self._ask(
                        "signal", run, "",
                        lambda run=run, name=name, sent=sent: client.signal(run, name, None, signal_id=sent),
                    )  # fmt: skip
