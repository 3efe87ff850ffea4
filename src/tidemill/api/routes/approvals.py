"""`/approvals`: questions to people and their decisions; `/decisions`: signed links to decide without a key.

The credential or the link determines who decides, and in which roles, never the body of a request.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import quote

import msgspec
from fastapi import Query, Request, Response
from pydantic import Field

from tidemill.api.auth import Admission, CurrentCaller, Declared, EndpointT, Router, not_allowed
from tidemill.api.schemas import JSON, After, Body, Extended, Limit, PageOf, answer, page_answer
from tidemill.engine.index_rows import ApprovalRow
from tidemill.engine.services.approvals import ApprovalReview, ApprovalService, Decided, Decider
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.engine.views import ApprovalView, activation_id, plain, read_activation_id
from tidemill.errors import rejected
from tidemill.kernel.activation import ApprovalStatus
from tidemill.kernel.decide.approvals import as_user
from tidemill.security.roles import Principal
from tidemill.security.signing import LINK_HOURS, DecisionLink, DecisionLinks

LOG = logging.getLogger(__name__)

MAY_DECIDE = "approvals:decide"

router = Router()

LINK_SECONDS = 86_400

Decision = Literal["approve", "reject", "changes"]


class _Place:
    """An approval by its id."""

    def __init__(self, run_id: str, node: str, visit: int, index: int) -> None:
        self.run_id, self.node = run_id, node
        self.at: dict[str, Any] = {"visit": visit, "index": None if index < 0 else index}


def _place(approval_id: str) -> _Place:
    found = read_activation_id(approval_id)
    if found is None:
        raise rejected("approval_unknown", "there is no such approval", hint="see `GET /approvals`")
    return _Place(*found)


@router.on("GET", "/approvals", may="approvals:read", answers=PageOf(Extended(ApprovalRow, approval_id=str)))
async def list_approvals(
    caller: CurrentCaller,
    mine: Annotated[
        bool, Query(description="Only approvals that ask the caller, one of the caller's roles, or anyone.")
    ] = False,
    my_roles: Annotated[bool, Query(description="Only approvals that ask one of the caller's roles.")] = False,
    status: Annotated[ApprovalStatus | Literal["all"], Query(description="How they stand.")] = "pending",
    due: Annotated[
        int | None, Query(ge=0, le=10**9, description="Only approvals that expire within this many seconds.")
    ] = None,
    overdue: Annotated[bool, Query(description="Only approvals that have expired or were escalated.")] = False,
    query: Annotated[
        str, Query(description="Terms: `run:ID`, `workflow:NAME`, `approver:user:NAME`…", max_length=2_000)
    ] = "",
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """List approvals, newest first; pending ones by default.

    A page may have fewer items than the limit while there is a next one.
    """
    now_ms = caller.services.context.store.now_ms()

    def fits(row: ApprovalRow) -> bool:
        expires_ms = row.expires_ms
        if due is not None and (expires_ms is None or expires_ms > now_ms + due * 1_000):
            return False
        return not overdue or row.escalated or (expires_ms is not None and expires_ms <= now_ms)

    rows, following = await caller.services.approvals.inbox(
        [*query.split(), *([] if status == "all" else [f"status:{status}"])],
        person=caller.actor if mine else "",
        roles=caller.principal.roles if mine or my_roles else (),
        by_role=my_roles,
        fits=fits,
        after=after,
        limit=limit,
    )
    items = [{"approval_id": activation_id(row.run_id, row.node, row.visit, row.index), **plain(row)} for row in rows]
    return page_answer(items, following)


@router.on("GET", "/approvals/{approval_id}", may="approvals:read", answers=Extended(ApprovalReview, decider=Decider))
async def show_approval(approval_id: str, caller: CurrentCaller) -> Response:
    """Show what is decided, the evidence, and the consequences of each decision."""
    place, approvals = _place(approval_id), caller.services.approvals
    review = await approvals.review(place.run_id, place.node, **place.at)
    decider = await approvals.decider(review.view, person=caller.actor, roles=caller.principal.roles)
    if decider.refusal is None and not caller.principal.may(MAY_DECIDE):
        decider = msgspec.structs.replace(decider, refusal=not_allowed(caller, MAY_DECIDE).problems[0])
    return answer({**review.to_dict(), "decider": plain(decider)})


@router.on("GET", "/approvals/{approval_id}/votes", may="approvals:read", answers=PageOf({"type": "object"}))
async def approval_votes(approval_id: str, caller: CurrentCaller) -> Response:
    """Who has agreed, and who has decided."""
    place = _place(approval_id)
    review = await caller.services.approvals.review(place.run_id, place.node, **place.at)
    return page_answer(review.view.to_dict()["votes"], None)


@router.on("GET", "/approvals/{approval_id}/history", may="approvals:read", answers=PageOf({"type": "object"}))
async def approval_history(approval_id: str, caller: CurrentCaller) -> Response:
    """What happened to an approval, oldest first."""
    place = _place(approval_id)
    return page_answer(await caller.services.approvals.history(place.run_id, place.node, **place.at), None)


class DecideBody(Body):
    decision: Decision = Field(description="`changes` asks for changes, where the node has a path for it.")
    comments: str = Field("", description="Recorded in the log.", examples=["looks right"], max_length=2_000)
    form: Any = Field(None, description="The data of the approval's form, checked against its schema.")
    command_id: str | None = Field(None, description="Identifies repetitions of one request.", max_length=200)


async def _decide(
    approvals: ApprovalService, place: _Place, body: DecideBody, actor: str, roles: tuple[str, ...]
) -> Response:
    decided = await approvals.settle(
        place.run_id,
        place.node,
        body.decision,
        actor=actor,
        roles=roles,
        comments=body.comments,
        form=body.form,
        command_id=body.command_id,
        **place.at,
    )
    return answer(decided)


@router.on("POST", "/approvals/{approval_id}/decide", may=MAY_DECIDE, answers=Decided)
async def decide_approval(approval_id: str, body: DecideBody, caller: CurrentCaller) -> Response:
    """Approve, reject, or request changes.

    Repeating the same decision returns the same response, a different one 409, a late one 410.
    """
    return await _decide(caller.services.approvals, _place(approval_id), body, caller.actor, caller.principal.roles)


class ChangesBody(Body):
    comments: str = Field(description="What has to change.", examples=["the amount is wrong"], max_length=2_000)
    form: Any = Field(None, description="The data of the approval's form, as far as filled in.")
    command_id: str | None = Field(None, description="Identifies repetitions of one request.", max_length=200)


@router.on("POST", "/approvals/{approval_id}/request-changes", may=MAY_DECIDE, answers=Decided)
async def request_changes(approval_id: str, body: ChangesBody, caller: CurrentCaller) -> Response:
    """Request changes, where the node has a path for them."""
    decision = DecideBody(decision="changes", **body.model_dump())
    return await _decide(caller.services.approvals, _place(approval_id), decision, caller.actor, caller.principal.roles)


class DelegateBody(Body):
    to: str = Field(description="The person who decides instead.", examples=["user:bob"], max_length=200)
    comments: str = Field("", max_length=2_000)
    command_id: str | None = Field(None, description="Identifies repetitions of one request.", max_length=200)


@router.on("POST", "/approvals/{approval_id}/delegate", may=MAY_DECIDE, answers=ApprovalView)
async def delegate_approval(approval_id: str, body: DelegateBody, caller: CurrentCaller) -> Response:
    """Delegate the caller's decision to another person."""
    place = _place(approval_id)
    view = await caller.services.approvals.delegate(
        place.run_id,
        place.node,
        body.to,
        actor=caller.actor,
        roles=caller.principal.roles,
        comments=body.comments,
        command_id=body.command_id,
        **place.at,
    )
    return answer(view)


