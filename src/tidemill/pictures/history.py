"""What a run did and when, folded from its events: the segments of every attempt, and the edges that were decided.

An event says when something ended and how long it took, so a segment is known once it has ended. What is under way
reaches to `until_ms`. The events are those of `mill.events(run_id)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from tidemill.kernel.events import NOT_AN_ITEM

SegmentKind = Literal["queued", "running", "failed", "waiting", "retry"]
"""`failed` is an attempt that failed; `retry` the back-off before the next one."""

WORK: frozenset[SegmentKind] = frozenset({"running", "failed"})

EventData = Mapping[str, Any]


Place = tuple[bool, str, int, int]
"""Whether it is undone, node, visit and item."""


class Segment(NamedTuple):
    kind: SegmentKind
    begin_ms: int
    end_ms: int
    attempt: int = 0
    under_way: bool = False


@dataclass(slots=True)
class Track:
    """The segments of one activation, or of one step of a rollback."""

    place: Place
    segments: list[Segment] = field(default_factory=list)
    phase: SegmentKind | None = None
    since_ms: int = 0
    started_ms: int | None = None
    retry_at_ms: int | None = None
    attempt: int = 0
    cause: int = 0
    """The seq of the event that made it ready."""

    def enter(self, phase: SegmentKind | None, at_ms: int) -> None:
        self.phase, self.since_ms, self.started_ms = phase, at_ms, None
        if phase != "retry":
            self.retry_at_ms = None

    def add(self, kind: SegmentKind, begin_ms: int, end_ms: int, *, under_way: bool = False) -> None:
        # What took no time is left out, unless it is an attempt.
        if end_ms > begin_ms or kind in WORK:
            attempt = self.attempt if kind in WORK else 0
            self.segments.append(Segment(kind, begin_ms, max(begin_ms, end_ms), attempt, under_way))

    def leave(self, at_ms: int, *, under_way: bool = False) -> None:
        """End the phase without an attempt."""
        if self.phase == "retry":
            ready_ms = at_ms if self.retry_at_ms is None else min(max(self.retry_at_ms, self.since_ms), at_ms)
            self.add("retry", self.since_ms, ready_ms, under_way=under_way)
            self.add("queued", ready_ms, at_ms, under_way=under_way)
        elif self.phase is not None:
            self.add(self.phase, self.since_ms, at_ms, under_way=under_way)

    def work(self, kind: SegmentKind, at_ms: int, duration_ms: int, *, under_way: bool = False) -> None:
        """An attempt that ended now; the phase before it lasted until it began."""
        begin_ms = at_ms - duration_ms
        if self.started_ms is not None:
            begin_ms = min(begin_ms, self.started_ms)
        begin_ms = max(begin_ms, self.since_ms) if self.phase is not None else begin_ms
        self.leave(begin_ms)
        self.add(kind, begin_ms, at_ms, under_way=under_way)


class Row(NamedTuple):
    """What belongs on one line of a timeline: all visits of a node, or one step of a rollback."""

    node: str
    undo: bool
    items: bool
    """Whether the tracks are items of a map, many of them at a time."""
    tracks: list[Track]

    @property
    def begin_ms(self) -> int:
        return min(track.segments[0].begin_ms for track in self.tracks)

    @property
    def elapsed_ms(self) -> int:
        """The time during which any of its attempts was at work, waiting or backing off; queues do not count."""
        return _total_ms(span for track in self.tracks for span in _spans_of(track))


def merged(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans in the order of their beginnings, with those that touch joined."""
    current: tuple[int, int] | None = None
    for begin, end in spans:
        if current is None:
            current = (begin, end)
        elif begin <= current[1]:
            current = (current[0], max(current[1], end))
        else:
            yield current
            current = (begin, end)
    if current is not None:
        yield current


def _spans_of(track: Track) -> Iterator[tuple[int, int]]:
    """When it was at work, waiting or backing off."""
    return ((segment.begin_ms, segment.end_ms) for segment in track.segments if segment.kind != "queued")


