"""One event of every type with every field away from its default: what the golden bytes stand for.

`python -m tests.kernel.samples` prints the golden file anew. Bytes that were ever written are a promise: a changed
line of an existing sample means a new format with an upcast, an appended field means a new sample after the old.
"""

from __future__ import annotations

import json
from typing import Any

from tidemill.kernel import events as ev
from tidemill.kernel.codec import encode_event

ERROR = ev.Error("boom", "it broke", "ValueError", True, "try again", ("KeyError: x",), "Traceback …", 4)
BLOB = ev.BlobRef("sha256:00ff", 70_000, "text/plain", "big")
READS = (("output", "sha256:" + "0" * 64),)
ADMISSION = ev.Admission("when: inputs.x is true", READS)
ROUTE = ev.Route(False, ("b", "c"), 1, "output.x > 3", "output.y is false", READS)

FACT: dict[str, Any] = {"at_ms": 1_760_000_000_123, "cause": 7, "actor": "user:ann", "command": "cmd-1"}
AT: dict[str, Any] = {**FACT, "node": "a", "visit": 2, "index": 3}
END: dict[str, Any] = {
    **AT,
    "taken": ("b",),
    "dead": ("c", "d"),
    "dead_escapes": (("e", "f"),),
    "emitted": 2,
    "consumed": 1,
    "counter": 5,
    "renders": True,
}
ATTEMPT: dict[str, Any] = {"attempt": 2, "worker": "w1", "duration_ms": 250, "token": 99}
VOTE: dict[str, Any] = {"by": "user:cleo", "comments": "fine", "form": b'{"n":1}', "on_behalf_of": "user:ann"}

