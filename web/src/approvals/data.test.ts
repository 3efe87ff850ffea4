import { expect, test } from "vitest";
import { byDue } from "./data";

test("the inbox begins with what is due first; the rest keeps its order", () => {
  const items = [
    { id: "new", expires_ms: null },
    { id: "tomorrow", expires_ms: 90_000 },
    { id: "old", expires_ms: null },
    { id: "overdue", expires_ms: 10 },
  ];
  expect(byDue(items).map((each) => each.id)).toEqual(["overdue", "tomorrow", "new", "old"]);
});
