"""Two stores side by side: the same seeded random operations on both, every answer compared at once."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

import msgspec
import pytest

from tests.conformance.stores.harness import LONG_MS, StoreUnderTest, row
from tidemill.stores import contract as c

Answer = TypeVar("Answer")

STREAMS = [c.Stream(tenant, "run", key) for tenant in ("acme", "beta", "zeta") for key in ("r1", "r1.a", "r2")]
KEYS = ["k1", "k2", "k3", "k4"]
QUEUES = ["fast", "slow"]
CAPS = ["http", "gpu", "q<=2"]
TERMS = ["status:RUNNING", "status:DONE", "label:a"]
SHORT_MS = 100

REACHED = {
    *("Committed", "VersionConflict", "LeasesLost", "group of mixed fate", "kept", "keep refused", "job was there"),
    *("claimed", "claimed in the family", "taken over", "taken over twice", "held back by a cap", "late ack"),
    *(
        "withdraw spared",
        "idle",
        "not idle",
        "not idle, but released",
        "renewed",
        "renewal lost",
        "revived",
        "released",
        "snapshot loaded",
        "next page",
        "followed",
        "forgotten",
    ),
}
"""Situations that the generator must have produced in a run of many seeds, or it tests less than it says."""


OFTEN = 20
SEEDS_THAT_REACH_ALL = 120

PARTS = 8
"""Tests the seeds are dealt to, so that several processes can share them."""


class Side:
    """One of the two stores, and its own names for what both have granted."""

    def __init__(self, sut: StoreUnderTest) -> None:
        self.sut = sut
        self.leases: list[c.Lease] = []
        self.numbers = {0: 0}
        self.cursors: dict[tuple[str, tuple[str, ...]], str | None] = {}

    def register(self, leases: Sequence[c.Lease]) -> None:
        """Number new leases in the order of the answer, which is compared too; every token must be a new high."""
        newest = max(self.numbers)
        assert all(lease.token > newest for lease in leases), f"a token is not above {newest}: {leases}"
        for lease in leases:
            self.leases.append(lease)
            assert self.numbers.setdefault(lease.token, len(self.leases)) == len(self.leases), f"twice: {lease}"


class Duel:
    """One seed's walk. Every method named `do_…` is an operation; its weight stands in `OPERATIONS`."""

    def __init__(self, seed: int, reference: StoreUnderTest, other: StoreUnderTest) -> None:
        self.dice = random.Random(seed)
        self.sides = (Side(reference), Side(other))
        self.timed = reference.exact_times and other.exact_times
        self.script: list[str] = []
        self.seen: Counter[str] = Counter()

    async def walk(self, steps: int) -> None:
        for _ in range(steps):
            (operation,) = self.dice.choices(list(OPERATIONS), list(OPERATIONS.values()))
            await operation(self)
        for stream in STREAMS:
            await self.ask("the whole in the end", partial(picture, stream=stream))

    async def ask(
        self,
        words: str,
        verb: Callable[[Side], Awaitable[Answer]],
        new: Callable[[Answer], Sequence[c.Lease]] = lambda _: (),
    ) -> Answer:
        """Do the same on both sides, compare, and answer what the reference said; `new` finds granted leases."""
        self.script.append(words)
        answers = [await verb(side) for side in self.sides]
        for side, answer in zip(self.sides, answers, strict=True):
            side.register(new(answer))
        first, second = (self.plain(side, answer) for side, answer in zip(self.sides, answers, strict=True))
        assert first == second, f"answers differ\n  reference: {first}\n  other:     {second}"
        return answers[0]

    def plain(self, side: Side, answer: object) -> object:
        """The answer in plain values, without what each store may choose for itself."""
        if isinstance(answer, msgspec.Struct):
            fields = {name: getattr(answer, name) for name in answer.__struct_fields__}
            if "token" in fields:
                fields["token"] = side.numbers.get(fields["token"], "of nobody")
            if isinstance(answer, c.Page):
                fields["after"] = answer.after is not None
            if not self.timed:
                fields = {name: value for name, value in fields.items() if not name.endswith("_at_ms")}
            return type(answer).__name__, {name: self.plain(side, value) for name, value in fields.items()}
        if isinstance(answer, list | tuple):
            return [self.plain(side, item) for item in answer]
        return answer

    @property
    def reference(self) -> c.Store:
        return self.sides[0].sut.store

    def some(self, items: Sequence[Answer], at_most: int = 2) -> tuple[Answer, ...]:
        return tuple(self.dice.sample(items, min(len(items), self.dice.randint(0, at_most))))

    def lease_ms(self) -> int:
        return self.dice.choice([SHORT_MS, LONG_MS]) if self.timed else LONG_MS

    def numbers(self, stream: c.Stream | None = None) -> list[int]:
        """Numbers of recent leases, most of them lost by now: the generator must not know better than the store."""
        recent = list(enumerate(self.sides[0].leases))[-12:]
        return [number for number, lease in recent if stream is None or lease.stream == stream]

    async def do_commit(self) -> None:
        plans = [await self.plan() for _ in range(self.dice.choice([1, 1, 1, 2, 3]))]
        words = f"commit {plans}"
        results = await self.ask(words, lambda side: side.sut.store.commit([build(side, p) for p in plans]), kept)
        self.seen.update({type(result).__name__ for result in results})
        self.seen["group of mixed fate"] += len({type(result) for result in results}) > 1
        for plan, result in zip(plans, results, strict=True):
            if isinstance(result, c.Committed):
                self.seen["kept"] += bool(result.kept)
                self.seen["keep refused"] += len(result.kept) < len(plan["keep"])

    async def plan(self) -> dict[str, Any]:
        """A commit whose leases are given by number, so that each side can put in its own tokens."""
        dice, stream = self.dice, self.dice.choice(STREAMS)
        spent = [(each, view.job.key) for each in STREAMS for view in await self.reference.jobs(each) if given_up(view)]
        asked: tuple[str, ...] = self.some(KEYS) if dice.random() < 0.25 else ()
        if spent and dice.random() < 0.3:
            stream, key = dice.choice(spent)
            asked = (key,)
        (tail,) = await self.reference.load({stream: 0})
        views = {view.job.key: view for view in await self.reference.jobs(stream)}
        expected = dice.choices(
            [tail.version, None, dice.choice([abs(tail.version - 1), tail.version + 1])], [6, 2, 1]
        )[0]
        records = tuple(b"%d" % dice.randrange(1000) for _ in range(dice.randint(0, 3))) if expected is not None else ()
        jobs = tuple(self.job() for _ in range(dice.randint(0, 3)))
        plan: dict[str, Any] = {"stream": stream, "expected": expected, "records": records, "jobs": jobs}
        if expected is not None and dice.random() < 0.35:
            version = dice.randint(0, expected + len(records))
            plan["snapshot"] = c.Snapshot(version=version, body=b"s%d" % dice.randrange(1000))
        plan["acks"] = self.some(self.numbers(stream))
        plan["holds"] = self.some(self.numbers(stream), 1) if dice.random() < 0.3 else ()
        plan["untaken"] = ("k1",) if dice.random() < 0.03 else ()
        plan["idle"] = asked
        plan["drop"] = self.some(KEYS, 1) if dice.random() < 0.3 else ()
        plan["withdraw"] = self.some(KEYS, 2) if dice.random() < 0.3 else ()
        plan["keep"] = self.some([job.key for job in jobs] + ["k1"])
        plan["keep_lease_ms"] = self.lease_ms()
        plan["keep_owner"] = dice.choice(["", "w9"])
        plan["rows"] = tuple(self.row() for _ in range(dice.randint(0, 2)))
        self.seen["job was there"] += any(job.key in views for job in jobs)
        self.seen["withdraw spared"] += any(key in views and views[key].token > 0 for key in plan["withdraw"])
        self.seen["idle"] += any(key in views and idle(views[key]) for key in plan["idle"])
        self.seen["not idle"] += any(key in views and not idle(views[key]) for key in plan["idle"])
        self.seen["not idle, but released"] += any(key in views and given_up(views[key]) for key in plan["idle"])
        now = self.reference.now_ms()
        tokens = [self.sides[0].leases[number].token for number in plan["acks"]]
        self.seen["late ack"] += any(v.token in tokens and (v.lease_expires_at_ms or now) < now for v in views.values())
        return plan

    def job(self) -> c.Job:
        dice, now = self.dice, self.reference.now_ms()
        later = now + dice.choice([SHORT_MS, 3 * SHORT_MS, LONG_MS]) if self.timed else now + 10 * LONG_MS
        return c.Job(
            key=dice.choice(KEYS),
            queue=dice.choice(QUEUES),
            body=b"%d" % dice.randrange(1000),
            ready_at_ms=dice.choice([0, 0, 0, 1, later]),
            priority=dice.choice([0, 5, 5, 9]),
            caps=self.some(CAPS) if dice.random() < 0.4 else (),
        )

    def row(self) -> c.Row:
        dice = self.dice
        return c.Row(
            kind="run",
            key=f"row{dice.randrange(8)}",
            sort=dice.randrange(4),
            terms=self.some(TERMS, 3),
            body=b"%d" % dice.randrange(1000),
            deleted=dice.random() < 0.2,
        )

    async def do_claim(self) -> None:
        bounds = {cap: self.dice.randint(0, 2) for cap in self.some(CAPS)}
        queues = self.some(QUEUES)
        limit = self.dice.choice([1, 1, 2, 5, 50])
        lease_ms = self.lease_ms()
        family = self.dice.choice(["", "", "", "r1"])
        request = c.Claim(
            queues=queues, limit=limit, lease_ms=lease_ms, owner=f"w{limit}", caps=bounds, run_tree=family
        )
        leases = await self.ask(f"{request}", lambda side: side.sut.store.claim(request), list)
        self.seen["claimed"] += bool(leases)
        self.seen["claimed in the family"] += bool(leases and family)
        self.seen["taken over"] += any(lease.expired == 1 for lease in leases)
        self.seen["taken over twice"] += any(lease.expired > 1 for lease in leases)
        waiting = [
            line for line in await self.reference.backlog() if (not queues or line.queue in queues) and line.ready
        ]
        self.seen["held back by a cap"] += bool(waiting) and len(leases) < limit

    async def do_renew(self) -> None:
        numbers, lease_ms = self.some(self.numbers(), 4), self.lease_ms()
        now, before = self.reference.now_ms(), await self.expiries(numbers)
        lost = await self.ask(
            f"renew {numbers} for {lease_ms}",
            lambda side: side.sut.store.renew([side.leases[number] for number in numbers], lease_ms),
        )
        self.seen["renewal lost"] += bool(lost)
        self.seen["renewed"] += len(lost) < len(numbers)
        self.seen["revived"] += any(expiry <= now for expiry in before)

    async def expiries(self, numbers: Iterable[int]) -> list[int]:
        wanted = [self.sides[0].leases[number] for number in numbers]
        views = [(lease, view) for lease in wanted for view in await self.reference.jobs(lease.stream)]
        return [view.lease_expires_at_ms or 0 for lease, view in views if view.token == lease.token]

    async def do_release(self) -> None:
        numbers = self.some(self.numbers(), 3)
        delay_ms = self.dice.choice([0, 0, SHORT_MS if self.timed else LONG_MS])
        self.seen["released"] += bool(await self.expiries(numbers))
        await self.ask(
            f"release {numbers} after {delay_ms}",
            lambda side: side.sut.store.release([side.leases[number] for number in numbers], delay_ms=delay_ms),
        )

    async def do_advance(self) -> None:
        ms = self.dice.choice([1, SHORT_MS - 1, SHORT_MS, 2 * SHORT_MS, LONG_MS]) if self.timed else 0
        await self.ask(f"advance {ms}", lambda side: side.sut.advance(ms))

    async def do_load(self) -> None:
        after = {stream: self.dice.choice([0, 0, 1, 2, 4, 9]) for stream in self.some(STREAMS, 4)}
        snapshots = self.dice.random() < 0.8
        limit = self.dice.choice([None, None, 0, 1, 2, 5])
        tails = await self.ask(
            f"load {after} {snapshots} {limit}",
            lambda side: side.sut.store.load(after, snapshots=snapshots, limit=limit),
        )
        self.seen["snapshot loaded"] += any(tail.snapshot is not None for tail in tails)

    async def do_find(self) -> None:
        begun = [question for question, cursor in self.sides[0].cursors.items() if cursor is not None]
        going_on = bool(begun) and self.dice.random() < 0.5
        tenant, terms = self.dice.choice(begun if going_on else [(self.dice.choice(STREAMS).tenant, self.some(TERMS))])
        limit = self.dice.randint(1, 4)

        async def verb(side: Side) -> c.Page:
            after = side.cursors[tenant, terms] if going_on else None
            page = await side.sut.store.find(tenant, "run", terms, after=after, limit=limit)
            side.cursors[tenant, terms] = page.after
            return page

        page = await self.ask(f"find {tenant} {terms} limit {limit}, next page: {going_on}", verb)
        self.seen["next page"] += going_on and bool(page.rows)

    async def do_count(self) -> None:
        tenant, terms, at_most = self.dice.choice(STREAMS).tenant, self.some(TERMS), self.dice.choice([2, 1000])
        words = f"count {tenant} {terms} {at_most}"
        await self.ask(words, lambda side: side.sut.store.count(tenant, "run", terms, at_most=at_most))

    async def do_follow(self) -> None:
        stream = self.dice.choice(STREAMS)
        (tail,) = await self.reference.load({stream: 0}, snapshots=False)
        if tail.version:
            after = self.dice.randrange(tail.version)
            words = f"follow {stream} after {after}"
            await self.ask(words, lambda side: side.sut.frames(tail.version - after, stream, after))
            self.seen["followed"] += 1

    async def do_audit(self) -> None:
        stream = self.dice.choice(STREAMS)
        await self.ask(f"jobs {stream}", lambda side: side.sut.store.jobs(stream))
        await self.ask("backlog", lambda side: side.sut.store.backlog())

    async def do_forget(self) -> None:
        stream = self.dice.choice(STREAMS)
        self.seen["forgotten"] += bool(await self.reference.jobs(stream))
        expected = self.dice.choice([None, None, 0, 1])
        rows = (row(f"r{self.dice.randrange(3)}", deleted=True),)
        await self.ask(
            f"forget {stream} at {expected}",
            lambda side: side.sut.store.forget(stream, expected=expected, rows=rows),
        )

    async def do_streams(self) -> None:
        after, limit = self.dice.choice([None, *STREAMS]), self.dice.choice([1, 2, 100])
        kind = STREAMS[0].kind if after is None else after.kind
        await self.ask(
            f"streams of {kind} after {after}",
            lambda side: side.sut.store.streams(kind, after=after, limit=limit),
        )


