// What the matches of a query have in common: when they started, how they stand, how they failed.
import { useRef, useState, type PointerEvent } from "react";
import type { FailureGroup, RunSummary } from "../api/types";
import { absolute, Badge, Button, Empty, Facet, StatusIcon, Time, signOf } from "../ui";
import { has, toggled, valueOf, withCondition, withoutCondition, writable } from "./query";
import css from "./summary.module.css";

const ORDER = ["FAILED", "CANCELLED", "PAUSED", "RUNNING", "COMPLETED"];

/** Starts over time; drag over it to keep a part. */
export function Histogram({ summary, query, onQuery }: { summary: RunSummary; query: string; onQuery: (query: string) => void }) {
  const { buckets } = summary.histogram;
  const [brush, setBrush] = useState<{ from: number; to: number } | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const most = Math.max(1, ...buckets.map((each) => each.count));
  const first = buckets[0];
  const last = buckets.at(-1);
  if (!first || !last) return null;
  const at = (event: PointerEvent) => {
    const { left, width } = box.current!.getBoundingClientRect();
    return Math.max(0, Math.min(buckets.length - 1, Math.floor(((event.clientX - left) / width) * buckets.length)));
  };
  const keep = (from: number, to: number) => {
    const since = buckets[Math.min(from, to)];
    const until = buckets[Math.max(from, to)];
    if (!since || !until) return;
    const bare = withoutCondition(withoutCondition(query, "started>"), "started<");
    const iso = (ms: number) => new Date(ms).toISOString();
    onQuery(withCondition(withCondition(bare, "started>=", iso(since.since_ms)), "started<", iso(until.until_ms)));
  };
  const chosen = (number: number) => brush !== null && number >= Math.min(brush.from, brush.to) && number <= Math.max(brush.from, brush.to);
  const failed = summary.histogram.buckets.reduce((sum, each) => sum + (each.status.FAILED ?? 0), 0);
  return (
    <figure className={css.histogram}>
      <figcaption className="visually-hidden">
        {`Starts of ${summary.counted.toLocaleString()} runs from ${absolute(first.since_ms)} to ${absolute(last.until_ms)}, ${failed.toLocaleString()} of them failed`}
      </figcaption>
      <div
        ref={box}
        className={css.bars}
        aria-hidden="true"
        onPointerDown={(event) => {
          if (event.button !== 0) return;
          event.currentTarget.setPointerCapture(event.pointerId);
          setBrush({ from: at(event), to: at(event) });
        }}
        onPointerMove={(event) => brush && setBrush({ ...brush, to: at(event) })}
        onPointerUp={() => {
          if (brush) keep(brush.from, brush.to);
          setBrush(null);
        }}
        onPointerCancel={() => setBrush(null)}
      >
        {buckets.map((bucket, number) => (
          <div key={number} className={css.slot} data-chosen={chosen(number) || undefined} title={told(bucket)}>
            {bucket.count > 0 && (
              <div className={css.bar} style={{ height: `${Math.max(6, (bucket.count / most) * 100)}%` }}>
                {ORDER.filter((status) => bucket.status[status]).map((status) => (
                  <span key={status} data-role={signOf(status).role} style={{ flexGrow: bucket.status[status] }} />
                ))}
              </div>
            )}
          </div>
        ))}
      </div>
      <div className={css.axis}>
        <Time ms={first.since_ms} />
        <span className={css.legend} aria-hidden="true">
          {ORDER.filter((status) => buckets.some((each) => each.status[status])).map((status) => (
            <span key={status}>
              <i data-role={signOf(status).role} />
              {signOf(status).word}
            </span>
          ))}
        </span>
        {last.until_ms >= Date.now() - 5_000 ? "now" : <Time ms={last.until_ms} />}
      </div>
    </figure>
  );
}

function told(bucket: RunSummary["histogram"]["buckets"][number]): string {
  const parts = ORDER.filter((status) => bucket.status[status]).map((status) => `${bucket.status[status]} ${signOf(status).word}`);
  return `${absolute(bucket.since_ms).split(" · ")[0]}\n${bucket.count ? parts.join(", ") : "none"}`;
}

const SHOWN = 6;

interface FacetsProps {
  summary: RunSummary | undefined;
  /** Of the query without its condition on this field, so that the other values have counts, too. */
  statuses: Record<string, number> | undefined;
  workflows: Record<string, number>;
  query: string;
  onQuery: (query: string) => void;
}

const WAITS: [string, string, string][] = [
  ["live", "", "Not ended"],
  ["waiting", "approval", "Waiting for approval"],
  ["stuck", "", "Stuck"],
];
const SINCE: [string, string][] = [
  ["-1h", "Last hour"],
  ["-24h", "Last 24 hours"],
  ["-7d", "Last 7 days"],
  ["-30d", "Last 30 days"],
];

