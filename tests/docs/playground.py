"""Where the blocks of a page are tried, in their order, in a folder of the page's own.

| language | what is done with a block |
|---|---|
| python | run in a process of its own; a `text` block right below is its output |
| yaml, json with `nodes` | validated and run; a `json` block right below is its outputs |
| other yaml, json | must be marked `.part`; parsed |
| console | every line after `$ ` is run, what stands below it is its output; `NAME=$(…)` is kept for later blocks |
| sh | not run: each line must be a make target or a module of this repository |
| text, mermaid | nothing: an output, or a drawing |

`title` writes the block to a file first. `data-input` are the inputs of a document, `data-fails` the code it fails
with, `data-refused` the codes it is refused with, `data-exit` the exit code of a console's last command. `.theirs` is
Python for another tool: it must compile, and is not run. `.server` runs the command of a console until the page ends,
on a free port; later blocks find it in TIDEMILL_SERVER. `.no-run` keeps a block from being run, and is counted. In an
output `…` stands for anything in a line, and for any lines when it stands alone.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import tidemill
from tests.docs.pages import ROOT, Block, Page
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.reader import Format, read_document
from tidemill.node_types import built_in_types

SECONDS_MAX = 120
MARKS = {"no-run", "part", "server", "theirs"}
OPTIONS = {"title", "data-input", "data-fails", "data-refused", "data-exit"}
COMMANDS = {"tidemill", "python", "cat", "echo", "curl"}
ASSIGNMENT = re.compile(r"([A-Z]+)=(\$\((\w+) .*\))")
LISTENING = re.compile(r"http://127\.0\.0\.1:[0-9]+")
VARIABLES = ".variables.json"
SHOWN = {"text", "mermaid", ""}
TRIED = {"python", "yaml", "json", "console", "sh"}


def is_run(block: Block) -> bool:
    """Whether a block is tried, as opposed to being excused."""
    return block.language in TRIED - {"sh"} and "no-run" not in block.marks


def play(page: Page, folder: Path) -> int:
    """Try every block of a page and tell how many were tried."""
    servers: list[subprocess.Popen[str]] = []
    try:
        return sum(_tried(page, block, folder, servers) for block in page.blocks)
    finally:
        for server in servers:
            server.terminate()
            server.communicate(timeout=SECONDS_MAX)


def _tried(page: Page, block: Block, folder: Path, servers: list[subprocess.Popen[str]]) -> bool:
    """Try one block, unless there is nothing to try."""
    assert block.marks <= MARKS and block.options.keys() <= OPTIONS, f"{block.place}: an unknown mark"
    assert block.language in TRIED | SHOWN, f"{block.place}: nobody knows how to try {block.language}"
    if block.title:
        (folder / block.title).write_text(block.body)
    if not is_run(block) or _is_answer(page, block):
        return False
    if "server" in block.marks:
        servers.append(_server(block, folder))
    else:
        _try(block, folder)
    return True


def _is_answer(page: Page, block: Block) -> bool:
    return block.language == "json" and any(
        other.answer is not None and other.answer.line == block.line and other.language in ("yaml", "json")
        for other in page.blocks
    )


def _try(block: Block, folder: Path) -> None:
    match block.language:
        case "python":
            _python(block, folder)
        case "yaml" | "json":
            _document(block, folder)
        case "console":
            _console(block, folder)
        case _:
            raise AssertionError(block)


def _environment(folder: Path) -> dict[str, str]:
    """A user's shell with this installation in front, and nothing that colours or moves."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    kept = folder / VARIABLES
    variables = json.loads(kept.read_text()) if kept.exists() else {}
    return {
        **os.environ,
        **variables,
        "PATH": path,
        "NO_COLOR": "1",
        "TERM": "dumb",
        "COLUMNS": "120",
        "PYTHONPATH": str(folder),
    }


