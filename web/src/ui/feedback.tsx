// The states of a view that is not there: empty, loading, refused, out of reach.
import { useQueryClient } from "@tanstack/react-query";
import { Link } from "@tanstack/react-router";
import type { ReactNode } from "react";
import { Problem } from "../api/client";
import { Button } from "./controls";
import css from "./feedback.module.css";
import { Icon, type IconName } from "./icons";

export function Empty({ title, children, action, icon }: { title: ReactNode; children?: ReactNode; action?: ReactNode; icon?: IconName }) {
  return (
    <div className={css.state}>
      {icon && <Icon name={icon} size={24} className={css.stateIcon} />}
      <h2>{title}</h2>
      {children && <div className={css.stateText}>{children}</div>}
      {action && <div className={css.actions}>{action}</div>}
    </div>
  );
}

/** Grey bars in the place of what comes. */
export function Loading({ rows = 6, label = "Loading" }: { rows?: number; label?: string }) {
  return (
    <div className={css.loading} role="status" aria-busy="true">
      <span className="visually-hidden">{label}</span>
      {Array.from({ length: rows }, (_, index) => (
        <span key={index} className={css.bar} style={{ width: `${[92, 78, 85, 64, 88, 71][index % 6]}%` }} />
      ))}
    </div>
  );
}

/** With a capital at its beginning and a full stop at its end. */
export const sentence = (text: string): string => (text ? `${text[0]?.toUpperCase()}${text.slice(1)}${/[.!?…]$/.test(text) ? "" : "."}` : "");

interface Said {
  icon: IconName;
  title: string;
  next: string;
}

function said(problem: Problem, what: string): Said {
  if (problem.isOffline) return { icon: "warning", title: "The server cannot be reached", next: "Is it running? The page asks again by itself." };
  if (problem.code === "site_not_allowed") return { icon: "warning", title: "This address is not allowed", next: problem.hint };
  if (problem.isUnauthenticated) return { icon: "user", title: "Please sign in", next: problem.hint };
  if (problem.isForbidden) return { icon: "eye", title: `You may not see ${what}`, next: problem.hint || "An administrator can give your key a role that may." };
  if (problem.isNotFound) return { icon: "search", title: `${what[0]?.toUpperCase() ?? ""}${what.slice(1)} does not exist`, next: "It may have been deleted meanwhile, or belong to another tenant." };
  if (problem.status === 410) return { icon: "clock", title: "Too late", next: problem.hint };
  if (problem.status === 429) return { icon: "clock", title: "The server is busy", next: problem.hint || "Wait a moment, then try again." };
  if (problem.status >= 500) return { icon: "warning", title: "The server has a problem", next: problem.hint || "Its log tells more." };
  return { icon: "warning", title: `${what[0]?.toUpperCase() ?? ""}${what.slice(1)} cannot be shown`, next: problem.hint };
}

/** What went wrong, and the next step. `what` names the thing: "this run". */
export function ErrorState({ error, what = "this page", onRetry, action }: { error: unknown; what?: string; onRetry?: () => void; action?: ReactNode }) {
  const client = useQueryClient();
  const problem = error instanceof Problem ? error : new Problem({ status: -1, detail: error instanceof Error ? error.message : String(error) });
  const { icon, title, next } = said(problem, what);
  const retry = onRetry ?? (() => void client.invalidateQueries());
  const again = problem.isOffline || problem.status === 429 || problem.status >= 500 || problem.status === -1;
  return (
    <div className={css.state} role="alert">
      <Icon name={icon} size={24} className={css.stateIcon} />
      <h2>{title}</h2>
      <div className={css.stateText}>
        {problem.detail.replace(/\.$/, "") !== title && <p>{sentence(problem.detail)}</p>}
        {next && next !== problem.detail && <p className="soft">{sentence(next)}</p>}
        {problem.problems.length > 1 && (
          <ul className={css.problems}>
            {problem.problems.slice(0, 20).map((each, index) => (
              <li key={index}>
                {each.path && <code>{each.path}</code>} {each.message}
              </li>
            ))}
          </ul>
        )}
        {problem.code && problem.status > 0 && (
          <p className={css.code}>
            {problem.status} · <code>{problem.code}</code>
          </p>
        )}
      </div>
      <div className={css.actions}>
        {action}
        {(again || onRetry) && (
          <Button icon="retry" onClick={retry}>
            Try again
          </Button>
        )}
        {problem.isUnauthenticated && (
          <Link to="/sign-in" search={{ next: location.pathname + location.search }} className={css.linkButton}>
            Sign in
          </Link>
        )}
        {problem.isNotFound && (
          <Link to="/runs" className={css.linkButton}>
            All runs
          </Link>
        )}
      </div>
    </div>
  );
}
