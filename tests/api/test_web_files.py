"""The files of the web page: where they are answered, how, and that the built ones keep what the page promises."""

from __future__ import annotations

import gzip
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI

from tests.docs.web_types import TYPES, head, web_build
from tidemill.api.app import create_app
from tidemill.api.web_files import FOLDER, INDEX, NOT_BUILT, WebFiles, add_web_files
from tidemill.bootstrap import engine_at

SCRIPT = "assets/index-abc123.js"
PAGES = ("/", "/runs", "/runs/018f-1", "/start/billing", "/approvals/x", "/decide/token", "/workflows", "/sign-in")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "assets").mkdir()
    (tmp_path / INDEX).write_text('<!doctype html><base href="/" /><script type="module" src="./assets/x.js"></script>')
    (tmp_path / SCRIPT).write_text("let plain")
    (tmp_path / f"{SCRIPT}.gz").write_bytes(gzip.compress(b"let plain"))
    (tmp_path / f"{SCRIPT}.br").write_bytes(b"as brotli")
    (tmp_path / "theme.js").write_text("let theme")
    (tmp_path / ".source").write_text("hash")
    return tmp_path


def app_with(folder: Path, root_path: str = "") -> FastAPI:
    app = create_app(engine_at("memory://", work=False), root_path=root_path)
    # In the place of the page that was built, if one was.
    app.router.default = app.router.not_found
    add_web_files(app, WebFiles(folder))
    return app


