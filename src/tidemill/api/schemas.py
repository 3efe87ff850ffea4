"""JSON Schemas of responses, derived from the types that the engine returns; and the responses themselves.

The engine's structs are encoded as the command line's `--json` prints them, and their schemas are generated, so no
field is named twice. `AnswerSchemas` collects the components for the OpenAPI document.
"""

from __future__ import annotations

import enum
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args, get_origin

import msgspec
from fastapi import Query, Response
from pydantic import BaseModel, ConfigDict

from tidemill.engine.views import plain
from tidemill.errors import Problem, rejected

JSON = "application/json"
SVG = "image/svg+xml"
Schema = dict[str, Any]

_SCALARS: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bytes: {"type": "string"},
    type(None): {"type": "null"},
    Any: {},
    object: {},
}


def answer(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A result of the engine as a JSON response."""
    return Response(msgspec.json.encode(plain(value)), status, None if headers is None else dict(headers), JSON)


def picture_answer(svg: str) -> Response:
    """A drawing, which has styles of its own and loads nothing."""
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; sandbox"}
    return Response(svg, media_type=SVG, headers=headers)


def page_answer(items: Sequence[Any], after: str | None) -> Response:
    """A page of a list; `next` is the cursor for `after` of the next page, null on the last one."""
    return answer({"items": items, "next": after})


class Body(BaseModel):
    """The body of a request: every key is known, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True)


After = Annotated[str | None, Query(description="`next` of the previous page.", max_length=1_000)]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of items per page.")]


class PageOf:
    """Stands for a page of a type in `schema`."""

    def __init__(self, item: Any) -> None:
        self.item = item


class Extended:
    """Stands for a type with further fields in `schema`."""

    def __init__(self, kind: Any, **fields: Any) -> None:
        self.kind, self.fields = kind, fields


class AnswerSchemas:
    """Schemas by type. Structs become components that others refer to."""

    def __init__(self) -> None:
        self.components: dict[str, Schema] = {}

    def schema(self, kind: Any) -> Schema:
        if isinstance(kind, dict):
            return kind
        if isinstance(kind, PageOf):
            return self._object({"items": {"type": "array", "items": self.schema(kind.item)}, "next": _CURSOR})
        if isinstance(kind, Extended):
            further = self._object({name: self.schema(each) for name, each in kind.fields.items()})
            return {"allOf": [self.schema(kind.kind), further]}
        if kind in _SCALARS:
            return _SCALARS[kind]
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
            return self._reference(kind.__name__, lambda: self._struct(kind))
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return {"type": "string", "enum": [each.value for each in kind]}
        if described := getattr(kind, "json_schema", None):
            # A view that is no struct describes what its `to_dict` answers.
            return self._reference(kind.__name__, lambda: self._object(described, required=False))
        return self._generic(kind)

    def _generic(self, kind: Any) -> Schema:
        origin, arguments = get_origin(kind), get_args(kind)
        if origin in (typing.Union, types.UnionType):
            return {"anyOf": [self.schema(each) for each in arguments]}
        if origin is typing.Literal:
            return {"enum": list(arguments)}
        if origin is typing.Annotated:
            return self.schema(arguments[0])
        if origin in (list, tuple, set, frozenset, Sequence) or kind in (list, tuple):
            items = [self.schema(each) for each in arguments if each is not Ellipsis]
            same = len(items) == 1 and (origin is not tuple or Ellipsis in arguments)
            return {"type": "array", "items": items[0] if same else {}}
        if origin in (dict, Mapping) or kind is dict:
            return {"type": "object", "additionalProperties": self.schema(arguments[1]) if arguments else {}}
        if isinstance(kind, type) and hasattr(kind, "_fields"):
            hints = typing.get_type_hints(kind)
            return {"type": "array", "items": {"anyOf": [self.schema(hints[name]) for name in kind._fields]}}
        if supertype := getattr(kind, "__supertype__", None):
            return self.schema(supertype)
        return {}

    def _reference(self, name: str, make: Any) -> Schema:
        if name not in self.components:
            self.components[name] = {}  # A struct may contain itself.
            self.components[name] = make()
        return {"$ref": f"#/components/schemas/{name}"}

    def _struct(self, kind: type[msgspec.Struct]) -> Schema:
        hints = typing.get_type_hints(kind, include_extras=True)
        properties = {name: self.schema(hints[name]) for name in kind.__struct_fields__ if name != "v"}
        config = kind.__struct_config__
        if config.tag_field == "kind":
            properties["kind"] = {"type": "string", "const": str(config.tag)}
        # A problem leaves out what is not known.
        shown = self._object(properties, required=kind is not Problem)
        return {**shown, "description": (kind.__doc__ or "").strip().split("\n")[0]}

    @staticmethod
    def _object(properties: Mapping[str, Schema], *, required: bool = True) -> Schema:
        shown: Schema = {"type": "object", "properties": dict(properties)}
        return {**shown, "required": list(properties)} if required else shown


_CURSOR: Schema = {"anyOf": [{"type": "string"}, {"type": "null"}]}
PROBLEM: Schema = {
    "type": "object",
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "path": {"type": "string"},
        "hint": {"type": "string"},
        "problems": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["type", "title", "status", "detail", "code", "problems"],
}


def byte_range(text: str, size: int) -> tuple[int, int] | None:
    """The first and the last byte (exclusive) that a `Range` asks for; None for all of them. Raises Rejected."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or found.group(1) == found.group(2) == "":
        # Several ranges, or another unit: everything is a valid answer.
        return None
    first, last = found.groups()
    begin, end = (int(first), min(int(last) + 1 if last else size, size)) if first else (max(0, size - int(last)), size)
    if begin >= end:
        message = f"there are {size} bytes, and the range is beyond them"
        raise rejected("range_invalid", message, path="/Range", hint=f"such as bytes=0-{max(0, size - 1)}")
    return begin, end


_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")
