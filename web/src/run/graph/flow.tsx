// The surface of a graph: pan and zoom, only what is visible, a small map, find, and the keyboard.
import "@xyflow/react/dist/base.css";
import { ReactFlow, ReactFlowProvider, useReactFlow, useStore, useStoreApi, ViewportPortal, type ReactFlowState } from "@xyflow/react";
import { useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore, type KeyboardEvent, type PointerEvent, type ReactNode } from "react";
import { IconButton, signOf, StatusIcon, useShortcut } from "../../ui";
import { fitCanvas, paint, paletteOf } from "./canvas";
import { Card, elementId, type CardActions } from "./card";
import type { Drawing, DrawnBox } from "./drawing";
import css from "./graph.module.css";
import { Labels, Links } from "./links";
import { find, neighbour, type Direction, type Match } from "./navigate";
import { boxStatus, type SceneBox } from "./scene";

/** With more boxes in view, or further away, boxes are drawn on a canvas. */
/** How high the legend is. */
const LEGEND = 36;
const CARDS_MAX = 260;
const FAR_BELOW = 0.32;
const ZOOM_MIN = 0.02;
const ZOOM_MAX = 1.75;
const CELL = 320;

export interface FlowProps {
  drawing: Drawing;
  hasRun: boolean;
  selected: string | null;
  /** Where to look first if all does not fit. */
  start: string | null;
  pass: { loop: string; number: number } | null;
  actions: Omit<CardActions, "focus">;
  onClear?: () => void;
  label: string;
  children?: ReactNode;
}

export function Flow(props: FlowProps) {
  return (
    <ReactFlowProvider>
      <Surface {...props} />
    </ReactFlowProvider>
  );
}

interface Window {
  left: number;
  top: number;
  right: number;
  bottom: number;
  zoom: number;
}

/** What is in view, in steps: it changes only when another part comes near. */
function cellOf({ transform: [x, y, zoom], width, height }: ReactFlowState): string {
  const step = CELL / Math.max(zoom, 0.05);
  const cell = (value: number, up: boolean): number => (up ? Math.ceil(value / step + 0.5) : Math.floor(value / step - 0.5)) * step;
  return [cell(-x / zoom, false), cell(-y / zoom, false), cell((width - x) / zoom, true), cell((height - y) / zoom, true), zoom < FAR_BELOW ? 0 : 1].map(Math.round).join(" ");
}

function themeStore() {
  let version = 0;
  return {
    subscribe(listener: () => void) {
      const changed = () => {
        version += 1;
        listener();
      };
      const observer = new MutationObserver(changed);
      observer.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
      const media = matchMedia("(prefers-color-scheme: dark)");
      media.addEventListener("change", changed);
      return () => {
        observer.disconnect();
        media.removeEventListener("change", changed);
      };
    },
    version: () => version,
  };
}
const theme = themeStore();

