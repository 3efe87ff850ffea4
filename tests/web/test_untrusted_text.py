"""Texts of strangers stay text: on every screen, with the server's policy switched off, none of the payloads runs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import Page, expect

from tests.web.conftest import NewPage, Watch
from tests.web.payloads import ADDRESSES, HANDLERS, PAYLOADS
from tests.web.screens import VIEWS, open_screen
from tests.web.server import Server

GROUP = 16
"""So many payloads stand in one text; addresses stand alone, since only their beginning counts."""
PLAIN = [each for each in PAYLOADS if each not in ADDRESSES]
TEXTS = [*("\n".join(PLAIN[place : place + GROUP]) for place in range(0, len(PLAIN), GROUP)), *ADDRESSES]
SUSPECT = """() => [...document.querySelectorAll('*')].flatMap(element => [...element.attributes]
  .filter(({name, value}) => /^on/i.test(name) || name === 'srcdoc' ||
    (['href', 'src', 'action', 'formaction', 'xlink:href', 'data'].includes(name)
      && /^[\\s\\x00-\\x1f]*(javascript|vbscript|data):/i.test(value)))
  .map(({name, value}) => `<${element.tagName} ${name}=${value.slice(0, 80)}>`))"""


def document() -> dict[str, Any]:
    """A workflow that says every text everywhere: in descriptions, inputs, logs, outputs, errors and questions."""
    joined = "\n".join(PAYLOADS)
    texts = {"over": "{{ inputs.texts }}"}
    asked = {
        "title": "{{ item[:150] }}",
        "description": "{{ item }}",
        "form": {
            "type": "object",
            "properties": {
                f"field{place}": {
                    "type": "string",
                    **dict.fromkeys(("title", "description"), f"{{{{ inputs.texts[{place}] }}}}"),
                    "enum": [f"{{{{ inputs.texts[{place}] }}}}", "other"],
                }
                for place in range(12)
            },
        },
    }
    return {
        "name": "untrusted",
        "description": joined[:1900],
        "inputs": {
            "type": "object",
            "properties": {
                text[:60]: {"type": "string", "title": text, "description": text, "default": text} for text in TEXTS
            },
        },
        "nodes": [
            {
                "id": "say",
                "type": "python",
                "map": texts,
                "config": {"function": "say", "args": {"text": "{{ item }}"}},
            },
            {
                "id": "refuse",
                "type": "python",
                "map": {**texts, "tolerate": 1000},
                "retry": {"max_attempts": 1},
                "config": {"function": "refuse", "args": {"text": "{{ item }}"}},
            },
            {"id": "all", "type": "value", "dependencies": ["say"], "config": {"all": "{{ inputs.texts }}"}},
            {"id": "ask", "type": "human", "dependencies": ["say", "refuse"], "map": texts, "config": asked},
        ],
    }


@pytest.fixture(scope="module")
def run_id(server: Server) -> Iterator[str]:
    server.publish(document())
    labels = {f"label{place}": text for place, text in enumerate(HANDLERS[:6])}
    run_id = server.start("untrusted", {"texts": TEXTS}, labels=labels, correlation_id=ADDRESSES[0])
    server.approval(run_id)
    refuse = {"function": "refuse", "args": {"text": "{{ inputs.text }}"}}
    server.publish({"name": "refused", "nodes": [{"id": "refuse", "type": "python", "config": refuse}]})
    for text in TEXTS:
        server.start("refused", {"text": text})
    yield run_id
    server.post(f"/runs/{run_id}/cancel", {"reason": TEXTS[0]})


@pytest.fixture
def unsafe_page(new_page: NewPage) -> Iterator[Page]:
    """A page without the server's policy, so that only its own care protects it."""
    page = new_page(bypass_csp=True)
    ran: list[str] = []
    page.expose_binding("pwned", lambda source, *arguments: ran.append(source["page"].url))
    yield page
    assert ran == []


def assert_plain(page: Page) -> None:
    assert page.evaluate(SUSPECT) == []


def test_a_careless_page_would_be_noticed(new_page: NewPage, server: Server, watch: Watch) -> None:
    watch.expected.append("404 (Not Found)")
    page = new_page(bypass_csp=True)
    ran: list[str] = []
    page.expose_binding("pwned", lambda source, *arguments: ran.append(source["page"].url))
    open_screen(page, server, "/runs")
    page.evaluate("text => { document.querySelector('main').innerHTML = text; }", HANDLERS[0])
    page.wait_for_timeout(500)
    assert ran and page.evaluate(SUSPECT)


@pytest.mark.parametrize("view", VIEWS)
def test_a_run_full_of_payloads(unsafe_page: Page, server: Server, run_id: str, view: str) -> None:
    for node in ("say", "refuse", "all", "ask"):
        open_screen(unsafe_page, server, f"/runs/{run_id}?view={view}&node={node}")
        assert_plain(unsafe_page)


def test_every_item_of_a_map(unsafe_page: Page, server: Server, run_id: str) -> None:
    for item, node in [(item, node) for item in range(len(TEXTS)) for node in ("say", "refuse")]:
        open_screen(unsafe_page, server, f"/runs/{run_id}?node={node}&item={item}")
        assert_plain(unsafe_page)


def test_lists_of_what_strangers_wrote(unsafe_page: Page, server: Server, run_id: str) -> None:
    for path in (
        "/runs",
        "/approvals?whose=all",
        "/workflows",
        "/workflows/untrusted",
        "/dead-letters",
        "/start/untrusted",
    ):
        open_screen(unsafe_page, server, path)
        assert_plain(unsafe_page)
        for _ in range(8):
            unsafe_page.mouse.wheel(0, 1500)
        assert_plain(unsafe_page)


def test_questions_of_strangers(unsafe_page: Page, server: Server, run_id: str) -> None:
    rows = server.get(f"/approvals?limit=200&query={quote(f'run:{run_id}')}")["items"]
    assert len(rows) == len(TEXTS)
    for row in rows:
        open_screen(unsafe_page, server, f"/approvals/{quote(row['approval_id'])}")
        assert_plain(unsafe_page)


def test_addresses_of_strangers(unsafe_page: Page, server: Server, watch: Watch) -> None:
    watch.expected += ["404", "400", "422", "401"]  # What the server answers to such names is on the console.
    for text in PAYLOADS[::4]:
        for path in (f"/runs?q={quote(text)}", f"/sign-in?next={quote(text)}", f"/runs/{quote(text, safe='')}"):
            unsafe_page.goto(server.url + path)
            expect(unsafe_page.get_by_role("main")).to_be_visible()
            unsafe_page.wait_for_timeout(100)
            assert_plain(unsafe_page)
