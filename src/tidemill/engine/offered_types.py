"""The node types that workers offer, as index rows, so that a process without a plug-in compiles its nodes.

A worker writes a row per type that does not come with Tidemill when it starts, if there is none or another one, and
confirms it once a day. The rows belong to the tenant of the worker's own row: a worker serves the jobs of every tenant,
and is known to that one. A type of this process always wins over its row.

A row holds data only. `check` and `output_keys` are code: without them a document is checked against the schemas, and
the worker checks the rest when the node runs. `capped` is code that decides how a node is compiled, so a type that has
it gets no row: its nodes must not depend on who compiled them.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from tidemill.ambient import Ambient
from tidemill.kernel.model import Capabilities, Json, NodeType
from tidemill.stores.contract import Commit, Row, Store, Stream

LOG = logging.getLogger(__name__)

NODE_TYPE = "node_type"
NODE_TYPE_FORMAT = 1
CONFIRM_MS = 24 * 3_600_000
"""How often a worker confirms that it still offers its types."""
UNOFFERED_MS = 7 * CONFIRM_MS
"""A type that no worker has confirmed for so long is forgotten."""
CACHED_MS = 5_000
ROWS_MAX = 1_000
"""Limit of types read at once."""

Types = Mapping[str, Sequence[NodeType]]


class NodeTypeRow(msgspec.Struct, frozen=True, kw_only=True):
    """A node type as a worker described it. Stored by name: a version ignores fields that it does not know.

    A field that changes how nodes are compiled needs a new format: an older version then ignores the row, and does not
    write over it.
    """

    name: str
    major: int
    version: str = ""
    title: str = ""
    icon: str = ""
    description: str = ""
    capabilities: Capabilities = Capabilities()
    config_schema: Json = True
    input_schema: Json = True
    output_schema: Json = True
    secret_fields: tuple[str, ...] = ()
    queue: str = "default"
    waits: bool = False
    exits: tuple[str, ...] = ()
    schemas: tuple[str, ...] = ()
    image: str = ""
    """The container image of the worker that wrote it, where it has said so."""
    offered_ms: int = 0
    """When a worker last wrote or confirmed it, by the store's clock."""
    v: int = NODE_TYPE_FORMAT

    @property
    def type(self) -> NodeType:
        return NodeType(**{name: getattr(self, name) for name in _CARRIED})


_CARRIED = tuple(name for name in NodeType.__struct_fields__ if name in NodeTypeRow.__struct_fields__)
_ENCODE = msgspec.msgpack.Encoder().encode
_DECODE = msgspec.msgpack.Decoder(NodeTypeRow).decode


def _read(row: Row) -> NodeTypeRow | None:
    """The type in a row; None if a newer version has written it in a form that this one does not know."""
    try:
        found = _DECODE(row.body)
    except msgspec.MsgspecError:
        return None
    return found if found.v <= NODE_TYPE_FORMAT else None


async def offered_types(store: Store, tenant: str) -> list[NodeTypeRow]:
    """The types that workers offer, those that were confirmed last first."""
    page = await store.find(tenant, NODE_TYPE, limit=ROWS_MAX)
    return [found for row in page.rows if (found := _read(row)) is not None]


async def offer_types(store: Store, tenant: str, types: Sequence[NodeType], image: str = "") -> int:
    """Write the rows that are missing or differ, and confirm those of yesterday; returns how many were written."""
    now_ms = store.now_ms()
    present = {row.key: row for row in (await store.find(tenant, NODE_TYPE, limit=ROWS_MAX)).rows}
    bodies = {type_.key: _body(type_, image, now_ms, present.get(type_.key)) for type_ in types}
    rows = [Row(kind=NODE_TYPE, key=key, sort=now_ms, body=body) for key, body in bodies.items() if body]
    if rows:
        stream = Stream(tenant, NODE_TYPE, rows[0].key)
        await store.commit([Commit(stream=stream, expected=None, rows=tuple(rows))])
    return len(rows)


def _body(type_: NodeType, image: str, now_ms: int, present: Row | None) -> bytes:
    """The body to write; empty if the present row stays as it is."""
    if type_.capped is not None:
        return b""
    try:
        body = _ENCODE(NodeTypeRow(**{name: getattr(type_, name) for name in _CARRIED}, image=image, offered_ms=now_ms))
        # As it is read back: a schema may have tuples.
        mine = _DECODE(body)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        LOG.warning("the node type %s cannot be published to other processes: %s", type_.key, error)
        return b""
    if present is None:
        return body
    theirs = _read(present)
    if theirs is None:
        LOG.warning("the node type %s is described by a newer version; its row stays as it is", type_.key)
        return b""
    if msgspec.structs.replace(theirs, offered_ms=now_ms) != mine:
        return body
    if now_ms - theirs.offered_ms < CONFIRM_MS:
        return b""
    # Fields that a newer version has added stay.
    return _ENCODE({**msgspec.msgpack.decode(present.body), "offered_ms": now_ms})


async def forget_unoffered_types(store: Store, tenant: str, now_ms: int) -> int:
    """Remove the types that no worker has offered for a week; returns how many."""
    # A row is sorted by its confirmation, so this holds for rows of any format.
    rows = (await store.find(tenant, NODE_TYPE, limit=ROWS_MAX)).rows
    old = [msgspec.structs.replace(row, deleted=True) for row in rows if now_ms - row.sort > UNOFFERED_MS]
    if old:
        stream = Stream(tenant, NODE_TYPE, old[0].key)
        await store.commit([Commit(stream=stream, expected=None, rows=tuple(old))])
    return len(old)


class NodeTypeDirectory:
    """The union of what this process has and what workers offer; reads of the rows are cached for a few seconds."""

    def __init__(
        self, store: Store, ambient: Ambient, own: Types, fleet: str, of_tenants: Mapping[str, Types] = {}
    ) -> None:
        self._store, self._ambient, self._own = store, ambient, own
        self._fleet = fleet
        """The tenant that workers register in; they serve all tenants."""
        self._of_tenants = of_tenants
        """The same types with other checks, for tenants that have grants of their own."""
        self.own_types = {type_.key: type_ for types in own.values() for type_ in types}
        self._cached: dict[str, tuple[float, Types]] = {}
        """When the rows were read, and the union with them; by tenant, where it has types of its own."""

    async def union(self, tenant: str = "", *, fresh: bool = False) -> Types:
        now_ms, tenant = self._ambient.monotonic_ms(), tenant if tenant in self._of_tenants else ""
        read_ms, types = self._cached.get(tenant, (0.0, {}))
        if types and not fresh and now_ms - read_ms < CACHED_MS:
            return types
        own = self._of_tenants.get(tenant, self._own)
        joined: dict[str, list[NodeType]] = {name: [*types] for name, types in own.items()}
        for row in await offered_types(self._store, self._fleet):
            if row.type.key not in self.own_types:
                joined.setdefault(row.name, []).append(row.type)
        self._cached[tenant] = now_ms, joined
        return joined
