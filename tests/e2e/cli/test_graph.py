"""`tidemill graph`: who gets which drawing, and their bounds."""

from __future__ import annotations

import time
from pathlib import Path
from textwrap import dedent

import pytest

from tests.fixtures.cli_store import CliStore
from tests.fixtures.command_line import EXAMPLES, ROOT, InProcessCli, on_terminal, process, shown
from tests.fixtures.graphs import SHAPES, graph_of
from tidemill.cli import main
from tidemill.cli.render.graph import NESTING_MAX, as_text, draw, mermaid_lines

ORDER = str(Path(__file__).parent / "documents" / "order.yaml")


def test_a_program_gets_mermaid_and_a_person_a_drawing(inside: InProcessCli) -> None:
    mermaid, text = (inside("graph", ORDER, "--format", form).out for form in ("mermaid", "text"))
    assert process("graph", ORDER).out == mermaid
    code, written = on_terminal("graph", ORDER, columns=130)
    assert (code, shown(written)) == (main.OK, text)
    assert "\x1b[" in written
    _, written = on_terminal("graph", ORDER, columns=48)
    lines = shown(written).splitlines()
    assert len(lines) == len(text.splitlines())
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

    assert seconds(4_000) <= 8 * 2.5 * seconds(500) + 0.05


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


def test_the_page_shows_what_the_command_prints(inside: InProcessCli) -> None:
    drawing = inside("graph", str(EXAMPLES / "showcase.yaml"), "--format", "text").out
    assert f"```text\n{drawing}```" in (ROOT / "docs" / "reference" / "cli.md").read_text()


def test_a_file_gets_what_its_name_says(inside: InProcessCli, tmp_path: Path) -> None:
    for name, form in (("a.svg", "svg"), ("a.html", "html"), ("a.mmd", "mermaid"), ("a.txt", "text")):
        printed = inside("graph", ORDER, "--format", form).out
        assert inside("graph", ORDER, "-o", str(tmp_path / name)) == (main.OK, "", "")
        assert (tmp_path / name).read_text() == printed
    inside("graph", ORDER, "--format", "svg", "--output", str(tmp_path / "b.txt"))
    assert (tmp_path / "b.txt").read_text().startswith("<svg ")


def test_a_run_is_drawn_in_every_format(cli_store: CliStore, tmp_path: Path) -> None:
    run_id = cli_store.failed(key="invoice-17")
    text = cli_store.fine("runs", "graph", run_id)
    heading, _, *lines = text.splitlines()
    assert heading.startswith("payment@1 · failed after ") and heading.endswith("· run invoice-17")
    assert [line.split()[:2] for line in lines] == [["✓", "receive"], ["✗", "transfer"], ["○", "book"]]
    graph = cli_store.fine("runs", "graph", run_id, "--format", "svg")
    timeline = cli_store.fine("runs", "graph", run_id, "--timeline")
    assert graph.startswith("<svg ") and timeline.startswith("<svg ") and graph != timeline
    assert cli_store.json("runs", "graph", run_id, "--format", "svg") == {
        "run_id": run_id,
        "format": "svg",
        "picture": graph,
    }
    file = tmp_path / "run.html"
    assert cli_store.json("runs", "graph", run_id, "-o", str(file)) == {
        "run_id": run_id,
        "format": "html",
        "file": str(file),
    }
    assert file.read_text().count("<svg xmlns") == 2


def test_a_run_on_a_terminal_has_colours(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/runs.db"
    ran = process("run", str(EXAMPLES / "hello.yaml"), "--store", store, "--json").json
    code, written = on_terminal("runs", "graph", ran["run_id"], "--store", store, columns=130)
    assert (code, "\x1b[32m✓ " in written) == (main.OK, True)


@pytest.mark.parametrize("words", [("--timeline",), ("--format", "svg"), ("--format", "html")])
def test_the_source_of_a_picture_is_not_written_to_a_terminal(tmp_path: Path, words: tuple[str, ...]) -> None:
    store = ("--store", f"sqlite:///{tmp_path}/runs.db")
    process("run", str(EXAMPLES / "hello.yaml"), "--key", "r", *store)
    commands = [("runs", "graph", "r", *words, *store)]
    commands += [("graph", str(EXAMPLES / "hello.yaml"), *words)] if "--format" in words else []
    for command in commands:
        code, written = on_terminal(*command)
        assert code == main.REFUSED and "<svg" not in written and "name a file for it: -o " in shown(written)
        assert "<svg" in process(*command).out


def test_a_run_is_drawn_as_it_was(cli_store: CliStore) -> None:
    run_id = cli_store.failed()
    assert "○ book" in cli_store.fine("runs", "graph", run_id, "--at", "3")


def test_every_example_is_drawn(inside: InProcessCli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMILL_SHELL", "on")
    for file in sorted(EXAMPLES.glob("*.yaml")):
        ended = inside("graph", str(file), "--format", "text")
        assert ended.code == main.OK
        assert max(len(line) for line in ended.out.splitlines()) <= 150, file


def test_a_picture_of_an_unknown_format_is_refused(cli_store: CliStore, tmp_path: Path) -> None:
    (tmp_path / "f.yaml").write_text("name: f\nnodes: [{id: a, type: value}]\n")
    refused = cli_store("graph", str(tmp_path / "f.yaml"), "-o", str(tmp_path / "x.png"))
    assert refused.code == main.REFUSED and "no picture is written as .png" in refused.err
    assert not (tmp_path / "x.png").exists()


def test_a_queued_node_has_a_sign_of_its_own(inside: InProcessCli, tmp_path: Path) -> None:
    flow, store = tmp_path / "queued.yaml", ("--store", f"sqlite:///{tmp_path}/queued.db")
    flow.write_text("name: queued\nnodes: [{id: a, type: value}, {id: b, type: value, dependencies: [a]}]\n")
    assert inside("publish", str(flow), *store).code == main.OK
    run_id = inside("start", "queued", *store).out.strip()
    drawn = inside("runs", "graph", run_id, *store).out
    assert "◌ a  value  queued" in drawn and "○ b  value  not reached" in drawn