# Links


class DecisionUrl(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    person: str
    expires_ms: int


class LinkBody(Body):
    person: str | None = Field(
        None,
        description="Who decides by the link; default: the caller. Links for others need the permission `keys:write`.",
        examples=["user:alice"],
        max_length=200,
    )
    expires_in_seconds: int = Field(
        LINK_SECONDS, ge=1, le=int(LINK_HOURS * 3_600), description="The link expires with the approval at the latest."
    )


@router.on("POST", "/approvals/{approval_id}/links", may=MAY_DECIDE, answers=DecisionUrl, status=201)
async def create_decision_link(approval_id: str, body: LinkBody, request: Request, caller: CurrentCaller) -> Response:
    """Create a link by which one person can decide without a key.

    The link is valid for this request, this person and this time; a decision uses it up.
    """
    place = _place(approval_id)
    own = body.person is None or as_user(body.person) == as_user(caller.actor)
    if not own and not caller.principal.may("keys:write"):
        hint = "leave `person` out for a link of your own, or ask an administrator"
        raise rejected("not_allowed", f"{caller.actor} may not create links for others", path="/person", hint=hint)
    person, roles = (caller.actor, caller.principal.roles) if own else (body.person or "", ())
    view = await caller.services.approvals.check_person(place.run_id, place.node, actor=person, roles=roles, **place.at)
    links: DecisionLinks = request.app.state.decision_links
    if not links.lasting:
        LOG.warning("decision links become invalid when this process ends: set `secret` under [server]")
    context = caller.services.context
    now_ms, base = context.store.now_ms(), _base(request)
    link = DecisionLink(
        context.tenant,
        view.run_id,
        view.node,
        view.visit,
        view.index,
        view.approval.requested_ms,
        person,
        roles,
        links.end(now_ms, now_ms + body.expires_in_seconds * 1_000, view.approval.expires_ms),
        caller.principal.key_id if own else "",
    )
    token = links.issue(link)
    await _enter(caller.services, link, token, "create_link", caller.actor, f"for {person}")
    url = f"{base}/api/v1/decisions/{token}"
    return answer(DecisionUrl(url=url, person=person, expires_ms=link.expires_ms), 201)


def _base(request: Request) -> str:
    """What links begin with: without `public_url` our own address, not the header Host, which the client chooses."""
    if request.app.state.public_url:
        return str(request.app.state.public_url)
    host, port = request.scope.get("server") or ("", None)
    if not host or port is None:
        message = "the server does not know its public address"
        raise rejected("public_url_missing", message, hint="set `public_url` under [server]")
    root = str(request.scope.get("app_root_path", request.scope.get("root_path", ""))).rstrip("/")
    return f"{request.url.scheme}://{f'[{host}]' if ':' in host else host}:{port}{root}"


async def _enter(
    services: TenantServices, link: DecisionLink, token: str, command: str, actor: str, detail: str = ""
) -> None:
    """Record a link in the audit. The digest of its token identifies the link without making it usable."""
    stream, detail = services.context.stream(link.run_id), f"{link.node} {detail}".strip()
    await services.context.enter(stream, token.encode(), actor=actor, command=command, detail=detail)


async def _admit(request: Request) -> None:
    """Refuse a token that is none here, has expired, or belongs to a tenant or key that has been closed since."""
    engine, links = request.app.state.engine, request.app.state.decision_links
    link = links.read(request.path_params["token"], engine.context.store.now_ms())
    who = Principal(tenant=link.tenant, name=link.person, key_id=link.key_id)
    await engine.credentials.check(who)
    await request.app.state.load_guard.admit(who, "approvals:decide")
    request.state.link = link


async def _admit_to_page(request: Request) -> None:
    """A browser is shown the page also for a link that does not hold: the page says so."""
    if not _is_browser(request):
        await _admit(request)


def _is_browser(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _by_link(
    method: str, path: str, *, admit: Admission, answers: Any, **options: Any
) -> Callable[[EndpointT], EndpointT]:
    """A route whose path carries a signed token: no other credential is needed, and none counts."""
    return router.declared(method, path, Declared("", answers, 200, JSON, admit), **options)


async def _followed(request: Request) -> tuple[DecisionLink, _Place, TenantServices]:
    link: DecisionLink = request.state.link
    place = _Place(link.run_id, link.node, link.visit, link.index)
    services: TenantServices = request.app.state.engine.for_tenant(link.tenant, audited=True)
    review = await services.approvals.review(place.run_id, place.node, **place.at)
    if review.view.approval.requested_ms != link.requested_ms:
        raise rejected("link_void", "the link belongs to an earlier request", hint="ask for a new one")
    return link, place, services


@_by_link(
    "GET",
    "/decisions/{token}",
    admit=_admit_to_page,
    answers=Extended(ApprovalReview, decider=Decider),
    responses={303: {"description": "Where the page is, for a browser"}},
)
async def show_decision_link(token: str, request: Request) -> Response:
    """Show the approval of a link; nothing is decided by it.

    A browser that opens it is sent to the page that shows it.
    """
    if _is_browser(request):
        # Relative, so that it holds below any path.
        return Response(status_code=303, headers={"Location": f"../../../decide/{quote(token, safe='')}"})
    link, place, services = await _followed(request)
    review = await services.approvals.review(place.run_id, place.node, **place.at)
    decider = await services.approvals.decider(
        review.view, person=link.person, roles=link.roles, expires_ms=link.expires_ms
    )
    return answer({**review.to_dict(), "decider": plain(decider)})


@_by_link("POST", "/decisions/{token}", admit=_admit, answers=Decided)
async def decide_by_link(token: str, body: DecideBody, request: Request) -> Response:
    """Decide as the person of a link.

    Repeating the same decision returns the same response; any other is refused with 409, because the link is used up.
    """
    link, place, services = await _followed(request)
    decided = await _decide(services.approvals, place, body, link.person, link.roles)
    await _enter(services, link, token, "use_link", link.person)
    return decided
