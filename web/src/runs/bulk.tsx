// One act on many runs: first what would happen, then the reason, then how it went.
import { useMutation, useQuery } from "@tanstack/react-query";
import { useId, useState } from "react";
import { api, type Problem } from "../api/client";
import type { BulkAnswer } from "../api/types";
import { Button, Dialog, ErrorState, Loading, toast, type IconName } from "../ui";
import css from "./bulk.module.css";

export type BulkAction = BulkAnswer["action"];

interface Act {
  word: string;
  icon: IconName;
  done: string;
  consequence: string;
  danger?: boolean;
}

export const ACTS: Record<BulkAction, Act> = {
  retry: {
    word: "Retry",
    icon: "retry",
    done: "continue",
    consequence: "Each run continues where it stopped. What completed stays and is not done again.",
  },
  pause: { word: "Pause", icon: "pause", done: "are paused", consequence: "Nothing more begins in them. Steps that run now may finish." },
  resume: { word: "Resume", icon: "play", done: "continue", consequence: "Paused runs continue." },
  cancel: {
    word: "Cancel",
    icon: "stop",
    done: "are cancelled",
    consequence: "The runs end. What they did is undone only where their workflow says so.",
    danger: true,
  },
  rollback: {
    word: "Roll back",
    icon: "undo",
    done: "are being rolled back",
    consequence: "What the runs did is undone, backwards, by the compensations of their steps.",
    danger: true,
  },
};

export interface BulkTarget {
  action: BulkAction;
  /** Which runs: by a query, or by their ids. */
  query?: string;
  runIds?: string[];
  /** What they have in common, in words. */
  about?: string;
}

const runs = (count: number) => `${count.toLocaleString()} ${count === 1 ? "run" : "runs"}`;

export function BulkDialog({ target, onClose, onDone }: { target: BulkTarget; onClose: () => void; onDone: () => void }) {
  const [reason, setReason] = useState("");
  const id = useId();
  const act = ACTS[target.action];
  const asked = target.runIds ? { run_ids: target.runIds } : { query: target.query ?? "" };
  const dry = useQuery<BulkAnswer, Problem>({
    queryKey: ["bulk", target],
    queryFn: ({ signal }) => api("POST", "/runs/bulk", { body: { action: target.action, dry_run: true, ...asked }, signal }),
    gcTime: 0,
    staleTime: Infinity,
    refetchOnWindowFocus: false,
  });
  const able = dry.data?.runs.filter((run) => run.result !== "refused").map((run) => run.run_id) ?? [];
  // Exactly the runs that were counted: others may meet the query since.
  const doing = useMutation<BulkAnswer, Problem>({
    mutationFn: () => api("POST", "/runs/bulk", { body: { action: target.action, run_ids: able, reason } }),
    onSuccess: (answer) => {
      onDone();
      if (answer.refused === 0) {
        toast(`${runs(answer.done)} ${act.done}`);
        onClose();
      }
    },
  });
  const outcome = doing.data;
  return (
    <Dialog
      open
      onOpenChange={(open) => !open && onClose()}
      title={
        outcome
          ? `${act.word}: ${runs(outcome.done)} of ${outcome.count.toLocaleString()}`
          : `${act.word} ${!dry.data ? "runs" : able.length ? runs(able.length) : "no run"}`
      }
      description={outcome ? undefined : act.consequence}
      footer={
        outcome ? (
          <Button kind="primary" onClick={onClose}>
            Close
          </Button>
        ) : (
          <>
            <Button onClick={onClose}>Back</Button>
            <Button
              kind={act.danger ? "danger" : "primary"}
              icon={act.icon}
              busy={doing.isPending}
              disabled={able.length === 0}
              onClick={() => doing.mutate()}
            >
              {able.length ? `${act.word} ${runs(able.length)}` : act.word}
            </Button>
          </>
        )
      }
    >
      {target.about && (
        <p className={css.about} dir="auto">
          {target.about}
        </p>
      )}
      {dry.isPending && <Loading rows={2} label="Counting runs" />}
      {dry.error && <ErrorState error={dry.error} what="the count" onRetry={() => void dry.refetch()} />}
      {dry.data && !outcome && (
        <div role="status">
          {dry.data.count === 0 ? <p>No run meets this any more.</p> : <Refusals answer={dry.data} future />}
          {dry.data.more && (
            <p className={css.more}>{`These are the newest ${dry.data.count.toLocaleString()}; more match. Do it again for the rest.`}</p>
          )}
        </div>
      )}
      {dry.data && able.length > 0 && !outcome && (
        <div className={css.reason}>
          <label htmlFor={id}>Reason</label>
          <textarea
            id={id}
            rows={2}
            value={reason}
            maxLength={2000}
            placeholder="Kept in the history of every run, with your name"
            onChange={(event) => setReason(event.target.value)}
          />
        </div>
      )}
      {doing.error && <ErrorState error={doing.error} what="it" />}
      {outcome && <Refusals answer={outcome} />}
    </Dialog>
  );
}

/** How many can, and why the others cannot; the same reason is said once. */
export function Refusals({ answer, future }: { answer: { count: number; runs: { result: string; code: string; problem: string }[] }; future?: boolean }) {
  const refused = answer.runs.filter((run) => run.result === "refused");
  const reasons = new Map<string, { count: number; words: string }>();
  for (const run of refused) {
    const known = reasons.get(run.code);
    if (known) known.count += 1;
    else reasons.set(run.code, { count: 1, words: run.problem });
  }
  const able = answer.count - refused.length;
  return (
    <>
      <p>
        <strong>{runs(able)}</strong> {future ? (refused.length ? "of these can be acted on now." : "will be acted on.") : "done."}
      </p>
      {refused.length > 0 && (
        <>
          <p>
            <strong>{runs(refused.length)}</strong> {future ? "would refuse and are left out:" : "refused:"}
          </p>
          <ul className={css.reasons}>
            {[...reasons].map(([code, { count, words }]) => (
              <li key={code} dir="auto">
                {`${count.toLocaleString()} × ${words}`} <code>{code}</code>
              </li>
            ))}
          </ul>
        </>
      )}
    </>
  );
}