export function Facets({ summary, statuses, workflows, query, onQuery }: FacetsProps) {
  const toggle = (key: string, value: string) => onQuery(toggled(query, key, value));
  const labels = Object.entries(summary?.facets.labels ?? {}).filter(([key]) => writable(key));
  return (
    <div className={css.facets}>
      <Group title="Status">
        {[...ORDER].reverse().map((status) => (
          <Facet
            key={status}
            icon={<StatusIcon status={status} />}
            label={signOf(status).word}
            {...(statuses ? { count: statuses[status] ?? 0 } : {})}
            active={has(query, "status", status)}
            onToggle={() => toggle("status", status.toLowerCase())}
          />
        ))}
        {WAITS.map(([key, value, words]) => (
          <Facet
            key={words}
            label={words}
            active={has(query, key, value)}
            onToggle={() => onQuery(has(query, key, value) ? withoutCondition(query, key, value) : withCondition(query, key, value))}
          />
        ))}
      </Group>
      <Group title="Started">
        {SINCE.map(([ago, words]) => (
          <Facet key={ago} label={words} active={valueOf(query, "started>") === ago} onToggle={() => toggle("started>", ago)} />
        ))}
        {has(query, "started>") && !SINCE.some(([ago]) => valueOf(query, "started>") === ago) && (
          <Facet label="A chosen time" active onToggle={() => onQuery(withoutCondition(withoutCondition(query, "started>"), "started<"))} />
        )}
      </Group>
      <Values title="Workflow" name="workflow" counts={workflows} query={query} onToggle={toggle} />
      {labels.slice(0, 8).map(([key, counts]) => (
        <Values key={key} title={key} name={`label.${key}`} counts={counts} query={query} onToggle={toggle} />
      ))}
      {labels.length > 8 && <p className="soft">{`${labels.length - 8} more labels: type “label.” above`}</p>}
    </div>
  );
}

function Group({ title, children }: { title: string; children: React.ReactNode }) {
  return (
    <section className={css.group}>
      <h3 className="truncate" dir="auto" title={title}>
        {title}
      </h3>
      {children}
    </section>
  );
}

interface ValuesProps {
  title: string;
  name: string;
  counts: Record<string, number>;
  query: string;
  onToggle: (key: string, value: string) => void;
}

function Values({ title, name, counts, query, onToggle }: ValuesProps) {
  const [all, setAll] = useState(false);
  const values = Object.keys(counts).filter(writable);
  const asked = valueOf(query, name);
  if (asked !== undefined && !values.includes(asked)) values.unshift(asked);
  if (values.length === 0) return null;
  const shown = all ? values : values.filter((value, at) => at < SHOWN || value === asked);
  return (
    <Group title={title}>
      {shown.map((value) => (
        <Facet
          key={value}
          label={
            <span dir="auto" title={value}>
              {value || "(empty)"}
            </span>
          }
          {...(counts[value] === undefined ? {} : { count: counts[value] })}
          active={has(query, name, value)}
          onToggle={() => onToggle(name, value)}
        />
      ))}
      {values.length > shown.length && (
        <Button kind="quiet" size="s" onClick={() => setAll(true)}>{`${values.length - shown.length} more`}</Button>
      )}
    </Group>
  );
}

interface FailuresProps {
  summary: RunSummary;
  query: string;
  onQuery: (query: string) => void;
  mayAct: boolean;
  onRetry: (group: FailureGroup) => void;
}

/** Runs that failed in the same way, the most frequent first. */
export function Failures({ summary, query, onQuery, mayAct, onRetry }: FailuresProps) {
  const { groups, counted } = summary.failures;
  if (groups.length === 0) {
    return (
      <Empty title="Nothing has failed here" icon="check">
        {query ? "No run of this query has failed." : "No run has failed."}
      </Empty>
    );
  }
  return (
    <div className={css.failures}>
      <p className="soft">
        {`${counted.toLocaleString()} failed ${counted === 1 ? "run" : "runs"} in ${groups.length} ${groups.length === 1 ? "group" : "groups"}.`}
        {!summary.failures.complete && " Of the newest 10,000 matches."}
      </p>
      <ul>
        {groups.map((group) => (
          <li key={group.failure + group.code + group.node} className={css.failure}>
            <div className={css.failureHead}>
              <strong className="numbers">{`${group.count.toLocaleString()} ×`}</strong>
              <span dir="auto" className={css.failureNode}>
                {group.node || "the run"}
              </span>
              <span className="soft">in</span>
              <span dir="auto" className={`${css.failureNode} truncate`}>
                {group.workflow}
              </span>
              <Badge role="bad">
                <code>{group.code}</code>
              </Badge>
            </div>
            <p className={css.message} dir="auto">
              {group.message || "No message was kept."}
            </p>
            <div className={css.failureFoot}>
              <span className="soft">
                last <Time ms={group.last_ms} />
                {group.count > 1 && (
                  <>
                    , first <Time ms={group.first_ms} />
                  </>
                )}
              </span>
              <span className={css.spring} />
              {group.failure ? (
                <>
                  <Button size="s" onClick={() => onQuery(withCondition(query, "failure", group.failure))}>
                    {group.count === 1 ? "Show the run" : `Show the ${group.count.toLocaleString()} runs`}
                  </Button>
                  {mayAct && (
                    <Button size="s" icon="retry" onClick={() => onRetry(group)}>
                      Retry all like this
                    </Button>
                  )}
                </>
              ) : (
                <span className="soft">Ended by an earlier version: reindex to group them.</span>
              )}
            </div>
          </li>
        ))}
      </ul>
    </div>
  );
}
