// Buttons and small things that people press or read.
import { useEffect, useRef, useState, type ButtonHTMLAttributes, type HTMLAttributes, type ReactNode, type Ref } from "react";
import css from "./controls.module.css";
import { Icon, type IconName } from "./icons";
import { Tooltip } from "./overlays";

export interface ButtonProps extends ButtonHTMLAttributes<HTMLButtonElement> {
  /** `primary`: the one next step; `danger`: it cannot be taken back; `quiet`: without a frame. */
  kind?: "plain" | "primary" | "danger" | "quiet";
  size?: "m" | "s";
  icon?: IconName;
  /** Something is under way: the button stays and does nothing. */
  busy?: boolean;
  ref?: Ref<HTMLButtonElement>;
}

export function Button({ kind = "plain", size = "m", icon, busy, children, className, onClick, ...rest }: ButtonProps) {
  return (
    <button
      type="button"
      {...rest}
      className={`${css.button} ${className ?? ""}`}
      data-kind={kind}
      data-size={size}
      aria-disabled={busy || rest["aria-disabled"]}
      aria-busy={busy || undefined}
      onClick={busy ? (event) => event.preventDefault() : onClick}
    >
      {busy ? <span className={css.busy} aria-hidden="true" /> : icon && <Icon name={icon} />}
      {children}
    </button>
  );
}

/** A button with an icon only; its label is read aloud and shown on hover. */
export function IconButton({ icon, label, size = "m", className, keys, ...rest }: { icon: IconName; label: string; size?: "m" | "s"; keys?: string; ref?: Ref<HTMLButtonElement> } & ButtonHTMLAttributes<HTMLButtonElement>) {
  return (
    <Tooltip text={label} {...(keys ? { keys } : {})}>
      <button type="button" {...rest} className={`${css.iconButton} ${className ?? ""}`} data-size={size} aria-label={label}>
        <Icon name={icon} />
      </button>
    </Tooltip>
  );
}

/** Copies a text; says so. */
export function Copy({ text, label = "Copy", children }: { text: string | (() => string | Promise<string>); label?: string; children?: ReactNode }) {
  const [state, setState] = useState<"" | "done" | "failed">("");
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  useEffect(() => () => clearTimeout(timer.current), []);
  const copy = async () => {
    try {
      await copyText(typeof text === "string" ? text : await text());
      setState("done");
    } catch {
      setState("failed");
    }
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setState(""), 1_500);
  };
  const said = state === "done" ? "Copied" : state === "failed" ? "Not copied" : label;
  return (
    <>
      {children ? (
        <Button kind="quiet" size="s" icon={state === "done" ? "check" : "copy"} onClick={() => void copy()}>
          {state ? said : children}
        </Button>
      ) : (
        <IconButton icon={state === "done" ? "check" : "copy"} size="s" label={said} onClick={() => void copy()} />
      )}
      <span className="visually-hidden" role="status">
        {state ? said : ""}
      </span>
    </>
  );
}

/** Put a text on the clipboard, also where the page is not served securely. */
export async function copyText(text: string): Promise<void> {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  const area = document.createElement("textarea");
  area.value = text;
  area.style.position = "fixed";
  area.style.opacity = "0";
  document.body.append(area);
  area.select();
  const copied = document.execCommand("copy");
  area.remove();
  if (!copied) throw new Error("The browser did not copy.");
}

const MAC = /Mac|iPhone|iPad/.test(navigator.platform);

/** Keys of a shortcut: `keys="mod+k"`. */
export function KeyHint({ keys }: { keys: string }) {
  const shown = keys.split(" ").map((chord) => chord.split("+").map((key) => (key === "mod" ? (MAC ? "⌘" : "Ctrl") : key.length === 1 ? (chord.includes("+") ? key.toUpperCase() : key) : key[0]?.toUpperCase() + key.slice(1))));
  return (
    <span className={css.keys}>
      {shown.map((chord, index) => (
        <span key={index}>
          {chord.map((key, at) => (
            <kbd key={at}>{key}</kbd>
          ))}
        </span>
      ))}
    </span>
  );
}

export function Badge({ children, role = "quiet", className, ...rest }: { role?: "ok" | "bad" | "busy" | "wait" | "quiet" | "undo" | "accent"; children: ReactNode } & Omit<HTMLAttributes<HTMLSpanElement>, "role">) {
  return (
    <span {...rest} className={`${css.badge} ${className ?? ""}`} data-role={role}>
      {children}
    </span>
  );
}

/** One value of a filter with its count. */
export function Facet({ label, count, active, onToggle, icon }: { label: ReactNode; count?: number | string; active?: boolean; onToggle: () => void; icon?: ReactNode }) {
  return (
    <button type="button" className={css.facet} aria-pressed={active ?? false} onClick={onToggle}>
      {icon}
      <span className="truncate">{label}</span>
      {count !== undefined && <span className={css.count}>{typeof count === "number" ? count.toLocaleString() : count}</span>}
    </button>
  );
}
