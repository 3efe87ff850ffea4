// When the nodes of a run were queued, at work, waiting and backing off. Rows are virtual; idle times are compressed.
import { keepPreviousData, useQuery } from "@tanstack/react-query";
import { useVirtualizer } from "@tanstack/react-virtual";
import { memo, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, type KeyboardEvent } from "react";
import { api, seg } from "../../api/client";
import { Empty, ErrorState, Icon, IconButton, Loading, StatusIcon, absolute, duration, signOf, useNow } from "../../ui";
import { hasEnded, signOfNode, type RunModel } from "../model";
import { useRefetch } from "../refetch";
import { useSelection } from "../selection";
import { criticalPath, elapsed, isWork, linesOf, merged, placeKey, summary, type CriticalPath, type Line, type Segment, type SegmentKind, type Timeline } from "./data";
import { TimeScale } from "./scale";
import css from "./timeline.module.css";

const ROW = 30;
const ZOOMS = [1, 1.5, 2, 3, 5, 8, 12, 20, 40];
const TICK_DISTANCE = 84;
const BAR_MIN = 3;
/** Room for the time behind the last bar. */
const END = 72;

const KINDS: { kind: SegmentKind; word: string }[] = [
  { kind: "queued", word: "queued" },
  { kind: "running", word: "running" },
  { kind: "failed", word: "failed attempt" },
  { kind: "waiting", word: "waiting" },
  { kind: "retry", word: "waiting to retry" },
];
const WORDS = Object.fromEntries(KINDS.map(({ kind, word }) => [kind, word])) as Record<SegmentKind, string>;

export function TimelineView({ model }: { model: RunModel }) {
  const { id, at, run } = model;
  const key = ["run", id, "timeline", at];
  const answer = useQuery({
    queryKey: key,
    queryFn: async () => {
      const timeline = await api<Timeline>("GET", `/runs/${seg(id)}/timeline`, { query: { at: at ?? undefined } });
      // The clocks of server and browser may differ.
      return { timeline, ahead: timeline.end_ms - Date.now() };
    },
    staleTime: at === null ? 0 : Infinity,
    placeholderData: keepPreviousData,
  });
  useRefetch(key, run.events, at === null);
  if (answer.data === undefined) {
    return answer.error ? <ErrorState error={answer.error} what="the timeline" onRetry={() => void answer.refetch()} /> : <Loading label="Loading the timeline" />;
  }
  const { timeline, ahead } = answer.data;
  if (timeline.rows.length === 0) return <Empty title="Nothing has begun yet" icon="clock">The timeline begins with the first node that is queued.</Empty>;
  return at === null && !hasEnded(run) ? <Ticking model={model} timeline={timeline} ahead={ahead} /> : <Chart model={model} timeline={timeline} />;
}

/** What is under way grows with the clock. */
function Ticking({ model, timeline, ahead }: { model: RunModel; timeline: Timeline; ahead: number }) {
  const now = useNow() + ahead;
  const grown = useMemo(() => until(timeline, Math.max(timeline.end_ms, now)), [timeline, now]);
  return <Chart model={model} timeline={grown} />;
}

function until(timeline: Timeline, end: number): Timeline {
  if (end <= timeline.end_ms) return timeline;
  return {
    ...timeline,
    end_ms: end,
    rows: timeline.rows.map((row) => {
      if (!row.tracks.some((track) => track.segments.at(-1)?.[4])) return row;
      return {
        ...row,
        tracks: row.tracks.map((track) => {
          const last = track.segments.at(-1);
          if (!last?.[4]) return track;
          const [kind, begin, , attempt] = last;
          return { ...track, segments: [...track.segments.slice(0, -1), [kind, begin, end, attempt, true] as Segment] };
        }),
      };
    }),
  };
}

