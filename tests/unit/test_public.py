"""The public names: complete, lazy, and cheap to import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version

import pytest

import tidemill


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
