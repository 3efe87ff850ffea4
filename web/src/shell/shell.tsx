// What is around every page: navigation, palette, help, and what holds for all of them.
import { useQuery, useQueryClient } from "@tanstack/react-query";
import { Link, Navigate, Outlet, useNavigate, useRouterState } from "@tanstack/react-router";
import { useEffect, useState } from "react";
import { api, Problem, setCsrfToken, useReached } from "../api/client";
import { keys, useMay, useMe } from "../api/queries";
import type { Page } from "../api/types";
import { Button, ErrorState, Icon, IconButton, KeyHint, Menu, Toast, toast, useShortcut, type IconName } from "../ui";
import { Help } from "./help";
import { Palette } from "./palette";
import { PLACES, type Place } from "./places";
import css from "./shell.module.css";
import { setTheme, useTheme, type Theme } from "./theme";

const COUNT_MAX = 99;

/** How many approvals wait for the caller. */
function useMyApprovals(): string {
  const may = useMay("approvals:read");
  const { data } = useQuery<Page<unknown>>({
    queryKey: [...keys.approvals, "mine-count"],
    queryFn: ({ signal }) => api<Page<unknown>>("GET", "/approvals", { query: { mine: true, limit: COUNT_MAX }, signal }),
    enabled: may,
    refetchInterval: 15_000,
    retry: false,
  });
  if (!data?.items.length) return "";
  return data.next ? `${COUNT_MAX}+` : String(data.items.length);
}

function GoTo({ keys: chord, label, to }: { keys: string; label: string; to: Place["to"] }) {
  const navigate = useNavigate();
  useShortcut(chord, `Go to ${label.toLowerCase()}`, () => void navigate({ to }), "Go");
  return null;
}

const FULL_PAGES = ["/sign-in", "/decide/"];

export function Shell() {
  const path = useRouterState({ select: (state) => state.location.pathname });
  const full = FULL_PAGES.some((each) => path.startsWith(each));
  return (
    <>
      <a href="#main" className={css.skip} onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>
        Skip to the content
      </a>
      <Reach />
      {full ? (
        <main id="main" className={css.full} tabIndex={-1}>
          <Outlet />
        </main>
      ) : (
        <Frame />
      )}
      <Toast />
    </>
  );
}

function Frame() {
  const [palette, setPalette] = useState(false);
  const [help, setHelp] = useState(false);
  const [menu, setMenu] = useState(false);
  const me = useMe();
  const waiting = useMyApprovals();
  const path = useRouterState({ select: (state) => state.location.pathname });
  useEffect(() => setMenu(false), [path]);
  useShortcut("mod+k", "Open the palette", () => setPalette(true));
  useShortcut("?", "Show the shortcuts", () => setHelp(true));
  useShortcut("/", "Search", focusSearch);
  const refused = me.error instanceof Problem && me.error.isForbidden ? me.error : null;
  if (me.error instanceof Problem && me.error.isUnauthenticated) {
    return <Navigate to="/sign-in" search={{ next: location.pathname + location.search }} replace />;
  }
  return (
    <div className={css.frame}>
      <header className={css.top}>
        <IconButton icon="menu" label="Navigation" aria-expanded={menu} aria-controls="navigation" onClick={() => setMenu(!menu)} />
        <Brand />
        <IconButton icon="search" label="Find or do" className={css.topSearch} onClick={() => setPalette(true)} />
      </header>
      <div id="navigation" className={css.side} data-open={menu || undefined}>
        <Brand />
        <button type="button" className={css.find} onClick={() => setPalette(true)}>
          <Icon name="search" />
          <span>Jump to …</span>
          <KeyHint keys="mod+k" />
        </button>
        <nav aria-label="Main" className={css.nav}>
          {PLACES.map((group) => (
            <div key={group.heading} className={css.group}>
              <div className={css.heading}>{group.heading}</div>
              <ul>
                {group.places.map((place) => (
                  <li key={place.to}>
                    <Link to={place.to} className={css.place} activeProps={{ "aria-current": "page" }}>
                      <Icon name={place.icon} />
                      <span>{place.label}</span>
                      {place.to === "/approvals" && waiting && (
                        <span className={css.count} aria-label={`${waiting} wait for you`}>
                          {waiting}
                        </span>
                      )}
                    </Link>
                    <GoTo keys={place.keys} label={place.label} to={place.to} />
                  </li>
                ))}
              </ul>
            </div>
          ))}
        </nav>
        <div className={css.foot}>
          <Account />
          <ThemeButton />
          <IconButton icon="keyboard" label="Shortcuts" keys="?" onClick={() => setHelp(true)} />
        </div>
      </div>
      {menu && <div className={css.shade} onClick={() => setMenu(false)} />}
      <main id="main" className={css.main} tabIndex={-1}>
        {refused ? <ErrorState error={refused} what="this store" /> : <Outlet />}
      </main>
      {palette && <Palette onClose={() => setPalette(false)} onHelp={() => setHelp(true)} />}
      {help && <Help onClose={() => setHelp(false)} />}
    </div>
  );
}

