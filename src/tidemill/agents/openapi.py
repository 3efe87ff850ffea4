"""The tool `openapi_action`: calls the operations of one OpenAPI 3 document that the author has selected.

The document is written in the config, stored as a blob, or fetched through the egress guard. The model names an
operation and its parameters; both are checked against the document before anything is sent. The origin is that of the
config or of the document's first server, never a choice of the model, and the credentials go to that origin only.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urljoin, urlsplit

import msgspec

from tidemill.agents.tools import (
    Allowance,
    Effect,
    Ended,
    Tool,
    ToolContext,
    ToolResult,
    ToolSource,
    call_handler,
    error_result,
    problems_result,
)
from tidemill.errors import Problem, Rejected
from tidemill.expressions.errors import listing, shorten
from tidemill.expressions.limits import DEPTH_MAX
from tidemill.expressions.schema import SCHEMA_BYTES_MAX, check_schema, compile_schema
from tidemill.handlers.contract import Blob, Fail, Handler, NodeContext, object_schema

METHODS = ("get", "put", "post", "delete", "patch", "head", "options")
READING = frozenset({"get", "head", "options"})
DOCUMENT_BYTES_MAX = 4 * 1024 * 1024
OPERATIONS_MAX = 200
REFERENCES_MAX = 2_000
RESPONSE_BYTES = 1_000_000

_TEXT = {"type": "string", "minLength": 1}
SETTINGS_SCHEMA = object_schema(
    ("document", "operations"),
    document={"anyOf": [_TEXT, {"type": "object"}]},
    operations={"type": "array", "items": _TEXT, "minItems": 1},
    server=_TEXT,
    auth={"type": "object"},
    max_bytes={"type": "integer", "minimum": 1, "maximum": 10_000_000, "default": RESPONSE_BYTES},
    timeout_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 300},
    methods={"type": "array", "items": {"enum": list(METHODS)}},
)

DESCRIPTION = (
    "Calls one operation of an HTTP service. `operation` is the operation id; `parameters` are its path, query and "
    "header parameters by name; `body` is its JSON body. Call it with `describe: true` to read the schema of an "
    "operation first."
)


class Operation(NamedTuple):
    """One operation of a document, with its references resolved."""

    id: str
    method: str
    path: str
    summary: str
    parameters: tuple[dict[str, Any], ...]
    body: Any
    """JSON Schema of the body; None if it takes none."""
    body_required: bool

    def schema(self) -> dict[str, Any]:
        """The schema of `parameters` and `body` together."""
        named = {each["name"]: each.get("schema", True) for each in self.parameters}
        required = [each["name"] for each in self.parameters if each.get("required") or each["in"] == "path"]
        properties: dict[str, Any] = {"parameters": object_schema(tuple(required)) | {"properties": named}}
        if self.body is not None:
            properties["body"] = self.body
        needed = [*(["parameters"] if required else []), *(["body"] if self.body_required else [])]
        return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


# Read a document.


class _References:
    """Resolves local references of one operation; number, size and depth are bounded, because references multiply."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document, self._left, self._size_left = document, REFERENCES_MAX, SCHEMA_BYTES_MAX

    def resolved(self, value: Any, seen: tuple[str, ...] = (), depth: int = 0) -> Any:
        self._charge(len(value) if isinstance(value, str) else 1)
        if depth > DEPTH_MAX:
            raise Fail("openapi_invalid", f"an operation is nested more than {DEPTH_MAX} levels deep")
        if isinstance(value, list):
            return [self.resolved(each, seen, depth + 1) for each in value]
        if not isinstance(value, dict):
            return value
        reference = value.get("$ref")
        if not isinstance(reference, str):
            self._charge(sum(map(len, value)))
            return _modern({key: self.resolved(each, seen, depth + 1) for key, each in value.items()})
        self._left -= 1
        if self._left < 0:
            raise Fail("openapi_invalid", f"an operation has more than {REFERENCES_MAX} references")
        if reference in seen:
            # A schema that contains itself: its inner part is not checked.
            return True
        return self.resolved(self._target(reference), (*seen, reference), depth + 1)

    def _charge(self, size: int) -> None:
        self._size_left -= size
        if self._size_left < 0:
            raise Fail("openapi_invalid", f"an operation has more than {SCHEMA_BYTES_MAX} bytes with its references")

    def _target(self, reference: str) -> Any:
        if not reference.startswith("#/"):
            raise Fail("openapi_invalid", f"a reference to {shorten(reference)}: only the document itself is read")
        found: Any = self._document
        for step in reference[2:].split("/"):
            key = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or key not in found:
                raise Fail("openapi_invalid", f"there is nothing at {shorten(reference)}")
            found = found[key]
        return found


