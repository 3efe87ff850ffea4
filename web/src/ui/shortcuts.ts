// Keyboard shortcuts. Each is announced with its description, so that `?` lists what works here.
import { useEffect, useRef, useSyncExternalStore } from "react";

interface Shortcut {
  keys: string;
  description: string;
  group: string;
  run: { current: (event: KeyboardEvent) => void };
}

const EVERYWHERE = "Everywhere";

let registered: readonly Shortcut[] = [];
const listeners = new Set<() => void>();
let prefix = "";
let prefixTimer: ReturnType<typeof setTimeout> | undefined;

function set(next: readonly Shortcut[]): void {
  registered = next;
  for (const each of listeners) each();
}

function chordOf(event: KeyboardEvent): string {
  const mod = event.ctrlKey || event.metaKey ? "mod+" : "";
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  const shift = event.shiftKey && event.key.length > 1 ? "shift+" : "";
  return `${mod}${event.altKey ? "alt+" : ""}${shift}${key}`;
}

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) && !(target instanceof HTMLInputElement && /^(checkbox|radio|button)$/.test(target.type));
}

function onKeyDown(event: KeyboardEvent): void {
  if (event.defaultPrevented || event.isComposing) return;
  const chord = chordOf(event);
  const withMod = chord.startsWith("mod+");
  if (!withMod && (isTyping(event.target) || document.querySelector("[role=dialog], [role=menu]"))) return;
  const wanted = prefix ? `${prefix} ${chord}` : chord;
  clearTimeout(prefixTimer);
  prefix = "";
  // A page's own goes before that of every page; of two, the one that was announced last belongs to what is on top.
  const meant = registered.filter((each) => each.keys === wanted);
  const found = meant.findLast((each) => each.group !== EVERYWHERE) ?? meant.at(-1);
  if (found) {
    event.preventDefault();
    found.run.current(event);
  } else if (registered.some((each) => each.keys.startsWith(`${chord} `))) {
    prefix = chord;
    prefixTimer = setTimeout(() => (prefix = ""), 1_200);
  }
}

/** `keys`: "j", "mod+k", "g r" (one after the other), "?"; empty: none. It works outside of fields and dialogs only. */
export function useShortcut(keys: string, description: string, run: (event: KeyboardEvent) => void, group = EVERYWHERE): void {
  const latest = useRef(run);
  useEffect(() => {
    latest.current = run;
  });
  useEffect(() => {
    if (!keys) return;
    const entry: Shortcut = { keys, description, group, run: latest };
    if (registered.length === 0) window.addEventListener("keydown", onKeyDown);
    set([...registered, entry]);
    return () => {
      set(registered.filter((each) => each !== entry));
      if (registered.length === 0) window.removeEventListener("keydown", onKeyDown);
    };
  }, [keys, description, group]);
}

/** All shortcuts that work now, for the help. */
export function useShortcuts(): readonly Pick<Shortcut, "keys" | "description" | "group">[] {
  return useSyncExternalStore(
    (listener) => {
      listeners.add(listener);
      return () => listeners.delete(listener);
    },
    () => registered,
  );
}
