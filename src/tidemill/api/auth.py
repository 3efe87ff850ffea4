"""Authentication and permissions: every route names the permission that it needs; a route without one cannot be added.

`Router` attaches the permission and the type of the answer to a route; its caller is admitted before anything of the
body is read. The tenant comes from the credential alone: a caller holds the services of its own tenant, so an id of
another tenant is as unknown as one that does not exist.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from itertools import islice
from typing import Annotated, Any, NamedTuple, TypeVar, get_origin

from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from limits import RateLimitItemPerSecond
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from tidemill.api.problems import PROBLEMS_MAX
from tidemill.api.protection import ESCAPED, LoadGuard, TooMany, unescaped
from tidemill.engine.engine import Engine
from tidemill.engine.services.access import KNOWN_FOR_MS
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.security.identity import (
    CSRF_HEADER,
    KEY_PREFIX,
    SESSION_COOKIE,
    JwtVerifier,
    Sessions,
    credential_invalid,
)
from tidemill.security.roles import Principal

Admission = Callable[[Request], Awaitable[None]]
EndpointT = TypeVar("EndpointT", bound=Callable[..., Awaitable[Response]])
JSON = "application/json"


class Caller(NamedTuple):
    """The caller, with the services of its tenant."""

    principal: Principal
    services: TenantServices
    session: str = ""
    """The session that the request came with, instead of a key or a token."""

    @property
    def actor(self) -> str:
        """The name under which the caller's changes are recorded."""
        return self.principal.name


SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing, so that a session needs no CSRF token for them."""
WRONG_CREDENTIALS = RateLimitItemPerSecond(100)
"""Of one address."""
KEY_MARK = f"{KEY_PREFIX}_"
LOCAL = "local"
"""The name of the caller where no authentication is configured."""


class Access:
    """Finds the principal of a request: an API key or a JSON Web Token in its `Authorization`, or a session cookie."""

    def __init__(
        self,
        engine: Engine,
        *,
        jwt: JwtVerifier | None = None,
        sessions: Sessions | None = None,
        open_as: Principal | None = None,
        hosts: Collection[str] | None = None,
    ) -> None:
        self._engine, self._jwt, self._open_as, self._hosts = engine, jwt, open_as, hosts
        self.sessions = sessions or Sessions()
        self._looked_ms = engine.context.ambient.monotonic_ms()
        self.wrong_credentials = WRONG_CREDENTIALS
        self._failures = FixedWindowRateLimiter(MemoryStorage())

    @classmethod
    def open(
        cls,
        engine: Engine,
        *,
        hosts: Collection[str] | None = None,
        sessions: Sessions | None = None,
        roles: tuple[str, ...] = ("admin",),
    ) -> Access:
        """Everyone who reaches the server is an administrator of the engine's tenant.

        With `hosts`, only under these names (none: any) and not from the page of another site: a browser on this
        machine reaches the server, too, and opens pages of anyone. It ends within seconds of the first key.
        """
        open_as = Principal(tenant=engine.context.tenant, name=LOCAL, roles=roles)
        return cls(engine, open_as=open_as, hosts=hosts, sessions=sessions)

    @property
    def is_open(self) -> bool:
        """Whether everyone is let in without a credential."""
        return self._open_as is not None

    async def is_configured(self) -> bool:
        """Whether any credential could be accepted."""
        return self._jwt is not None or await self._engine.credentials.has_keys()

    async def caller(self, request: Request) -> Caller:
        """The caller of a request. Raises Rejected (`unauthenticated`, or why a credential is not accepted)."""
        if self._open_as is not None and self._hosts is not None:
            _check_site(request.headers, self._hosts)
            await self._look_for_keys()
        if self._open_as is not None:
            return self._caller(self._open_as)
        given, session = request.headers.get("authorization"), request.cookies.get(SESSION_COOKIE, "")
        if len(request.headers.getlist("authorization")) > 1:
            raise credential_invalid("the request carries more than one header Authorization")
        if given is not None:
            return self._caller(await self._limited(request, given))
        if not session:
            hint = "send `Authorization: Bearer KEY` (commands: TIDEMILL_KEY or --key-file); `tidemill keys create`"
            raise rejected("unauthenticated", "the request carries no credential", hint=hint)
        principal = self.sessions.principal(session, self._engine.context.store.now_ms())
        await self._engine.credentials.check(principal)
        await self._engine.credentials.check_session(principal.tenant, self.sessions.id_of(session))
        if request.method not in SAFE_METHODS:
            self.sessions.check_csrf(session, request.headers.get(CSRF_HEADER, ""))
        return self._caller(principal, session)

    async def end(self, caller: Caller) -> None:
        """Invalidate the session of a request, including copies of its cookie."""
        if caller.session:
            principal, session_id = caller.principal, self.sessions.id_of(caller.session)
            expires_ms = principal.expires_ms or self._engine.context.store.now_ms()
            await self._engine.credentials.end_session(principal.tenant, session_id, expires_ms, actor=principal.name)

    async def _look_for_keys(self) -> None:
        """Require credentials as soon as a key exists."""
        now_ms = self._engine.context.ambient.monotonic_ms()
        if now_ms - self._looked_ms >= KNOWN_FOR_MS:
            self._looked_ms = now_ms
            if await self._engine.credentials.has_keys():
                self._open_as = None

    async def _limited(self, request: Request, given: str) -> Principal:
        """Each wrong key costs a read of the store, so the number of wrong keys per address is limited.

        Tokens, and keys that this process has read, are judged all the same: others may share the address, of a proxy.
        """
        address, text = request.client.host if request.client else "", _credential(given)
        message = f"more than {self.wrong_credentials.amount} wrong credentials in a second"
        too_many = TooMany(Problem(code="rate_limited", message=message, hint="slow down"), 1)
        is_full = not self._failures.test(self.wrong_credentials, address)
        if is_full and text.startswith(KEY_MARK) and not self._engine.credentials.has_read(text):
            raise too_many
        try:
            return await self._bearer(text)
        except Rejected:
            self._failures.hit(self.wrong_credentials, address)
            if is_full:
                raise too_many from None
            raise

    async def _bearer(self, text: str) -> Principal:
        if not text:
            raise credential_invalid("the header Authorization is not `Bearer KEY`")
        if text.startswith(KEY_MARK):
            return await self._engine.credentials.principal_of_key(text)
        if self._jwt is None:
            raise credential_invalid()
        principal = self._jwt.principal(text, self._engine.context.ambient.monotonic_ms())
        return await self._engine.credentials.check(principal)

    def _caller(self, principal: Principal, session: str = "") -> Caller:
        return Caller(principal, self._engine.for_tenant(principal.tenant, audited=True), session)


def _credential(given: str) -> str:
    """The key or token of a header; empty if it has none."""
    scheme, _, text = given.partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def _check_site(headers: Mapping[str, str], hosts: Collection[str]) -> None:
    """Refuse requests from pages of other sites, also with a DNS name that was rebound to this machine."""
    host = headers.get("host", "")
    named = host.rpartition(":")[0] if not host.endswith("]") and ":" in host else host
    origin = headers.get("origin")
    elsewhere = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    if (hosts and named.lower() not in hosts) or elsewhere or (origin is not None and _authority(origin) != host):
        message = (
            "without authentication the server refuses requests from pages of other sites and under foreign host names"
        )
        raise rejected("site_not_allowed", message, hint="create a key with `tidemill keys create`")


def _authority(origin: str) -> str:
    return origin.partition("://")[2]


def require(permission: str, weight: int = 1) -> Admission:
    """Refuses callers without a permission."""

    async def check(request: Request) -> None:
        access: Access = request.app.state.access
        caller = await access.caller(request)
        guard: LoadGuard = request.app.state.load_guard
        await guard.admit(caller.principal, permission, weight)
        if not caller.principal.may(permission):
            raise not_allowed(caller, permission)
        request.state.caller = caller

    return check


def not_allowed(caller: Caller, permission: str) -> Rejected:
    message = f"{caller.actor} lacks the permission {permission}"
    return rejected("not_allowed", message, hint="an administrator can create a key with a role that has it")


def _check_type(request: Request, media_type: str) -> None:
    """Refuse a body of another media type."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
    if has_body and given != media_type:
        message = f"this path takes {media_type}, not {given[:100] or 'a body without a content type'}"
        raise rejected("content_type_unsupported", message, hint=f"send `Content-Type: {media_type}`")