function Chart({ model, timeline }: { model: RunModel; timeline: Timeline }) {
  const selection = useSelection();
  const [zoom, setZoom] = useState(0);
  const [compressed, setCompressed] = useState(true);
  const [showCritical, setShowCritical] = useState(true);
  const [open, setOpen] = useState<ReadonlySet<string>>(new Set());
  const scroller = useRef<HTMLDivElement>(null);
  const [room, setRoom] = useState(0);
  useLayoutEffect(() => {
    const element = scroller.current;
    if (element === null) return;
    const measure = (): void => setRoom(element.clientWidth);
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  const names = room < 640 ? 140 : 220;
  const factor = ZOOMS[zoom] ?? 1;
  const width = Math.max(240, (room - names - END) * factor);

  const lines = useMemo(() => linesOf(timeline, open), [timeline, open]);
  const critical = useMemo(() => criticalPath(timeline), [timeline]);
  const scale = useMemo(() => {
    const work = timeline.rows.flatMap((row) => row.work ?? row.tracks.flatMap((track) => track.segments.filter(([kind]) => isWork(kind) || kind === "queued").map(([, begin, end]) => [begin, end] as const)));
    return new TimeScale(timeline.begin_ms, Math.max(timeline.end_ms, timeline.begin_ms + 1), work, width, compressed);
  }, [timeline, width, compressed]);
  const ticks = useMemo(() => scale.ticks(TICK_DISTANCE), [scale]);

  const rows = useVirtualizer({ count: lines.length, getScrollElement: () => scroller.current, estimateSize: () => ROW, overscan: 12, paddingStart: ROW });
  const [focused, setFocused] = useState(0);
  const chosenLine = lines.findIndex((line) => line.node === selection.node && !line.undo && (line.item === null ? selection.item === null || !open.has(line.key) : line.item === selection.item));
  const first = useRef(true);
  useEffect(() => {
    if (chosenLine >= 0 && first.current && room > 0) {
      first.current = false;
      rows.scrollToIndex(chosenLine, { align: "auto" });
    }
  }, [chosenLine, room, rows]);

  const choose = useCallback(
    (line: Line, track: { visit: number; index: number } | null, attempt: number | null) => {
      selection.select({ node: line.node, visit: track && line.row.tracks.some((each) => each.visit !== track.visit) ? track.visit : null, item: track && track.index >= 0 ? track.index : line.item, attempt });
    },
    [selection],
  );
  const toggle = useCallback((line: Line) => setOpen((before) => {
    const next = new Set(before);
    if (!next.delete(line.key)) next.add(line.key);
    return next;
  }), []);
  const onKeyDown = (event: KeyboardEvent): void => {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 15, PageUp: -15, Home: -Infinity, End: Infinity }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      const next = Math.min(lines.length - 1, Math.max(0, focused + step));
      setFocused(next);
      rows.scrollToIndex(next, { align: "auto" });
      requestAnimationFrame(() => scroller.current?.querySelector<HTMLElement>(`[data-line="${next}"]`)?.focus({ preventScroll: true }));
    } else if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      const line = lines[focused];
      if (line && line.open !== null && line.open === (event.key === "ArrowLeft")) toggle(line);
    } else if (event.key === "+" || event.key === "=") zoomBy(1);
    else if (event.key === "-") zoomBy(-1);
  };
  /** Keep what is in the middle where it is. */
  const zoomBy = (step: number): void => {
    const element = scroller.current;
    const next = Math.min(ZOOMS.length - 1, Math.max(0, zoom + step));
    const grown = (ZOOMS[next] ?? 1) / factor;
    setZoom(next);
    if (element) {
      const middle = element.scrollLeft + (element.clientWidth - names) / 2;
      requestAnimationFrame(() => (element.scrollLeft = middle * grown - (element.clientWidth - names) / 2));
    }
  };

  const total = timeline.end_ms - timeline.begin_ms;
  return (
    <div className={css.view}>
      <div className={css.bar}>
        <p className={css.said}>
          <CriticalWords critical={critical} total={total} />
        </p>
        <label className={css.check}>
          <input type="checkbox" checked={showCritical} onChange={(event) => setShowCritical(event.target.checked)} /> Critical path
        </label>
        <label className={css.check}>
          <input type="checkbox" checked={compressed} onChange={(event) => setCompressed(event.target.checked)} /> Shorten idle time
        </label>
        <span className={css.zoom}>
          <IconButton icon="minus" size="s" label="Zoom out" disabled={zoom === 0} onClick={() => zoomBy(-1)} />
          <span className="numbers">{Math.round(factor * 100)} %</span>
          <IconButton icon="plus" size="s" label="Zoom in" disabled={zoom === ZOOMS.length - 1} onClick={() => zoomBy(1)} />
        </span>
      </div>
      <div ref={scroller} className={css.scroll} onKeyDown={onKeyDown} role="group" aria-label="Timeline">
        {room > 0 && (
          <div className={css.sheet} style={{ height: rows.getTotalSize() + 12, width: names + width + END }}>
            <div className={css.axis} style={{ height: ROW, width: names + width + END }}>
              <span className={css.corner} style={{ width: names }}>
                {duration(total)} in all
              </span>
              {ticks.map(({ time, since, afterGap }) => (
                <span key={time} className={css.tick} style={{ left: names + scale.x(time) }} title={absolute(time)}>
                  {since === 0 ? "0" : `${afterGap ? "+" : ""}${duration(since).replace(".0 s", " s")}`}
                </span>
              ))}
              {scale.gaps.map((gap) => (
                <span key={gap.begin} className={css.gapWord} style={{ left: names + (scale.x(gap.begin) + scale.x(gap.end)) / 2 }} title={`${duration(gap.end - gap.begin)} without work, drawn shorter`}>
                  {duration(gap.end - gap.begin)}
                </span>
              ))}
            </div>
            <div className={css.ground} style={{ left: names, width, top: ROW }} aria-hidden="true">
              {ticks.map(({ time }) => (
                <i key={time} className={css.line} style={{ left: scale.x(time) }} />
              ))}
              {scale.gaps.map((gap) => (
                <i key={gap.begin} className={css.gap} style={{ left: scale.x(gap.begin), width: scale.x(gap.end) - scale.x(gap.begin) }} />
              ))}
              {timeline.pauses.map(([begin, end]) => (
                <i key={begin} className={css.pause} style={{ left: scale.x(begin), width: Math.max(2, scale.x(end) - scale.x(begin)) }} title="paused" />
              ))}
            </div>
            {rows.getVirtualItems().map((item) => {
              const line = lines[item.index];
              return (
                line && (
                  <LineRow
                    key={line.key}
                    line={line}
                    number={item.index}
                    top={item.start}
                    names={names}
                    scale={scale}
                    model={model}
                    critical={showCritical ? critical : null}
                    selected={item.index === chosenLine}
                    current={item.index === Math.min(focused, lines.length - 1)}
                    onChoose={choose}
                    onToggle={toggle}
                    onFocus={setFocused}
                  />
                )
              );
            })}
          </div>
        )}
      </div>
      <ul className={css.legend} aria-label="Fills">
        {KINDS.map(({ kind, word }) => (
          <li key={kind}>
            <i className={css.segment} data-kind={kind} /> {word}
          </li>
        ))}
        {showCritical && (
          <li>
            <i className={css.segment} data-kind="running" data-critical /> on the critical path
          </li>
        )}
        {scale.gaps.length > 0 && (
          <li>
            <i className={css.gap} /> idle time, shortened
          </li>
        )}
      </ul>
    </div>
  );
}

