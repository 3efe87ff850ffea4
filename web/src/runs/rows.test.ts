import { expect, test } from "vitest";
import { meets, merged, note, NOTHING_UNSHOWN, takeIn, waitingWords, type RunRow } from "./rows";

const NOW = 1_000_000_000;

function row(run_id: string, more: Partial<RunRow> = {}): RunRow {
  const base = {
    run_id,
    workflow: "billing",
    version: 2,
    status: "RUNNING",
    created_ms: NOW,
    labels: {},
    waiting_for: [],
    rollback: "none",
  };
  return {
    ...base,
    submitted_by: "ada",
    parent: "",
    forked_from: "",
    failure: "",
    suspect: "",
    stuck: false,
    idle: false,
    ...more,
  } as unknown as RunRow;
}

test("waits are said in words", () => {
  expect(waitingWords("human (approve)")).toBe("an approval at approve");
  expect(waitingWords("signal paid (wait)")).toBe("the signal paid at wait");
  expect(waitingWords("limit max_parallel (each)")).toBe("a free place for each");
  expect(waitingWords("something new")).toBe("something new");
  expect(note(row("a", { waiting_for: ["timer (rest)", "human (b)"] }))).toEqual({ kind: "wait", text: "a timer at rest", more: 1 });
});

test("a row meets a query, does not, or does not tell", () => {
  const failed = row("a", { status: "FAILED", labels: { customer: "acme corp" } });
  expect(meets('status:failed workflow:billing@2 label.customer="acme corp" started>-2h', failed, NOW)).toBe(true);
  expect(meets("live", failed, NOW)).toBe(false);
  expect(meets("started<-2h", failed, NOW)).toBe(false);
  expect(meets("root:x", failed, NOW)).toBeNull();
  expect(meets("waiting:approval", row("b", { waiting_for: ["human (x)"] }), NOW)).toBe(true);
});

test("shown rows change in place, others are kept aside", () => {
  const shown = new Set(["a"]);
  const change = (run: RunRow) => ({ change: "changed" as const, run });
  const taken = takeIn(
    [change(row("a", { status: "COMPLETED" })), change(row("b")), change(row("old", { created_ms: 5 }))],
    (id) => shown.has(id),
    10,
    "status:running",
    NOW,
    NOTHING_UNSHOWN,
  );
  expect([...taken.updates.keys()]).toEqual(["a"]);
  expect(Object.keys(taken.unshown.fresh)).toEqual(["b"]);
  expect(Object.keys(taken.unshown.left)).toEqual(["a"]);
  expect(merged([row("a", { status: "COMPLETED", created_ms: 20 })], taken.unshown).map((each) => each.run_id)).toEqual(["b"]);
});
