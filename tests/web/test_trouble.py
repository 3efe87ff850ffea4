"""When something is wrong the page says what, and offers the next step: no blank page, no error on the console."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

from playwright.sync_api import Page, expect

from tests.fixtures.command_line import COMMAND, environment
from tests.web.conftest import NewPage, Watch
from tests.web.proxy import proxied
from tests.web.screens import VIEWS, open_screen
from tests.web.server import Server, served
from tests.web.steps import DEPTH

REACH = ("Failed to load resource", "ERR_CONNECTION_REFUSED", "ERR_EMPTY_RESPONSE", "ERR_INCOMPLETE_CHUNKED_ENCODING")
LOADED = "part => performance.getEntriesByType('resource').some(each => each.name.includes(part))"
NAMES = (
    "\N{SLIGHTLY SMILING FACE}\N{ZERO WIDTH JOINER}\N{FIRE}",
    "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627",
)


def create_key(folder: Path, *roles: str, name: str = "ada") -> str:
    words = ("keys", "create", name, *(each for role in roles for each in ("--role", role)), "--store")
    done = subprocess.run(
        [*COMMAND, *words, f"sqlite:///{folder}/web.db"], cwd=folder, env=environment(), capture_output=True, check=True
    )
    found = re.search(rb"tm_\S+", done.stdout)
    assert found, done.stdout
    return found[0].decode()


def sign_in(page: Page, server: Server, key: str) -> None:
    page.get_by_label("API key").fill(key)
    page.get_by_role("button", name="Sign in").click()


def test_sign_in_with_a_key(new_page: NewPage, tmp_path: Path, watch: Watch) -> None:
    watch.expected.append("401 (Unauthorized)")
    key = create_key(tmp_path, "admin")
    with served(tmp_path, key=key) as server:
        server.publish({"name": "hello", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        page = new_page()
        page.goto(f"{server.url}/workflows")
        page.get_by_role("link", name=re.compile("Sign in")).or_(
            page.get_by_role("button", name="Sign in")
        ).first.click()
        sign_in(page, server, "tm_wrong")
        expect(page.get_by_role("alert")).to_be_visible()
        sign_in(page, server, key)
        expect(page.get_by_role("link", name="hello").first).to_be_visible()
        stored = page.evaluate("JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.cookie")
        assert key not in stored and key[:12] not in stored
        cookies = page.context.cookies()
        assert cookies and all(each.get("httpOnly") for each in cookies)
        # An act needs the token against forged requests, and the page sends it.
        page.goto(f"{server.url}/start/hello")
        page.get_by_role("button", name="Start the run").click()
        expect(page.get_by_role("heading", name="hello", level=1)).to_be_visible()
        # The key ends while the page is open: it asks for another one, and then shows what was open.
        shown = page.url
        key_id = server.get("/keys")["items"][0]["id"]
        other = create_key(tmp_path, "admin", name="grace")
        subprocess.run(
            [*COMMAND, "keys", "revoke", key_id, "--store", f"sqlite:///{tmp_path}/web.db"],
            cwd=tmp_path,
            env=environment(),
            check=True,
            capture_output=True,
        )
        page.get_by_role("group", name="Actions", exact=True).get_by_role("button", name="Fork").click()
        expect(page.get_by_label("API key")).to_be_visible()
        sign_in(page, server, other)
        expect(page.get_by_role("heading", name="hello", level=1)).to_be_visible()
        expect(page).to_have_url(shown)
        page.close()


def test_a_viewer_sees_and_may_not_act(new_page: NewPage, tmp_path: Path, watch: Watch) -> None:
    watch.expected += ["401 (Unauthorized)", "403 (Forbidden)"]
    admin = create_key(tmp_path, "admin")
    viewer = create_key(tmp_path, "viewer", name="eve")
    with served(tmp_path, key=admin) as server:
        server.publish({"name": "hello", "nodes": [{"id": "a", "type": "fail", "config": {"message": "no"}}]})
        run_id = server.start("hello")
        server.until(run_id, "FAILED")
        page = new_page()
        page.goto(f"{server.url}/sign-in")
        sign_in(page, server, viewer)
        expect(page.get_by_role("navigation", name="Main")).to_be_visible()
        page.goto(f"{server.url}/runs/{run_id}")
        expect(page.get_by_text("Failed first at")).to_be_visible()
        acts = page.get_by_role("group", name="Actions", exact=True)
        expect(acts.get_by_role("button", name="Retry")).to_have_attribute("aria-disabled", "true")
        acts.get_by_role("button", name="Retry").click(force=True)
        expect(page.get_by_text("Your key has no permission for it (runs:act).").first).to_be_visible()
        # A menu of which nothing can be chosen is not offered.
        assert acts.get_by_role("button").all_inner_texts() == ["Retry", "Fix and continue", "Fork"]
        for act in acts.get_by_role("button").all():
            expect(act).to_have_attribute("aria-disabled", "true")
        page.goto(f"{server.url}/start/hello")
        expect(page.get_by_role("main")).to_contain_text(re.compile("permission|may not"))
        page.close()


def test_the_server_goes_and_comes_back(new_page: NewPage, tmp_path: Path, watch: Watch) -> None:
    watch.expected += REACH
    with served(tmp_path) as server:
        server.publish({"name": "hello", "nodes": [{"id": "a", "type": "signal", "config": {"name": "go"}}]})
        run_id = server.start("hello")
        page = new_page()
        open_screen(page, server, f"/runs/{run_id}")
        node = page.get_by_role("button", name=re.compile("^a ?, signal, waiting"))
        expect(node).to_be_visible()
        server.process.kill()
        expect(page.get_by_text("The server cannot be reached")).to_be_visible()
        expect(page.get_by_role("status").filter(has_text=re.compile("^Offline at event"))).to_be_visible()
        expect(node).to_be_visible()  # What was known stays.
        server.process.start()
        server.post(f"/runs/{run_id}/signal", {"name": "go"})
        expect(page.get_by_role("button", name=re.compile("^a ?, signal, succeeded"))).to_be_visible()
        page.close()


def test_pages_open_while_the_server_is_away(new_page: NewPage, tmp_path: Path, watch: Watch) -> None:
    watch.expected += (*REACH, "dynamically imported module", "ERR_FAILED")
    away = "The server cannot be reached"
    with served(tmp_path) as server:
        server.publish({"name": "hello", "nodes": [{"id": "a", "type": "signal", "config": {"name": "go"}}]})
        run_id = server.start("hello")
        page, early = new_page(), new_page()
        # One page has the code of the others; to another one the code of the workers never came.
        early.route(re.compile("/assets/fleet-"), lambda route: route.abort())
        open_screen(early, server, "/runs")
        open_screen(page, server, f"/runs/{run_id}")
        for each in ("history", "fleet"):
            page.wait_for_function(LOADED, arg=f"/assets/{each}-")
        server.process.kill()
        page.get_by_role("tab", name=re.compile("History")).click()
        expect(page.get_by_role("main")).to_contain_text(away)
        expect(page.get_by_role("heading", name="hello", level=1)).to_be_visible()
        for each in (page, early):
            each.get_by_role("link", name="Workers").click()
            expect(each.get_by_role("main")).to_contain_text(away)
        early.unroute_all()
        server.process.start()
        for each in (page, early):
            expect(each.get_by_role("heading", name="Workers and queues")).to_be_visible()
            each.close()


def test_there_is_no_such_run(page: Page, server: Server, watch: Watch) -> None:
    watch.expected.append("404 (Not Found)")
    for path in (
        "/runs/01a1e60d-0000-7000-8000-000000000000",
        "/workflows/nothing",
        "/approvals/nothing",
        "/start/nothing",
    ):
        page.goto(server.url + path)
        expect(page.get_by_role("main")).to_contain_text(
            re.compile("there is no|not found|unknown|no such", re.IGNORECASE)
        )
        assert (
            page.get_by_role("main").get_by_role("link").count()
            + page.get_by_role("main").get_by_role("button").count()
        )


def test_a_mistyped_address(page: Page, server: Server, watch: Watch) -> None:
    watch.expected.append("404 (Not Found)")  # The browser notes it of the page itself.
    for path in ("/runz", "/runs/a/b", "/nothing/at/all", "/runs/%"):
        page.goto(server.url + path)
        expect(page.get_by_role("main")).to_contain_text("There is no such page")
    page.get_by_role("button", name="All runs").click()
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()


def test_a_query_that_makes_no_sense(page: Page, server: Server, watch: Watch) -> None:
    watch.expected += ["400", "422"]
    page.goto(f"{server.url}/runs?q=statsu:failed")
    expect(page.get_by_role("alert").first).to_contain_text("statsu")


def test_a_value_200_levels_deep(page: Page, server: Server) -> None:
    server.publish({"name": "deep", "nodes": [{"id": "deep", "type": "python", "config": {"function": "deep"}}]})
    run_id = server.start("deep")
    server.until(run_id, "COMPLETED")
    open_screen(page, server, f"/runs/{run_id}?node=deep&tab=output")
    tree = page.get_by_role("tree").first
    expect(tree).to_be_visible()
    assert DEPTH == 200
    for view in VIEWS:
        open_screen(page, server, f"/runs/{run_id}?view={view}")


def test_a_long_error_leaves_room(page: Page, server: Server) -> None:
    text = f"{'x' * 2_000}\n{'word ' * 400}"
    nodes = [{"id": "refuse", "type": "python", "config": {"function": "refuse", "args": {"text": text}}}]
    server.publish({"name": "long-error", "nodes": nodes, "defaults": {"retry": {"max_attempts": 1}}})
    run_id = server.start("long-error", labels={f"label-{number}": "a value" for number in range(15)})
    server.until(run_id, "FAILED")
    open_screen(page, server, f"/runs/{run_id}")
    for shown in (
        page.get_by_role("button", name=re.compile("^refuse ?, python, failed")),
        page.get_by_role("complementary", name="Step refuse").get_by_role("region", name="Error"),
        page.get_by_role("button", name="Retry", exact=True),
    ):
        expect(shown).to_be_in_viewport()


def test_names_in_every_script(page: Page, server: Server) -> None:
    nodes = [
        {
            "id": "say",
            "type": "python",
            "map": {"over": list(NAMES)},
            "config": {"function": "say", "args": {"text": "{{ item }}"}},
        }
    ]
    server.publish({"name": "names", "description": " ".join(NAMES), "nodes": nodes})
    run_id = server.start("names", labels={"who": NAMES[1]})
    server.until(run_id, "COMPLETED")
    for item, name in enumerate(NAMES):
        open_screen(page, server, f"/runs/{run_id}?node=say&item={item}&tab=output")
        expect(page.get_by_role("complementary")).to_contain_text(name)
    open_screen(page, server, "/runs?q=workflow:names")
    expect(page.get_by_text(NAMES[1]).first).to_be_visible()


def test_a_run_that_is_deleted_meanwhile(new_page: NewPage, server: Server, watch: Watch) -> None:
    """What the server no longer has: the page keeps what it shows, or says that it is gone."""
    watch.expected.append("404 (Not Found)")
    page = new_page()
    run_id = server.start("parcel-dispatch")
    open_screen(page, server, f"/runs/{run_id}")
    page.route(
        f"**/api/v1/runs/{run_id}**",
        lambda route: route.fulfill(
            status=404,
            content_type="application/problem+json",
            body='{"status":404,"code":"run_unknown","detail":"there is no such run"}',
        ),
    )
    page.get_by_role("tab", name=re.compile("History")).click()
    expect(page.get_by_role("main")).to_contain_text(re.compile("no such run", re.IGNORECASE))


def test_below_a_path(new_page: NewPage, tmp_path: Path) -> None:
    with served(tmp_path, "--root-path", "/mill") as server, proxied(server.process.port, "/mill") as url:
        server.publish({"name": "hello", "nodes": [{"id": "a", "type": "value", "config": 1}]})
        run_id = server.start("hello")
        page = new_page()
        page.goto(f"{url}/mill/")
        page.get_by_role("link", name="hello").first.click()
        expect(page.get_by_role("button", name=re.compile("^a ?, value, succeeded"))).to_be_visible()
        assert f"/mill/runs/{run_id}" in page.url
        page.reload()
        expect(page.get_by_role("heading", name="hello", level=1)).to_be_visible()
        page.close()