function Brand() {
  return (
    <Link to="/runs" className={css.brand}>
      <svg viewBox="0 0 32 32" width={22} height={22} aria-hidden="true">
        <rect width="32" height="32" rx="7" fill="var(--accent)" />
        <circle cx="16" cy="16" r="8.5" fill="none" stroke="var(--on-accent)" strokeWidth="2.5" />
        <path d="M16 5v22M5 16h22M8.2 8.2l15.6 15.6M23.8 8.2 8.2 23.8" stroke="var(--on-accent)" strokeWidth="1.8" strokeLinecap="round" />
      </svg>
      Tidemill
    </Link>
  );
}

/** Focus the search field of the page; without one, nothing happens. */
function focusSearch(): void {
  const field = document.querySelector<HTMLElement>("[data-search], main input[type=search]");
  field?.focus();
  if (field instanceof HTMLInputElement) field.select();
}

const THEMES: { theme: Theme; label: string; icon: IconName }[] = [
  { theme: "system", label: "Like the system", icon: "screen" },
  { theme: "light", label: "Light", icon: "sun" },
  { theme: "dark", label: "Dark", icon: "moon" },
];

function ThemeButton() {
  const theme = useTheme();
  const icon = THEMES.find((each) => each.theme === theme)?.icon ?? "screen";
  return (
    <Menu
      align="end"
      trigger={
        <button type="button" className={css.footButton} aria-label="Theme">
          <Icon name={icon} />
        </button>
      }
      items={THEMES.map((each) => ({ label: each.label, checked: each.theme === theme, onSelect: () => setTheme(each.theme) }))}
    />
  );
}

function Account() {
  const { data: me } = useMe();
  const client = useQueryClient();
  const navigate = useNavigate();
  if (!me) return <span className={css.account} />;
  // Without a session the page is open, or a proxy signs in.
  const session = me.csrf_token !== "";
  const signOut = async () => {
    try {
      await api("DELETE", "/session");
    } catch (error) {
      if (error instanceof Problem && !error.isUnauthenticated) return toast(error);
    }
    setCsrfToken("");
    await navigate({ to: "/sign-in" });
    client.clear();
  };
  return (
    <Menu
      trigger={
        <button type="button" className={css.account} title={`${me.name} · ${me.tenant}`}>
          <Icon name="user" />
          <span className={css.accountText}>
            <span className="truncate">{me.name}</span>
            <span className={`truncate ${css.tenant}`}>{me.tenant}</span>
          </span>
        </button>
      }
      items={[
        { heading: me.roles.length ? `Roles: ${me.roles.join(", ")}` : "No roles" },
        session
          ? { label: "Sign out", icon: "sign-out", onSelect: () => void signOut() }
          : { label: "No sign-in", hint: "The server is open for this machine.", icon: "info", disabled: true, onSelect: () => undefined },
      ]}
    />
  );
}

/** Says that the server does not answer, and asks it until it does. */
function Reach() {
  const reached = useReached();
  const client = useQueryClient();
  const [asking, setAsking] = useState(false);
  const ask = async () => {
    setAsking(true);
    try {
      await api("GET", "/me");
    } catch {
      // A refusal is an answer, too.
    }
    setAsking(false);
  };
  useEffect(() => {
    if (reached) return;
    const timer = setInterval(() => void ask(), 3_000);
    return () => {
      clearInterval(timer);
      void client.invalidateQueries();
    };
  }, [reached, client]);
  return (
    <div role="status" aria-live="polite">
      {!reached && (
        <div className={css.offline}>
          <Icon name="warning" />
          <span>The server cannot be reached. What you see may be old; the page reconnects by itself.</span>
          <Button size="s" busy={asking} onClick={() => void ask()}>
            Try now
          </Button>
        </div>
      )}
    </div>
  );
}
