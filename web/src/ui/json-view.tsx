// JSON as a tree. First version.
import { useMemo } from "react";
import css from "./json-view.module.css";

export function JsonView({ value, label = "Value" }: { value: unknown; label?: string }) {
  const text = useMemo(() => {
    const all = typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? "–");
    return all.length > 65_536 ? `${all.slice(0, 65_536)}…` : all;
  }, [value]);
  return (
    <pre className={css.view} aria-label={label} tabIndex={0}>
      {text}
    </pre>
  );
}
