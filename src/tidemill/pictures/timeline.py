"""The timeline of a run as SVG: one row per node, attempts as bars, waits and back-offs between them.

Times in which no node works are drawn short, with a mark, so that a night of waiting does not hide a second of work.
Items of a map that overlap share the height of their row; more than a few become one bar.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from tidemill.kernel.model import Node
from tidemill.pictures.figure import (
    DASHED,
    DOTTED,
    MIDDLE,
    RIGHT,
    STATUS_SIGNS,
    Content,
    TableRow,
    escaped,
    figure,
    line_at,
    number,
    page,
    rect_at,
    sign_at,
    table,
    text_at,
)
from tidemill.pictures.history import WORK, EventData, History, Row, Segment, SegmentKind, merged
from tidemill.pictures.labels import duration, fitted, text_width, type_name
from tidemill.pictures.svg import RunFacts, RunState, run_figure, run_heading

AXIS_WIDTH = 620.0
AXIS_HEIGHT = 26.0
ROW_HEIGHT, BAR_HEIGHT = 28.0, 16.0
NAME_WIDTH_MAX, TOTAL_WIDTH = 190.0, 64.0
NAME_SIZE = 12.0
BAR_WIDTH_MIN = 3.0
LANES_MAX = 4
TICKS_MAX, TICK_DISTANCE_MIN = 8, 62.0
GAP_SHARE, GAP_DRAWN = 0.6, 0.25
"""A gap longer than the first share of all other time is drawn as long as the second one."""
_STEPS_MS = [
    *(step * 10**power for power in range(4) for step in (1, 2, 5)),
    *(1000 * seconds for seconds in (10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600, 43200, 86400, 604800)),
]


def timeline_svg(view: RunFacts, events: Iterable[EventData], *, now_ms: int | None = None) -> str:
    """Draw when the nodes of a run were queued, at work, waiting and backing off."""
    return _timeline_figure(view, History(events, now_ms if view.ended_ms is None else None), now_ms)


def run_html(view: RunFacts, events: Iterable[EventData], *, now_ms: int | None = None) -> str:
    """An HTML page with the graph of a run, its timeline and a table of its nodes."""
    history = History(events, now_ms if view.ended_ms is None else None)
    title = f"{view.workflow}@{view.version} {view.run_id}"
    drawn = run_figure(view, history, now_ms), _timeline_figure(view, history, now_ms)
    return page(title, *drawn, table(("Node", "Type", "Status", "", "Error"), _table_rows(view, history)))


def _table_rows(view: RunFacts, history: History) -> Iterator[TableRow]:
    state = RunState(view, history)
    for node in view.graph.nodes if view.graph is not None else ():
        error = view.nodes.get(node.id, {}).get("error") or {}
        said = f"{error.get('message', '')} [{error.get('code', '')}]" if error else ""
        facts = " · ".join(state.facts(node))
        yield TableRow(STATUS_SIGNS[state.status(node)], (node.id, type_name(node), state.word(node), facts, said))


def _timeline_figure(view: RunFacts, history: History, now_ms: int | None) -> str:
    heading = run_heading(view, now_ms)
    known = {node.id: node for node in view.graph.nodes} if view.graph is not None else {}
    return figure(heading, _timeline(history, RunState(view, history), known))


class Gap(NamedTuple):
    """A time in which no node works, drawn shorter than it was."""

    begin_ms: int
    end_ms: int

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.begin_ms


class TimeScale:
    """Maps times to places on the axis; straight between its stops."""

    def __init__(self, begin_ms: int, end_ms: int, work: Sequence[tuple[int, int]], width: float) -> None:
        idle = [Gap(begin, end) for begin, end in _between(begin_ms, end_ms, work)]
        kept, limit = _drawn_in_full(end_ms - begin_ms, [gap.length_ms for gap in idle])
        self.gaps = [gap for gap in idle if gap.length_ms > limit]
        self.width = width
        self._times, self._places = [begin_ms], [0.0]
        for gap in self.gaps:
            self._stop(gap.begin_ms, self._places[-1] + gap.begin_ms - self._times[-1])
            self._stop(gap.end_ms, self._places[-1] + kept * GAP_DRAWN)
        self._stop(end_ms, self._places[-1] + end_ms - self._times[-1])
        self.drawn_ms = max(self._places[-1], 1.0)

    def _stop(self, at_ms: int, place: float) -> None:
        self._times.append(at_ms)
        self._places.append(place)

    def x(self, at_ms: float) -> float:
        place = min(max(bisect_right(self._times, at_ms) - 1, 0), len(self._times) - 2)
        begin, end = self._times[place], self._times[place + 1]
        share = (at_ms - begin) / (end - begin) if end > begin else 0.0
        along = self._places[place] + min(max(share, 0.0), 1.0) * (self._places[place + 1] - self._places[place])
        return along / self.drawn_ms * self.width

    def middle(self, gap: Gap) -> float:
        return (self.x(gap.begin_ms) + self.x(gap.end_ms)) / 2

    def ticks(self) -> Iterator[tuple[int, str]]:
        """Round times and their words, not too close: since the beginning, and after a gap since its end."""
        step = next((step for step in _STEPS_MS if self.drawn_ms / step <= TICKS_MAX), _STEPS_MS[-1])
        last_x = -TICK_DISTANCE_MIN
        begin_ms, sign = self._times[0], ""
        for gap in (*self.gaps, Gap(self._times[-1] + 1, 0)):
            for at_ms in range(begin_ms + (step if sign else 0), gap.begin_ms, step):
                x = self.x(at_ms)
                if x - last_x >= TICK_DISTANCE_MIN and all(abs(x - self.middle(each)) > 52 for each in self.gaps):
                    last_x = x
                    since = sign + duration(at_ms - begin_ms).replace(".0 s", " s")
                    yield at_ms, since if at_ms > begin_ms else "0"
            begin_ms, sign = gap.end_ms, "+"


def _drawn_in_full(total_ms: int, idle: Sequence[int]) -> tuple[int, int]:
    """How much time is drawn at its full length, and up to which length a gap belongs to it."""
    kept, limit = total_ms - sum(idle), 0
    for length in sorted(idle):
        if kept and length > kept * GAP_SHARE:
            break
        kept, limit = kept + length, length
    return max(kept, 1), limit


def _between(begin_ms: int, end_ms: int, work: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    at = begin_ms
    for begin, end in work:
        if begin > at:
            yield at, begin
        at = max(at, end)
    if end_ms > at:
        yield at, end_ms


def _timeline(history: History, state: RunState, known: dict[str, Node]) -> Content:
    begin_ms = history.begin_ms or 0
    spans = sorted(
        (segment.begin_ms, segment.end_ms)
        for row in history.rows
        for track in row.tracks
        for segment in track.segments
        if segment.kind in WORK
    )
    scale = TimeScale(begin_ms, max(history.end_ms, begin_ms + 1), list(merged(spans)), AXIS_WIDTH)
    names = [_name(row) for row in history.rows]
    left = 28.0 + min(NAME_WIDTH_MAX, max((text_width(name, NAME_SIZE) for name in names), default=0.0)) + 12.0
    height = AXIS_HEIGHT + ROW_HEIGHT * len(names)
    parts = [*_axis(scale, left, height), *_bands(scale, history, left, height)]
    for place, (row, name) in enumerate(zip(history.rows, names, strict=True)):
        parts += _row(row, name, state, known, scale, left, AXIS_HEIGHT + ROW_HEIGHT * place)
    return Content(left + AXIS_WIDTH + TOTAL_WIDTH, height, parts, _key(history, scale))


def _name(row: Row) -> str:
    return f"undo {row.node}" if row.undo else row.node


def _axis(scale: TimeScale, left: float, height: float) -> Iterator[str]:
    for at_ms, words in scale.ticks():
        x = left + scale.x(at_ms)
        yield line_at(f"M{number(x)} {number(AXIS_HEIGHT - 6)}V{number(height)}", "frame", 1)
        yield text_at(x, 12, words, "soft", more=MIDDLE)


def _bands(scale: TimeScale, history: History, left: float, height: float) -> Iterator[str]:
    for begin, end in history.pauses:
        x, width = scale.x(begin), max(scale.x(end) - scale.x(begin), BAR_WIDTH_MIN)
        yield f"<g><title>{escaped(f'paused for {duration(end - begin)}')}</title>"
        yield rect_at(left + x, AXIS_HEIGHT - 6, width, height - AXIS_HEIGHT + 6, "f-wait-pale") + "</g>"
    for gap in scale.gaps:
        middle = left + scale.middle(gap)
        zigzag = "l4 5l-4 5" * int((height - AXIS_HEIGHT) // 10)
        for x in (middle - 5, middle + 1):
            yield line_at(f"M{number(x)} {number(AXIS_HEIGHT)}{zigzag}", "frame", 1.2)
        yield text_at(middle, 12, f"⋯ {duration(gap.length_ms)}", "soft", more=MIDDLE)


def _row(
    row: Row, name: str, state: RunState, known: dict[str, Node], scale: TimeScale, left: float, top: float
) -> Iterator[str]:
    middle = top + ROW_HEIGHT / 2
    node = known.get(row.node)
    status = "UNDONE" if row.undo else state.status(node) if node is not None else "PENDING"
    yield sign_at(8, middle, STATUS_SIGNS[status])
    yield f"<g><title>{escaped(name)}</title>"
    yield text_at(24, middle + 4, fitted(name, NAME_SIZE, NAME_WIDTH_MAX), "text", NAME_SIZE) + "</g>"
    lanes = _lanes(row)
    height = BAR_HEIGHT / len(lanes) - (1.0 if len(lanes) > 1 else 0.0)
    for place, segments in enumerate(lanes):
        y = middle - BAR_HEIGHT / 2 + place * (BAR_HEIGHT / len(lanes))
        for segment in segments:
            yield _segment(segment, scale, left, y, height)
    yield text_at(left + AXIS_WIDTH + TOTAL_WIDTH, middle + 4, duration(row.elapsed_ms), "soft", more=RIGHT)


def _lanes(row: Row) -> list[list[Segment]]:
    """The segments of a row; items of a map that overlap get lanes of their own, as long as these are few."""
    if not row.items:
        return [[segment for track in row.tracks for segment in track.segments]]
    # Hundreds of items may be queued at a time, so only what follows counts.
    items = [[segment for segment in track.segments if segment.kind != "queued"] for track in row.tracks]
    lanes: list[list[Segment]] = []
    for segments in sorted((each for each in items if each), key=lambda each: each[0].begin_ms):
        lane = next((lane for lane in lanes if lane[-1].end_ms <= segments[0].begin_ms), None)
        if lane is not None:
            lane += segments
        elif len(lanes) == LANES_MAX:
            return [_united(row)]
        else:
            lanes.append(segments)
    return lanes or [[segment for track in row.tracks[:1] for segment in track.segments]]


def _united(row: Row) -> list[Segment]:
    """One lane: when any activation was at work, and when any attempt failed."""
    found: list[Segment] = []
    kinds: tuple[SegmentKind, ...] = ("waiting", "running", "failed")
    for kind in kinds:
        segments = [each for track in row.tracks for each in track.segments if each.kind == kind]
        spans = sorted((each.begin_ms, each.end_ms) for each in segments)
        found += [Segment(kind, begin, end) for begin, end in merged(spans)]
    return found


def _segment(segment: Segment, scale: TimeScale, left: float, top: float, height: float) -> str:
    x, end = left + scale.x(segment.begin_ms), left + scale.x(segment.end_ms)
    middle = top + height / 2
    line = f"M{number(x)} {number(middle)}H{number(max(end, x + 1))}"
    words = {"running": "ran", "failed": "failed", "waiting": "waited", "retry": "backed off", "queued": "queued"}
    about = f"attempt {segment.attempt} {words[segment.kind]}" if segment.attempt else words[segment.kind]
    title = f"<title>{escaped(f'{about}: {duration(segment.end_ms - segment.begin_ms)}')}</title>"
    match segment.kind:
        case "queued":
            drawn = line_at(line, "link", 1.5)
        case "retry":
            drawn = line_at(line, "wait", 1.8, DOTTED)
        case "waiting":
            more = ' rx="3" stroke-width="1.2"' + DASHED
            drawn = rect_at(x, top + 0.6, max(end - x, BAR_WIDTH_MIN), height - 1.2, "f-wait-pale s-wait", more)
        case kind:
            role = "bad" if kind == "failed" else "busy" if segment.under_way else "done"
            width = max(end - x - 0.5, BAR_WIDTH_MIN)
            drawn = rect_at(x, top, width, height, f"f-{role}", f' rx="{number(min(3.0, height / 3, width / 3))}"')
            if kind == "failed" and width > 12 and height > 10:
                cross = f"M{number(x + width / 2 - 3)} {number(middle - 3)}l6 6m0 -6l-6 6"
                drawn += line_at(cross, "page", 1.6, ' stroke-linecap="round"')
    return f"<g>{title}{drawn}</g>"


def _key(history: History, scale: TimeScale) -> list[tuple[str, str]]:
    segments = [segment for row in history.rows for track in row.tracks for segment in track.segments]
    at_work = any(each.under_way and each.kind in WORK for each in segments)
    kinds = {segment.kind for segment in segments if not segment.under_way or segment.kind not in WORK}
    cross = line_at("M-3 -3l6 6m0 -6l-6 6", "page", 1.6, ' stroke-linecap="round"')
    bar = ' rx="3"'
    entries = (
        ("running" in kinds, rect_at(-10, -6, 20, 12, "f-done", bar), "worked"),
        (at_work, rect_at(-10, -6, 20, 12, "f-busy", bar), "is working"),
        ("failed" in kinds, rect_at(-10, -6, 20, 12, "f-bad", bar) + cross, "attempt failed"),
        ("waiting" in kinds, rect_at(-10, -6, 20, 12, "f-wait-pale s-wait", bar + DASHED), "waited"),
        ("retry" in kinds, line_at("M-10 0H10", "wait", 1.8, DOTTED), "backed off"),
        ("queued" in kinds, line_at("M-10 0H10", "link", 1.5), "queued"),
        (bool(history.pauses), rect_at(-10, -6, 20, 12, "f-wait-pale"), "run paused"),
        (bool(scale.gaps), line_at("M-4 -6l4 4l-6 4l4 4M2 -6l4 4l-6 4l4 4", "soft", 1.2), "idle time, drawn short"),
    )
    return [(drawn, word) for used, drawn, word in entries if used]
