/** A laid out scene: every box and link with its place, those of children inside of their parents. */
import { useEffect, useMemo, useRef, useState } from "react";
import type { DrawnGraph } from "./data";
import { layered, unpacked, type Box, type Link, type Placed, type PlacedLink, type Point } from "./layout";
import type { LayoutAnswer, LayoutRequest } from "./layout.worker";
import { buildScene, CARD_HEIGHT, EXTRA_HEIGHT, extras, forLayout, frameOf, type Scene, type SceneBox, type SceneLink } from "./scene";

export interface DrawnBox {
  box: SceneBox;
  x: number;
  y: number;
  width: number;
  height: number;
  /** Of a child that is open: its own card is above the nodes in it. */
  open: boolean;
}

export interface DrawnLink {
  id: string;
  link: SceneLink;
  path: string;
  begin: Point;
  end: Point;
  label: Point | null;
  left: number;
  right: number;
  top: number;
  bottom: number;
}

export interface Frame {
  node: string;
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Drawing {
  width: number;
  height: number;
  boxes: DrawnBox[];
  byId: Map<string, DrawnBox>;
  links: DrawnLink[];
  frames: Frame[];
}

export interface ChildGraph {
  run: string;
  graph: DrawnGraph;
}

// The worker

let worker: Worker | null = null;
let broken = false;
let asked = 0;
const waiting = new Map<number, { request: LayoutRequest; done: (placed: Placed) => void }>();

/** Start the worker before it is needed: it has to load its code first. */
export function startWorker(): Worker {
  if (worker !== null) return worker;
  worker = new Worker(new URL("./layout.worker.ts", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }: MessageEvent<LayoutAnswer>) => {
    const entry = waiting.get(data.id);
    waiting.delete(data.id);
    entry?.done(unpacked(entry.request.boxes, data.places));
  };
  // Without a worker the page lays out itself.
  worker.onerror = () => {
    broken = true;
    const left = [...waiting.values()];
    waiting.clear();
    for (const entry of left) entry.done(layered(entry.request.boxes, entry.request.links));
  };
  return worker;
}

function ask(boxes: Box[], links: Link[]): Promise<Placed> {
  const request: LayoutRequest = { id: ++asked, boxes, links };
  return new Promise((done) => {
    if (broken) return done(layered(boxes, links));
    try {
      waiting.set(request.id, { request, done });
      startWorker().postMessage(request);
    } catch {
      waiting.delete(request.id);
      done(layered(boxes, links));
    }
  });
}

const KEPT = 24;
const layouts = new Map<string, Placed>();

function keep(key: string, placed: Placed): void {
  layouts.delete(key);
  layouts.set(key, placed);
  const oldest = layouts.keys().next().value;
  if (layouts.size > KEPT && oldest !== undefined) layouts.delete(oldest);
}

function keyOf({ boxes, links }: { boxes: Box[]; links: Link[] }): string {
  return `${boxes.map((box) => `${box.id}\t${box.width}\t${box.height}`).join("\n")}\n\n${links.map((link) => `${link.from}\t${link.to}\t${link.back}\t${link.label}`).join("\n")}`;
}

// Scenes and their children

interface Tree {
  scene: Scene;
  kids: Map<string, Tree>;
  /** What is to be laid out, without children that are open; kept because large graphs are long. */
  wanted?: Wanted;
}

interface Wanted {
  boxes: Box[];
  links: Link[];
  key: string;
}

function treeOf(graph: DrawnGraph, collapsed: ReadonlySet<string>, children: ReadonlyMap<string, ChildGraph>, run: string | null, prefix: string): Tree {
  const scene = buildScene(graph, { collapsed, run, prefix });
  const kids = new Map<string, Tree>();
  for (const box of scene.boxes) {
    const child = box.kind === "child" ? children.get(box.id) : undefined;
    if (child) kids.set(box.id, treeOf(child.graph, collapsed, children, child.run, `${box.id}/`));
  }
  return { scene, kids };
}

const INSIDE = 14;

interface PlacedTree {
  tree: Tree;
  placed: Placed;
  kids: Map<string, PlacedTree>;
}

function sized(tree: Tree, kids: ReadonlyMap<string, PlacedTree>): Wanted {
  if (kids.size === 0 && tree.wanted) return tree.wanted;
  const wanted = forLayout(tree.scene);
  for (const box of wanted.boxes) {
    const inside = kids.get(box.id)?.placed;
    if (inside === undefined) continue;
    box.width = Math.max(box.width, inside.width + 2 * INSIDE);
    box.height += inside.height + INSIDE;
  }
  const found = { ...wanted, key: keyOf(wanted) };
  if (kids.size === 0) tree.wanted = found;
  return found;
}

/** The places if all of them are known already. */
function known(tree: Tree): PlacedTree | null {
  const kids = new Map<string, PlacedTree>();
  for (const [id, kid] of tree.kids) {
    const found = known(kid);
    if (found === null) return null;
    kids.set(id, found);
  }
  const placed = layouts.get(sized(tree, kids).key);
  return placed === undefined ? null : { tree, placed, kids };
}

async function place(tree: Tree): Promise<void> {
  const kids = new Map<string, PlacedTree>();
  for (const [id, kid] of tree.kids) {
    await place(kid);
    const found = known(kid);
    if (found) kids.set(id, found);
  }
  const { boxes, links, key } = sized(tree, kids);
  if (!layouts.has(key)) keep(key, await ask(boxes, links));
}

// Paths

const paths = new WeakMap<PlacedLink, { path: string; points: Point[] }>();

/** A curve along the points; it leaves and enters boxes straight down. */
export function curve(points: readonly Point[]): string {
  const [first, second] = points;
  const last = points.at(-1);
  if (first === undefined || second === undefined || last === undefined) return "";
  const at = ({ x, y }: Point): string => `${round(x)} ${round(y)}`;
  if (points.length === 2) {
    const half = (last.y - first.y) / 2;
    return Math.abs(last.x - first.x) < 1 ? `M${at(first)}L${at(last)}` : `M${at(first)}C${round(first.x)} ${round(first.y + half)} ${round(last.x)} ${round(last.y - half)} ${at(last)}`;
  }
  let path = `M${at(first)}`;
  for (let number = 1; number < points.length - 1; number++) {
    const here = points[number] as Point;
    const next = points[number + 1] as Point;
    path += `Q${at(here)} ${number === points.length - 2 ? at(next) : at({ x: (here.x + next.x) / 2, y: (here.y + next.y) / 2 })}`;
  }
  return path;
}

const round = (value: number): number => Math.round(value * 10) / 10;

/** The route from box to box: straight into the top, and a way back at the side. */
function routed(route: PlacedLink, link: SceneLink, placed: Placed, body: readonly string[]): { path: string; points: Point[] } {
  const seen = paths.get(route);
  if (seen) return seen;
  const from = placed.boxes.get(link.from);
  const to = placed.boxes.get(link.to);
  let points = route.points;
  if (from && to && points.length >= 2) {
    const middle = points.slice(1, -1);
    if (link.kind === "loop") {
      const members = body.flatMap((id) => placed.boxes.get(id) ?? []);
      const x = Math.max(from.x + from.width, ...members.map((box) => box.x + box.width), to.x + to.width) + 44;
      points = [
        { x: from.x + from.width, y: from.y + from.height / 2 },
        { x, y: from.y + from.height / 2 },
        { x, y: to.y + to.height / 2 },
        { x: to.x + to.width, y: to.y + to.height / 2 },
      ];
    } else {
      const begin = { x: from.x + from.width / 2, y: from.y + from.height };
      const end = { x: to.x + to.width / 2, y: to.y };
      const straight = middle.every((point) => Math.abs(point.x - begin.x) < 3) && Math.abs(begin.x - end.x) < 3;
      points = straight || middle.length <= 1 ? [begin, end] : [begin, ...middle, end];
    }
  }
  const found = { path: link.kind === "loop" ? rounded(points) : curve(points), points };
  paths.set(route, found);
  return found;
}

/** Straight parts with round corners. */
export function rounded(points: readonly Point[], radius = 10): string {
  let path = "";
  points.forEach((point, number) => {
    const before = points[number - 1];
    const after = points[number + 1];
    if (before === undefined) path = `M${round(point.x)} ${round(point.y)}`;
    else if (after === undefined) path += `L${round(point.x)} ${round(point.y)}`;
    else {
      const near = towards(point, before, radius);
      const far = towards(point, after, radius);
      path += `L${round(near.x)} ${round(near.y)}Q${round(point.x)} ${round(point.y)} ${round(far.x)} ${round(far.y)}`;
    }
  });
  return path;
}

function towards(from: Point, to: Point, distance: number): Point {
  const length = Math.hypot(to.x - from.x, to.y - from.y) || 1;
  const share = Math.min(0.5, distance / length);
  return { x: from.x + (to.x - from.x) * share, y: from.y + (to.y - from.y) * share };
}

// Putting together

function compose({ tree, placed, kids }: PlacedTree, dx: number, dy: number, into: Drawing): void {
  const { scene } = tree;
  for (const box of scene.boxes) {
    const at = placed.boxes.get(box.id);
    if (at === undefined) continue;
    const inside = kids.get(box.id);
    const drawn: DrawnBox = { box, x: at.x + dx, y: at.y + dy, width: at.width, height: at.height, open: inside !== undefined };
    into.boxes.push(drawn);
    into.byId.set(box.id, drawn);
    if (inside) compose(inside, drawn.x + (at.width - inside.placed.width) / 2, drawn.y + CARD_HEIGHT + EXTRA_HEIGHT * extras(box.node), into);
  }
  let number = 0;
  for (const link of scene.links) {
    let path: string;
    let points: Point[];
    let label: Point | null;
    if (link.from === link.to) {
      const at = placed.boxes.get(link.from);
      if (at === undefined) continue;
      const { x, y, width, height } = at;
      points = [
        { x: x + width, y: y + height - 14 },
        { x: x + width + 20, y: y + height - 14 },
        { x: x + width + 20, y: y + 16 },
        { x: x + width, y: y + 16 },
      ];
      path = rounded(points);
      label = null;
    } else {
      const route = placed.links[number++];
      if (route === undefined || route.points.length < 2) continue;
      ({ path, points } = routed(route, link, placed, link.kind === "loop" ? (scene.loops.find((loop) => loop.node === link.from)?.members ?? []) : []));
      label = route.label;
      if (link.kind === "loop" && points.length === 4) label = { x: (points[1] as Point).x, y: ((points[1] as Point).y + (points[2] as Point).y) / 2 };
    }
    const begin = points[0] as Point;
    const end = points.at(-1) as Point;
    let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
    for (const point of points) {
      left = Math.min(left, point.x + dx);
      right = Math.max(right, point.x + dx);
      top = Math.min(top, point.y + dy);
      bottom = Math.max(bottom, point.y + dy);
    }
    const moved = dx !== 0 || dy !== 0;
    const shift = (point: Point): Point => (moved ? { x: point.x + dx, y: point.y + dy } : point);
    into.links.push({
      id: `${link.from}\n${link.to}\n${link.kind}`,
      link,
      path: moved ? (link.kind === "loop" ? rounded(points.map(shift)) : curve(points.map(shift))) : path,
      begin: shift(begin),
      end: shift(end),
      label: label && shift(label),
      left,
      right,
      top,
      bottom,
    });
  }
  const ids = scene.boxes.map((box) => box.id);
  for (const loop of scene.loops) {
    if (ids.length > 2_000) break;
    const frame = frameOf(loop.members, placed, ids);
    if (frame) into.frames.push({ node: loop.node, ...frame, x: frame.x + dx, y: frame.y + dy });
  }
}

export function draw(places: PlacedTree): Drawing {
  const drawing: Drawing = { width: places.placed.width, height: places.placed.height, boxes: [], byId: new Map(), links: [], frames: [] };
  compose(places, 0, 0, drawing);
  for (const link of drawing.links) drawing.width = Math.max(drawing.width, link.right + (link.label ? 30 : 4));
  return drawing;
}

/** The drawing of a graph; while a new structure is laid out, the one before. null until there is one. */
export function useDrawing(graph: DrawnGraph, collapsed: ReadonlySet<string>, children: ReadonlyMap<string, ChildGraph>): Drawing | null {
  const tree = useMemo(() => treeOf(graph, collapsed, children, null, ""), [graph, collapsed, children]);
  const [ready, setReady] = useState(0);
  // `ready` says that a layout has come.
  const places = useMemo(() => known(tree), [tree, ready]);
  const before = useRef<Drawing | null>(null);
  const drawing = useMemo(() => (places === null ? null : draw(places)), [places]);
  useEffect(() => {
    if (places !== null) return;
    let current = true;
    void place(tree).then(() => {
      if (current) setReady((count) => count + 1);
    });
    return () => {
      current = false;
    };
  }, [tree, places]);
  if (drawing !== null) before.current = drawing;
  return drawing ?? before.current;
}

