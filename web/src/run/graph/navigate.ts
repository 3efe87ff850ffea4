/** Finding boxes, and going from one to the next with the arrow keys. */
import type { Drawing, DrawnBox } from "./drawing";

export type Direction = "up" | "down" | "left" | "right";

const middle = (box: DrawnBox): number => box.x + box.width / 2;

/** Along the links with up and down, else to the nearest box; to the sides within a row. */
export function neighbour(drawing: Drawing, from: string, direction: Direction): string | null {
  const here = drawing.byId.get(from);
  if (here === undefined) return drawing.boxes[0]?.box.id ?? null;
  if (direction === "up" || direction === "down") {
    const linked: DrawnBox[] = [];
    for (const { link } of drawing.links) {
      if (link.kind === "loop") continue;
      const other = direction === "down" ? (link.from === from ? link.to : null) : link.to === from ? link.from : null;
      const box = other === null ? undefined : drawing.byId.get(other);
      if (box) linked.push(box);
    }
    // A way that was taken first, then the nearest.
    const taken = new Set(drawing.links.filter(({ link }) => link.taken === true).map(({ link }) => `${link.from}\n${link.to}`));
    const was = (box: DrawnBox): number => (taken.has(direction === "down" ? `${from}\n${box.box.id}` : `${box.box.id}\n${from}`) ? 0 : 1);
    linked.sort((one, other) => was(one) - was(other) || Math.abs(middle(one) - middle(here)) - Math.abs(middle(other) - middle(here)));
    const [first] = linked;
    if (first) return first.box.id;
  }
  let best: DrawnBox | null = null;
  let least = Infinity;
  for (const box of drawing.boxes) {
    if (box === here) continue;
    const dx = middle(box) - middle(here);
    const dy = box.y - here.y;
    const along = direction === "left" ? -dx : direction === "right" ? dx : direction === "up" ? -dy : dy;
    const beside = direction === "left" || direction === "right" ? Math.abs(dy) : Math.abs(dx);
    if (along <= 1) continue;
    const distance = along + beside * 4;
    if (distance < least) {
      least = distance;
      best = box;
    }
  }
  return best?.box.id ?? null;
}

export interface Match {
  id: string;
  name: string;
  /** A member of a collapsed loop. */
  inside: string | null;
}

const MATCHES_MAX = 50;

/** Boxes whose name, type or status has the words; names that begin with them first. */
export function find(drawing: Drawing, text: string, statusOf: (box: DrawnBox["box"]) => string): { matches: Match[]; total: number } {
  const wanted = text.trim().toLocaleLowerCase();
  const found: { match: Match; rank: number }[] = [];
  let total = 0;
  const consider = (match: Match, words: string): void => {
    const name = match.name.toLocaleLowerCase();
    const at = name.indexOf(wanted);
    if (at < 0 && !words.toLocaleLowerCase().includes(wanted)) return;
    total += 1;
    if (found.length < MATCHES_MAX * 20) found.push({ match, rank: at === 0 ? 0 : at > 0 ? 1 : 2 });
  };
  for (const { box } of drawing.boxes) {
    const words = `${box.node.type} ${statusOf(box)}`;
    if (box.members) for (const member of box.members) consider({ id: box.id, name: member.id, inside: member.id }, `${member.type} ${member.status ?? ""}`);
    else consider({ id: box.id, name: box.node.id, inside: null }, words);
  }
  found.sort((one, other) => one.rank - other.rank);
  return { matches: found.slice(0, MATCHES_MAX).map((each) => each.match), total };
}
