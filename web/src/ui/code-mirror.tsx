// The parts of the editor that need CodeMirror: loaded when an editor is shown first.
import { defaultKeymap, history, historyKeymap, indentWithTab } from "@codemirror/commands";
import { json } from "@codemirror/lang-json";
import { yaml } from "@codemirror/lang-yaml";
import { bracketMatching, foldGutter, foldKeymap, HighlightStyle, indentOnInput, indentUnit, syntaxHighlighting } from "@codemirror/language";
import { lintGutter, setDiagnostics, type Diagnostic } from "@codemirror/lint";
import { unifiedMergeView } from "@codemirror/merge";
import { highlightSelectionMatches, search, searchKeymap } from "@codemirror/search";
import { Compartment, EditorState, type Extension } from "@codemirror/state";
import { drawSelection, EditorView, highlightActiveLine, keymap, lineNumbers } from "@codemirror/view";
import { tags } from "@lezer/highlight";
import { useEffect, useRef } from "react";
import type { EditorProps } from "./editor";
import { STYLE_NONCE } from "./nonce";

const LOOK = EditorView.theme({
  "&": { fontSize: "12px", backgroundColor: "var(--bg)", color: "var(--fg)", flex: "1 1 auto", minHeight: "0" },
  "&.cm-focused": { outline: "2px solid var(--focus)", outlineOffset: "-1px" },
  ".cm-scroller": { fontFamily: "var(--mono)", lineHeight: "18px", overflow: "auto" },
  ".cm-content": { caretColor: "var(--fg)" },
  ".cm-cursor": { borderLeftColor: "var(--fg)" },
  ".cm-gutters": { backgroundColor: "var(--bg-soft)", color: "var(--fg-faint)", border: "none", borderRight: "1px solid var(--border)" },
  ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--bg-hover) 60%, transparent)" },
  "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "var(--bg-selected)" },
  ".cm-panels": { backgroundColor: "var(--bg-soft)", color: "var(--fg)" },
  ".cm-tooltip": { backgroundColor: "var(--bg)", color: "var(--fg)", border: "1px solid var(--border-strong)", borderRadius: "6px" },
  ".cm-diagnostic-error": { borderLeftColor: "var(--bad)" },
  ".cm-foldPlaceholder": { backgroundColor: "var(--quiet-soft)", border: "none", color: "var(--fg-soft)", padding: "0 6px" },
  ".cm-changedLine, &.cm-merge-b .cm-changedLine": { backgroundColor: "var(--ok-soft)" },
  "&.cm-merge-b .cm-changedText, .cm-changedText": { background: "color-mix(in srgb, var(--ok) 28%, transparent)" },
  ".cm-insertedLine": { backgroundColor: "var(--ok-soft)" },
  ".cm-deletedChunk": { backgroundColor: "var(--bad-soft)" },
  ".cm-deletedChunk .cm-deletedText": { background: "color-mix(in srgb, var(--bad) 28%, transparent)" },
  ".cm-deletedChunk .cm-chunkButtons": { display: "none" },
  ".cm-changeGutter": { width: "3px", paddingLeft: "0" },
  ".cm-collapsedLines:before, .cm-collapsedLines:after": { content: "\"⋯\"" },
  ".cm-collapsedLines": { backgroundColor: "var(--bg-soft)", color: "var(--fg-soft)", background: "var(--bg-soft)" },
});

const COLOURS = HighlightStyle.define([
  { tag: [tags.propertyName, tags.definition(tags.propertyName)], color: "var(--code-key)" },
  { tag: [tags.string, tags.special(tags.string)], color: "var(--code-string)" },
  { tag: [tags.number], color: "var(--code-number)" },
  { tag: [tags.bool, tags.null, tags.keyword, tags.atom], color: "var(--code-word)" },
  { tag: [tags.comment, tags.meta, tags.punctuation, tags.separator], color: "var(--fg-faint)" },
]);

function places(view: EditorView, problems: NonNullable<EditorProps["problems"]>): Diagnostic[] {
  const { doc } = view.state;
  return problems.flatMap((each) => {
    if (!each.line || each.line > doc.lines) return [];
    const line = doc.line(each.line);
    const from = Math.min(line.to, line.from + Math.max(0, (each.column ?? 1) - 1));
    return [{ from, to: line.to, severity: "error" as const, message: each.hint ? `${each.message}\n${each.hint}` : each.message }];
  });
}

export default function CodeMirror({ value, onChange, language, readOnly = false, original, label, problems, minHeight = 120, maxHeight = 480, autoFocus = false, line }: EditorProps) {
  const host = useRef<HTMLDivElement>(null);
  const view = useRef<EditorView | null>(null);
  const changed = useRef(onChange);
  changed.current = onChange;
  const closed = useRef(new Compartment());

  useEffect(() => {
    if (host.current === null) return;
    const extensions: Extension[] = [
      lineNumbers(),
      foldGutter(),
      history(),
      drawSelection(),
      bracketMatching(),
      indentOnInput(),
      indentUnit.of("  "),
      highlightActiveLine(),
      highlightSelectionMatches(),
      search({ top: true }),
      lintGutter(),
      language === "json" ? json() : yaml(),
      syntaxHighlighting(COLOURS),
      LOOK,
      // Escape, then Tab, leaves the editor: keyboards are not caught in it.
      keymap.of([...defaultKeymap, ...historyKeymap, ...foldKeymap, ...searchKeymap, indentWithTab]),
      EditorView.contentAttributes.of({ "aria-label": label, tabindex: "0" }),
      EditorView.lineWrapping,
      closed.current.of([EditorState.readOnly.of(readOnly), EditorView.editable.of(!readOnly)]),
      EditorView.updateListener.of((update) => {
        if (update.docChanged) changed.current?.(update.state.doc.toString());
      }),
    ];
    if (STYLE_NONCE) extensions.push(EditorView.cspNonce.of(STYLE_NONCE));
    if (original !== undefined) {
      extensions.push(unifiedMergeView({ original, mergeControls: false, gutter: true, collapseUnchanged: { margin: 3, minSize: 6 }, syntaxHighlightDeletions: true }));
    }
    const made = new EditorView({ doc: value, extensions, parent: host.current });
    view.current = made;
    if (line !== undefined && line <= made.state.doc.lines) {
      const at = made.state.doc.line(line).from;
      made.dispatch({ selection: { anchor: at }, effects: EditorView.scrollIntoView(at, { y: "start", yMargin: 24 }) });
    }
    if (autoFocus) made.focus();
    return () => {
      view.current = null;
      made.destroy();
    };
    // The text and whether it can be changed are taken over below.
    // eslint-disable-next-line react-hooks/exhaustive-deps
  }, [language, original, label]);

  useEffect(() => {
    const made = view.current;
    if (made === null || made.state.doc.toString() === value) return;
    made.dispatch({ changes: { from: 0, to: made.state.doc.length, insert: value } });
  }, [value]);

  useEffect(() => {
    view.current?.dispatch({ effects: closed.current.reconfigure([EditorState.readOnly.of(readOnly), EditorView.editable.of(!readOnly)]) });
  }, [readOnly]);

  useEffect(() => {
    const made = view.current;
    if (made !== null) made.dispatch(setDiagnostics(made.state, places(made, problems ?? [])));
  }, [problems]);

  return <div ref={host} style={{ minHeight, maxHeight, display: "flex", flexDirection: "column", overflow: "hidden", border: "1px solid var(--border-control)", borderRadius: "var(--radius)" }} data-editor={language} />;
}
