/** The timeline of a run: rows with tracks of segments, the critical path, and rows as they are shown. */
export type SegmentKind = "queued" | "running" | "failed" | "waiting" | "retry";

/** Kind, beginning, end, attempt (0 for none), whether it is under way. */
export type Segment = [kind: SegmentKind, begin: number, end: number, attempt: number, underWay: boolean];

/** Node, visit and item (-1 for none). */
export type Place = [node: string, visit: number, index: number];

export interface Track {
  visit: number;
  index: number;
  /** What made it ready. */
  after: Place | null;
  segments: Segment[];
}

export interface Row {
  node: string;
  /** A step of a rollback. */
  undo: boolean;
  /** The tracks are items of a map. */
  items: boolean;
  /** How many tracks there are; of very many only the longest are listed. */
  count: number;
  tracks: Track[];
  /** Of a row with too many tracks: when any of them was at work. */
  work?: [number, number][];
}

export interface Timeline {
  begin_ms: number;
  end_ms: number;
  pauses: [number, number][];
  /** What led to the last event. */
  last: Place | null;
  rows: Row[];
}

export const placeKey = ([node, visit, index]: Place): string => `${node}\n${visit}\n${index}`;
export const isWork = (kind: SegmentKind): boolean => kind === "running" || kind === "failed";

/** Spans in the order of their beginnings, with those that touch joined. */
export function merged(spans: readonly (readonly [number, number])[]): [number, number][] {
  const sorted = [...spans].sort((one, other) => one[0] - other[0]);
  const found: [number, number][] = [];
  for (const [begin, end] of sorted) {
    const last = found.at(-1);
    if (last !== undefined && begin <= last[1]) last[1] = Math.max(last[1], end);
    else found.push([begin, end]);
  }
  return found;
}

export interface CriticalPath {
  /** Keys of places, from the first to the last. */
  places: Place[];
  keys: Set<string>;
  /** Milliseconds of it in which something was at work, and in which it waited. */
  work_ms: number;
  wait_ms: number;
}

/**
 * The chain that decided when the run ended: from what led to the last event back over what made each ready. While
 * something is under way, the chain that leads to what has been so for longest.
 */
export function criticalPath(timeline: Timeline): CriticalPath {
  const tracks = new Map<string, { place: Place; track: Track }>();
  let open: { place: Place; since: number } | null = null;
  for (const row of timeline.rows) {
    if (row.undo) continue;
    for (const track of row.tracks) {
      const place: Place = [row.node, track.visit, track.index];
      tracks.set(placeKey(place), { place, track });
      const last = track.segments.at(-1);
      const since = track.segments[0]?.[1] ?? 0;
      // Of a map, its items are under way.
      if (last?.[4] && (open === null || since < open.since || (since === open.since && track.index >= 0))) open = { place, since };
    }
  }
  const places: Place[] = [];
  const keys = new Set<string>();
  let at = open?.place ?? timeline.last;
  while (at !== null) {
    const key = placeKey(at);
    if (keys.has(key)) break;
    keys.add(key);
    places.push(at);
    at = tracks.get(key)?.track.after ?? null;
  }
  places.reverse();
  let work = 0;
  let wait = 0;
  const shown = places.filter((place) => tracks.has(placeKey(place)));
  for (const place of shown) {
    for (const [kind, begin, end] of tracks.get(placeKey(place))?.track.segments ?? []) {
      if (isWork(kind)) work += end - begin;
      else wait += end - begin;
    }
  }
  return { places: shown, keys, work_ms: work, wait_ms: wait };
}

/** A line of the view: all of a node, or one item of a map that is open. */
export interface Line {
  key: string;
  node: string;
  undo: boolean;
  /** The item of a map; null for the node. */
  item: number | null;
  /** How many items or visits are in it. */
  count: number;
  /** Whether its items can be shown one by one, and are. */
  open: boolean | null;
  row: Row;
  tracks: Track[];
}

export function linesOf(timeline: Timeline, open: ReadonlySet<string>): Line[] {
  const lines: Line[] = [];
  for (const row of timeline.rows) {
    const key = `${row.undo ? "undo " : ""}${row.node}`;
    const items = row.items ? row.tracks.filter((track) => track.index >= 0) : [];
    const shown = row.items && open.has(key);
    lines.push({ key, node: row.node, undo: row.undo, item: null, count: row.items ? Math.max(items.length, row.count - (row.tracks.length - items.length)) : row.tracks.length, open: items.length > 0 ? shown : null, row, tracks: row.tracks });
    if (!shown) continue;
    for (const track of [...items].sort((one, other) => one.index - other.index || one.visit - other.visit)) {
      lines.push({ key: `${key}\n${track.visit}\n${track.index}`, node: row.node, undo: row.undo, item: track.index, count: 1, open: null, row, tracks: [track] });
    }
  }
  return lines;
}

/** What a line shows at once: segments of the same kind that overlap are one, so that a map of thousands stays light. */
export function summary(line: Line, resolution: number): Segment[] {
  if (line.row.work && line.item === null) return line.row.work.map(([begin, end]) => ["running", begin, end, 0, false]);
  if (!line.row.items || line.item !== null) return line.tracks.flatMap((track) => track.segments);
  const found: Segment[] = [];
  for (const kind of ["queued", "waiting", "retry", "running", "failed"] as const) {
    const spans: [number, number][] = [];
    let underWay = -Infinity;
    for (const track of line.tracks) {
      if (track.index < 0 && kind === "running") continue;
      for (const segment of track.segments) {
        if (segment[0] !== kind) continue;
        // What ends within one pixel of the next is joined with it.
        spans.push([segment[1], segment[2] + resolution]);
        if (segment[4]) underWay = Math.max(underWay, segment[1]);
      }
    }
    for (const [begin, end] of merged(spans)) found.push([kind, begin, end - resolution, 0, underWay >= begin && underWay <= end]);
  }
  return found;
}

/** When any of it was at work, waited or backed off; queues do not count. */
export function elapsed(line: Line): number {
  const spans = line.tracks.flatMap((track) => track.segments.filter(([kind]) => kind !== "queued").map(([, begin, end]) => [begin, end] as const));
  return merged(spans).reduce((sum, [begin, end]) => sum + end - begin, 0);
}