def _modern(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema of OpenAPI 3.0 as one of JSON Schema, where the two differ."""
    if schema.get("nullable") is True and isinstance(schema.get("type"), str):
        schema = {**schema, "type": [schema["type"], "null"]}
    for exclusive, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(schema.get(exclusive), bool):
            strict = schema[exclusive]
            schema = {key: value for key, value in schema.items() if key != exclusive}
            if strict and bound in schema:
                schema[exclusive] = schema.pop(bound)
    return schema


class Place(NamedTuple):
    """Where an operation stands in a document."""

    method: str
    path: str


def find_operations(document: Any, wanted: list[str], methods: list[str] | None = None) -> dict[str, Place]:
    """The places of the selected operations by id. Raises `Fail` for a document that cannot be used."""
    if not isinstance(document, dict) or not str(document.get("openapi", "")).startswith("3."):
        raise Fail("openapi_invalid", "this is not an OpenAPI 3 document", hint="a field `openapi` begins with 3.")
    found: dict[str, Place] = {}
    for path, item in _items(document.get("paths")):
        for method in METHODS:
            given = item.get(method)
            if not isinstance(given, dict) or (methods is not None and method not in methods):
                continue
            name = _name(given, method, path)
            if not any(fnmatchcase(name, each) for each in wanted):
                continue
            if len(found) >= OPERATIONS_MAX:
                raise Fail("openapi_invalid", f"more than {OPERATIONS_MAX} operations are selected")
            found[name] = Place(method, path)
    if not found:
        raise Fail("openapi_invalid", f"the document has no operation {listing(wanted)}")
    return found


def _items(paths: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, item in paths.items() if isinstance(paths, dict) else ():
        if isinstance(path, str) and path.startswith("/") and isinstance(item, dict):
            yield path, item


def _name(operation: Mapping[str, Any], method: str, path: str) -> str:
    given = operation.get("operationId")
    return given if isinstance(given, str) and given else f"{method} {path}"


def read_operation(document: Mapping[str, Any], place: Place) -> Operation:
    """An operation that was found, with its references resolved. Raises `Fail` if it cannot be used."""
    method, path = place
    item, references = document["paths"][path], _References(document)
    given = item[method]
    name = _name(given, method, path)
    lists = (each.get("parameters") for each in (item, given))
    listed = [parameter for each in lists if isinstance(each, list) for parameter in each]
    parameters: dict[tuple[str, str], dict[str, Any]] = {}
    for each in references.resolved(listed):
        named = isinstance(each, dict) and isinstance(each.get("name"), str)
        if named and each.get("in") in ("path", "query", "header"):
            parameters[each["in"], each["name"]] = each
    # A parameter of the operation replaces the path's; with one name in two places, the later place counts.
    by_name = {each["name"]: each for each in parameters.values()}
    body = references.resolved(given.get("requestBody")) or {}
    content = body.get("content") if isinstance(body, dict) else None
    content = content if isinstance(content, dict) else {}
    media = next((each for kind, each in content.items() if kind.split(";")[0].endswith("json")), None)
    schema = media.get("schema", True) if isinstance(media, dict) else None
    operation = Operation(
        name,
        method,
        path,
        str(given.get("summary") or given.get("description") or "")[:500],
        tuple(by_name.values()),
        schema,
        bool(body.get("required")) if schema is not None else False,
    )
    for problem in check_schema(operation.schema()):
        raise Fail("openapi_invalid", f"the schema of {name} cannot be used: {problem.sentence}")
    return operation


def origin_of(document: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The base URL of all calls: `server` of the config, or the document's first server."""
    servers = document.get("servers")
    first = servers[0].get("url") if isinstance(servers, list) and servers and isinstance(servers[0], dict) else ""
    source = settings["document"] if isinstance(settings["document"], str) else ""
    base = str(settings.get("server") or first or "")
    base = urljoin(source, base) if source.startswith(("http://", "https://")) else base
    if urlsplit(base).scheme not in ("http", "https") or not urlsplit(base).netloc:
        message = "the document names no server with an address"
        raise Fail("openapi_invalid", message, hint="write server: https://api.example.com")
    return base.rstrip("/")


def settings_problems(settings: dict[str, Any], path: str) -> Iterator[Problem]:
    """Credentials need an origin that the author has written: a fetched document could name another."""
    if "auth" in settings and "server" not in settings:
        message = "credentials are bound to an origin, and the config names none"
        yield Problem(code="config_invalid", message=message, path=f"{path}/auth", hint="write `server`, too")
    document = settings["document"]
    if isinstance(document, str) and not document.startswith(("http://", "https://", "sha256:")):
        message = "the document is a URL, the digest of a blob, or the document itself"
        yield Problem(code="config_invalid", message=message, path=f"{path}/document")


# The tool.


def openapi_source(http: Handler) -> ToolSource:
    async def make(allowance: Allowance, context: NodeContext) -> tuple[Tool, ...]:
        return (_tool(allowance, http),)

    return ToolSource("openapi_action", make, SETTINGS_SCHEMA, settings_problems, templated=("auth",))


def _tool(allowance: Allowance, http: Handler) -> Tool:
    settings = allowance.settings
    known: dict[str, Any] = {}

    async def place_of(context: ToolContext, arguments: dict[str, Any]) -> Place | None:
        if not known:
            document = await _document(settings["document"], context, http)
            places = await asyncio.to_thread(find_operations, document, settings["operations"], settings.get("methods"))
            known.update(document=document, places=places, origin=origin_of(document, settings))
        place: Place | None = known["places"].get(arguments["operation"])
        return place

    async def destroys(context: ToolContext, arguments: dict[str, Any]) -> bool:
        try:
            place = await place_of(context, arguments)
        except (Fail, Rejected):
            # The call itself tells why.
            return False
        return place is not None and place.method == "delete" and not arguments.get("describe")

    async def call(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        place = await place_of(context, arguments)
        if place is None:
            message = f"there is no operation {shorten(arguments['operation'], 80)} for you"
            return error_result("operation_not_allowed", message, hint=f"you have {listing(known['places'])}")
        # The document may be an answer of a server, so nothing in proportion to it is done on the event loop.
        operation = await asyncio.to_thread(read_operation, known["document"], place)
        if arguments.get("describe"):
            return ToolResult(content={"summary": operation.summary, "arguments": operation.schema()})
        given: dict[str, Any] = {key: arguments[key] for key in ("parameters", "body") if key in arguments}
        schema = await asyncio.to_thread(compile_schema, operation.schema())
        if problems := schema.problems(given):
            return problems_result("arguments_invalid", f"the arguments do not fit {operation.id}", problems)
        return await _call(operation, known["origin"], given, settings, context, http)

    names = [each for each in settings["operations"] if not re.search(r"[*?\[]", each)]
    exact = len(names) == len(settings["operations"])
    parameters = object_schema(
        ("operation",),
        operation={"enum": names} if exact else {"type": "string", "minLength": 1},
        parameters={"type": "object"},
        body={},
        describe={"type": "boolean"},
    )
    reads = settings.get("methods") is not None and READING.issuperset(settings["methods"])
    return Tool(
        name="openapi_action",
        description=DESCRIPTION,
        parameters=parameters,
        call=call,
        effect=Effect(read_only=reads, open_world=True),
        destroys=destroys,
    )


async def _document(given: Any, context: ToolContext, http: Handler) -> Any:
    if not isinstance(given, str):
        return given
    if given.startswith("sha256:"):
        return await context.port.read_blob(given)
    config = {"url": given, "parse": "json", "max_bytes": DOCUMENT_BYTES_MAX}
    return (await request(http, context, config, "document"))["body"]


async def _call(
    operation: Operation,
    origin: str,
    given: Mapping[str, Any],
    settings: Mapping[str, Any],
    context: ToolContext,
    http: Handler,
) -> ToolResult:
    values, path = given.get("parameters", {}), operation.path
    query: list[tuple[str, str]] = []
    headers: dict[str, str] = {}
    for parameter in operation.parameters:
        name, place = parameter["name"], parameter["in"]
        if name not in values:
            continue
        texts = [_text(each) for each in (values[name] if isinstance(values[name], list) else [values[name]])]
        if place == "path":
            text = quote(",".join(texts), safe="")
            if text in (".", "..", ""):
                return error_result("arguments_invalid", f"{name} cannot be part of a path")
            path = path.replace("{" + name + "}", text)
        elif place == "query":
            query += [(name, text) for text in texts]
        elif name.lower() not in ("authorization", "cookie", "host", "proxy-authorization"):
            headers[name] = ",".join(texts)
    url = f"{origin}{path}" + (f"?{urlencode(query)}" if query else "")
    config: dict[str, Any] = {
        "url": url,
        "method": operation.method.upper(),
        "headers": headers,
        "max_bytes": settings.get("max_bytes", RESPONSE_BYTES),
        # The answer of the service must not lead the call to another address.
        "max_redirects": 0,
        "expect": ["2xx", "4xx"],
    }
    if "body" in given:
        config["body"] = {"json": given["body"]}
    if "auth" in settings:
        config["auth"] = settings["auth"]
    if "timeout_seconds" in settings:
        config["timeout_seconds"] = settings["timeout_seconds"]
    answer = await request(http, context, config, operation.id)
    content = {"status": answer["status"], "body": answer["body"]}
    if answer["status"] >= 400:
        return ToolResult(content={"error": {"code": "http_status", **content}}, error="http_status")
    return ToolResult(content=content)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


async def request(http: Handler, context: ToolContext, config: dict[str, Any], what: str) -> dict[str, Any]:
    """Call the handler of `http` nodes: the same egress guard, limits and masking. Raises `Fail`."""
    if "max_bytes" in config:
        # The operator may allow less.
        most = http.type.config_schema["properties"]["max_bytes"]["maximum"]
        config = {**config, "max_bytes": min(config["max_bytes"], most)}
    schema = compile_schema(http.type.config_schema)
    for problem in schema.problems(config):
        raise Fail("config_invalid", f"{shorten(what, 80)}: {problem.sentence}", hint=problem.hint)
    answer: dict[str, Any] = await call_handler(http, context, config)
    body = answer["body"]
    if isinstance(body, Blob):
        answer["body"] = {"binary": body.media_type, "bytes": len(body.data) if isinstance(body.data, bytes) else None}
    return answer
