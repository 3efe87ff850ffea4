/**
 * Where boxes are. `layered` is linear in boxes and links (besides sorting): ranks by the longest path over a
 * topological order, layers sorted by the mean place of their neighbours, wide layers wrapped into rows, columns by
 * the nearest places that keep order and distance. `dagre-layout.ts` is for smaller graphs.
 */
export interface Box {
  id: string;
  width: number;
  height: number;
}

export interface Link {
  from: string;
  to: string;
  /** It leads up again, to the entry of a loop. */
  back: boolean;
  /** The width of its label; 0 for none. */
  label: number;
}

export interface Point {
  x: number;
  y: number;
}

export interface PlacedBox extends Box {
  /** The upper left corner. */
  x: number;
  y: number;
}

export interface PlacedLink {
  points: Point[];
  label: Point | null;
}

export interface Placed {
  width: number;
  height: number;
  boxes: Map<string, PlacedBox>;
  /** In the order of the links. */
  links: PlacedLink[];
}

/** Places as plain numbers: they pass between page and worker at no cost, unlike many objects. */
export interface PackedPlaces {
  width: number;
  height: number;
  /** Left and top of every box. */
  boxes: Float64Array<ArrayBuffer>;
  /** The number of points of every link. */
  counts: Uint32Array<ArrayBuffer>;
  points: Float64Array<ArrayBuffer>;
  /** The place of every label; NaN for none. */
  labels: Float64Array<ArrayBuffer>;
}

export function packed(boxes: readonly Box[], placed: Placed): PackedPlaces {
  const places = new Float64Array(2 * boxes.length);
  boxes.forEach(({ id }, number) => {
    const { x, y } = placed.boxes.get(id) as PlacedBox;
    places.set([x, y], 2 * number);
  });
  const counts = Uint32Array.from(placed.links, (link) => link.points.length);
  const points = new Float64Array(2 * counts.reduce((sum, count) => sum + count, 0));
  const labels = new Float64Array(2 * placed.links.length).fill(NaN);
  let at = 0;
  placed.links.forEach((link, number) => {
    for (const { x, y } of link.points) {
      points[at++] = x;
      points[at++] = y;
    }
    if (link.label) labels.set([link.label.x, link.label.y], 2 * number);
  });
  return { width: placed.width, height: placed.height, boxes: places, counts, points, labels };
}

export function unpacked(boxes: readonly Box[], packed: PackedPlaces): Placed {
  const { width, height, points, labels } = packed;
  const places = new Map(boxes.map((box, number): [string, PlacedBox] => [box.id, { ...box, x: packed.boxes[2 * number] as number, y: packed.boxes[2 * number + 1] as number }]));
  let at = 0;
  const links = Array.from(packed.counts, (count, number): PlacedLink => {
    const own: Point[] = [];
    for (let point = 0; point < count; point++) own.push({ x: points[at++] as number, y: points[at++] as number });
    const x = labels[2 * number] as number;
    return { points: own, label: Number.isNaN(x) ? null : { x, y: labels[2 * number + 1] as number } };
  });
  return { width, height, boxes: places, links };
}

export const BOX_GAP = 28;
export const RANK_GAP = 48;
const LABEL_GAP = 22;
const ROW_GAP = 16;
const SWEEPS = 4;
const ROUNDS = 3;

/** The rank of every box: one more than the highest before it. What is in a cycle nevertheless comes last. */
export function ranks(boxes: readonly Box[], links: readonly Link[]): number[] {
  const index = new Map(boxes.map((box, at) => [box.id, at]));
  const out: number[][] = boxes.map(() => []);
  const into = new Int32Array(boxes.length);
  for (const link of links) {
    const from = index.get(link.back ? link.to : link.from);
    const to = index.get(link.back ? link.from : link.to);
    if (from === undefined || to === undefined || from === to) continue;
    out[from]?.push(to);
    into[to] = (into[to] ?? 0) + 1;
  }
  const found = new Array<number>(boxes.length).fill(0);
  const order: number[] = [];
  for (let at = 0; at < boxes.length; at++) if (into[at] === 0) order.push(at);
  const entries = order.length;
  for (let head = 0; head < order.length; head++) {
    const at = order[head] as number;
    for (const to of out[at] ?? []) {
      found[to] = Math.max(found[to] ?? 0, (found[at] ?? 0) + 1);
      into[to] = (into[to] ?? 0) - 1;
      if (into[to] === 0) order.push(to);
    }
  }
  // An entry is as low as what it leads to allows.
  for (let number = 0; number < entries; number++) {
    const at = order[number] as number;
    const below = (out[at] ?? []).map((to) => found[to] ?? 0);
    if (below.length > 0) found[at] = Math.max(0, Math.min(...below.slice(0, 1_000)) - 1);
  }
  return found;
}

