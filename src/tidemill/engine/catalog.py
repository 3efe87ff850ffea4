"""Published workflows: versions by name, compiled forms by digest.

A version is a record in the workflow's stream; the compiled form is a blob under the digest that runs are
pinned to. Publishing content that is already there answers the version it has and writes nothing.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs, digest_of
from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.programs import Flow
from tidemill.errors import Problem, Unavailable, rejected
from tidemill.kernel.compile import compile_document
from tidemill.kernel.document import normalise
from tidemill.kernel.model import NodeType, decode_workflow, encode_workflow
from tidemill.stores.contract import Commit, Committed, Row, Store, Stream

FLOWS_MAX = 256
"""Compiled workflows kept in memory."""
RACES_MAX = 16
WORKFLOW = "workflow"


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A published version of a workflow."""

    name: str
    version: int
    digest: str
    document: str
    """Digest of the blob with the document in its normal form."""
    at_ms: int
    author: str = ""
    message: str = ""
    v: int = 1


class Published(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a publication."""

    name: str
    version: int
    digest: str
    created: bool
    warnings: tuple[Problem, ...] = ()


_VERSION = msgspec.msgpack.Decoder(Version)


class Catalog:
    """The workflows of a store, with a bounded cache of compiled ones."""

    def __init__(self, store: Store, blobs: Blobs, ambient: Ambient, types: Mapping[str, Sequence[NodeType]]) -> None:
        self._store, self._blobs, self._ambient, self._types = store, blobs, ambient, types
        self._flows: OrderedDict[tuple[str, str], Flow] = OrderedDict()

    async def publish(self, tenant: str, document: Any, *, author: str = "", message: str = "") -> Published:
        """Compile a document and make it the newest version of its workflow, unless it already is one."""
        compiled = compile_document(await self._with_configs(tenant, document), self._types)
        workflow = compiled.workflow
        body = encode_workflow(workflow)
        digest = await self._blobs.put(tenant, body)
        text = await self._blobs.put(tenant, msgspec.json.encode(compiled.document, order="sorted"))
        self._keep(tenant, digest, Flow(workflow))
        for _ in range(RACES_MAX):
            versions = await self.versions(tenant, workflow.name)
            known = next((v for v in versions if v.digest == digest), None)
            if known is not None:
                return Published(
                    name=known.name, version=known.version, digest=digest, created=False, warnings=compiled.warnings
                )
            version = Version(
                name=workflow.name,
                version=len(versions) + 1,
                digest=digest,
                document=text,
                at_ms=self._ambient.now_ms(),
                author=author,
                message=message,
            )
            if await self._append(tenant, version):
                return Published(
                    name=version.name, version=version.version, digest=digest, created=True, warnings=compiled.warnings
                )
        raise Unavailable(f"workflow {workflow.name} is being published by too many at once")

    async def _with_configs(self, tenant: str, document: Any) -> Any:
        """Fill in configurations that the document refers to by content; a version holds all it needs to run."""
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
                node["config"] = await self._config(tenant, digest, f"/nodes/{number}/config_ref", node["id"])
        return normal

    async def _config(self, tenant: str, digest: str, path: str, node: str) -> Any:
        try:
            return decode_value(await self._blobs.get(tenant, digest))
        except (Unavailable, ValueError) as error:
            raise rejected(
                "config_ref_unreadable",
                f"node {node} refers to a configuration that cannot be read: {error}",
                path=path,
                hint="store the blob first, or write the configuration into the document",
            ) from None

    async def _append(self, tenant: str, version: Version) -> bool:
        record = msgspec.msgpack.encode(version)
        row = Row(kind=WORKFLOW, key=version.name, sort=version.at_ms, terms=("workflow",), body=record)
        commit = Commit(
            stream=Stream(tenant, WORKFLOW, version.name),
            expected=version.version - 1,
            records=(record,),
            rows=(row,),
        )
        (result,) = await self._store.commit([commit])
        return isinstance(result, Committed)

    async def versions(self, tenant: str, name: str) -> list[Version]:
        """All versions of a workflow, oldest first."""
        (tail,) = await self._store.load({Stream(tenant, WORKFLOW, name): 0})
        return [_VERSION.decode(record) for record in tail.records]

    async def resolve(self, tenant: str, reference: str) -> Version:
        """`name` is the newest version, `name@3` that one."""
        name, at, number = reference.partition("@")
        versions = await self.versions(tenant, name)
        if not versions:
            raise rejected("workflow_unknown", f"no workflow {name} is published", hint="publish it first")
        if not at:
            return versions[-1]
        # A number of more digits than anybody publishes is not even read.
        known = len(number) < 10 and number.isascii() and number.isdigit() and 1 <= int(number) <= len(versions)
        if not known:
            raise rejected(
                "version_unknown", f"{name} has no version {number[:100]}", hint=f"versions 1 to {len(versions)} exist"
            )
        return versions[int(number) - 1]

    async def document(self, tenant: str, version: Version) -> Any:
        """The document of a version in its normal form."""
        return msgspec.json.decode(await self._blobs.get(tenant, version.document))

    async def flow(self, tenant: str, digest: str) -> Flow:
        """The compiled workflow behind a digest."""
        known = self._flows.get((tenant, digest))
        if known is not None:
            self._flows.move_to_end((tenant, digest))
            return known
        body = await self._blobs.get(tenant, digest)
        if digest_of(body) != digest:
            raise Unavailable(f"workflow {digest} is damaged")
        flow = Flow(decode_workflow(body))
        self._keep(tenant, digest, flow)
        return flow

    def _keep(self, tenant: str, digest: str, flow: Flow) -> None:
        self._flows[(tenant, digest)] = flow
        while len(self._flows) > FLOWS_MAX:
            self._flows.popitem(last=False)
