"""The workflows that run while processes die, and how each of their runs must end."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

Json = Any

RETRY = {"max_attempts": 4, "backoff_seconds": 0.05, "multiplier": 2, "jitter": 0.1}


class Kind(NamedTuple):
    """A workflow, how often it is started, what a client does to its runs, and how they may end."""

    document: dict[str, Json]
    weight: int
    ends: tuple[str, ...] = ("COMPLETED",)
    act: str = ""
    """`signal`, `decide`, `cancel` or `pause`."""


class Planned(NamedTuple):
    """A run that is to be started, under a key that makes it safe to ask again."""

    key: str
    kind: str
    number: int

    @property
    def verb(self) -> Literal["approve", "reject"]:
        """What people decide on it, where they are asked."""
        return "reject" if self.number % 3 == 0 else "approve"


def _effect(node: str, value: Json = None, *, ms: float = 5, after: Sequence[str] = (), **more: Json) -> Json:
    args = {"value": value, "ms": ms}
    return _python(node, "effect", args, after, **more)


def _python(node: str, function: str, args: Json, after: Sequence[str] = (), **more: Json) -> Json:
    config = {"function": function, "args": args}
    return {"id": node, "type": "python", "config": config, "dependencies": list(after), **more}


def _flow(name: str, *nodes: Json, outputs: Json = None, **more: Json) -> dict[str, Json]:
    inputs = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    shown = {} if outputs is None else {"outputs": outputs}
    return {"name": name, "inputs": inputs, "defaults": {"retry": RETRY}, "nodes": list(nodes), **shown, **more}


UNDO = {"type": "python", "config": {"function": "effect"}}

KINDS: dict[str, Kind] = {
    "chain": Kind(
        _flow(
            "chain",
            _effect("a", "{{ inputs.n }}"),
            _effect("b", "{{ a.output.value + 1 }}", after=["a"]),
            _effect("c", "{{ b.output.value + 1 }}", after=["b"]),
            _effect("d", "{{ c.output.value + 1 }}", after=["c"]),
            outputs={"value": "{{ d.output.value }}"},
        ),
        weight=18,
    ),
    "diamond": Kind(
        _flow(
            "diamond",
            _effect("a", "{{ inputs.n }}"),
            _effect("b", "{{ a.output.value + 1 }}", ms=30, after=["a"]),
            _effect("c", "{{ a.output.value + 2 }}", after=["a"]),
            _effect("d", "{{ b.output.value + c.output.value }}", after=["b", "c"]),
            outputs={"value": "{{ d.output.value }}"},
        ),
        weight=14,
    ),
    "loop": Kind(
        _flow(
            "loop",
            _effect("a"),
            _effect(
                "turn",
                "{{ iteration }}",
                after=["a"],
                loop={"condition": "iteration < 2", "max_iterations": 5, "loop_back_to": "a"},
            ),
            outputs={"value": "{{ turn.output.value }}"},
        ),
        weight=10,
    ),
    "map": Kind(
        _flow(
            "map",
            {"id": "list", "type": "value", "config": [0, 1, 2, 3, 4, 5]},
            _effect(
                "each",
                "{{ item * 2 + inputs.n }}",
                after=["list"],
                map={"over": "{{ list.output }}", "max_parallel": 3},
            ),
            outputs={"value": "{{ each.output }}"},
        ),
        weight=10,
    ),
    "flaky": Kind(
        _flow(
            "flaky",
            _python("a", "flaky", {"failures": 2, "value": "{{ inputs.n }}"}),
            outputs={"value": "{{ a.output.value }}"},
        ),
        weight=8,
    ),
    "slow": Kind(
        _flow(
            "slow",
            _effect("a", "{{ inputs.n }}", ms=700),
            _python("b", "blocking", {"value": "{{ inputs.n }}", "ms": 900}),
            _python("c", "steps", {"count": 3, "ms": 100}, ["a", "b"]),
            outputs={"value": "{{ a.output.value + b.output.value + c.output.value }}"},
        ),
        weight=10,
    ),
    "large": Kind(
        _flow(
            "large",
            _python("a", "effect", {"value": "{{ inputs.n }}", "weight": 80_000}),
            _effect("b", "{{ a.output.value + (a.output.weight | length) }}", after=["a"]),
            outputs={"value": "{{ b.output.value }}"},
        ),
        weight=3,
    ),
    "nap": Kind(
        _flow(
            "nap",
            _effect("a", "{{ inputs.n }}"),
            {"id": "rest", "type": "sleep", "config": {"ms": 200}, "dependencies": ["a"]},
            _effect("b", "{{ a.output.value + 1 }}", after=["rest"]),
            outputs={"value": "{{ b.output.value }}"},
        ),
        weight=8,
    ),
    "parent": Kind(
        _flow(
            "parent",
            _effect("a", "{{ inputs.n }}"),
            {
                "id": "child",
                "type": "workflow",
                "config": {"workflow": "chain", "inputs": {"n": "{{ a.output.value }}"}},
                "dependencies": ["a"],
            },
            outputs={"value": "{{ child.output.value }}"},
        ),
        weight=6,
    ),
    "once": Kind(
        _flow(
            "once",
            _effect("a", "{{ inputs.n }}"),
            _effect("pay", "{{ inputs.n }}", ms=60, after=["a"], delivery="at_most_once"),
            outputs={"value": "{{ pay.output.value }}"},
        ),
        weight=10,
        ends=("COMPLETED", "FAILED"),
    ),
    "doomed": Kind(
        _flow(
            "doomed",
            _effect("a", compensator=UNDO),
            _effect("b", after=["a"], compensator=UNDO),
            {"id": "boom", "type": "fail", "config": {"kind": "doomed"}, "dependencies": ["b"]},
            on_failure={"compensate": "automatic"},
        ),
        weight=6,
        ends=("FAILED",),
    ),
    "signal": Kind(
        _flow(
            "signal",
            _effect("a"),
            {"id": "gate", "type": "signal", "config": {"name": "go"}, "dependencies": ["a"]},
            _effect("b", "{{ gate.output.n }}", after=["gate"]),
            outputs={"value": "{{ b.output.value }}"},
        ),
        weight=6,
        act="signal",
    ),
    "approval": Kind(
        _flow(
            "approval",
            _effect("a"),
            {
                "id": "ask",
                "type": "human",
                "config": {"title": "Go on?", "approvers": ["user:ada"], "rejection_path": ["no"]},
                "dependencies": ["a"],
            },
            _effect("yes", "approve", after=["ask"]),
            _effect("no", "reject", after=["ask"]),
            outputs={"value": "{{ yes.output.value | default('') }}{{ no.output.value | default('') }}"},
        ),
        weight=6,
        act="decide",
    ),
    "paused": Kind(
        _flow(
            "paused",
            _effect("a", "{{ inputs.n }}", ms=50),
            _effect("b", "{{ a.output.value + 1 }}", ms=50, after=["a"]),
            outputs={"value": "{{ b.output.value }}"},
        ),
        weight=4,
        act="pause",
    ),
    "cancelled": Kind(
        _flow(
            "cancelled",
            _effect("a", compensator=UNDO),
            {"id": "wait", "type": "sleep", "config": {"seconds": 864_000}, "dependencies": ["a"]},
            _effect("never", after=["wait"]),
        ),
        weight=6,
        ends=("CANCELLED",),
        act="cancel",
    ),
}


def plan(seed: int, runs: int) -> list[Planned]:
    """Which runs there will be: a function of the seed."""
    rng = random.Random(f"plan {seed}")
    kinds = rng.choices(list(KINDS), [kind.weight for kind in KINDS.values()], k=runs)
    return [Planned(f"{kind}-{number:06}", kind, number) for number, kind in enumerate(kinds)]


def outputs_of(planned: Planned) -> Json:
    """What a run returns when it completes."""
    n = planned.number
    match planned.kind:
        case "chain" | "parent":
            return n + 3
        case "diamond":
            return 2 * n + 3
        case "loop":
            return 2
        case "map":
            return [item * 2 + n for item in range(6)]
        case "slow":
            return 2 * n + 3
        case "large":
            return n + 80_000
        case "nap" | "paused":
            return n + 1
        case "approval":
            return planned.verb
        case _:
            return n
