"""`/blobs`: bytes by their digest. A blob belongs to the tenant that stored it, also if others store the same bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated
from urllib.parse import quote

from fastapi import Header, Query, Request, Response
from fastapi.responses import StreamingResponse
from starlette.requests import ClientDisconnect

from tidemill.api.auth import CurrentCaller, Router
from tidemill.api.schemas import After, Limit, PageOf, answer, byte_range, page_answer
from tidemill.blobs.contract import BlobInfo, BlobState
from tidemill.errors import rejected
from tidemill.handlers.contract import is_media_type

router = Router()

OCTETS = "application/octet-stream"
_DESCRIBED = {
    "type": "object",
    "properties": {
        "$blob": {"type": "string"},
        "size": {"type": "integer"},
        "media_type": {"type": "string"},
        "name": {"type": "string"},
    },
    "required": ["$blob", "size", "media_type", "name"],
    "description": "The reference to the bytes in inputs and outputs of runs.",
}
_UPLOAD = {
    "requestBody": {
        "required": True,
        "content": {OCTETS: {"schema": {"type": "string", "format": "binary"}}},
        "description": "The bytes; Content-Type says what they are.",
    }
}
MediaType = Annotated[str, Query(description="What the bytes are, as their description says.", max_length=255)]
Name = Annotated[str, Query(description="The name of the file.", max_length=255)]


@router.on("POST", "/blobs", may="blobs:write", answers=_DESCRIBED, status=201, consumes=None, openapi_extra=_UPLOAD)
async def put_blob(
    request: Request,
    caller: CurrentCaller,
    name: Name = "",
    keep: Annotated[bool, Query(description="Never collect it.")] = False,
) -> Response:
    """Store bytes, and get the description that may be an input of a run.

    Without `keep` the bytes are collected after a day or so, unless a run or workflow refers to them by then.
    """
    media_type = request.headers.get("content-type") or OCTETS
    try:
        described = await caller.services.blobs.put(
            request.stream(), media_type=media_type, name=name, keep=keep, actor=caller.actor
        )
    except ClientDisconnect:
        raise rejected("body_malformed", "the body was cut off", hint="send the whole request again") from None
    return answer(described, 201)


@router.on("GET", "/blobs", may="blobs:read", answers=PageOf(BlobInfo))
async def list_blobs(
    caller: CurrentCaller,
    state: Annotated[
        BlobState | None, Query(description="`active`, or `grace` for those about to be collected.")
    ] = None,
    after: After = None,
    limit: Limit = 50,
) -> Response:
    """List blobs by their digests."""
    return page_answer(*await caller.services.blobs.find(state=state, after=after, limit=limit))


@router.on("GET", "/blobs/{digest}/info", may="blobs:read", answers=BlobInfo)
async def blob_info(digest: str, caller: CurrentCaller) -> Response:
    """The size and state of a blob."""
    return answer(await caller.services.blobs.show(digest))


@router.on(
    "GET",
    "/blobs/{digest}",
    may="blobs:read",
    answers={"type": "string", "format": "binary"},
    media_type="*/*",
    responses={206: {"description": "A range of the bytes"}, 304: {"description": "The client has them"}},
)
async def get_blob(
    digest: str,
    caller: CurrentCaller,
    media_type: MediaType = OCTETS,
    name: Name = "",
    range_: Annotated[str, Header(alias="Range", include_in_schema=False)] = "",
    if_range: Annotated[str, Header(include_in_schema=False)] = "",
    if_none_match: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The bytes of a blob, or a range of them.

    Bytes that do not match the digest end the answer early; a range that starts after the first byte is not checked.
    Browsers save the bytes and never run them: they are an attachment, of the type that the caller names.
    """
    if not is_media_type(media_type):
        message = f"{media_type[:80]!r} is not a media type"
        raise rejected("blob_invalid", message, path="/media_type", hint="such as image/png")
    blob = await caller.services.blobs.show(digest)
    etag = f'"{digest}"'
    headers = {
        "ETag": etag,
        "Accept-Ranges": "bytes",
        "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name)}" if name else "attachment",
        "Content-Security-Policy": "default-src 'none'; sandbox",
        "Cache-Control": "private, max-age=31536000, immutable",
    }
    if etag in [each.strip().removeprefix("W/") for each in if_none_match.split(",")] or if_none_match.strip() == "*":
        return Response(status_code=304, headers=headers)
    begin, end = 0, blob.size
    asked = byte_range(range_, blob.size) if not if_range or if_range == etag else None
    if asked is not None:
        begin, end = asked
        headers["Content-Range"] = f"bytes {begin}-{end - 1}/{blob.size}"
    headers["Content-Length"] = str(end - begin)
    chunks = _part(caller.services.blobs.read(digest, begin), end - begin, blob.size)
    return StreamingResponse(chunks, 200 if asked is None else 206, headers, media_type)


async def _part(chunks: AsyncIterator[bytes], end: int, size: int) -> AsyncIterator[bytes]:
    """The bytes up to `end`.

    Damage is found at the end of a blob, so its last bytes are held back until then: a client that gets fewer bytes
    than it was told knows that something is wrong.
    """
    at, held = 0, b""
    async for chunk in chunks:
        if held:
            yield held
        held = chunk[: max(0, end - at)]
        at += len(chunk)
        if at >= end and end < size:
            break
    if held:
        yield held
