/** Keeps what a view has asked for up to date while events come in. */
import { useQueryClient, type QueryKey } from "@tanstack/react-query";
import { useEffect, useRef } from "react";

const REFRESH_MS = 250;

/** Ask again after `events` changed, but never for more than a fifth of the time. */
export function useRefetch(key: QueryKey, events: number, enabled: boolean): void {
  const client = useQueryClient();
  const state = useRef({ timer: undefined as ReturnType<typeof setTimeout> | undefined, took: 0, again: false, busy: false, asked: -1 });
  const name = JSON.stringify(key);
  useEffect(() => {
    const now = state.current;
    if (!enabled || now.asked === events) return;
    if (now.asked < 0) {
      now.asked = events;
      return;
    }
    now.asked = events;
    const plan = (): void => {
      now.busy = true;
      now.timer = setTimeout(async () => {
        const begun = performance.now();
        now.again = false;
        await client.invalidateQueries({ queryKey: JSON.parse(name) as QueryKey, exact: true });
        now.took = performance.now() - begun;
        now.busy = false;
        if (now.again) plan();
      }, Math.max(REFRESH_MS, now.took * 4));
    };
    if (now.busy) now.again = true;
    else plan();
  }, [client, name, events, enabled]);
  useEffect(
    () => () => {
      clearTimeout(state.current.timer);
      state.current = { timer: undefined, took: 0, again: false, busy: false, asked: -1 };
    },
    [name],
  );
}