def _total_ms(spans: Iterable[tuple[int, int]]) -> int:
    return sum(end - begin for begin, end in merged(sorted(spans)))


class VisitTimes:
    """How long the latest visit of each node has taken, as `Row.elapsed_ms` counts, while the events come.

    Of activations that have ended only joined spans are kept.
    """

    def __init__(self, events: Iterable[EventData] = ()) -> None:
        self._visits: dict[str, int] = {}
        self._spans: dict[str, list[tuple[int, int]]] = {}
        self._open: dict[str, dict[int, Track]] = {}
        """By node and item."""
        self._begun: set[str] = set()
        for event in events:
            self.fold(event)

    def fold(self, event: EventData) -> None:
        if event["type"] not in _ATTEMPT_EVENTS:
            return
        node, visit = event["node"], event["visit"]
        if visit != self._visits.get(node):
            self._visits[node], self._spans[node], self._open[node] = visit, [], {}
            self._begun.discard(node)
        if event["type"] == "NodeScheduled" and not event.get("held"):
            self._begun.add(node)
        elif event["type"] == "NodeSkipped":
            self._begun.discard(node)
        spans, tracks = self._spans[node], self._open[node]
        for index in _items_of(event):
            track = tracks.get(index) or tracks.setdefault(index, Track((False, node, visit, index)))
            _fold_attempt(event, track)
            spans += _spans_of(track)
            track.segments.clear()
            if track.phase is None:
                del tracks[index]
        if len(spans) > SPANS_MAX:
            spans[:] = merged(sorted(spans))

    def elapsed_ms(self, node: str, now_ms: int = 0) -> int | None:
        """None: its latest visit has not begun, or was skipped. What is under way reaches to `now_ms`."""
        if node not in self._begun:
            return None
        spans = list(self._spans[node])
        for track in self._open[node].values():
            begin_ms = track.started_ms if track.phase == "queued" else track.since_ms
            if begin_ms is not None:
                spans.append((begin_ms, max(begin_ms, now_ms)))
        return _total_ms(spans)


SPANS_MAX = 64


class History:
    """Everything that pictures need of a log."""

    def __init__(self, events: Iterable[EventData], until_ms: int | None = None) -> None:
        self.begin_ms: int | None = None
        self.end_ms = 0
        self.taken: set[tuple[str, str]] = set()
        self.dead: set[tuple[str, str]] = set()
        self.pauses: list[tuple[int, int]] = []
        self._paused_ms: int | None = None
        self._tracks: dict[Place, Track] = {}
        self._origins: dict[int, Track | int] = {}
        """By seq: the track of an event, or the seq of the event that led to it."""
        self._last = self._ended = 0
        for event in events:
            self._fold(event)
        self.end_ms = max(self.end_ms, until_ms or 0)
        self._close()
        self.rows = self._rows()

    def _fold(self, event: EventData) -> None:
        at_ms = event["at_ms"]
        self.begin_ms = at_ms if self.begin_ms is None else self.begin_ms
        self.end_ms = max(self.end_ms, at_ms)
        kind = event["type"]
        seq = self._last = event.get("seq", 0)
        self._origins[seq] = event.get("cause", 0)
        if kind in ("RunCompleted", "RunFailed", "RunRetried", "RunRewound"):
            self._ended = seq if kind in ("RunCompleted", "RunFailed") else 0
        if kind == "RunPaused":
            self._paused_ms = at_ms
        elif kind in ("RunResumed", "RunCancelled") and self._paused_ms is not None:
            self.pauses.append((self._paused_ms, at_ms))
            self._paused_ms = None
        elif kind.startswith("Compensation"):
            self._origins[seq] = track = self._track(event, undo=True)
            _fold_attempt(event, track)
        elif kind in _ATTEMPT_EVENTS:
            self._note_edges(event)
            for index in _items_of(event):
                self._origins[seq] = track = self._track(event, index=index)
                _fold_attempt(event, track)

    def after(self, track: Track) -> list[Any] | None:
        """Node, visit and item of what it followed; of several, the one that ended last made it ready."""
        found = self._origin(track.cause, track)
        return None if found is None else list(found.place[1:])

    @property
    def last(self) -> list[Any] | None:
        """Node, visit and item of what led to the end of the run, or else to its last event."""
        found = self._origin(self._ended or self._last, None)
        return None if found is None else list(found.place[1:])

    def _origin(self, seq: int, besides: Track | None) -> Track | None:
        while seq:
            found = self._origins.get(seq, 0)
            if isinstance(found, int):
                following = found
            elif found is not besides and found.segments:
                return found
            else:
                # Skipped visits have a cause too.
                following = found.cause
            seq = following if following < seq else 0
        return None

    def _note_edges(self, event: EventData) -> None:
        node = event["node"]
        self.taken.update((node, target) for target in event.get("taken", ()))
        self.dead.update((node, target) for target in event.get("dead", ()))
        self.dead.update((source, target) for source, target in event.get("dead_escapes", ()))

    def _track(self, event: EventData, *, undo: bool = False, index: int | None = None) -> Track:
        index = event.get("index", NOT_AN_ITEM) if index is None else index
        place = (undo, event["node"], event["visit"], index)
        track = self._tracks.get(place)
        if track is None:
            track = self._tracks[place] = Track(place, cause=event.get("cause", 0))
        return track

    def _close(self) -> None:
        if self._paused_ms is not None:
            self.pauses.append((self._paused_ms, self.end_ms))
        for track in self._tracks.values():
            if track.started_ms is not None:
                track.work("running", self.end_ms, 0, under_way=True)
            else:
                track.leave(self.end_ms, under_way=True)

    def _rows(self) -> list[Row]:
        found: dict[tuple[bool, str], list[Track]] = {}
        maps = {node for _, node, _, index in self._tracks if index != NOT_AN_ITEM}
        for (undo, node, _, _), track in self._tracks.items():
            if track.segments:
                found.setdefault((undo, node), []).append(track)
        rows = [Row(node, undo, node in maps, tracks) for (undo, node), tracks in found.items()]
        return sorted(rows, key=lambda row: row.begin_ms)


