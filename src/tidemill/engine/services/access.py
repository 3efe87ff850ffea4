"""Who may use a store: API keys, tenants, and the audit of what was changed.

A key is a stream of its tenant, a tenant a stream of the operator's own; each record is the whole key or tenant as it
stands then. Every request uses `CredentialDirectory`: a process keeps what it has read for less than five
seconds, so that a revoked key or a disabled tenant is refused everywhere within five.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeVar

import msgspec

from tidemill.ambient import Ambient
from tidemill.engine.corruption import require_intact
from tidemill.engine.maintenance.audit_chain import AUDIT, AuditChain, AuditEntry, ChainCheck, read_entry, waiting_row
from tidemill.engine.maintenance.schedule import insert_first
from tidemill.engine.run_query import Moment, read_query
from tidemill.engine.services.context import ServiceContext
from tidemill.errors import Rejected, Unavailable, rejected
from tidemill.security.identity import NO_HASH, credential_invalid, id_of_key, new_key, same_key, tenant_of_key
from tidemill.security.roles import OPERATOR_TENANT, Principal, check_roles_of_key, check_tenant_name
from tidemill.stores.contract import Commit, Committed, Row, Store, Stream, Tail

KEY = "key"
TENANT = "tenant"
SESSION = "session"
ENDED_AT_ONCE = 100
"""Sessions whose time is over that one sign-out forgets."""
ACCESS_FORMAT = 1
KNOWN_FOR_MS = 4_000
"""How long a process relies on what it has read of a key or a tenant."""
KNOWN_MAX = 10_000
EXPIRES_DAYS = 365.0
EXPIRES_DAYS_MAX = 3_660.0
DAY_MS = 86_400_000
RACES_MAX = 16
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

KeyState = Literal["live", "expired", "revoked"]
StoredT = TypeVar("StoredT", bound="StoredKey | StoredTenant | EndedSession")


class StoredKey(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    label: str
    roles: tuple[str, ...]
    hash: bytes
    created_ms: int
    created_by: str
    expires_ms: int | None = None
    revoked_ms: int | None = None
    revoked_by: str = ""
    v: int = ACCESS_FORMAT

    def state(self, now_ms: int) -> KeyState:
        if self.revoked_ms is not None:
            return "revoked"
        return "expired" if self.expires_ms is not None and self.expires_ms <= now_ms else "live"


class KeyView(msgspec.Struct, frozen=True, kw_only=True):
    """A key as lists show it: never its secret."""

    id: str
    label: str
    roles: tuple[str, ...]
    state: KeyState
    created_ms: int
    created_by: str
    expires_ms: int | None
    revoked_ms: int | None
    revoked_by: str


class CreatedKey(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    """The key itself, which is shown only once."""
    view: KeyView


class StoredTenant(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created_ms: int
    created_by: str
    disabled_ms: int | None = None
    disabled_by: str = ""
    v: int = ACCESS_FORMAT


class EndedSession(msgspec.Struct, frozen=True, kw_only=True):
    """A session that was ended before its time; forgotten once that is over."""

    id: str
    expires_ms: int
    v: int = ACCESS_FORMAT


class TenantView(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    state: Literal["live", "disabled"]
    created_ms: int
    created_by: str
    disabled_ms: int | None = None
    disabled_by: str = ""


_ENCODE = msgspec.msgpack.Encoder().encode


async def _stored(store: Store, stream: Stream, kind: type[StoredT]) -> tuple[StoredT | None, int]:
    """The last record of a stream, and its version."""
    (tail,) = await store.load({stream: 0})
    records = require_intact(tail).records
    return (msgspec.msgpack.decode(records[-1], type=kind) if records else None), tail.version


# Every request


class _KnownKey(msgspec.Struct, frozen=True):
    stored: StoredKey | None
    principal: Principal
    is_open: bool
    """Whether its tenant exists and is not disabled."""
    until_ms: float


class CredentialDirectory:
    """Keys and tenants as this process last read them: a look-up and one hash, while they are known."""

    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store, self._ambient = store, ambient
        self._keys: dict[str, _KnownKey] = {}
        self._tenants: dict[str, tuple[bool, float]] = {}
        self._ended: dict[str, tuple[bool, float]] = {}

    async def principal_of_key(self, text: str) -> Principal:
        """Who a key belongs to. Raises Rejected: only the holder of the secret learns why it is refused."""
        key_id = id_of_key(text)
        known = await self._key(key_id) if key_id else None
        stored = known.stored if known is not None else None
        if not same_key(text, stored.hash if stored is not None else NO_HASH) or known is None or stored is None:
            raise credential_invalid()
        self._check_live(stored)
        if not known.is_open:
            raise _disabled(known.principal.tenant)
        return known.principal

    def has_read(self, text: str) -> bool:
        """Whether a text names a key that this process knows or knew, so that to judge it costs little."""
        known = self._keys.get(id_of_key(text) or "")
        return known is not None and known.stored is not None

    async def check(self, principal: Principal) -> Principal:
        """Refuse a principal of a session or a token whose tenant is closed, or whose key is no longer valid."""
        if principal.key_id:
            known = await self._key(principal.key_id)
            if known.stored is None or tenant_of_key(principal.key_id) != principal.tenant:
                raise credential_invalid()
            self._check_live(known.stored)
            is_open = known.is_open
        else:
            is_open = await self.is_open(principal.tenant)
        if not is_open:
            raise _disabled(principal.tenant)
        return principal

    async def check_session(self, tenant: str, session_id: str) -> None:
        """Refuse a session that was ended. Raises Rejected (`session_invalid`)."""
        now_ms = self._ambient.monotonic_ms()
        is_ended, until_ms = self._ended.get(session_id, (False, 0.0))
        if now_ms >= until_ms:
            is_ended = (await _stored(self._store, Stream(tenant, SESSION, session_id), EndedSession))[0] is not None
            _bounded(self._ended)[session_id] = is_ended, now_ms + KNOWN_FOR_MS
        if is_ended:
            raise rejected("session_invalid", "the session was ended", hint="sign in again")

    async def end_session(self, tenant: str, session_id: str, expires_ms: int, *, actor: str) -> None:
        """Refuse a session from now on; in every process within five seconds. Idempotent."""
        stream, now_ms = Stream(tenant, SESSION, session_id), self._store.now_ms()
        body = _ENCODE(EndedSession(id=session_id, expires_ms=expires_ms))
        audit = waiting_row(stream, 1, body, actor=actor, command="end", at_ms=now_ms)
        await self._store.commit([Commit(stream=stream, expected=0, records=(body,), rows=(_session_row(body), audit))])
        self._ended.pop(session_id, None)
        for row in (await self._store.find(tenant, SESSION, limit=ENDED_AT_ONCE)).rows:
            if -row.sort <= now_ms:
                gone = msgspec.structs.replace(row, deleted=True)
                await self._store.forget(Stream(tenant, SESSION, row.key), rows=(gone,))

    async def is_open(self, tenant: str, *, fresh: bool = False) -> bool:
        """Whether a tenant exists and is not disabled; `fresh` reads it again."""
        if tenant == OPERATOR_TENANT:
            return True
        now_ms = self._ambient.monotonic_ms()
        is_open, until_ms = self._tenants.get(tenant, (False, 0.0))
        if fresh or now_ms >= until_ms:
            stored = (await _stored(self._store, _tenant_stream(tenant), StoredTenant))[0]
            is_open = stored is not None and stored.disabled_ms is None
            _bounded(self._tenants)[tenant] = is_open, now_ms + KNOWN_FOR_MS
        return is_open

    def forget(self, key_id: str) -> None:
        """Drop a key from the cache."""
        self._keys.pop(key_id, None)

    async def has_keys(self) -> bool:
        """Whether there is any key, of any tenant."""
        return bool(await self._store.streams(KEY, limit=1))

    async def _key(self, key_id: str) -> _KnownKey:
        now_ms = self._ambient.monotonic_ms()
        known = self._keys.get(key_id)
        if known is None or now_ms >= known.until_ms:
            tenant = tenant_of_key(key_id)
            stored = (await _stored(self._store, Stream(tenant, KEY, key_id), StoredKey))[0]
            principal = Principal(tenant=tenant, name="")
            if stored is not None:
                principal = Principal(
                    tenant=tenant,
                    name=f"key:{stored.label}",
                    roles=stored.roles,
                    key_id=key_id,
                    expires_ms=stored.expires_ms,
                )
            is_open = stored is not None and await self.is_open(tenant, fresh=True)
            known = _bounded(self._keys)[key_id] = _KnownKey(stored, principal, is_open, now_ms + KNOWN_FOR_MS)
        return known

    def _check_live(self, stored: StoredKey) -> None:
        state = stored.state(self._store.now_ms())
        if state != "live":
            code = "key_revoked" if state == "revoked" else "key_expired"
            raise credential_invalid(f"the key {stored.label} is {state}", code=code)


def _bounded(known: dict[str, Any]) -> dict[str, Any]:
    if len(known) >= KNOWN_MAX:
        known.clear()
    return known


def _disabled(tenant: str) -> Rejected:
    return credential_invalid(f"the tenant {tenant} is disabled or does not exist", code="tenant_disabled")


def _label_taken(label: str) -> Rejected:
    hint = "revoke it first, or choose another label: it names the actor in the audit"
    return rejected("key_label_taken", f"another key is labelled {label}", path="/label", hint=hint)


def _tenant_stream(name: str) -> Stream:
    return Stream(OPERATOR_TENANT, TENANT, name)


# Services


class KeyService:
    """The API keys of a tenant. Their changes are always audited."""

    def __init__(self, context: ServiceContext, directory: CredentialDirectory) -> None:
        self._context, self._directory = replace(context, audited=True), directory

    async def create(
        self, label: str, *, roles: tuple[str, ...] | list[str], expires_days: float | None = EXPIRES_DAYS, actor: str
    ) -> CreatedKey:
        """Create a key with these roles. Its text is in the answer, and nowhere else; None never expires."""
        context = self._context
        if not _LABEL.fullmatch(label):
            hint = "letters, digits, . _ and -, at most 64, with a letter or digit first: ci-deploy"
            raise rejected("key_label_invalid", f"{label[:80]!r} cannot label a key", path="/label", hint=hint)
        roles = check_roles_of_key(roles)
        if expires_days is not None and not 0 < expires_days <= EXPIRES_DAYS_MAX:
            message = f"a key expires after more than 0 and at most {EXPIRES_DAYS_MAX:g} days, not {expires_days:g}"
            hint = "rotate keys, or create one that does not expire"
            raise rejected("key_expiry_invalid", message, path="/expires_days", hint=hint)
        if not await self._directory.is_open(context.tenant, fresh=True):
            message = f"there is no tenant {context.tenant}, or it is disabled"
            hint = f"tidemill tenants create {context.tenant}"
            raise rejected("tenant_unknown", message, path="/tenant", hint=hint)
        now_ms = context.store.now_ms()
        page = await context.store.find(context.tenant, KEY, [f"label:{label}"], limit=100)
        if any(_read_key(row).state(now_ms) == "live" for row in page.rows):
            raise _label_taken(label)
        # Of two that are made at once, both have this id, and one is refused.
        key = new_key(
            context.tenant, "\0".join((context.tenant, label, *sorted(row.key for row in page.rows))).encode()
        )
        expires_ms = None if expires_days is None else now_ms + round(expires_days * DAY_MS)
        stored = StoredKey(
            id=key.id,
            label=label,
            roles=roles,
            hash=key.hash,
            created_ms=now_ms,
            created_by=actor,
            expires_ms=expires_ms,
        )
        if not await self._write(stored, 0, "create", actor, now_ms):
            raise _label_taken(label)
        return CreatedKey(key=key.text, view=self._view(stored))

    async def find(self, *, after: str | None = None, limit: int = 50) -> tuple[list[KeyView], str | None]:
        """The keys of the tenant, newest first."""
        page = await self._context.page(KEY, (), after, limit)
        return [self._view(_read_key(row)) for row in page.rows], page.after

    async def revoke(self, key_id: str, *, actor: str) -> KeyView:
        """Revoke a key; in every process within five seconds. Idempotent."""
        for _ in range(RACES_MAX):
            mine = tenant_of_key(key_id) == self._context.tenant
            stored, version = await _stored(self._context.store, self._stream(key_id), StoredKey) if mine else (None, 0)
            if stored is None:
                raise rejected("key_unknown", f"there is no key {key_id[:80]}", hint="see `tidemill keys list`")
            if stored.revoked_ms is not None:
                return self._view(stored)
            now_ms = self._context.store.now_ms()
            revoked = msgspec.structs.replace(stored, revoked_ms=now_ms, revoked_by=actor)
            if await self._write(revoked, version, "revoke", actor, now_ms):
                self._directory.forget(key_id)
                return self._view(revoked)
        raise Unavailable(f"the key {key_id} is being changed by too many callers at once")

    async def _write(self, stored: StoredKey, expected: int, command: str, actor: str, now_ms: int) -> bool:
        stream, body = self._stream(stored.id), _ENCODE(stored)
        detail = f"{stored.label}: {', '.join(stored.roles)}"
        audit = self._context.audit_rows(
            stream, expected + 1, body, actor=actor, command=command, at_ms=now_ms, detail=detail
        )
        commit = Commit(stream=stream, expected=expected, records=(body,), rows=(_key_row(body), *audit))
        (result,) = await self._context.store.commit([commit])
        return isinstance(result, Committed)

    def _stream(self, key_id: str) -> Stream:
        return Stream(self._context.tenant, KEY, key_id)

    def _view(self, stored: StoredKey) -> KeyView:
        fields = {name: getattr(stored, name) for name in KeyView.__struct_fields__ if name != "state"}
        return KeyView(state=stored.state(self._context.store.now_ms()), **fields)


class TenantService:
    """The tenants of a store, managed by the operator's own. Their changes are always audited, in its chain."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = replace(context, audited=True)

    async def create(self, name: str, *, actor: str) -> TenantView:
        """Create a tenant. It has no keys yet."""
        self._check(name)
        now_ms = self._context.store.now_ms()
        tenant = StoredTenant(name=name, created_ms=now_ms, created_by=actor)
        if not await self._write(tenant, 0, "create", actor, now_ms):
            raise rejected(
                "tenant_exists", f"the tenant {name} exists already", path="/name", hint="nothing was changed"
            )
        # Its audit is chained by maintenance, also before its first run.
        await insert_first(self._context.store, name)
        return _tenant_view(tenant)

    async def find(self, *, after: str | None = None, limit: int = 50) -> tuple[list[TenantView], str | None]:
        """The tenants that were created, newest first; the operator's own is always there and not among them."""
        self._check_operator()
        page = await self._context.page(TENANT, (), after, limit)
        return [_tenant_view(msgspec.msgpack.decode(row.body, type=StoredTenant)) for row in page.rows], page.after

    async def disable(self, name: str, *, actor: str) -> TenantView:
        """Refuse all credentials of a tenant, in every process within five seconds. Its runs continue. Idempotent."""
        return await self._change(name, actor, disabled=True)

    async def enable(self, name: str, *, actor: str) -> TenantView:
        """Accept the credentials of a disabled tenant again. Idempotent."""
        return await self._change(name, actor, disabled=False)

    async def _change(self, name: str, actor: str, *, disabled: bool) -> TenantView:
        self._check(name)
        for _ in range(RACES_MAX):
            stored, version = await _stored(self._context.store, _tenant_stream(name), StoredTenant)
            if stored is None:
                raise rejected("tenant_unknown", f"there is no tenant {name}", hint="see `tidemill tenants list`")
            if (stored.disabled_ms is not None) is disabled:
                return _tenant_view(stored)
            now_ms = self._context.store.now_ms()
            changed = msgspec.structs.replace(
                stored, disabled_ms=now_ms if disabled else None, disabled_by=actor if disabled else ""
            )
            if await self._write(changed, version, "disable" if disabled else "enable", actor, now_ms):
                return _tenant_view(changed)
        raise Unavailable(f"the tenant {name} is being changed by too many callers at once")

    async def _write(self, stored: StoredTenant, expected: int, command: str, actor: str, now_ms: int) -> bool:
        stream, body = _tenant_stream(stored.name), _ENCODE(stored)
        audit = self._context.audit_rows(stream, expected + 1, body, actor=actor, command=command, at_ms=now_ms)
        commit = Commit(stream=stream, expected=expected, records=(body,), rows=(_tenant_row(body), *audit))
        (result,) = await self._context.store.commit([commit])
        return isinstance(result, Committed)

    def _check(self, name: str) -> None:
        self._check_operator()
        check_tenant_name(name, "/name")
        if name == OPERATOR_TENANT:
            message = f"{OPERATOR_TENANT} is the operator's own tenant: it always exists"
            raise rejected("tenant_name_invalid", message, path="/name", hint="choose another name")

    def _check_operator(self) -> None:
        if self._context.tenant != OPERATOR_TENANT:
            message, hint = (
                "only the operator's own tenant manages tenants",
                f"use a key of the tenant {OPERATOR_TENANT}",
            )
            raise rejected("not_allowed", message, hint=hint)


