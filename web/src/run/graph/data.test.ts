import { describe, expect, test } from "vitest";
import type { Graph, GraphNode } from "../model";
import { fromWorkflow, joinWords, signName, withPass, withRun, withUndone, worst, worstItem, type DrawnGraph, type DrawnNode, type JoinState } from "./data";
import { boxStatus, buildScene } from "./scene";

const node = (id: string, more: Partial<DrawnNode> = {}): DrawnNode => ({ id, type: "value@1", status: "PENDING", visits: 1, attempts: 0, duration_ms: 0, ...more });
const edge = (from: string, to: string, taken: boolean | null = null, kind: "edge" | "loop" = "edge") => ({ from, to, label: kind === "loop" ? "again" : "", kind, taken });
const workflow = (...nodes: GraphNode[]): Graph => ({ name: "w", nodes, entries: [], terminals: [] });

const LOOP: DrawnGraph = {
  seq: 9,
  nodes: [node("a"), node("draft", { status: "COMPLETED", visits: 3 }), node("review", { status: "RUNNING", visits: 3, loop: { pass: 3, max: 5, back_to: "draft", body: ["draft", "review"] } }), node("end")],
  edges: [edge("a", "draft", true), edge("draft", "review", true), edge("review", "draft", null, "loop"), edge("review", "end")],
};

describe("words of a join", () => {
  const join = (more: Partial<JoinState>): JoinState => ({ kind: "all", needs: 3, of: 3, arrived: 0, skipped: 0, settled: false, waits_for: ["a", "b", "c"], ...more });
  test.each([
    [join({}), "waits for all 3"],
    [join({ kind: "any" }), "waits for any of 3"],
    [join({ kind: "quorum", needs: 2 }), "waits for 2 of 3"],
    [join({ arrived: 2, waits_for: ["C"] }), "2 of 3 arrived, waiting for C"],
    [join({ arrived: 1, waits_for: ["b", "c"] }), "1 of 3 arrived, waiting for b and c"],
    [join({ of: 9, arrived: 1, skipped: 1, waits_for: ["b", "c"] }), "1 of 9 arrived, 1 not taken, waiting for b and 6 more"],
    [join({ arrived: 3, settled: true, waits_for: [] }), "3 of 3 arrived"],
  ])("%#", (state, words) => expect(joinWords(state, true)).toBe(words));
});

test("a workflow as a graph: labels of rules, joins, loops and maps", () => {
  const drawn = fromWorkflow(
    workflow(
      { id: "a", type: "value@1", outbound: ["b", "c", "d"], branch: { rules: [{ condition: "output > 5", next_nodes: ["b"] }], default: ["c"] }, error_path: ["d"] } as GraphNode,
      { id: "b", type: "value@1", inbound: ["a"], map: { over: [] } } as GraphNode,
      { id: "c", type: "value@1", inbound: ["a", "b"], join: "any", loop: { back_to: "c", max_iterations: 2, condition: "" } } as GraphNode,
      { id: "d", type: "value@1", inbound: ["a"] } as GraphNode,
    ),
  );
  expect(drawn.edges.map((each) => [each.from, each.to, each.label, each.kind])).toEqual([
    ["a", "b", "if output > 5", "edge"],
    ["a", "c", "otherwise", "edge"],
    ["a", "d", "on error", "edge"],
    ["c", "c", "again", "loop"],
  ]);
  expect(drawn.nodes[1]?.items).toBeNull();
  expect(drawn.nodes[2]?.join).toMatchObject({ kind: "any", needs: 1, of: 2 });
});

test("what the stream tells is newer than the graph", () => {
  const now = withRun(LOOP, { events: 10, last_event_ms: 5, nodes: { review: { status: "WAITING", visits: 3, attempts: 1, error: null } } });
  expect(now.nodes[2]).toMatchObject({ status: "WAITING", since_ms: 5 });
  expect(now.nodes[1]).toBe(LOOP.nodes[1]);
  expect(withRun(LOOP, { events: 9, last_event_ms: 5, nodes: {} })).toBe(LOOP);
});

test("items that have ended since are no longer under way", () => {
  const map: DrawnGraph = { ...LOOP, nodes: [node("m", { status: "RUNNING", items: { count: 8, done: 5, failed: 1, running: 2, waiting: 0 } })], edges: [] };
  const run = (done: number) => withRun(map, { events: 10, last_event_ms: 5, nodes: { m: { status: done === 8 ? "COMPLETED" : "RUNNING", visits: 1, attempts: 0, error: null, items: { count: 8, done, failed: 1 } } } });
  expect(run(7).nodes[0]?.items).toMatchObject({ done: 6, failed: 1, running: 1 });
  expect(run(8).nodes[0]?.items).toMatchObject({ done: 7, failed: 1, running: 0 });
});

test("an earlier pass is shown for the body alone, and the loop keeps its latest pass", () => {
  const past: DrawnGraph = { ...LOOP, nodes: LOOP.nodes.map((each) => ({ ...each, status: "FAILED", visits: 1, ...(each.loop ? { loop: { ...each.loop, pass: 1 } } : {}) })), edges: LOOP.edges.map((each) => ({ ...each, taken: false })) };
  const shown = withPass(LOOP, past, "review");
  expect(shown.nodes.map((each) => [each.id, each.status, each.visits])).toEqual([["a", "PENDING", 1], ["draft", "FAILED", 1], ["review", "FAILED", 1], ["end", "PENDING", 1]]);
  expect(shown.nodes[2]?.loop?.pass).toBe(3);
  expect(shown.edges.map((each) => each.taken)).toEqual([true, false, false, null]);
});

test("statuses", () => {
  expect(signName(node("a", { status: "QUEUED", retry_at_ms: 5 }))).toBe("RETRYING");
  expect(signName(node("a", { status: "FAILED", tolerated: true }))).toBe("HANDLED");
  expect(worst(["COMPLETED", "WAITING", "FAILED"])).toBe("FAILED");
  expect(worstItem(node("a", { status: "RUNNING", items: { count: 9, done: 3, failed: 1 } }))).toBe("FAILED");
});

test("a collapsed loop is one box with the worst status; its inner edges are gone", () => {
  const scene = buildScene(LOOP, { collapsed: new Set(["review"]) });
  expect(scene.boxes.map((each) => [each.id, each.kind])).toEqual([["a", "node"], ["review", "loop"], ["end", "node"]]);
  expect(scene.links.map((each) => [each.from, each.to, each.taken])).toEqual([["a", "review", true], ["review", "end", null]]);
  expect(boxStatus(scene.boxes[1]!)).toBe("RUNNING");
  const open = buildScene(LOOP, { collapsed: new Set() });
  expect(open.loops).toEqual([{ node: "review", members: ["draft", "review"] }]);
  expect(open.boxes).toHaveLength(4);
});

test("what a rollback has undone says so", () => {
  const done: DrawnGraph = { seq: 3, nodes: [node("book", { status: "COMPLETED" }), node("pay", { status: "FAILED" })], edges: [] };
  expect(withUndone(done, new Set(["book"])).nodes.map(signName)).toEqual(["ROLLED_BACK", "FAILED"]);
  expect(withUndone(done, new Set())).toBe(done);
});
