"""Refusals as HTTP answers: `application/problem+json` with the code, path, message and hint of every problem.

The status follows from the code of the first problem. A bug answers 500 with the digest of its traceback, which the
log has in full; nothing of it reaches the client.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any, get_args

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from tidemill.api.protection import SECURITY_HEADERS
from tidemill.errors import DiskFull, Problem, Rejected, StoreUnusable, Unavailable, internal_error, offered

LOG = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
ERRORS = "/api/v1/errors"
"""Below it is what each code means, as the page of the documentation says."""
RETRY_AFTER_SECONDS = 1
PROBLEMS_MAX = 100
"""Maximum number of problems of a request that a response lists."""

_NOT_FOUND = (
    "agent_unknown", "approval_unknown", "archived_run_unknown", "blob_missing", "blob_unknown", "dead_letter_unknown",
    "key_unknown", "limit_unknown", "link_invalid", "node_type_unknown", "node_unknown", "path_unknown", "run_unknown",
    "schedule_unknown", "tag_unknown", "tenant_unknown", "tool_unknown", "version_unknown", "workflow_unknown",
)  # fmt: skip
_CONFLICT = (
    "approval_decided", "dead_letter_closed", "decision_conflict", "node_not_begun", "parent_over", "patch_items_begun",
    "patch_join_fired", "patch_needs_retry", "patch_stale", "patch_too_late", "results_undone", "rollback_done",
    "rollback_running", "run_completed", "run_ended", "run_exists", "run_not_ended", "run_paused", "run_running",
    "schedule_exists", "key_label_taken", "signals_full", "tenant_exists", "tool_name_taken", "workflow_in_use",
    "workflow_waits",
)  # fmt: skip
_UNAUTHENTICATED = (
    "credential_invalid", "key_expired", "key_revoked", "session_invalid", "tenant_disabled", "token_expired",
    "unauthenticated",
)  # fmt: skip
STATUSES: dict[str, int] = {
    **dict.fromkeys(_NOT_FOUND, 404),
    **dict.fromkeys(_CONFLICT, 409),
    "approval_closed": 410,
    "approval_expired": 410,
    "approver_not_allowed": 403,
    "backlog_full": 429,
    "bad_cursor": 400,
    "body_malformed": 400,
    "body_slow": 408,
    "body_too_complex": 413,
    "body_too_large": 413,
    "content_encoding_unsupported": 415,
    "content_type_unsupported": 415,
    "csrf_invalid": 403,
    "cursor_invalid": 400,
    "document_too_large": 413,
    "four_eyes": 403,
    "inputs_too_large": 413,
    "link_expired": 410,
    "link_void": 410,
    "method_not_allowed": 405,
    "not_allowed": 403,
    "range_invalid": 416,
    "rate_limited": 429,
    "site_not_allowed": 403,
    **dict.fromkeys(_UNAUTHENTICATED, 401),
    "store_slow": 429,
}
"""By error code; any other refusal is 422."""
UNPROCESSABLE = 422


def status_of(problems: Sequence[Problem]) -> int:
    return STATUSES.get(problems[0].code, UNPROCESSABLE)


def problem_answer(
    request: Request,
    problems: Sequence[Problem],
    *,
    status: int | None = None,
    headers: Mapping[str, str] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Response:
    """The answer for a refusal. It says the first problem in the fields of RFC 9457, lists all of them, and `more`."""
    first, status = problems[0], status or status_of(problems)
    body = {
        "type": f"{request.scope.get('root_path', '')}{ERRORS}/{first.code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": first.message,
        "code": first.code,
        "path": first.path,
        "hint": first.hint,
        "problems": [problem.to_dict() for problem in problems],
        **(more or {}),
    }
    return Response(msgspec.json.encode(body), status, dict(headers or {}), MEDIA_TYPE)


def add_problem_handlers(app: FastAPI) -> None:
    """Make every error of a route a problem; also those of FastAPI and Starlette."""
    app.add_exception_handler(Rejected, _rejected)
    app.add_exception_handler(Unavailable, _unavailable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(asyncio.TimeoutError, _timed_out)
    app.add_exception_handler(Exception, _internal)


async def _rejected(request: Request, error: Exception) -> Response:
    assert isinstance(error, Rejected)
    status = status_of(error.problems)
    headers = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        headers["Retry-After"] = str(getattr(error, "retry_after_s", RETRY_AFTER_SECONDS))
    return problem_answer(request, error.problems, headers=headers)


async def _unavailable(request: Request, error: Exception) -> Response:
    # The error names the host or the file of the store: that is for the log of the operator.
    LOG.warning("%s %s: %s", request.method, _logged_path(request), error)
    code, message, hint = "unavailable", "the service cannot do this now", "send the same request again"
    if isinstance(error, StoreUnusable):
        code, message = error.problem.code, "the store is unusable until an operator repairs it"
        hint = "see the server's log"
    elif isinstance(error, DiskFull):
        message, hint = "the disk of the store is full", "free space on it"
    problem = Problem(code=code, message=message, hint=hint)
    return problem_answer(request, [problem], status=503, headers={"Retry-After": str(RETRY_AFTER_SECONDS)})


def _logged_path(request: Request) -> str:
    """The path of a request, without the token of a link: it lets a person decide."""
    path = request.url.path
    return path.replace(request.path_params["token"], "{token}") if "token" in request.path_params else path


async def _timed_out(request: Request, error: Exception) -> Response:
    return problem_answer(
        request, [Problem(code="timed_out", message=str(error) or "the request took too long")], status=504
    )


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    body = getattr(request.scope.get("route"), "body_field", None)
    kind = None if body is None else body.field_info.annotation
    known: Iterable[str] = next(
        (each.model_fields for each in (kind, *get_args(kind)) if hasattr(each, "model_fields")), {}
    )
    found = error.errors()[:PROBLEMS_MAX]
    problems = [_problem(each, known) for each in found]
    malformed = any(each["type"] == "json_invalid" for each in found)
    return problem_answer(request, problems, status=400 if malformed else UNPROCESSABLE)


def _problem(error: dict[str, Any], known: Iterable[str]) -> Problem:
    """What FastAPI says of one wrong part of a request, whose body has the `known` keys."""
    place, *rest = error["loc"]
    if error["type"] == "json_invalid":
        message = f"the body is not JSON: {error.get('ctx', {}).get('error', error['msg'])}"
        return Problem(code="body_malformed", message=message, hint="send a JSON object")
    path = "/" + "/".join(str(part)[:200].replace("~", "~0").replace("/", "~1") for part in rest) if rest else ""
    if error["type"] == "extra_forbidden":
        key = str(rest[-1])[:80]
        hint = offered(key, known) if len(rest) == 1 else "leave it out"
        return Problem(code="request_invalid", path=path, message=f"there is no key {key!r} here", hint=hint)
    said = error["msg"][:1].lower() + error["msg"][1:]
    where = {"query": "the query parameter", "path": "the path parameter", "header": "the header"}.get(str(place))
    return Problem(code="request_invalid", path=path, message=f"{where} {rest[0]}: {said}" if where and rest else said)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code, message, hint = "request_invalid", str(error.detail), "the paths are listed at /api/v1/openapi.json"
    if error.status_code == HTTPStatus.BAD_REQUEST:
        # FastAPI says so of bytes that are no text, and of an integer that Python does not read.
        code, message, hint = "body_malformed", "the body is not JSON", "send a JSON object, in UTF-8"
        if "int_max_str_digits" in str(error.__cause__):
            message, hint = "an integer of the body has more than 4,300 digits", "write it as a string"
    elif error.status_code == HTTPStatus.NOT_FOUND:
        code, message = "path_unknown", "there is nothing at this path"
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        code, message = "method_not_allowed", "this path does not take this method"
    problem = Problem(code=code, message=message, hint=hint)
    return problem_answer(request, [problem], status=error.status_code, headers=error.headers)


async def _internal(request: Request, error: Exception) -> Response:
    wrapped = internal_error(error)
    LOG.error("%s %s: %s", request.method, _logged_path(request), wrapped, exc_info=error)
    message = f"an internal error; its traceback {wrapped.digest} is in the server's log"
    # Starlette answers it outside of all middleware.
    headers = {name.decode(): value.decode() for name, value in SECURITY_HEADERS.items()}
    return problem_answer(request, [Problem(code="internal_error", message=message)], status=500, headers=headers)
