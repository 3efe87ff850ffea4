// JSON as a tree. Only lines in sight exist, and branches are read when they are opened, so that deep and large values
// cost no more than what is seen. A text is shown in parts of 64 KB.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useEffect, useId, useMemo, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { Button, Copy } from "./controls";
import css from "./json-view.module.css";

const PART = 65_536;
/** Children of a branch that are shown at once. */
const CHILDREN = 200;
const TEXT_SHOWN = 300;
const LINES_OPENED = 60;
const LEVELS_INDENTED = 10;
const SEPARATOR = "\u0000";

interface Line {
  path: string;
  level: number;
  /** The key or index; null at the root. */
  name: string | null;
  value: unknown;
  /** How many children are not shown yet. */
  more?: number;
}

const isBranch = (value: unknown): value is object => typeof value === "object" && value !== null;
const size = (value: object): number => (Array.isArray(value) ? value.length : Object.keys(value).length);

function* children(value: object, limit: number): Generator<[string, unknown]> {
  if (Array.isArray(value)) {
    for (let index = 0; index < Math.min(limit, value.length); index += 1) yield [String(index), value[index]];
    return;
  }
  let count = 0;
  for (const [name, each] of Object.entries(value)) {
    if (count++ >= limit) return;
    yield [name, each];
  }
}

/** The lines of everything that is open, without recursion: a value may be nested very deeply. */
function linesOf(root: unknown, open: ReadonlyMap<string, number>): Line[] {
  const lines: Line[] = [];
  const stack: Line[] = [{ path: "", level: 0, name: null, value: root }];
  for (let line = stack.pop(); line; line = stack.pop()) {
    lines.push(line);
    const limit = open.get(line.path);
    if (line.more !== undefined || limit === undefined || !isBranch(line.value)) continue;
    const { path, level, value } = line;
    const below = Array.from(children(value, limit), ([name, each]): Line => ({ path: path + SEPARATOR + name, level: level + 1, name, value: each }));
    const left = size(value) - below.length;
    if (left > 0) below.push({ path: `${path}${SEPARATOR}${SEPARATOR}`, level: level + 1, name: null, value: null, more: left });
    stack.push(...below.reverse());
  }
  return lines;
}

/** Open level by level while the whole stays short. */
function firstOpen(root: unknown): Map<string, number> {
  const open = new Map<string, number>();
  let level: Line[] = [{ path: "", level: 0, name: null, value: root }];
  let count = 1;
  while (level.length > 0) {
    const next: Line[] = [];
    for (const line of level) {
      if (!isBranch(line.value) || (line.level > 0 && count + size(line.value) > LINES_OPENED)) continue;
      open.set(line.path, CHILDREN);
      count += Math.min(CHILDREN, size(line.value));
      for (const [name, each] of children(line.value, CHILDREN)) next.push({ path: line.path + SEPARATOR + name, level: line.level + 1, name, value: each });
    }
    level = next;
  }
  return open;
}

export interface JsonViewProps {
  value: unknown;
  label?: string;
  /** The tallest that it gets; then it scrolls. */
  maxHeight?: number;
  /** What stands beside the button that copies. */
  actions?: ReactNode;
}

export function JsonView({ value, label = "Value", maxHeight = 420, actions }: JsonViewProps) {
  if (typeof value === "string") return <TextView text={value} label={label} maxHeight={maxHeight} actions={actions} />;
  if (!isBranch(value)) {
    return (
      <div className={css.view}>
        <div className={css.single}>
          <Scalar value={value} />
        </div>
      </div>
    );
  }
  return <Tree value={value} label={label} maxHeight={maxHeight} actions={actions} />;
}

