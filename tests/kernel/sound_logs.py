"""Logs that obey every invariant, by name: what the checker of logs is tried with."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tests.kernel.changes import Nodes, Told, perform, play, told
from tests.kernel.tables import choose, flow, human, loop
from tidemill.kernel import events as ev
from tidemill.kernel.commands import Cancel
from tidemill.kernel.model import Workflow

UNDO = {"compensator": {"type": "value", "retry": {"max_attempts": 2}}}
ONCE = {"delivery": "at_most_once"}
PAID = {"type": "signal", "config": {"name": "paid"}}
CHILD = {"node": "c", "visit": 1, "child": "kid"}
ANN, BOB, EVE = "user:ann", "user:bob", "user:eve"


def asked(script: str, graph: str = "h > z", node: Any = None, **request: Any) -> Told:
    run = play(graph, "", {"h": node or human()})
    run.ask("h", **request)
    perform(run, script)
    return told(run)


def reopened(sure: str) -> Told:
    """Node `a` was interrupted at an unknown point; then an operator is sure that it had no effect."""
    run = play("a e", "begin a token=5; " + sure, {"a": ONCE})
    run.retry(confirmed_not_done=("a",))
    run.end(*(name for name in "ae" if run.nodes(name).endswith("QUEUED")))
    return told(run)


def patched(script: str, new: Workflow, after: str, **more: Any) -> Told:
    run = play("a > b > c; e", script)
    old = run.flow
    run.patch(new, **more)
    perform(run, after)
    return told(run, old, new)


def forked(script: str, nodes: Nodes = None) -> Told:
    other = play("a > b > c; e", script, nodes).fork()
    other.end("b", "e", "c")
    return told(other)


def undoing(script: str) -> Told:
    run = play("a > b > c", "end a b; fail c; rollback", dict.fromkeys("ab", UNDO))
    perform(run, script)
    return told(run)


def stopped() -> Told:
    run = play("a > b > c", "end a b; fail c; rollback", dict.fromkeys("ab", UNDO))
    run.do(Cancel(force=True))
    return told(run)


def kept() -> Told:
    """Two signals come before a node waits for one."""
    script = "signal one; signal two; done a; listen b; done c"
    return played("a > b; c", script, {"b": PAID})


def refused() -> Told:
    run = play("c > z", "call c kid")
    run.child_ended("c", "", error=ev.Error("x", "no"))
    return told(run)


def played(graph: str, script: str, nodes: Nodes = None, **top: Any) -> Told:
    return told(play(graph, script, nodes, **top))


FAILED = "done a; fail b"
CONFIGURED = {"b": {"config": {"value": 2}}}
RETURNING = {"type": "human", "config": {"changes_path": ["y"]}}
ESCAPING = {"a": {"on_error": {"route": ["x"]}}, "c": {"loop": loop(9, "a")}}
TIMED = {"timeout_ms": 5_000, "escalate_to": (EVE,)}

LOGS: dict[str, Callable[[], Told]] = {
    "diamond": partial(played, "a > b c > d", "end a b c d"),
    "mapped": partial(
        played,
        "a",
        "expand a 3; end a[0] a[1] a[2]; assemble a",
        {"a": {"map": {"over": [1], "max_parallel": 2}}},
    ),
    "flaky": partial(played, "a > b", "fail a retryable=True; end a b"),
    "looped": partial(played, "a > b > z", "done a; done b again=True; end a b z", {"b": {"loop": loop(9, "a")}}),
    "skipped": partial(played, "a > b", "skip a", {"a": {"when": "inputs.go"}}),
    "failed": partial(played, "a > b; c", "fail a"),
    "retried": partial(played, "a > b > c; e", f"{FAILED}; retry; end b e c"),
    "retried_map": partial(
        played,
        "m",
        "expand m 4; done m[1]; fail m[0]; retry; end m[0] m[2] m[3]; assemble m",
        {"m": {"map": {"over": [1], "max_parallel": 2}}},
    ),
    "rendered_again": partial(played, "a", "done a; render boom; retry; render", outputs={"x": 1}),
    "unknown": partial(reopened, "done e; time_out a token=5"),
    "cut_off": partial(reopened, "fail e token=6"),
    "rewound": partial(played, "a > b > c; e > c", "end a b; rewind b; end b e c"),
    "rewound_in_flight": partial(played, "a > b > c", "end a b; rewind b; end b c"),
    "rewound_loop": partial(
        played, "a > b > z", "done a; done b again=True; done b; rewind a; end a b z", {"b": {"loop": loop(9)}}
    ),
    "rewound_escape": partial(played, "a > b > c > z; e > x", "end a b c; rewind b; end b c z e x", ESCAPING),
    "overridden": partial(played, "a > b", "override b; done a"),
    "overridden_wait": partial(
        played,
        "a > b c",
        "wait a; override a; done a b called=False; done b",
        {"a": {"branch": choose("b", "c")}},
    ),
    "overridden_early": partial(
        played, "a > b > c", "override b; done b c called=False; end a c", {"b": {"branch": choose("c")}}
    ),
    "patched": lambda: patched("done a", flow("a > b > c; a > d > c; e"), "end b d e c"),
    "fixed": lambda: patched(FAILED, flow("a > b > d; e", CONFIGURED), "end b e d", retry=True),
    "forked": partial(forked, FAILED),
    "forked_live": partial(forked, "fail a; begin b token=9", {"a": {"on_error": "continue"}}),
    "undone": partial(undoing, "undone b flaky retryable=True; undone b; undone a"),
    "partly_undone": partial(undoing, "undone b boom; undone a"),
    "stopped": stopped,
    "left_unknown": partial(
        played,
        "a > b",
        "done a; begin b token=9; time_out b token=9; rollback; undone a",
        {"a": UNDO, "b": {**UNDO, **ONCE}},
    ),
    "discarded": partial(played, "a > b > c; e", f"{FAILED}; discard b"),
    "approved": partial(asked, "approve h ann; approve h bob; done z", approvers=(ANN, BOB), quorum=2, four_eyes=True),
    "delegated": partial(asked, "delegate h ann eve; approve h eve; done z", approvers=(ANN,), four_eyes=True),
    "returned": partial(asked, "changes h ann; done y", "h > z; y", RETURNING, approvers=(ANN,)),
    "by_system": partial(asked, "expire h; done z", on_timeout="approve", **TIMED),
    "escalated": partial(asked, "expire h; expire h", on_timeout="escalate", **TIMED),
    "expired": partial(asked, "expire h", on_timeout="fail", **TIMED),
    "waited": partial(played, "a > z", "wait a 5000; wake a; done z"),
    "routed": partial(played, "a; b", "wait a; wake a; done a b called=False", {"a": {"branch": choose("b")}}),
    "too_late": partial(played, "a", "wait a 10000; expire a", {"a": {"timeout_seconds": 3}}),
    "in_order": partial(played, "a b s", "listen a; listen b; signal one; signal two", dict.fromkeys("ab", PAID)),
    "kept": kept,
    "child": partial(played, "c > z", "call c kid; child_began c; child_ended c"),
    "refused": refused,
}
