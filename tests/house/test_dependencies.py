"""What an installation brings: few packages, all of them declared, the same versions in every lock."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_PACKAGES_MAX = 24
"""What `pip install tidemill` brings beside the package itself."""
_PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+)(?: ; (.*?))? \\$", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9-]+")


def declared() -> set[str]:
    """The distributions that the package and its extras name."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [*project["dependencies"], *(each for extra in project["optional-dependencies"].values() for each in extra)]
    return {found[0].lower() for each in named if (found := _NAME.match(each))} - {"tidemill"}


def locked(name: str) -> dict[str, str]:
    """Versions by package, without what only other platforms need."""
    text = (ROOT / "requirements" / name).read_text()
    return {
        package: version
        for package, version, marker in _PINNED.findall(text)
        if not any(other in marker for other in ("== 'win32'", "== 'emscripten'"))
    }


def imported() -> set[str]:
    """The modules of others that the sources import."""
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"tidemill"}


def test_a_plain_installation_is_small() -> None:
    assert len(locked("run.txt").keys()) <= RUN_PACKAGES_MAX


@pytest.mark.parametrize("name", ["run.txt", "build.txt"])
def test_what_running_needs_is_part_of_the_development_set(name: str) -> None:
    assert locked(name) and locked(name).items() <= locked("dev.txt").items()


@pytest.mark.parametrize("name", ["run.txt", "build.txt", "dev.txt"])
def test_a_lock_has_hashes_and_names_no_registry(name: str) -> None:
    text = (ROOT / "requirements" / name).read_text()
    assert "://" not in text and "--index" not in text and "--find-links" not in text
    assert text.count("--hash=sha256:") >= len(locked(name))


def test_what_is_imported_is_declared_and_what_is_declared_is_imported() -> None:
    # Several packages share the name `opentelemetry`; their exporters are found by entry points.
    known = {**packages_distributions(), "opentelemetry": ["opentelemetry-sdk"]}
    used = {known[module][0].lower().replace("_", "-") for module in imported()}
    # Time zones are data, uvicorn finds its parser by itself, and four packages come as a part of one that is declared.
    parts = {
        "psycopg-pool": "psycopg",
        "pydantic": "fastapi",
        "pydantic-monty-client": "pydantic-monty",
        "starlette": "fastapi",
    }
    assert {parts.get(each, each) for each in used} == declared() - {
        "httptools",
        "opentelemetry-exporter-otlp-proto-http",
        "tzdata",
    }


CIRCULAR = ("jinja2", "jsonpath")
"""Packages whose parts import one another, and that two threads may import at once: a worker and its caller."""


def test_a_circular_package_is_imported_before_its_parts() -> None:
    """Else each of two threads imports a part, and one of them meets a module that is half there."""
    found = [
        f"{path}: {package}"
        for path in (ROOT / "src").rglob("*.py")
        for text in [path.read_text()]
        for package in CIRCULAR
        if (part := re.search(rf"^ *(from {package}\.|import {package}\.)", text, re.MULTILINE))
        and not re.search(rf"^ *(import {package}\b(?!\.)|from {package} import)", text[: part.start()], re.MULTILINE)
    ]
    assert not found, found
