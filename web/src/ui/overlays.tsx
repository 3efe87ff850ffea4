// What lies over the page: dialogs, menus, tabs, tooltips, popovers and toasts.
import * as RadixDialog from "@radix-ui/react-dialog";
import * as RadixMenu from "@radix-ui/react-dropdown-menu";
import * as RadixPopover from "@radix-ui/react-popover";
import * as RadixTabs from "@radix-ui/react-tabs";
import * as RadixTooltip from "@radix-ui/react-tooltip";
import { useSyncExternalStore, type ReactElement, type ReactNode } from "react";
import { Problem } from "../api/client";
import { KeyHint } from "./controls";
import { Icon, type IconName } from "./icons";
import css from "./overlays.module.css";

export interface DialogProps {
  open: boolean;
  onOpenChange: (open: boolean) => void;
  title: ReactNode;
  /** What will happen, in a sentence. */
  description?: ReactNode;
  children?: ReactNode;
  /** The buttons; the one that does it last. */
  footer?: ReactNode;
  size?: "s" | "m" | "l";
}

export function Dialog({ open, onOpenChange, title, description, children, footer, size = "m" }: DialogProps) {
  return (
    <RadixDialog.Root open={open} onOpenChange={onOpenChange}>
      <RadixDialog.Portal>
        <RadixDialog.Overlay className={css.overlay} />
        <RadixDialog.Content className={css.dialog} data-size={size} onEscapeKeyDown={keepEditor} {...(description ? {} : { "aria-describedby": undefined })}>
          <header className={css.dialogHead}>
            <RadixDialog.Title className={css.dialogTitle}>{title}</RadixDialog.Title>
            <RadixDialog.Close className={css.close} aria-label="Close">
              <Icon name="close" />
            </RadixDialog.Close>
          </header>
          <div className={css.dialogBody}>
            {description && <RadixDialog.Description className="soft">{description}</RadixDialog.Description>}
            {children}
          </div>
          {footer && <footer className={css.dialogFoot}>{footer}</footer>}
        </RadixDialog.Content>
      </RadixDialog.Portal>
    </RadixDialog.Root>
  );
}

/** Escape in an editor closes its search or its completions, not the dialog with all that was written. */
function keepEditor(event: globalThis.KeyboardEvent): void {
  if (event.target instanceof Element && event.target.closest(".cm-editor")) event.preventDefault();
}

export type MenuItem =
  | { label: ReactNode; icon?: IconName; keys?: string; danger?: boolean; disabled?: boolean; hint?: ReactNode; checked?: boolean; onSelect: () => void }
  | { heading: ReactNode }
  | "separator";

/** A menu of actions below its trigger (one element that takes a ref, such as `Button`). */
export function Menu({ trigger, items, align = "start" }: { trigger: ReactElement; items: MenuItem[]; align?: "start" | "end" | "center" }) {
  return (
    <RadixMenu.Root modal={false}>
      <RadixMenu.Trigger asChild>{trigger}</RadixMenu.Trigger>
      <RadixMenu.Portal>
        <RadixMenu.Content className={css.menu} align={align} sideOffset={4} collisionPadding={8}>
          {items.map((item, index) => {
            if (item === "separator") return <RadixMenu.Separator key={index} className={css.separator} />;
            if ("heading" in item) {
              return (
                <RadixMenu.Label key={index} className={css.menuHeading}>
                  {item.heading}
                </RadixMenu.Label>
              );
            }
            const inside = (
              <>
                <span className={css.menuIcon}>{item.checked ? <Icon name="check" /> : item.icon && <Icon name={item.icon} />}</span>
                <span className={css.menuText}>
                  <span>{item.label}</span>
                  {item.hint && <span className={css.menuHint}>{item.hint}</span>}
                </span>
                {item.keys && <KeyHint keys={item.keys} />}
              </>
            );
            const props = { className: css.menuItem, disabled: item.disabled ?? false, onSelect: item.onSelect, "data-danger": item.danger || undefined };
            return item.checked === undefined ? (
              <RadixMenu.Item key={index} {...props}>
                {inside}
              </RadixMenu.Item>
            ) : (
              <RadixMenu.CheckboxItem key={index} {...props} checked={item.checked}>
                {inside}
              </RadixMenu.CheckboxItem>
            );
          })}
        </RadixMenu.Content>
      </RadixMenu.Portal>
    </RadixMenu.Root>
  );
}