OPERATIONS = {
    Duel.do_commit: 30,
    Duel.do_claim: 22,
    Duel.do_renew: 8,
    Duel.do_release: 6,
    Duel.do_advance: 12,
    Duel.do_load: 4,
    Duel.do_find: 7,
    Duel.do_count: 3,
    Duel.do_follow: 2,
    Duel.do_audit: 5,
    Duel.do_forget: 1,
    Duel.do_streams: 2,
}


def kept(results: Sequence[c.CommitResult]) -> list[c.Lease]:
    return [lease for result in results if isinstance(result, c.Committed) for lease in result.kept]


async def picture(side: Side, stream: c.Stream) -> object:
    return [await side.sut.store.load({stream: 0}, snapshots=False), await side.sut.store.jobs(stream)]


def idle(view: c.JobView) -> bool:
    return not (view.token or view.expired)


def given_up(view: c.JobView) -> bool:
    """Nobody holds it, but an earlier holder is presumed dead."""
    return not view.token and view.expired > 0


def build(side: Side, plan: dict[str, Any]) -> c.Commit:
    fields = dict(plan)
    untaken, unheld = (tuple((key, 0) for key in fields.pop(name)) for name in ("untaken", "idle"))
    for name in ("acks", "holds"):
        leases = [side.leases[number] for number in plan[name]]
        fields[name] = tuple((lease.key, lease.token) for lease in leases)
    return c.Commit(**(fields | {"acks": fields["acks"] + untaken, "holds": fields["holds"] + unheld}))