class AuditService:
    """Who changed what in a tenant."""

    def __init__(self, context: ServiceContext) -> None:
        self._context, self._chain = context, AuditChain(context.store)

    async def find(
        self,
        *,
        actor: str | None = None,
        action: str | None = None,
        subject: str | None = None,
        since: Moment | None = None,
        until: Moment | None = None,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[list[AuditEntry], str | None]:
        """Entries that meet all conditions, newest first. `action` is `runs.cancel`, `subject` the id of a run or key.

        What was committed before the call is among them. `since` and `until` are those of `runs.find`.
        """
        bounds = read_query(since=since, until=until, now_ms=self._context.store.now_ms())
        if after is None:
            await self._chain.task(self._context.tenant, {})
        named = {"actor": actor, "action": action, "subject": subject}
        terms = [f"{name}:{value}" for name, value in named.items() if value]
        page = await self._context.page(AUDIT, terms, after, limit, since=bounds.since_ms, before=bounds.before_ms)
        return [read_entry(row) for row in page.rows], page.after

    async def verify(self, known_head: str = "") -> ChainCheck:
        """Recompute the hash chain of the tenant, and name the first entry that was changed.

        `known_head` is the head of an earlier check, kept elsewhere: a chain that lost entries since does not hold it.
        """
        await self._chain.task(self._context.tenant, {})
        return await self._chain.verify(self._context.tenant, known_head)


def _key_row(body: bytes) -> Row:
    stored = msgspec.msgpack.decode(body, type=StoredKey)
    return Row(kind=KEY, key=stored.id, sort=stored.created_ms, terms=(f"label:{stored.label}",), body=body)


def _session_row(body: bytes) -> Row:
    ended = msgspec.msgpack.decode(body, type=EndedSession)
    # Stores walk downwards, and the first that is over is wanted first.
    return Row(kind=SESSION, key=ended.id, sort=-ended.expires_ms, body=body)


def _tenant_row(body: bytes) -> Row:
    stored = msgspec.msgpack.decode(body, type=StoredTenant)
    return Row(kind=TENANT, key=stored.name, sort=stored.created_ms, body=body)


STREAM_KINDS: Mapping[str, Callable[[Tail], Sequence[Row]]] = {
    KEY: lambda tail: [_key_row(record) for record in tail.records[-1:]],
    TENANT: lambda tail: [_tenant_row(record) for record in tail.records[-1:]],
    SESSION: lambda tail: [_session_row(record) for record in tail.records[-1:]],
}
"""The rows that the records of keys, tenants and ended sessions call for."""


def _read_key(row: Row) -> StoredKey:
    return msgspec.msgpack.decode(row.body, type=StoredKey)


def _tenant_view(stored: StoredTenant) -> TenantView:
    fields = {name: getattr(stored, name) for name in TenantView.__struct_fields__ if name != "state"}
    return TenantView(state="live" if stored.disabled_ms is None else "disabled", **fields)
