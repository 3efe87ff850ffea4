import { describe, expect, test } from "vitest";
import { dagreLayout, inversions } from "./dagre-layout";
import { layered, nearest, packed, ranks, unpacked, type Box, type Link, type Placed } from "./layout";

const box = (id: string): Box => ({ id, width: 180, height: 52 });
const link = (from: string, to: string, back = false): Link => ({ from, to, back, label: 0 });

/** Layers of equal width; every box follows one or two of the layer before. */
function web(layers: number, wide: number): { boxes: Box[]; links: Link[] } {
  const boxes: Box[] = [];
  const links: Link[] = [];
  for (let layer = 0; layer < layers; layer++) {
    for (let at = 0; at < wide; at++) {
      boxes.push(box(`${layer}-${at}`));
      if (layer > 0) for (const source of new Set([(at * 7) % wide, (at * 3 + layer) % wide].slice(0, 1 + (at % 2)))) links.push(link(`${layer - 1}-${source}`, `${layer}-${at}`));
    }
  }
  return { boxes, links };
}

function expectNoOverlap(placed: Placed): void {
  const boxes = [...placed.boxes.values()].sort((one, other) => one.y - other.y);
  const overlaps: string[] = [];
  boxes.forEach((one, at) => {
    for (let next = at + 1; next < boxes.length; next++) {
      const other = boxes[next]!;
      if (other.y >= one.y + one.height) break;
      if (other.x < one.x + one.width - 0.01 && one.x < other.x + other.width - 0.01) overlaps.push(`${one.id} ${other.id}`);
    }
  });
  expect(overlaps).toEqual([]);
}

describe.each([
  ["layered", layered],
  ["dagre", dagreLayout],
])("%s", (_, layout) => {
  test("links lead down, links back lead up, and nothing overlaps", () => {
    const { boxes, links } = web(8, 6);
    const placed = layout(boxes, [...links, link("5-0", "2-0", true)]);
    expectNoOverlap(placed);
    for (const { from, to } of links) expect(placed.boxes.get(to)!.y).toBeGreaterThan(placed.boxes.get(from)!.y);
    expect(placed.links).toHaveLength(links.length + 1);
    expect(placed.links.every((route) => route.points.length >= 2)).toBe(true);
  });

  test("a diamond is symmetric", () => {
    const placed = layout(["a", "b", "c", "d"].map(box), [link("a", "b"), link("a", "c"), link("b", "d"), link("c", "d")]);
    const middle = (id: string): number => placed.boxes.get(id)!.x + 90;
    expect(middle("a")).toBeCloseTo(middle("d"), 0);
    expect(middle("a")).toBeCloseTo((middle("b") + middle("c")) / 2, 0);
  });

  test("the same graph gives the same places", () => {
    const { boxes, links } = web(10, 14);
    expect(layout(boxes, links)).toEqual(layout(boxes, links));
  });

  test("nothing, and a box alone", () => {
    expect(layout([], []).boxes.size).toBe(0);
    expect(layout([box("a")], []).boxes.get("a")).toMatchObject({ x: 0, y: 0 });
  });
});

test("layered: five thousand boxes, a wide layer takes several rows", () => {
  const { boxes, links } = web(100, 50);
  const placed = layered(boxes, links);
  expect(placed.boxes.size).toBe(5_000);
  expectNoOverlap(placed);
  const wide = layered([box("a"), ...Array.from({ length: 2_000 }, (_, at) => box(`b${at}`))], Array.from({ length: 2_000 }, (_, at) => link("a", `b${at}`)));
  expect(wide.width).toBeLessThan(60 * 220);
  expectNoOverlap(wide);
});

test("ranks: the longest path counts, an entry is near to what follows it, a cycle ends", () => {
  expect(ranks(["a", "b", "c", "late"].map(box), [link("a", "b"), link("b", "c"), link("a", "c"), link("late", "c")])).toEqual([0, 1, 2, 1]);
  expect(ranks(["a", "b"].map(box), [link("a", "b"), link("b", "a")])).toHaveLength(2);
});

test("nearest keeps order and distance", () => {
  expect(nearest([10, 10, 10], [1, 1, 1], [0, 5, 5])).toEqual([5, 10, 15]);
  expect(nearest([0, 100], [1, 1], [0, 5])).toEqual([0, 100]);
});

test("inversions", () => {
  expect(inversions([0, 1, 2])).toBe(0);
  expect(inversions([2, 1, 0])).toBe(3);
});

test("places pass between page and worker as numbers", () => {
  const { boxes, links } = web(6, 4);
  links.push(link("5-0", "0-0", true));
  for (const lay of [layered, dagreLayout]) {
    const placed = lay(boxes, links.map((each) => ({ ...each, label: each.back ? 0 : 40 })));
    expect(unpacked(boxes, packed(boxes, placed))).toEqual(placed);
  }
});