def _python(block: Block, folder: Path) -> None:
    if "theirs" in block.marks:
        compile(block.body, block.place, "exec")
        return
    script = folder / (block.title or f"line_{block.line}.py")
    script.write_text(block.body)
    done = subprocess.run(
        [sys.executable, "-W", "error", script.name],
        cwd=folder,
        env=_environment(folder),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.returncode == 0, f"{block.place}: {done.stderr}"
    if block.answer is not None and block.answer.language == "text":
        compare(block.answer.place, block.answer.body, done.stdout)


def _document(block: Block, folder: Path) -> None:
    language: Format = "json" if block.language == "json" else "yaml"
    if "part" in block.marks:
        wrapped = block.body if language == "json" else f"part:\n{re.sub(r'^', '  ', block.body, flags=re.MULTILINE)}"
        assert read_document(wrapped, format=language), block.place
        return
    if "data-refused" in block.options:
        with pytest.raises(tidemill.Rejected) as refusal:
            compile_document(read_document(block.body, format=language), built_in_types())
        codes = sorted({problem.code for problem in refusal.value.problems})
        assert ",".join(codes) == block.options["data-refused"], f"{block.place}: {refusal.value}"
        return
    document = read_document(block.body, format=language)
    assert "nodes" in document, f"{block.place}: not a document; a part of one is marked {{.part}}"
    with _importable(folder), tidemill.open("memory://") as mill:
        run = mill.run(document, json.loads(block.options.get("data-input", "{}")), timeout_s=SECONDS_MAX)
    expected = ("FAILED", block.options["data-fails"]) if "data-fails" in block.options else ("COMPLETED", None)
    assert (run.status, run.error and run.error["code"]) == expected, f"{block.place}: {run.error}"
    if block.answer is not None and block.answer.language == "json":
        assert run.outputs == json.loads(block.answer.body), block.answer.place


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Let the page's own modules be imported, and forget them afterwards."""
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            if folder in Path(str(getattr(module, "__file__", None) or "")).parents:
                del sys.modules[name]


def _console(block: Block, folder: Path) -> None:
    commands = list(_commands(block))
    assert commands, f"{block.place}: no line begins with $"
    for number, (command, expected) in enumerate(commands):
        assigned = ASSIGNMENT.fullmatch(command)
        assert (assigned[3] if assigned else command.split()[0]) in COMMANDS, f"{block.place}: {command}"
        if assigned:
            command = f"printf %s {assigned[2]}"
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=folder,
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
        )
        wanted = int(block.options.get("data-exit", "0")) if number == len(commands) - 1 else 0
        assert done.returncode == wanted, f"{block.place}: {command}: exit code {done.returncode}\n{done.stdout}"
        if assigned:
            assert done.stdout, f"{block.place}: {command} gives nothing"
            _keep(folder, assigned[1], done.stdout)
            continue
        compare(f"{block.place}: {command}", expected, done.stdout)


def _keep(folder: Path, name: str, value: str) -> None:
    """Set a variable for the blocks that follow."""
    kept = folder / VARIABLES
    variables = json.loads(kept.read_text()) if kept.exists() else {}
    kept.write_text(json.dumps({**variables, name: value}))


def _server(block: Block, folder: Path) -> subprocess.Popen[str]:
    """Start a server, and wait until it says where it listens."""
    ((command, expected),) = _commands(block)
    assert command.startswith("tidemill serve"), f"{block.place}: {command}"
    server = subprocess.Popen(
        [*command.split(), "--port", "0"],
        cwd=folder,
        env=_environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    for line in server.stdout:
        if found := LISTENING.search(line):
            _keep(folder, "TIDEMILL_SERVER", found[0])
            shown = LISTENING.search(expected)
            compare(f"{block.place}: {command}", expected, line.replace(found[0], shown[0] if shown else found[0]))
            return server
    raise AssertionError(f"{block.place}: {command} does not listen")


def _commands(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console with what it prints; a backslash continues a line."""
    parts = re.split(r"^\$ ", block.body, flags=re.MULTILINE)
    assert not parts[0].strip(), f"{block.place}: a console begins with $"
    for part in parts[1:]:
        command, _, output = re.sub(r"\\\n\s*", " ", part).partition("\n")
        yield command, output


def compare(place: str, expected: str, actual: str) -> None:
    """What was printed is what the page shows."""
    if not expected.strip():
        return
    assert re.fullmatch(_pattern(expected), _clean(actual) + "\n"), f"{place}\nexpected:\n{expected}\nactual:\n{actual}"


def _pattern(expected: str) -> str:
    lines = _clean(expected).splitlines()
    return "".join(
        r"(?:.*\n)*?" if line.strip() == "…" else ".*?".join(map(re.escape, line.split("…"))) + r"\n" for line in lines
    )


def _clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines())


def developer_commands(block: Block) -> Iterator[str]:
    """What is wrong with the commands of an `sh` block."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in block.body.splitlines():
        words = line.split("#")[0].split()
        match words:
            case [] | ["pip", "install", *_]:
                continue
            case ["make", *given] if given:
                unknown = [word for word in given if "=" not in word and word not in targets]
                yield from (f"{block.place}: there is no target {word}" for word in unknown)
            case [".venv/bin/python", "-m", module, *_]:
                path = ROOT / module.replace(".", "/")
                known = module == "pytest" or path.with_suffix(".py").exists() or (path / "__main__.py").exists()
                yield from [] if known else [f"{block.place}: there is no module {module}"]
            case _:
                yield f"{block.place}: neither a make target nor a module: {line}"
