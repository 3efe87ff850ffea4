import { expect, test, vi } from "vitest";
import { patched, signOfNode, type NodeState, type RunAnswer, type RunEvent } from "./model";

// The client of the API asks where the page is.
vi.hoisted(() => vi.stubGlobal("document", { baseURI: "http://localhost/" }));

const failed = (more: Partial<NodeState>): NodeState => ({ status: "FAILED", visits: 1, attempts: 1, error: { code: "boom", message: "no" }, ...more });

test("a tolerated failure does not look like the one that failed the run", () => {
  expect(signOfNode(failed({}))).toBe("FAILED");
  expect(signOfNode(failed({ tolerated: true }))).toBe("HANDLED");
  expect(signOfNode(failed({ error: { code: "upstream_failed", message: "no" } }))).toBe("NEVER_BEGAN");
  expect(signOfNode(failed({ status: "COMPLETED" }))).toBe("COMPLETED");
});

test("an event of the stream says whether the failure is tolerated", () => {
  const run = { events: 3, nodes: { a: failed({ status: "RUNNING", error: null }) } } as unknown as RunAnswer;
  const event = { seq: 4, at_ms: 1, type: "NodeFailed", node: "a", visit: 1, error: { code: "boom", message: "no" } } as RunEvent;
  expect(signOfNode(patched(run, { ...event, tolerated: true }).nodes.a!)).toBe("HANDLED");
  expect(signOfNode(patched(run, event).nodes.a!)).toBe("FAILED");
});
