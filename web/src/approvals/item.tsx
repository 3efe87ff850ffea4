// One approval, for a person with a credential.
import { useQuery } from "@tanstack/react-query";
import { useParams } from "@tanstack/react-router";
import { useMemo } from "react";
import { api, newCommandId, seg, type Problem } from "../api/client";
import { keys, useMay } from "../api/queries";
import type { Page } from "../api/types";
import { ErrorState, Loading } from "../ui";
import css from "./approvals.module.css";
import type { HistoryEntry, Review } from "./data";
import { Decision, type Answer } from "./decision";

export default function ApprovalPage() {
  const { id = "" } = useParams({ strict: false }) as { id?: string };
  const path = `/approvals/${seg(id)}`;
  const may = useMay("approvals:decide");
  const review = useQuery<Review, Problem>({
    queryKey: [...keys.approvals, "item", id],
    queryFn: ({ signal }) => api<Review>("GET", path, { signal }),
    refetchInterval: 5_000,
  });
  const history = useQuery<Page<HistoryEntry>, Problem>({
    queryKey: [...keys.approvals, "history", id, review.data?.status, review.data?.votes.length, review.data?.delegated.length],
    queryFn: ({ signal }) => api<Page<HistoryEntry>>("GET", `${path}/history`, { signal }),
    enabled: review.data !== undefined,
    placeholderData: (before) => before,
  });
  const command = useMemo(() => newCommandId(), [id]);
  if (review.isPending) return <Loading />;
  if (!review.data) return <ErrorState error={review.error} what="this approval" onRetry={() => void review.refetch()} />;
  return (
    <div className={css.scroll}>
      <Decision
        key={id}
        review={review.data}
        history={history.data?.items ?? []}
        reload={async () => (await review.refetch()).data}
        missing={may ? "" : "Your key has no permission to decide (approvals:decide)."}
        decide={(body) => api<Answer>("POST", `${path}/decide`, { body: { ...body, command_id: `${command}-${body.decision}` } })}
        delegate={(to, comments) => api("POST", `${path}/delegate`, { body: { to, comments } })}
      />
    </div>
  );
}
