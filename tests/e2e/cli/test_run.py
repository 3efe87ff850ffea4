"""`tidemill run` as scripts and people meet it."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from textwrap import dedent

import pytest

import tidemill
from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import InProcessCli, eventually, process, running
from tidemill.cli import main

STEPS = """
import asyncio, os, pathlib, subprocess, time

def loud(word):
    print("print:", word)
    os.system("echo system: " + word)
    return word

def stuck(marker):
    pathlib.Path(marker).touch()
    time.sleep(600)

def broken():
    try:
        int("x")
    except ValueError as error:
        raise RuntimeError("the books do not add up\\x1b[31m") from error

async def fine():
    await asyncio.sleep(0)
    return [1, 2]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "my_steps.py").write_text(STEPS)
    return tmp_path


def document(folder: Path, nodes: str, name: str = "flow.yaml", top: str = "") -> str:
    file = folder / name
    file.write_text(f"name: flow\n{top}nodes:\n{dedent(nodes)}")
    return str(file)


def test_json_is_one_object_and_nothing_else(folder: Path) -> None:
    file = document(
        folder,
        """
        - {id: loud, type: python, config: {function: "my_steps:loud", args: {word: hi}}}
        - {id: items, type: python, config: {function: "my_steps:fine"}, dependencies: [loud]}
        - {id: each, type: value, config: "{{ item }}", dependencies: [items], map: {over: "{{ items.output }}"}}
        - {id: odd, type: value, when: "false", dependencies: [loud]}
        """,
        top="outputs: {all: '{{ each.output }}'}\n",
    )
    ended = process("run", file, "--json")
    assert ended.code == main.OK
    view = ended.json
    assert ended.out.count("\n") == 1
    assert "print: hi" in ended.err and "system: hi" in ended.err
    assert view["status"] == "COMPLETED"
    assert view["outputs"] == {"all": [1, 2]}
    assert view["counter"] == 0
    assert isinstance(view["run_id"], str) and view["events"] > 10
    assert set(view["nodes"]) == {"loud", "items", "each", "odd"}
    assert view["nodes"]["loud"] == {
        "status": "COMPLETED",
        "visits": 1,
        "attempts": 1,
        "output": "hi",
        "error": None,
    }
    assert view["nodes"]["odd"]["status"] == "SKIPPED"
    assert process("run", file, "-q").json == {"all": [1, 2]}


def test_a_failure_names_the_node_the_code_the_place_and_the_cause(folder: Path) -> None:
    file = document(
        folder,
        """
        - {id: books, type: python, config: {function: "my_steps:broken"}, retry: {max_attempts: 2, backoff_ms: 10}}
        - {id: after, type: value, dependencies: [books]}
        """,
    )
    ended = process("run", file, cwd=folder)
    assert ended.code == main.FAILED
    assert "↻ books" in ended.out
    assert "○ after" in ended.out and "not reached: node books failed" in ended.out
    assert re.search(r"✗ books .* 2 attempts · .*the books do not add up\\x1b\[31m \[exception\]\n", ended.out)
    explained = ended.out[ended.out.index("✗ failed at books") :]
    assert "my_steps.py:17, in broken" in explained
    assert "cause  ValueError: invalid literal" in explained
    assert not re.search("^  (error|tries) ", explained, re.MULTILINE), "the row above has told it"
    shown = explained[explained.index("  Traceback (most recent call last):") :]
    assert 'my_steps.py", line 17, in broken' in shown and "tidemill" not in shown.partition("→")[0]
    assert ended.out.count("Traceback") == 2, "of the error and of its cause"


@pytest.mark.parametrize(
    ("nodes", "told"),
    [
        ("- {id: a, type: fail, config: {message: it rains}}", True),
        ("- {id: a, type: fail, config: {message: it rains}}\n- {id: b, type: value, dependencies: [a]}", True),
        (f"- {{id: a, type: fail, config: {{message: {'it rains ' * 30}}}}}", False),
        ('- {id: a, type: fail, config: {message: "it rains\\n\\ncats"}}', False),
    ],
)
def test_a_failure_is_told_once_where_its_row_tells_all(
    inside: InProcessCli, folder: Path, nodes: str, told: bool
) -> None:
    file = document(folder, nodes)
    ended = inside("run", file)
    assert ("\n  error  it rains" in ended.out) is not told
    assert not told or ended.out.count("it rains") == 1
    quiet = inside("run", file, "--quiet").err
    assert quiet.startswith("✗ failed at a\n  error  it rains"), "no row is printed"
    shown = inside("runs", "show", "@last").out
    assert shown.count("\nerror    a: it rains") == 1
    assert re.search(r"^✗  a  FAILED +<?\d+ ms$", shown, re.MULTILINE), "the facts above have it"


