// Exchanges an API key for a session: a cookie that scripts cannot read. The key itself is not kept.
import { useQueryClient } from "@tanstack/react-query";
import { useRouter, useSearch } from "@tanstack/react-router";
import { useState, type FormEvent } from "react";
import { api, BASE, Problem, setCsrfToken } from "../api/client";
import { keys, useMe } from "../api/queries";
import type { Me } from "../api/types";
import { Button, Icon, sentence, useTitle } from "../ui";
import css from "./sign-in.module.css";

/** Where to go afterwards: a path of this page, never another site. */
export function safeNext(next: unknown, base = BASE): string {
  if (typeof next !== "string") return base;
  try {
    const url = new URL(next, location.origin);
    const own = url.origin === location.origin && url.pathname.startsWith(base) && !url.pathname.startsWith(`${base}sign-in`);
    return own && !/^[\\/]{2}/.test(next) ? url.pathname + url.search + url.hash : base;
  } catch {
    return base;
  }
}

export default function SignIn() {
  const client = useQueryClient();
  const router = useRouter();
  const search = useSearch({ from: "/sign-in" });
  const me = useMe();
  const [key, setKey] = useState("");
  const [shown, setShown] = useState(false);
  const [busy, setBusy] = useState(false);
  const [problem, setProblem] = useState<Problem | null>(null);
  const next = safeNext(search.next);
  // Why the session of before does not count any more.
  const before = me.error instanceof Problem && me.error.code !== "unauthenticated" ? me.error : null;
  useTitle("Sign in");

  const enter = () => router.history.push(next);
  const submit = async (event: FormEvent) => {
    event.preventDefault();
    const given = key.trim();
    if (!given) return setProblem(new Problem({ status: 422, detail: "Enter a key." }));
    setBusy(true);
    setProblem(null);
    try {
      const found = await api<Me>("POST", "/session", { headers: { Authorization: `Bearer ${given.replace(/[^\x21-\x7e]/g, "")}` } });
      setCsrfToken(found.csrf_token);
      setKey("");
      client.clear();
      client.setQueryData(keys.me, found);
      enter();
    } catch (error) {
      setProblem(error instanceof Problem ? error : new Problem({ status: -1, detail: String(error) }));
    }
    setBusy(false);
  };

  return (
    <div className={css.page}>
      <form className={css.card} onSubmit={(event) => void submit(event)} noValidate>
        <h1>Sign in to Tidemill</h1>
        {me.data && !me.error ? (
          <>
            <p className="soft">
              You are signed in as <strong>{me.data.name}</strong> ({me.data.tenant}).
            </p>
            <Button kind="primary" onClick={enter}>
              Continue
            </Button>
          </>
        ) : (
          <>
            {before && !problem && (
              <p role="status" className={css.notice}>
                <Icon name="info" />
                <span>{sentence(before.detail)}</span>
              </p>
            )}
            <label htmlFor="key">API key</label>
            <div className={css.field}>
              <input
                id="key"
                type={shown ? "text" : "password"}
                className="mono"
                autoComplete="current-password"
                autoFocus
                spellCheck={false}
                placeholder="tm_…"
                value={key}
                aria-invalid={problem !== null}
                aria-describedby={problem ? "key-problem" : "key-help"}
                onChange={(event) => setKey(event.target.value)}
              />
              <Button kind="quiet" icon="eye" aria-pressed={shown} onClick={() => setShown(!shown)}>
                {shown ? "Hide" : "Show"}
              </Button>
            </div>
            {problem && (
              <p id="key-problem" role="alert" className={css.problem}>
                <Icon name="warning" />
                <span>
                  {sentence(problem.detail)} {problem.hint && sentence(problem.hint)}
                </span>
              </p>
            )}
            <Button kind="primary" type="submit" busy={busy}>
              Sign in
            </Button>
            <p id="key-help" className={css.help}>
              <code>tidemill keys create NAME --role operator</code> makes a key. The browser keeps a session of at most 12 hours, not the key.
            </p>
          </>
        )}
      </form>
    </div>
  );
}
