"""Tools of MCP servers for agents. The operator grants a server and approves its tools; a document only chooses.

An approval is the digest of all that a tool says about itself: name, description, schemas, annotations. A server that
says something else than what was approved is refused before the model reads it. Results are data of a stranger: they
are bounded, checked against the approved output schema, and masked.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from tidemill.agents.tools import Allowance, Effect, Ended, Tool, ToolContext, ToolResult, ToolSource, error_result
from tidemill.errors import CONFIG_FILE, Problem, offered
from tidemill.expressions.errors import shorten
from tidemill.expressions.schema import check_schema, compile_schema
from tidemill.handlers.contract import CapabilityMissing, Fail, NodeContext, object_schema
from tidemill.net.egress import Egress
from tidemill.security.grants import MCP_NAME, McpServerGrant
from tidemill.security.masking import Mask
from tidemill.security.secrets import Secrets

if TYPE_CHECKING:
    from mcp.client.session import ClientSession

    from tidemill.agents.mcp.mcp_connection import Connection

INHERITED = ("PATH", "HOME", "LANG", "TZ", "TMPDIR")
"""Environment variables of the worker that a server's program gets."""
DEFINITION_BYTES_MAX = 32_768
TOOLS_MAX, PAGES_MAX = 500, 20
NAME_MAX = 64
_SECRET = re.compile(r"\{\{\s*secrets\.([A-Za-z_][A-Za-z0-9_-]{0,127})\s*\}\}")
_TEXT = {"type": "string", "minLength": 1}
_SETTINGS = object_schema(
    ("server",), server=_TEXT, tools={"type": "array", "items": _TEXT, "minItems": 1, "uniqueItems": True}
)
_ENCODER = msgspec.json.Encoder(order="sorted")


class Definition(NamedTuple):
    """A tool as its server describes it."""

    name: str
    description: str
    parameters: dict[str, Any]
    output: dict[str, Any] | None
    annotations: dict[str, Any]
    digest: str

    @property
    def effect(self) -> Effect:
        """What the annotations say; without them a tool counts as destructive, as the protocol has it."""
        reads = self.annotations.get("readOnlyHint") is True
        return Effect(
            read_only=reads,
            destructive=not reads and self.annotations.get("destructiveHint") is not False,
            idempotent=self.annotations.get("idempotentHint") is True,
            open_world=True,
        )


def definition_of(tool: Mapping[str, Any]) -> Definition:
    """Read a tool of a listing, and digest all that a model or a policy goes by."""
    parts = {
        key: tool.get(key) for key in ("name", "title", "description", "inputSchema", "outputSchema", "annotations")
    }
    text = _ENCODER.encode(parts)
    return Definition(
        str(tool["name"]),
        str(tool.get("description") or tool.get("title") or ""),
        tool.get("inputSchema") or {"type": "object"},
        tool.get("outputSchema"),
        tool.get("annotations") or {},
        "sha256:" + hashlib.sha256(text).hexdigest() if len(text) <= DEFINITION_BYTES_MAX else "",
    )


