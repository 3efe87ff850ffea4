"""Commands that make no sense: any type, any node, visit, index, fence and outcome, most of them wrong."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, get_args

import msgspec

from tidemill.kernel import commands as cmd
from tidemill.kernel.events import AnyEvent, BlobRef, Error, Payload, Route
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.model import Compensator, Workflow
from tidemill.kernel.spending import Spend

VISITS = (1, 1, 1, 1, 2, 3, 0, -1, 10**9)
INDEXES = (-1, -1, -1, -1, 0, 0, 1, 2, 5, -2, 10**9)
ODD_NUMBERS = (0, 1, -1, 2, 7, 10**12)
KINDS = ("run", "wake", "expire", "outputs", "deadline", "undo", "child", "close", "report", "nonsense", "")
PEOPLE = (None, "ann", "user:bob", "user:ann", "role:boss", "")
NAMES = ("paid", "other", "")
ROLES = ((), ("boss",), ("role:boss", "other"))


class RandomCommands:
    """A source of commands for one workflow."""

    def __init__(self, flow: Workflow, rng: random.Random) -> None:
        self.rng = rng
        self.flow = flow
        self.nodes = [node.id for node in flow.nodes]
        self.prefix: tuple[AnyEvent, ...] = ()
        """The log of another run, for forks."""
        self.token = 0
        self.targets: list[JobBody] = []
        """Activations that are really in flight: nonsense hurts most where it is expected."""
        self._makers: dict[type, Callable[[], Any]] = {
            cmd.Start: lambda: cmd.Start(version=1, digest="", inputs=b"{}", **self._who()),
            cmd.Pause: lambda: cmd.Pause(**self._who()),
            cmd.Resume: lambda: cmd.Resume(**self._who()),
            cmd.Cancel: lambda: cmd.Cancel(**self._who()),
            cmd.DeadlineReached: lambda: cmd.DeadlineReached(**self._who()),
            cmd.Repair: lambda: cmd.Repair(missing=self._keys(), surplus=self._keys(), **self._who()),
            cmd.Result: self.result,
            cmd.AttemptStarted: lambda: cmd.AttemptStarted(token=self._token(), **self._where()),
            cmd.WorkerLost: lambda: cmd.WorkerLost(
                token=self._token(), times=rng.choice((1, 2, 9, 0, -1)), **self._where()
            ),
            cmd.Checkpoint: lambda: cmd.Checkpoint(token=self._token(), value=self._payload(), **self._where()),
            cmd.Append: self._append,
            cmd.TimerFired: lambda: cmd.TimerFired(**self._where()),
            cmd.WaitExpired: lambda: cmd.WaitExpired(**self._where()),
            cmd.RequeueJob: lambda: cmd.RequeueJob(kind=rng.choice(KINDS), **self._where()),
            cmd.OutputsRendered: lambda: cmd.OutputsRendered(outcome=self._end(), **self._who()),
            **self._from_the_world(),
            **self._acts(),
        }

    def _append(self) -> cmd.Append:
        amounts = (None, Spend(1, 100, 5), Spend(0, 0, 0), Spend(1, 10**9, 10**9))
        return cmd.Append(
            token=self._token(),
            value=self._payload(),
            number=self.rng.choice((0, 0, 1, 2, 9)),
            reserve=self.rng.choice(amounts),
            spent=self.rng.choice(amounts),
            **self._where(),
        )

    def _from_the_world(self) -> dict[type, Callable[[], Any]]:
        rng = self.rng
        return {
            cmd.Decide: lambda: cmd.Decide(
                verb=rng.choice(("approve", "reject", "changes")), form=self._form(), **self._person()
            ),
            cmd.Delegate: lambda: cmd.Delegate(to=rng.choice(PEOPLE[1:]), **self._person()),
            cmd.Signal: lambda: cmd.Signal(
                name=rng.choice(NAMES), signal=f"s{rng.randrange(9)}", payload=self._payload(), **self._who()
            ),
            cmd.ChildBegan: lambda: cmd.ChildBegan(
                child=rng.choice(NAMES),
                workflow="w",
                version=1,
                digest="sha256:1",
                close=self._close(),
                **self._where(),
            ),
            cmd.ChildEnded: lambda: cmd.ChildEnded(
                child=rng.choice(NAMES),
                status=rng.choice(("COMPLETED", "FAILED", "CANCELLED", "")),
                output=rng.choice((None, self._payload())),
                error=rng.choice((None, Error("boom", "", causes=("x",)))),
                digest=rng.choice(("", "sha256:1")),
                **self._where(),
            ),
            cmd.Delivered: lambda: cmd.Delivered(**self._who()),
        }

    def _acts(self) -> dict[type, Callable[[], Any]]:
        rng = self.rng
        return {
            cmd.Retry: lambda: cmd.Retry(confirmed_not_done=self._names(), **self._who()),
            cmd.Rewind: lambda: cmd.Rewind(node=self._name(), **self._who()),
            cmd.Override: lambda: cmd.Override(
                output=rng.choice((None, self._payload())),
                next_nodes=rng.choice((None, None, (), self._names())),
                **self._where(),
            ),
            cmd.Patch: self._patch,
            cmd.Fork: lambda: cmd.Fork(
                run="other",
                prefix=self.prefix[: rng.choice((0, 1, 5, 1_000))],
                rewind=rng.choice(("", self._name())),
                patch=rng.choice((None, self._patch())),
                **self._who(),
            ),
            cmd.Rollback: lambda: cmd.Rollback(**self._who()),
            cmd.CompensationResult: lambda: cmd.CompensationResult(
                token=self._token(), outcome=self._end(), **self._where()
            ),
            cmd.CompensationWorkerLost: lambda: cmd.CompensationWorkerLost(
                token=self._token(), times=rng.choice((1, 9, 0)), **self._where()
            ),
            cmd.Relabel: lambda: cmd.Relabel(labels={"a": "b"}, remove=rng.choice(((), ("a", "c"))), **self._who()),
            cmd.CloseDeadLetter: lambda: cmd.CloseDeadLetter(**self._where()),
        }

    @property
    def kinds(self) -> list[type]:
        """Every type of command that can be made."""
        return list(self._makers)

    def command(self, kind: type | None = None) -> cmd.AnyCommand:
        """One command, of a given type or of any."""
        made: cmd.AnyCommand = self._makers[kind or self.rng.choice(self.kinds)]()
        return made

    def result(self) -> cmd.Result:
        """A result of any outcome for any activation."""
        outcome = self.rng.choice((self._done, self._failed, self._waits, self._expands, cmd.SkipRequested))()
        return cmd.Result(
            token=self._token(),
            outcome=outcome,
            route=self._route(),
            called=self.rng.random() < 0.7,
            late=self.rng.random() < 0.05,
            chance=self.rng.random(),
            **self._where(),
        )

    def _end(self) -> cmd.Done | cmd.Failed:
        return self.rng.choice((self._done(), self._failed()))

    def _person(self) -> dict[str, Any]:
        return {**self._where(), "actor": self.rng.choice(PEOPLE), "roles": self.rng.choice(ROLES)}

    def _form(self) -> Payload | None:
        return self.rng.choice((None, b"{}", BlobRef("sha256:0", 100_000)))

    def _close(self) -> Any:
        return self.rng.choice(("", "cancel", "abandon"))

    def _name(self) -> str:
        return self.rng.choice((*self.nodes, "nobody"))

    def _names(self) -> tuple[str, ...]:
        return tuple(self._name() for _ in range(self.rng.randrange(3)))

    def _patch(self) -> cmd.Patch:
        base, changed = self.rng.choice((self.flow.digest, "")), self.rng.choice((self.flow, self._other()))
        return cmd.Patch(
            base=base, workflow=changed, patch=b"[]", retry=self.rng.random() < 0.5, confirmed_not_done=self._names()
        )

    def _other(self) -> Workflow:
        """The same graph, in which one node has another configuration or somebody to undo it."""
        at = self.rng.randrange(len(self.flow.nodes))
        more = self.rng.choice(({"config": "other"}, {"compensator": Compensator(type="value@1")}, {"timeout_ms": 50}))
        nodes = list(self.flow.nodes)
        nodes[at] = msgspec.structs.replace(nodes[at], **more)
        return msgspec.structs.replace(self.flow, nodes=tuple(nodes))

    def _who(self) -> dict[str, Any]:
        return {"id": self.rng.choice((None, "x", "y", "")), "actor": self.rng.choice((None, "user:me"))}

    def _where(self) -> dict[str, Any]:
        rng = self.rng
        if self.targets and rng.random() < 0.6:
            task = rng.choice(self.targets)
            return {"node": task.node, "visit": task.visit, "index": task.index, **self._who()}
        node = rng.choice(self.nodes) if rng.random() < 0.95 else rng.choice(("", "nobody"))
        return {"node": node, "visit": rng.choice(VISITS), "index": rng.choice(INDEXES), **self._who()}

    def _token(self) -> int:
        self.token += 1
        return self.token if self.rng.random() < 0.8 else self.rng.choice((*ODD_NUMBERS, self.token - 1))

    def _keys(self) -> tuple[str, ...]:
        where = [f"{self.rng.choice(KINDS)}/{self.rng.choice(self.nodes)}/1/-1" for _ in range(self.rng.randrange(3))]
        return (*where, "deadline//0/-1")

    def _payload(self) -> Payload:
        return self.rng.choice((b"1", b"[]", b"", BlobRef("sha256:0", 100_000)))

    def _done(self) -> cmd.Done:
        return cmd.Done(output=self._payload(), size=self.rng.choice(ODD_NUMBERS[:5]))

    def _failed(self) -> cmd.Failed:
        rng = self.rng
        code = rng.choice(("boom", "worker_lost", "timeout", "upstream_failed", ""))
        return cmd.Failed(
            error=Error(code, "", retryable=rng.random() < 0.7),
            retry_after_ms=rng.choice((None, None, *ODD_NUMBERS)),
            unknown_outcome=rng.random() < 0.2,
        )

    def _waits(self) -> cmd.WaitRequested:
        rng = self.rng
        on = rng.choice(("timer", "human", "signal", "child", "loop", ""))
        asked = cmd.Request(
            title="?",
            approvers=rng.choice(((), ("user:ann",), ("role:boss", "user:bob"))),
            quorum=rng.choice((1, 2, 0)),
            four_eyes=rng.random() < 0.3,
            timeout_ms=rng.choice((None, 0, 50)),
            on_timeout=rng.choice(("approve", "reject", "escalate", "fail")),
            escalate_to=rng.choice(((), ("user:ann",))),
        )
        return cmd.WaitRequested(
            on=on,
            name=rng.choice(NAMES),
            for_ms=rng.choice((None, *ODD_NUMBERS)),
            until_ms=rng.choice((None, *ODD_NUMBERS)),
            recall=rng.random() < 0.3,
            approval=asked if on == "human" or rng.random() < 0.1 else None,
            close=self._close(),
        )

    def _expands(self) -> cmd.MapExpanded:
        return cmd.MapExpanded(count=self.rng.choice((0, 1, 2, 5, 10**9, -1)), items=self._payload())

    def _route(self) -> Route | None:
        rng = self.rng
        if rng.random() < 0.5:
            return None
        branch = rng.choice((None, (), tuple(rng.sample(self.nodes, min(len(self.nodes), 2))), ("nobody",)))
        return Route(rng.choice((None, True, False)), branch, rng.choice((-1, 0, 1, 99, -99)))


ALL_KINDS: tuple[type, ...] = get_args(cmd.AnyCommand)
