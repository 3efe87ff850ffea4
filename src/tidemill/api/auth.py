"""Who asks, and what they may: every route names the permission that it needs; a route without one cannot be added.

`Router` attaches the permission and the type of the answer to a route. The tenant comes from the credential alone: a
caller holds the services of its own tenant, so an id of another tenant is as unknown as one that does not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple, TypeVar

from fastapi import APIRouter, Depends, Request, Response

from tidemill.engine.engine import Engine
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.errors import rejected
from tidemill.security.identity import Principal

EndpointT = TypeVar("EndpointT", bound=Callable[..., Awaitable[Response]])
JSON = "application/json"


class Caller(NamedTuple):
    """The one who asks, with the services of its tenant."""

    principal: Principal
    services: TenantServices

    @property
    def actor(self) -> str:
        """The name under which the caller's changes are recorded."""
        return self.principal.name


class Access:
    """Finds the principal of a request."""

    def __init__(self, engine: Engine, *, open_as: Principal | None = None) -> None:
        self._engine, self._open_as = engine, open_as

    async def caller(self, request: Request) -> Caller:
        """The one who asks. Raises Rejected (`unauthenticated`)."""
        principal = self._open_as
        if principal is None:
            hint = "send `Authorization: Bearer KEY`; create a key with `tidemill keys create`"
            raise rejected("unauthenticated", "the request carries no valid credential", hint=hint)
        return Caller(principal, self._engine.for_tenant(principal.tenant))


def require(permission: str) -> Callable[[Request], Awaitable[None]]:
    """A dependency that refuses callers without a permission."""

    async def check(request: Request) -> None:
        access: Access = request.app.state.access
        caller = await access.caller(request)
        if not caller.principal.may(permission):
            message = f"{caller.actor} lacks the permission {permission}"
            raise rejected("not_allowed", message, hint="an administrator can create a key with a role that has it")
        request.state.caller = caller

    return check


def consuming(media_type: str) -> Callable[[Request], Awaitable[None]]:
    """A dependency that refuses bodies of another media type."""

    async def check(request: Request) -> None:
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        has_body = "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"
        if has_body and given != media_type:
            message = f"this path takes {media_type}, not {given[:100] or 'a body without a content type'}"
            raise rejected("content_type_unsupported", message, hint=f"send `Content-Type: {media_type}`")

    return check


def _current_caller(request: Request) -> Caller:
    caller: Caller = request.state.caller
    return caller


CurrentCaller = Annotated[Caller, Depends(_current_caller)]
"""The caller of a request, for the endpoints of a `Router`; their permission was checked before."""


class Declared(NamedTuple):
    """What a route has declared beside its path."""

    permission: str
    answers: Any
    """The type of the answer's body, for `AnswerSchemas`; None if it is no JSON."""
    status: int
    media_type: str


class Router(APIRouter):
    """Routes of one resource. Each has a permission and the type of its answer."""

    def on(
        self,
        method: str,
        path: str,
        *,
        may: str,
        answers: Any,
        status: int = 200,
        media_type: str = "application/json",
        consumes: str | None = JSON,
        **options: Any,
    ) -> Callable[[EndpointT], EndpointT]:
        """Add a route: `@router.on("GET", "/runs", may="runs:read", answers=PageOf(RunRow))`.

        A body of another media type than `consumes` is refused; None takes any.
        """
        checks = [Depends(require(may))]
        if consumes is not None and method != "GET":
            checks.append(Depends(consuming(consumes)))

        def add(endpoint: EndpointT) -> EndpointT:
            endpoint.__dict__["declared"] = Declared(may, answers, status, media_type)
            self.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=status,
                response_model=None,
                dependencies=checks,
                openapi_extra={"x-permission": may},
                **options,
            )
            return endpoint

        return add