def test_functions_are_found_beside_the_document_and_in_the_working_directory(
    inside: InProcessCli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = '- {id: a, type: python, config: {function: "my_steps:fine"}}'
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    beside, apart = document(folder, nodes), document(elsewhere, nodes)
    before = list(sys.path)
    for file, here in ((beside, elsewhere), (apart, folder)):
        sys.modules.pop("my_steps", None)
        monkeypatch.chdir(here)
        assert inside("run", file, "-q").json == {"a": [1, 2]}
        assert sys.path == before
    given = Path(apart).read_bytes()
    assert process("run", "-", "-q", cwd=folder, given=given).json == {"a": [1, 2]}


def test_inputs_are_json_where_they_parse_as_json(inside: InProcessCli, folder: Path) -> None:
    file = document(folder, '- {id: a, type: value, config: "{{ inputs }}"}', top="outputs: '{{ a.output }}'\n")
    (folder / "many.json").write_text('{"m": [1], "n": "from the file", "big": 123456789012345678901234567890}')
    given = ("x=1", "y=true", "z=hello", 'w={"a": [null]}', "v=", "u=a=b", "t=007", 's="1"', "r=NaN")
    options = [part for text in given for part in ("--input", text)]
    ended = inside("run", file, *options, "-i", f"@{folder / 'many.json'}", "-i", "n=later wins", "--json")
    assert ended.code == main.OK
    assert ended.json["outputs"] == {
        "x": 1,
        "y": True,
        "z": "hello",
        "w": {"a": [None]},
        "v": "",
        "u": "a=b",
        "t": "007",
        "s": "1",
        "r": "NaN",
        "m": [1],
        "n": "later wins",
        "big": 123456789012345678901234567890,
    }


def interrupt(
    arguments: tuple[str, ...], folder: Path, number: signal.Signals = signal.SIGINT
) -> tuple[int, str, str, float]:
    """Start a run that hangs in a thread nothing can stop, interrupt it, and see how long it takes to end."""
    marker = folder / "marker"
    marker.unlink(missing_ok=True)
    file = document(
        folder,
        f"""
        - {{id: stuck, type: python, config: {{function: "my_steps:stuck", args: {{marker: "{marker}"}}}}}}
        - {{id: asleep, type: sleep, config: {{seconds: 600}}}}
        - {{id: never, type: value, dependencies: [stuck, asleep]}}
        """,
    )
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running("run", file, *arguments, text=True, **pipes) as child:
        eventually(marker.exists, "the function was not called")
        time.sleep(0.2)
        child.send_signal(number)
        began = time.monotonic()
        out, err = child.communicate()
        return child.returncode, out, err, time.monotonic() - began


@pytest.mark.parametrize(("number", "expected"), [(signal.SIGINT, main.INTERRUPTED), (signal.SIGTERM, main.TERMINATED)])
def test_an_interrupt_leaves_the_run_and_says_how_to_go_on(folder: Path, number: signal.Signals, expected: int) -> None:
    code, out, err, seconds = interrupt((), folder, number)
    assert (code, seconds < 30) == (expected, True)
    run_id = out.split()[2]
    assert f"→ detached: run {run_id} is not cancelled" in err
    assert f"→ cancel it: tidemill runs cancel {run_id}\n" in err
    again = re.search(r"→ resume it here: tidemill run (\S+) --resume (\S+)\n", err)
    assert again is not None and again[2] == run_id
    assert process("runs", "show", "@last", "--json").json["status"] == "RUNNING"
    assert process("runs", "cancel", run_id[:20]).code == main.OK


def test_a_second_interrupt_at_once_still_says_how_to_go_on(folder: Path) -> None:
    file = document(folder, "- {id: asleep, type: sleep, config: {seconds: 600}}")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with running("run", file, text=True, **pipes) as child:
        assert child.stdout is not None and " run " in child.stdout.readline()
        time.sleep(0.2)
        for _ in range(2):
            child.send_signal(signal.SIGINT)
            time.sleep(0.02)
        _, err = child.communicate()
    # The second may also end Python itself, while it closes.
    assert child.returncode in (main.INTERRUPTED, -signal.SIGINT)
    assert "→ detached: run " in err and "--resume" in err and "Traceback" not in err


def test_a_published_workflow_is_started_and_not_run(inside: InProcessCli, folder: Path) -> None:
    assert inside("publish", document(folder, "- {id: a, type: value}")).code == main.OK
    assert "→ to run the published workflow: tidemill start flow\n" in inside("run", "flow").err
    assert "→ to run the published workflow: tidemill start flow@1\n" in inside("run", "flow@1").err
    assert "tidemill start" not in inside("run", "other").err


def test_an_interrupt_cancels_a_run_that_nobody_could_carry_on(folder: Path) -> None:
    code, out, err, seconds = interrupt(("--store", "memory://"), folder)
    assert code == main.INTERRUPTED
    assert err == ""
    assert "⊘ cancelled after" in out
    assert [line.split()[1] for line in out.splitlines()[1:4]] == ["stuck", "asleep", "never"]
    assert seconds < 30


def test_without_a_terminal_printed_lines_are_whole_and_name_their_node(folder: Path) -> None:
    (folder / "many_lines.py").write_text(
        "def talk(name):\n    for at in range(300):\n        print('working on', name, at)\n    print('end', end='')\n"
    )
    file = document(
        folder,
        """
        - {id: one, type: python, config: {function: "many_lines:talk", args: {name: a}}}
        - {id: two, type: python, config: {function: "many_lines:talk", args: {name: b}}}
        """,
    )
    lines = process("run", file, "--key", "a key of words").out.splitlines()
    for node, name in (("one", "a"), ("two", "b")):
        expected = [f"[{node}] working on {name} {at}" for at in range(300)] + [f"[{node}] end"]
        assert [line for line in lines if line.startswith(f"[{node}]")] == expected
    assert any(line.startswith("✓ two") for line in lines)


def test_an_interrupt_still_prints_the_object(folder: Path) -> None:
    code, out, err, _ = interrupt(("--json", "--store", "memory://"), folder)
    assert (code, err) == (main.INTERRUPTED, "")
    view = json.loads(out)
    assert view["status"] == "CANCELLED"
    assert {node["status"] for node in view["nodes"].values()} == {"CANCELLED"}
    code, out, err, _ = interrupt(("--json",), folder)
    assert (code, json.loads(out)["status"]) == (main.INTERRUPTED, "RUNNING")
    assert "→ detached: " in err


def test_a_failed_run_does_not_wait_for_a_function_that_goes_on(folder: Path) -> None:
    marker = folder / "marker"
    file = document(
        folder,
        f"""
        - {{id: stuck, type: python, config: {{function: "my_steps:stuck", args: {{marker: "{marker}"}}}}}}
        - {{id: no, type: fail}}
        """,
    )
    began = time.monotonic()
    ended = process("run", file)
    assert ended.code == main.FAILED
    assert "✗ failed at no" in ended.out
    assert time.monotonic() - began < 40


def test_a_key_means_one_run(folder: Path) -> None:
    nodes = """
        - {id: loud, type: python, config: {function: "my_steps:loud", args: {word: "{{ inputs.word }}"}}}
        """
    file = document(folder, nodes, top="inputs: {type: object, properties: {word: {type: string}, n: {default: 1}}}\n")
    first, again = (process("run", file, "--key", "monday", "-i", "word=hi") for _ in range(2))
    assert first.code == again.code == main.OK
    assert "flow@1  run monday" in first.out and "[loud] print: hi" in first.out
    assert "flow@1  run monday" in again.out and "✓ loud" in again.out and "print: hi" not in again.out
    other = process("run", file, "--key", "monday", "-i", "word=ho", "--json")
    assert (other.code, other.json["problems"][0]["code"]) == (main.REFUSED, "key_reused")
    both = process("run", file, "--key", "monday", "--resume", "monday")
    assert both.code == main.REFUSED and "drop one of them" in both.err


def test_a_run_is_kept_and_can_be_carried_on(tmp_path: Path) -> None:
    """Killed in the middle of a step, a run goes on where it was; another run in the same folder leaves it alone."""
    (tmp_path / "steps.py").write_text(
        "import pathlib, time\n"
        "def slow():\n"
        "    path = pathlib.Path('slow.txt')\n"
        "    path.write_text(path.read_text() + 'x' if path.exists() else 'x')\n"
        "    time.sleep(60 if len(path.read_text()) == 1 else 0)\n"
    )
    (tmp_path / "flow.yaml").write_text(
        "name: flow\nnodes:\n"
        "  - {id: first, type: value, config: 1}\n"
        "  - {id: slow, type: python, dependencies: [first], config: {function: 'steps:slow'}}\n"
    )
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "other.yaml").write_text("name: other\nnodes:\n  - {id: a, type: value, config: 1}\n")
    with running("run", "flow.yaml", "--json", cwd=tmp_path):
        eventually((tmp_path / "slow.txt").exists, "the step did not begin")
    assert process("run", "elsewhere/other.yaml", "-q", cwd=tmp_path).code == main.OK
    (row,) = process("runs", "list", "--status", "RUNNING", "--json", cwd=tmp_path).json["runs"]
    wrong = process("run", "elsewhere/other.yaml", "--resume", row["run_id"], cwd=tmp_path)
    assert wrong.code == main.REFUSED
    assert "[run_of_another_workflow]" in wrong.err
    resumed = process("run", "flow.yaml", "--resume", row["run_id"], "--json", cwd=tmp_path)
    assert (resumed.code, resumed.json["status"], resumed.json["run_id"]) == (main.OK, "COMPLETED", row["run_id"])
    assert (tmp_path / "slow.txt").read_text() == "xx"
    events = process("runs", "events", row["run_id"], "--json", cwd=tmp_path).json
    lost = [each for each in events["events"] if each["type"] == "NodeFailed"]
    assert [each["error"]["code"] for each in lost] == ["worker_lost"]


