/**
 * What is drawn: boxes and links. Loops can be collapsed to one box, and a node can hold the scene of its child run.
 * Sizes depend on the structure alone, so that a layout stays while states change.
 */
import type { DrawnGraph, DrawnNode } from "./data";
import { isChild, signName, worst } from "./data";
import type { GraphEdge } from "../model";
import type { Box, Link, Placed } from "./layout";

export interface SceneBox {
  /** Unique in the drawing: `call/inner` is a node of a child. */
  id: string;
  kind: "node" | "loop" | "child";
  node: DrawnNode;
  /** Of a collapsed loop: the nodes in it. */
  members?: DrawnNode[];
  /** The run that the node belongs to, if it is a child. */
  run: string | null;
  width: number;
  height: number;
}

export interface SceneLink {
  from: string;
  to: string;
  label: string;
  kind: "edge" | "loop";
  taken: boolean | null;
  /** How many edges it stands for. */
  count: number;
}

export interface Scene {
  boxes: SceneBox[];
  links: SceneLink[];
  /** Loops that are open: the boxes of their bodies, by looping node. */
  loops: { node: string; members: string[] }[];
}

/** Above this many nodes loops are collapsed, and the layout is our own. */
export const LARGE = 500;

export const CARD_HEIGHT = 52;
export const EXTRA_HEIGHT = 24;
const WIDTH_MIN = 188;
const WIDTH_MAX = 336;

export function cardWidth(name: string, extra: string): number {
  const letters = [...name].reduce((sum, letter) => sum + (letter.charCodeAt(0) > 0x2e7f ? 13 : 8.2), 0);
  return Math.round(Math.min(WIDTH_MAX, Math.max(WIDTH_MIN, letters + 60 + extra.length * 6.2)));
}

/** Extra lines of a card: a join, a strip of items, the passes of a loop, the run of a child. */
export function extras(node: DrawnNode): number {
  return (node.join ? 1 : 0) + (node.items !== undefined ? 1 : 0) + (node.loop ? 1 : 0) + (isChild(node) ? 1 : 0);
}

export function buildScene(graph: DrawnGraph, options: { collapsed: ReadonlySet<string>; run?: string | null; prefix?: string }): Scene {
  const { collapsed, run = null, prefix = "" } = options;
  const owner = new Map<string, string>();
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  // Outer loops first: they hold the inner ones.
  const loops = graph.nodes.filter((node) => node.loop).sort((one, other) => (other.loop?.body.length ?? 0) - (one.loop?.body.length ?? 0));
  for (const node of loops) {
    if (!collapsed.has(prefix + node.id) || owner.has(node.id)) continue;
    for (const member of node.loop?.body ?? []) if (!owner.has(member)) owner.set(member, node.id);
  }
  const longest = new Map<string, number>();
  for (const edge of graph.edges) longest.set(edge.to, Math.max(longest.get(edge.to) ?? 0, edge.from.length));
  const boxes: SceneBox[] = [];
  const at = new Map<string, string>();
  const groups = new Map<string, DrawnNode[]>();
  for (const node of graph.nodes) {
    const group = owner.get(node.id);
    at.set(node.id, prefix + (group ?? node.id));
    if (group !== undefined) {
      const members = groups.get(group);
      if (members) {
        members.push(node);
        continue;
      }
      const looping = byId.get(group) ?? node;
      const own = [node];
      groups.set(group, own);
      boxes.push({ id: prefix + group, kind: "loop", node: looping, members: own, run, width: cardWidth(looping.id, "loop of 1000"), height: CARD_HEIGHT + EXTRA_HEIGHT });
      continue;
    }
    const type = node.type.split("@")[0] ?? "";
    // Joins, maps and waits have more to say; a join names what it waits for.
    const least = node.join ? Math.min(WIDTH_MAX, 272 + 6.4 * (longest.get(node.id) ?? 0)) : node.items !== undefined ? 244 : node.loop || isChild(node) || /^(human|signal|sleep|wait_until|agent)$/.test(type) ? 216 : 0;
    boxes.push({ id: prefix + node.id, kind: isChild(node) ? "child" : "node", node, run, width: Math.round(Math.max(cardWidth(node.id, type), least)), height: CARD_HEIGHT + EXTRA_HEIGHT * extras(node) });
  }
  const links = new Map<string, SceneLink>();
  for (const edge of graph.edges) {
    const from = at.get(edge.from);
    const to = at.get(edge.to);
    if (from === undefined || to === undefined || (from === to && edge.kind !== "loop")) continue;
    if (from === to && groups.size > 0 && owner.has(edge.from)) continue;
    const key = `${edge.kind}\n${from}\n${to}`;
    const known = links.get(key);
    if (known === undefined) links.set(key, { from, to, label: edge.label, kind: edge.kind, taken: edge.taken, count: 1 });
    else links.set(key, { ...known, label: known.label === edge.label ? known.label : "", taken: together(known.taken, edge), count: known.count + 1 });
  }
  const open = loops.filter((node) => !owner.has(node.id) && (node.loop?.body.length ?? 0) > 1);
  return {
    boxes,
    links: [...links.values()],
    loops: open.map((node) => ({ node: prefix + node.id, members: [...new Set((node.loop?.body ?? []).flatMap((id) => at.get(id) ?? []))] })),
  };
}

function together(before: boolean | null, edge: GraphEdge): boolean | null {
  if (before === true || edge.taken === true) return true;
  return before === null || edge.taken === null ? null : false;
}

/** The status of a box: of a collapsed loop the one that matters most. */
export function boxStatus(box: SceneBox): string {
  return box.members ? worst(box.members.map(signName)) : signName(box.node);
}

/** Boxes and links for a layout; links back lead up. Labels make room for themselves. */
export function forLayout(scene: Scene): { boxes: Box[]; links: Link[] } {
  return {
    boxes: scene.boxes.map(({ id, width, height }) => ({ id, width, height })),
    links: scene.links
      .filter((link) => link.from !== link.to)
      .map((link) => ({ from: link.from, to: link.to, back: link.kind === "loop", label: link.label ? Math.min(220, 16 + Math.min(30, link.label.length) * 6) : 0 })),
  };
}

/** A frame around the body of an open loop, unless something else lies inside of it. */
export function frameOf(members: readonly string[], placed: Placed, others: Iterable<string>): { x: number; y: number; width: number; height: number } | null {
  let left = Infinity;
  let top = Infinity;
  let right = -Infinity;
  let bottom = -Infinity;
  const own = new Set(members);
  for (const id of members) {
    const box = placed.boxes.get(id);
    if (box === undefined) return null;
    left = Math.min(left, box.x);
    top = Math.min(top, box.y);
    right = Math.max(right, box.x + box.width);
    bottom = Math.max(bottom, box.y + box.height);
  }
  left -= 14;
  right += 14;
  top -= 26;
  bottom += 14;
  for (const id of others) {
    const box = placed.boxes.get(id);
    if (own.has(id) || box === undefined) continue;
    if (box.x < right && box.x + box.width > left && box.y < bottom && box.y + box.height > top) return null;
  }
  return { x: left, y: top, width: right - left, height: bottom - top };
}
