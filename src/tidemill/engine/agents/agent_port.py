"""The engine's side of the port of agents' tools: bound to one run, node and tenant, and to nothing else.

Every change is made by the services that people use too, with the agent as its actor. Keys are hashed, because a run
id and a command id are shorter than the place of a call.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import msgspec

from tidemill.agents.port import (
    AgentDocument,
    CompositeTool,
    Draft,
    Found,
    Kind,
    PatchResult,
    Scope,
    Stored,
    WorkflowInfo,
)
from tidemill.agents.promotion import lifted, parts_of
from tidemill.agents.tools import allowances, preview_of, tool_names
from tidemill.blobs.contract import files_in, is_digest
from tidemill.blobs.payloads import decode_value
from tidemill.engine.agents.composite_tools import TOOLS_MAX, CompositeToolService
from tidemill.engine.attempts.rendering import encoded
from tidemill.engine.services.context import ServiceContext, command_name
from tidemill.engine.services.patches import PatchOutcome
from tidemill.engine.services.tenant_services import TenantServices
from tidemill.engine.validation import LABEL_LENGTH_MAX
from tidemill.errors import rejected
from tidemill.expressions.limits import json_excess
from tidemill.handlers.contract import Reader
from tidemill.handlers.data.search import rank
from tidemill.kernel.commands import Patch
from tidemill.kernel.document.json_patch import apply_patch
from tidemill.kernel.state import State
from tidemill.security.masking import Mask

BLOB_BYTES_MAX = 1 << 26
FILES_MAX = 20
WORKFLOWS_MAX = 1_000
"""Workflows that a search looks through, the last changed first."""
STARTED_BY = "started_by"
"""The label of a run that an agent has started: the run of the agent."""
STARTED_DEPTH = "started_depth"
STARTED_DEPTH_MAX = 4
"""How far agents may start runs of agents that start runs: each has only its own limits."""


def brief(key: str) -> str:
    """A short name of a call, the same for each of its tries."""
    return sha256(key.encode()).hexdigest()[:32]


class EngineAgentPort:
    """What the tools of one attempt may ask of the engine."""

    def __init__(
        self,
        services: TenantServices,
        run_id: str,
        node: str,
        mask: Callable[[], Mask],
        read: Reader | None = None,
    ) -> None:
        self._services, self._run_id, self._node, self._mask = services, run_id, node, mask
        self._read = read
        """Reads the blobs that the run knows; a digest that a model was told must not give it those of others."""
        self._made: set[str] = set()
        """Blobs that the tools of this attempt have stored."""
        self._context: ServiceContext = services.context
        self._tools = CompositeToolService(services.context)

    @property
    def _actor(self) -> str:
        return f"agent:{self._node}"

    # Patches

    async def document(self, scope: Scope) -> AgentDocument:
        shown = await self._services.patches.document(self._run_id)
        if scope == "run":
            return AgentDocument(
                document=shown.document, digest=shown.digest, workflow=shown.workflow, version=shown.version
            )
        context = self._context
        newest = await context.catalog.resolve(context.tenant, shown.workflow)
        document = await context.catalog.document(context.tenant, newest)
        return AgentDocument(document=document, digest=newest.digest, workflow=newest.name, version=newest.version)

    async def draft(self, operations: list[dict[str, Any]], *, scope: Scope) -> Draft:
        context, shown = self._context, await self.document(scope)
        before = await context.catalog.compile(context.tenant, shown.document)
        after = await context.catalog.compile(context.tenant, apply_patch(shown.document, operations))
        old, new = _nodes(before.document), _nodes(after.document)
        original = frozenset(old)
        if scope == "run":
            outcome = await self._services.patches.patch(
                self._run_id, operations, base_digest=shown.digest, dry_run=True, actor=self._actor
            )
            result = _result(outcome)
            version = await context.catalog.version(context.tenant, shown.workflow, shown.version)
            original = frozenset(_nodes(await context.catalog.document(context.tenant, version)))
        else:
            result = PatchResult(
                applied=False,
                digest=after.workflow.digest,
                added=tuple(name for name in new if name not in old),
                removed=tuple(name for name in old if name not in new),
                changed=tuple(name for name in new if name in old and new[name] != old[name]),
                warnings=after.warnings,
            )
        return Draft(
            base_digest=shown.digest,
            before=before.workflow,
            after=after.workflow,
            before_document=before.document,
            after_document=after.document,
            result=result,
            original_nodes=original,
        )

    async def patched(self, key: str, *, scope: Scope) -> PatchResult | None:
        context = self._context
        state = (await context.entry(self._run_id)).state
        if scope == "run":
            if state.commands.get(command_name(Patch, brief(key))) is None:
                return None
            return _result(await self._services.patches.patch(self._run_id, [], command_id=brief(key)))
        author = f"{self._actor}#{brief(key)}"
        for version in reversed(await context.catalog.versions(context.tenant, state.workflow)):
            if version.author in (author, author + self._run_mark):
                return PatchResult(applied=True, digest=version.digest, version=version.version)
        return None

    async def patch(
        self,
        operations: list[dict[str, Any]],
        *,
        scope: Scope,
        base_digest: str,
        key: str,
        message: str = "",
        tag: str = "",
        versions_max: int | None = None,
    ) -> PatchResult:
        if scope == "run":
            outcome = await self._services.patches.patch(
                self._run_id,
                operations,
                base_digest=base_digest,
                message=message,
                actor=self._actor,
                command_id=brief(key),
            )
            return _result(outcome)
        context = self._context
        done = await self.patched(key, scope=scope)
        if done is None:
            name = (await context.entry(self._run_id)).state.workflow
            if versions_max is not None:
                await self._check_versions(name, versions_max)
            published = await context.catalog.patch(
                context.tenant,
                name,
                operations,
                base_digest=base_digest,
                author=f"{self._actor}#{brief(key)}{self._run_mark}",
                message=message,
                audited=context.audited,
            )
            done = PatchResult(applied=True, digest=published.digest, version=published.version)
            if tag:
                await context.catalog.tag(
                    context.tenant, name, tag, published.version, actor=self._actor, audited=context.audited
                )
                done = msgspec.structs.replace(done, tag=tag)
        return done

    async def _check_versions(self, name: str, most: int) -> None:
        """Refuse to publish without end: a model that never finds its work good would do so."""
        context = self._context
        versions = await context.catalog.versions(context.tenant, name)
        made = sum(version.author.endswith(self._run_mark) for version in versions)
        if made >= most:
            message = f"this agent has published {made} versions of {name} in this run, at most {most} are allowed"
            raise rejected("versions_exhausted", message, hint="finish with the version that you have")

    @property
    def _run_mark(self) -> str:
        """The end of the author of a version: in which run the node has published it."""
        return f"@{brief(f'{self._run_id}/{self._node}')}"

    # Workflows and tools

    async def find(self, query: str, *, kinds: tuple[Kind, ...], limit: int) -> tuple[Found, ...]:
        context, found = self._context, list[Found]()
        words: list[dict[str, str]] = []
        if "workflow" in kinds:
            rows, _ = await context.catalog.find(context.tenant, limit=WORKFLOWS_MAX)
            for row in rows:
                found.append(Found(kind="workflow", name=row.name, version=row.version, description=row.description))
                words.append({"name": row.name.replace("-", " "), "text": row.description})
        if "composite" in kinds:
            for tool in await self._tools.find(limit=TOOLS_MAX):
                fields: dict[str, Any] = {"description": tool.description, "parameters": tool.parameters}
                found.append(Found(kind="composite", name=tool.name, version=tool.version, **fields))
                words.append({"name": tool.name.replace("-", " "), "text": " ".join(parts_of(tool))})
        hits = rank(words, query, {"name": 3.0})[:limit]
        return tuple([await self._with_inputs(found[hit.number], hit.score) for hit in hits])

    async def _with_inputs(self, found: Found, score: float) -> Found:
        parameters = found.parameters
        if found.kind == "workflow":
            parameters = (await self.workflow(found.name)).inputs
        return msgspec.structs.replace(found, parameters=parameters, score=score)

    async def workflow(self, reference: str) -> WorkflowInfo:
        context = self._context
        version = await context.catalog.resolve(context.tenant, reference)
        flow = (await context.catalog.flow(context.tenant, version.digest)).workflow
        agents = [node.config for node in flow.nodes if node.type.partition("@")[0] == "agent"]
        tools = frozenset(name for config in agents if isinstance(config, dict) for name in _tools_of(config))
        return WorkflowInfo(name=version.name, version=version.version, inputs=flow.inputs, tools=tools)

    async def publish_built_in(self, document: dict[str, Any]) -> str:
        context = self._context
        published = await context.catalog.publish(
            context.tenant, document, author=self._actor, message="built-in agent", audited=context.audited
        )
        return f"{published.name}@{published.version}"

    async def start_run(self, workflow: str, inputs: Any, *, key: str) -> str:
        await self.check_files(inputs)
        # The person who answers for this run answers for that one: four eyes exclude the same person there.
        state = (await self._context.entry(self._run_id)).state
        depth = await self._depth(state) + 1
        if depth > STARTED_DEPTH_MAX:
            message = f"agents have started this run through {STARTED_DEPTH_MAX} others already"
            raise rejected("child_too_deep", message, hint="does a workflow start itself?")
        return await self._services.runs.start(
            workflow,
            inputs,
            key=f"agent-{brief(key)}",
            labels={STARTED_BY: self._run_id[:LABEL_LENGTH_MAX], STARTED_DEPTH: str(depth)},
            submitted_by=state.submitted_by or self._actor,
            correlation_id=state.correlation_id,
        )

    async def _depth(self, state: State) -> int:
        """Through how many runs that agents have started this one was reached."""
        root = (await self._context.entry(state.root)).state if state.root else state
        said = root.labels.get(STARTED_DEPTH, "0")
        return int(said) if said.isdecimal() and len(said) < 10 else 0

    # Values

    async def put_blob(self, value: Any, *, name: str = "") -> Stored:
        # What a service answers may repeat a secret that it was sent.
        body = encoded(value, self._mask())
        reference = await self._services.blobs.put(body, media_type="application/json", name=name, actor=self._actor)
        self._made.add(reference["$blob"])
        return Stored(reference=reference, preview=preview_of(decode_value(body)))

    def masked(self, value: Any) -> Any:
        mask = self._mask()
        return mask.value(value) if mask else value

    async def read_blob(self, reference: Any) -> Any:
        digest = reference.get("$blob") if isinstance(reference, dict) else reference
        if not is_digest(digest):
            hint = 'pass {"$blob": "sha256:…"} as a result has it'
            raise rejected("blob_invalid", "this does not describe a blob", hint=hint)
        if self._read is None and digest not in self._made:
            raise rejected("blob_unknown", f"there is no blob {digest}", hint="pass a reference of a result")
        info = await self._services.blobs.show(digest)
        if info.size > BLOB_BYTES_MAX:
            message = f"the blob has {info.size} bytes, and {BLOB_BYTES_MAX} can be read at once"
            raise rejected("blob_too_large", message)
        if digest in self._made or self._read is None:
            body = await self._context.blobs.get(self._context.tenant, digest)
        else:
            body = await self._read(digest)
        if excess := json_excess(body):
            raise rejected("blob_too_large", f"the blob cannot be read: {excess}", hint="store it in parts")
        try:
            return decode_value(body)
        except (msgspec.DecodeError, RecursionError, ValueError):
            raise rejected("blob_invalid", "the blob is not JSON") from None

    async def check_files(self, value: Any) -> None:
        digests = files_in(encoded(value, self._mask()))
        if len(digests) > FILES_MAX:
            raise rejected("blob_unknown", f"a call passes on at most {FILES_MAX} references")
        for digest in digests:
            if digest in self._made:
                continue
            if self._read is None:
                raise rejected("blob_unknown", f"there is no blob {digest}", hint="pass a reference of a result")
            await self._read(digest)

    # Composite tools

    async def composite(self, name: str) -> CompositeTool | None:
        return await self._tools.get(name)

    async def record_pipeline(self, pipeline: list[dict[str, Any]], *, key: str) -> CompositeTool | None:
        use = lifted(pipeline)
        return None if use is None else await self._tools.used(use, brief(key))


def _nodes(document: Any) -> dict[str, Any]:
    return {node["id"]: node for node in document["nodes"]}


def _result(outcome: PatchOutcome) -> PatchResult:
    names = ("applied", "digest", "added", "removed", "changed", "rerun", "warnings")
    return PatchResult(**{name: getattr(outcome, name) for name in names})


def _tools_of(config: dict[str, Any]) -> set[str]:
    """The tools of an agent, with those that it grants to agents it delegates to."""
    listed = config.get("tools", ())
    agents = (agent for each in allowances(listed) for agent in each.settings.get("agents", {}).values())
    return tool_names(listed).union(*(agent.get("tools", ()) for agent in agents))
