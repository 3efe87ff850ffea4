// A long list of rows: only those in sight exist. j/k and arrows move, Enter opens, Space or x selects.
import { useVirtualizer } from "@tanstack/react-virtual";
import { useCallback, useEffect, useId, useRef, useState, type CSSProperties, type KeyboardEvent, type ReactNode } from "react";
import { useShortcut } from "./shortcuts";
import css from "./table.module.css";

export interface Column<T> {
  id: string;
  label: ReactNode;
  /** A CSS grid track: "120px", "minmax(160px, 2fr)". */
  width?: string;
  align?: "start" | "end";
  /** Leave it out on narrow screens. */
  wide?: boolean;
  cell: (row: T) => ReactNode;
  sort?: "asc" | "desc" | "none";
  onSort?: () => void;
}

export interface TableProps<T> {
  label: string;
  columns: Column<T>[];
  rows: readonly T[];
  rowKey: (row: T) => string;
  /** Open a row: Enter and click. */
  onOpen?: (row: T) => void;
  /** Chosen rows by key; without it there are no checkboxes. */
  selected?: ReadonlySet<string>;
  onSelect?: (selected: Set<string>) => void;
  /** Called near the end of the list. */
  onEnd?: () => void;
  rowHeight?: number;
  /** What stands below the last row: "Loading more". */
  footer?: ReactNode;
  empty?: ReactNode;
  className?: string;
  rowProps?: (row: T) => { "data-status"?: string; "data-current"?: boolean };
}