class McpServer:
    """One server as the operator has granted it."""

    def __init__(self, name: str, grant: McpServerGrant, egress: Egress, secrets: Secrets) -> None:
        self.name, self.grant = name, grant
        self._egress, self._secrets = egress, secrets
        self._connection: Connection | None = None
        self.mask = Mask()
        """Over the secrets that this server was given."""

    async def definitions(self) -> dict[str, Definition]:
        """What the server offers now."""
        return await self._connected().request(_list_tools)

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer of a tool as the protocol has it. Raises `Fail`."""

        async def ask(session: ClientSession) -> dict[str, Any]:
            from mcp_types import CallToolRequest, CallToolRequestParams

            from tidemill.agents.mcp.mcp_connection import Answer

            # The SDK would check the result with a library whose regular expressions a server could make hang.
            request = CallToolRequest(params=CallToolRequestParams(name=name, arguments=arguments))
            return (await session.send_request(request, Answer)).model_dump()

        return await self._connected().request(ask)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    def _connected(self) -> Connection:
        if self._connection is None:
            try:
                from tidemill.agents.mcp.mcp_connection import Channel, Connection, HttpChannel, ProgramChannel
            except ImportError:
                hint = 'install "tidemill[mcp]" where the workers run'
                raise CapabilityMissing("mcp_missing", "MCP needs a package that is not installed", hint=hint) from None

            def channel() -> Channel:
                grant = self.grant
                if grant.url:
                    return HttpChannel(grant.url, self._filled(grant.headers), self._egress, grant.max_bytes)
                inherited = {key: os.environ[key] for key in INHERITED if key in os.environ}
                return ProgramChannel(grant.command, inherited | self._filled(grant.env), grant.cwd, grant.max_bytes)

            self._connection = Connection(self.name, channel, self.grant.timeout_seconds)
        return self._connection

    def _filled(self, values: Mapping[str, str]) -> dict[str, str]:
        """Variables or headers with the secrets that they name."""
        known: dict[str, str] = {}

        def value(match: re.Match[str]) -> str:
            found = self._secrets.get(match[1])
            if found is None:
                message = f"there is no secret {match[1]}"
                hint = f"set TIDEMILL_SECRET_{match[1]} for the workers"
                raise Fail("mcp_server_unavailable", message, hint=hint)
            known[match[1]] = found
            return found

        filled = {key: _SECRET.sub(value, text) for key, text in values.items()}
        self.mask = Mask(known.values())
        return filled


async def _list_tools(session: ClientSession) -> dict[str, Definition]:
    from mcp_types import PaginatedRequestParams

    found: dict[str, Definition] = {}
    cursor: str | None = None
    for _ in range(PAGES_MAX):
        page = await session.list_tools(params=PaginatedRequestParams(cursor=cursor))
        for tool in page.tools:
            definition = definition_of(tool.model_dump(mode="json", by_alias=True, exclude_none=True))
            if definition.name in found:
                raise Fail("mcp_protocol_error", f"the server lists {shorten(definition.name, 80)} twice")
            found[definition.name] = definition
        cursor = page.next_cursor
        if cursor is None or len(found) > TOOLS_MAX:
            break
    if cursor is not None or len(found) > TOOLS_MAX:
        raise Fail("mcp_protocol_error", f"the server lists more than {TOOLS_MAX} tools, or never ends its list")
    return found


class McpServers:
    """The servers of a process; connections are opened with the first use."""

    def __init__(self, grants: Mapping[str, McpServerGrant], egress: Egress, secrets: Secrets) -> None:
        self._servers = {name: McpServer(name, grant, egress, secrets) for name, grant in grants.items()}

    def get(self, name: str) -> McpServer:
        server = self._servers.get(name)
        if server is None:
            message = f"the operator has granted no MCP server {shorten(name, 80)}"
            hint = f"the operator writes [mcp.{shorten(name, 40)}] in {CONFIG_FILE}; " + (
                offered(name, self._servers) if self._servers else "there is none yet"
            )
            raise CapabilityMissing("mcp_server_unknown", message, hint=hint)
        return server

    async def close(self) -> None:
        for server in self._servers.values():
            await server.close()


def approved(server: McpServer, definitions: Mapping[str, Definition], wanted: list[str] | None) -> list[Definition]:
    """The wanted tools, if the server describes them as the operator has approved them. Raises `Fail`."""
    pins = server.grant.tools
    command = f"`tidemill tools mcp {server.name}` shows them, and with --approve what the operator writes"
    unknown = [name for name in wanted or () if name not in pins]
    if unknown or not pins:
        message = f"the operator has not approved {', '.join(unknown) or 'any tool'} of the MCP server {server.name}"
        raise Fail("mcp_tool_not_approved", message, hint=command)
    found, changed = [], []
    for name in wanted or pins:
        definition = definitions.get(name)
        if definition is None:
            message = f"the MCP server {server.name} has no tool {name} any more"
            raise Fail("mcp_tool_missing", message, hint=f"it has {', '.join(sorted(definitions)[:20]) or 'none'}")
        if definition.digest != pins[name]:
            now = definition.digest or f"a description of more than {DEFINITION_BYTES_MAX:,} bytes"
            changed.append(f"{name} is {now}, approved was {pins[name]}")
        found.append(definition)
    if changed:
        message = f"the MCP server {server.name} describes tools differently than approved: {'; '.join(changed)}"
        raise Fail("mcp_tool_changed", message, hint=f"compare, then approve again: {command}")
    return found


def survey(server: McpServer, definitions: Mapping[str, Definition]) -> list[dict[str, str]]:
    """What the operator sees of a server: every tool, whether it is approved, and what it does."""
    pins, rows = server.grant.tools, []
    for name, definition in sorted(definitions.items()):
        pin = pins.get(name)
        state = "new" if pin is None else "approved" if pin == definition.digest else "changed"
        effect = definition.effect
        does = "reads" if effect.read_only else "destroys" if effect.destructive else "writes"
        described = shorten(" ".join(definition.description.split()), 200)
        rows.append(
            {"tool": name, "state": state, "effect": does, "digest": definition.digest, "description": described}
        )
    gone = ({"tool": name, "state": "gone", "effect": "", "digest": pins[name], "description": ""} for name in pins)
    return rows + [row for row in gone if row["tool"] not in definitions]


def mcp_source(servers: McpServers) -> ToolSource:
    async def make(allowance: Allowance, context: NodeContext) -> tuple[Tool, ...]:
        server = servers.get(allowance.settings["server"])
        definitions = approved(server, await server.definitions(), allowance.settings.get("tools"))
        return tuple(_tool(server, definition) for definition in definitions)

    return ToolSource("mcp", make, _SETTINGS, _check)


def _check(settings: dict[str, Any], path: str) -> Iterator[Problem]:
    if not MCP_NAME.fullmatch(settings["server"]):
        message = f"{shorten(settings['server'], 80)} is not the name of an MCP server"
        hint = f"name a table [mcp.NAME] of the operator's {CONFIG_FILE}; a document starts no server itself"
        yield Problem(code="mcp_server_unknown", message=message, path=f"{path}/server", hint=hint)


def shown_name(server: str, tool: str) -> str:
    """The name for the model: that of the server and the tool, as every provider accepts it."""
    name = f"{server}__" + re.sub(r"[^A-Za-z0-9_-]", "_", tool)
    if len(name) <= NAME_MAX and name == f"{server}__{tool}":
        return name
    return f"{name[: NAME_MAX - 9]}_{hashlib.sha256(tool.encode()).hexdigest()[:8]}"


def _tool(server: McpServer, definition: Definition) -> Tool:
    if definition.output is not None and (problems := check_schema(definition.output)):
        message = f"the output schema of {definition.name} is not a JSON Schema: {problems[0].sentence}"
        raise Fail("mcp_tool_invalid", f"MCP server {server.name}: {message}", hint="its author must correct it")

    async def call(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        result = read_answer(definition, await server.call(definition.name, arguments))
        return msgspec.structs.replace(result, content=server.mask.value(result.content))

    return Tool(
        name=shown_name(server.name, definition.name),
        description=definition.description,
        parameters=definition.parameters,
        call=call,
        effect=definition.effect,
    )


def read_answer(definition: Definition, answer: Mapping[str, Any]) -> ToolResult:
    """What a model gets of an answer: its structured content, else its text; other content is only described."""
    if answer.get("resultType", "complete") != "complete":
        message = f"{definition.name} asks for {shorten(str(answer['resultType']), 40)}, which an agent cannot give"
        return error_result("mcp_input_required", message, hint="use a tool that needs no more input")
    shown = [_shown(part) for part in answer.get("content") or ()]
    texts = [part for part in shown if isinstance(part, str)]
    if answer.get("isError"):
        return error_result("mcp_tool_failed", "\n".join(texts) or f"{definition.name} failed and says nothing")
    structured = answer.get("structuredContent")
    if definition.output is not None:
        problems = compile_schema(definition.output).problems(structured)
        if problems:
            message = f"the result of {definition.name} does not fit its own schema: {problems[0].sentence}"
            return error_result("mcp_result_invalid", message, unknown_outcome=not definition.effect.repeatable)
    if structured is not None:
        return ToolResult(content=structured)
    return ToolResult(content="\n".join(texts) if len(texts) == len(shown) else shown)


def _shown(part: Mapping[str, Any]) -> Any:
    kind = part.get("type")
    if kind == "text":
        return str(part.get("text", ""))
    if kind == "resource" and isinstance(part.get("resource"), dict) and "text" in part["resource"]:
        return str(part["resource"]["text"])
    data = part.get("data") or (part.get("resource") or {}).get("blob") or ""
    described = {"type": kind, "media_type": part.get("mimeType"), "name": part.get("name"), "uri": part.get("uri")}
    size = {"bytes": len(data) * 3 // 4, "left_out": True} if data else {}
    return {key: value for key, value in described.items() if value is not None} | size