export function layered(boxes: readonly Box[], links: readonly Link[]): Placed {
  const index = new Map(boxes.map((box, at) => [box.id, at]));
  const rank = ranks(boxes, links);
  const above: number[][] = boxes.map(() => []);
  const below: number[][] = boxes.map(() => []);
  for (const link of links) {
    const from = index.get(link.from);
    const to = index.get(link.to);
    if (from === undefined || to === undefined || from === to || link.back) continue;
    below[from]?.push(to);
    above[to]?.push(from);
  }
  const layers = inOrder(boxes.length, rank, above, below);
  const { rows, gapBefore } = wrapped(layers, boxes, links, rank, index);
  const x = columns(rows, boxes, above, below);
  return placedAt(boxes, links, index, rows, gapBefore, x);
}

/** The layers in the order in which a walk in depth meets their members, then sorted by their neighbours. */
function inOrder(count: number, rank: readonly number[], above: readonly number[][], below: readonly number[][]): number[][] {
  const layers: number[][] = [];
  const seen = new Uint8Array(count);
  for (let start = 0; start < count; start++) {
    if (seen[start] || (above[start]?.length ?? 0) > 0) continue;
    walk(start);
  }
  for (let start = 0; start < count; start++) if (!seen[start]) walk(start);

  function walk(start: number): void {
    const stack = [start];
    while (stack.length > 0) {
      const at = stack.pop() as number;
      if (seen[at]) continue;
      seen[at] = 1;
      (layers[rank[at] as number] ??= []).push(at);
      const next = below[at] ?? [];
      for (let each = next.length - 1; each >= 0; each--) stack.push(next[each] as number);
    }
  }

  const place = new Float64Array(count);
  const note = (layer: readonly number[]): void => layer.forEach((at, position) => (place[at] = layer.length > 1 ? position / (layer.length - 1) : 0.5));
  const filled = Array.from(layers, (layer) => layer ?? []);
  filled.forEach(note);
  const mean = (around: readonly number[], own: number): number => {
    if (around.length === 0) return own;
    let sum = 0;
    for (const each of around) sum += place[each] as number;
    return sum / around.length;
  };
  for (let sweep = 0; sweep < SWEEPS; sweep++) {
    const down = sweep % 2 === 0;
    const around = down ? above : below;
    for (const layer of down ? filled : [...filled].reverse()) {
      if (layer.length < 2) continue;
      const wanted = new Map(layer.map((at) => [at, mean(around[at] ?? [], place[at] as number)]));
      layer.sort((one, other) => (wanted.get(one) as number) - (wanted.get(other) as number) || (place[one] as number) - (place[other] as number));
      note(layer);
    }
  }
  return filled;
}

/** Layers as rows: one that is too wide takes several. */
function wrapped(layers: readonly number[][], boxes: readonly Box[], links: readonly Link[], rank: readonly number[], index: ReadonlyMap<string, number>) {
  const most = Math.max(12, Math.ceil(Math.sqrt(boxes.length) * 1.2));
  const labelled = new Set<number>();
  for (const link of links) {
    const from = index.get(link.from);
    if (link.label > 0 && !link.back && from !== undefined) labelled.add((rank[from] ?? 0) + 1);
  }
  const rows: number[][] = [];
  const gapBefore: number[] = [];
  layers.forEach((layer, number) => {
    const count = Math.max(1, Math.ceil(layer.length / most));
    const size = Math.ceil(layer.length / count);
    for (let at = 0; at < layer.length; at += size) {
      gapBefore.push(rows.length === 0 ? 0 : at > 0 ? ROW_GAP : RANK_GAP + (labelled.has(number) ? LABEL_GAP : 0));
      rows.push(layer.slice(at, at + size));
    }
  });
  return { rows, gapBefore };
}

