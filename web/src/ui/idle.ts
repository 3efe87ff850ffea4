// Work that can wait until the browser has nothing else to do. Safari has no `requestIdleCallback`.

const FALLBACK_MS = 200;

/** Do something when there is time for it, at the latest after `timeout` milliseconds. Returns how to leave it. */
export function whenIdle(run: () => void, timeout: number): () => void {
  if (typeof requestIdleCallback !== "function") {
    const timer = setTimeout(run, FALLBACK_MS);
    return () => clearTimeout(timer);
  }
  const idle = requestIdleCallback(run, { timeout });
  return () => cancelIdleCallback(idle);
}
