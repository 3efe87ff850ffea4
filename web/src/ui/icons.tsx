// A handful of icons on a 16 px grid. They are decoration: the word stands beside them, or in the label of the button.
import type { ReactNode, SVGProps } from "react";

export type IconName = keyof typeof PATHS;

const PATHS = {
  check: <path d="m3.5 8.5 3 3 6-7" />,
  close: <path d="m4 4 8 8M12 4l-8 8" />,
  search: <><circle cx="7" cy="7" r="4" /><path d="m10 10 3.5 3.5" /></>,
  "chevron-down": <path d="m4 6 4 4 4-4" />,
  "chevron-up": <path d="m4 10 4-4 4 4" />,
  "chevron-right": <path d="m6 4 4 4-4 4" />,
  "chevron-left": <path d="m10 4-4 4 4 4" />,
  copy: <><rect x="5.5" y="5.5" width="8" height="8" rx="1.5" /><path d="M3.5 10.5h-1v-8h8v1" /></>,
  more: <><circle cx="3.5" cy="8" r=".9" /><circle cx="8" cy="8" r=".9" /><circle cx="12.5" cy="8" r=".9" /></>,
  sun: <><circle cx="8" cy="8" r="2.8" /><path d="M8 1.5v1.6M8 12.9v1.6M1.5 8h1.6M12.9 8h1.6M3.4 3.4l1.1 1.1M11.5 11.5l1.1 1.1M12.6 3.4l-1.1 1.1M4.5 11.5l-1.1 1.1" /></>,
  moon: <path d="M13 9.6A5.6 5.6 0 0 1 6.4 3a5.6 5.6 0 1 0 6.6 6.6Z" />,
  screen: <><rect x="2" y="3" width="12" height="8" rx="1" /><path d="M6 13.5h4" /></>,
  keyboard: <><rect x="1.5" y="4" width="13" height="8.5" rx="1.5" /><path d="M4 7h.01M6.7 7h.01M9.3 7h.01M12 7h.01M5 10h6" /></>,
  runs: <path d="M2.5 4h1M6 4h7.5M2.5 8h1M6 8h7.5M2.5 12h1M6 12h7.5" />,
  approvals: <><circle cx="6" cy="5" r="2.5" /><path d="M1.8 13.5c0-2.5 1.8-4 4.2-4 1 0 1.8.2 2.5.7M9.5 12l1.7 1.7L14.5 10" /></>,
  workflows: <><rect x="1.8" y="5.8" width="4.4" height="4.4" rx="1" /><rect x="9.8" y="1.8" width="4.4" height="4.4" rx="1" /><rect x="9.8" y="9.8" width="4.4" height="4.4" rx="1" /><path d="M6.2 8h1.5M9.8 4H7.7v8h2.1" /></>,
  workers: <><rect x="2" y="2.5" width="12" height="4.5" rx="1" /><rect x="2" y="9" width="12" height="4.5" rx="1" /><path d="M4.6 4.75h.01M4.6 11.25h.01" /></>,
  "dead-letters": <><path d="M2 4h12v8.5H2zM2.3 4.4 8 9l5.7-4.6" /></>,
  play: <path d="M5 3.2v9.6L12.5 8Z" />,
  pause: <path d="M5.5 3.5v9M10.5 3.5v9" />,
  stop: <rect x="4" y="4" width="8" height="8" rx="1" />,
  retry: <path d="M12.8 6.2A5.2 5.2 0 1 0 13.2 9M13.3 2.8v3.6H9.7" />,
  undo: <path d="M6 3 2.8 6.2 6 9.4M3 6.2h6.2a3.4 3.4 0 0 1 0 6.8H7" />,
  fork: <><circle cx="4" cy="3.6" r="1.6" /><circle cx="12" cy="3.6" r="1.6" /><circle cx="8" cy="12.4" r="1.6" /><path d="M4 5.2c0 2.6 4 2.4 4 5.6M12 5.2c0 2.6-4 2.4-4 5.6" /></>,
  edit: <path d="M3 13h2.2l7.5-7.5-2.2-2.2L3 10.8Z" />,
  skip: <path d="M3 3.5v9l6-4.5ZM12.5 3.5v9" />,
  signal: <><path d="M3 8a5 5 0 0 1 10 0M5.4 8.6a2.6 2.6 0 0 1 5.2 0" /><circle cx="8" cy="11" r=".9" /></>,
  link: <path d="M6.8 9.2a2.6 2.6 0 0 0 3.7 0l2-2a2.6 2.6 0 0 0-3.7-3.7l-.8.8M9.2 6.8a2.6 2.6 0 0 0-3.7 0l-2 2a2.6 2.6 0 0 0 3.7 3.7l.8-.8" />,
  external: <path d="M9.5 2.5h4v4M13.5 2.5 7.5 8.5M11.5 9.5v4h-9v-9h4" />,
  filter: <path d="M2 3.5h12L9.5 8.7v4.3l-3-1.5V8.7Z" />,
  plus: <path d="M8 3v10M3 8h10" />,
  minus: <path d="M3 8h10" />,
  info: <><circle cx="8" cy="8" r="6" /><path d="M8 7.3v3.7M8 5h.01" /></>,
  warning: <path d="M8 2.2 14.5 13.5h-13ZM8 6.4v3.2M8 11.6h.01" />,
  user: <><circle cx="8" cy="5.5" r="2.7" /><path d="M2.8 13.7c.5-2.8 2.5-4.2 5.2-4.2s4.7 1.4 5.2 4.2" /></>,
  "sign-out": <path d="M9.5 2.5h-6v11h6M6.5 8h7.5M11.5 5.2 14.2 8l-2.7 2.8" />,
  menu: <path d="M2.5 4h11M2.5 8h11M2.5 12h11" />,
  download: <path d="M8 2.5v8M4.8 7.5 8 10.7l3.2-3.2M2.5 13.5h11" />,
  eye: <><path d="M1.5 8S4 3.8 8 3.8 14.5 8 14.5 8 12 12.2 8 12.2 1.5 8 1.5 8Z" /><circle cx="8" cy="8" r="1.9" /></>,
  clock: <><circle cx="8" cy="8" r="6" /><path d="M8 4.5V8l2.4 1.6" /></>,
  "arrow-right": <path d="M2.5 8h11M9.5 4l4 4-4 4" />,
  "arrow-left": <path d="M13.5 8h-11M6.5 4l-4 4 4 4" />,
  "fit": <path d="M2.5 6V2.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10" />,
} satisfies Record<string, ReactNode>;

export function Icon({ name, size = 16, ...rest }: { name: IconName; size?: number } & Omit<SVGProps<SVGSVGElement>, "name">) {
  return (
    <svg
      viewBox="0 0 16 16"
      width={size}
      height={size}
      fill="none"
      stroke="currentColor"
      strokeWidth={1.5}
      strokeLinecap="round"
      strokeLinejoin="round"
      aria-hidden="true"
      focusable="false"
      {...rest}
    >
      {PATHS[name]}
    </svg>
  );
}