function CriticalWords({ critical, total }: { critical: CriticalPath; total: number }) {
  if (critical.places.length === 0) return null;
  const names = critical.places.map(([node]) => node).filter((node, at, all) => node !== all[at - 1]);
  const shown = names.length > 6 ? [...names.slice(0, 3), "…", ...names.slice(-2)] : names;
  return (
    <>
      <b>Critical path:</b> {shown.join(" → ")}
      <span className="soft">
        {" "}
        · {duration(critical.work_ms)} at work, {duration(Math.min(critical.wait_ms, total))} waiting
      </span>
    </>
  );
}

interface LineProps {
  line: Line;
  number: number;
  top: number;
  names: number;
  scale: TimeScale;
  model: RunModel;
  critical: CriticalPath | null;
  selected: boolean;
  current: boolean;
  onChoose: (line: Line, track: { visit: number; index: number } | null, attempt: number | null) => void;
  onToggle: (line: Line) => void;
  onFocus: (number: number) => void;
}

const LineRow = memo(function LineRow({ line, number, top, names, scale, model, critical, selected, current, onChoose, onToggle, onFocus }: LineProps) {
  const node = model.run.nodes[line.node];
  const status = line.undo ? "ROLLED_BACK" : line.item === null ? (node ? signOfNode(node) : "PENDING") : itemStatus(line);
  const took = elapsed(line);
  const attempts = Math.max(0, ...line.tracks.map((track) => Math.max(0, ...track.segments.map((segment) => segment[3]))));
  const onPath = critical !== null && !line.undo && line.tracks.some((track) => critical.keys.has(placeKey([line.node, track.visit, track.index])));
  const label = line.item === null ? line.node : `item ${line.item}`;
  const words = `, ${signOf(status).word}, ${duration(took)}${attempts > 1 ? `, ${attempts} attempts` : ""}${line.count > 1 ? `, ${line.count} times` : ""}${onPath ? ", on the critical path" : ""}`;
  return (
    <div className={css.row} style={{ transform: `translateY(${top}px)`, height: ROW }} data-selected={selected || undefined}>
      <div className={css.name} style={{ width: names }} data-item={line.item !== null || undefined}>
        {line.open !== null ? (
          <button type="button" className={css.toggle} tabIndex={current ? 0 : -1} aria-expanded={line.open} aria-label={`Items of ${line.node}`} onClick={() => onToggle(line)}>
            <Icon name={line.open ? "chevron-down" : "chevron-right"} size={12} />
          </button>
        ) : (
          <span className={css.toggle} />
        )}
        <button type="button" data-line={number} className={css.choose} tabIndex={current ? 0 : -1} aria-pressed={selected} title={line.node} onFocus={() => onFocus(number)} onClick={() => onChoose(line, null, null)}>
          <StatusIcon status={status} size={14} />
          <span className="truncate">
            {line.undo && "undo "}
            {label}
          </span>
          <span className="visually-hidden">{words}</span>
          {line.count > 1 && <span className={css.count} aria-hidden="true">×{line.count.toLocaleString()}</span>}
        </button>
      </div>
      <div className={css.track} style={{ left: names }} aria-hidden="true">
        <Bars line={line} scale={scale} critical={critical} onChoose={onChoose} />
      </div>
    </div>
  );
});

