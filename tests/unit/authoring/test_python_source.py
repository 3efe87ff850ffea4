"""Documents in every form have one digest: those of the examples and of the documentation, and hard ones."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.docs.pages import page_names, read_page
from tidemill.authoring.python_source import python_source, readable
from tidemill.cli.user_code import workflow_at
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import Compiled, compile_document
from tidemill.kernel.document.reader import read_document
from tidemill.kernel.document.text import as_yaml
from tidemill.node_types import built_in_types

ROOT = Path(__file__).resolve().parents[3]
TYPES = built_in_types()
HARD = """
name: hard-one
description: "a 'hard' one\\nwith \\"two\\" lines"
inputs: {type: object, properties: {n: {type: integer}, class: {type: string}, tidemill: {type: string}}}
defaults: {retry: {max_attempts: 2}, timeout_seconds: 60}
limits: {deadline_seconds: 3600, max_visits: 500}
on_failure: {compensate: automatic}
retention: {days: 3}
nodes:
  - {id: late, type: value, dependencies: [a-b], config: {in: '{{ nodes["a-b"].output }}', on: "1e3", no: 007}}
  - id: a-b
    type: value@1
    config: ["{{ inputs.n }}", "{{ inputs.class }}", "{{inputs.n}}", "x {{ inputs.n }} é", null, true, 1.5, {}]
    retry: 5
    branch: {rules: [{condition: "size(output) > 1", next_nodes: [big]}], default: [small]}
    compensator: {type: value, config: "undo {{ output }}"}
  - {id: big, type: value, config: "{{ nodes['a-b'].output }}"}
  - {id: small, type: value, when: {type: composite, operator: NOT, conditions: ["inputs.n > 1"]}}
  - id: each
    type: value
    dependencies: [big, small]
    join: any
    map: {over: '{{ nodes["a-b"].output[0] }}', tolerate: 2}
    config:
      item: "{{ item }}"
      far: '{{ nodes["a-b"].output }}'
      near: "{{ big.output[0] }}"
      deep: '{{ big.output["x y"].z }}'
    on_error: {route: [late2]}
    loop: {condition: "output.size() < 1", max_iterations: 3, timeout_path: [late2], delay_seconds: "{{ inputs.n }}"}
    delivery: at_most_once
    queue: q
    priority: 1
  - {id: late2, type: value, config: "%s"}
outputs: {each: "{{ each.output }}", both: "{{ big.output | default(small.output) }}", plain: text, n: "{{ inputs.n }}"}
""" % ("long " * 60)


def documents() -> Iterator[tuple[str, Any]]:
    for path in sorted((ROOT / "examples").glob("*.yaml")):
        if path.stem == "words":
            continue  # Commands of a shell are not enabled here.
        yield path.name, read_document(path.read_bytes(), format="yaml")
    for name in page_names():
        for block in read_page(name).blocks:
            refused = {"data-refused"} & block.options.keys()
            if block.language == "yaml" and "part" not in block.marks and not refused:
                yield f"{name}:{block.line}", read_document(block.body, format="yaml")
    yield "hard", read_document(HARD, format="yaml")


DOCUMENTS = dict(documents())


def compiled(document: Any) -> Compiled:
    return compile_document(document, TYPES)


def imported(source: str, folder: Path) -> Any:
    file = folder / f"exported_{abs(hash(source))}.py"
    file.write_text(source)
    try:
        return workflow_at(str(file))
    finally:
        sys.modules.pop(file.stem, None)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_form_has_the_same_digest(name: str, tmp_path: Path) -> None:
    original = compiled(DOCUMENTS[name])
    brief = readable(original.document)
    assert "edges" not in brief
    for document in (
        brief,
        json.loads(json.dumps(brief)),
        read_document(as_yaml(brief), format="yaml"),
        imported(python_source(original.document), tmp_path).document(),
    ):
        again = compiled(document)
        assert again.workflow.digest == original.workflow.digest
        assert again.document["nodes"] == original.document["nodes"]


def test_python_that_reads_like_python() -> None:
    document = {
        "name": "two-steps",
        "inputs": {"type": "object", "properties": {"n": {"type": "integer"}}},
        "nodes": [
            {"id": "fetch", "type": "value", "config": {"rows": ["{{ inputs.n }}", 2]}},
            {"id": "sum", "type": "value", "dependencies": ["fetch"], "config": "{{ fetch.output.rows }}"},
        ],
        "outputs": {"sum": "{{ sum.output }}", "text": "n is {{ inputs.n }}"},
    }
    assert python_source(compiled(document).document) == (
        "import tidemill\n"
        "\n"
        "\n"
        '@tidemill.workflow(name="two-steps", inputs={"type": "object", "properties": {"n": {"type": "integer"}}})\n'
        "def two_steps(n):\n"
        '    fetch = tidemill.node("value", {"rows": [n, 2]}, id="fetch")\n'
        '    sum = tidemill.node("value", fetch.rows, id="sum")\n'
        '    return {"sum": sum, "text": tidemill.template("n is {{ inputs.n }}")}\n'
    )


def test_what_has_no_form_in_python_is_refused_by_name() -> None:
    normal = {"name": "x", "edges": [], "nodes": [{"id": "a", "type": "value", "config_ref": "sha256:" + "0" * 64}]}
    with pytest.raises(Rejected) as refused:
        python_source(normal)
    assert [(each.code, each.path) for each in refused.value.problems] == [("no_python_form", "/nodes/0/config_ref")]
    assert "`config_ref` of node `a`" in refused.value.problems[0].message


def test_a_workflow_in_python_is_exported_too(tmp_path: Path) -> None:
    @tidemill.task
    def double(n: int) -> int:
        return 2 * n

    @tidemill.workflow
    def flow(n: int) -> Any:
        with tidemill.when(n > 3):
            twice = double(n)
        return tidemill.default(twice, f"{n} is small")

    original = compiled(flow.document())
    source = python_source(original.document)
    assert "# It calls registered functions: double.\n" in source
    exported = imported(source, tmp_path)
    assert compiled(exported.document()).workflow.digest == original.workflow.digest
