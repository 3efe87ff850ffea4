"""`/session`, `/me`, `/keys`, `/tenants` and `/audit`: credentials, tenants, and who changed what."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import Path, Query, Request, Response
from pydantic import Field

from tidemill.api.auth import Access, Caller, CurrentCaller, Router
from tidemill.api.protection import EXPENSIVE
from tidemill.api.schemas import After, Body, Limit, PageOf, answer, page_answer
from tidemill.engine.maintenance.audit_chain import AuditEntry, ChainCheck
from tidemill.engine.services.access import EXPIRES_DAYS, CreatedKey, KeyView, TenantView
from tidemill.errors import rejected
from tidemill.security.identity import SESSION_COOKIE
from tidemill.security.roles import ANYONE, Role

router = Router()


class Me(msgspec.Struct, frozen=True, kw_only=True):
    """The caller, as the credential of the request proves it."""

    tenant: str
    name: str
    roles: tuple[str, ...]
    permissions: tuple[str, ...]
    key_id: str
    expires_ms: int | None
    csrf_token: str
    """For the header `x-csrf-token` of requests that change something with the session; empty without one."""


def _me(caller: Caller, session: str, access: Access) -> Me:
    principal = caller.principal
    return Me(
        tenant=principal.tenant,
        name=principal.name,
        roles=principal.roles,
        permissions=tuple(sorted(principal.permissions - {ANYONE})),
        key_id=principal.key_id,
        expires_ms=principal.expires_ms,
        csrf_token=access.sessions.csrf_token(session) if session else "",
    )


@router.on("GET", "/me", may=ANYONE, answers=Me)
async def me(request: Request, caller: CurrentCaller) -> Response:
    """The caller, and what it may do."""
    return answer(_me(caller, caller.session, request.app.state.access))


@router.on("POST", "/session", may=ANYONE, answers=Me, status=201)
async def begin_session(request: Request, caller: CurrentCaller) -> Response:
    """Exchange a key or token for a session.

    Sets a cookie that scripts cannot read and other sites cannot send; the answer has its CSRF token.
    """
    access: Access = request.app.state.access
    if caller.session or access.is_open:
        # It would outlive the session that it began with, or the first key, which closes an open server.
        hint = "leave it out: this server asks for none" if access.is_open else "send `Authorization: Bearer KEY`"
        raise rejected("unauthenticated", "a session begins with a key or a token", hint=hint)
    now_ms = caller.services.context.store.now_ms()
    token = access.sessions.issue(caller.principal, now_ms)
    issued = access.sessions.principal(token, now_ms)
    found = answer(_me(caller._replace(principal=issued), token, access), 201)
    # A header of a proxy can only make the cookie stricter.
    secure = request.url.scheme == "https" or request.headers.get("x-forwarded-proto", "") == "https"
    seconds = ((issued.expires_ms or now_ms) - now_ms) // 1_000
    found.set_cookie(SESSION_COOKIE, token, max_age=seconds, httponly=True, samesite="strict", secure=secure)
    return found


@router.on("DELETE", "/session", may=ANYONE, answers=None, status=204)
async def end_session(request: Request, caller: CurrentCaller) -> Response:
    """End the session of a browser.

    Every server refuses the cookie within five seconds, also a copy of it.
    """
    await request.app.state.access.end(caller)
    found = Response(status_code=204)
    found.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return found


# Keys


class NewKeyBody(Body):
    label: str = Field(
        description="What the key is for. Changes made with the key are recorded as by `key:LABEL`.",
        examples=["ci-deploy"],
    )
    roles: list[Role] = Field(min_length=1, examples=[["author", "operator"]])
    expires_days: float | None = Field(
        EXPIRES_DAYS, description="How long the key is valid; null: until it is revoked.", examples=[90]
    )


@router.on("GET", "/keys", may="keys:read", answers=PageOf(KeyView))
async def list_keys(caller: CurrentCaller, after: After = None, limit: Limit = 50) -> Response:
    """The API keys of the tenant."""
    return page_answer(*await caller.services.keys.find(after=after, limit=limit))


@router.on("POST", "/keys", may="keys:write", answers=CreatedKey, status=201)
async def create_key(caller: CurrentCaller, body: NewKeyBody) -> Response:
    """Create an API key.

    The answer is the only place where the key is ever shown.
    """
    created = await caller.services.keys.create(
        body.label, roles=[*body.roles], expires_days=body.expires_days, actor=caller.actor
    )
    return answer(created, 201, {"Cache-Control": "no-store"})


@router.on("DELETE", "/keys/{key_id}", may="keys:write", answers=KeyView)
async def revoke_key(caller: CurrentCaller, key_id: Annotated[str, Path(max_length=200)]) -> Response:
    """Revoke an API key.

    Every server refuses the key within five seconds. Revoking it again changes nothing.
    """
    return answer(await caller.services.keys.revoke(key_id, actor=caller.actor))


# Tenants


class NewTenantBody(Body):
    name: str = Field(description="Lower-case letters, digits and -, at most 63.", examples=["acme"])


TenantName = Annotated[str, Path(max_length=63)]


@router.on("GET", "/tenants", may="tenants:read", answers=PageOf(TenantView))
async def list_tenants(caller: CurrentCaller, after: After = None, limit: Limit = 50) -> Response:
    """The tenants that were created."""
    return page_answer(*await caller.services.tenants.find(after=after, limit=limit))


@router.on("POST", "/tenants", may="tenants:write", answers=TenantView, status=201)
async def create_tenant(caller: CurrentCaller, body: NewTenantBody) -> Response:
    """Create a tenant."""
    return answer(await caller.services.tenants.create(body.name, actor=caller.actor), 201)


@router.on("POST", "/tenants/{name}/disable", may="tenants:write", answers=TenantView)
async def disable_tenant(caller: CurrentCaller, name: TenantName) -> Response:
    """Disable a tenant.

    All its keys and tokens are refused within five seconds; its runs continue.
    """
    return answer(await caller.services.tenants.disable(name, actor=caller.actor))


@router.on("POST", "/tenants/{name}/enable", may="tenants:write", answers=TenantView)
async def enable_tenant(caller: CurrentCaller, name: TenantName) -> Response:
    """Enable a tenant again."""
    return answer(await caller.services.tenants.enable(name, actor=caller.actor))


# Audit

Text = Annotated[str | None, Query(max_length=2_000)]
Moment = Annotated[str | None, Query(max_length=100, description="`2h` (ago), or a date.")]


@router.on("GET", "/audit", may="audit:read", answers=PageOf(AuditEntry))
async def list_audit(
    caller: CurrentCaller,
    actor: Text = None,
    action: Annotated[str | None, Query(max_length=200, description="`runs.cancel`, `workflows.publish` …")] = None,
    subject: Text = None,
    since: Moment = None,
    until: Moment = None,
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """Who changed what, newest first."""
    found = await caller.services.audit.find(
        actor=actor, action=action, subject=subject, since=since, until=until, after=after, limit=limit
    )
    return page_answer(*found)


@router.on("GET", "/audit/verify", may="audit:read", weight=EXPENSIVE, answers=ChainCheck)
async def verify_audit(
    caller: CurrentCaller,
    head: Annotated[str, Query(max_length=100, description="The head of an earlier check, kept elsewhere.")] = "",
) -> Response:
    """Check whether an audit entry was changed."""
    return answer(await caller.services.audit.verify(head))