SAMPLES: tuple[ev.AnyEvent, ...] = (
    ev.RunCreated(
        **FACT,
        workflow="lead-qualification",
        version=3,
        digest="sha256:ab",
        inputs=b'{"customer":"acme"}',
        entries=("a", "b"),
        counter=2,
        submitted_by="user:bob",
        labels={"customer": "acme"},
        correlation_id="c-1",
        trace="00-4bf9-01",
        tag_used="stable",
        deadline_at_ms=1_760_000_060_000,
        parent=("run-0", "child", 1, 2),
        forked_from=("run-9", 17),
        close="abandon",
        depth=2,
    ),
    ev.RunPaused(**FACT, reason="lunch"),
    ev.RunResumed(**FACT, reason="back"),
    ev.RunRepaired(**FACT, reason="1 job was missing", restored=("run/a/1/-1",), dropped=("wake/b/1/-1",)),
    ev.RunCompleted(**FACT, outputs=b'{"tier":"gold"}', consumed=1, counter=4, tolerated=2, unread=("paid",)),
    ev.RunFailed(**FACT, node="a", visit=2, error=ERROR, consumed=3, counter=4, unread=("paid",)),
    ev.RunCancelled(**FACT, reason="not needed", consumed=3, counter=4, unread=("paid",)),
    ev.NodeScheduled(**AT, until=9, held=True, hop=4, resumed=b"null", recall=True),
    ev.NodeStarted(**AT, attempt=2, token=99, worker="w1", admission=ADMISSION),
    ev.NodeCheckpointed(**AT, attempt=2, value=b'{"page":7}'),
    ev.NodeExpanded(**AT, count=1_000, items=BLOB, window=50, token=99, admission=ADMISSION),
    ev.NodeWaiting(
        **AT,
        **ATTEMPT,
        on="signal",
        name="paid",
        until_ms=1_760_000_001_000,
        expires_ms=1_760_000_002_000,
        output=b"[1]",
        route=ROUTE,
        recall=True,
        ask=b'{"workflow":"billing"}',
        close="abandon",
        signal="s-1",
    ),
    ev.NodeCompleted(**END, **ATTEMPT, output=BLOB, waited_ms=40, route=ROUTE, size=70_000, undoable=True),
    ev.NodeFailed(
        **END,
        **ATTEMPT,
        error=ERROR,
        waited_ms=40,
        retry_at_ms=1_760_000_003_000,
        tolerated=True,
        output=b'{"error":{}}',
        lost=True,
        reads=READS,
    ),
    ev.NodeSkipped(**END, reason="when", token=99, reads=READS),
    ev.NodeCancelled(**END, reason="the run was cancelled", unknown=True),
    ev.LoopContinued(**FACT, node="d", entry="a", iteration=2, body=("a", "b", "d"), hop=6),
    ev.ResultDiscarded(**AT, attempt=2, token=99, outcome="Done", reason="stale", worker="w1"),
    ev.DeadLettered(**AT, attempts=3, error=ERROR),
    ev.ApprovalRequested(
        **AT,
        title="Pay?",
        description="12 EUR",
        form=b'{"type":"object"}',
        approvers=("user:ann", "role:boss"),
        quorum=2,
        four_eyes=True,
        requester="user:bob",
        timeout_ms=60_000,
        expires_ms=1_760_000_060_000,
        on_timeout="escalate",
        escalate_to=("role:board",),
        url="https://example.org/pay",
    ),
    ev.ApprovalVoted(**AT, **VOTE),
    ev.ApprovalDelegated(**AT, by="user:ann", to="user:cleo", comments="on leave"),
    ev.ApprovalReturned(**AT, **VOTE),
    ev.ApprovalDecided(**AT, **VOTE, decision="reject"),
    ev.ApprovalEscalated(**AT, to=("role:board",), expires_ms=1_760_000_120_000),
    ev.ApprovalExpired(**AT),
    ev.SignalReceived(**AT, name="paid", signal="s-1", payload=b'{"eur":12}'),
    ev.ChildStarted(**AT, child="run-0.a", workflow="billing", version=4, digest="sha256:cd"),
    ev.ChildFinished(**AT, child="run-0.a", status="FAILED", error=ERROR),
    ev.RunRetried(
        **FACT,
        nodes=(ev.Reopened("a", 2, 1), ev.Reopened("b", 1, 0)),
        emitted=1,
        counter=2,
        renders=True,
        deadline_at_ms=1_760_000_060_000,
        reason="again",
        sure=("a",),
    ),
    ev.RunRewound(
        **FACT,
        node="a",
        nodes=(ev.Reopened("a", 3, 1),),
        emitted=1,
        consumed=2,
        counter=3,
        restarted=("d",),
        reason="wrong data",
        undecided=(("d", "z"),),
    ),
    ev.RunPatched(
        **FACT,
        base="sha256:ab",
        digest="sha256:cd",
        revision=1,
        patch=b"[]",
        added=("x",),
        removed=("y",),
        changed=("a",),
        joins=(ev.Join("x", (("a", True),), 1, True),),
        relisted=("m",),
        emitted=2,
        consumed=1,
        counter=3,
        deadline_at_ms=1_760_000_060_000,
        message="fix",
    ),
    ev.RunForked(**FACT, run="run-9", at=17, deadline_at_ms=1_760_000_060_000, reason="what if"),
    ev.RunLabelled(**FACT, labels={"customer": "acme"}),
    ev.NodeOverridden(**END, status="COMPLETED", output=b"1", reason="by hand", size=1, undoable=True),
    ev.DeadLetterClosed(**AT, status="discarded", reason="no matter"),
    ev.RollbackStarted(**FACT, steps=3, unknown=("a/1/-1",), reason="automatic"),
    ev.RollbackFinished(**FACT, status="partial", left=("a/1/-1",)),
    ev.CompensationScheduled(**AT, of=12),
    ev.CompensationCompleted(**AT, **ATTEMPT, output=b"1"),
    ev.CompensationFailed(**AT, **ATTEMPT, error=ERROR, retry_at_ms=1_760_000_003_000, lost=True),
)


def golden() -> dict[str, list[str]]:
    """The present bytes of every sample, in hex, by event type."""
    return {type(event).__name__: [encode_event(event).hex()] for event in SAMPLES}


if __name__ == "__main__":
    print(json.dumps(golden(), indent=2))
