"""`tidemill graph`: snapshots of both drawings, and their bounds."""

from __future__ import annotations

import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.fixtures.command_line import EXAMPLES, ROOT, InProcessCli, on_terminal, process, shown
from tests.fixtures.graphs import SHAPES, graph_of
from tidemill.cli import main
from tidemill.cli.render.graph import NESTING_MAX, as_text, draw, mermaid_lines

ORDER = """
name: order
description: everything in one drawing
nodes:
  - {id: receive, type: value}
  - {id: stock, type: value, dependencies: [receive], map: {over: "{{ receive.all }}", max_parallel: 4, tolerate: 1}}
  - {id: reserve, type: value, dependencies: [stock], on_error: continue}
  - id: fraud
    type: value
    dependencies: [receive]
    branch: {type: conditional, rules: [{condition: "output.score > 80", next_nodes: [review]}], default: [decide]}
  - {id: review, type: value, when: "iteration == 0"}
  - {id: notify, type: value, dependencies: [receive]}
  - {id: decide, type: value, dependencies: [reserve, review], on_error: {route: [alert]}}
  - {id: alert, type: value}
  - {id: draft, type: value, dependencies: [decide]}
  - {id: check, type: value, dependencies: [draft], loop: {condition: "iteration < 2", max_iterations: 3}}
  - {id: proof, type: value, dependencies: [draft]}
  - id: polish
    type: value
    dependencies: [check, proof]
    loop:
      condition: {type: composite, operator: AND, conditions: ["output.score < 8", "iteration < 9"]}
      max_iterations: 5
      loop_back_to: draft
      timeout_path: [give-up]
  - {id: give-up, type: value}
  - {id: ship, type: sleep, config: {seconds: 1}, dependencies: [polish]}
  - {id: end, type: value, dependencies: [ship, give-up, notify], join: {quorum: 2}}
"""

ORDER_TEXT = """\
order · 15 nodes — everything in one drawing

  ● receive     value
  ├─● stock     value  for each of {{ receive.all }}, 4 at a time, 1 may fail
  │ ● reserve   value  → decide · failure tolerated
  ├─◆ fraud     value
  │ ├─ if output.score > 80
  │ │ ● review  value  → decide · only if iteration == 0
  │ ╰─ otherwise → decide
  ├─● notify    value  → end
  ● decide      value  ← reserve, fraud, review
  ├╌ on error
  │ ● alert     value
╭▶● draft       value
│↺├─● check     value  → polish · ↺ again while iteration < 2, at most 3 passes
│ ├─● proof     value  → polish
╰─● polish      value  ← check, proof · ↺ back to draft while (output.score < 8) and (iteration < 9), at most 5 passes
  ├─ when passes are used up
  │ ● give-up   value  → end
  ╰─● ship      sleep  → end
  ● end         value  ← 2 of notify, give-up, ship
"""

ORDER_MERMAID = """\
---
title: order
---
flowchart TD
    receive["receive<br/><small>value</small>"]
    stock[["stock<br/><small>value</small><br/><small>for each of {{ receive.all }}, 4 at a time, 1 may fail</small>"]]
    reserve["reserve<br/><small>value</small>"]
    fraud{"fraud<br/><small>value</small>"}
    review["review<br/><small>value</small>"]
    notify["notify<br/><small>value</small>"]
    decide["decide<br/><small>value</small>"]
    alert["alert<br/><small>value</small>"]
    draft["draft<br/><small>value</small>"]
    check{{"check<br/><small>value</small>"}}
    proof["proof<br/><small>value</small>"]
    polish{{"polish<br/><small>value</small>"}}
    node_12["give-up<br/><small>value</small>"]
    ship(["ship<br/><small>sleep</small>"])
    node_14["end<br/><small>value</small>"]
    receive --> stock
    receive --> fraud
    receive --> notify
    stock --> reserve
    reserve --> decide
    fraud -->|"if output.score #gt; 80"| review
    fraud -->|"otherwise"| decide
    review --> decide
    notify --> node_14
    decide -.->|"on error"| alert
    decide --> draft
    draft --> check
    draft --> proof
    check --> polish
    check ==>|"↺ again while iteration #lt; 2, at most 3 passes"| check
    proof --> polish
    polish -->|"when passes are used up"| node_12
    polish --> ship
    polish ==>|"↺ back to draft while (output.score #lt; 8) and (iteration #lt; 9), at most 5 passes"| draft
    node_12 --> node_14
    ship --> node_14
"""


@pytest.fixture
def order(tmp_path: Path) -> str:
    file = tmp_path / "order.yaml"
    file.write_text(ORDER)
    return str(file)


def test_the_text_drawing(inside: InProcessCli, order: str) -> None:
    ended = inside("graph", order, "--format", "text")
    assert (ended.code, ended.out) == (main.OK, ORDER_TEXT)


