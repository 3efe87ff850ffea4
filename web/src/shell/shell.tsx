import { Link, Outlet } from "@tanstack/react-router";
import { Toast } from "../ui";

export function Shell() {
  return (
    <>
      <nav aria-label="Main">
        <Link to="/runs">Runs</Link> <Link to="/approvals">Approvals</Link> <Link to="/workflows">Workflows</Link> <Link to="/workers">Workers</Link>{" "}
        <Link to="/dead-letters">Dead letters</Link>
      </nav>
      <main>
        <Outlet />
      </main>
      <Toast />
    </>
  );
}