async def compare(seed: int, steps: int, pair: tuple[StoreUnderTest, StoreUnderTest], replay: str) -> Counter[str]:
    """Walk one seed; a difference is told with the last operations and the command that repeats it."""
    duel = Duel(seed, *pair)
    try:
        await duel.walk(steps)
    except Exception as error:
        story = "\n  ".join(duel.script[-6:])
        raise AssertionError(
            f"seed {seed}, operation {len(duel.script)}: {error}\nlast operations:\n  {story}\n"
            f"replay: TIDEMILL_SEEDS={seed} {replay}"
        ) from error
    return duel.seen


class DifferentialSuite:
    """Give it `pair`, and perhaps fewer `seeds` where a store is slow; `TIDEMILL_SEEDS=3,17` overrides them."""

    seeds: Sequence[int] = ()
    steps = 60

    async def pair(self) -> tuple[StoreUnderTest, StoreUnderTest]:
        """Two new, empty, opened stores: the reference and the one that must agree with it."""
        raise NotImplementedError

    @pytest.mark.asyncio
    @pytest.mark.parametrize("part", range(PARTS))
    async def test_both_stores_answer_alike(self, part: int) -> None:
        chosen = os.environ.get("TIDEMILL_SEEDS")
        seeds = ([int(seed) for seed in chosen.split(",")] if chosen else self.seeds)[part::PARTS]
        replay = f"python -m pytest {type(self).__module__.replace('.', '/')}.py::{type(self).__name__}"
        seen: Counter[str] = Counter()
        timed = False
        for seed in seeds:
            pair = await self.pair()
            try:
                seen += await compare(seed, self.steps, pair, replay)
            finally:
                for sut in pair:
                    await sut.store.close()
            timed = all(sut.exact_times for sut in pair)
        rare = {name: seen[name] for name in REACHED if seen[name] < OFTEN}
        assert not (rare and timed and len(seeds) >= SEEDS_THAT_REACH_ALL), f"the generator hardly reaches {rare}"
