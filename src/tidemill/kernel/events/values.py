"""What facts are made of: values as they are stored, errors, routes, and the fields that every event has.

Everything is positional, so a new field is appended with a default and never inserted.
"""

from __future__ import annotations

import msgspec

INLINE_BYTES_MAX = 65_536
"""Values longer than this are stored by content and referenced."""

NOT_AN_ITEM = -1
"""The `index` of an activation that is not an item of a map."""


class BlobRef(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A value stored by content outside the log."""

    digest: str
    size: int
    media_type: str = "application/json"
    name: str = ""


Payload = bytes | BlobRef
"""A JSON value: its text, or where its text is."""


class Error(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Why a visit or attempt failed; always serialisable, whatever the exception held."""

    code: str
    message: str
    type: str = ""
    retryable: bool = False
    hint: str = ""
    causes: tuple[str, ...] = ()
    traceback: str = ""
    index: int = NOT_AN_ITEM
    """The failing item, when a map failed because of one."""


Reading = tuple[str, str]
"""A value that a decision was made over: its name, and the digest of its text."""


class Route(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What a worker found when it evaluated a node's conditions; recorded, never evaluated again."""

    again: bool | None = None
    """The loop's condition: True for one more pass. None on a node without a loop."""
    branch: tuple[str, ...] | None = None
    """Targets the branch chose; None when no branch was evaluated."""
    rule: int = -1
    """Which rule of the branch matched; -1 is the default."""
    reason: str = ""
    """Why the branch went this way."""
    again_reason: str = ""
    """Why the loop goes on or ends."""
    reads: tuple[Reading, ...] = ()


class Admission(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How `when` was decided, once and for the whole visit, where it was true."""

    reason: str
    reads: tuple[Reading, ...] = ()


class Event(msgspec.Struct, frozen=True, gc=False, array_like=True, kw_only=True):
    """What every fact carries. `cause` is the seq that led to it, 0 when somebody outside did."""

    v: int = 1
    at_ms: int = 0
    cause: int = 0
    actor: str | None = None
    command: str | None = None


class NodeEvent(Event, frozen=True, array_like=True, kw_only=True):
    """A fact about one activation of a node."""

    node: str
    visit: int
    index: int = NOT_AN_ITEM


class Ending(NodeEvent, frozen=True, array_like=True, kw_only=True):
    """A fact that may end a visit: it decides edges, consumes tokens and emits others, all at once.

    `counter` is the run's token count after this fact. An edge listed in `dead_escapes` belongs to another
    node of a loop that is over. An attempt that is tried again and an item of a map decide no edges.
    """

    taken: tuple[str, ...] = ()
    dead: tuple[str, ...] = ()
    dead_escapes: tuple[tuple[str, str], ...] = ()
    emitted: int = 0
    consumed: int = 0
    counter: int = 0
    renders: bool = False
    """This was the last visit: the one token left stands for the rendering of the run's outputs."""
