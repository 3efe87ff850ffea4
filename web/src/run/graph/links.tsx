// Edges: taken ones are thick, ones that were not taken are dashed with an open arrow, undecided ones are thin.
import { memo } from "react";
import type { DrawnLink, Frame } from "./drawing";
import css from "./graph.module.css";

const LABEL_LETTERS = 30;

export const fate = (taken: boolean | null): "taken" | "dead" | "open" => (taken === true ? "taken" : taken === false ? "dead" : "open");

export const Links = memo(function Links({ links, frames, chosen }: { links: readonly DrawnLink[]; frames: readonly Frame[]; chosen: ReadonlySet<string> }) {
  return (
    <svg className={css.links} aria-hidden="true">
      <defs>
        {(["taken", "dead", "open", "loop"] as const).map((kind) => (
          <marker key={kind} id={`arrow-${kind}`} viewBox="0 0 10 10" refX="9" refY="5" markerWidth={kind === "taken" ? 9 : 8} markerHeight={kind === "taken" ? 9 : 8} markerUnits="userSpaceOnUse" orient="auto">
            <path className={css.arrow} data-fate={kind} d="M1 1 9 5 1 9Z" />
          </marker>
        ))}
      </defs>
      {frames.map((frame) => (
        <rect key={frame.node} className={css.frame} x={frame.x} y={frame.y} width={frame.width} height={frame.height} rx="10" />
      ))}
      {links.map(({ id, link, path }) => {
        const kind = link.kind === "loop" ? "loop" : fate(link.taken);
        return <path key={id} className={css.link} data-fate={kind} data-chosen={chosen.has(link.from) || chosen.has(link.to) || undefined} d={path} markerEnd={`url(#arrow-${kind})`} />;
      })}
    </svg>
  );
});

/** Words on edges; they lie over the lines. */
export const Labels = memo(function Labels({ links }: { links: readonly DrawnLink[] }) {
  return (
    <>
      {links.map(({ id, link, label }) => {
        if (label === null || link.label === "") return null;
        const short = link.label.length > LABEL_LETTERS ? `${link.label.slice(0, LABEL_LETTERS - 1)}…` : link.label;
        const kind = link.kind === "loop" ? "loop" : fate(link.taken);
        return (
          <span key={id} className={css.label} data-fate={kind} title={kind === "dead" ? `${link.label} (not taken)` : link.label} style={{ transform: `translate(${label.x}px, ${label.y}px) translate(-50%, -50%)` }}>
            {link.kind === "loop" && "↺ "}
            {short}
            {kind === "dead" && " ✕"}
          </span>
        );
      })}
    </>
  );
});
