// The field for a query: completions while typing, and what the server did not understand at its place.
import { useEffect, useId, useMemo, useRef, useState, type KeyboardEvent } from "react";
import type { Problem } from "../api/client";
import { IconButton, Icon, KeyHint, useShortcut } from "../ui";
import css from "./query-bar.module.css";
import { complete, problemRange, taken, type Known, type Suggestion } from "./query";

export interface QueryBarProps {
  value: string;
  onSubmit: (query: string) => void;
  known: Known;
  /** The refusal of the query that was submitted last. */
  problem: Problem | null;
}

export function QueryBar({ value, onSubmit, known, problem }: QueryBarProps) {
  const [text, setText] = useState(value);
  const [caret, setCaret] = useState(0);
  const [open, setOpen] = useState(false);
  const [chosen, setChosen] = useState(-1);
  const input = useRef<HTMLInputElement>(null);
  const marks = useRef<HTMLDivElement>(null);
  const id = useId();
  useEffect(() => setText(value), [value]);
  useShortcut("/", "Search runs", () => input.current?.focus(), "Runs");

  const completion = useMemo(() => complete(text, caret, known), [text, caret, known]);
  const options = open ? completion.options : [];
  const refused = text === value && problem !== null;
  const problems = refused ? (problem.problems.length ? problem.problems : [{ ...problem, message: problem.detail }]) : [];

  const submit = (query: string) => {
    setOpen(false);
    onSubmit(query.trim());
  };
  const take = (option: Suggestion) => {
    const next = taken(text, completion, option);
    setText(next.text);
    setCaret(next.caret);
    setChosen(-1);
    setOpen(!option.complete);
    requestAnimationFrame(() => input.current?.setSelectionRange(next.caret, next.caret));
    if (option.complete) onSubmit(next.text.trim());
  };
  const onKeyDown = (event: KeyboardEvent<HTMLInputElement>) => {
    if (event.nativeEvent.isComposing) return;
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (!open) setOpen(true);
      else if (options.length) {
        const step = event.key === "ArrowDown" ? 1 : -1;
        setChosen((at) => (at < 0 && step < 0 ? options.length - 1 : (at + step + options.length) % options.length));
      }
    } else if (event.key === "Enter") {
      event.preventDefault();
      const option = options[chosen];
      if (option) take(option);
      else submit(text);
    } else if (event.key === "Tab" && !event.shiftKey && open && options.length && text.slice(completion.from, completion.to)) {
      const option = options[Math.max(0, chosen)];
      if (option && option.insert !== text.slice(completion.from, completion.to)) {
        event.preventDefault();
        take(option);
      }
    } else if (event.key === "Escape") {
      event.preventDefault();
      if (open && options.length) setOpen(false);
      else input.current?.blur();
      setChosen(-1);
    }
  };
  const follow = () => {
    setCaret(input.current?.selectionStart ?? 0);
    if (marks.current && input.current) marks.current.scrollLeft = input.current.scrollLeft;
  };

  return (
    <div className={css.bar} role="search">
      <div className={css.field}>
        <Icon name="search" className={css.icon} />
        <div className={css.text}>
          <div ref={marks} className={css.marks} aria-hidden="true">
            <Marks text={text} ranges={problems.flatMap((each) => problemRange(text, each.path) ?? [])} />
          </div>
          <input
            ref={input}
            type="text"
            className={css.input}
            value={text}
            spellCheck={false}
            autoCapitalize="off"
            autoComplete="off"
            dir="auto"
            placeholder="Filter: status:failed workflow:billing started>-2h"
            aria-label="Query for runs"
            aria-invalid={refused || undefined}
            aria-describedby={refused ? `${id}-problems` : undefined}
            role="combobox"
            aria-expanded={options.length > 0}
            aria-controls={`${id}-list`}
            aria-autocomplete="list"
            aria-activedescendant={options[chosen] ? `${id}-${chosen}` : undefined}
            onChange={(event) => {
              setText(event.target.value);
              setCaret(event.target.selectionStart ?? event.target.value.length);
              setOpen(true);
              setChosen(-1);
            }}
            onSelect={follow}
            onScroll={follow}
            onFocus={() => {
              follow();
              setOpen(true);
            }}
            onBlur={() => {
              setOpen(false);
              setChosen(-1);
            }}
            onKeyDown={onKeyDown}
          />
        </div>
        {text ? (
          <IconButton
            icon="close"
            size="s"
            label="Clear the query"
            onClick={() => {
              setText("");
              submit("");
            }}
          />
        ) : (
          <KeyHint keys="/" />
        )}
      </div>
      <ul id={`${id}-list`} className={css.list} role="listbox" aria-label="Completions" hidden={options.length === 0}>
        {options.map((option, at) => (
          <li
            key={option.insert}
            id={`${id}-${at}`}
            role="option"
            aria-selected={at === chosen}
            className={css.option}
            onPointerDown={(event) => {
              event.preventDefault();
              take(option);
            }}
          >
            <code dir="auto" className="truncate">
              {option.label}
            </code>
            <span className={css.detail}>{option.detail ?? ""}</span>
            {option.count !== undefined && <span className={css.count}>{option.count.toLocaleString()}</span>}
          </li>
        ))}
      </ul>
      {problems.length > 0 && (
        <div id={`${id}-problems`} className={css.problems} role="alert">
          {problems.slice(0, 5).map((each, at) => (
            <p key={at}>
              <Icon name="warning" /> {each.message}
              {each.hint && <span className={css.hint}> — {each.hint}</span>}
            </p>
          ))}
        </div>
      )}
    </div>
  );
}

/** The text again, invisible, with a line below the places of problems. */
function Marks({ text, ranges }: { text: string; ranges: { from: number; to: number }[] }) {
  if (ranges.length === 0) return null;
  const sorted = [...ranges].sort((a, b) => a.from - b.from);
  return (
    <>
      {sorted.map((range, at) => (
        <span key={at}>
          {text.slice(sorted[at - 1]?.to ?? 0, range.from)}
          <mark>{text.slice(Math.max(range.from, sorted[at - 1]?.to ?? 0), range.to)}</mark>
        </span>
      ))}
    </>
  );
}
