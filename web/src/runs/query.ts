/**
 * The query language of runs, as far as a page needs it: where conditions begin and end, what may follow at the caret,
 * and how one condition is added, replaced or removed. The server alone decides what a query means.
 */

export interface Condition {
  /** As written, with quotes. */
  text: string;
  from: number;
  to: number;
  /** `status`, `label.customer`, `started>`; a flag is its own key. */
  key: string;
  /** Without quotes; empty for a flag. */
  value: string;
}

export interface Suggestion {
  /** What the condition becomes. */
  insert: string;
  label: string;
  detail?: string;
  count?: number;
  /** The condition is whole: a space follows, and the next one may begin. */
  complete: boolean;
}

export interface Completion {
  from: number;
  to: number;
  options: Suggestion[];
}

/** What completions offer as values; counts are of the runs that the query finds now. */
export interface Known {
  statuses: Record<string, number>;
  workflows: Record<string, number>;
  versions: Record<string, number>;
  labels: Record<string, Record<string, number>>;
  failures: { failure: string; code: string; node: string; count: number }[];
  people: string[];
}

export const NOTHING_KNOWN: Known = {
  statuses: {},
  workflows: {},
  versions: {},
  labels: {},
  failures: [],
  people: [],
};

export const STATUSES = ["running", "paused", "completed", "failed", "cancelled"] as const;
const WAITS = ["approval", "timer", "signal", "child", "retry", "limit"] as const;
const ROLLBACKS = ["running", "done", "partial"] as const;

const FIELDS: { insert: string; detail: string }[] = [
  { insert: "status:", detail: "running, paused, completed, failed, cancelled" },
  { insert: "workflow:", detail: "of a workflow, or of one version: billing@3" },
  { insert: "started>", detail: "since a time: -2h, 2026-03-01" },
  { insert: "started<", detail: "before a time" },
  { insert: "waiting:", detail: "for an approval, a timer, a signal, …" },
  { insert: "label.", detail: "with a label: label.customer=acme" },
  { insert: "by:", detail: "started by a person or key" },
  { insert: "failure:", detail: "that failed in the same way" },
  { insert: "rollback:", detail: "running, done, partial" },
  { insert: "parent:", detail: "children of a run" },
  { insert: "root:", detail: "all runs below a run" },
  { insert: "forked_from:", detail: "forks of a run" },
];

const FLAGS: { insert: string; detail: string }[] = [
  { insert: "live", detail: "not ended" },
  { insert: "active", detail: "with a step queued or running" },
  { insert: "waiting", detail: "only waiting" },
  { insert: "stuck", detail: "without progress or reason" },
  { insert: "idle", detail: "quiet for five minutes" },
  { insert: "suspect", detail: "with findings of the audit" },
  { insert: "kept", detail: "kept for ever" },
];

const AGO: [string, string][] = [
  ["-15m", "the last 15 minutes"],
  ["-1h", "the last hour"],
  ["-24h", "the last 24 hours"],
  ["-7d", "the last 7 days"],
  ["-30d", "the last 30 days"],
];