export function Popover({ trigger, children, align = "start", open, onOpenChange }: { trigger: ReactElement; children: ReactNode; align?: "start" | "end" | "center"; open?: boolean; onOpenChange?: (open: boolean) => void }) {
  return (
    <RadixPopover.Root {...(open === undefined ? {} : { open })} {...(onOpenChange ? { onOpenChange } : {})}>
      <RadixPopover.Trigger asChild>{trigger}</RadixPopover.Trigger>
      <RadixPopover.Portal>
        <RadixPopover.Content className={css.popover} align={align} sideOffset={4} collisionPadding={8}>
          {children}
        </RadixPopover.Content>
      </RadixPopover.Portal>
    </RadixPopover.Root>
  );
}

export interface Tab {
  id: string;
  label: ReactNode;
  count?: number | string;
  keys?: string;
}

/** Tabs with their panels; only the panel of the chosen tab is there. Without children: the strip alone. */
export function Tabs({ tabs, value, onChange, label, children, className, end }: { tabs: Tab[]; value: string; onChange: (id: string) => void; label: string; children?: ReactNode; className?: string; end?: ReactNode }) {
  return (
    <RadixTabs.Root value={value} onValueChange={onChange} className={`${css.tabs} ${className ?? ""}`}>
      <div className={css.tabRow}>
        <RadixTabs.List className={css.tabList} aria-label={label}>
          {tabs.map((tab) => (
            <RadixTabs.Trigger key={tab.id} value={tab.id} className={css.tab} {...(tab.keys ? { "aria-keyshortcuts": tab.keys } : {})}>
              {tab.label}
              {tab.count !== undefined && <span className={css.tabCount}>{tab.count}</span>}
            </RadixTabs.Trigger>
          ))}
        </RadixTabs.List>
        {end}
      </div>
      {tabs.map((tab) => (
        <RadixTabs.Content key={tab.id} value={tab.id} className={css.tabPanel} tabIndex={-1}>
          {tab.id === value && children}
        </RadixTabs.Content>
      ))}
    </RadixTabs.Root>
  );
}

export const TooltipProvider = RadixTooltip.Provider;

/** A short text on hover and focus. What it says must not be needed to use the page. */
export function Tooltip({ text, keys, children, side = "bottom" }: { text: ReactNode; keys?: string; children: ReactElement; side?: "top" | "bottom" | "left" | "right" }) {
  return (
    <RadixTooltip.Root>
      <RadixTooltip.Trigger asChild>{children}</RadixTooltip.Trigger>
      <RadixTooltip.Portal>
        <RadixTooltip.Content className={css.tooltip} side={side} sideOffset={6} collisionPadding={8}>
          {text}
          {keys && <KeyHint keys={keys} />}
        </RadixTooltip.Content>
      </RadixTooltip.Portal>
    </RadixTooltip.Root>
  );
}

// Toasts

interface ToastEntry {
  id: number;
  text: ReactNode;
  hint?: ReactNode;
  role: "ok" | "bad" | "quiet";
  action?: { label: string; onClick: () => void };
}

let toasts: readonly ToastEntry[] = [];
let nextToast = 1;
const toastListeners = new Set<() => void>();

function setToasts(next: readonly ToastEntry[]): void {
  toasts = next;
  for (const each of toastListeners) each();
}

/** Tell that something was done, or was not: `toast("Run paused")`, `toast(problem)`. */
export function toast(what: ReactNode | Problem, options: { role?: "ok" | "bad" | "quiet"; action?: { label: string; onClick: () => void } } = {}): void {
  const failed = what instanceof Problem;
  const entry: ToastEntry = { id: nextToast++, text: failed ? what.detail : what, role: options.role ?? (failed ? "bad" : "ok") };
  if (failed && what.hint) entry.hint = what.hint;
  if (options.action) entry.action = options.action;
  setToasts([...toasts.slice(-3), entry]);
  setTimeout(() => dismiss(entry.id), entry.role === "bad" || entry.action ? 10_000 : 4_000);
}

function dismiss(id: number): void {
  if (toasts.some((each) => each.id === id)) setToasts(toasts.filter((each) => each.id !== id));
}

/** Where toasts appear; the shell has the only one. */
export function Toast() {
  const shown = useSyncExternalStore(
    (listener) => {
      toastListeners.add(listener);
      return () => toastListeners.delete(listener);
    },
    () => toasts,
  );
  return (
    <div className={css.toasts} role="status" aria-live="polite">
      {shown.map((each) => (
        <div key={each.id} className={css.toast} data-role={each.role}>
          <Icon name={each.role === "ok" ? "check" : each.role === "bad" ? "warning" : "info"} />
          <div className={css.toastText}>
            <span>{each.text}</span>
            {each.hint && <span className="soft">{each.hint}</span>}
          </div>
          {each.action && (
            <button
              type="button"
              className={css.toastAction}
              onClick={() => {
                each.action?.onClick();
                dismiss(each.id);
              }}
            >
              {each.action.label}
            </button>
          )}
          <button type="button" className={css.close} aria-label="Dismiss" onClick={() => dismiss(each.id)}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
