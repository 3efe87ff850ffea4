/** Dagre for graphs of up to some hundred boxes: it bends links around boxes. Loaded by the worker only. */
import dagre from "@dagrejs/dagre";
import type { Box, Link, Placed, PlacedBox, PlacedLink, Point } from "./layout";
import { BOX_GAP, RANK_GAP, straightRoute } from "./layout";

const SIMPLE_RANKS_ABOVE = 150;

export function dagreLayout(boxes: readonly Box[], links: readonly Link[]): Placed {
  const graph = new dagre.graphlib.Graph({ multigraph: true });
  graph.setGraph({
    rankdir: "TB",
    nodesep: BOX_GAP,
    edgesep: 16,
    ranksep: RANK_GAP,
    ranker: boxes.length > SIMPLE_RANKS_ABOVE ? "longest-path" : "network-simplex",
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
  dagre.layout(graph);
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