@asynccontextmanager
async def asking(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        yield http


async def test_pages_are_the_index_and_anything_else_is_a_problem(folder: Path) -> None:
    async with asking(app_with(folder)) as http:
        for path in PAGES:
            page = await http.get(path)
            assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        for path in ("/api/v1/nothing", "/api/v1", "/nothing", "/assets/gone.js", "/.source", "/runsx", "/index.html"):
            missing = await http.get(path)
            assert (missing.status_code, missing.json()["code"]) == (404, "path_unknown"), path
        wrong = await http.get("/api/v1/runs/x/cancel")
        assert (wrong.status_code, wrong.json()["code"]) == (405, "method_not_allowed")
        posted = await http.post("/runs", json={})
        assert posted.headers["content-type"] == "application/problem+json"


async def test_a_browser_with_a_wrong_address_is_shown_a_page(folder: Path) -> None:
    browser = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with asking(app_with(folder)) as http:
        for path in ("/runz", "/run/018f-1", "/assets/gone.js"):
            page = await http.get(path, headers=browser)
            assert (page.status_code, page.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
            assert "<script" in page.text and "nonce-" in page.headers["content-security-policy"]
        for path in ("/api/v1/runz", "/api/v1", "/api"):
            missing = await http.get(path, headers=browser)
            assert (missing.status_code, missing.json()["code"]) == (404, "path_unknown"), path


async def test_a_file_that_was_deleted_under_the_server_is_not_found(folder: Path) -> None:
    app = app_with(folder)
    shutil.rmtree(folder)
    async with asking(app) as http:
        for path in (f"/{SCRIPT}", "/theme.js", "/nothing"):
            for headers in ({}, {"Accept": "text/html"}, {"Accept-Encoding": "br"}):
                missing = await http.get(path, headers=headers)
                assert (missing.status_code, missing.json()["code"]) == (404, "path_unknown"), path


async def test_the_policy_allows_files_of_the_server_only(folder: Path) -> None:
    async with asking(app_with(folder)) as http:
        first, second = await http.get("/runs"), await http.get("/runs")
    policy = first.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self' 'nonce-" in policy
    assert not re.search(r"unsafe|\*|https?:|blob:", policy)
    nonce = re.search(r"'nonce-([^']+)'", policy)
    assert nonce is not None and f'nonce="{nonce[1]}"' in first.text
    assert nonce[1] not in second.text
    assert first.headers["cache-control"] == "no-store"
    assert (first.headers["x-frame-options"], first.headers["x-content-type-options"]) == ("DENY", "nosniff")


@pytest.mark.parametrize(
    ("accepted", "encoding"), [("gzip, br", "br"), ("gzip", "gzip"), ("br;q=0, gzip;q=0.5", "gzip"), ("", None)]
)
async def test_assets_are_compressed_and_kept_for_good(folder: Path, accepted: str, encoding: str | None) -> None:
    async with (
        asking(app_with(folder)) as http,
        http.stream("GET", f"/{SCRIPT}", headers={"accept-encoding": accepted}) as answer,
    ):
        body = b"".join([each async for each in answer.aiter_raw()])
        assert answer.headers.get("content-encoding") == encoding
        assert body == {"br": b"as brotli", None: b"let plain"}.get(encoding, (folder / f"{SCRIPT}.gz").read_bytes())
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert answer.headers["vary"] == "Accept-Encoding"
        assert answer.headers["content-type"].startswith("text/javascript")


async def test_files_without_a_hash_are_asked_for_again(folder: Path) -> None:
    async with asking(app_with(folder)) as http:
        first = await http.get("/theme.js")
        again = await http.get("/theme.js", headers={"if-none-match": first.headers["etag"]})
        head_only = await http.head("/theme.js")
    assert first.headers["cache-control"] == "no-cache"
    assert (again.status_code, again.content) == (304, b"")
    assert (head_only.status_code, head_only.content) == (200, b"")


async def test_it_works_below_a_path(folder: Path) -> None:
    """A proxy that takes its prefix off, one that does not, and an application that mounts this one."""
    async with asking(app_with(folder, root_path="/mill")) as http:
        for path in ("/runs", "/mill/runs", "/mill/", "/mill"):
            page = await http.get(path)
            assert '<base href="/mill/" />' in page.text, path
        assert (await http.get(f"/mill/{SCRIPT}")).text == "let plain"
    outer = FastAPI()
    outer.mount("/flows", app_with(folder))
    async with asking(outer) as http:
        assert '<base href="/flows/" />' in (await http.get("/flows/runs/1")).text
        assert (await http.get(f"/flows/{SCRIPT}")).text == "let plain"
        assert (await http.get("/flows/api/v1/nothing")).json()["code"] == "path_unknown"
        assert (await http.get("/flows/api/v1/me")).json()["name"] == "local"


async def test_a_strange_root_path_stays_text(folder: Path) -> None:
    async with asking(app_with(folder, root_path='/"><script>')) as http:
        assert '<base href="/&quot;&gt;&lt;script&gt;/" />' in (await http.get("/runs")).text


async def test_without_built_files_it_says_how_to_build_them(tmp_path: Path) -> None:
    async with asking(app_with(tmp_path / "none")) as http:
        page, service = await http.get("/"), await http.get("/api/v1/me")
    assert (page.text, page.headers["content-type"]) == (NOT_BUILT, "text/plain; charset=utf-8")
    assert "make web" in page.text
    assert service.status_code == 200


def built(name: str) -> str:
    path = FOLDER / name
    assert path.is_file(), "`make web` builds the page"
    return path.read_text()


def test_the_built_page_has_no_inline_script_and_no_foreign_host() -> None:
    index = built(INDEX)
    assert index.count("<base href=") == 1
    for attributes, text in re.findall(r"<script([^>]*)>(.*?)</script>", index, re.DOTALL):
        assert "src=" in attributes and not text.strip()
    assert not re.findall(r"\son\w+=|style=|https?://", index)
    named = re.findall(r'(?:src|href)="\./([^"]+)"', index)
    assert named and all((FOLDER / name).is_file() for name in named)
    for path in FOLDER.glob("assets/*.css"):
        assert not re.findall(r"@import|url\(\s*[\"']?(?:https?:)?//", path.read_text()), path.name


def test_the_built_page_is_compressed_and_of_these_sources() -> None:
    assert web_build().is_current(), "`make web` builds the page anew"
    for path in FOLDER.glob("assets/*.js"):
        if path.stat().st_size > 2_000:
            assert path.with_name(f"{path.name}.br").is_file() and path.with_name(f"{path.name}.gz").is_file()


def test_the_lock_names_no_registry() -> None:
    assert "resolved" not in (TYPES.parents[2] / "package-lock.json").read_text()


def test_the_pages_types_are_those_of_the_api() -> None:
    """`make web-types` writes them anew."""
    assert TYPES.read_text().startswith(head())
