/** Dagre for graphs of up to some hundred boxes: it bends links around boxes. Loaded by the worker only. */
import dagre from "@dagrejs/dagre";
import type { Box, Link, Placed, PlacedBox, PlacedLink, Point } from "./layout";
import { BOX_GAP, RANK_GAP, straightRoute } from "./layout";

/** With more boxes, dagre's own ranks and order take too long. */
const QUICK_ABOVE = 120;
const SWEEPS = 8;

export function dagreLayout(boxes: readonly Box[], links: readonly Link[]): Placed {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({
    rankdir: "TB",
    nodesep: BOX_GAP,
    edgesep: 16,
    ranksep: RANK_GAP,
    ranker: boxes.length > QUICK_ABOVE ? "tight-tree" : "network-simplex",
  });
  const known = new Set<string>();
  for (const box of boxes) {
    known.add(box.id);
    graph.setNode(box.id, { width: box.width, height: box.height });
  }
  links.forEach((link, number) => {
    if (!known.has(link.from) || !known.has(link.to) || link.from === link.to) return;
    const [upper, lower] = link.back ? [link.to, link.from] : [link.from, link.to];
    const label = link.label > 0 ? { width: link.label, height: 18, labelpos: "c" } : { width: 0, height: 0 };
    graph.setEdge(upper, lower, { ...label, weight: link.back ? 0 : 1, minlen: 1 }, String(number));
  });
  dagre.layout(graph, boxes.length > QUICK_ABOVE ? { customOrder: quickOrder } : {});
  const placed = new Map<string, PlacedBox>();
  let right = 0;
  let bottom = 0;
  for (const box of boxes) {
    const { x, y } = graph.node(box.id) as Point;
    placed.set(box.id, { ...box, x: x - box.width / 2, y: y - box.height / 2 });
    right = Math.max(right, x + box.width / 2);
    bottom = Math.max(bottom, y + box.height / 2);
  }
  const routes = links.map((link, number): PlacedLink => {
    const [upper, lower] = link.back ? [link.to, link.from] : [link.from, link.to];
    const edge = graph.edge({ v: upper, w: lower, name: String(number) }) as ({ points: Point[]; x?: number; y?: number } & object) | undefined;
    const from = placed.get(link.from);
    const to = placed.get(link.to);
    if (edge === undefined || from === undefined || to === undefined) return { points: [], label: null };
    if (edge.points.length < 2) return straightRoute(from, to, link);
    const points = edge.points.map(({ x, y }) => ({ x, y }));
    for (const { x } of points) right = Math.max(right, x);
    return { points: link.back ? points.reverse() : points, label: link.label > 0 && edge.x !== undefined && edge.y !== undefined ? { x: edge.x, y: edge.y } : null };
  });
  return { width: right, height: bottom, boxes: placed, links: routes };
}

/** Order the layers by the mean place of neighbours; the sweep with the fewest crossings wins. */
function quickOrder(graph: InstanceType<typeof dagre.graphlib.Graph>): void {
  const ids = graph.nodes().filter((id) => (graph.children(id)?.length ?? 0) === 0);
  const rankOf = (id: string): number => (graph.node(id) as { rank: number }).rank;
  const above = new Map(ids.map((id) => [id, (graph.predecessors(id) ?? []) as unknown as string[]]));
  const below = new Map(ids.map((id) => [id, (graph.successors(id) ?? []) as unknown as string[]]));
  const found: string[][] = [];
  const seen = new Set<string>();
  for (const start of [...ids].sort((one, other) => rankOf(one) - rankOf(other))) {
    const stack = [start];
    for (let id = stack.pop(); id !== undefined; id = stack.pop()) {
      if (seen.has(id)) continue;
      seen.add(id);
      (found[rankOf(id)] ??= []).push(id);
      const next = below.get(id) ?? [];
      for (let at = next.length - 1; at >= 0; at--) stack.push(next[at] as string);
    }
  }
  const layers = Array.from(found, (layer) => layer ?? []);
  const place = new Map<string, number>();
  const note = (layer: readonly string[]): void => layer.forEach((id, at) => place.set(id, at));
  layers.forEach(note);
  const crossings = (): number => {
    let total = 0;
    for (const layer of layers) total += inversions(layer.flatMap((id) => (below.get(id) ?? []).map((other) => place.get(other) ?? 0).sort((one, other) => one - other)));
    return total;
  };
  let best = layers.map((layer) => [...layer]);
  let fewest = crossings();
  for (let sweep = 0; sweep < SWEEPS && fewest > 0; sweep++) {
    const around = sweep % 2 === 0 ? above : below;
    for (const layer of sweep % 2 === 0 ? layers : [...layers].reverse()) {
      const wanted = new Map(
        layer.map((id) => {
          const near = around.get(id) ?? [];
          return [id, near.length === 0 ? (place.get(id) ?? 0) : near.reduce((sum, other) => sum + (place.get(other) ?? 0), 0) / near.length];
        }),
      );
      layer.sort((one, other) => (wanted.get(one) ?? 0) - (wanted.get(other) ?? 0) || (place.get(one) ?? 0) - (place.get(other) ?? 0));
      note(layer);
    }
    const now = crossings();
    if (now < fewest) {
      fewest = now;
      best = layers.map((layer) => [...layer]);
    }
  }
  for (const layer of best) layer.forEach((id, at) => ((graph.node(id) as { order: number }).order = at));
}

/** Pairs that are in the wrong order (a tree of counts). */
export function inversions(places: readonly number[]): number {
  const size = places.reduce((most, place) => Math.max(most, place), 0) + 2;
  const counts = new Int32Array(size + 1);
  let total = 0;
  places.forEach((place, number) => {
    let before = 0;
    for (let at = place + 1; at > 0; at -= at & -at) before += counts[at] as number;
    total += number - before;
    for (let at = place + 1; at <= size; at += at & -at) counts[at] = (counts[at] as number) + 1;
  });
  return total;
}
