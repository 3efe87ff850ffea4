import { describe, expect, test } from "vitest";
import {
  complete,
  conditions,
  has,
  NOTHING_KNOWN,
  problemRange,
  taken,
  toggled,
  withCondition,
  withoutCondition,
  written,
  type Known,
} from "./query";

const KNOWN: Known = {
  statuses: { FAILED: 3, COMPLETED: 9 },
  workflows: { billing: 7, booking: 9, دفع: 1 },
  versions: { "billing@1": 2, "billing@2": 5 },
  labels: { customer: { acme: 2, "acme corp": 5, 'say "hi"': 1 }, "cost centre": { a: 1 } },
  failures: [{ failure: "4d7daf4ca5a3", code: "http_status", node: "charge", count: 4 }],
  people: ["ada", "key:ci"],
};

const labels = (text: string, caret = text.length) => complete(text, caret, KNOWN).options.map((each) => each.label);

describe("conditions", () => {
  test("end at spaces outside quotes", () => {
    expect(conditions('  status:failed label.c="two words" live').map((each) => [each.key, each.value])).toEqual([
      ["status", "failed"],
      ["label.c", "two words"],
      ["live", ""],
    ]);
  });

  test("know comparisons, versions and values with colons", () => {
    expect(conditions("started>=2026-03-01T08:30Z version:a@1 by:key:ci label:a:b").map((each) => [each.key, each.value])).toEqual([
      ["started>", "2026-03-01T08:30Z"],
      ["workflow", "a@1"],
      ["by", "key:ci"],
      ["label.a", "b"],
    ]);
  });
});

describe("edits", () => {
  test("a second value of a field replaces the first", () => {
    expect(withCondition("status:failed live", "status", "running")).toBe("status:running live");
    expect(withCondition("live", "label.customer", "acme corp")).toBe('live label.customer="acme corp"');
    expect(withCondition("", "started>", "-2h")).toBe("started>-2h");
    expect(withCondition("live", "stuck")).toBe("live stuck");
  });

  test("what was toggled twice is as before", () => {
    const once = toggled("live", "workflow", "دفع 🧾");
    expect(once).toBe('live workflow:"دفع 🧾"');
    expect(has(once, "workflow", "دفع 🧾")).toBe(true);
    expect(toggled(once, "workflow", "دفع 🧾")).toBe("live");
  });

  test("statuses are the same in capitals", () => {
    expect(has("status:failed", "status", "FAILED")).toBe(true);
    expect(withoutCondition("status:failed a", "status", "FAILED")).toBe("a");
  });

  test("a key with a space is quoted with its value", () => {
    const text = written("label.cost centre", "a b");
    expect(conditions(text).map((each) => [each.key, each.value])).toEqual([["label.cost centre", "a b"]]);
  });
});

describe("completions", () => {
  test("of nothing are the fields and flags that are not asked for yet", () => {
    expect(labels("").slice(0, 3)).toEqual(["status:", "workflow:", "started>"]);
    expect(labels("status:failed ")[0]).toBe("workflow:");
    expect(complete("", 0, NOTHING_KNOWN).options.length).toBeGreaterThan(5);
  });

  test("of values have counts", () => {
    expect(complete("status:f", 8, KNOWN).options).toEqual([{ insert: "status:failed", label: "status:failed", count: 3, complete: true }]);
    expect(labels("workflow:b")).toEqual(["workflow:booking", "workflow:billing"]);
    expect(labels("workflow:billing@")).toEqual(["workflow:billing@2", "workflow:billing@1"]);
    expect(labels("label.customer=ac")).toEqual(['label.customer="acme corp"', "label.customer=acme"]);
    expect(labels("label.c")).toEqual(["label.customer=", "label.cost centre="]);
    expect(labels("failure:")).toEqual(["failure:4d7daf4ca5a3"]);
    expect(labels("started>-1")).toEqual(["started>-15m", "started>-1h"]);
  });

  test("of a bare word find the value that begins with it", () => {
    expect(labels("fail")).toEqual(["failure:", "status:failed"]);
    expect(labels("bill")).toEqual(["workflow:billing"]);
    expect(labels("cust")).toEqual(["label.customer="]);
  });

  test("offer nothing that cannot be written", () => {
    expect(labels("label.customer=say")).toEqual([]);
  });

  test("replace the condition at the caret", () => {
    const text = "status:fa live";
    const found = complete(text, 9, KNOWN);
    expect(taken(text, found, found.options[0]!)).toEqual({ text: "status:failed live", caret: 14 });
    const field = complete("sta", 3, KNOWN);
    expect(taken("sta", field, field.options[0]!)).toEqual({ text: "status:", caret: 7 });
    const last = complete("status:fa", 9, KNOWN);
    expect(taken("status:fa", last, last.options[0]!)).toEqual({ text: "status:failed ", caret: 14 });
  });
});

test("problems are placed by characters, not by UTF-16 units", () => {
  const text = "label.a=🧾🧾 stats:failed";
  expect(problemRange(text, "/query:12")).toEqual({ from: 13, to: text.length });
  expect(problemRange(text, "/limit")).toBeNull();
});