def _check_parameters(request: Request, known: Mapping[str, bool]) -> None:
    """Refuse query parameters that a route does not have, which it would ignore, or takes once.

    `known` says of each whether it may be repeated.
    """
    given = Counter(name for name, _ in request.query_params.multi_items())
    problems = [
        Problem(
            code="request_invalid",
            path=f"/{name[:80]}",
            message=f"there is no query parameter {name[:80]!r} here",
            hint=offered(name[:80], known) if known else "leave it out",
        )
        for name in islice(given, PROBLEMS_MAX)
        if name not in known
    ]
    problems += [
        Problem(code="request_invalid", path=f"/{name}", message=f"{name} is given twice", hint="give it once")
        for name, repeats in known.items()
        if given[name] > 1 and not repeats
    ]
    if problems:
        raise Rejected(problems)


async def _current_caller(request: Request) -> Caller:
    # Not a plain function: FastAPI calls those in a thread.
    caller: Caller = request.state.caller
    return caller


CurrentCaller = Annotated[Caller, Depends(_current_caller)]
"""The caller of a request, for the endpoints of a `Router`; their permission was checked before."""


class Declared(NamedTuple):
    """What a route has declared beside its path."""

    permission: str
    answers: Any
    """The type of the answer's body, for `AnswerSchemas`; None if it is not JSON."""
    status: int
    media_type: str
    admit: Admission
    """Refuses a caller, by the head of the request alone."""
    consumes: str | None = JSON
    """The media type of the request's body; None: the endpoint reads it."""


class GuardedRoute(APIRoute):
    """Admits the caller first, then reads the body. FastAPI itself would parse it before it asks a dependency."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, declared = super().get_route_handler(), self.endpoint.__dict__["declared"]
        assert isinstance(declared, Declared)
        known = {each.alias: get_origin(each.field_info.annotation) is list for each in self.dependant.query_params}

        async def admitted(request: Request) -> Response:
            if ESCAPED in request.scope:
                request.scope["path_params"] = unescaped(request.path_params)
            await declared.admit(request)
            if declared.permission:
                # A link may have got more parameters on its way through a mail.
                _check_parameters(request, known)
            if declared.consumes is not None and request.method not in SAFE_METHODS:
                _check_type(request, declared.consumes)
                await request.body()
            return await handle(request)

        return admitted


class Router(APIRouter):
    """Routes of one resource. Each has a permission and a response type.

    The OpenAPI document calls an operation as its function is called, and has its docstring.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=GuardedRoute, **options)

    def on(
        self,
        method: str,
        path: str,
        *,
        may: str,
        answers: Any,
        status: int = 200,
        media_type: str = JSON,
        consumes: str | None = JSON,
        weight: int = 1,
        **options: Any,
    ) -> Callable[[EndpointT], EndpointT]:
        """Add a route: `@router.on("GET", "/runs", may="runs:read", answers=PageOf(RunRow))`.

        A body of another media type than `consumes` is refused; None takes any. `weight` is as how many requests one
        of this route counts.
        """
        extra = {"x-permission": may, **options.pop("openapi_extra", {})}
        declared = Declared(may, answers, status, media_type, require(may, weight), consumes)
        return self.declared(method, path, declared, openapi_extra=extra, **options)

    def declared(self, method: str, path: str, declared: Declared, **options: Any) -> Callable[[EndpointT], EndpointT]:
        """Add a route that asks for something else than a permission."""

        def add(endpoint: EndpointT) -> EndpointT:
            endpoint.__dict__["declared"] = declared
            summary, _, more = inspect.cleandoc(endpoint.__doc__ or "").partition("\n\n")
            # By default FastAPI describes an operation by this.
            endpoint.__doc__ = " ".join(more.split())
            first, *rest = endpoint.__name__.split("_")
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=declared.status,
                response_model=None,
                operation_id=first + "".join(map(str.capitalize, rest)),
                summary=summary.removesuffix("."),
                **options,
            )
            return endpoint

        return add
