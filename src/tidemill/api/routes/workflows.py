"""`/workflows`: validate, publish, list, look up, compare, tag, patch and delete.

A reference is `name` (the latest version), `name@3` or `name:tag`. A document arrives as JSON, `{"document": …}`, or as
YAML text; its problems have line and column in what was sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from fastapi import Query, Request, Response
from pydantic import Field

from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.schemas import SVG, After, Body, Extended, Limit, PageOf, answer, page_answer, picture_answer
from tidemill.engine.catalog import Published, Tagged, WorkflowDeletion
from tidemill.engine.compiled import off_loop
from tidemill.engine.services.workflows import Validation
from tidemill.engine.versions import TagMoved, Version, WorkflowRow
from tidemill.errors import Problem, Rejected, rejected
from tidemill.kernel.document.reader import read_document, with_places
from tidemill.kernel.document.text import as_yaml
from tidemill.kernel.model import encode_workflow

router = Router()

YAML = "application/yaml"

EXAMPLE = {"name": "hello", "nodes": [{"id": "greet", "type": "value", "config": "Hello"}]}
_KEYS = ("document", "message")
_DOCUMENT = {
    "type": "object",
    "properties": {
        "document": {"anyOf": [{"type": "object"}, {"type": "string"}], "description": "As a mapping, or as its text."},
        "message": {"type": "string", "description": "Why it is published.", "maxLength": 2_000},
    },
    "required": ["document"],
    "additionalProperties": False,
}
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {"schema": _DOCUMENT, "example": {"document": EXAMPLE, "message": "the first version"}},
            YAML: {
                "schema": {"type": "string"},
                "example": "name: hello\nnodes:\n  - {id: a, type: value}",
            },
        },
    }
}
_DIFF = {
    "type": "object",
    "properties": {
        "left": {"type": "object"},
        "right": {"type": "object"},
        "document": {"type": "array", "items": {"type": "object"}, "description": "A JSON Patch."},
        "graph": {"type": "object"},
    },
    "required": ["left", "right", "document", "graph"],
}


class _Given(NamedTuple):
    document: Mapping[str, Any] | bytes | str
    message: str
    body: bytes | None
    """The text around a document that was given as a mapping."""

    async def placed(self, problems: Sequence[Problem]) -> tuple[Problem, ...]:
        """Problems with line and column in the body, where the document is a part of it."""
        if self.body is None or not problems:
            return tuple(problems)
        inside = [msgspec.structs.replace(each, path=f"/document{each.path}") for each in problems]
        found = await off_loop(self.body, with_places, inside, self.body)
        pairs = zip(problems, found, strict=True)
        return tuple(msgspec.structs.replace(each, line=at.line, column=at.column) for each, at in pairs)


async def _given(request: Request, message: str) -> _Given:
    body = await request.body()
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not media_type.endswith("json"):
        return _Given(body, message, None)
    try:
        read: dict[str, Any] = await off_loop(body, lambda: read_document(body, format="json"))
    except Rejected as refusal:
        # One problem of the request, whatever the reader calls it.
        raise Rejected(msgspec.structs.replace(refusal.problems[0], code="body_malformed")) from None
    problems = [
        Problem(
            code="request_invalid", path=f"/{key}", message=f"there is no key {key[:80]!r} here", hint="leave it out"
        )
        for key in read
        if key not in _KEYS
    ]
    document, words = read.get("document"), read.get("message", message)
    if not isinstance(document, (dict, str)):
        hint = "send the document as an object or as text, or as YAML with Content-Type: application/yaml"
        problems.append(
            Problem(code="request_invalid", path="/document", message="the request has no document", hint=hint)
        )
    if not isinstance(words, str):
        problems.append(Problem(code="request_invalid", path="/message", message="the message is not text"))
    if problems:
        raise Rejected(problems)
    assert isinstance(document, (dict, str)) and isinstance(words, str)
    return _Given(document, words, body if isinstance(document, dict) else None)


Message = Annotated[str, Query(max_length=2_000, description="Why it is published, where the body is YAML.")]


@router.on("POST", "/workflows/validate", may="workflows:read", answers=Validation, consumes=None, openapi_extra=_BODY)
async def validate_workflow(request: Request, caller: CurrentCaller) -> Response:
    """Check a document without publishing it.

    Every problem is reported at once, with line and column. The answer is 200 also for a document with problems.
    """
    given = await _given(request, "")
    found = await caller.services.workflows.validate(given.document)
    return answer(
        msgspec.structs.replace(
            found, problems=await given.placed(found.problems), warnings=await given.placed(found.warnings)
        )
    )


@router.on(
    "POST", "/workflows", may="workflows:write", answers=Published, status=201, consumes=None, openapi_extra=_BODY
)
async def publish_workflow(request: Request, caller: CurrentCaller, message: Message = "") -> Response:
    """Publish a document as the newest version of its workflow.

    Content that is a version already is not published again: the answer is 201 too, with `created` false.
    """
    given = await _given(request, message)
    try:
        published = await caller.services.workflows.publish(given.document, author=caller.actor, message=given.message)
    except Rejected as refusal:
        raise Rejected(await given.placed(refusal.problems)) from None
    return answer(msgspec.structs.replace(published, warnings=await given.placed(published.warnings)), 201)


@router.on("GET", "/workflows", may="workflows:read", answers=PageOf(WorkflowRow))
async def list_workflows(
    caller: CurrentCaller,
    query: Annotated[str, Query(description="Terms, such as `tag:stable`.", max_length=2_000)] = "",
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """List published workflows, most recently changed first."""
    return page_answer(*await caller.services.workflows.find(query, after=after, limit=limit))


@router.on(
    "GET",
    "/workflows/{reference}",
    may="workflows:read",
    answers=Extended(Version, tags=dict[str, int], weights=dict[str, dict[str, int]]),
)
async def show_workflow(reference: str, caller: CurrentCaller) -> Response:
    """Show a version, by number or tag, with the tags of its workflow."""
    version = await caller.services.workflows.version(reference)
    workflows = caller.services.workflows
    tags, weights = await workflows.tags(version.name), await workflows.weights(version.name)
    return answer(_fields(version, tags=tags, weights=weights))


def _fields(struct: msgspec.Struct, **further: Any) -> dict[str, Any]:
    fields = {name: getattr(struct, name) for name in struct.__struct_fields__ if name != "v"}
    return fields | further


@router.on(
    "GET",
    "/workflows/{reference}/document",
    may="workflows:read",
    answers={"type": "object"},
    responses={200: {"content": {YAML: {"schema": {"type": "object"}}}}},
)
async def workflow_document(
    reference: str,
    caller: CurrentCaller,
    format: Literal["json", "yaml"] = "json",  # noqa: A002 - the name of the query parameter
) -> Response:
    """The document of a version, in its normal form, as JSON or YAML."""
    document = await caller.services.workflows.document(reference)
    if format == "yaml":
        return Response(await off_loop(document, as_yaml, document), media_type=YAML)
    return answer(document)


@router.on(
    "GET",
    "/workflows/{reference}/graph",
    may="workflows:read",
    answers={
        "type": "object",
        "description": "The compiled workflow: nodes with their edges, conditions and policies.",
    },
)
async def workflow_graph(reference: str, caller: CurrentCaller) -> Response:
    """The graph of a version, as JSON."""
    workflow = await caller.services.workflows.show(reference)
    return Response(encode_workflow(workflow), media_type="application/json", headers={"ETag": f'"{workflow.digest}"'})


@router.on(
    "GET",
    "/workflows/{reference}/graph.svg",
    may="workflows:read",
    answers={"type": "string"},
    media_type=SVG,
)
async def workflow_picture(reference: str, caller: CurrentCaller) -> Response:
    """The graph of a version, as a picture."""
    from tidemill.pictures import graph_svg

    workflow = await caller.services.workflows.show(reference)
    return picture_answer(await asyncio.to_thread(graph_svg, workflow))


@router.on("GET", "/workflows/{name}/versions", may="workflows:read", answers=PageOf(Version))
async def workflow_versions(name: str, caller: CurrentCaller, after: After = None, limit: Limit = 50) -> Response:
    """The versions of a workflow, oldest first."""
    return _numbered_page(await caller.services.workflows.versions(name), after, limit)


def _numbered_page(items: Sequence[Any], after: str | None, limit: int) -> Response:
    """A page of a list that only grows at its end; the cursor is how many came before."""
    if after is not None and not (after.isascii() and after.isdecimal() and len(after) < 10):
        message = "this is not a cursor of an earlier page"
        raise rejected("bad_cursor", message, path="/after", hint="start without one")
    begin = int(after or 0)
    end = begin + limit
    return page_answer(items[begin:end], str(end) if end < len(items) else None)


@router.on("GET", "/workflows/{reference}/diff", may="workflows:read", answers=_DIFF)
async def diff_workflows(
    reference: str,
    caller: CurrentCaller,
    to: Annotated[str, Query(description="The other version.", examples=["hello@2"], max_length=300)],
) -> Response:
    """The differences between two versions, as a JSON Patch and as a difference of graphs."""
    return answer(await caller.services.workflows.diff(reference, to))


class PatchWorkflowBody(Body):
    operations: list[dict[str, Any]] = Field(
        description="A JSON Patch (RFC 6902) of the document in its normal form.",
        examples=[[{"op": "replace", "path": "/nodes/greet/config", "value": "Good morning"}]],
    )
    base_digest: str | None = Field(None, description="Refuse the patch unless the version has this digest.")
    message: str = Field("", description="Why it is changed.", max_length=2_000)


@router.on("POST", "/workflows/{reference}/patch", may="workflows:write", answers=Published, status=201)
async def patch_workflow(reference: str, body: PatchWorkflowBody, caller: CurrentCaller) -> Response:
    """Publish a new version with a JSON Patch of another one."""
    published = await caller.services.workflows.patch(
        reference, body.operations, base_digest=body.base_digest, author=caller.actor, message=body.message
    )
    return answer(published, 201)


@router.on("GET", "/workflows/{name}/tags", may="workflows:read", answers=dict[str, int])
async def workflow_tags(name: str, caller: CurrentCaller) -> Response:
    """Where the tags of a workflow point."""
    return answer(await caller.services.workflows.tags(name))


@router.on("GET", "/workflows/{name}/tag-history", may="workflows:read", answers=PageOf(TagMoved))
async def workflow_tag_history(
    name: str,
    caller: CurrentCaller,
    tag: Annotated[str | None, Query(description="Only the moves of this tag.", max_length=100)] = None,
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """Where the tags of a workflow have pointed, oldest first."""
    return _numbered_page(await caller.services.workflows.tag_history(name, tag), after, limit)


class MoveTagBody(Body):
    version: int | None = Field(None, description="The version the tag points to.", examples=[3])
    weight: int | None = Field(
        None, description="Give `version` only this percentage of the runs; the versions of the tag share the rest."
    )
    weights: dict[str, int] | None = Field(
        None,
        description="Instead of `version`: all versions that share the tag, and their percentages.",
        examples=[{"2": 90, "3": 10}],
    )
    message: str = Field("", description="Why it is moved.", max_length=2_000)

    def target(self) -> int | dict[int, int]:
        if (self.version is None) == (self.weights is None):
            hint = "send `version`, with a `weight` if it shares the tag, or `weights` for all of its versions"
            raise rejected("request_invalid", "either `version` or `weights` says where the tag points", hint=hint)
        if self.weights is None:
            return self.version or 0
        if not all(number.isascii() and number.isdecimal() and len(number) < 10 for number in self.weights):
            raise rejected(
                "request_invalid", "the keys are numbers of versions", path="/weights", hint='as in {"2": 90}'
            )
        return {int(number): weight for number, weight in self.weights.items()}


@router.on("PUT", "/workflows/{name}/tags/{tag}", may="workflows:write", answers=Tagged)
async def move_tag(name: str, tag: str, body: MoveTagBody, caller: CurrentCaller) -> Response:
    """Point a tag to a version, or let several versions share it.

    With a `weight` the version gets that percentage of the runs that are started by the tag.
    """
    moved = await caller.services.workflows.tag(
        name, tag, body.target(), weight=body.weight, actor=caller.actor, message=body.message
    )
    return answer(moved)


class ReasonBody(Body):
    message: str = Field("", description="Why.", examples=["3 fails on empty orders"], max_length=2_000)


@router.on("POST", "/workflows/{name}/tags/{tag}/rollback", may="workflows:write", answers=Tagged)
async def rollback_tag(name: str, tag: str, body: ReasonBody, caller: CurrentCaller) -> Response:
    """Move a tag back to where it pointed before."""
    moved = await caller.services.workflows.rollback_tag(name, tag, actor=caller.actor, message=body.message)
    return answer(moved)


@router.on("DELETE", "/workflows/{name}/tags/{tag}", may="workflows:write", answers=Tagged)
async def remove_tag(
    name: str, tag: str, caller: CurrentCaller, message: Annotated[str, Query(max_length=2_000)] = ""
) -> Response:
    """Remove a tag; its history stays."""
    return answer(await caller.services.workflows.untag(name, tag, actor=caller.actor, message=message))


@router.on("DELETE", "/workflows/{name}", may="workflows:write", answers=WorkflowDeletion)
async def delete_workflow(
    name: str, caller: CurrentCaller, message: Annotated[str, Query(max_length=2_000)] = ""
) -> Response:
    """Delete a workflow from the catalog; refused while runs of it have not ended."""
    return answer(await caller.services.workflows.delete(name, actor=caller.actor, message=message))
