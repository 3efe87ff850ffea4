/** Maps times to places on the axis: straight between its stops, and idle times are drawn shorter than they were. */
import { merged } from "./data";

/** A gap longer than the first share of all other time is drawn as long as the second one. */
const GAP_SHARE = 0.6;
const GAP_DRAWN = 0.12;

export interface Gap {
  begin: number;
  end: number;
}

/** How much time is drawn at its full length, and up to which length a gap belongs to it. */
export function drawnInFull(total: number, idle: readonly number[]): { kept: number; limit: number } {
  let kept = total - idle.reduce((sum, length) => sum + length, 0);
  let limit = 0;
  for (const length of [...idle].sort((one, other) => one - other)) {
    if (kept > 0 && length > kept * GAP_SHARE) break;
    kept += length;
    limit = length;
  }
  return { kept: Math.max(kept, 1), limit };
}

export class TimeScale {
  readonly gaps: Gap[];
  /** The length of what is drawn, gaps as short as they are. */
  readonly drawn: number;
  private readonly times: number[];
  private readonly places: number[];

  constructor(
    readonly begin: number,
    readonly end: number,
    work: readonly (readonly [number, number])[],
    readonly width: number,
    compress = true,
  ) {
    const idle: Gap[] = [];
    let at = begin;
    for (const [from, to] of merged(work)) {
      if (from > at) idle.push({ begin: at, end: from });
      at = Math.max(at, to);
    }
    if (end > at) idle.push({ begin: at, end });
    const { kept, limit } = drawnInFull(end - begin, idle.map((gap) => gap.end - gap.begin));
    this.gaps = compress ? idle.filter((gap) => gap.end - gap.begin > limit) : [];
    const times = [begin];
    const places = [0];
    const stop = (time: number, place: number): void => {
      times.push(time);
      places.push(place);
    };
    const last = (list: readonly number[]): number => list.at(-1) as number;
    for (const gap of this.gaps) {
      stop(gap.begin, last(places) + gap.begin - last(times));
      stop(gap.end, last(places) + kept * GAP_DRAWN);
    }
    stop(end, last(places) + end - last(times));
    this.times = times;
    this.places = places;
    this.drawn = Math.max(last(places), 1);
  }

  x(time: number): number {
    let low = 0;
    let high = this.times.length - 2;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if ((this.times[middle] as number) <= time) low = middle;
      else high = middle - 1;
    }
    const begin = this.times[low] as number;
    const end = this.times[low + 1] as number;
    const share = end > begin ? Math.min(1, Math.max(0, (time - begin) / (end - begin))) : 0;
    const from = this.places[low] as number;
    return ((from + share * ((this.places[low + 1] as number) - from)) / this.drawn) * this.width;
  }

  /** Milliseconds per pixel, outside of gaps. */
  get resolution(): number {
    return this.drawn / Math.max(1, this.width);
  }

  /** Round times since the beginning, and after a gap since its end; not closer than `distance` pixels. */
  ticks(distance: number): { time: number; since: number; afterGap: boolean }[] {
    const step = STEPS.find((each) => (each / this.drawn) * this.width >= distance) ?? (STEPS.at(-1) as number);
    const found: { time: number; since: number; afterGap: boolean }[] = [];
    let begin = this.begin;
    let lastX = -Infinity;
    for (const gap of [...this.gaps, { begin: this.end + 1, end: 0 }]) {
      const afterGap = begin !== this.begin;
      for (let time = begin + (afterGap ? step : 0); time < gap.begin; time += step) {
        const x = this.x(time);
        const clear = this.gaps.every((each) => Math.abs(x - (this.x(each.begin) + this.x(each.end)) / 2) > distance * 0.7);
        if (x - lastX < distance * 0.9 || !clear) continue;
        lastX = x;
        found.push({ time, since: time - begin, afterGap });
        if (found.length > 2_000) return found;
      }
      begin = gap.end;
    }
    return found;
  }
}

const STEPS = [
  ...[1, 10, 100, 1_000].flatMap((power) => [power, 2 * power, 5 * power]),
  ...[10, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 172_800, 604_800, 2_592_000].map((seconds) => seconds * 1_000),
];