export function Table<T>({ label, columns, rows, rowKey, onOpen, selected, onSelect, onEnd, rowHeight = 36, footer, empty, className, rowProps }: TableProps<T>) {
  const scroller = useRef<HTMLDivElement>(null);
  const id = useId();
  const [current, setCurrent] = useState("");
  const choosing = selected !== undefined && onSelect !== undefined;
  const virtual = useVirtualizer({
    count: rows.length,
    getScrollElement: () => scroller.current,
    estimateSize: () => rowHeight,
    overscan: 12,
    getItemKey: (index) => (rows[index] === undefined ? index : rowKey(rows[index])),
  });
  const items = virtual.getVirtualItems();
  const last = items.at(-1)?.index ?? -1;
  useEffect(() => {
    if (onEnd && rows.length > 0 && last >= rows.length - 10) onEnd();
  }, [last, rows.length, onEnd]);

  const at = rows.findIndex((row) => rowKey(row) === current);
  const move = useCallback(
    (to: number) => {
      const row = rows[Math.max(0, Math.min(rows.length - 1, to))];
      if (row === undefined) return;
      setCurrent(rowKey(row));
      virtual.scrollToIndex(Math.max(0, Math.min(rows.length - 1, to)));
      scroller.current?.focus({ preventScroll: true });
    },
    [rows, rowKey, virtual],
  );
  const toggle = useCallback(
    (key: string) => {
      if (!selected || !onSelect) return;
      const next = new Set(selected);
      if (!next.delete(key)) next.add(key);
      onSelect(next);
    },
    [selected, onSelect],
  );
  useShortcut("j", "Next row", () => move(at + 1), "Lists");
  useShortcut("k", "Previous row", () => move(at < 0 ? 0 : at - 1), "Lists");
  useShortcut(choosing ? "x" : "", "Select row", () => current && toggle(current), "Lists");

  const onKeyDown = (event: KeyboardEvent) => {
    if (event.target !== scroller.current) return;
    const page = Math.max(1, Math.floor((scroller.current?.clientHeight ?? 400) / rowHeight) - 2);
    const row = rows[at];
    const acts: Record<string, () => void> = {
      ArrowDown: () => move(at + 1),
      ArrowUp: () => move(at < 0 ? 0 : at - 1),
      PageDown: () => move(at + page),
      PageUp: () => move(at - page),
      Home: () => move(0),
      End: () => move(rows.length - 1),
      Enter: () => row !== undefined && onOpen?.(row),
      " ": () => (choosing && row !== undefined ? toggle(rowKey(row)) : row !== undefined && onOpen?.(row)),
    };
    const act = acts[event.key];
    if (act && !event.ctrlKey && !event.metaKey && !event.altKey) {
      event.preventDefault();
      act();
    }
  };

  const tracks = columns.map((column) => column.width ?? "minmax(0, 1fr)");
  const narrow = columns.map((column) => (column.wide ? "0px" : column.width ?? "minmax(0, 1fr)")).filter((track) => track !== "0px");
  const choose = choosing ? "36px " : "";
  const style = { "--columns": choose + tracks.join(" "), "--columns-narrow": choose + narrow.join(" "), "--row-height": `${rowHeight}px` } as CSSProperties;
  const all = rows.length > 0 && rows.every((row) => selected?.has(rowKey(row)));
  const some = !all && rows.some((row) => selected?.has(rowKey(row)));
  return (
    <div className={`${css.table} ${className ?? ""}`} style={style}>
      <div
        ref={scroller}
        className={css.scroller}
        role="grid"
        aria-label={label}
        aria-rowcount={rows.length + 1}
        aria-multiselectable={choosing || undefined}
        tabIndex={0}
        aria-activedescendant={at >= 0 && items.some((item) => item.index === at) ? `${id}-${at}` : undefined}
        onKeyDown={onKeyDown}
      >
        <div className={css.head} role="row" aria-rowindex={1}>
          {choosing && (
            <span role="columnheader" className={css.choose}>
              <input
                type="checkbox"
                aria-label="Select all rows shown"
                tabIndex={-1}
                checked={all}
                ref={(box) => {
                  if (box) box.indeterminate = some;
                }}
                onChange={() => onSelect(all ? new Set() : new Set(rows.map(rowKey)))}
              />
            </span>
          )}
          {columns.map((column) => (
            <span
              key={column.id}
              role="columnheader"
              className={css.headCell}
              data-align={column.align}
              data-wide={column.wide || undefined}
              aria-sort={column.sort === "asc" ? "ascending" : column.sort === "desc" ? "descending" : undefined}
            >
              {column.onSort ? (
                <button type="button" className={css.sort} onClick={column.onSort}>
                  {column.label}
                  <span aria-hidden="true">{column.sort === "asc" ? " ↑" : column.sort === "desc" ? " ↓" : ""}</span>
                </button>
              ) : (
                column.label
              )}
            </span>
          ))}
        </div>
        {rows.length === 0 ? (
          <div role="row">
            <div role="gridcell">{empty}</div>
          </div>
        ) : (
          <div className={css.body} role="rowgroup" style={{ height: virtual.getTotalSize() }}>
            {items.map((item) => {
              const row = rows[item.index];
              if (row === undefined) return null;
              const key = rowKey(row);
              return (
                <div
                  key={item.key}
                  id={`${id}-${item.index}`}
                  role="row"
                  aria-rowindex={item.index + 2}
                  aria-selected={choosing ? selected.has(key) : undefined}
                  data-current={key === current || undefined}
                  data-opens={onOpen ? "" : undefined}
                  {...rowProps?.(row)}
                  className={css.row}
                  style={{ transform: `translateY(${item.start}px)` }}
                  onClick={(event) => {
                    const inside = (event.target as Element).closest("a, button, input, label, [role=menuitem]");
                    if (inside || window.getSelection()?.toString()) return;
                    setCurrent(key);
                    onOpen?.(row);
                  }}
                >
                  {choosing && (
                    <span role="gridcell" className={css.choose}>
                      <input type="checkbox" tabIndex={-1} aria-label="Select" checked={selected.has(key)} onChange={() => toggle(key)} />
                    </span>
                  )}
                  {columns.map((column) => (
                    <span key={column.id} role="gridcell" className={css.cell} data-align={column.align} data-wide={column.wide || undefined}>
                      {column.cell(row)}
                    </span>
                  ))}
                </div>
              );
            })}
          </div>
        )}
        {footer && (
          <div className={css.footer} role="row">
            <span role="gridcell">{footer}</span>
          </div>
        )}
      </div>
    </div>
  );
}
