"""Laws of the jobs of a stream: insertion, settling, fences, removal, hand-over, what the audit sees, retention."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.stores.harness import LONG_MS, OTHER, RUN, SHORT_MS, StoreUnderTest, ack, job, keys, row, run
from tidemill.stores.contract import Backlog, Commit, Committed, JobView, Lease, LeasesLost, Snapshot, VersionConflict


def at(place: str, lease: Lease) -> dict[str, Any]:
    return {place: (ack(lease),)}


class JobLaws:
    async def test_inserting_an_existing_job_does_nothing(self, sut: StoreUnderTest) -> None:
        await sut.put(job(body=b"first"))
        await sut.put(job(body=b"second", priority=9, queue="elsewhere"))
        lease = await sut.take(9, queues=("q", "elsewhere"))
        assert (lease.body, lease.priority) == (b"first", 5)
        await sut.put(job(body=b"third"))
        assert await sut.claim(9) == []
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=0)

    async def test_of_two_jobs_with_one_key_in_a_commit_the_first_counts(self, sut: StoreUnderTest) -> None:
        await sut.put(job(body=b"first"), job(body=b"second"))
        assert (await sut.take(9)).body == b"first"

    async def test_one_key_in_two_streams_is_two_jobs(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.put(job(), stream=OTHER)
        first, second = await sut.claim(9)
        await sut.committed(first.stream, acks=(ack(first),))
        assert await sut.commit(first.stream, acks=(ack(second),)) == LeasesLost(keys=("a",))
        assert await sut.commit(second.stream, acks=(ack(second),)) == Committed(version=0)

    async def test_an_ack_removes_the_job(self, sut: StoreUnderTest) -> None:
        await sut.put(job(), job("b"))
        await sut.committed(expected=0, records=(b"done",), acks=(ack(await sut.take()),))
        assert list(await sut.views()) == ["b"]

    async def test_an_ack_counts_once(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        settled = ack(await sut.take())
        await sut.committed(acks=(settled,))
        assert await sut.commit(acks=(settled,)) == LeasesLost(keys=("a",))

    @pytest.mark.parametrize("offset", [-1, 1])
    async def test_another_token_is_refused(self, sut: StoreUnderTest, offset: int) -> None:
        await sut.put(job())
        lease = await sut.take()
        assert await sut.commit(acks=(("a", lease.token + offset),)) == LeasesLost(keys=("a",))
        assert await sut.commit(holds=(("a", lease.token + offset),)) == LeasesLost(keys=("a",))

    async def test_no_token_settles_a_job_that_nobody_holds(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        for token in (0, (await sut.views())["a"].token):
            for more in ({}, {"expected": 0, "records": (b"1",)}):
                assert await sut.commit(acks=(("a", token),), **more) == LeasesLost(keys=("a",))

    async def test_a_token_never_returns(self, sut: StoreUnderTest) -> None:
        """R-04: a fence that restarts lets a stale worker through."""
        tokens = []
        for end in ("ack", "drop", "release", "forget", "keep", "ack"):
            await sut.put(job())
            lease = await sut.take()
            tokens.append(lease.token)
            if end == "ack":
                await sut.committed(acks=(ack(lease),))
            elif end == "drop":
                await sut.committed(drop=("a",))
            elif end == "release":
                await sut.store.release([lease])
            elif end == "forget":
                await sut.store.forget(RUN)
            else:
                kept = (await sut.committed(acks=(ack(lease),), jobs=(job("b"),), keep=("b",))).kept[0]
                tokens.append(kept.token)
        assert tokens == sorted(set(tokens))
        assert tokens[0] > 0

    @pytest.mark.parametrize("removal", ["drop", "forget", "ack"])
    async def test_an_old_token_is_refused_after_re_insertion(self, sut: StoreUnderTest, removal: str) -> None:
        await sut.put(job())
        old = await sut.take()
        if removal == "forget":
            await sut.store.forget(RUN)
        else:
            await sut.committed(**({"drop": ("a",)} if removal == "drop" else {"acks": (ack(old),)}))
        await sut.put(job())
        assert await sut.commit(acks=(ack(old),)) == LeasesLost(keys=("a",))
        new = await sut.take()
        assert await sut.commit(acks=(ack(old),)) == LeasesLost(keys=("a",))
        assert await sut.store.renew([old, new], LONG_MS) == [old]
        assert await sut.commit(acks=(ack(new),)) == Committed(version=0)

    @pytest.mark.parametrize("place", ["acks", "holds"])
    async def test_a_lease_that_was_taken_over_is_refused(self, sut: StoreUnderTest, place: str) -> None:
        await sut.put(job())
        old = await sut.expired()
        new = await sut.take()
        assert new.token > old.token
        assert await sut.commit(expected=0, records=(b"stale",), **at(place, old)) == LeasesLost(keys=("a",))
        assert await sut.commit(expected=0, records=(b"good",), **at(place, new)) == Committed(version=1)

    @pytest.mark.parametrize("place", ["acks", "holds"])
    async def test_an_expired_lease_nobody_took_over_commits(self, sut: StoreUnderTest, place: str) -> None:
        """The token is the fence, not the clock."""
        await sut.put(job())
        lease = await sut.expired()
        assert await sut.commit(expected=0, records=(b"late",), **at(place, lease)) == Committed(version=1)

    async def test_an_expired_lease_commits_after_others_looked_for_work(self, sut: StoreUnderTest) -> None:
        await sut.put(job("first", priority=9), job("second"))
        late = await sut.expired()
        assert late.key == "first"
        assert await sut.claim(9, queues=("elsewhere",)) == []
        assert await sut.commit(acks=(ack(late),)) == Committed(version=0)
        assert keys(await sut.claim(9)) == ["second"]

    async def test_a_released_lease_is_refused(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take()
        await sut.store.release([lease])
        assert await sut.commit(acks=(ack(lease),)) == LeasesLost(keys=("a",))

    async def test_a_held_lease_stays(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take()
        before = await sut.views()
        for version in (0, 1):
            await sut.committed(expected=version, records=(b"progress",), holds=(ack(lease),))
        assert await sut.views() == before
        assert await sut.claim(9) == []
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=2)

    async def test_a_job_may_be_settled_and_inserted_anew(self, sut: StoreUnderTest) -> None:
        await sut.put(job(body=b"attempt 1"))
        await sut.expired()
        second = await sut.take()
        assert second.expired == 1
        await sut.committed(acks=(ack(second),), jobs=(job(body=b"attempt 2"),))
        third = await sut.take()
        assert (third.body, third.expired) == (b"attempt 2", 0)
        assert third.token > second.token

    async def test_drop_removes_jobs_held_or_not(self, sut: StoreUnderTest) -> None:
        now = sut.store.now_ms()
        await sut.put(job("held", priority=9), job("ready"), job("later", ready_at_ms=now + LONG_MS))
        lease = await sut.take()
        await sut.committed(drop=("held", "ready", "later", "absent"))
        assert await sut.views() == {}
        assert await sut.claim(9) == []
        assert await sut.commit(acks=(ack(lease),)) == LeasesLost(keys=("held",))

    async def test_withdraw_spares_what_somebody_holds(self, sut: StoreUnderTest) -> None:
        now = sut.store.now_ms()
        await sut.put(job("held", priority=9), job("ready"), job("later", ready_at_ms=now + LONG_MS))
        lease = await sut.take()
        await sut.committed(withdraw=("held", "ready", "later", "absent"))
        assert list(await sut.views()) == ["held"]
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=0)

    async def test_withdraw_spares_an_expired_lease_nobody_took_over(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.expired()
        await sut.committed(withdraw=("a",))
        assert await sut.commit(acks=(ack(lease),)) == Committed(version=0)

    async def test_withdraw_takes_a_released_job(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.store.release([await sut.take()])
        await sut.committed(withdraw=("a",))
        assert await sut.views() == {}

    async def test_a_dropped_job_can_be_replaced_in_the_same_commit(self, sut: StoreUnderTest) -> None:
        await sut.put(job(body=b"old"))
        await sut.committed(drop=("a",), jobs=(job(body=b"new"),))
        assert (await sut.take(9)).body == b"new"

    async def test_hand_over_leases_new_jobs_to_the_committer(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.take()
        new = (job("b", priority=7), job("c"))
        result = await sut.committed(expected=0, records=(b"1",), acks=(ack(lease),), jobs=new, keep=("b",))
        (kept,) = result.kept
        assert (kept.stream, kept.key, kept.body, kept.queue, kept.priority) == (RUN, "b", b"b", "q", 7)
        assert (kept.expired, kept.token > lease.token) == (0, True)
        assert keys(await sut.claim(9)) == ["c"]
        assert await sut.commit(expected=1, acks=(ack(kept),)) == Committed(version=1)

    async def test_hand_over_follows_the_order_of_keep(self, sut: StoreUnderTest) -> None:
        result = await sut.committed(jobs=(job("a"), job("b"), job("c")), keep=("c", "a", "c"))
        assert keys(result.kept) == ["c", "a"]
        assert len({lease.token for lease in result.kept}) == 2
        assert keys(await sut.claim(9)) == ["b"]

    async def test_hand_over_never_takes_a_job_that_was_there(self, sut: StoreUnderTest) -> None:
        await sut.put(job(), job("b"))
        held = await sut.take()
        result = await sut.committed(jobs=(job("a"), job("b")), keep=("a", "b", "absent"))
        assert result.kept == ()
        assert keys(await sut.claim(9)) == ["b"]
        assert await sut.commit(acks=(ack(held),)) == Committed(version=0)

    async def test_hand_over_never_takes_a_job_that_is_not_ready(self, sut: StoreUnderTest) -> None:
        later = job(ready_at_ms=sut.store.now_ms() + LONG_MS)
        assert (await sut.committed(jobs=(later,), keep=("a",))).kept == ()
        assert (await sut.views())["a"].token == 0

    async def test_a_kept_lease_expires_like_any_other(self, sut: StoreUnderTest) -> None:
        result = await sut.committed(jobs=(job(),), keep=("a",), keep_lease_ms=SHORT_MS)
        assert await sut.claim() == []
        await sut.pass_short()
        again = await sut.take()
        assert again.expired == 1
        assert await sut.commit(acks=(ack(result.kept[0]),)) == LeasesLost(keys=("a",))

    async def test_the_audit_sees_every_job_by_key(self, sut: StoreUnderTest) -> None:
        later = job("c", ready_at_ms=sut.store.now_ms() + LONG_MS, priority=2, caps=("x", "y"))
        await sut.put(job("b", queue="other"), later, job("a"))
        lease = await sut.take(owner="worker-1")
        await sut.committed(jobs=(job("d"),), keep=("d",), keep_owner="worker-2")
        a, b, c, d = await sut.store.jobs(RUN)
        assert (a.token, a.lease_expires_at_ms, a.owner) == (lease.token, lease.expires_at_ms, "worker-1")
        assert (b.token, b.lease_expires_at_ms, b.owner, b.job.queue) == (0, None, "", "other")
        assert c == JobView(job=later, token=0)
        assert (d.job.key, d.owner, d.token > a.token) == ("d", "worker-2", True)
        assert await sut.store.jobs(OTHER) == []

    async def test_the_audit_sees_when_a_job_becomes_ready(self, sut: StoreUnderTest) -> None:
        before = sut.store.now_ms()
        await sut.put(job())
        lease = await sut.take()
        assert before <= lease.ready_at_ms <= sut.store.now_ms() + 5
        assert (await sut.views())["a"].job.ready_at_ms == lease.ready_at_ms
        await sut.store.release([lease], delay_ms=LONG_MS)
        assert (await sut.views())["a"].job.ready_at_ms >= before + LONG_MS

    async def test_the_audit_sees_how_many_leases_expired(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.expired(owner="dead")
        assert (await sut.views())["a"].expired == 0, "it may still be renewed"
        lease = await sut.take()
        assert (await sut.views())["a"].expired == lease.expired == 1
        await sut.store.release([lease])
        assert (await sut.views())["a"].expired == 1

    async def test_the_audit_sees_an_expired_lease_until_it_is_taken_over(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        lease = await sut.expired(owner="dead")
        view = (await sut.views())["a"]
        assert (view.token, view.lease_expires_at_ms, view.owner) == (lease.token, lease.expires_at_ms, "dead")
        await sut.store.release([lease])
        assert (await sut.views())["a"].lease_expires_at_ms is None

    async def test_backlog_counts_by_tenant_and_queue(self, sut: StoreUnderTest) -> None:
        assert await sut.store.backlog() == []
        later = sut.store.now_ms() + LONG_MS
        await sut.put(job("a", ready_at_ms=1), job("b"), job("c", ready_at_ms=later), job("d", queue="slow"))
        await sut.put(job("a"), job("b"), stream=run("r", "zeta"))
        await sut.claim(2)
        lines = {(line.tenant, line.queue): line for line in await sut.store.backlog()}
        assert list(lines) == [("acme", "q"), ("acme", "slow"), ("zeta", "q")]
        assert [(line.ready, line.leased, line.later) for line in lines.values()] == [(1, 1, 1), (1, 0, 0), (1, 1, 0)]
        assert all((line.oldest_ready_at_ms or 0) <= sut.store.now_ms() + 5 for line in lines.values())

    async def test_backlog_says_since_when_the_oldest_is_ready(self, sut: StoreUnderTest) -> None:
        await sut.put(job("a"))
        since = (await sut.views())["a"].job.ready_at_ms
        await sut.pass_short()
        await sut.put(job("b"), job("c", ready_at_ms=sut.store.now_ms() + LONG_MS))
        assert await sut.store.backlog() == [
            Backlog(tenant="acme", queue="q", ready=2, leased=0, later=1, oldest_ready_at_ms=since)
        ]
        await sut.claim(2)
        (line,) = await sut.store.backlog()
        assert (line.leased, line.oldest_ready_at_ms) == (2, None)

    async def test_backlog_counts_an_expired_lease_as_ready(self, sut: StoreUnderTest) -> None:
        await sut.put(job())
        await sut.expired()
        (line,) = await sut.store.backlog()
        assert (line.ready, line.leased) == (1, 0)
        await sut.committed(drop=("a",))
        assert await sut.store.backlog() == []

    async def test_forget_removes_a_stream_and_nothing_else(self, sut: StoreUnderTest) -> None:
        fields = {"records": (b"1",), "jobs": (job(), job("b", priority=9)), "rows": (row("r"),)}
        await sut.committed(RUN, 0, snapshot=Snapshot(version=1, body=b"s"), **fields)
        await sut.committed(OTHER, 0, **fields)
        lease = await sut.take()
        for _ in range(2):
            await sut.store.forget(RUN)
        gone = await sut.tail()
        assert (gone.version, gone.records, gone.snapshot) == (0, (), None)
        assert await sut.views() == {}
        assert [found.stream for found in await sut.claim(9)] == [OTHER, OTHER]
        assert (await sut.tail(OTHER)).records == (b"1",)
        assert await sut.found() == ["r"]
        assert await sut.commit(lease.stream, acks=(ack(lease),)) == LeasesLost(keys=("b",))

    async def test_a_forgotten_stream_can_begin_again(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"), snapshot=Snapshot(version=2, body=b"s"))
        await sut.store.forget(RUN)
        assert await sut.commit(expected=2) == VersionConflict(version=0)
        await sut.committed(expected=0, records=(b"anew",))
        tail = await sut.tail()
        assert (tail.version, tail.records, tail.snapshot) == (1, (b"anew",), None)

    async def test_a_stream_that_another_process_has_forgotten_can_begin_again(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1", b"2"), rows=(row("r", 1, "old"),))
        async with sut.another() as other:
            await other.forget(RUN)
        await sut.committed(expected=0, records=(b"anew",), rows=(row("r", 2, "new"),))
        assert (await sut.tail()).records == (b"anew",)
        assert (await sut.found("old"), await sut.found("new")) == ([], ["r"])

    async def test_only_one_of_two_first_commits_counts(self, sut: StoreUnderTest) -> None:
        async with sut.another() as other:
            await other.commit([Commit(stream=RUN, expected=0, records=(b"1",), rows=(row("r", 1, "theirs"),))])
        refused = await sut.commit(expected=0, records=(b"2",), jobs=(job(),), rows=(row("r", 2, "ours"),))
        assert refused == VersionConflict(version=1)
        assert (await sut.tail()).records == (b"1",)
        assert (await sut.views(), await sut.found("theirs"), await sut.found("ours")) == ({}, ["r"], [])

    async def test_open_and_close_may_be_repeated_and_lose_nothing(self, sut: StoreUnderTest) -> None:
        await sut.committed(expected=0, records=(b"1",), jobs=(job(),), rows=(row("r"),))
        lease = await sut.take()
        for verb in (sut.store.open, sut.store.close, sut.store.close, sut.store.open, sut.store.open):
            await verb()
        assert (await sut.tail()).records == (b"1",)
        assert await sut.found() == ["r"]
        assert await sut.commit(expected=1, acks=(ack(lease),)) == Committed(version=1)
