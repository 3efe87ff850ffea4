"""The facts of a run: one closed set, tagged and versioned.

An event is written once and read for ever, so its bytes are a promise: fields are positional, new ones are
appended with a default, and anything else is a new format `v` with an upcast in `codec.py`. The run and the
seq are not stored inside: they are the stream's name and the record's place in it. Values (outputs, inputs)
travel as JSON text or as a reference to a blob, never as decoded objects, so folding a log decodes nothing.
"""

from __future__ import annotations

from tidemill.kernel.events.acts import (
    ActEvents,
    CompensationCompleted,
    CompensationFailed,
    CompensationScheduled,
    DeadLetterClosed,
    Join,
    NodeOverridden,
    Reopened,
    RollbackFinished,
    RollbackStarted,
    RunForked,
    RunLabelled,
    RunPatched,
    RunRetried,
    RunRewound,
)
from tidemill.kernel.events.nodes import (
    DeadLettered,
    LoopContinued,
    NodeCancelled,
    NodeCheckpointed,
    NodeCompleted,
    NodeEvents,
    NodeExpanded,
    NodeFailed,
    NodeScheduled,
    NodeSkipped,
    NodeStarted,
    NodeWaiting,
    ResultDiscarded,
)
from tidemill.kernel.events.runs import (
    RunCancelled,
    RunCompleted,
    RunCreated,
    RunEvents,
    RunFailed,
    RunPaused,
    RunRepaired,
    RunResumed,
)
from tidemill.kernel.events.values import (
    INLINE_BYTES_MAX,
    NOT_AN_ITEM,
    Admission,
    BlobRef,
    Ending,
    Error,
    Event,
    NodeEvent,
    Payload,
    Reading,
    Route,
)
from tidemill.kernel.events.waits import (
    SYSTEM,
    ApprovalDecided,
    ApprovalDelegated,
    ApprovalEscalated,
    ApprovalEvent,
    ApprovalEvents,
    ApprovalExpired,
    ApprovalRequested,
    ApprovalReturned,
    ApprovalVoted,
    ChildFinished,
    ChildStarted,
    SignalReceived,
    WaitEvents,
)

AnyEvent = RunEvents | NodeEvents | WaitEvents | ActEvents

__all__ = [
    "INLINE_BYTES_MAX", "NOT_AN_ITEM", "SYSTEM", "ActEvents", "Admission", "AnyEvent", "ApprovalDecided",
    "ApprovalDelegated", "ApprovalEscalated", "ApprovalEvent", "ApprovalEvents", "ApprovalExpired", "ApprovalRequested",
    "ApprovalReturned", "ApprovalVoted", "BlobRef", "ChildFinished", "ChildStarted", "CompensationCompleted",
    "CompensationFailed", "CompensationScheduled", "DeadLetterClosed", "DeadLettered", "Ending", "Error", "Event",
    "Join", "LoopContinued", "NodeCancelled", "NodeCheckpointed", "NodeCompleted", "NodeEvent", "NodeEvents",
    "NodeExpanded", "NodeFailed", "NodeOverridden", "NodeScheduled", "NodeSkipped", "NodeStarted", "NodeWaiting",
    "Payload", "Reading", "Reopened", "ResultDiscarded", "RollbackFinished", "RollbackStarted", "Route", "RunCancelled",
    "RunCompleted", "RunCreated", "RunEvents", "RunFailed", "RunForked", "RunLabelled", "RunPatched", "RunPaused",
    "RunRepaired", "RunResumed", "RunRetried", "RunRewound", "SignalReceived", "WaitEvents",
]  # fmt: skip
