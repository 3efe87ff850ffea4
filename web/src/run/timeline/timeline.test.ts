import { expect, test } from "vitest";
import { criticalPath, elapsed, linesOf, merged, summary, type Place, type Row, type Segment, type Timeline } from "./data";
import { drawnInFull, TimeScale } from "./scale";

const track = (visit: number, index: number, after: Place | null, ...segments: Segment[]) => ({ visit, index, after, segments });
const row = (node: string, ...tracks: Row["tracks"]): Row => ({ node, undo: false, items: tracks.some((each) => each.index >= 0), count: tracks.length, tracks });
const timeline = (last: Place | null, ...rows: Row[]): Timeline => ({ begin_ms: 0, end_ms: 100, pauses: [], last, rows });
const run = (begin: number, end: number, underWay = false): Segment => ["running", begin, end, 1, underWay];

test("spans that touch are joined", () => {
  expect(merged([[5, 6], [0, 2], [1, 3], [3, 4]])).toEqual([[0, 4], [5, 6]]);
});

test("a long idle time is drawn shorter, a short one is kept", () => {
  const scale = new TimeScale(0, 10_000, [[0, 100], [150, 300], [9_800, 10_000]], 1_000);
  expect(scale.gaps).toEqual([{ begin: 300, end: 9_800 }]);
  expect(scale.x(0)).toBe(0);
  expect(scale.x(10_000)).toBe(1_000);
  // Ten milliseconds of work are as wide before the gap as behind it.
  expect(scale.x(110) - scale.x(100)).toBeCloseTo(scale.x(9_910) - scale.x(9_900));
  expect(scale.x(9_800) - scale.x(300)).toBeLessThan(150);
  expect(scale.x(-5)).toBe(0);
  expect(scale.x(20_000)).toBe(1_000);
  expect(new TimeScale(0, 10_000, [[0, 100]], 1_000, false).gaps).toEqual([]);
});

test("times grow with their places, whatever the gaps", () => {
  const scale = new TimeScale(0, 1e6, [[0, 10], [5e3, 5010], [9e5, 900_100]], 500);
  let before = -1;
  for (let time = 0; time <= 1e6; time += 997) {
    expect(scale.x(time)).toBeGreaterThanOrEqual(before);
    before = scale.x(time);
  }
});

test("what is drawn in full; a run of nothing but waiting is drawn whole", () => {
  expect(drawnInFull(100, [10, 40])).toEqual({ kept: 60, limit: 10 });
  expect(drawnInFull(100, [100])).toEqual({ kept: 100, limit: 100 });
  expect(new TimeScale(0, 100, [], 10).gaps).toEqual([]);
});

test("ticks are round, apart from one another, and count anew behind a gap", () => {
  const scale = new TimeScale(0, 100_000, [[0, 1_000], [99_000, 100_000]], 1_000);
  const ticks = scale.ticks(80);
  const places = ticks.map((tick) => scale.x(tick.time));
  places.slice(1).forEach((place, at) => expect(place - (places[at] as number)).toBeGreaterThanOrEqual(72));
  expect(ticks.some((tick) => tick.afterGap && tick.since < 1_000)).toBe(true);
});

test("the critical path goes back over what made each ready", () => {
  const found = criticalPath(
    timeline(["d", 1, -1], row("a", track(1, -1, null, run(0, 10))), row("b", track(1, -1, ["a", 1, -1], run(10, 20))), row("c", track(1, -1, ["a", 1, -1], ["queued", 10, 15, 0, false], run(15, 60))), row("d", track(1, -1, ["c", 1, -1], run(60, 70)))),
  );
  expect(found.places.map(([node]) => node)).toEqual(["a", "c", "d"]);
  expect([found.work_ms, found.wait_ms]).toEqual([65, 5]);
});

test("passes of a loop are steps of their own, and a circle ends", () => {
  const found = criticalPath(timeline(["a", 2, -1], row("a", track(1, -1, ["b", 9, -1], run(0, 10)), track(2, -1, ["b", 1, -1], run(20, 30))), row("b", track(1, -1, ["a", 1, -1], run(10, 20)))));
  expect(found.places).toEqual([["a", 1, -1], ["b", 1, -1], ["a", 2, -1]]);
  expect(criticalPath(timeline(["a", 1, -1], row("a", track(1, -1, ["a", 1, -1], run(0, 1))))).places).toHaveLength(1);
});

test("while a run goes on, the path leads to what has been under way for longest", () => {
  const found = criticalPath(timeline(["b", 1, -1], row("a", track(1, -1, null, run(0, 10))), row("b", track(1, -1, ["a", 1, -1], run(10, 30))), row("slow", track(1, -1, ["a", 1, -1], run(10, 100, true))), row("new", track(1, -1, ["b", 1, -1], run(30, 100, true)))));
  expect(found.places.map(([node]) => node)).toEqual(["a", "slow"]);
});

test("a map is one line, or one per item; its summary joins what overlaps", () => {
  const items = Array.from({ length: 1_000 }, (_, at) => track(1, at, null, run(at, at + 5)));
  const map = row("each", track(1, -1, null, ["queued", 0, 1, 0, false]), ...items);
  const [line] = linesOf(timeline(null, map), new Set());
  expect(line).toMatchObject({ count: 1_000, open: false });
  expect(summary(line!, 1)).toEqual([["queued", 0, 1, 0, false], ["running", 0, 1_004, 0, false]]);
  expect(elapsed(line!)).toBe(1_004);
  const lines = linesOf(timeline(null, map), new Set(["each"]));
  expect(lines).toHaveLength(1_001);
  expect(lines[1]).toMatchObject({ item: 0 });
});
