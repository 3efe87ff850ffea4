"""Keys, tenants and the audit as services: who is let in, for how long, and what is written of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, Process, simulated
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.engine import Engine
from tidemill.engine.maintenance.audit_chain import AUDIT, WAITING, AuditChain, AuditEntry, chain_stream
from tidemill.engine.services.access import KEY, AuditService, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.runs import RunService
from tidemill.engine.services.workflows import WorkflowService
from tidemill.errors import Rejected
from tidemill.security.identity import new_key
from tidemill.security.roles import OPERATOR_TENANT, Principal
from tidemill.stores.contract import Commit, Snapshot, Stream
from tidemill.triggers.service import ScheduleService


class Services:
    """The services of one tenant, audited as those of the HTTP service are."""

    def __init__(self, engine: Engine, tenant: str) -> None:
        context = replace(engine.context, tenant=tenant, audited=True)
        self.keys = KeyService(context, engine.credentials)
        self.tenants = TenantService(context)
        self.audit = AuditService(context)
        self.workflows = WorkflowService(context)
        self.runs = RunService(context, "the user of the process")
        self.patches = PatchService(context)
        self.approvals = ApprovalService(context)


async def refused(asked: Any) -> str:
    with pytest.raises(Rejected) as refusal:
        await asked
    assert all(each.hint for each in refusal.value.problems), refusal.value
    return refusal.value.code


async def client_of(mill: Cluster, name: str = "server") -> Process:
    found: Process = await mill.process(name, work=False, tenant=OPERATOR_TENANT)
    return found


# Keys


@simulated
async def test_a_key_is_who_it_was_made_for(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    created = await engine.keys.create("ci-deploy", roles=["operator", "author"], actor="ada")
    found = await engine.credentials.principal_of_key(created.key)
    assert (found.tenant, found.name, found.key_id) == (OPERATOR_TENANT, "key:ci-deploy", created.view.id)
    assert found.may("runs:act") and found.may("workflows:write") and not found.may("keys:write")
    (listed,), after = await engine.keys.find()
    assert listed == created.view and after is None
    assert (listed.state, listed.created_by, listed.revoked_ms) == ("live", "ada", None)


@simulated
async def test_the_secret_is_nowhere_in_the_store(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    created = await engine.keys.create("ci", roles=["viewer"], actor="ada")
    secret = created.key.rpartition("_")[2] if created.key.count("_") == 2 else created.key.split("_", 2)[2]
    stream = Stream(OPERATOR_TENANT, KEY, created.view.id)
    (tail,) = await mill.store.load({stream: 0})
    kinds = [await mill.store.find(OPERATOR_TENANT, kind) for kind in (KEY, WAITING)]
    texts = [*tail.records, *(row.body for page in kinds for row in page.rows)]
    assert len(texts) == 3 and not any(secret.encode() in text for text in texts)
    assert secret not in str(await engine.keys.find())


@simulated
async def test_a_wrong_key_is_refused_without_a_reason(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    created = await engine.keys.create("ci", roles=["viewer"], actor="ada")
    foreign = created.key.replace("tm_default", "tm_acme")
    for text in ("", "x", created.key + "x", created.key[:-1], new_key(OPERATOR_TENANT).text, foreign, "tm_\ud800"):
        assert await refused(engine.credentials.principal_of_key(text)) == "credential_invalid"
    assert (await engine.credentials.principal_of_key(created.key)).name == "key:ci"


@simulated
async def test_an_expired_key_is_refused_and_its_label_is_free(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    created = await engine.keys.create("ci", roles=["viewer"], expires_days=1 / 24, actor="ada")
    forever = await engine.keys.create("forever", roles=["viewer"], expires_days=None, actor="ada")
    assert (await engine.credentials.principal_of_key(created.key)).expires_ms == created.view.expires_ms
    await asyncio.sleep(3_601)
    assert await refused(engine.credentials.principal_of_key(created.key)) == "key_expired"
    assert (await engine.credentials.principal_of_key(forever.key)).name == "key:forever"
    assert {each.label: each.state for each in (await engine.keys.find())[0]} == {"ci": "expired", "forever": "live"}
    assert (await engine.keys.create("ci", roles=["viewer"], actor="ada")).view.state == "live"


@simulated
async def test_a_revoked_key_is_refused_everywhere_within_five_seconds(mill: Cluster) -> None:
    one, other = (await client_of(mill, "one")).engine, (await client_of(mill, "other")).engine
    created = await one.keys.create("ci", roles=["viewer"], actor="ada")
    session = await other.credentials.principal_of_key(created.key)
    revoked = await one.keys.revoke(created.view.id, actor="bob")
    assert (revoked.state, revoked.revoked_by) == ("revoked", "bob")
    assert await refused(one.credentials.principal_of_key(created.key)) == "key_revoked"
    await asyncio.sleep(5)
    assert await refused(other.credentials.principal_of_key(created.key)) == "key_revoked"
    assert await refused(other.credentials.check(session)) == "key_revoked"
    assert await one.keys.revoke(created.view.id, actor="eve") == revoked, "it is revoked once"
    assert (await other.keys.create("ci", roles=["viewer"], actor="ada")).view.id != created.view.id


@simulated
async def test_a_known_key_costs_no_read(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    created = await engine.keys.create("ci", roles=["viewer"], actor="ada")
    await engine.credentials.principal_of_key(created.key)
    reads = 0
    load = mill.store.load

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await load(*args, **options)

    mill.store.load = counted  # type: ignore[method-assign]
    for _ in range(100):
        await engine.credentials.principal_of_key(created.key)
    assert reads == 0
    await asyncio.sleep(5)
    await engine.credentials.principal_of_key(created.key)
    assert reads == 1


@simulated
async def test_keys_that_cannot_be_are_refused(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    await engine.keys.create("ci", roles=["viewer"], actor="ada")
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("key_label_invalid", {"label": "two words"}),
        ("key_label_invalid", {"label": ""}),
        ("key_label_taken", {"label": "ci"}),
        ("roles_invalid", {"roles": ["root"]}),
        ("key_expiry_invalid", {"expires_days": 0}),
        ("key_expiry_invalid", {"expires_days": 1e9}),
        ("actor_missing", {"actor": ""}),
    ]
    for code, given in wrong:
        fields = {"label": "new", "roles": ["viewer"], "actor": "ada", **given}
        assert await refused(engine.keys.create(**fields)) == code
    assert len((await engine.keys.find())[0]) == 1
    assert await refused(engine.keys.revoke("default.0123456789abcdef", actor="ada")) == "key_unknown"


@simulated
async def test_a_key_of_another_tenant_is_unknown(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    for name in ("acme", "globex"):
        await engine.tenants.create(name, actor="ada")
    acme, globex = Services(engine, "acme"), Services(engine, "globex")
    created = await acme.keys.create("ci", roles=["admin"], actor="ada")
    assert (await engine.credentials.principal_of_key(created.key)).tenant == "acme"
    absent = new_key("acme").id
    for key_id in (created.view.id, absent):
        assert await refused(globex.keys.revoke(key_id, actor="eve")) == "key_unknown"
    assert (await globex.keys.find())[0] == [] and len((await acme.keys.find())[0]) == 1
    forged = Principal(tenant="globex", name="key:ci", roles=("admin",), key_id=created.view.id)
    assert await refused(engine.credentials.check(forged)) == "credential_invalid"


# Tenants


@simulated
async def test_a_tenant_is_made_once_and_has_keys_only_then(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    acme = Services(engine, "acme")
    assert await refused(acme.keys.create("ci", roles=["viewer"], actor="ada")) == "tenant_unknown"
    made = await engine.tenants.create("acme", actor="ada")
    assert (made.name, made.state, made.created_by) == ("acme", "live", "ada")
    assert await refused(engine.tenants.create("acme", actor="ada")) == "tenant_exists"
    for name in ("Acme", "", "default", "a.b", "_"):
        assert await refused(engine.tenants.create(name, actor="ada")) == "tenant_name_invalid"
    assert (await engine.tenants.find())[0] == [made]
    assert (await acme.keys.create("ci", roles=["viewer"], actor="ada")).view.label == "ci"


@simulated
async def test_only_the_operators_own_tenant_manages_tenants(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    await engine.tenants.create("acme", actor="ada")
    acme = Services(engine, "acme").tenants
    assert await refused(acme.create("other", actor="eve")) == "not_allowed"
    assert await refused(acme.find()) == "not_allowed"
    assert await refused(acme.disable("acme", actor="eve")) == "not_allowed"


@simulated
async def test_a_disabled_tenant_is_refused_with_keys_and_tokens(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    await engine.tenants.create("acme", actor="ada")
    created = await Services(engine, "acme").keys.create("ci", roles=["viewer"], actor="ada")
    token = Principal(tenant="acme", name="bob", roles=("viewer",))
    await engine.credentials.principal_of_key(created.key)
    assert await engine.credentials.check(token) == token
    disabled = await engine.tenants.disable("acme", actor="ada")
    assert disabled.state == "disabled" and await engine.tenants.disable("acme", actor="bob") == disabled
    await asyncio.sleep(5)
    assert await refused(engine.credentials.principal_of_key(created.key)) == "tenant_disabled"
    assert await refused(engine.credentials.check(token)) == "tenant_disabled"
    await engine.tenants.enable("acme", actor="ada")
    await asyncio.sleep(5)
    assert (await engine.credentials.principal_of_key(created.key)).tenant == "acme"
    unknown = Principal(tenant="nowhere", name="bob")
    assert await refused(engine.credentials.check(unknown)) == "tenant_disabled"
    assert await refused(engine.tenants.disable("nowhere", actor="ada")) == "tenant_unknown"


# Audit

WAITS = document(node("a"), node("ok", "a", type="human"), name="waits")


async def entries(service: AuditService, **wanted: Any) -> list[AuditEntry]:
    return (await service.find(limit=1_000, **wanted))[0]


async def worked(mill: Cluster, tenant: str = OPERATOR_TENANT) -> Services:
    """A tenant in which something of every kind was changed."""
    worker = await mill.process("worker", tenant=OPERATOR_TENANT)
    engine = worker.engine
    if tenant != OPERATOR_TENANT:
        await engine.tenants.create(tenant, actor="operator")
    services = Services(engine, tenant)
    await services.workflows.publish(WAITS, author="ada")
    await services.workflows.tag("waits", "stable", 1, actor="ada")
    await services.runs.start("waits", key="r1", submitted_by="bob")
    await asyncio.sleep(1)
    await services.runs.pause("r1", actor="bob")
    await services.runs.resume("r1", actor="bob", command_id="c1")
    await services.runs.resume("r1", actor="bob", command_id="c1")
    await services.approvals.decide("r1", "ok", "approve", actor="eve")
    await services.runs.relabel("r1", {"x": "y"}, actor="bob")
    await services.patches.fork("r1", node="ok", actor="bob", key="r2")
    await services.runs.cancel("r2", actor="bob")
    created = await services.keys.create("ci", roles=["viewer"], actor="ada")
    await services.keys.revoke(created.view.id, actor="ada")
    return services


EXPECTED = [
    *("workflows.publish", "workflows.tag", "runs.start", "runs.pause", "runs.resume", "runs.decide", "runs.relabel"),
    *("runs.fork", "runs.cancel", "keys.create", "keys.revoke"),
]


@simulated
async def test_every_change_is_entered_once_with_its_actor_and_record(mill: Cluster) -> None:
    services = await worked(mill)
    found = list(reversed(await entries(services.audit)))
    # Of different subjects that changed within the same millisecond, either may come first.
    assert sorted(each.action for each in found if each.action != "runs.rewind") == sorted(EXPECTED)
    for subject in ("waits", "r1"):
        assert [each.version for each in found if each.subject == subject] == sorted(
            each.version for each in found if each.subject == subject
        )
    assert [each.seq for each in found] == list(range(1, len(found) + 1))
    by_action = {each.action: each for each in found}
    assert (by_action["runs.decide"].actor, by_action["runs.decide"].subject) == ("eve", "r1")
    assert (by_action["workflows.tag"].subject, by_action["workflows.tag"].detail) == ("waits", "stable: – → 1")
    import hashlib

    for each in found:
        kind = each.action.partition(".")[0].removesuffix("s")
        stream = Stream(OPERATOR_TENANT, kind, each.subject)
        (tail,) = await mill.store.load({stream: each.version - 1}, snapshots=False, limit=1)
        assert each.digest == f"sha256:{hashlib.sha256(tail.records[0]).hexdigest()}", each


@simulated
async def test_entries_are_found_by_actor_action_subject_and_time(mill: Cluster) -> None:
    services = await worked(mill)
    assert {each.actor for each in await entries(services.audit, actor="ada")} == {"ada"}
    assert [each.subject for each in await entries(services.audit, action="runs.cancel")] == ["r2"]
    assert {each.action for each in await entries(services.audit, subject="waits")} == {
        "workflows.publish",
        "workflows.tag",
    }
    await asyncio.sleep(3_600)
    await services.runs.relabel("r1", {"x": "z"}, actor="late")
    assert [each.actor for each in await entries(services.audit, since="30m")] == ["late"]
    assert "late" not in {each.actor for each in await entries(services.audit, until="30m")}
    every = await entries(services.audit)
    page, after = await services.audit.find(limit=5)
    rest, _ = await services.audit.find(limit=1_000, after=after)
    assert [*page, *rest] == every
    with pytest.raises(Rejected, match="query_value_invalid"):
        await services.audit.find(since="sometime")


@simulated
async def test_nothing_changes_without_an_actor(mill: Cluster) -> None:
    services = await worked(mill)
    before = len(await entries(services.audit))
    asked: list[Callable[[], Awaitable[object]]] = [
        lambda: services.workflows.publish(document(node("b"), name="other")),
        lambda: services.workflows.tag("waits", "other", 1),
        lambda: services.workflows.untag("waits", "stable"),
        lambda: services.runs.start("waits", key="r9"),
        lambda: services.runs.cancel("r1"),
        lambda: services.runs.pause("r1"),
        lambda: services.runs.signal("r1", "x"),
        lambda: services.runs.relabel("r1", {"a": "b"}),
        lambda: services.patches.fork("r1", key="r9"),
    ]
    for each in asked:
        assert await refused(each()) == "actor_missing"
    assert len(await entries(services.audit)) == before
    assert await refused(services.workflows.show("other")) == "workflow_unknown"
    (tail,) = await mill.store.load({Stream(OPERATOR_TENANT, "run", "r9"): 0})
    assert tail.version == 0


@simulated
async def test_embedded_use_writes_nothing_for_the_audit(mill: Cluster) -> None:
    engine = (await mill.process("worker", tenant=OPERATOR_TENANT)).engine
    await engine.publish(WAITS)
    await engine.start("waits", key="r1", submitted_by="ada")
    await engine.cancel("r1", actor="ada")
    await asyncio.sleep(60)
    assert await mill.store.count(OPERATOR_TENANT, WAITING) == await mill.store.count(OPERATOR_TENANT, AUDIT) == 0
    (tail,) = await mill.store.load({chain_stream(OPERATOR_TENANT): 0})
    assert tail.version == 0


@simulated
async def test_maintenance_chains_the_audit_of_every_tenant(mill: Cluster) -> None:
    services = await worked(mill, "acme")
    await asyncio.sleep(120)
    for tenant, least in ((OPERATOR_TENANT, 1), ("acme", len(EXPECTED))):
        assert await mill.store.count(tenant, WAITING) == 0
        (tail,) = await mill.store.load({chain_stream(tenant): 0}, snapshots=False)
        assert tail.version >= least
    found = await services.audit.verify()
    assert found.intact and found.entries >= len(EXPECTED) and found.waiting == 0
    assert {
        each.action for each in await entries(Services(mill.processes["worker"].engine, OPERATOR_TENANT).audit)
    } == {"tenants.create"}


@simulated
async def test_two_processes_that_chain_at_once_enter_each_change_once(mill: Cluster) -> None:
    services = await worked(mill)
    chain = AuditChain(mill.store)
    waiting = await mill.store.count(OPERATOR_TENANT, WAITING)
    assert waiting >= len(EXPECTED)
    await asyncio.gather(*(chain.append(OPERATOR_TENANT) for _ in range(5)))
    found = await services.audit.verify()
    assert (found.intact, found.entries, found.waiting) == (True, waiting, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"actor": "someone else"}, "its hash does not match"),
        ({"digest": "sha256:" + "0" * 64}, "its hash does not match"),
        ({"hash": "0" * 64}, "its hash does not match"),
        ({"previous": "0" * 64}, "does not follow"),
        ({"seq": 99}, "does not follow"),
    ],
    ids=["actor", "digest", "hash", "previous", "seq"],
)
@simulated
async def test_a_changed_entry_is_found(mill: Cluster, change: dict[str, Any], problem: str) -> None:
    services = await worked(mill)
    good = await services.audit.verify()
    assert good.intact
    await _rewritten(mill, 3, change)
    found = await services.audit.verify()
    assert (found.intact, found.broken_seq, found.entries) == (False, 3, 2)
    assert problem in found.problem


@simulated
async def test_a_forged_hash_is_found_at_the_next_entry(mill: Cluster) -> None:
    """Who changes an entry and computes its hash again breaks the one that follows."""
    from tidemill.engine.maintenance.audit_chain import hash_of

    services = await worked(mill)
    assert (await services.audit.verify()).intact
    (tail,) = await mill.store.load({chain_stream(OPERATOR_TENANT): 2}, snapshots=False, limit=1)
    entry = msgspec.structs.replace(msgspec.msgpack.decode(tail.records[0], type=AuditEntry), actor="someone else")
    await _rewritten(mill, 3, {"actor": "someone else", "hash": hash_of(entry)})
    assert (await services.audit.verify()).broken_seq == 4


@simulated
async def test_entries_removed_from_the_end_are_missed(mill: Cluster) -> None:
    services = await worked(mill)
    head = (await services.audit.verify()).head
    await _cut(mill, 5)
    found = await AuditChain(mill.store).verify(OPERATOR_TENANT)
    assert not found.intact and found.broken_seq == 6
    for row in (await mill.store.find(OPERATOR_TENANT, AUDIT, limit=1_000)).rows:
        gone = msgspec.structs.replace(row, deleted=True)
        await mill.store.commit([Commit(stream=chain_stream(OPERATOR_TENANT), expected=None, rows=(gone,))])
    assert (await AuditChain(mill.store).verify(OPERATOR_TENANT)).intact, "nothing in the store tells of it now"
    assert not (await AuditChain(mill.store).verify(OPERATOR_TENANT, head)).intact


async def _records(mill: Cluster) -> list[bytes]:
    (tail,) = await mill.store.load({chain_stream(OPERATOR_TENANT): 0}, snapshots=False)
    return list(tail.records)


async def _rewritten(mill: Cluster, seq: int, change: dict[str, Any]) -> None:
    """Change an entry behind the engine's back."""
    records = await _records(mill)
    entry = msgspec.msgpack.decode(records[seq - 1], type=AuditEntry)
    records[seq - 1] = msgspec.msgpack.encode(msgspec.structs.replace(entry, **change))
    await _replaced(mill, records)


