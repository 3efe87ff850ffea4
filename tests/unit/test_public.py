"""The public names: complete, lazy, and cheap to import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import tidemill
from tidemill.async_client import AsyncTidemill
from tidemill.kernel.model import Workflow


def test_every_name_is_there() -> None:
    for name in [*tidemill.__all__, "open"]:
        assert getattr(tidemill, name) is not None
        assert name in dir(tidemill)
    assert tidemill.__version__ == version("tidemill")


@pytest.mark.parametrize(
    ("before", "now"), [("Return", "Done"), ("Pause", "Wait"), ("Asked", "ApprovalRequest"), ("Child", "ChildRun")]
)
def test_names_of_the_first_version_still_work(before: str, now: str) -> None:
    assert getattr(tidemill, before) is getattr(tidemill, now)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = tidemill.nothing


def test_a_star_import_leaves_the_builtin_open_alone() -> None:
    assert "open" not in tidemill.__all__
    assert callable(tidemill.open)


def test_importing_the_package_imports_nothing_else() -> None:
    code = "import sys, tidemill; print(*[name for name in sys.modules if name.startswith('tidemill')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.split() == ["tidemill"]


def test_type_checkers_do_not_see_the_lookup_of_names() -> None:
    """Otherwise every misspelt name of the package would pass them."""
    tree = ast.parse(Path(tidemill.__file__).read_text())
    (hidden,) = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == "__getattr__"]
    guards = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"]
    assert [hidden in guard.body for guard in guards] == [True]


def test_what_the_verbs_answer_is_public() -> None:
    """Callers can name the types in annotations of their own."""
    homes = {getattr(tidemill, name) for name in tidemill.__all__}
    plain = {None, bool, bytes, dict, int, list, str, tuple, type(None), Any, Workflow}
    for verb in (value for name, value in vars(AsyncTidemill).items() if not name.startswith("_")):
        answer = get_type_hints(inspect.unwrap(verb), localns={"AsyncIterator": AsyncIterator}).get("return")
        assert parts_of(answer) - plain <= homes, verb


def parts_of(hint: Any) -> set[Any]:
    """The classes that an annotation is made of."""
    if not get_args(hint):
        return {hint}
    return {part for each in get_args(hint) for part in parts_of(each)} - {AsyncIterator}