def _fold_attempt(event: EventData, track: Track) -> None:
    at_ms, duration_ms = event["at_ms"], event.get("duration_ms", 0)
    track.attempt = event.get("attempt", track.attempt)
    match event["type"]:
        case "NodeScheduled" | "CompensationScheduled":
            track.leave(at_ms)
            track.enter("queued", at_ms)
        case "NodeStarted":
            track.started_ms = at_ms
        case "NodeWaiting":
            track.work("running", at_ms, duration_ms)
            track.enter("waiting", at_ms)
        case "NodeFailed" | "CompensationFailed" if track.phase not in (None, "waiting"):
            track.work("failed", at_ms, duration_ms)
            _after_failure(event, track)
        case "NodeFailed":
            track.leave(at_ms)
            _after_failure(event, track)
        case "NodeCompleted" | "CompensationCompleted" if track.phase not in (None, "waiting"):
            track.work("running", at_ms, duration_ms)
            track.enter(None, at_ms)
        case _:
            # The end of a wait, of a map or of a visit that no worker has begun, or a map that has become items.
            if track.started_ms is not None and event["type"] == "NodeCancelled":
                track.work("running", at_ms, 0)
            else:
                track.leave(at_ms)
            track.enter(None, at_ms)


def _after_failure(event: EventData, track: Track) -> None:
    retry_at_ms = event.get("retry_at_ms")
    track.enter(None if retry_at_ms is None else "retry", event["at_ms"])
    track.retry_at_ms = retry_at_ms


def _items_of(event: EventData) -> range:
    """The items that an event is about; of no item it is the visit itself."""
    first = event.get("index", NOT_AN_ITEM)
    return range(first, max(event.get("until", NOT_AN_ITEM), first + 1))


_ATTEMPT_EVENTS = frozenset(
    {"NodeScheduled", "NodeStarted", "NodeExpanded", "NodeWaiting", "NodeCompleted", "NodeFailed"}
    | {"NodeSkipped", "NodeCancelled", "NodeOverridden"}
)
