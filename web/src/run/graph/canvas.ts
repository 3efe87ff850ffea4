/** Drawing on a canvas what would be too much for the page: the whole of a large graph, and the small map. */
import { signOf, type StatusRole } from "../../ui";
import type { Drawing } from "./drawing";
import { boxStatus } from "./scene";

export interface Palette {
  line: string;
  faint: string;
  accent: string;
  ground: string;
  roles: Record<StatusRole | "none", string>;
}

/** The colours of the theme as the canvas understands them. */
export function paletteOf(element: HTMLElement): Palette {
  const probe = document.createElement("span");
  element.append(probe);
  const read = (name: string): string => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  };
  const palette: Palette = {
    line: read("--fg-soft"),
    faint: read("--border-strong"),
    accent: read("--accent"),
    ground: read("--bg"),
    roles: { ok: read("--ok"), bad: read("--bad"), busy: read("--busy"), wait: read("--wait"), quiet: read("--border-control"), undo: read("--undo"), none: read("--border-control") },
  };
  probe.remove();
  return palette;
}

export interface View {
  x: number;
  y: number;
  zoom: number;
  width: number;
  height: number;
}

/** Draw all that the view shows, with simple shapes. Failed boxes are crossed, skipped ones are hollow. */
export function paint(context: CanvasRenderingContext2D, drawing: Drawing, view: View, palette: Palette, options: { selected: string | null; links: boolean }): void {
  const ratio = window.devicePixelRatio || 1;
  const { zoom, width, height } = view;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.setTransform(ratio * zoom, 0, 0, ratio * zoom, ratio * view.x, ratio * view.y);
  const left = -view.x / zoom;
  const top = -view.y / zoom;
  const right = left + width / zoom;
  const bottom = top + height / zoom;
  if (options.links) {
    for (const fate of [null, false, true] as const) {
      context.beginPath();
      for (const each of drawing.links) {
        if (each.link.taken !== fate || each.right < left || each.left > right || each.bottom < top || each.top > bottom) continue;
        context.moveTo(each.begin.x, each.begin.y);
        context.lineTo(each.end.x, each.end.y);
      }
      context.strokeStyle = fate === true ? palette.line : palette.faint;
      context.lineWidth = (fate === true ? 1.6 : 0.8) / zoom;
      context.setLineDash(fate === false ? [4 / zoom, 3 / zoom] : []);
      context.stroke();
    }
    context.setLineDash([]);
  }
  const least = 1.5 / zoom;
  for (const { box, x, y, width: wide, height: high, open } of drawing.boxes) {
    if (x + wide < left || x > right || y + high < top || y > bottom) continue;
    const status = boxStatus(box);
    const role = status ? signOf(status).role : "none";
    context.fillStyle = palette.roles[role];
    const w = Math.max(wide, least);
    const h = Math.max(high, least);
    if (open || status === "SKIPPED" || status === "PENDING" || status === "") {
      context.strokeStyle = palette.roles[role];
      context.lineWidth = 1 / zoom;
      context.strokeRect(x, y, w, h);
    } else context.fillRect(x, y, w, h);
    if (status === "FAILED" && h * zoom > 5) {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x + w, y + h);
      context.moveTo(x + w, y);
      context.lineTo(x, y + h);
      context.strokeStyle = palette.ground;
      context.lineWidth = 1.2 / zoom;
      context.stroke();
    }
    if (box.id === options.selected) {
      context.strokeStyle = palette.accent;
      context.lineWidth = 2.5 / zoom;
      context.strokeRect(x - 3 / zoom, y - 3 / zoom, w + 6 / zoom, h + 6 / zoom);
    }
  }
}

/** Give a canvas the size of its place, sharp on every screen. */
export function fitCanvas(canvas: HTMLCanvasElement, width: number, height: number): void {
  const ratio = window.devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * ratio)) canvas.width = Math.round(width * ratio);
  if (canvas.height !== Math.round(height * ratio)) canvas.height = Math.round(height * ratio);
}
