"""The names of functions: how they are given, collected, and turned into import paths."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from types import ModuleType

import pytest

import tidemill
from tests.handlers import crafts
from tidemill.cli.apps import load_apps
from tidemill.handlers.contract import Fail
from tidemill.handlers.functions import by_name, marked_in, path_of


@tidemill.function("loud")
def shout(text: str) -> str:
    return text.upper()


def test_a_mark_changes_nothing_about_a_function() -> None:
    assert shout("a") == "A" and shout.__name__ == "shout"


def test_functions_by_name() -> None:
    assert by_name(None) == {}
    assert by_name({"x": shout}) == {"x": shout}
    assert by_name([shout, crafts.add]) == {"loud": shout, "add": crafts.add}


def test_a_module_offers_what_is_marked() -> None:
    module = ModuleType("offering")
    module.__dict__.update(a=shout, b=crafts.add, c=3)
    assert marked_in(module) == {"loud": shout}


class Holder:
    @staticmethod
    def still() -> int:
        return 1


def test_the_import_path_of_a_function() -> None:
    assert path_of("x", crafts.add) == "tests.handlers.crafts:add"
    assert path_of("x", shout) == "tests.handlers.test_functions:shout"
    assert path_of("x", Holder.still) == "tests.handlers.test_functions:Holder.still"


@pytest.mark.parametrize("function", [lambda: 1, partial(crafts.add, a=1), dict[str, int]])
def test_what_has_no_import_path(function: object) -> None:
    assert callable(function)
    with pytest.raises(Fail) as refused:
        path_of("x", function)
    assert refused.value.code == "function_not_importable"


APP = """
import tidemill

@tidemill.function("loud")
def shout(text):
    return text.upper()

def plain():
    return 1
"""


@pytest.mark.parametrize(
    ("more", "names"),
    [("", {"loud"}), ("functions = [plain]", {"loud", "plain"}), ("functions = {'p': plain}", {"loud", "p"})],
)
def test_an_app_offers_what_is_marked_and_what_it_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str, names: set[str]
) -> None:
    name = f"app_of_{len(more)}"
    (tmp_path / f"{name}.py").write_text(APP + more + "\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert set(load_apps([name]).functions) == names
