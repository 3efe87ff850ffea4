// Requests to the public API, below the path under which the page is served.
import { useSyncExternalStore } from "react";

/** Where the page is served: ends with a slash. */
export const BASE = new URL(document.baseURI).pathname.replace(/[^/]*$/, "");
export const API = `${BASE}api/v1`;

export interface ProblemItem {
  code: string;
  path: string;
  message: string;
  hint: string;
}

/** A refusal of the API, or the lack of an answer (`status` 0, `code` "offline"). */
export class Problem extends Error {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly path: string;
  readonly hint: string;
  readonly problems: ProblemItem[];
  /** Seconds after which the server wants to be asked again. */
  readonly retryAfter: number | null;

  constructor(body: { status: number } & Partial<Omit<Problem, "status">>) {
    super(body.detail || `The server answered ${body.status}.`);
    this.name = "Problem";
    this.status = body.status;
    this.code = body.code ?? "";
    this.detail = body.detail || this.message;
    this.path = body.path ?? "";
    this.hint = body.hint ?? "";
    this.problems = body.problems ?? [];
    this.retryAfter = body.retryAfter ?? null;
  }

  get isOffline(): boolean {
    return this.status === 0;
  }

  get isUnauthenticated(): boolean {
    return this.status === 401;
  }

  get isForbidden(): boolean {
    return this.status === 403;
  }

  get isNotFound(): boolean {
    return this.status === 404;
  }
}

export type QueryValue = string | number | boolean | null | undefined | readonly (string | number)[];

export interface Options {
  query?: Record<string, QueryValue>;
  /** Sent as JSON, or as it is with `contentType`. */
  body?: unknown;
  contentType?: string;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Read the answer as text instead of as JSON. */
  as?: "json" | "text" | "response";
}

// Whether the server answered last.

let reached = true;
const reachListeners = new Set<() => void>();

export function setReached(next: boolean): void {
  if (next === reached) return;
  reached = next;
  for (const each of reachListeners) each();
}

/** Hear when the server is lost or reached again. */
export function onReach(listener: () => void): () => void {
  reachListeners.add(listener);
  return () => reachListeners.delete(listener);
}

/** Whether the server could be reached when it was asked last. */
export const isReached = (): boolean => reached;

export function useReached(): boolean {
  return useSyncExternalStore(onReach, isReached);
}

let csrfToken = "";

/** The token of the session, from `/me` or `/session`. It is kept in memory only. */
export function setCsrfToken(token: string): void {
  csrfToken = token;
}

/** The address of an API path, with its query. Encode parts of the path yourself: `/runs/${seg(id)}`. */
export function apiUrl(path: string, query: Record<string, QueryValue> = {}): string {
  const params = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const each of Array.isArray(value) ? value : [value]) params.append(name, String(each));
  }
  const text = params.toString();
  return `${API}${path}${text ? `?${text}` : ""}`;
}

/** One segment of a path, encoded. */
export const seg = encodeURIComponent;

/** Ask the API. Throws `Problem`. */
export async function api<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json", ...options.headers };
  let body: BodyInit | undefined;
  if (options.body !== undefined) {
    headers["Content-Type"] = options.contentType ?? "application/json";
    body = options.contentType ? (options.body as BodyInit) : JSON.stringify(options.body);
  }
  if (csrfToken && method !== "GET") headers["x-csrf-token"] = csrfToken;
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store" };
  if (body !== undefined) init.body = body;
  if (options.signal) init.signal = options.signal;
  let answer: Response;
  try {
    answer = await fetch(apiUrl(path, options.query), init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    setReached(false);
    throw offline();
  }
  setReached(true);
  if (!answer.ok) throw await problemOf(answer);
  if (options.as === "response") return answer as T;
  try {
    if (options.as === "text") return (await answer.text()) as T;
    const text = await answer.text();
    return (text ? JSON.parse(text) : undefined) as T;
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    if (error instanceof SyntaxError) {
      throw new Problem({ status: answer.status, code: "bad_answer", detail: "The server's answer is not JSON.", hint: "Is there a proxy in between?" });
    }
    throw offline();
  }
}

/** What the API has refused, from its answer. */
export async function problemOf(answer: Response): Promise<Problem> {
  const after = Number(answer.headers.get("retry-after"));
  const retryAfter = Number.isFinite(after) && after > 0 ? after : null;
  try {
    const body: unknown = await answer.json();
    if (typeof body === "object" && body !== null) return new Problem({ ...body, status: answer.status, retryAfter });
  } catch {
    // A proxy answered with a page of its own.
  }
  return new Problem({ status: answer.status, retryAfter });
}

export function offline(): Problem {
  return new Problem({ status: 0, code: "offline", detail: "The server cannot be reached.", hint: "The page tries again by itself." });
}

/** A key for `Idempotency-Key` and `command_id`: make it once per intent, and send the same one when trying again. */
export function newCommandId(): string {
  // randomUUID exists on https and localhost only.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
