"""The intermediate representation (IR): a workflow after every check, ready to run.

Frozen values: the compiler builds them, `decide` reads them, a patch makes a new Workflow. Adjacency is stored on the
node, so that a step costs O(out-degree) whatever the size of the graph. The IR is stored and read back by other
versions: new fields get defaults, so a later version reads it; an earlier one refuses a field that it does not know
(`workflow_newer`), because its nodes would behave differently. `ir` is the format number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.kernel.spending import Budget

IR_FORMAT = 1

SIGNAL_TYPE = "signal"
"""The node type that waits for a signal; `name` in its config is the signal, by default the node's id."""

Json = Any

JoinKind = Literal["all", "strict", "any", "quorum"]
OnError = Literal["fail", "continue", "route"]
Delivery = Literal["at_least_once", "at_most_once"]


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    max_attempts: int = 3
    backoff_ms: int = 1000
    multiplier: float = 2.0
    max_backoff_ms: int = 60_000
    jitter: float = 0.1


class Rule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    condition: Json
    next_nodes: tuple[str, ...]


class Branch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    kind: Literal["conditional", "agent_driven"] = "conditional"
    rules: tuple[Rule, ...] = ()
    available: tuple[str, ...] = ()
    """The nodes that an agent-driven branch may choose from."""
    default: tuple[str, ...] = ()


class Loop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A loop, stored on its *looping node*, the last of its body, which decides after each pass."""

    condition: Json
    max_iterations: int | None
    """Passes allowed; None is `unlimited`, which the compiler allows only with another bound."""
    back_to: str
    """The entry of the body; its join counts only for the first pass."""
    break_path: tuple[str, ...] = ()
    timeout_path: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    """Every node of the body, in document order, entry and looping node included."""
    escapes: tuple[tuple[str, str], ...] = ()
    """Edges (from, to) out of the body from other nodes than the looping one: error and exit paths."""
    delay_ms: int = 0
    """A durable wait between passes."""
    delay: str = ""
    """A template that renders to the seconds of this wait, instead of `delay_ms`."""


class Map(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Run the node once per element of a list known only at run time."""

    over: Json
    max_parallel: int | None = None
    tolerate: int = 0


class Compensator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    type: str
    config: Json = None
    timeout_ms: int | None = None
    retry: Retry = Retry()


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    id: str
    type: str
    """Name and pinned major version, e.g. `http@1`."""
    config: Json = None
    config_ref: str | None = None
    when: Json = None
    join: JoinKind = "all"
    quorum: int = 0
    branch: Branch | None = None
    loop: Loop | None = None
    map: Map | None = None
    on_error: OnError = "fail"
    error_path: tuple[str, ...] = ()
    exits: dict[str, tuple[str, ...]] = {}
    """Named exits that a wait may take instead of its plain edges, e.g. `rejection`, `changes`."""
    retry: Retry = Retry()
    timeout_ms: int | None = None
    delivery: Delivery = "at_least_once"
    queue: str = "default"
    priority: int = 5
    capped: bool = False
    """The node type has a concurrency limit over all workers."""
    compensator: Compensator | None = None

    inbound: tuple[str, ...] = ()
    outbound: tuple[str, ...] = ()
    """Targets of all outgoing edges, plain and conditional; loop-backs are not edges."""
    plain: tuple[str, ...] = ()
    """Outgoing edges without a rule: taken when the visit completes (on a looping node: when the loop ends)."""
    loops: tuple[str, ...] = ()
    """Looping nodes of the loops around this node, innermost first, its own loop included."""
    reads: tuple[str, ...] = ()
    """Nodes that its templates and conditions read."""
    reads_past: tuple[str, ...] = ()
    """Those of `reads` that it sees as they were when the current pass began (itself included)."""
    reads_all: bool = False
    """A computed subscript such as `nodes[inputs.name]`: any ancestor may be read."""

    @cached_property
    def routed(self) -> bool:
        """Whether a worker must evaluate conditions after the handler, before the visit can end."""
        return self.loop is not None or self.branch is not None

    @cached_property
    def straight(self) -> bool:
        """Whether a completed visit always ends like this: all its edges are taken, and nothing else follows."""
        return not (self.routed or self.loops) and self.map is None and self.plain == self.outbound

    @cached_property
    def single(self) -> bool:
        """Whether one decided inbound edge settles the join."""
        return len(self.inbound) == 1


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    deadline_ms: int | None = None
    max_visits: int = 10_000
    max_fanout: int = 100_000
    max_parallel: int | None = None
    max_hops: int | None = None
    max_bytes: int | None = None
    budget: Budget | None = None
    """What a run may spend on language models, with its children."""


