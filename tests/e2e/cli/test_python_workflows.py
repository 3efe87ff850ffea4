"""Workflows in Python files: `run`, `validate`, `graph`, `publish`, `worker --app` and `export`."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.command_line import InProcessCli
from tidemill.cli import main

FLOW = '''
import tidemill


@tidemill.task
def fetch(n: int) -> list[int]:
    return list(range(n))


@tidemill.task
def total(rows: list[int]) -> int:
    return sum(rows)


@tidemill.workflow
def child(n: int) -> int:
    return total(fetch(n))


@tidemill.workflow
def report(n: int) -> dict[str, int]:
    """Adds numbers."""
    return {"sum": child(n)}
'''


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_flow.py").write_text(FLOW)
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in ("my_flow", "other_flow"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name", ["my_flow.py", "my_flow.py:report", "my_flow:report"])
def test_a_file_or_a_module_is_run(inside: InProcessCli, name: str) -> None:
    ended = inside("run", name, "-i", "n=4", "--quiet")
    assert (ended.code, ended.err) == (main.OK, ""), ended
    assert json.loads(ended.out) == {"sum": 6}


def test_wrong_inputs_are_refused(inside: InProcessCli) -> None:
    ended = inside("run", "my_flow.py", "-i", "n=x", "--json")
    assert ended.code == main.REFUSED and ended.json["problems"][0]["code"] == "inputs_invalid"


def test_it_is_validated_drawn_published_and_worked_on(inside: InProcessCli) -> None:
    assert "report is valid: 1 node" in inside("validate", "my_flow.py").out
    assert "child" in inside("graph", "my_flow.py", "--format", "text").out
    assert inside("publish", "my_flow.py").code == main.OK
    run_id = inside("start", "report", "-i", "n=3").out.strip()
    from tidemill.cli.user_code import load_apps

    with tidemill.open(f"sqlite:///{Path.cwd()}/tidemill.db", functions=load_apps(["my_flow.py"]).functions) as mill:
        assert mill.result(run_id, timeout_s=60).outputs == {"sum": 3}


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("x = 1\n", "workflow_invalid", "other_flow.py holds no workflow"),
        (FLOW + "\n\n@tidemill.workflow\ndef second() -> int:\n    return total([1])\n", "workflow_invalid", "several"),
        (FLOW.replace("child(n)", "child(m)"), "workflow_invalid", "raised NameError"),
        (FLOW.replace("child(n)", "child(m=n)"), "arguments_invalid", "child(…)"),
        (FLOW.replace("child(n)}", "child(n) if n else 0}"), "value_not_known", "tidemill.when"),
        ("import nothing_there\n", "app_invalid", "nothing_there"),
    ],
)
def test_mistakes_in_a_file_are_refusals(inside: InProcessCli, text: str, code: str, words: str) -> None:
    Path("other_flow.py").write_text(text)
    ended = inside("run", "other_flow.py", "-i", "n=1", "--json")
    assert ended.code == main.REFUSED, ended
    (problem,) = ended.json["problems"]
    assert problem["code"] == code
    assert words in problem["message"] + problem["hint"]


def test_an_exception_of_the_function_is_shown_with_its_frames(inside: InProcessCli) -> None:
    helper = "\n\ndef lower(n):\n    return {}[n]\n\n\ndef upper(n):\n    return lower(7)\n"
    Path("other_flow.py").write_text(FLOW.replace("child(n)", "child(upper(n))") + helper)
    ended = inside("run", "other_flow.py", "-i", "n=1")
    assert ended.code == main.REFUSED and "raised KeyError: 7 [workflow_invalid]" in ended.err
    frames = re.findall(r"line \d+, in (\w+)", ended.err)
    assert frames == ["report", "upper", "lower"] and "\nKeyError: 7\n" in ended.err
    found = inside("run", "other_flow.py", "--json")
    assert found.err == "" and found.json["problems"][0]["code"] == "workflow_invalid"


def test_a_text_that_looks_like_a_number_is_refused_with_what_to_write(inside: InProcessCli) -> None:
    Path("other_flow.py").write_text(FLOW.replace("n: int", "n: str"))
    hint = """to pass a text: -i 'n="123"'"""
    for verb in ("run", "verify"):
        ended = inside(verb, "other_flow.py", "-i", "n=123")
        assert ended.code == main.REFUSED and f"→ {hint}" in ended.err
    assert (
        inside("run", "other_flow.py", "-i", "n=true", "--json").json["problems"][0]["hint"].endswith("""'n="true"'""")
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [("my_flw.py", "file_missing"), ("my_flow:nothing", "app_unknown"), ("no_module:flow", "app_unknown")],
)
def test_what_is_not_there(inside: InProcessCli, name: str, code: str) -> None:
    ended = inside("run", name, "--json")
    assert ended.code == main.REFUSED and ended.json["problems"][0]["code"] == code


@pytest.mark.parametrize("form", ["yaml", "json", "python"])
def test_exports_have_one_digest(inside: InProcessCli, form: str) -> None:
    digest = inside("validate", "my_flow.py", "--json").json["digest"]
    assert inside("publish", "my_flow.py").code == main.OK
    ending = {"python": "py"}.get(form, form)
    prints = "`tidemill export child` prints it"
    hints = {"my_flow.py": "`tidemill publish my_flow.py` does so", "report": prints, "report@1": prints}
    for source, hint in hints.items():
        ended = inside("export", source, "--as", form)
        note = f"It starts workflows that must be published, too: child ({hint}).\n"
        assert (ended.code, ended.err) == (main.OK, note if form == "json" else ""), ended
        assert form == "json" or ended.out.startswith(f"# {note}")
        file = Path(f"other_flow.{ending}")
        file.write_text(ended.out)
        sys.modules.pop("other_flow", None)
        assert inside("validate", str(file), "--json").json["digest"] == digest
    alone = inside("export", "child", "--as", form)
    assert (alone.err, alone.out.count("published, too")) == ("", 0)


def test_an_export_of_nothing_is_refused(inside: InProcessCli) -> None:
    assert inside("publish", "my_flow.py").code == main.OK
    ended = inside("export", "nothing")
    assert ended.code == main.REFUSED and "workflow_unknown" in ended.err
    Path("bad.yaml").write_text("name: x\nnods: []\n")
    ended = inside("export", "bad.yaml")
    assert ended.code == main.REFUSED and "unknown_key" in ended.err
