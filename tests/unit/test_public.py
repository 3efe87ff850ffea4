"""The public names: complete, lazy, and cheap to import."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
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


@pytest.mark.parametrize(
    ("name", "meant"), [("flow", "workflow"), ("dag", "workflow"), ("step", "task"), ("opne", "open"), ("whne", "when")]
)
def test_a_name_that_is_not_there_is_told_what_was_meant(name: str, meant: str) -> None:
    with pytest.raises(AttributeError, match=f"did you mean `{meant}`"):
        getattr(tidemill, name)
    assert not hasattr(tidemill, "_flow")


def test_arguments_and_statements_that_are_not_there_are_told_what_was_meant() -> None:
    with pytest.raises(TypeError, match=r"'workers': did you mean `concurrency`"):
        tidemill.open("memory://", workers=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'concurency': did you mean `concurrency`"):
        tidemill.aopen("memory://", concurency=4)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="async with"), tidemill.aopen("memory://"):  # type: ignore[attr-defined]
        pass


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
    public = {name: getattr(tidemill, name) for name in tidemill.__all__}
    plain = {bool, bytes, int, str, type(None), Any, Workflow}
    verbs = {name: value for name, value in vars(AsyncTidemill).items() if not name.startswith("_")}
    assert len(verbs) > 50
    for name in set(verbs) - {"register"}:
        function: Any = inspect.unwrap(verbs[name])
        # Only what is returned: types of arguments may be imported for type checkers alone.
        answer = type("Answer", (), {"__annotations__": {"it": function.__annotations__["return"]}})
        # Some are imported for type checkers alone.
        found = get_type_hints(answer, function.__globals__, public)["it"]
        assert parts_of(found) - plain <= set(public.values()), name


def parts_of(hint: Any) -> set[Any]:
    """The classes that an annotation is made of, without containers."""
    parts = get_args(hint)
    return {part for each in parts for part in parts_of(each)} if parts else {hint}
