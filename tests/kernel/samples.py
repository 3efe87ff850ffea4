"""One event of every type with every field away from its default: what the golden bytes stand for.

`python -m tests.kernel.samples` prints the golden file anew. Bytes that were ever written are a promise: a changed
line of an existing sample means a new format with an upcast, an appended field means a new sample after the old.
"""

from __future__ import annotations

import json
from typing import Any

from tidemill.kernel.codec import encode_event
from tidemill.kernel.events import (
    Admission,
    AnyEvent,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    BlobRef,
    ChildFinished,
    ChildStarted,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    DeadLettered,
    Error,
    Join,
    LoopContinued,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeExpanded,
    NodeFailed,
    NodeOverridden,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    Reopened,
    ResultDiscarded,
    RollbackFinished,
    RollbackStarted,
    Route,
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunFailed,
    RunForked,
    RunLabelled,
    RunPatched,
    RunPaused,
    RunRepaired,
    RunResumed,
    RunRetried,
    RunRewound,
    SignalReceived,
)

ERROR = Error("boom", "it broke", "ValueError", True, "try again", ("KeyError: x",), "Traceback …", 4)
BLOB = BlobRef("sha256:00ff", 70_000, "text/plain", "big")
READS = (("output", "sha256:" + "0" * 64),)
ADMISSION = Admission("when: inputs.x is true", READS)
ROUTE = Route(False, ("b", "c"), 1, "output.x > 3", "output.y is false", READS)

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

SAMPLES: tuple[AnyEvent, ...] = (
    RunCreated(
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
    RunPaused(**FACT, reason="lunch"),
    RunResumed(**FACT, reason="back"),
    RunRepaired(**FACT, reason="1 job was missing", restored=("run/a/1/-1",), dropped=("wake/b/1/-1",)),
    RunCompleted(**FACT, outputs=b'{"tier":"gold"}', consumed=1, counter=4, tolerated=2, unread=("paid",)),
    RunFailed(**FACT, node="a", visit=2, error=ERROR, consumed=3, counter=4, unread=("paid",)),
    RunCancelled(**FACT, reason="not needed", consumed=3, counter=4, unread=("paid",)),
    NodeScheduled(**AT, until=9, held=True, hop=4, resumed=b"null", recall=True),
    NodeStarted(**AT, attempt=2, token=99, worker="w1", admission=ADMISSION),
    NodeCheckpointed(**AT, attempt=2, value=b'{"page":7}'),
    NodeExpanded(**AT, count=1_000, items=BLOB, window=50, token=99, admission=ADMISSION),
    NodeWaiting(
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
    NodeCompleted(**END, **ATTEMPT, output=BLOB, waited_ms=40, route=ROUTE, size=70_000, undoable=True),
    NodeFailed(
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
    NodeSkipped(**END, reason="when", token=99, reads=READS),
    NodeCancelled(**END, reason="the run was cancelled", unknown=True),
    LoopContinued(**FACT, node="d", entry="a", iteration=2, body=("a", "b", "d"), hop=6),
    ResultDiscarded(**AT, attempt=2, token=99, outcome="Done", reason="stale", worker="w1"),
    DeadLettered(**AT, attempts=3, error=ERROR),
    ApprovalRequested(
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
    ApprovalVoted(**AT, **VOTE),
    ApprovalDelegated(**AT, by="user:ann", to="user:cleo", comments="on leave"),
    ApprovalReturned(**AT, **VOTE),
    ApprovalDecided(**AT, **VOTE, decision="reject"),
    ApprovalEscalated(**AT, to=("role:board",), expires_ms=1_760_000_120_000),
    ApprovalExpired(**AT),
    SignalReceived(**AT, name="paid", signal="s-1", payload=b'{"eur":12}'),
    ChildStarted(**AT, child="run-0.a", workflow="billing", version=4, digest="sha256:cd"),
    ChildFinished(**AT, child="run-0.a", status="FAILED", error=ERROR),
    RunRetried(
        **FACT,
        nodes=(Reopened("a", 2, 1), Reopened("b", 1, 0)),
        emitted=1,
        counter=2,
        renders=True,
        deadline_at_ms=1_760_000_060_000,
        reason="again",
        sure=("a",),
    ),
    RunRewound(
        **FACT,
        node="a",
        nodes=(Reopened("a", 3, 1),),
        emitted=1,
        consumed=2,
        counter=3,
        restarted=("d",),
        reason="wrong data",
        undecided=(("d", "z"),),
    ),
    RunPatched(
        **FACT,
        base="sha256:ab",
        digest="sha256:cd",
        revision=1,
        patch=b"[]",
        added=("x",),
        removed=("y",),
        changed=("a",),
        joins=(Join("x", (("a", True),), 1, True),),
        relisted=("m",),
        emitted=2,
        consumed=1,
        counter=3,
        deadline_at_ms=1_760_000_060_000,
        message="fix",
    ),
    RunForked(**FACT, run="run-9", at=17, deadline_at_ms=1_760_000_060_000, reason="what if"),
    RunLabelled(**FACT, labels={"customer": "acme"}),
    NodeOverridden(**END, status="COMPLETED", output=b"1", reason="by hand", size=1, undoable=True),
    DeadLetterClosed(**AT, status="discarded", reason="no matter"),
    RollbackStarted(**FACT, steps=3, unknown=("a/1/-1",), reason="automatic"),
    RollbackFinished(**FACT, status="partial", left=("a/1/-1",)),
    CompensationScheduled(**AT, of=12),
    CompensationCompleted(**AT, **ATTEMPT, output=b"1"),
    CompensationFailed(**AT, **ATTEMPT, error=ERROR, retry_at_ms=1_760_000_003_000, lost=True),
)


def golden() -> dict[str, list[str]]:
    """The present bytes of every sample, in hex, by event type."""
    return {type(event).__name__: [encode_event(event).hex()] for event in SAMPLES}


if __name__ == "__main__":
    print(json.dumps(golden(), indent=2))
