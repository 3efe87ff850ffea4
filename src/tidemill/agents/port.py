"""The port through which the tools of an agent reach the engine, and the values that pass it.

`context.port` of an agent's attempt is an `AgentPort`; the engine implements it for the run and the tenant of that
attempt, so that no argument of a model can name another tenant. Methods raise `Rejected` for what the engine refuses.
Whatever a tool must wait for (a child run, a person) is no method here: the tool returns `Pending` with a `Wait`.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.model import Workflow

Scope = Literal["run", "workflow"]
"""What a patch changes: this run only, or the workflow as a new version."""

Kind = Literal["workflow", "composite", "function"]
"""What `find` finds: published workflows, promoted pipelines, registered tools."""


class AgentDocument(msgspec.Struct, frozen=True, kw_only=True):
    """The document that a patch is made against."""

    document: Any
    digest: str
    workflow: str
    version: int


class PatchResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a patch has changed, or would change if it is not `applied`."""

    applied: bool
    digest: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    rerun: tuple[str, ...] = ()
    warnings: tuple[Problem, ...] = ()
    version: int | None = None
    """The version that a patch of the workflow has made."""
    tag: str = ""
    """The tag that now names this version; empty if none was moved."""


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A patch that compiles and that the run could take; nothing has changed."""

    base_digest: str
    before: Workflow
    after: Workflow
    before_document: Any
    after_document: Any
    result: PatchResult
    original_nodes: frozenset[str] = frozenset()
    """The nodes of the version that the run was started with; of the workflow, those before the patch."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A workflow, composite tool or registered tool that fits a query."""

    kind: Kind
    name: str
    version: int | None = None
    description: str = ""
    parameters: Any = None
    """JSON Schema of its inputs."""
    score: float = 0.0


class WorkflowInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A published version that a reference of a model resolves to."""

    name: str
    version: int
    inputs: Any = None
    tools: frozenset[str] = frozenset()
    """The tools of its agents, with those that they grant to agents they delegate to."""

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.version}"


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """A value in the blob store."""

    reference: dict[str, Any]
    """`{"$blob": digest, "size": …, "media_type": …}`, as it stands in results and prompts."""
    preview: dict[str, Any]
    """`type`, `row_count` and `sample`."""


class CompositeTool(msgspec.Struct, frozen=True, kw_only=True):
    """A pipeline that was used often enough to become a tool; its lifted constants are parameters."""

    name: str
    version: int
    shape: str
    """Digest of the pipeline without its constants."""
    description: str
    parameters: dict[str, Any]
    """JSON Schema of the parameters, with the constants of the first use as defaults."""
    pipeline: list[dict[str, Any]]
    """Steps in which `{"$parameter": name}` stands for a parameter."""
    pinned: bool = False
    """A pinned tool keeps its version: later uses of the same name do not make another."""
    retired: bool = False


class AgentPort(Protocol):
    """What the tools of one attempt may ask of the engine."""

    async def document(self, scope: Scope) -> AgentDocument:
        """The document of this run, or the newest version of its workflow."""

    async def draft(self, operations: list[dict[str, Any]], *, scope: Scope) -> Draft:
        """Validate a JSON Patch against the document as it is now."""

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
        """Apply a JSON Patch once per `key`, if the document still has the base digest.

        A patch of the workflow publishes a version and moves no tag except `tag`. It is refused if this node has
        published `versions_max` versions in its run already.
        """

    async def patched(self, key: str, *, scope: Scope) -> PatchResult | None:
        """The patch that was applied with this key, if there is one."""

    async def find(self, query: str, *, kinds: tuple[Kind, ...], limit: int) -> tuple[Found, ...]:
        """Workflows and composite tools of this tenant by full-text rank, best first."""

    async def workflow(self, reference: str) -> WorkflowInfo:
        """Resolve the name, version or tag of a published workflow of this tenant."""

    async def publish_built_in(self, document: dict[str, Any]) -> str:
        """Publish the workflow of a built-in agent unless this version exists; return `name@version`."""

    async def start_run(self, workflow: str, inputs: Any, *, key: str) -> str:
        """Start a run, once per `key`, without waiting for its end; return its id."""

    async def put_blob(self, value: Any, *, name: str = "") -> Stored:
        """Store a JSON value."""

    async def read_blob(self, reference: Any) -> Any:
        """Read a JSON value of this tenant by its description or digest."""

    def masked(self, value: Any) -> Any:
        """A JSON value without the secrets that this attempt has read."""

    async def check_files(self, value: Any) -> None:
        """Refuse a value that describes blobs which this run does not know."""

    async def composite(self, name: str) -> CompositeTool | None:
        """A composite tool by `name` (the newest version that is not retired) or `name@version`."""

    async def record_pipeline(self, pipeline: list[dict[str, Any]], *, key: str) -> CompositeTool | None:
        """Count a successful use of a pipeline once per `key`; return the tool that it is or has become."""