async def _cut(mill: Cluster, count: int) -> None:
    await _replaced(mill, (await _records(mill))[:count])


async def _replaced(mill: Cluster, records: list[bytes]) -> None:
    stream = chain_stream(OPERATOR_TENANT)
    assert await mill.store.forget(stream)
    last = msgspec.msgpack.decode(records[-1], type=AuditEntry)
    head = Snapshot(version=len(records), body=msgspec.msgpack.encode((len(records), last.hash)))
    await mill.store.commit([Commit(stream=stream, expected=0, records=tuple(records), snapshot=head)])


@simulated
async def test_changes_of_schedules_are_audited(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    services = Services(engine, OPERATOR_TENANT)
    await services.workflows.publish(document(node("a"), name="nightly"), author="ada")
    schedules = ScheduleService(replace(engine.context, audited=True))
    await schedules.create("night", "nightly", cron="0 2 * * *", actor="ada")
    await schedules.pause("night", actor="bob")
    await schedules.resume("night", actor="bob")
    run_id = await schedules.trigger("night", actor="eve")
    await schedules.delete("night", actor="bob")
    assert await refused(schedules.create("other", "nightly", every="1h")) == "actor_missing"
    found = [each for each in await entries(services.audit) if each.action.startswith("schedules.")]
    actions = ["delete", "trigger", "resume", "pause", "create"]
    assert [each.action for each in found] == [f"schedules.{each}" for each in actions]
    assert [each.actor for each in found] == ["bob", "eve", "bob", "bob", "ada"]
    (started,) = await entries(services.audit, action="runs.start")
    assert (started.subject, started.actor) == (run_id, "eve")


@simulated
async def test_changes_of_concurrency_limits_are_audited_in_the_operators_tenant(mill: Cluster) -> None:
    engine = (await client_of(mill)).engine
    limits = engine.for_tenant(OPERATOR_TENANT, audited=True).concurrency
    await limits.set("queue:gpu", 4, actor="ada")
    await asyncio.sleep(1)
    await limits.remove("queue:gpu", actor="bob")
    assert await refused(limits.set("queue:gpu", 5)) == "actor_missing"
    assert await limits.find() == []
    found = await entries(engine.audit, subject="queue:gpu")
    assert [(each.actor, each.action, each.detail) for each in found] == [
        ("bob", "concurrency_limits.remove", ""),
        ("ada", "concurrency_limits.set", "4"),
    ]
