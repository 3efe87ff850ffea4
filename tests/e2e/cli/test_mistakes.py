"""Mistakes that newcomers make, with the habits of other tools: each message says where, what, and what to write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fixtures.command_line import InProcessCli
from tidemill.cli import main

NODE = "name: x\nnodes:\n  - {id: a, type: value, config: 1}\n  - {id: b, type: value, dependencies: [a], %s}\n"

TOP = "name: x\n%s\nnodes: [{id: a, type: value}]\n"
CONFIG = "name: x\nnodes: [{id: a, type: %s, config: %s}]\n"
RULE = NODE % "branch: {rules: [{%s}]}"

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
    "name of a node": (NODE % "name: hey", "1 problem; use `id`: it is the name of a node"),
    "timeout": (NODE % "timeout: 3", "did you mean `timeout_seconds`?"),
    "backof": (NODE % "retry: {backof: 3}", "did you mean `backoff_seconds`?"),
    "steps": ("name: x\nsteps: [{id: a, type: value}]", "did you mean `nodes`?"),
    "type: bash": ("name: x\nnodes: [{id: a, type: bash}]", "did you mean `shell`?"),
    "type: if": ("name: x\nnodes: [{id: a, type: if}]", "`branch`"),
    "on_error: ignore": (NODE % "on_error: ignore", "write continue"),
    "join: most": (NODE % "join: most", "{quorum: 2}"),
    "a negative time-out": (NODE % "timeout_seconds: -3", "at least 0.001; [out_of_range] → leave it out for none"),
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
    "id of a workflow": ("id: x\nnodes: [{id: a, type: value}]", "✗; 1 problem; did you mean `name`?"),
    "version": (TOP % "version: 1", "`tidemill publish` numbers the versions"),
    "schedule": (TOP % "schedule: daily", "`tidemill schedules create NAME WORKFLOW --cron …`"),
    "triggers": (TOP % "triggers: []", "`tidemill schedules create NAME WORKFLOW --cron …`"),
    "timeout of a workflow": (TOP % "timeout: 3", "limits: {deadline_seconds: …}; defaults: {timeout_seconds: …}"),
    "params of a workflow": (TOP % "params: {}", "did you mean `inputs`?"),
    "vars": (TOP % "vars: {}", "declared in `inputs`; a node of type `value`"),
    "env of a workflow": (TOP % "env: {}", "declared in `inputs`; `shell` has `env`"),
    "dag": (TOP % "dag: {}", "`name` and `nodes` at the top"),
    "function beside a type": (NODE % "function: tasks.a", "type: python with config: {function: …}"),
    "function of a python node": (
        "name: x\nnodes: [{id: a, type: python, function: 'a:b'}]",
        "it belongs into `config`: config: {function: …}",
    ),
    "cmd of a shell node": ("name: x\nnodes: [{id: a, type: shell, cmd: ls}]", "config: {argv: …}"),
    "env of a node": (NODE % "env: {}", "a `shell` node has `env` in its `config`"),
    "parallel": (NODE % "parallel: true", "run side by side; `map`"),
    "switch": (NODE % "switch: {}", "did you mean `branch`?"),
    "finally": (NODE % "finally: [a]", "on_error: continue"),
    "pool": (NODE % "pool: gpu", "did you mean `queue`?"),
    "schedule of a node": (NODE % "schedule: daily", "tidemill schedules create; `wait_until`"),
    "start_to_close_timeout": (NODE % "start_to_close_timeout: 3", "did you mean `timeout_seconds`?"),
    "on_reject": (NODE % "on_reject: [a]", "rejection_path: [node]"),
    "on_timeout beside config": (
        "name: x\nnodes: [{id: a, type: human, on_timeout: reject}]",
        "config: {on_timeout: …}",
    ),
    "timeout of an approval": (
        CONFIG % ("human", "{timeout: 4h}"),
        'did you mean "timeout_seconds"? It takes a number',
    ),
    "cmd": (CONFIG % ("shell", "{cmd: ls}"), '1 problem; did you mean "argv"? It takes a list'),
    "command": (CONFIG % ("shell", "{command: ls}"), '1 problem; did you mean "argv"? It takes a list'),
    "dsn": (CONFIG % ("sql", "{dsn: x, statement: SELECT 1}"), "the name of a database under `[databases]`"),
    "query": (CONFIG % ("sql", "{query: SELECT 1}"), '1 problem; did you mean "statement"?'),
    "name of a child": (CONFIG % ("workflow", "{name: kid}"), '1 problem; did you mean "workflow"?'),
    "steps of a pipeline": (CONFIG % ("pipeline", "{steps: []}"), '1 problem; did you mean "pipeline"?'),
    "input of a pipeline": (CONFIG % ("pipeline", "{input: [], pipeline: []}"), 'did you mean "rows"?'),
    "type: docker": ("name: x\nnodes: [{id: a, type: docker}]", "argv: [docker, run"),
    "type: quux": ("name: x\nnodes: [{id: a, type: quux}]", "webhook, workflow"),
    "when of a rule": (RULE % "when: 'true', next_nodes: []", "1 problem; did you mean `condition`?"),
    "next of a rule": (RULE % "condition: 'true', next: [a]", "1 problem; did you mean `next_nodes`?"),
    "else": (NODE % "branch: {rules: [], else: [a]}", "did you mean `default`?"),
    "until": (NODE % "loop: {until: 'true', max_iterations: 2}", "1 problem; write the opposite of `until`"),
    "delay of a loop": (
        NODE % "loop: {condition: 'true', max_iterations: 2, delay: 3}",
        "did you mean `delay_seconds`?",
    ),
    "delay of a retry": (NODE % "retry: {delay: 3}", "did you mean `backoff_seconds`?"),
    "concurrency of a map": (NODE % "map: {over: [1], concurrency: 3}", "did you mean `max_parallel`?"),
    "source and target": (
        NODE % "config: 1" + "edges: [{source: a, target: b}]\n",
        "2 problems; did you mean `from`?; did you mean `to`?",
    ),
    "a duration": (NODE % "timeout_seconds: 5m", "must be a number; write 300"),
    "a duration in hours": (NODE % "timeout_hours: 90m", "write 1.5"),
    "a number in quotes": (NODE % "priority: '3'", "write 3, without quotes"),
    "retry: three": (NODE % "retry: three", "for example 3, or {max_attempts: 3, backoff_seconds: 5}"),
    "map: a template": (
        NODE.replace("config: 1", "config: [1]") % "map: '{{ a.output }}', config: '{{ item }}{{ index }}'",
        '1 problem; write {over: "{{ a.output }}"}',
    ),
    "sleep: 5": (CONFIG % ("sleep", "5"), "write {ms: 5} or {seconds: 5}"),
    "python: a path": (CONFIG % ("python", "'tasks:a'"), 'write {function: "tasks:a"}'),
    "args: a list": (CONFIG % ("python", "{function: 'tasks:a', args: [1]}"), "write {name: value}"),
    "classify: a text": (CONFIG % ("classify", "text"), "write an object with text, labels"),
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


WARNINGS: dict[str, tuple[str, str]] = {
    "${{ }}": (NODE % "config: '${{ a.output }}'", "to have the value alone, write {{ a.output }}"),
    "a dotted function": (CONFIG % ("python", "{function: shop.tasks.a}"), "an import path is written shop.tasks:a"),
}


@pytest.mark.parametrize("case", WARNINGS)
def test_a_document_with_what_may_be_meant(inside: InProcessCli, tmp_path: Path, case: str) -> None:
    text, said = WARNINGS[case]
    file = tmp_path / "flow.yaml"
    file.write_text(text)
    ended = inside("validate", str(file))
    shown = " ".join((ended.out + ended.err).split())
    assert ended.code == 0 and "1 warning" in shown and said in shown, shown


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
    "an option before the command": ("--store x.db run flow.yaml", "`tidemill COMMAND … --store`"),
    "an attribute of a document": ("run flow.yaml:flow", "a document is named alone: flow.yaml"),
    "a file": ("validate flwo.yaml", "did you mean flow.yaml?"),
    "a file to start": ("start flow.yaml", "tidemill publish flow.yaml"),
    "a workflow": ("start fow", "did you mean `flow`?"),
    "a store without a scheme": ("run flow.yaml --store runs.db", "sqlite:///runs.db"),
    "a scheme": ("run flow.yaml --store sqlit:///x", "sqlite:///FILE"),
    "a term": ("runs list statuss:failed", "did you mean `status`?"),
    "an input without a value": ("run flow.yaml -i n", "write name=value"),
    "an app": ("worker --app nowhere_at_all", "module:attribute"),
    "an input without an option": ("run flow.yaml n=1 m=2", "Inputs are options: `-i n=1 -i m=2`."),
    "an option for inputs": ("run flow.yaml --param n=1", "Did you mean '-i NAME=VALUE'?"),
    "an option that is nowhere": ("run flow.yaml --verbose", "No such option '--verbose'. Try"),
    "a command of a linter": ("lint flow.yaml", "tidemill validate FILE"),
    "help": ("help", "tidemill --help"),
    "a list of workers": ("workers list", "Did you mean `tidemill workers`?"),
    "a list of queues": ("queues list", "`tidemill queues` is the list."),
    "a configuration file": ("config show --config nofile.toml", "--config there is no configuration file nofile.toml"),
    "a decision without a node": (
        "approvals decide r approve",
        "Missing argument 'NODE'. Before approve, name the node that asks",
    ),
    "a condition for dead letters": ("dlq list worfklow:x", "did you mean `workflow`?"),
    "a node without a dead letter": ("dlq retry code:x run:@last", "there is no run yet"),
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
