"""Every house rule bites: a sample that breaks it is named, its neighbour that keeps it is not."""

from __future__ import annotations

import ast

import pytest

from tests.house import rules


@pytest.mark.parametrize(
    ("path", "lines", "broken"),
    [
        ("src/tidemill/kernel/decide/decide.py", 600, False),
        ("src/tidemill/kernel/decide/decide.py", 601, True),
        ("src/tidemill/stores/sqlite.py", 800, False),
        ("src/tidemill/stores/sqlite.py", 801, True),
        ("src/tidemill/kernel/events.py", 800, False),
        ("src/tidemill/engine/turn.py", 800, True),
    ],
)
def test_file_length(path: str, lines: int, broken: bool) -> None:
    assert bool(rules.too_long(path, "x = 1\n" * lines)) is broken


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_function_length(kind: str) -> None:
    header = f"class A:\n    {kind} f(self):\n"
    assert not rules.long_functions("a.py", ast.parse(header + "        x = 1\n" * 69))
    assert rules.long_functions("a.py", ast.parse(header + "        x = 1\n" * 70)) == ["a.py:2 f: 71 lines"]


@pytest.mark.parametrize(
    ("path", "broken"),
    [
        ("src/tidemill/kernel/utils.py", True),
        ("src/tidemill/core/turn.py", True),
        ("src/tidemill/_base.py", True),
        ("src/tidemill/engine/turn.py", False),
        ("src/tidemill/stores/sql/database.sql", False),
    ],
)
def test_vague_names(path: str, broken: bool) -> None:
    assert bool(rules.vague_names(path)) is broken


def test_a_folder_has_room_for_fifteen_modules() -> None:
    paths = [f"src/tidemill/engine/m{number}.py" for number in range(15)]
    assert not rules.crowded_folders([*paths, "src/tidemill/engine/__init__.py", "src/tidemill/engine/worker/w.py"])
    assert rules.crowded_folders([*paths, "src/tidemill/engine/turn.py"]) == [
        "src/tidemill/engine: 16 modules, at most 15"
    ]


@pytest.mark.parametrize(("stem", "broken"), [("lodging", True), ("pen", True), ("leases", False), ("masking", False)])
def test_banned_stems(stem: str, broken: bool) -> None:
    assert bool(rules.banned_stems(f"src/tidemill/engine/{stem}.py")) is broken


@pytest.mark.parametrize(("name", "broken"), [("Heart", True), ("_Peer", True), ("LeaseRenewer", False)])
def test_banned_classes(name: str, broken: bool) -> None:
    assert bool(rules.banned_classes("a.py", ast.parse(f"class {name}:\n    pass"))) is broken


def test_a_stem_stands_for_one_thing() -> None:
    assert rules.doubled_stems(["a/turn.py", "b/turn.py", "a/jobs.py", "b/jobs.py"]) == ["turn: 2 modules"]


def test_a_small_file_with_one_importer() -> None:
    sources = {"src/tidemill/a.py": "x = 1\n", "src/tidemill/b.py": "from tidemill.a import x\n" * 2}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    dead = ["src/tidemill/b.py: no importer"]
    assert rules.lonely_files(sources, trees) == ["src/tidemill/a.py: 1 lines and one importer", *dead]
    more = {f"src/tidemill/{name}__init__.py": "from tidemill import a\n" for name in ("", "engine/")}
    more |= {"src/tidemill/a.py": "x = 1\n"}
    assert not rules.lonely_files(more, {path: ast.parse(text) for path, text in more.items()})


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ('"""Whoever asks is told."""', True),
        ("x = 'nobody waits'", True),
        ("# of late", True),
        ("nobody = 1  # the worker waits", False),
    ],
)
def test_vague_words(text: str, broken: bool) -> None:
    assert bool(rules.vague_words("a.py", text)) is broken


@pytest.mark.parametrize(
    ("text", "broken"),
    [("the run goes on", True), ("Nobody is told", True), ("the run continues", False), ("go online", False)],
)
def test_vague_prose(text: str, broken: bool) -> None:
    assert bool(rules.vague_prose("a.md", text)) is broken


@pytest.mark.parametrize(("text", "broken"), [("x = 1", True), ("'''Why.'''\nx = 1", False), ("", False)])
def test_module_docstring(text: str, broken: bool) -> None:
    assert bool(rules.missing_docstring("a.py", ast.parse(text))) is broken


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "HACK"])
def test_leftovers(word: str) -> None:
    assert rules.leftovers("a.py", f"x = 1\n# {word}: later") == [f"a.py:2 # {word}: later"]
    assert not rules.leftovers("a.py", f"x = '{word}S and {word.lower()}'")


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("eval('1')", True),
        ("run = exec", True),
        ("import builtins\nbuiltins.eval('1')", True),
        ("program.eval(scope)", False),
        ("'eval(1)'", False),
    ],
)
def test_dynamic_code(text: str, broken: bool) -> None:
    assert bool(rules.dynamic_code("a.py", ast.parse(text))) is broken


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("import httpx2", True),
        ("import httpcore2._async", True),
        ("def f():\n    from httpx import AsyncClient", True),
        ("import urllib.request", True),
        ("from urllib import request", True),
        ("from http.client import HTTPConnection", True),
        ("from http import client", True),
        ("import requests, aiohttp", True),
        ("import socket\nsocket.create_connection(('a', 1))", True),
        ("await asyncio.open_connection('a', 1)", True),
        ("import urllib.parse, http", False),
        ("from tidemill.handlers.http.exchange import call_of", False),
        ("fetcher.client()", False),
    ],
)
def test_http_clients(text: str, broken: bool) -> None:
    assert bool(rules.http_clients("src/tidemill/handlers/a.py", ast.parse(text))) is broken
    assert not rules.http_clients("src/tidemill/net/transport.py", ast.parse(text))


@pytest.mark.parametrize(
    ("parts", "broken"),
    [
        (("see /", "work/main"), True),
        (("--find-links /", "opt/wheels/"), True),
        (("file://", "/opt/x"), True),
        (("https://pypi", ".org/simple/"), True),
        (("https://files.", "pythonhosted.org/x"), True),
        (("https://registry.", "npmjs.org/x"), True),
        (("https://pypi", ".org/project/tidemill"), False),
        (("queues/", "work/items"), False),
    ],
)
def test_addresses(parts: tuple[str, str], broken: bool) -> None:
    assert bool(rules.addresses("a.md", "".join(parts))) is broken


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("@pytest.mark.skip\ndef test_a(): assert f()", True),
        ("@mark.xfail(strict=True)\ndef test_a(): assert f()", True),
        ("redis = pytest.importorskip('redis')", True),
        ("def test_a(self): self.skipTest('no')", True),
        ("assert status == 'skip' and routing.skip(run)", False),
    ],
)
def test_skipping(text: str, broken: bool) -> None:
    assert bool(rules.skipping("a.py", ast.parse(text))) is broken


@pytest.mark.parametrize(
    ("body", "idle"),
    [
        ("f()", True),
        ("assert True", True),
        ("with lock: f()", True),
        ("look(1)", True),
        ("assert f()", False),
        ("with pytest.raises(ValueError): f()", False),
        ("agree(1)", False),
        ("nested(1)", False),
    ],
)
def test_idle_tests(body: str, idle: bool) -> None:
    shared = "def look(x): print(x)\ndef agree(x): assert x\ndef nested(x): agree(x)\n"
    trees = {"shared.py": ast.parse(shared), "test_a.py": ast.parse(f"async def test_a():\n    {body}\n")}
    assert bool(rules.idle_tests(trees)) is idle