const OFFERED_MAX = 12;
const CONDITION = /(?:[^\s"]|"[^"]*"?)+/g;
const COMPARISON = /^(\w+)(>=|<=|>|<)([^]*)$/;
const ASSIGNMENT = /^(\w+)[:=]([^]*)$/;
const LABEL = /^label[.:]([^=:]*)(?:[=:]([^]*))?$/;

export function conditions(text: string): Condition[] {
  return [...text.matchAll(CONDITION)].map((match) => {
    const from = match.index;
    return { text: match[0], from, to: from + match[0].length, ...parts(match[0]) };
  });
}

function parts(written: string): { key: string; value: string } {
  const bare = written.replaceAll('"', "");
  const label = LABEL.exec(bare);
  if (label) return { key: `label.${label[1]}`, value: label[2] ?? "" };
  const compared = COMPARISON.exec(bare);
  if (compared) return { key: `${compared[1]}${compared[2]![0]}`, value: compared[3]! };
  const assigned = ASSIGNMENT.exec(bare);
  if (assigned) {
    const key = assigned[1] === "version" ? "workflow" : assigned[1]!;
    return { key, value: assigned[2]! };
  }
  return { key: bare, value: "" };
}

/** Whether a value can be written in a query at all: the language has no escape for a quote. */
export function writable(value: string): boolean {
  return !value.includes('"');
}

/** A condition as it is written; quoted where a space would end it. */
export function written(key: string, value: string): string {
  const name = key.startsWith("label.") ? `${key}=` : /[<>]=?$/.test(key) ? key : `${key}:`;
  const whole = name + value;
  if (!/\s/.test(whole)) return whole;
  return /\s/.test(name) ? `"${whole}"` : `${name}"${value}"`;
}

function same(condition: Condition, key: string, value: string | null): boolean {
  if (condition.key !== key) return false;
  if (value === null) return true;
  return key === "status" || key === "waiting" ? condition.value.toLowerCase() === value.toLowerCase() : condition.value === value;
}

export function has(text: string, key: string, value: string | null = null): boolean {
  return conditions(text).some((each) => same(each, key, value));
}

export function valueOf(text: string, key: string): string | undefined {
  return conditions(text).find((each) => each.key === key)?.value;
}

/** The query with this condition; another one with the same key is replaced, because a run has one value of it. */
export function withCondition(text: string, key: string, value = ""): string {
  const added = value === "" && !key.startsWith("label.") ? key : written(key, value);
  const found = conditions(text);
  const at = found.findIndex((each) => each.key === key);
  if (at < 0) return [...found.map((each) => each.text), added].join(" ");
  return found
    .filter((each, number) => number === at || each.key !== key)
    .map((each) => (each === found[at] ? added : each.text))
    .join(" ");
}

export function withoutCondition(text: string, key: string, value: string | null = null): string {
  return conditions(text)
    .filter((each) => !same(each, key, value))
    .map((each) => each.text)
    .join(" ");
}

export function toggled(text: string, key: string, value: string): string {
  return has(text, key, value) ? withoutCondition(text, key, value) : withCondition(text, key, value);
}

/** What may stand at the caret. */
export function complete(text: string, caret: number, known: Known): Completion {
  const current = conditions(text).find((each) => each.from < caret && caret <= each.to);
  const from = current?.from ?? caret;
  const to = current?.to ?? caret;
  const typed = text.slice(from, caret).replaceAll('"', "");
  const others = text.slice(0, from) + text.slice(to);
  const options = suggestions(typed, others, known).slice(0, OFFERED_MAX);
  return { from, to, options };
}

function suggestions(typed: string, others: string, known: Known): Suggestion[] {
  const label = LABEL.exec(typed);
  if (label) {
    return label[2] === undefined ? labelKeys(label[1]!, others, known) : labelValues(label[1]!, label[2], known);
  }
  const compared = COMPARISON.exec(typed);
  if (compared) {
    const operator = `${compared[1]}${compared[2]}`;
    return compared[1] === "started"
      ? AGO.filter(([ago]) => ago.startsWith(compared[3]!)).map(([ago, detail]) => ({
          insert: operator + ago,
          label: operator + ago,
          detail: operator.includes("<") ? detail.replace("the last", "before the last") : detail,
          complete: true,
        }))
      : [];
  }
  const assigned = ASSIGNMENT.exec(typed);
  if (assigned) return values(assigned[1]!, assigned[2]!, known);
  return words(typed, others, known);
}

/** Fields and flags that begin as typed; then values of which only the beginning may be typed. */
function words(typed: string, others: string, known: Known): Suggestion[] {
  const wanted = typed.toLowerCase();
  const asked = new Set(conditions(others).map((each) => each.key));
  const begins = (each: { insert: string }) => each.insert.startsWith(wanted);
  const fresh = (each: { insert: string }) => !asked.has(each.insert.replace(/[:=.]$/, ""));
  const fields = FIELDS.filter((each) => begins(each) && fresh(each)).map((each) => ({
    ...each,
    label: each.insert,
    complete: false,
  }));
  const flags = FLAGS.filter((each) => begins(each) && fresh(each)).map((each) => ({
    ...each,
    label: each.insert,
    complete: true,
  }));
  const labels = Object.keys(known.labels)
    .filter((key) => writable(key) && !asked.has(`label.${key}`) && key.toLowerCase().startsWith(wanted))
    .map((key) => ({ insert: labelStart(key), label: `label.${key}=`, detail: "a label", complete: false }));
  if (!wanted) return [...fields, ...flags, ...labels];
  const found = [
    ...(asked.has("status") ? [] : values("status", wanted, known)),
    ...(asked.has("workflow") ? [] : values("workflow", typed, known)),
    ...Object.keys(known.labels)
      .filter((key) => !asked.has(`label.${key}`))
      .flatMap((key) => labelValues(key, typed, known).slice(0, 3)),
  ];
  return [...fields, ...flags, ...labels, ...found];
}

function values(field: string, typed: string, known: Known): Suggestion[] {
  switch (field) {
    case "status":
      return matching(STATUSES, typed.toLowerCase()).map((value) => option("status", value, known.statuses[value.toUpperCase()]));
    case "waiting":
      return matching(WAITS, typed.toLowerCase()).map((value) => option("waiting", value));
    case "rollback":
      return matching(ROLLBACKS, typed.toLowerCase()).map((value) => option("rollback", value));
    case "workflow":
      if (typed.includes("@")) return ranked(known.versions, typed).map(([value, n]) => option("workflow", value, n));
      return ranked(known.workflows, typed).map(([value, n]) => option("workflow", value, n));
    case "version":
      return ranked(known.versions, typed).map(([value, n]) => option("version", value, n));
    case "by":
      return matching(known.people, typed).map((value) => option("by", value));
    case "failure":
      return known.failures
        .filter((each) => each.failure.startsWith(typed))
        .map((each) => ({
          ...option("failure", each.failure, each.count),
          detail: each.node ? `${each.code} in ${each.node}` : each.code,
        }));
    default:
      return [];
  }
}

function labelKeys(typed: string, others: string, known: Known): Suggestion[] {
  return matching(Object.keys(known.labels), typed)
    .filter((key) => writable(key) && !has(others, `label.${key}`))
    .map((key) => ({ insert: labelStart(key), label: `label.${key}=`, complete: false }));
}

/** A label up to its value; a key with a space opens a quote, which the value"s completion closes. */
function labelStart(key: string): string {
  return /\s/.test(key) ? `"label.${key}=` : `label.${key}=`;
}

function labelValues(key: string, typed: string, known: Known): Suggestion[] {
  return ranked(known.labels[key] ?? {}, typed).map(([value, n]) => option(`label.${key}`, value, n));
}

function option(key: string, value: string, count?: number): Suggestion {
  const insert = written(key, value);
  return { insert, label: insert, complete: true, ...(count === undefined ? {} : { count }) };
}

/** The values that begin as typed, then those that have it inside. */
function matching(offered: readonly string[], typed: string): string[] {
  const wanted = typed.toLowerCase();
  const begins = offered.filter((each) => each.toLowerCase().startsWith(wanted));
  const inside = offered.filter((each) => !begins.includes(each) && each.toLowerCase().includes(wanted));
  return [...begins, ...inside].filter(writable);
}

function ranked(counts: Record<string, number>, typed: string): [string, number][] {
  const byCount = Object.keys(counts).sort((a, b) => counts[b]! - counts[a]! || (a < b ? -1 : 1));
  return matching(byCount, typed).map((value) => [value, counts[value]!]);
}

/** The text with a suggestion taken, and where the caret goes. */
export function taken(text: string, completion: Completion, chosen: Suggestion): { text: string; caret: number } {
  const space = chosen.complete && !/^\s/.test(text.slice(completion.to)) ? " " : "";
  const before = text.slice(0, completion.from) + chosen.insert + space;
  const caret = before.length + (chosen.complete && !space ? 1 : 0);
  return { text: before + text.slice(completion.to), caret };
}

/** The place of a problem in the text: its column counts characters, not UTF-16 units. */
export function problemRange(text: string, path: string | undefined): { from: number; to: number } | null {
  const column = /^\/query:([0-9]+)$/.exec(path ?? "")?.[1];
  if (column === undefined) return null;
  const from = [...text].slice(0, Number(column) - 1).join("").length;
  const condition = conditions(text).find((each) => each.from <= from && from < each.to);
  return { from, to: condition?.to ?? Math.min(text.length, from + 1) };
}