/** The middle of every box. */
function columns(rows: readonly number[][], boxes: readonly Box[], above: readonly number[][], below: readonly number[][]): Float64Array {
  const x = new Float64Array(boxes.length);
  const gaps = rows.map((row) => row.map((at, number) => (number === 0 ? 0 : ((boxes[row[number - 1] as number]?.width ?? 0) + (boxes[at]?.width ?? 0)) / 2 + BOX_GAP)));
  rows.forEach((row, number) => {
    const distances = gaps[number] as number[];
    let middle = -distances.reduce((sum, gap) => sum + gap, 0) / 2;
    row.forEach((at, position) => {
      middle += distances[position] as number;
      x[at] = middle;
    });
  });
  const straighten = (around: readonly number[][], upwards: boolean): void => {
    for (let step = 0; step < rows.length; step++) {
      const number = upwards ? rows.length - 1 - step : step;
      const row = rows[number] as number[];
      const wanted: number[] = [];
      const weights: number[] = [];
      for (const at of row) {
        const near = around[at] ?? [];
        let sum = 0;
        for (const each of near) sum += x[each] as number;
        wanted.push(near.length > 0 ? sum / near.length : (x[at] as number));
        weights.push(near.length > 0 ? 1 : 0.05);
      }
      nearest(wanted, weights, gaps[number] as number[]).forEach((value, position) => (x[row[position] as number] = value));
    }
  };
  for (let round = 0; round < ROUNDS; round++) {
    straighten(above, false);
    straighten(below, true);
  }
  straighten(above, false);
  return x;
}

/** Values at least `gaps` apart with the least weighted squared distance from `wanted` (pool adjacent violators). */
export function nearest(wanted: readonly number[], weights: readonly number[], gaps: readonly number[]): number[] {
  const blocks: [mean: number, weight: number, count: number][] = [];
  let offset = 0;
  wanted.forEach((value, at) => {
    offset += gaps[at] ?? 0;
    let mean = value - offset;
    let weight = weights[at] ?? 1;
    let count = 1;
    for (let last = blocks.at(-1); last !== undefined && last[0] >= mean; last = blocks.at(-1)) {
      blocks.pop();
      mean = (mean * weight + last[0] * last[1]) / (weight + last[1]);
      weight += last[1];
      count += last[2];
    }
    blocks.push([mean, weight, count]);
  });
  const found: number[] = [];
  offset = 0;
  for (const [mean, , count] of blocks) {
    for (let each = 0; each < count; each++) {
      offset += gaps[found.length] ?? 0;
      found.push(mean + offset);
    }
  }
  return found;
}

function placedAt(boxes: readonly Box[], links: readonly Link[], index: ReadonlyMap<string, number>, rows: readonly number[][], gapBefore: readonly number[], x: Float64Array): Placed {
  let left = Infinity;
  let right = -Infinity;
  boxes.forEach((box, at) => {
    left = Math.min(left, (x[at] as number) - box.width / 2);
    right = Math.max(right, (x[at] as number) + box.width / 2);
  });
  const placed = new Map<string, PlacedBox>();
  let y = 0;
  rows.forEach((row, number) => {
    y += gapBefore[number] ?? 0;
    let height = 0;
    for (const at of row) {
      const box = boxes[at] as Box;
      placed.set(box.id, { ...box, x: (x[at] as number) - box.width / 2 - left, y });
      height = Math.max(height, box.height);
    }
    y += height;
  });
  const routes = links.map((link): PlacedLink => {
    const from = placed.get(link.from);
    const to = placed.get(link.to);
    if (from === undefined || to === undefined || index.get(link.from) === undefined) return { points: [], label: null };
    return straightRoute(from, to, link);
  });
  return { width: boxes.length === 0 ? 0 : right - left, height: y, boxes: placed, links: routes };
}

/** A link without places of its own on the way. */
export function straightRoute(from: PlacedBox, to: PlacedBox, link: Link): PlacedLink {
  if (link.back) {
    const x = Math.max(from.x + from.width, to.x + to.width) + 24;
    const points = [
      { x: from.x + from.width, y: from.y + from.height / 2 },
      { x, y: from.y + from.height / 2 },
      { x, y: to.y + to.height / 2 },
      { x: to.x + to.width, y: to.y + to.height / 2 },
    ];
    return { points, label: link.label > 0 ? { x, y: (from.y + to.y + to.height) / 2 } : null };
  }
  const begin = { x: from.x + from.width / 2, y: from.y + from.height };
  const end = { x: to.x + to.width / 2, y: to.y };
  // Near the target, where links that leave one box are apart.
  const label = link.label > 0 ? { x: begin.x + (end.x - begin.x) * 0.72, y: Math.max(begin.y + (end.y - begin.y) * 0.6, end.y - 28) } : null;
  return { points: [begin, end], label };
}
