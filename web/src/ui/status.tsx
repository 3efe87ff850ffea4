// How something stands: a shape, a word and a colour, never colour alone.
import type { ReactNode } from "react";
import css from "./status.module.css";

export type StatusRole = "ok" | "bad" | "busy" | "wait" | "quiet" | "undo";

interface Sign {
  word: string;
  role: StatusRole;
  shape: ReactNode;
}

const RING = <circle cx="8" cy="8" r="6" />;
const CLOCK = <><circle cx="8" cy="8" r="6" /><path d="M8 4.6V8l2.2 1.5" /></>;
const SIGNS = {
  COMPLETED: { word: "succeeded", role: "ok", shape: <>{RING}<path d="m5.2 8.3 2 2 3.7-4.3" /></> },
  FAILED: { word: "failed", role: "bad", shape: <path d="M5.5 2h5L14 5.5v5L10.5 14h-5L2 10.5v-5ZM6 6l4 4M10 6l-4 4" /> },
  RUNNING: { word: "running", role: "busy", shape: <><circle cx="8" cy="8" r="6" opacity=".3" /><path className={css.spin} d="M8 2a6 6 0 0 1 6 6" /></> },
  WAITING: { word: "waiting", role: "wait", shape: CLOCK },
  RETRYING: { word: "waiting to retry", role: "wait", shape: <path d="M12.6 5.8A5.3 5.3 0 1 0 13.3 9M13.2 2.6v3.3H9.9" /> },
  QUEUED: { word: "queued", role: "busy", shape: <><circle cx="3.2" cy="8" r="1.1" /><circle cx="8" cy="8" r="1.1" /><circle cx="12.8" cy="8" r="1.1" /></> },
  PAUSED: { word: "paused", role: "wait", shape: <>{RING}<path d="M6.4 5.6v4.8M9.6 5.6v4.8" /></> },
  CANCELLED: { word: "cancelled", role: "quiet", shape: <>{RING}<path d="m4 12 8-8" /></> },
  SKIPPED: { word: "skipped", role: "quiet", shape: <path d="M1.8 8h2.4M6 8h2.4M10 8h3.6M10.6 5l3 3-3 3" /> },
  PENDING: { word: "not reached", role: "quiet", shape: <circle cx="8" cy="8" r="5.5" strokeDasharray="2 2.3" /> },
  NEW: { word: "new", role: "quiet", shape: RING },
  ROLLED_BACK: { word: "rolled back", role: "undo", shape: <path d="M5.8 3 2.6 6.2l3.2 3.2M2.8 6.2h6.4a3.4 3.4 0 0 1 0 6.8H6.6" /> },
  ROLLING_BACK: { word: "rolling back", role: "undo", shape: <path d="M5.8 3 2.6 6.2l3.2 3.2M2.8 6.2h6.4a3.4 3.4 0 0 1 0 6.8H6.6" /> },
  HANDLED: { word: "failed and handled", role: "wait", shape: <path d="M8 2.2 14.5 13.5h-13ZM8 6.4v3.2M8 11.6h.01" /> },
  STUCK: { word: "stuck", role: "bad", shape: <path d="M8 2.2 14.5 13.5h-13ZM8 6.4v3.2M8 11.6h.01" /> },
} satisfies Record<string, Sign>;

export type StatusName = keyof typeof SIGNS;

/** The sign of a status; one that is not known is shown as it is. */
export function signOf(status: string): Sign {
  const key = status.toUpperCase().replace(/[\s-]/g, "_");
  return (SIGNS as Record<string, Sign>)[key] ?? { word: status.toLowerCase(), role: "quiet", shape: RING };
}

/** How a run stands in one status: a rollback and a wait count more than the status of the run. */
export function runStatusName(run: { status: string; rollback?: string | { status: string } | null; waiting_for?: readonly string[]; stuck?: boolean | string; idle?: boolean }): string {
  const rollback = typeof run.rollback === "string" ? run.rollback : run.rollback?.status;
  if (rollback === "done" || rollback === "partial") return "ROLLED_BACK";
  if (rollback === "running") return "ROLLING_BACK";
  if (run.stuck) return "STUCK";
  if (run.status === "RUNNING" && run.waiting_for?.length && run.idle !== false) return "WAITING";
  return run.status;
}

export function StatusIcon({ status, size = 16, label }: { status: string; size?: number; label?: boolean }) {
  const sign = signOf(status);
  return (
    <svg
      className={css.icon}
      data-role={sign.role}
      viewBox="0 0 16 16"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth={1.6}
      strokeLinecap="round"
      strokeLinejoin="round"
      {...(label ? { role: "img", "aria-label": sign.word } : { "aria-hidden": true })}
    >
      {sign.shape}
    </svg>
  );
}

/** Icon and word. `word` replaces the word; `pill` puts both on a soft ground. */
export function Status({ status, word, pill, className }: { status: string; word?: string; pill?: boolean; className?: string }) {
  const sign = signOf(status);
  return (
    <span className={`${css.status} ${pill ? css.pill : ""} ${className ?? ""}`} data-role={sign.role} data-status={status}>
      <StatusIcon status={status} />
      <span>{word ?? sign.word}</span>
    </span>
  );
}
