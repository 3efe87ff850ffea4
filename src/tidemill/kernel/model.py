"""The intermediate representation: a workflow after every check, ready to run.

Frozen values only. The compiler writes them, `decide` reads them, nothing changes them; a patch makes a new
`Workflow`. All adjacency that a step needs is stored on the node itself, so that one step costs O(out-degree)
whatever the size of the graph. What is written here is stored and read back by later versions: new fields
get defaults, and `ir` says which format it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal, NamedTuple

import msgspec

IR_FORMAT = 1

SIGNAL_TYPE = "signal"
"""The node type that waits for a signal; `name` in its config says which, by default the node's id."""

Json = Any

JoinKind = Literal["all", "strict", "any", "quorum"]
OnError = Literal["fail", "continue", "route"]
Delivery = Literal["at_least_once", "at_most_once"]


class Retry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How often and how late a failed attempt is tried again."""

    max_attempts: int = 3
    backoff_ms: int = 1000
    multiplier: float = 2.0
    max_backoff_ms: int = 60_000
    jitter: float = 0.1


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a conditional branch: when the condition holds, go to these nodes."""

    condition: Json
    next_nodes: tuple[str, ...]


class Branch(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Which of the conditional edges a finished visit takes."""

    kind: Literal["conditional", "agent_driven"] = "conditional"
    rules: tuple[Rule, ...] = ()
    available: tuple[str, ...] = ()
    """The closed set an agent-driven branch may choose from."""
    default: tuple[str, ...] = ()


class Loop(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A loop, stored on its last node, the *looping node*, which decides after each pass."""

    condition: Json
    max_iterations: int | None
    """Passes allowed; None is `unlimited`, which the compiler admits only beside another bound."""
    back_to: str
    """The entry of the body; its join is evaluated only for the first pass."""
    break_path: tuple[str, ...] = ()
    timeout_path: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    """Every node of the body, entry and looping node included, in document order."""
    escapes: tuple[tuple[str, str], ...] = ()
    """Edges (from, to) that leave the body from a node other than the looping one: error and exit paths."""


class Map(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Run the node once per element of a list known only at run time."""

    over: Json
    max_parallel: int | None = None
    tolerate: int = 0


class Compensator(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What undoes a completed visit."""

    type: str
    config: Json = None
    timeout_ms: int | None = None
    retry: Retry = Retry()


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A step of the graph with everything that one of its visits needs."""

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
    """Named ways out that a wait may choose instead of completing, e.g. `rejection`, `changes`."""
    retry: Retry = Retry()
    timeout_ms: int | None = None
    delivery: Delivery = "at_least_once"
    queue: str = "default"
    priority: int = 5
    capped: bool = False
    """How many nodes of its type run at a time is bounded over all workers."""
    compensator: Compensator | None = None

    inbound: tuple[str, ...] = ()
    outbound: tuple[str, ...] = ()
    """Targets of all outgoing edges, plain and conditional; loop-backs are not edges."""
    plain: tuple[str, ...] = ()
    """The outgoing edges no rule names: taken whenever the visit completes (on a looping node: on break)."""
    loops: tuple[str, ...] = ()
    """Looping nodes of the loops around this node, innermost first; a looping node is in its own loop."""
    reads: tuple[str, ...] = ()
    """Nodes that its templates and conditions refer to."""
    reads_past: tuple[str, ...] = ()
    """Of those, the ones it can see only as they were when the current pass began (itself included)."""
    reads_all: bool = False
    """A computed subscript such as `nodes[inputs.name]`: any ancestor may be read."""

    @cached_property
    def routed(self) -> bool:
        """Whether a worker must evaluate conditions after the handler, before the visit can end."""
        return self.loop is not None or self.branch is not None

    @cached_property
    def single(self) -> bool:
        """Whether one decided inbound edge settles the join, the common and cheap case."""
        return len(self.inbound) == 1


class Limits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hard bounds of one run."""

    deadline_ms: int | None = None
    max_visits: int = 10_000
    max_fanout: int = 100_000
    max_parallel: int | None = None
    max_hops: int | None = None
    max_bytes: int | None = None


RETENTION_DAYS = 30.0
"""How long finished runs are kept where nobody says."""


class Retention(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How long finished runs are kept in the store; what the document does not say is left to the engine."""

    days: float | None = None
    keep: bool = False
    """For ever."""


class Workflow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
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
        """Nodes by id."""
        return {node.id: node for node in self.nodes}

    @cached_property
    def bodies(self) -> dict[str, frozenset[str]]:
        """The nodes of each loop's body, by looping node."""
        return {node.id: frozenset(node.loop.body) for node in self.nodes if node.loop is not None}

    @cached_property
    def once(self) -> tuple[str, ...]:
        """Nodes that are delivered at most once, whose outcome can be unknown."""
        return tuple(node.id for node in self.nodes if node.delivery == "at_most_once")

    @cached_property
    def signals(self) -> frozenset[str] | None:
        """The signals that nodes wait for; None when a name is known only at run time."""
        names = [_signal_name(node) for node in self.nodes if node.type.partition("@")[0] == SIGNAL_TYPE]
        return frozenset(names) if not any("{{" in name or "{%" in name for name in names) else None

    @cached_property
    def digest(self) -> str:
        """Content address of the IR: the sha256 of its canonical JSON."""
        # The hash lives at the edge of the kernel because it is a pure function of the value.
        import hashlib

        return "sha256:" + hashlib.sha256(encode_workflow(self)).hexdigest()


class ConfigProblem(NamedTuple):
    """What is wrong with a config: the field, as a path into it, a sentence, and what to do."""

    path: str
    message: str
    hint: str


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What may be expected of a node type, and what it asks of those who run it."""

    retryable: bool = True
    """Trying again makes sense; without it a node of this type has one attempt, unless it says otherwise."""
    streaming: bool = False
    """It shows parts of its result before it has all of it."""
    checkpointing: bool = False
    """It writes down how far it has come, and goes on from there after a crash."""
    at_most_once: bool = False
    """Its nodes are delivered at most once, unless they say otherwise."""
    process: bool = False
    """It needs a process of its own."""
    concurrency: int | None = None
    """How many of it may run at a time, over all workers."""


class NodeType(msgspec.Struct, frozen=True, kw_only=True):
    """What the compiler must know of a node type; the code behind it lives in `handlers`."""

    name: str
    major: int = 1
    version: str = ""
    """The whole version of its code, e.g. 1.4.2; only shown."""
    title: str = ""
    icon: str = ""
    """A character, or the name of an icon, for those who draw it."""
    capabilities: Capabilities = Capabilities()
    config_schema: Json = True
    input_schema: Json = True
    """What it expects of the outputs of the nodes before it, by their ids."""
    output_schema: Json = True
    """What a visit returns, as far as that is always so: conditions over it are checked when they are published."""
    secret_fields: tuple[str, ...] = ()
    queue: str = "default"
    waits: bool = False
    """The type ends its attempts by waiting, so `defaults.timeout_seconds` does not apply to it."""
    exits: tuple[str, ...] = ()
    """Config fields that name nodes, e.g. `rejection_path`; they become the node's exits."""
    schemas: tuple[str, ...] = ()
    """Config fields that hold a JSON Schema, e.g. `form`."""
    check: Callable[[Json], Iterator[ConfigProblem]] | None = None
    """What the schema of a config cannot say about one that suits it. It sees templates as they are written."""
    description: str = ""

    @property
    def key(self) -> str:
        """The pinned name that the IR stores."""
        return f"{self.name}@{self.major}"


def _signal_name(node: Node) -> str:
    return str(node.config.get("name", node.id)) if isinstance(node.config, dict) else node.id


_ENCODER = msgspec.json.Encoder(order="sorted")
_DECODER = msgspec.json.Decoder(Workflow)


def encode_workflow(workflow: Workflow) -> bytes:
    """The canonical bytes of a workflow; equal workflows give equal bytes."""
    return _ENCODER.encode(workflow)


def decode_workflow(raw: bytes) -> Workflow:
    """Read a stored workflow of this or an older IR format."""
    return _DECODER.decode(raw)
