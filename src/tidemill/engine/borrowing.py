"""Content that a document refers to by digest, put into it before it is compiled.

So a version holds all that it needs to run, and its digest says everything about what it does; the blobs may be
collected afterwards.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.errors import Problem, Rejected, Unavailable, rejected
from tidemill.kernel.document import normalise
from tidemill.kernel.document.borrowed import Borrowed, borrowed_in

CONTENT_BYTES_MAX = 8 * 1024 * 1024
"""What may be put into a document; whatever is larger is data and no schema, code or configuration."""


async def filled_in(document: Any, tenant: str, blobs: Blobs) -> Any:
    """Fill in what a document refers to: schemas and code of conditions, and configurations.

    Raises Rejected with everything that cannot be read.
    """
    return await _with_configs(await _with_conditions(document, tenant, blobs), tenant, blobs)


async def _with_conditions(document: Any, tenant: str, blobs: Blobs) -> Any:
    if not borrowed_in(document):
        return document
    copy, problems = deepcopy(document), []
    for each in borrowed_in(copy):
        problem = await _fill(each, tenant, blobs)
        problems += [problem] if problem is not None else []
    if problems:
        raise Rejected(tuple(problems))
    return copy


async def _fill(borrowed: Borrowed, tenant: str, blobs: Blobs) -> Problem | None:
    digest = borrowed.digest
    if digest is None:
        return borrowed.misspelt()
    try:
        body = await _content(tenant, digest, blobs)
        borrowed.fill(body.decode() if borrowed.field == "code" else decode_value(body))
    except (Unavailable, ValueError) as error:
        return Problem(
            code="condition_ref_unreadable",
            message=f"{borrowed.key} refers to something that cannot be read: {error}",
            path=borrowed.path,
            hint=f"store it first (`tidemill blobs put`), or write it into the document as {borrowed.field}",
        )
    return None


async def _with_configs(document: Any, tenant: str, blobs: Blobs) -> Any:
    try:
        if b"config_ref" not in encode_value(document):
            return document
    except NotJson:
        return document
    normal, problems = normalise(document)
    if problems:
        return document
    for number, node in enumerate(normal["nodes"]):
        digest = node.pop("config_ref", None)
        if digest is not None:
            node["config"] = await _config(tenant, digest, f"/nodes/{number}/config_ref", node["id"], blobs)
    return normal


async def _config(tenant: str, digest: str, path: str, node: str, blobs: Blobs) -> Any:
    try:
        return decode_value(await _content(tenant, digest, blobs))
    except (Unavailable, ValueError) as error:
        raise rejected(
            "config_ref_unreadable",
            f"node {node} refers to a configuration that cannot be read: {error}",
            path=path,
            hint="store the blob first, or write the configuration into the document",
        ) from None


async def _content(tenant: str, digest: str, blobs: Blobs) -> bytes:
    """Read a blob whole, unless it is too large for that."""
    known = await blobs.stat(tenant, digest)
    if known is not None and known.size > CONTENT_BYTES_MAX:
        raise ValueError(f"it has {known.size:,} bytes, and {CONTENT_BYTES_MAX:,} are the most that is read")
    return await blobs.get(tenant, digest)
