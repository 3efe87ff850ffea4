/** Lays graphs out beside the page, so that it stays responsive. */
import { dagreLayout } from "./dagre-layout";
import { layered, packed, type Box, type Link, type PackedPlaces, type Placed } from "./layout";
import { LARGE } from "./scene";

export interface LayoutRequest {
  id: number;
  boxes: Box[];
  links: Link[];
}

export interface LayoutAnswer {
  id: number;
  places: PackedPlaces;
}

self.onmessage = ({ data: { id, boxes, links } }: MessageEvent<LayoutRequest>) => {
  let placed: Placed;
  try {
    placed = boxes.length > LARGE ? layered(boxes, links) : dagreLayout(boxes, links);
  } catch {
    placed = layered(boxes, links);
  }
  const answer: LayoutAnswer = { id, places: packed(boxes, placed) };
  const { places } = answer;
  self.postMessage(answer, { transfer: [places.boxes.buffer, places.counts.buffer, places.points.buffer, places.labels.buffer] });
};
