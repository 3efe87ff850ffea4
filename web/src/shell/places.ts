import type { IconName } from "../ui";

export interface Place {
  to: "/runs" | "/approvals" | "/workflows" | "/workers" | "/dead-letters";
  label: string;
  icon: IconName;
  keys: string;
}

/** Pages of the navigation, in groups. */
export const PLACES: { heading: string; places: Place[] }[] = [
  {
    heading: "Work",
    places: [
      { to: "/runs", label: "Runs", icon: "runs", keys: "g r" },
      { to: "/approvals", label: "Approvals", icon: "approvals", keys: "g a" },
      { to: "/dead-letters", label: "Dead letters", icon: "dead-letters", keys: "g d" },
    ],
  },
  { heading: "Build", places: [{ to: "/workflows", label: "Workflows", icon: "workflows", keys: "g w" }] },
  { heading: "Operate", places: [{ to: "/workers", label: "Workers", icon: "workers", keys: "g q" }] },
];
export const ALL_PLACES = PLACES.flatMap((group) => group.places);
