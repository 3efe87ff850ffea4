// The same page, opened by a signed link: the link is the credential, and says who decides.
import { useQuery } from "@tanstack/react-query";
import { Link, useParams } from "@tanstack/react-router";
import { api, seg, type Problem } from "../api/client";
import { Empty, ErrorState, Loading, sentence, Time } from "../ui";
import css from "./approvals.module.css";
import type { Review } from "./data";
import { Decision, type Answer } from "./decision";

export default function DecidePage() {
  const { token = "" } = useParams({ strict: false }) as { token?: string };
  const path = `/decisions/${seg(token)}`;
  const review = useQuery<Review, Problem>({ queryKey: ["decision", token], queryFn: ({ signal }) => api<Review>("GET", path, { signal }), retry: false });
  if (review.isPending) return <Loading />;
  if (!review.data) {
    const problem = review.error;
    if (problem.status === 410 || problem.code === "link_invalid" || problem.isUnauthenticated) {
      return (
        <Empty title={problem.code === "link_expired" ? "This link has expired" : "This link cannot be used"} icon="clock" action={<Link to="/approvals">Open Approvals</Link>}>
          <p>{sentence(problem.detail)}</p>
          <p>Nothing was decided by it. Ask the sender for a new one, or sign in and open Approvals.</p>
        </Empty>
      );
    }
    return <ErrorState error={problem} what="this approval" onRetry={() => void review.refetch()} />;
  }
  return (
    <div className={css.whole}>
      <Decision
        review={review.data}
        history={[]}
        link={
          <>
            This link lets you decide once, without signing in. It ends <Time ms={review.data.decider.expires_ms} />.
          </>
        }
        reload={async () => (await review.refetch()).data}
        missing=""
        decide={(body) => api<Answer>("POST", path, { body })}
      />
    </div>
  );
}