RETENTION_DAYS = 30.0
"""Days that finished runs are kept by default."""
RETENTION_BY_STORE = -1.0
"""The default of the store: fewer days where everything is in memory."""


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """How long finished runs are kept in the store; None leaves it to the engine."""

    days: float | None = None
    keep: bool = False
    """Keep them for ever."""


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True, dict=True):
    """A compiled workflow. Two workflows with the same digest behave the same."""

    name: str
    nodes: tuple[Node, ...]
    entries: tuple[str, ...]
    terminals: tuple[str, ...]
    ir: int = IR_FORMAT
    description: str = ""
    inputs: Json = None
    outputs: Json = None
    limits: Limits = Limits()
    compensate: Literal["automatic", "manual"] = "manual"
    output_reads: tuple[str, ...] = ()
    retention: Retention = Retention()

    @cached_property
    def by_id(self) -> dict[str, Node]:
        return {node.id: node for node in self.nodes}

    @cached_property
    def bodies(self) -> dict[str, frozenset[str]]:
        """The nodes of each loop's body, by looping node."""
        return {node.id: frozenset(node.loop.body) for node in self.nodes if node.loop is not None}

    @cached_property
    def once(self) -> tuple[str, ...]:
        """Nodes delivered at most once, whose outcome can be unknown."""
        return tuple(node.id for node in self.nodes if node.delivery == "at_most_once")

    @cached_property
    def signals(self) -> frozenset[str] | None:
        """Names of the signals that nodes wait for; None if a template computes one."""
        waiting = [node for node in self.nodes if node.type.partition("@")[0] == SIGNAL_TYPE]
        configs = [(node.id, node.config if isinstance(node.config, dict) else {}) for node in waiting]
        names = [str(config.get("name", node)) for node, config in configs]
        return frozenset(names) if not any("{{" in name or "{%" in name for name in names) else None

    @cached_property
    def digest(self) -> str:
        """Content address of the IR: the sha256 of its canonical JSON."""
        import hashlib

        return "sha256:" + hashlib.sha256(encode_workflow(self)).hexdigest()


class ConfigProblem(NamedTuple):
    path: str
    message: str
    hint: str
    code: str = "config_invalid"
    warning: bool = False
    """The document compiles, but this is probably a mistake."""


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a node type offers, and what it requires of a worker."""

    retryable: bool = True
    """Without it a node of this type has one attempt, unless its document sets a retry policy."""
    streaming: bool = False
    """It streams parts of its result."""
    checkpointing: bool = False
    """It stores checkpoints and continues from the last one after a crash."""
    at_most_once: bool = False
    """Its nodes are delivered at most once, unless the document says otherwise."""
    process: bool = False
    """It needs a process of its own."""
    concurrency: int | None = None
    """Concurrency limit over all workers."""


class NodeType(msgspec.Struct, frozen=True, kw_only=True):
    """A node type as the compiler sees it; its code is in `handlers`."""

    name: str
    major: int = 1
    version: str = ""
    """Full version of its code, e.g. 1.4.2; informational."""
    title: str = ""
    icon: str = ""
    """A character or the name of an icon."""
    capabilities: Capabilities = Capabilities()
    config_schema: Json = True
    input_schema: Json = True
    """Schema of the upstream outputs, by node id."""
    output_schema: Json = True
    """What a visit always returns; what reads it is checked when the workflow is published."""
    output_keys: Callable[[Json], Mapping[str, Json]] | None = None
    """Schemas of those keys of the output that depend on the config; False is a key that is never there. Sees templates
    unrendered."""
    secret_fields: tuple[str, ...] = ()
    queue: str = "default"
    waits: bool = False
    """Its attempts end by waiting, so `defaults.timeout_seconds` does not apply."""
    exits: tuple[str, ...] = ()
    """Config fields that name nodes, e.g. `rejection_path`; they become the node's exits."""
    schemas: tuple[str, ...] = ()
    """Config fields that hold a JSON Schema, e.g. `form`."""
    check: Callable[[Json], Iterator[ConfigProblem]] | None = None
    """Checks beyond the config schema; sees templates unrendered."""
    checks_anything: bool = False
    """`check` copes with a config that breaks the schema, so that it reports its problems, too."""
    capped: Callable[[Json], bool] | None = None
    """Whether the concurrency limit applies to a node with this config; to every node if it is None."""
    description: str = ""

    @property
    def key(self) -> str:
        return f"{self.name}@{self.major}"


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Workflow)


def encode_workflow(workflow: Workflow) -> bytes:
    """Canonical bytes: equal workflows give equal bytes."""
    return _ENCODER.encode(workflow)


def decode_workflow(raw: bytes) -> Workflow:
    """Read a stored workflow of this or an older IR format; the caller has checked the bytes against their digest."""
    try:
        workflow = _DECODER.decode(raw)
    except msgspec.MsgspecError as error:
        raise _newer(str(error)) from None
    if workflow.ir > IR_FORMAT:
        raise _newer(f"it has format {workflow.ir}, and {IR_FORMAT} is the newest that is known here")
    return workflow


def _newer(reason: str) -> Rejected:
    message = f"a workflow was compiled by a newer version: {reason}"
    return rejected("workflow_newer", message, hint="upgrade Tidemill; workers of the newer version continue it")
