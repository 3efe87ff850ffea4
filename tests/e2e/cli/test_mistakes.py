"""Mistakes that newcomers make, with the habits of other tools: each message says where, what, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.command_line import InProcessCli
from tidemill.cli import main

NODE = "name: x\nnodes:\n  - {id: a, type: value, config: 1}\n  - {id: b, type: value, dependencies: [a], %s}\n"

DOCUMENTS: dict[str, tuple[str, str]] = {
    "nods": ("name: x\nnods: []\n", "line 2, column 1: unknown key `nods`; did you mean `nodes`?"),
    "confg": (NODE % "confg: 1", "did you mean `config`?"),
    "an unknown dependency": (
        "name: x\nnodes: [{id: fetch, type: value}, {id: b, type: value, dependencies: [fecth]}]",
        "did you mean `fetch`?",
    ),
    "an id twice": ("name: x\nnodes: [{id: a, type: value}, {id: a, type: value}]", "ids are unique within a workflow"),
    "a bad name": ("name: My Flow\nnodes: [{id: a, type: value}]", "lower-case letters, digits and -"),
    "an id that begins with a digit": ("name: x\nnodes: [{id: 1a, type: value}]", "a letter or _, then letters"),
    "a reserved id": ("name: x\nnodes: [{id: inputs, type: value}]", "for example `inputs_1`"),
    "no id": ("name: x\nnodes: [{type: value}]", "`id` is missing"),
    "a cycle": (
        "name: x\nnodes: [{id: a, type: value, dependencies: [b]}, {id: b, type: value, dependencies: [a]}]",
        "use `loop` with `loop_back_to`",
    ),
    "CEL =": (NODE % "when: 'ctx.a.output = 1'", "equality is written =="),
    "CEL and": (NODE % "when: 'ctx.a.output == 1 and true'", "and is written &&"),
    "CEL without ctx": (NODE % "when: 'a.output == 1'", "ctx.a.output"),
    "a filter": (NODE % "config: '{{ a.output | uper }}'", 'did you mean "upper"?'),
    "an id with a hyphen": (
        "name: x\nnodes:\n  - {id: by-city, type: value}\n  - {id: b, type: value, config: '{{ by-city.output }}'}\n",
        "nodes['by-city'].output",
    ),
    "an unquoted template": (NODE % "config: {{ inputs.x }}", 'write "{{ … }}"'),
    "a tab": ("name: x\nnodes:\n\t- {id: a, type: value}\n", "tabs cannot indent"),
    "a colon": ("name: x\ndescription: a: b\nnodes: []\n", "quote values that contain a colon"),
    "an empty file": ("", "the document is empty"),
    "depends_on": (NODE % "depends_on: [a]", "did you mean `dependencies`?"),
    "needs": (NODE % "needs: [a]", "did you mean `dependencies`?"),
    "if": (NODE % "if: 'true'", "did you mean `when`?"),
    "name of a node": (NODE % "name: hey", "did you mean `id`?"),
    "timeout": (NODE % "timeout: 3", "did you mean `timeout_seconds`?"),
    "backof": (NODE % "retry: {backof: 3}", "did you mean `backoff_seconds`?"),
    "steps": ("name: x\nsteps: [{id: a, type: value}]", "did you mean `nodes`?"),
    "type: bash": ("name: x\nnodes: [{id: a, type: bash}]", "did you mean `shell`?"),
    "type: if": ("name: x\nnodes: [{id: a, type: if}]", "`branch`"),
    "on_error: ignore": (NODE % "on_error: ignore", "write continue"),
    "join: most": (NODE % "join: most", "{quorum: 2}"),
    "a negative time-out": (NODE % "timeout_seconds: -3", "at least 0.001"),
    "delivery: exactly_once": (NODE % "delivery: exactly_once", "at_least_once"),
    "inputs without a schema": ("name: x\ninputs: {name: string}\nnodes: [{id: a, type: value}]", "type: object"),
    "type: objekt": ("name: x\ninputs: {type: objekt}\nnodes: [{id: a, type: value}]", '"object"'),
    "type: int": (
        "name: x\ninputs: {type: object, properties: {n: {type: int}}}\nnodes: [{id: a, type: value}]",
        "`integer`",
    ),
    "a secret where none may be": (NODE % "config: '{{ secrets.TOKEN }}'", "secret_not_allowed"),
    "an API key in a document": (
        f"name: x\nnodes: [{{id: a, type: llm, config: {{model: m, prompt: hi, api_key: sk-{'a1' * 20}}}}}]",
        "write {{ secrets.NAME }}",
    ),
}


@pytest.mark.parametrize("case", DOCUMENTS)
def test_a_document(inside: InProcessCli, tmp_path: Path, case: str) -> None:
    text, said = DOCUMENTS[case]
    file = tmp_path / "flow.yaml"
    file.write_text(text)
    refused = inside("validate", str(file))
    shown = " ".join((refused.out + refused.err).split())
    assert refused.code == main.REFUSED and "Traceback" not in shown
    assert all(part in shown for part in said.split("; ")), shown


PYTHON = "name: x\nnodes: [{id: a, type: python, retry: {backoff_seconds: 0.01}, config: {function: '%s', args: {%s}}}]"
SHOP = "def half(n): return n / 2\ndef thing(): return object()\ndef nan(): return float('nan')\n"

RUNS: dict[str, tuple[str, str]] = {
    "no such module": (PYTHON % ("nowhere_at_all:f", ""), "modules are looked for beside the document"),
    "no such function": (PYTHON % ("mistaken_shop:halv", ""), "did you mean `half`?"),
    "a module with a syntax error": (PYTHON % ("mistaken_syntax:f", ""), "mistaken_syntax.py:1: invalid syntax"),
    "a dotted function": (PYTHON % ("json.dumps", ""), "write json:dumps"),
    "a wrong argument": (PYTHON % ("mistaken_shop:half", "m: 1"), "it has no parameter `m`"),
    "an object": (PYTHON % ("mistaken_shop:thing", ""), "return plain JSON values"),
    "not a number": (PYTHON % ("mistaken_shop:nan", ""), "return plain JSON values"),
}


@pytest.mark.parametrize("case", RUNS)
def test_a_step(inside: InProcessCli, tmp_path: Path, case: str) -> None:
    text, said = RUNS[case]
    (tmp_path / "mistaken_shop.py").write_text(SHOP)
    (tmp_path / "mistaken_syntax.py").write_text("def f(:\n")
    file = tmp_path / "flow.yaml"
    file.write_text(text)
    failed = inside("run", str(file))
    shown = " ".join((failed.out + failed.err).split())
    assert failed.code == main.FAILED and "Traceback" not in shown and "attempts" not in shown, shown
    assert said in shown


COMMANDS: dict[str, tuple[str, str]] = {
    "a command": ("strat", "Did you mean 'start'?"),
    "a subcommand": ("runs shwo x", "Did you mean 'show'?"),
    "a subcommand of another place": ("approvals approve", "tidemill approvals decide RUN NODE approve"),
    "an option": ("run flow.yaml --quite", "Did you mean '--quiet'?"),
    "a file": ("validate flwo.yaml", "did you mean flow.yaml?"),
    "a file to start": ("start flow.yaml", "tidemill publish flow.yaml"),
    "a workflow": ("start fow", "did you mean `flow`?"),
    "a store without a scheme": ("run flow.yaml --store runs.db", "sqlite:///runs.db"),
    "a scheme": ("run flow.yaml --store sqlit:///x", "sqlite:///FILE"),
    "a term": ("runs list statuss:failed", "did you mean `status`?"),
    "an input without a value": ("run flow.yaml -i n", "write name=value"),
    "an app": ("worker --app nowhere_at_all", "module:attribute"),
    "a run": ("runs show nobody", "tidemill runs list"),
    "a dead letter": ("dlq retry", "name a run, a workflow, a node or an error code"),
}


@pytest.mark.parametrize("case", COMMANDS)
def test_a_command(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    line, said = COMMANDS[case]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flow.yaml").write_text("name: flow\nnodes: [{id: a, type: value}]")
    inside("publish", "flow.yaml")
    refused = inside(*line.split())
    shown = " ".join((refused.out + refused.err).split())
    assert (refused.code, "Traceback" in shown) == (main.REFUSED, False)
    assert said in shown


def test_a_default_of_the_inputs_is_used(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(
        "name: x\ninputs: {type: object, required: [u], properties: {u: {type: string, default: hello}}}\n"
        "nodes: [{id: a, type: value, config: '{{ inputs.u }}'}]"
    )
    assert inside("run", str(file), "--json").json["outputs"] == {"a": "hello"}
