/** Lays graphs out beside the page, so that it stays responsive. */
import { dagreLayout } from "./dagre-layout";
import { layered, type Box, type Link, type Placed } from "./layout";
import { LARGE } from "./scene";

export interface LayoutRequest {
  id: number;
  boxes: Box[];
  links: Link[];
}

export interface LayoutAnswer {
  id: number;
  placed: Placed | null;
  took: number;
}

self.onmessage = ({ data }: MessageEvent<LayoutRequest>) => {
  const begun = performance.now();
  let placed: Placed | null = null;
  try {
    placed = data.boxes.length > LARGE ? layered(data.boxes, data.links) : dagreLayout(data.boxes, data.links);
  } catch {
    placed = layered(data.boxes, data.links);
  }
  const answer: LayoutAnswer = { id: data.id, placed, took: performance.now() - begun };
  self.postMessage(answer);
};