function itemStatus(line: Line): string {
  const last = line.tracks[0]?.segments.at(-1);
  if (last === undefined) return "PENDING";
  const [kind, , , , underWay] = last;
  if (underWay) return { queued: "QUEUED", running: "RUNNING", failed: "FAILED", waiting: "WAITING", retry: "RETRYING" }[kind];
  return kind === "failed" ? "FAILED" : "COMPLETED";
}

function Bars({ line, scale, critical, onChoose }: Pick<LineProps, "line" | "scale" | "critical" | "onChoose">) {
  const many = line.row.items && line.item === null;
  const segments = useMemo(() => (many ? summary(line, scale.resolution * 2) : null), [line, many, scale]);
  if (segments) {
    const begin = Math.min(...segments.map((segment) => segment[1]));
    const peak = merged(segments.map(([, from, to]) => [from, to] as const)).at(-1)?.[1] ?? begin;
    return (
      <>
        {segments.map((segment, at) => (
          <Bar key={at} segment={segment} scale={scale} critical={false} onClick={() => onChoose(line, null, null)} />
        ))}
        <span className={css.took} style={{ left: scale.x(peak) + 6 }}>
          {duration(elapsed(line))}
        </span>
      </>
    );
  }
  const end = Math.max(...line.tracks.flatMap((track) => track.segments.map((segment) => segment[2])));
  return (
    <>
      {line.tracks.flatMap((track) => {
        const onPath = critical !== null && !line.undo && critical.keys.has(placeKey([line.node, track.visit, track.index]));
        return track.segments.map((segment, at) => (
          <Bar key={`${track.visit} ${track.index} ${at}`} segment={segment} visit={line.tracks.length > 1 ? track.visit : undefined} scale={scale} critical={onPath} onClick={() => onChoose(line, track, segment[3] || null)} />
        ));
      })}
      <span className={css.took} style={{ left: scale.x(end) + 6 }}>
        {duration(elapsed(line))}
      </span>
    </>
  );
}

function Bar({ segment, visit, scale, critical, onClick }: { segment: Segment; visit?: number | undefined; scale: TimeScale; critical: boolean; onClick: () => void }) {
  const [kind, begin, end, attempt, underWay] = segment;
  const left = scale.x(begin);
  const width = Math.max(isWork(kind) ? BAR_MIN : 1, scale.x(end) - left);
  const title = `${WORDS[kind]}${attempt > 0 ? `, attempt ${attempt}` : ""}${visit === undefined ? "" : `, visit ${visit}`}: ${duration(end - begin)}${underWay ? " so far" : ""}\n${absolute(begin)}`;
  return (
    <span className={css.segment} data-kind={kind} data-critical={critical || undefined} data-open={underWay || undefined} style={{ left, width }} title={title} onClick={onClick}>
      {attempt > 1 && width > 16 && <b className={css.attempt}>{attempt}</b>}
    </span>
  );
}
