"""Laws of claim, renew and release: who gets which job, in which order, under which caps, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.conformance.stores.harness import LONG_MS, OTHER, RUN, SHORT_MS, StoreUnderTest, ack, job, keys, run
from tidemill.stores.contract import Committed, Lease


class ClaimLaws:
    async def test_no_work_is_an_empty_answer(self, sut: StoreUnderTest) -> None:
        assert await sut.claim(9) == []
        assert await sut.claim(9, queues=("a", "b")) == []
        assert await sut.claim(9, queues=()) == []

    async def test_a_lease_tells_all_about_its_job(self, sut: StoreUnderTest) -> None:
        await sut.put(job("k", body=b"\x00body", priority=3))
        before = sut.store.now_ms()
        lease = await sut.take(lease_ms=LONG_MS)
        after = sut.store.now_ms() + 5
        assert (lease.stream, lease.key, lease.body) == (RUN, "k", b"\x00body")
        assert (lease.queue, lease.priority, lease.expired) == ("q", 3, 0)
        assert isinstance(lease.stream, type(RUN))
        assert before + LONG_MS - 5 <= lease.expires_at_ms <= after + LONG_MS

    async def test_the_limit_is_kept(self, sut: StoreUnderTest) -> None:
        await sut.put(*(job(f"{number}") for number in range(5)))
        assert await sut.claim(0) == []
        assert keys(await sut.claim(2)) == ["0", "1"]
        assert keys(await sut.claim(9)) == ["2", "3", "4"]

    async def test_no_more_is_taken_than_there_is_room_for_at_that_moment(self, sut: StoreUnderTest) -> None:
        room = [2]
        waiting = asyncio.create_task(sut.claim(9, wait_ms=LONG_MS, room=lambda: room[0]))
        await asyncio.sleep(0.02)
        room[0] = 1
        await sut.put(job("a"), job("b"))
        assert keys(await waiting) == ["a"]

    async def test_a_claim_for_which_no_room_is_left_does_not_wait(self, sut: StoreUnderTest) -> None:
        room = [1]
        waiting = asyncio.create_task(sut.claim(9, wait_ms=LONG_MS, room=lambda: room[0]))
        await asyncio.sleep(0.02)
        room[0] = 0
        await sut.put(job("a"))
        assert await asyncio.wait_for(waiting, 30) == []
        assert await asyncio.wait_for(sut.claim(9, wait_ms=LONG_MS, room=lambda: -1), 5) == []
        assert keys(await sut.claim(9)) == ["a"]

    async def test_only_the_queues_asked_for_are_served(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", queue="x"), job("b", queue="y"), job("c", queue="z"))
        assert keys(await sut.claim(9, queues=("y",))) == ["b"]
        assert keys(await sut.claim(9, queues=("none", "z", "x", "z"))) == ["a", "c"]

    async def test_a_family_is_a_stream_and_those_under_its_name(self, sut: StoreUnderTest) -> None:
        for name in ("root", "root.", "root.a.1", "root.a.1.b", "roots", "other", "roo"):
            await sut.put(job(name), stream=run(name))
        assert keys(await sut.claim(9, family="root")) == ["root", "root.", "root.a.1", "root.a.1.b"]
        assert keys(await sut.claim(9, family="root")) == []
        assert keys(await sut.claim(1)) == ["roots"]
        assert keys(await sut.claim(9, family="roo")) == ["roo"]
        assert keys(await sut.claim(9)) == ["other"]

    async def test_who_names_no_queue_is_served_from_all(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", queue="x"), job("b", queue="y", priority=9))
        assert keys(await sut.claim(9, queues=())) == ["b", "a"]

    async def test_several_queues_are_one_line(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", queue="x"), job("b", queue="y"), job("c", queue="x"), job("d", queue="y", priority=9))
        assert keys(await sut.claim(9, queues=("y", "x"))) == ["d", "a", "b", "c"]

    async def test_higher_priority_first_then_insertion(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", priority=1), job("b", priority=9), job("c"))
        await sut.put(job("d", priority=9), job("e"), stream=OTHER)
        assert keys(await sut.claim(2)) == ["b", "d"]
        await sut.put(job("f", priority=7))
        assert keys(await sut.claim(9)) == ["f", "c", "e", "a"]

    async def test_within_a_priority_the_earlier_ready_first(self, sut: StoreUnderTest) -> None:
        now = sut.store.now_ms()
        await sut.put(job("timer 2", ready_at_ms=now + sut.soon_ms + 1), job("timer 1", ready_at_ms=now + sut.soon_ms))
        await sut.pass_soon()
        await sut.put(job("at once"), job("long ago", ready_at_ms=1))
        assert keys(await sut.claim(9)) == ["timer 1", "timer 2", "at once", "long ago"]

    async def test_a_job_is_not_claimed_before_its_time(self, sut: StoreUnderTest) -> None:
        now = sut.store.now_ms()
        soon = job("soon", ready_at_ms=now + sut.soon_ms, priority=9)
        await sut.put(soon, job("far", ready_at_ms=now + LONG_MS), job("now"))
        assert keys(await sut.claim(9)) == ["now"]
        await sut.pass_soon()
        (lease,) = await sut.claim(9)
        assert (lease.key, lease.ready_at_ms) == ("soon", soon.ready_at_ms)

    async def test_every_job_goes_to_one_claimer(self, sut: StoreUnderTest) -> None:
        names = [f"j{number:03}" for number in range(300)]
        await sut.put(*(job(name) for name in names[:100]))
        taken: list[Lease] = []

        async def claimer() -> None:
            while leases := await sut.claim(3):
                taken.extend(leases)
                await asyncio.sleep(0)

        async def feeder() -> None:
            for name in names[100:]:
                await sut.put(job(name), stream=OTHER)

        await asyncio.gather(*(claimer() for _ in range(32)), feeder(), *(claimer() for _ in range(32)))
        taken += await sut.claim(300)
        assert sorted(keys(taken)) == names
        assert len({lease.token for lease in taken}) == 300

    async def test_a_live_lease_is_not_claimed(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.take()
        await sut.pass_short()
        assert await sut.claim(9) == []

    async def test_an_expired_lease_is_taken_over_and_counted(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        leases = [await sut.expired(), await sut.expired(), await sut.take()]
        assert [lease.expired for lease in leases] == [0, 1, 2]
        assert [lease.token for lease in leases] == sorted({lease.token for lease in leases})

    async def test_recovered_work_goes_before_younger_work(self, sut: StoreUnderTest) -> None:
        await sut.put(job("old"))
        await sut.expired()
        await sut.put(job("young"))
        assert keys(await sut.claim(9)) == ["old", "young"]

    async def test_a_job_inserted_anew_has_no_history(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.expired()
        await sut.committed(drop=("a",))
        await sut.put(job())
        assert (await sut.take()).expired == 0

    async def test_a_released_job_is_ready_at_once_and_not_counted(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a"), job("b"))
        first = await sut.take()
        await sut.store.release([first])
        again = await sut.take()
        assert (again.key, again.expired, again.ready_at_ms) == ("a", 0, first.ready_at_ms)
        assert again.token > first.token

    async def test_a_released_job_keeps_its_place_in_the_line(self, sut: StoreUnderTest) -> None:
        await sut.put(job("old"))
        first = await sut.take()
        await sut.pass_short()
        await sut.put(job("young"))
        await sut.store.release([first])
        assert [(lease.key, lease.ready_at_ms) for lease in await sut.claim(1)] == [("old", first.ready_at_ms)]

    async def test_release_forgets_no_earlier_expiry(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.expired()
        await sut.store.release([await sut.take()])
        assert (await sut.take()).expired == 1

    async def test_a_late_release_is_not_counted(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.store.release([await sut.expired()])
        assert (await sut.take()).expired == 0

    async def test_a_job_released_with_a_delay_waits(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", priority=9), job("b"))
        await sut.store.release([await sut.take()], delay_ms=sut.soon_ms)
        assert keys(await sut.claim(9)) == ["b"]
        await sut.pass_soon()
        again = await sut.take()
        assert (again.key, again.expired) == ("a", 0)

    async def test_releasing_a_lost_lease_does_nothing(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        old = await sut.expired()
        new = await sut.take()
        await sut.store.release([old, old], delay_ms=LONG_MS)
        assert await sut.claim(9) == []
        assert await sut.commit(acks=(ack(new),)) == Committed(version=0)
        await sut.store.release([new])
        assert await sut.views() == {}

    async def test_renewing_prolongs_a_lease(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take(lease_ms=SHORT_MS)
        assert await sut.store.renew([lease], LONG_MS) == []
        await sut.pass_short()
        assert await sut.claim(9) == []
        assert ((await sut.views())["a"].lease_expires_at_ms or 0) > lease.expires_at_ms

    async def test_renewing_twice_is_renewing_once(self, sut: StoreUnderTest) -> None:
        """R-06: a reply that got lost must not look like a lost lease."""
        await sut.put(job())
        lease = await sut.take()
        assert await sut.store.renew([lease, lease], LONG_MS) == []
        assert await sut.store.renew([lease], LONG_MS) == []
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=0)

    async def test_a_renewed_lease_can_expire_again(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take(lease_ms=SHORT_MS)
        await sut.store.renew([lease], SHORT_MS)
        await sut.pass_short()
        await sut.pass_short()
        assert (await sut.take()).expired == 1
        assert await sut.store.renew([lease], LONG_MS) == [lease]

    async def test_renewing_never_shortens(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take(lease_ms=LONG_MS)
        assert await sut.store.renew([lease], SHORT_MS) == []
        await sut.pass_short()
        assert await sut.claim(9) == []

    async def test_an_expired_lease_nobody_took_over_is_renewed(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", priority=9), job("b"))
        lease = await sut.expired()
        assert await sut.claim(9, queues=("elsewhere",)) == []
        assert await sut.store.renew([lease], LONG_MS) == []
        assert keys(await sut.claim(9)) == ["b"]
        await sut.store.release([lease])
        assert (await sut.take()).expired == 0

    async def test_renewing_answers_exactly_the_lost_leases(self, sut: StoreUnderTest) -> None:
        await sut.put(*(job(name) for name in ("acked", "dropped", "held", "released", "taken")))
        leases = {lease.key: lease for lease in await sut.claim(4)}
        taken = await sut.expired()
        await sut.take()
        await sut.committed(acks=(ack(leases["acked"]),), drop=("dropped",))
        await sut.store.release([leases["released"]])
        lost = await sut.store.renew([*leases.values(), taken], LONG_MS)
        assert keys(lost) == ["acked", "dropped", "released", "taken"]
        await sut.store.forget(RUN)
        assert await sut.store.renew([leases["held"]], LONG_MS) == [leases["held"]]

    async def test_tenants_take_turns_within_a_claim(self, sut: StoreUnderTest) -> None:
        await self._crowd(sut, acme=6, zeta=2, beta=1)
        claimed = await sut.claim(9)
        turns = [lease.stream.tenant for lease in claimed]
        assert turns == ["acme", "beta", "zeta", "acme", "zeta", "acme", "acme", "acme", "acme"]
        assert keys([lease for lease in claimed if lease.stream.tenant == "acme"]) == [f"{n}" for n in range(6)]

    async def test_tenants_take_turns_between_claims(self, sut: StoreUnderTest) -> None:
        await self._crowd(sut, acme=50, zeta=3)
        tenants = [(await sut.take()).stream.tenant for _ in range(8)]
        assert tenants == ["acme", "zeta", "acme", "zeta", "acme", "zeta", "acme", "acme"]

    async def test_a_tenant_who_comes_late_need_not_wait(self, sut: StoreUnderTest) -> None:
        await self._crowd(sut, acme=50)
        await sut.claim(5)
        await self._crowd(sut, zeta=2)
        assert [lease.stream.tenant for lease in await sut.claim(4)] == ["zeta", "acme", "zeta", "acme"]

    async def test_a_tenants_turn_is_one_over_all_queues(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a1", queue="x"), job("a2", queue="y"), stream=run("r", "acme"))
        await sut.put(job("z1", queue="x"), job("z2", queue="y"), stream=run("r", "zeta"))
        assert keys(await sut.claim(1, queues=("x",))) == ["a1"]
        assert keys(await sut.claim(1, queues=("y",))) == ["z2"]
        assert keys(await sut.claim(9, queues=("x", "y"))) == ["a2", "z1"]

    async def test_priority_does_not_beat_another_tenant(self, sut: StoreUnderTest) -> None:
        await sut.put(*(job(f"a{number}", priority=9) for number in range(3)), stream=run("r", "acme"))
        await sut.put(job("z", priority=0), stream=run("r", "zeta"))
        assert keys(await sut.claim(2)) == ["a0", "z"]

    async def test_hand_over_does_not_cost_a_tenant_its_turn(self, sut: StoreUnderTest) -> None:
        await self._crowd(sut, acme=3, zeta=3)
        assert [lease.stream.tenant for lease in await sut.claim(2)] == ["acme", "zeta"]
        await sut.committed(run("r", "acme"), jobs=(job("kept"),), keep=("kept",))
        assert [lease.stream.tenant for lease in await sut.claim(2)] == ["acme", "zeta"]

    async def test_many_tenants_are_all_served(self, sut: StoreUnderTest) -> None:
        await self._crowd(sut, **{f"t{number:02}": 4 for number in range(30)})
        for served in (1, 2, 3, 4):
            claimed = Counter(lease.stream.tenant for lease in await sut.claim(30))
            assert len(claimed) == 30, f"round {served}"

    @staticmethod
    async def _crowd(sut: StoreUnderTest, **tenants: int) -> None:
        for tenant, number in tenants.items():
            await sut.put(*(job(f"{index}") for index in range(number)), stream=run("r", tenant))

    async def test_a_cap_bounds_live_leases(self, sut: StoreUnderTest) -> None:
        await sut.put(*(job(f"{number}", caps=("http",)) for number in range(5)))
        assert keys(await sut.claim(9, caps={"http": 2})) == ["0", "1"]
        assert await sut.claim(9, caps={"http": 2}) == []
        assert keys(await sut.claim(9, caps={"http": 3})) == ["2"]

    async def test_a_tenant_with_many_queues_delays_another_by_a_few_claims(self, sut: StoreUnderTest) -> None:
        many = [job(f"{number}", queue=f"q{number}") for number in range(2_500)]
        await sut.put(*many[:2_100], stream=run("r", "big"))
        await sut.put(job("single"), stream=run("r", "small"))
        await sut.put(*many[2_100:], stream=run("r", "big"))
        claims = [await sut.claim(50, queues=()) for _ in range(4)]
        assert all(len(leases) == 50 for leases in claims)
        assert "small" in {lease.stream.tenant for leases in claims for lease in leases}
        await sut.put(job("of its own queue", queue="mine"), stream=run("s", "small"))
        assert keys(await sut.claim(50, queues=("mine",))) == ["of its own queue"]
        assert await sut.claim(50, queues=("nobody's",)) == []

    async def test_a_cap_may_have_its_bound_in_its_name(self, sut: StoreUnderTest) -> None:
        await sut.put(*(job(f"{number}", caps=("label:a=b<=2",)) for number in range(4)))
        await sut.put(job("other", caps=("label:a=c<=1",)), job("odd", caps=("<=1",)), job("none", caps=("x<=",)))
        assert sorted(keys(await sut.claim(9))) == ["0", "1", "none", "odd", "other"]
        assert await sut.claim(9) == []
        assert keys(await sut.claim(9, caps={"label:a=b<=2": 3})) == ["2"], "the claim's bound comes first"

    async def test_the_end_of_a_lease_makes_room_under_a_bound_of_a_name(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("q<=1",)), job("b", caps=("q<=1",)))
        (first,) = await sut.claim(9)
        waiting = asyncio.create_task(sut.claim(9, wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await sut.committed(acks=(ack(first),))
        assert keys(await waiting) == ["b"]

    async def test_a_job_over_a_cap_stays_and_others_pass(self, sut: StoreUnderTest) -> None:
        capped = [job(f"c{number}", caps=("http",), priority=9) for number in range(3)]
        await sut.put(*capped, job("free"), job("other", caps=("llm",)))
        assert keys(await sut.claim(9, caps={"http": 1, "llm": 1})) == ["c0", "free", "other"]
        assert keys(await sut.claim(9, caps={"http": 9})) == ["c1", "c2"]

    async def test_a_name_without_a_bound_and_a_bound_without_a_job_mean_nothing(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("http",)), job("b", caps=("http",)))
        assert keys(await sut.claim(9, caps={"llm": 0})) == ["a", "b"]

    async def test_a_bound_of_zero_stops_a_name(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("http",)), job("b"))
        assert keys(await sut.claim(9, caps={"http": 0})) == ["b"]

    async def test_a_job_needs_room_under_all_its_caps(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("x",)), job("b", caps=("y",)), job("c", caps=("x", "y")), job("d", caps=("y",)))
        assert keys(await sut.claim(9, caps={"x": 2, "y": 1})) == ["a", "b"]
        assert keys(await sut.claim(9, caps={"x": 1, "y": 9})) == ["d"]
        assert keys(await sut.claim(9, caps={"x": 2, "y": 3})) == ["c"]

    @pytest.mark.parametrize("end", ["ack", "drop", "release", "expiry", "forget"])
    async def test_the_end_of_a_lease_makes_room(self, sut: StoreUnderTest, end: str) -> None:
        await sut.put(job("a", caps=("http",), priority=9))
        await sut.put(job("b", caps=("http",)), stream=OTHER)
        lease = await sut.take(9, caps={"http": 1}, lease_ms=SHORT_MS if end == "expiry" else LONG_MS)
        match end:
            case "ack":
                await sut.committed(acks=(ack(lease),))
            case "drop":
                await sut.committed(drop=("a",))
            case "release":
                await sut.store.release([lease], delay_ms=LONG_MS)
            case "expiry":
                await sut.pass_short()
                assert keys(await sut.claim(1, caps={"http": 1})) == ["a"], "its own successor is not blocked"
                await sut.committed(drop=("a",))
            case "forget":
                await sut.store.forget(RUN)
        assert keys(await sut.claim(9, caps={"http": 1})) == ["b"]

    async def test_a_revived_lease_counts_again(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("http",), priority=9), job("b", caps=("http",)))
        lease = await sut.expired(caps={"http": 1})
        assert await sut.claim(9, queues=("elsewhere",)) == []
        assert await sut.store.renew([lease], LONG_MS) == []
        assert await sut.claim(9, caps={"http": 1}) == []

    async def test_a_kept_lease_counts_for_caps(self, sut: StoreUnderTest) -> None:
        new = (job("a", caps=("http",)), job("b", caps=("http",)))
        assert len((await sut.committed(jobs=new, keep=("a",))).kept) == 1
        assert await sut.claim(9, caps={"http": 1}) == []

    async def test_a_cap_is_one_over_tenants_and_queues(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a", caps=("gpu",)), stream=run("r", "acme"))
        await sut.put(job("b", caps=("gpu",), queue="other"), stream=run("r", "zeta"))
        assert len(await sut.claim(9, queues=("q", "other"), caps={"gpu": 1})) == 1
        assert await sut.claim(9, queues=("q", "other"), caps={"gpu": 1}) == []
