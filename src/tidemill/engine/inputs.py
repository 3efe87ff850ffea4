"""The inputs of a run: checked against the workflow's schema and packed as the log keeps them."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson, encode_given
from tidemill.engine.binaries import unknown_file
from tidemill.errors import Rejected, rejected
from tidemill.expressions.schema import compile_schema
from tidemill.kernel.events import INLINE_BYTES_MAX, BlobRef, Payload


async def checked_inputs(tenant: str, inputs: Any, schema: Any, blobs: Blobs) -> Payload:
    """The inputs as a payload; raises `Rejected` with everything that the schema has against them."""
    value = {} if inputs is None else inputs
    if schema is not None:
        problems = compile_schema(schema).problems(value, "/inputs", code="inputs_invalid")
        if problems:
            raise Rejected(problems)
    return await packed(tenant, value, blobs, code="inputs_not_json", path="/inputs")


async def packed(tenant: str, value: Any, blobs: Blobs, *, code: str, path: str) -> Payload:
    """A value that a caller gave, as the log keeps it."""
    try:
        text = encode_given(value)
    except NotJson as error:
        raise rejected(code, str(error), path=path) from None
    await check_described(tenant, text, blobs, path=path)
    if len(text) <= INLINE_BYTES_MAX:
        return text
    return BlobRef(await blobs.put(tenant, text), len(text))


async def check_described(tenant: str, text: bytes, blobs: Blobs, *, path: str) -> None:
    """Refuse a value that describes a file which is not there: what is written down must not point to nothing."""
    problem = await unknown_file(blobs, tenant, text)
    if problem is not None:
        raise Rejected(msgspec.structs.replace(problem, path=path + problem.path))