def test_a_run_has_the_labels_it_is_given(cli_store: CliStore, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("name: f\nnodes: [{id: a, type: value}]\n")
    cli_store.fine("run", str(tmp_path / "f.yaml"), "--label", "customer=acme", "--quiet")
    (row,) = cli_store.json("runs", "list", "label.customer=acme")["runs"]
    assert row["labels"] == {"customer": "acme"}


FAILING = """
name: gg
nodes:
  - {id: a, type: value, config: 1}
  - {id: b, type: fail, dependencies: [a], config: {message: wrong}}
  - {id: m, type: value, dependencies: [b], map: {over: [1, 2]}, config: "{{ item }}"}
"""
MENDED = FAILING.replace("fail,", "value,").replace("{message: wrong}", "7")


def test_a_changed_document_is_applied_to_the_run_that_it_corrects(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is compared with what the run follows; the command that is named applies the correction."""
    monkeypatch.chdir(tmp_path)
    flow = tmp_path / "g.yaml"
    flow.write_text(FAILING)
    assert inside("run", "g.yaml").code == main.FAILED
    unchanged = inside("run", "g.yaml", "--resume", "@last")
    assert (unchanged.code, unchanged.err) == (main.FAILED, "")
    flow.write_text(MENDED)
    (row,) = inside("runs", "list", "--json").json["runs"]
    command = f"tidemill runs patch {row['run_id']} g.yaml --retry"
    changed = inside("run", "g.yaml", "--resume", "@last")
    assert changed.err == f"! this run follows gg@1, which differs from g.yaml; to use the file: {command}\n"
    assert inside(*command.split()[1:], "--dry-run", "--json").json["changed"] == ["b"]
    assert inside(*command.split()[1:]).code == main.OK
    resumed = inside("run", "g.yaml", "--resume", "@last")
    assert (resumed.code, resumed.err) == (main.OK, "")
    # It begins at the retry: the old failure is not told again.
    assert "✓ completed before the retry: a\n" in resumed.out
    assert "✗" not in resumed.out
    # The file as it was before the patch is no news.
    flow.write_text(FAILING)
    before = inside("run", "g.yaml", "--resume", "@last")
    assert before.err == "" and before.out.startswith("gg@1+1  run ")
    flow.write_text(MENDED.replace("config: 7", "config: 8"))
    assert inside("run", "g.yaml", "--resume", "@last").err.endswith(
        "follows gg@1+1, which differs from g.yaml; to use the file: tidemill run g.yaml\n"
    )


def test_no_patch_is_offered_that_would_be_refused(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node that has its result cannot change: the file is for a new run."""
    monkeypatch.chdir(tmp_path)
    flow = tmp_path / "g.yaml"
    flow.write_text(FAILING)
    assert inside("run", "g.yaml", "--key", "r").code == main.FAILED
    assert inside("runs", "override", "r", "b", "--value", "3").code == main.OK
    flow.write_text(MENDED)
    resumed = inside("run", "g.yaml", "--resume", "r")
    assert resumed.err == "! this run follows gg@1, which differs from g.yaml; to use the file: tidemill run g.yaml\n"


def test_an_empty_key_is_refused(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "g.yaml"
    file.write_text(MENDED)
    refused = inside("run", str(file), "--key", "", "--json")
    assert (refused.code, refused.json["problems"][0]["code"]) == (main.REFUSED, "run_key_invalid")


def test_a_failure_that_a_retry_repeats_names_the_patch(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.yaml").write_text('name: t\nnodes:\n  - {id: a, type: value, config: "{{ inputs.x }}"}\n')
    failed = inside("run", "t.yaml")
    (row,) = inside("runs", "list", "--json").json["runs"]
    said = "→ correct the document, then patch the run, because a retry alone fails again: tidemill runs patch"
    assert failed.code == main.FAILED and f"{said} {row['run_id']} t.yaml --retry\n" in failed.out
    (tmp_path / "t.yaml").write_text(FAILING)
    assert "runs patch" not in inside("run", "t.yaml").out


def test_a_whole_document_with_a_mistake_is_refused_with_its_place(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    flow = tmp_path / "g.yaml"
    flow.write_text(FAILING)
    inside("run", "g.yaml")
    flow.write_text(MENDED.replace("type: value, dep", "type: valeu, dep", 1))
    refused = inside("runs", "patch", "@last", "g.yaml", "--retry", "--json")
    assert [(each["code"], each["line"]) for each in refused.json["problems"]] == [("unknown_node_type", 5)]
    flow.write_text(MENDED)
    both = inside("runs", "patch", "@last", "g.yaml", "--set", "/nodes/b/config=8", "--json")
    assert both.json["problems"][0]["message"] == "g.yaml holds a whole document and cannot be combined with --set"
    forked = inside("runs", "fork", "@last", "--patch", "g.yaml")
    assert forked.code == main.OK
    assert inside("run", "g.yaml", "--resume", forked.out.strip()).code == main.OK


def test_the_inputs_of_a_run_that_exists_are_not_given_again(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "g.yaml").write_text(FAILING)
    inside("run", "g.yaml")
    refused = inside("run", "g.yaml", "--resume", "@last", "-i", "x=1", "--json")
    assert refused.code == main.REFUSED
    (problem,) = refused.json["problems"]
    assert (problem["code"], problem["message"]) == ("option_invalid", "--resume keeps the run's inputs")
    assert re.fullmatch(r"fork the run to change its inputs: tidemill runs fork \S+ -i x=1", problem["hint"])


def test_a_task_that_was_renamed_is_patched_from_its_file(tmp_path: Path) -> None:
    flow = tmp_path / "flow.py"
    body = dedent("""
        import tidemill

        @tidemill.task(retries=0)
        def {name}(n: int) -> int:
            {does}

        @tidemill.workflow
        def renamed(n: int = 1):
            return {name}(n)
    """)
    flow.write_text(body.format(name="b", does="raise ValueError(n)"))
    assert process("run", "flow.py", cwd=tmp_path).code == main.FAILED
    flow.write_text(body.format(name="c", does="return n"))
    process("runs", "retry", "@last", cwd=tmp_path)
    again = process("run", "flow.py", "--resume", "@last", cwd=tmp_path)
    assert "if it has another name now: tidemill runs patch RUN FILE --retry" in again.out
    (command,) = re.findall(r"differs from flow.py; to use the file: tidemill (.*)", again.err)
    assert process(*command.split(), cwd=tmp_path).code == main.OK
    assert process("run", "flow.py", "--resume", "@last", cwd=tmp_path).out.endswith("\n1\n")


@pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])
def test_a_run_ends_although_nobody_sees_it_any_more(folder: Path, tmp_path: Path, terminal: bool) -> None:
    """Neither a step that prints nor the command fails when the terminal or the reader of the pipe is gone."""
    (folder / "talker_of_runs.py").write_text("import time\ndef talk():\n    time.sleep(1)\n    print('x' * 100_000)\n")
    file = document(folder, '- {id: a, type: python, retry: 1, config: {function: "talker_of_runs:talk"}}')
    url, out = f"sqlite:///{tmp_path}/unseen.db", pty.openpty() if terminal else os.pipe()
    reader, writer = out
    with (
        (tmp_path / "errors").open("w") as errors,
        running(
            "run", file, "--store", url, stdin=subprocess.DEVNULL, stdout=writer, stderr=errors,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        ) as child,
    ):  # fmt: skip
        os.close(writer)
        seen = b""
        while b"flow" not in seen:
            some = os.read(reader, 1000)
            assert some, f"it ended with {seen!r}"
            seen += some
        os.close(reader)
        assert child.wait() == main.FAILED
    assert (tmp_path / "errors").read_text() == ""
    with tidemill.open(url, work=False) as mill:
        (row,), _ = mill.find("")
        assert row.status == "COMPLETED"
