// A text editor for YAML and JSON, with a difference against another text. CodeMirror is loaded when it is needed.
import { lazy, Suspense } from "react";
import type { ProblemItem } from "../api/client";
import { Loading } from "./feedback";

export interface PlacedProblem extends ProblemItem {
  line?: number;
  column?: number;
}

export interface EditorProps {
  value: string;
  onChange?: (value: string) => void;
  language: "yaml" | "json";
  /** Read aloud. */
  label: string;
  readOnly?: boolean;
  /** Show what differs from this text. */
  original?: string;
  /** Shown at their lines. */
  problems?: readonly PlacedProblem[];
  minHeight?: number;
  maxHeight?: number | string;
  autoFocus?: boolean;
  /** Where to begin: the line is brought into sight, once. */
  line?: number;
}

const CodeMirror = lazy(() => import("./code-mirror"));

export function Editor(props: EditorProps) {
  return (
    <Suspense fallback={<Loading rows={4} label="Loading the editor" />}>
      <CodeMirror {...props} />
    </Suspense>
  );
}

/** What differs between two texts; unchanged parts are folded. */
export function DiffView({ before, after, language, label, maxHeight }: { before: string; after: string; language: "yaml" | "json"; label: string; maxHeight?: number }) {
  return <Editor value={after} original={before} language={language} label={label} readOnly minHeight={0} {...(maxHeight ? { maxHeight } : {})} />;
}