function Surface({ drawing, hasRun, selected, start, pass, actions, onClear, label, children }: FlowProps) {
  const flow = useReactFlow();
  const store = useStoreApi();
  const cell = useStore(cellOf);
  const size = useStore((state) => `${state.width} ${state.height}`);
  const [current, setCurrent] = useState<string | null>(null);
  const [finding, setFinding] = useState(false);
  const moved = useRef(false);
  const zoomBy = (step: 1 | -1): void => {
    moved.current = true;
    void (step > 0 ? flow.zoomIn() : flow.zoomOut());
  };

  const seen = useMemo((): Window => {
    const [left = 0, top = 0, right = 0, bottom = 0, zoom = 1] = cell.split(" ").map(Number);
    return { left, top, right, bottom, zoom };
  }, [cell]);
  const visible = useMemo(() => drawing.boxes.filter((box) => box.x < seen.right && box.x + box.width > seen.left && box.y < seen.bottom && box.y + box.height > seen.top), [drawing, seen]);
  const far = seen.zoom === 0 && visible.length > 60 ? true : visible.length > CARDS_MAX;
  const links = useMemo(() => (far ? [] : drawing.links.filter((link) => link.left < seen.right && link.right > seen.left && link.top < seen.bottom && link.bottom > seen.top)), [drawing, seen, far]);
  const frames = useMemo(() => (far ? [] : drawing.frames.filter((frame) => frame.x < seen.right && frame.x + frame.width > seen.left && frame.y < seen.bottom && frame.y + frame.height > seen.top)), [drawing, seen, far]);
  const chosen = useMemo(() => new Set(selected === null ? [] : [selected]), [selected]);

  const fit = useCallback(() => void flow.fitBounds({ x: 0, y: 0, width: drawing.width, height: drawing.height }, { padding: 0.06 }).then(() => flow.getZoom() > 1 && flow.setCenter(drawing.width / 2, drawing.height / 2, { zoom: 1 })), [flow, drawing]);
  const goTo = useCallback(
    (id: string, options: { focus?: boolean; always?: boolean } = {}) => {
      const box = drawing.byId.get(id);
      if (box === undefined) return;
      const { transform, width, height } = store.getState();
      const [x, y, zoom] = transform;
      const inside = box.x * zoom + x >= 0 && (box.x + box.width) * zoom + x <= width && box.y * zoom + y >= 0 && (box.y + box.height) * zoom + y <= height;
      if (!inside || options.always || zoom < FAR_BELOW) {
        moved.current = true;
        void flow.setCenter(box.x + box.width / 2, box.y + Math.min(box.height, 200) / 2, { zoom: Math.max(zoom, 0.8) });
      }
      setCurrent(id);
      if (options.focus) focusSoon(id);
    },
    [drawing, flow, store],
  );

  // The first look, also after the room has changed, until the reader moves it: all of it if that is readable, else where
  // something is to see.
  const begun = useRef(false);
  const first = useRef({ drawing, selected, start });
  first.current = { drawing, selected, start };
  useLayoutEffect(() => {
    if (moved.current) return;
    const { drawing, selected, start } = first.current;
    const { width, height: whole } = store.getState();
    if (width === 0 || whole === 0) return;
    begun.current = true;
    // The legend of a run covers no node.
    const height = Math.max(1, whole - (hasRun ? LEGEND : 0));
    // On a phone the tools take a whole line.
    const above = width < 600 ? 60 : 24;
    const zoom = Math.min((width - 48) / Math.max(1, drawing.width), (height - 24 - above) / Math.max(1, drawing.height));
    if (zoom >= 0.55) {
      const used = Math.min(1, zoom);
      void flow.setViewport({ x: (width - drawing.width * used) / 2, y: Math.max(above, (height - drawing.height * used) / 2), zoom: used });
      return;
    }
    const id = selected ?? start;
    const box = id === null ? undefined : drawing.byId.get(id);
    const used = 0.8;
    // The drawing fills the room: no empty ground beyond its edges.
    const within = (offset: number, room: number, size: number, least = 24): number => (size * used + 24 + least <= room ? (room - size * used) / 2 : Math.min(least, Math.max(room - size * used - 24, offset)));
    const lookAt = (x: number, y: number) => void flow.setViewport({ x: within(width / 2 - x * used, width, drawing.width), y: within(height / 2 - y * used, height, drawing.height, above), zoom: used });
    if (box) lookAt(box.x + box.width / 2, box.y + Math.min(box.height, 200) / 2);
    else {
      const off = (each: DrawnBox): number => each.y * 4 + Math.abs(each.x + each.width / 2 - drawing.width / 2);
      const top = drawing.boxes.reduce<DrawnBox | null>((best, each) => (best === null || off(each) < off(best) ? each : best), null);
      lookAt(top === null ? 0 : top.x + top.width / 2, 0);
    }
  }, [flow, size, store, hasRun]);

  // What another view selects comes into view.
  const shown = useRef(selected);
  useEffect(() => {
    if (selected === null || shown.current === selected || !begun.current) return;
    shown.current = selected;
    // A moment later its panel has taken its room.
    const soon = setTimeout(() => goTo(selected), 50);
    return () => clearTimeout(soon);
  }, [selected, goTo]);

  const all = useMemo<CardActions>(() => ({ ...actions, focus: setCurrent, select: (box) => {
    shown.current = box.id;
    actions.select(box);
  } }), [actions]);
  const tabStop = current !== null && drawing.byId.has(current) ? current : selected !== null && drawing.byId.has(selected) ? selected : (visible[0]?.box.id ?? null);

  const onKeyDown = (event: KeyboardEvent): void => {
    if (event.target instanceof HTMLInputElement || event.altKey || event.ctrlKey || event.metaKey) return;
    const direction = ({ ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right" } as Record<string, Direction>)[event.key];
    if (direction) {
      event.preventDefault();
      event.stopPropagation();
      const next = tabStop === null ? null : document.activeElement?.id.startsWith("node-") ? neighbour(drawing, tabStop, direction) : tabStop;
      if (next !== null) goTo(next, { focus: true });
    } else if (event.key === "+" || event.key === "=") zoomBy(1);
    else if (event.key === "-") zoomBy(-1);
    else if (event.key === "0") fit();
    else if (event.key === "Home" && drawing.boxes[0]) goTo(drawing.boxes[0].box.id, { focus: true });
    else if (event.key === "Escape" && selected !== null) onClear?.();
  };
  useShortcut("/", "Find a node", () => setFinding(true), "Graph");

  return (
    <div className={css.flow} onKeyDown={onKeyDown} role="group" aria-label={label} data-far={far || undefined}>
      <ReactFlow
        nodes={NONE}
        edges={NONE}
        minZoom={ZOOM_MIN}
        maxZoom={ZOOM_MAX}
        panOnScroll
        zoomActivationKeyCode={ZOOM_KEYS}
        selectionKeyCode={null}
        multiSelectionKeyCode={null}
        deleteKeyCode={null}
        panActivationKeyCode={null}
        disableKeyboardA11y
        elementsSelectable={false}
        nodesDraggable={false}
        nodesConnectable={false}
        zoomOnDoubleClick={false}
        proOptions={HIDDEN}
        onMove={(event) => {
          if (event !== null) moved.current = true;
        }}
        onPaneClick={(event) => {
          const hit = far ? boxAt(event.clientX, event.clientY) : null;
          if (hit) {
            goTo(hit.box.id);
            all.select(hit.box);
          } else onClear?.();
        }}
      >
        {far && <Far drawing={drawing} selected={selected} />}
        <ViewportPortal>
          {!far && (
            <>
              <Links links={links} frames={frames} chosen={chosen} />
              {visible.map((drawn) => (
                <Card
                  key={drawn.box.id}
                  drawn={drawn}
                  hasRun={hasRun}
                  selected={drawn.box.id === selected}
                  current={drawn.box.id === tabStop}
                  pass={pass?.loop === drawn.box.id ? pass.number : null}
                  actions={all}
                />
              ))}
              <Labels links={links} />
            </>
          )}
        </ViewportPortal>
      </ReactFlow>
      <div className={css.tools}>
        {finding && (
          <Find
            drawing={drawing}
            onClose={(id) => {
              setFinding(false);
              if (id !== null) focusSoon(id);
            }}
            onGo={(match) => {
              goTo(match.id, { always: true });
              const box = drawing.byId.get(match.id)?.box;
              if (box) all.select(box);
            }}
          />
        )}
        <IconButton icon="search" size="s" label="Find a node" keys="/" onClick={() => setFinding(true)} />
        <IconButton icon="plus" size="s" label="Zoom in" onClick={() => zoomBy(1)} />
        <IconButton icon="minus" size="s" label="Zoom out" onClick={() => zoomBy(-1)} />
        <IconButton icon="fit" size="s" label="Show all of it" onClick={fit} />
      </div>
      {children}
      <MiniMap drawing={drawing} selected={selected} />
    </div>
  );

  function boxAt(clientX: number, clientY: number): DrawnBox | null {
    const { x, y } = flow.screenToFlowPosition({ x: clientX, y: clientY }, { snapToGrid: false });
    return drawing.boxes.findLast((box) => x >= box.x && x <= box.x + box.width && y >= box.y && y <= box.y + box.height) ?? null;
  }
}

const NONE: never[] = [];
const ZOOM_KEYS = ["Meta", "Control"];
const HIDDEN = { hideAttribution: true };

/** Focus a card once it is there. */
function focusSoon(id: string): void {
  let tries = 0;
  const look = (): void => {
    const element = document.getElementById(elementId(id));
    if (element) element.focus({ preventScroll: true });
    else if (tries++ < 20) requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
}

/** All boxes on a canvas, redrawn with every move. */
function Far({ drawing, selected }: { drawing: Drawing; selected: string | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const store = useStoreApi();
  const version = useSyncExternalStore(theme.subscribe, theme.version);
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    const palette = paletteOf(document.body);
    let frame = 0;
    let last: unknown = null;
    const redraw = (): void => {
      frame = 0;
      const { transform, width, height } = store.getState();
      fitCanvas(element, width, height);
      paint(context, drawing, { x: transform[0], y: transform[1], zoom: transform[2], width, height }, palette, { selected, links: true });
    };
    const changed = (): void => {
      const { transform, width } = store.getState();
      const key = `${transform.join()} ${width}`;
      if (key === last) return;
      last = key;
      if (!frame) frame = requestAnimationFrame(redraw);
    };
    redraw();
    const unsubscribe = store.subscribe(changed);
    return () => {
      unsubscribe();
      cancelAnimationFrame(frame);
    };
  }, [drawing, selected, store, version]);
  return <canvas ref={canvas} className={css.far} aria-hidden="true" />;
}

const MAP_WIDTH = 168;
const MAP_HEIGHT = 112;

/** The whole graph in a corner; a press or a drag goes there. It is gone while all is in view. */
function MiniMap({ drawing, selected }: { drawing: Drawing; selected: string | null }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const flow = useReactFlow();
  const version = useSyncExternalStore(theme.subscribe, theme.version);
  const scale = Math.min(MAP_WIDTH / Math.max(1, drawing.width), MAP_HEIGHT / Math.max(1, drawing.height)) * 0.94;
  const dx = (MAP_WIDTH - drawing.width * scale) / 2;
  const dy = (MAP_HEIGHT - drawing.height * scale) / 2;
  const rect = useStore((state) => {
    const [x, y, zoom] = state.transform;
    const left = Math.max(0, dx + (-x / zoom) * scale);
    const top = Math.max(0, dy + (-y / zoom) * scale);
    const right = Math.min(MAP_WIDTH, dx + ((state.width - x) / zoom) * scale);
    const bottom = Math.min(MAP_HEIGHT, dy + ((state.height - y) / zoom) * scale);
    const whole = -x / zoom <= 0 && -y / zoom <= 0 && (state.width - x) / zoom >= drawing.width && (state.height - y) / zoom >= drawing.height;
    return whole ? "" : [left, top, Math.max(4, right - left), Math.max(4, bottom - top)].map((value) => Math.round(value * 2) / 2).join(" ");
  });
  useEffect(() => {
    const element = canvas.current;
    const context = element?.getContext("2d");
    if (!element || !context) return;
    fitCanvas(element, MAP_WIDTH, MAP_HEIGHT);
    paint(context, drawing, { x: dx, y: dy, zoom: scale, width: MAP_WIDTH, height: MAP_HEIGHT }, paletteOf(document.body), { selected, links: drawing.links.length < 2_000 });
  }, [drawing, selected, dx, dy, scale, version, rect === ""]);
  if (rect === "") return null;
  const [left, top, width, height] = rect.split(" ").map(Number);
  const go = (event: PointerEvent<HTMLDivElement>): void => {
    const bounds = event.currentTarget.getBoundingClientRect();
    void flow.setCenter((event.clientX - bounds.left - dx) / scale, (event.clientY - bounds.top - dy) / scale, { zoom: flow.getZoom() });
  };
  return (
    <div
      className={css.map}
      style={{ width: MAP_WIDTH, height: MAP_HEIGHT }}
      aria-hidden="true"
      onPointerDown={(event) => {
        event.currentTarget.setPointerCapture(event.pointerId);
        go(event);
      }}
      onPointerMove={(event) => event.buttons === 1 && go(event)}
    >
      <canvas ref={canvas} style={{ width: MAP_WIDTH, height: MAP_HEIGHT }} />
      <span className={css.mapView} style={{ left, top, width, height }} />
    </div>
  );
}

function Find({ drawing, onGo, onClose }: { drawing: Drawing; onGo: (match: Match) => void; onClose: (focus: string | null) => void }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const { matches, total } = useMemo(() => find(drawing, text, (box: SceneBox) => `${boxStatus(box)} ${signOf(boxStatus(box)).word}`), [drawing, text]);
  const chosen = Math.min(at, matches.length - 1);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    // Newer browsers answer with a promise, which is no clean-up.
    void list.current?.children[chosen]?.scrollIntoView({ block: "nearest" });
  }, [chosen]);
  const go = (number: number): void => {
    const match = matches[number];
    setAt(number);
    if (match) onGo(match);
  };
  return (
    <div className={css.find} role="search">
      <input
        type="search"
        autoFocus
        placeholder="Find a node by name, type or status"
        aria-label="Find a node"
        role="combobox"
        aria-expanded={matches.length > 0}
        aria-controls="found-nodes"
        aria-activedescendant={matches.length > 0 ? `found-${chosen}` : undefined}
        value={text}
        onChange={(event) => {
          setText(event.target.value);
          setAt(0);
        }}
        onKeyDown={(event) => {
          event.stopPropagation();
          if (event.key === "Escape") onClose(matches[chosen]?.id ?? null);
          else if (event.key === "Enter") {
            go(Math.max(0, chosen));
            onClose(matches[Math.max(0, chosen)]?.id ?? null);
          } else if (event.key === "ArrowDown" || event.key === "ArrowUp") {
            event.preventDefault();
            if (matches.length > 0) go((chosen + (event.key === "ArrowDown" ? 1 : matches.length - 1)) % matches.length);
          }
        }}
        onBlur={(event) => !event.currentTarget.parentElement?.contains(event.relatedTarget) && onClose(null)}
      />
      <ul ref={list} id="found-nodes" role="listbox" aria-label="Nodes found">
        {matches.map((match, number) => {
          const box = drawing.byId.get(match.id)?.box;
          const member = match.inside === null ? undefined : box?.members?.find((each) => each.id === match.inside);
          const status = member ? (member.status ?? "") : box ? boxStatus(box) : "";
          return (
            <li
              key={`${match.id} ${match.name}`}
              id={`found-${number}`}
              role="option"
              aria-selected={number === chosen}
              onPointerDown={(event) => {
                event.preventDefault();
                go(number);
                onClose(match.id);
              }}
            >
              {status && <StatusIcon status={status} size={14} label />}
              <span className="truncate">{match.name}</span>
              {match.inside !== null && match.id !== match.inside && <span className={css.type}>in loop {match.id}</span>}
            </li>
          );
        })}
      </ul>
      <p className={css.found} role="status">
        {total === 0 ? "No node has these words." : total > matches.length ? `The first ${matches.length} of ${total.toLocaleString()}` : `${total} found`}
      </p>
    </div>
  );
}
