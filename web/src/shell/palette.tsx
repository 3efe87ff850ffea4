// Ctrl-K: go to a page, a run or a workflow, or do something.
import * as RadixDialog from "@radix-ui/react-dialog";
import { useQuery } from "@tanstack/react-query";
import { useNavigate } from "@tanstack/react-router";
import { useEffect, useId, useRef, useState, type KeyboardEvent, type ReactNode } from "react";
import { api, seg } from "../api/client";
import { useMay, useWorkflows } from "../api/queries";
import type { Page, RunRow } from "../api/types";
import { Icon, runStatusName, StatusIcon, Time, type IconName } from "../ui";
import css from "./palette.module.css";
import { ALL_PLACES } from "./places";
import { setTheme } from "./theme";

interface Entry {
  id: string;
  group: string;
  label: string;
  hint?: ReactNode;
  icon: ReactNode;
  run: () => void;
}

const icon = (name: IconName) => <Icon name={name} />;
const SHOWN_MAX = 8;

export function Palette({ onClose, onHelp }: { onClose: () => void; onHelp: () => void }) {
  const [text, setText] = useState("");
  const [chosen, setChosen] = useState(0);
  const list = useRef<HTMLDivElement>(null);
  const id = useId();
  const entries = useEntries(text.trim(), onHelp);
  const at = Math.min(chosen, entries.length - 1);
  useEffect(() => setChosen(0), [text]);
  useEffect(() => {
    list.current?.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
  }, [at, entries]);
  const choose = (entry: Entry | undefined) => {
    if (!entry) return;
    onClose();
    entry.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" || (event.ctrlKey && event.key === "n") ? 1 : event.key === "ArrowUp" || (event.ctrlKey && event.key === "p") ? -1 : 0;
    if (step) setChosen((at + step + entries.length) % Math.max(1, entries.length));
    else if (event.key === "Enter") choose(entries[at]);
    else return;
    event.preventDefault();
  };
  return (
    <RadixDialog.Root open onOpenChange={(open) => !open && onClose()}>
      <RadixDialog.Portal>
        <RadixDialog.Overlay className={css.overlay} />
        <RadixDialog.Content className={css.palette} aria-describedby={undefined}>
          <RadixDialog.Title className="visually-hidden">Find or do</RadixDialog.Title>
          <div className={css.field}>
            <Icon name="search" />
            <input
              type="text"
              role="combobox"
              aria-expanded="true"
              aria-controls={`${id}-list`}
              aria-activedescendant={entries.length ? `${id}-${at}` : undefined}
              aria-label="Find or do"
              placeholder="A page, a run's id, a workflow, something to do …"
              spellCheck={false}
              autoComplete="off"
              value={text}
              onChange={(event) => setText(event.target.value)}
              onKeyDown={onKeyDown}
            />
          </div>
          <div ref={list} id={`${id}-list`} role="listbox" aria-label="Found" className={css.list}>
            {entries.map((entry, index) => (
              <div key={entry.id}>
                {entries[index - 1]?.group !== entry.group && (
                  <div className={css.group} role="presentation">
                    {entry.group}
                  </div>
                )}
                <div
                  id={`${id}-${index}`}
                  role="option"
                  aria-selected={index === at}
                  className={css.entry}
                  onPointerMove={() => setChosen(index)}
                  onClick={() => choose(entry)}
                >
                  {entry.icon}
                  <span className="truncate">{entry.label}</span>
                  {entry.hint && <span className={css.hint}>{entry.hint}</span>}
                </div>
              </div>
            ))}
            {entries.length === 0 && <p className={css.none}>Nothing has this name. A run is found by its id, or by a query on the page of runs.</p>}
          </div>
        </RadixDialog.Content>
      </RadixDialog.Portal>
    </RadixDialog.Root>
  );
}

function useEntries(text: string, onHelp: () => void): Entry[] {
  const navigate = useNavigate();
  const mayStart = useMay("runs:start");
  const workflows = useWorkflows();
  const runs = useQuery<Page<RunRow>>({
    queryKey: ["palette", "runs"],
    queryFn: ({ signal }) => api<Page<RunRow>>("GET", "/runs", { query: { limit: 50 }, signal }),
    retry: false,
  });
  const found = useQuery<{ run_id: string }>({
    queryKey: ["palette", "resolve", text],
    queryFn: ({ signal }) => api<{ run_id: string }>("GET", `/runs/resolve/${seg(text)}`, { signal }),
    enabled: /^(?=.*\d)[\w@.:-]{4,200}$/.test(text),
    retry: false,
  });
  const meets = (...words: string[]) => text.toLowerCase().split(/\s+/).every((part) => words.some((word) => word.toLowerCase().includes(part)));
  const openRun = (runId: string) => void navigate({ to: "/runs/$runId", params: { runId } });

  const entries: Entry[] = [];
  const known = new Set<string>();
  for (const run of runs.data?.items ?? []) {
    if (known.size >= (text ? SHOWN_MAX : 4) || !meets(run.run_id, run.workflow, run.status, ...Object.values(run.labels))) continue;
    known.add(run.run_id);
    entries.push({ id: `run-${run.run_id}`, group: "Runs", label: `${run.workflow} · ${run.run_id}`, hint: <Time ms={run.created_ms} />, icon: <StatusIcon status={runStatusName(run)} label />, run: () => openRun(run.run_id) });
  }
  const resolved = found.data?.run_id;
  if (resolved && !known.has(resolved)) entries.unshift({ id: "resolved", group: "Runs", label: `Run ${resolved}`, icon: icon("runs"), run: () => openRun(resolved) });
  const pages: Entry[] = ALL_PLACES.filter((place) => meets(place.label, "go to")).map((place) => ({ id: place.to, group: "Pages", label: place.label, icon: icon(place.icon), run: () => void navigate({ to: place.to }) }));
  const named = (workflows.data?.items ?? []).filter((each) => meets(each.name, "workflow", "start")).slice(0, text ? SHOWN_MAX : 4);
  const flows: Entry[] = named.flatMap((each) => {
    const open: Entry = { id: `wf-${each.name}`, group: "Workflows", label: each.name, icon: icon("workflows"), run: () => void navigate({ to: "/workflows/$name", params: { name: each.name } }) };
    const start: Entry = { id: `start-${each.name}`, group: "Workflows", label: `Start ${each.name}`, icon: icon("play"), run: () => void navigate({ to: "/start/$workflow", params: { workflow: each.name } }) };
    return mayStart && text ? [open, start] : [open];
  });
  const acts: Entry[] = [
    { id: "failed", group: "Do", label: "Show failed runs", icon: icon("filter"), run: () => void navigate({ to: "/runs", search: { q: "status:failed" } }) },
    { id: "light", group: "Do", label: "Light theme", icon: icon("sun"), run: () => setTheme("light") },
    { id: "dark", group: "Do", label: "Dark theme", icon: icon("moon"), run: () => setTheme("dark") },
    { id: "system", group: "Do", label: "Theme like the system", icon: icon("screen"), run: () => setTheme("system") },
    { id: "help", group: "Do", label: "Show the shortcuts", icon: icon("keyboard"), run: onHelp },
  ].filter((each) => meets(each.label));
  return text ? [...entries, ...flows, ...pages, ...acts] : [...pages, ...entries, ...flows, ...acts];
}