function Tree({ value, label, maxHeight, actions }: { value: object; label: string; maxHeight: number; actions?: ReactNode }) {
  const [open, setOpen] = useState<ReadonlyMap<string, number>>(() => firstOpen(value));
  const [current, setCurrent] = useState(0);
  const scroller = useRef<HTMLDivElement>(null);
  const id = useId();
  const first = useRef(value);
  useEffect(() => {
    if (first.current === value) return;
    first.current = value;
    setOpen((before) => (before.size > 0 ? before : firstOpen(value)));
  }, [value]);
  const lines = useMemo(() => linesOf(value, open), [value, open]);
  const virtual = useVirtualizer({ count: lines.length, getScrollElement: () => scroller.current, estimateSize: () => 20, overscan: 20, getItemKey: (index) => lines[index]?.path ?? index });

  const toggle = (line: Line, wanted?: boolean) => {
    if (line.more !== undefined) {
      const parent = line.path.slice(0, -2 * SEPARATOR.length);
      setOpen(new Map(open).set(parent, (open.get(parent) ?? 0) + CHILDREN));
    } else if (isBranch(line.value) && wanted !== open.has(line.path)) {
      const next = new Map(open);
      if (!next.delete(line.path)) next.set(line.path, CHILDREN);
      setOpen(next);
    }
  };
  const go = (to: number) => {
    const at = Math.max(0, Math.min(lines.length - 1, to));
    setCurrent(at);
    virtual.scrollToIndex(at);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const line = lines[current];
    if (!line || event.target !== scroller.current || event.ctrlKey || event.metaKey || event.altKey) return;
    const acts: Record<string, () => void> = {
      ArrowDown: () => go(current + 1),
      ArrowUp: () => go(current - 1),
      Home: () => go(0),
      End: () => go(lines.length - 1),
      Enter: () => toggle(line),
      " ": () => toggle(line),
      ArrowRight: () => (open.has(line.path) ? go(current + 1) : toggle(line, true)),
      ArrowLeft: () => (open.has(line.path) && isBranch(line.value) ? toggle(line, false) : go(lines.findLastIndex((each, index) => index < current && each.level < line.level))),
    };
    const act = acts[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  };
  return (
    <div className={css.view}>
      <div className={css.tools}>
        {actions}
        <Copy text={() => JSON.stringify(value, null, 2)} label="Copy JSON" />
      </div>
      <div ref={scroller} className={css.scroller} style={{ maxHeight }} role="tree" aria-label={label} tabIndex={0} aria-activedescendant={`${id}-${current}`} onKeyDown={onKeyDown}>
        <div className={css.lines} style={{ height: virtual.getTotalSize() }}>
          {virtual.getVirtualItems().map((item) => {
            const line = lines[item.index];
            if (!line) return null;
            const branch = line.more === undefined && isBranch(line.value);
            return (
              <div
                key={item.key}
                ref={virtual.measureElement}
                data-index={item.index}
                id={`${id}-${item.index}`}
                role="treeitem"
                aria-level={line.level + 1}
                aria-selected={item.index === current}
                aria-expanded={branch ? open.has(line.path) : undefined}
                className={css.line}
                style={{ transform: `translateY(${item.start}px)`, paddingInlineStart: 8 + 16 * Math.min(line.level, LEVELS_INDENTED) }}
                onClick={() => {
                  setCurrent(item.index);
                  toggle(line);
                }}
              >
                <span className={css.arrow} aria-hidden="true">
                  {branch ? (open.has(line.path) ? "▾" : "▸") : ""}
                </span>
                {line.level > LEVELS_INDENTED && <span className={css.faint}>level {line.level} </span>}
                {line.name !== null && (
                  <>
                    <span className={css.key}>{line.name}</span>
                    <span className={css.faint}>: </span>
                  </>
                )}
                {line.more !== undefined ? <span className={css.moreLine}>… {line.more.toLocaleString()} more, press to show</span> : branch ? <span className={css.faint}>{summary(line.value as object)}</span> : <Scalar value={line.value} />}
              </div>
            );
          })}
        </div>
      </div>
    </div>
  );
}

function summary(value: object): string {
  const count = size(value);
  if (Array.isArray(value)) return count === 0 ? "[]" : `[ ${count.toLocaleString()} ]`;
  return count === 0 ? "{}" : `{ ${count.toLocaleString()} }`;
}

function Scalar({ value }: { value: unknown }) {
  const [whole, setWhole] = useState(false);
  if (typeof value === "string") {
    const long = value.length > TEXT_SHOWN;
    const text = whole ? value.slice(0, PART) : value.slice(0, TEXT_SHOWN);
    return (
      <>
        <span className={css.string} dir="auto">{`"${text}${whole || !long ? (value.length > PART ? "…" : "") : "…"}"`}</span>
        {long && (
          <button
            type="button"
            className={css.whole}
            tabIndex={-1}
            onClick={(event) => {
              event.stopPropagation();
              setWhole(!whole);
            }}
          >
            {whole ? "less" : `all ${value.length.toLocaleString()} characters`}
          </button>
        )}
      </>
    );
  }
  if (typeof value === "number") return <span className={css.number}>{String(value)}</span>;
  return <span className={css.word}>{value === undefined ? "–" : String(value)}</span>;
}

/** A long text in parts. */
export function TextView({ text, label = "Text", maxHeight = 420, actions }: { text: string; label?: string; maxHeight?: number; actions?: ReactNode }) {
  const [shown, setShown] = useState(PART);
  return (
    <div className={css.view}>
      <div className={css.tools}>
        {actions}
        <Copy text={text} label="Copy text" />
      </div>
      <pre className={css.text} style={{ maxHeight }} aria-label={label} role="region" tabIndex={0} dir="auto">
        {text.slice(0, shown)}
      </pre>
      {shown < text.length && (
        <div className={css.rest}>
          <span>
            {shown.toLocaleString()} of {text.length.toLocaleString()} characters
          </span>
          <Button size="s" onClick={() => setShown(shown + PART)}>
            Show more
          </Button>
        </div>
      )}
    </div>
  );
}
