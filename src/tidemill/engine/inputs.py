"""The inputs of a run: completed with the schema's defaults, checked, and packed as the log keeps them."""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.blobs.contract import Blobs
from tidemill.blobs.payloads import NotJson, encode_given
from tidemill.engine.binaries import unknown_file
from tidemill.errors import Rejected, rejected
from tidemill.expressions.bounds import deeper_than
from tidemill.expressions.schema import compile_schema
from tidemill.kernel.events import INLINE_BYTES_MAX, BlobRef, Payload


async def checked_inputs(tenant: str, inputs: Any, schema: Any, blobs: Blobs) -> Payload:
    """The inputs with the schema's defaults, as a payload; raises `Rejected` with every mismatch."""
    value = with_defaults(inputs, schema)
    if schema is not None:
        problems = compile_schema(schema).problems(value, "/inputs", code="inputs_invalid")
        if problems:
            raise Rejected(problems)
    return await packed(tenant, value, blobs, code="inputs_not_json", path="/inputs")


def with_defaults(inputs: Any, schema: Any) -> Any:
    """The inputs, completed with the `default` of every property that they lack; the argument is not changed.

    An object that is there, or is itself a default, is completed too. A missing object without a default stays missing.
    """
    if not isinstance(schema, dict) or b'"default"' not in msgspec.json.encode(schema):
        return {} if inputs is None else inputs
    if inputs is None:
        inputs = schema.get("default", {})
    return inputs if deeper_than(inputs) else _filled(inputs, [schema], schema)


def _filled(value: Any, schemas: list[Any], root: Any) -> Any:
    """Complete a value with the defaults of all schemas that apply to it.

    `root` is where references lead. It is None inside a default, where a recursive reference would never end.
    """
    parts = _applied(schemas, root)
    if isinstance(value, list):
        items = [part["items"] for part in parts if "items" in part]
        return [_filled(each, items, root) for each in value] if items else value
    if not isinstance(value, dict):
        return value
    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, below in part.get("properties", {}).items():
            properties.setdefault(name, []).append(below)
    found = dict(value)
    for name, below in properties.items():
        if name in value:
            found[name] = _filled(value[name], below, root)
        else:
            defaults = [part["default"] for part in _applied(below, root) if "default" in part]
            if defaults:
                found[name] = _filled(defaults[0], below, None)
    return found


def _applied(schemas: list[Any], root: Any) -> list[dict[str, Any]]:
    """The schemas, those of their `allOf`, and those under `$defs` that they refer to; each once."""
    found: dict[int, dict[str, Any]] = {}
    waiting = list(schemas)
    for each in waiting:
        if isinstance(each, dict) and id(each) not in found:
            found[id(each)] = each
            waiting += each.get("allOf", ())
            kind, _, name = str(each.get("$ref", "")).rpartition("/")
            if root is not None and kind == "#/$defs":
                waiting.append(root.get("$defs", {}).get(name))
    return list(found.values())


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