def test_mermaid(inside: InProcessCli, order: str) -> None:
    ended = inside("graph", order, "--format", "mermaid")
    assert (ended.code, ended.out) == (main.OK, ORDER_MERMAID)


def test_a_program_gets_mermaid_and_a_person_a_drawing(order: str) -> None:
    assert process("graph", order).out == ORDER_MERMAID
    code, written = on_terminal("graph", order, columns=130)
    assert code == main.OK
    assert shown(written) == ORDER_TEXT
    assert "\x1b[" in written


def test_a_narrow_terminal_keeps_the_drawing_in_shape(order: str) -> None:
    _, written = on_terminal("graph", order, columns=48)
    lines = shown(written).splitlines()
    assert len(lines) == len(ORDER_TEXT.splitlines())
    assert max(map(len, lines)) <= 48


def drawn(shape: str, size: int) -> list[str]:
    return list(as_text(draw(graph_of(SHAPES[shape](size)))))


def test_a_single_node() -> None:
    assert drawn("chain", 1) == ["● n0  value"]


def test_several_entries_begin_at_a_start() -> None:
    text = "\n".join(as_text(draw(graph_of([(0, 2), (1, 2), (3, 4)]))))
    assert text == dedent("""\
        ○ start
        ├─● n0  value  → n2
        ├─● n1  value  → n2
        ├─● n3  value
        │ ● n4  value
        ● n2    value  ← n0, n1""")


def test_the_main_line_stays_at_its_level() -> None:
    lines = drawn("comb", 40)
    assert max(len(line) - len(line.lstrip("│├╰─ ")) for line in lines[:20]) <= 2


def test_names_in_long_lists_are_counted() -> None:
    lines = drawn("fan", 100)
    assert lines[-1].endswith("← n1, n2, n3, n4, n5, n6 and 92 more")
    assert len(lines) == 100


def test_deep_nesting_is_drawn_to_a_limit() -> None:
    lines = drawn("nested", 1000)
    assert len(lines) == 1000
    assert max(map(len, lines)) < 4 * NESTING_MAX + 60
    assert any("← n" in line for line in lines)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_node_is_drawn_once_and_every_edge_told(shape: str) -> None:
    workflow = graph_of(SHAPES[shape](60))
    lines = draw(workflow)
    assert sorted(line.name for line in lines if line.kind) == sorted(node.id for node in workflow.nodes)
    text = list(mermaid_lines(workflow))
    assert sum(" --> " in line for line in text) == sum(len(node.outbound) for node in workflow.nodes)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_the_cost_is_that_of_the_graph(shape: str) -> None:
    def seconds(size: int) -> float:
        workflow = graph_of(SHAPES[shape](size))
        taken = []
        for _ in range(3):
            began = time.process_time()
            list(as_text(draw(workflow)))
            list(mermaid_lines(workflow))
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(8_000) <= 8 * 2.5 * seconds(1_000) + 0.05


def test_hostile_words_stay_inside_their_quotes(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "hostile.yaml"
    file.write_text(
        dedent(r"""
        name: hostile
        nodes:
          - id: class
            type: value
            branch:
              type: conditional
              rules: [{condition: 'output == "]|\n--> x\u001b[31m" && 1 < 2', next_nodes: [node_7]}]
              default: [x--o]
          - {id: node_7, type: value}
          - {id: x--o, type: value}
        """)
    )
    mermaid = inside("graph", str(file), "--format", "mermaid").out
    names = [line.split()[0] for line in mermaid.splitlines() if line.startswith("    ") and "<br/>" in line]
    assert [name.partition("[")[0].partition("{")[0] for name in names] == ["node_0", "node_1", "node_2"]
    (edge,) = [line for line in mermaid.splitlines() if "#lt;" in line]
    assert edge.count('"') == 2
    assert edge.count("|") == 2
    for form in ("text", "mermaid"):
        assert "\x1b" not in inside("graph", str(file), "--format", form).out


def test_a_refused_document_is_not_drawn(inside: InProcessCli, tmp_path: Path) -> None:
    file = tmp_path / "broken.yaml"
    file.write_text("name: x\nnodes: []\n")
    ended = inside("graph", str(file))
    assert (ended.code, ended.out) == (main.REFUSED, "")
    assert "[no_nodes]" in ended.err


def test_the_page_shows_what_the_command_prints(inside: InProcessCli) -> None:
    drawing = inside("graph", str(EXAMPLES / "showcase.yaml"), "--format", "text").out
    assert f"```text\n{drawing}```" in (ROOT / "docs" / "reference" / "cli.md").read_text()


def test_every_example_is_drawn(inside: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    for file in sorted(EXAMPLES.glob("*.yaml")):
        ended = inside("graph", str(file), "--format", "text")
        assert ended.code == main.OK
        assert max(len(line) for line in ended.out.splitlines()) <= 150, file
