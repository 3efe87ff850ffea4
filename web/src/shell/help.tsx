import { Dialog, KeyHint, useShortcuts } from "../ui";
import css from "./help.module.css";

/** What the keyboard does here, from what the page has announced. */
export function Help({ onClose }: { onClose: () => void }) {
  const groups = new Map<string, Map<string, string>>();
  for (const each of useShortcuts()) {
    const group = groups.get(each.group) ?? new Map<string, string>();
    groups.set(each.group, group.set(each.keys, each.description));
  }
  return (
    <Dialog open onOpenChange={onClose} title="Shortcuts" size="m">
      <div className={css.groups}>
        {[...groups].map(([name, shortcuts]) => (
          <section key={name}>
            <h3>{name}</h3>
            <dl>
              {[...shortcuts].map(([keys, description]) => (
                <div key={keys} className={css.line}>
                  <dt>{description}</dt>
                  <dd>
                    <KeyHint keys={keys} />
                  </dd>
                </div>
              ))}
            </dl>
          </section>
        ))}
      </div>
    </Dialog>
  );
}
