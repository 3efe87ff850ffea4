"""Graphs of workflows and runs: well-formed, self-contained, the same every time; a status is never colour alone."""

from __future__ import annotations

import asyncio
import os
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.command_line import EXAMPLES, ROOT
from tests.fixtures.graphs import SHAPES, graph_of
from tests.fixtures.kernel.authoring import document, node
from tidemill import pictures
from tidemill.errors import Rejected
from tidemill.kernel.model import Loop
from tidemill.pictures.figure import STATUS_SIGNS
from tidemill.pictures.svg import compiled

GOLDEN = Path(__file__).parent / "golden"
SVG = "{http://www.w3.org/2000/svg}"


def check_golden(name: str, picture: str) -> None:
    """Compare a picture with its file; `TIDEMILL_GOLDEN=update` writes the file."""
    file = GOLDEN / name
    if os.environ.get("TIDEMILL_GOLDEN") == "update":
        file.write_text(picture)
    assert picture == file.read_text()


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def titles(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}title")]


@pytest.mark.parametrize("name", ["showcase", "payment-retry"])
def test_the_graph_of_an_example(name: str) -> None:
    check_golden(f"{name}.svg", pictures.graph_svg(EXAMPLES / f"{name}.yaml"))


def test_the_figures_of_the_documentation_are_those_of_the_examples() -> None:
    makefile = (ROOT / "Makefile").read_text()
    names = re.findall(r"^FIGURES = (.*)$", makefile, re.MULTILINE)[0].split()
    assert names
    for name in names:
        drawn = (ROOT / "docs" / "assets" / f"{name}.svg").read_text()
        assert drawn == pictures.graph_svg(EXAMPLES / f"{name}.yaml"), f"run `make pictures`: {name}"


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_node_is_a_box_and_every_edge_an_arrow(shape: str) -> None:
    workflow = graph_of(SHAPES[shape](60))
    picture = pictures.graph_svg(workflow)
    assert len(titles(picture)) == 1 + len(workflow.nodes)
    assert sorted(text for text in texts(picture) if re.fullmatch(r"n\d+", text)) == sorted(workflow.by_id)
    arrows = sum(element.get("d", "").endswith("Z") for element in ElementTree.fromstring(picture).iter(f"{SVG}path"))
    assert arrows == sum(len(each.outbound) for each in workflow.nodes)


def test_nothing_comes_from_elsewhere_and_nothing_runs() -> None:
    for picture in (pictures.graph_svg(EXAMPLES / "showcase.yaml"), pictures.graph_html(EXAMPLES / "showcase.yaml")):
        assert set(re.findall(r"https?://[^\"'\s]+", picture)) == {"http://www.w3.org/2000/svg"}
        assert not re.search(r"<script|<foreignObject|\bon\w+=|@import|url\(|\bid=|href", picture)
        assert "prefers-color-scheme:dark" in picture


HOSTILE = "</text><script>alert('1')</script> & \"quoted\" \x00\x1b \ud800 \u202e"


def test_names_and_texts_are_escaped() -> None:
    workflow = graph_of([(0, 1)])
    first, second = workflow.nodes
    hostile = msgspec.structs.replace(
        workflow,
        name=HOSTILE,
        description=HOSTILE,
        nodes=(
            msgspec.structs.replace(first, id=HOSTILE, when=HOSTILE),
            msgspec.structs.replace(second, inbound=(HOSTILE,)),
        ),
    )
    for picture in (pictures.graph_svg(hostile), pictures.graph_html(hostile)):
        assert "<script" not in picture
        picture.encode()
    ElementTree.fromstring(pictures.graph_svg(hostile))


def test_a_document_is_taken_in_every_form(tmp_path: Path) -> None:
    text = "name: flow\nnodes:\n  - {id: a, type: value}\n  - {id: b, type: my-own@2, dependencies: [a]}\n"
    (tmp_path / "flow.yaml").write_text(text)
    mapping = {"name": "flow", "nodes": [{"id": "a", "type": "value"}, node("b", "a", type="my-own@2")]}
    drawn = pictures.graph_svg(text)
    assert drawn == pictures.graph_svg(tmp_path / "flow.yaml") == pictures.graph_svg(str(tmp_path / "flow.yaml"))
    assert drawn == pictures.graph_svg(mapping)
    assert drawn == pictures.graph_svg(compiled(text))
    assert "my-own" in texts(drawn)


def test_a_document_that_is_not_valid_is_refused() -> None:
    with pytest.raises(Rejected) as refusal:
        pictures.graph_svg({"name": "flow", "nodes": [node("a", "nope")]})
    assert refusal.value.problems[0].code == "unknown_dependency"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="graph_png"):
        _ = pictures.graph_png  # type: ignore[attr-defined]


def test_long_names_are_cut_and_told_in_full() -> None:
    workflow = graph_of([(0, 0)])
    name = "a-very-long-name-" * 10
    long = msgspec.structs.replace(workflow, nodes=(msgspec.structs.replace(workflow.nodes[0], id=name),))
    picture = pictures.graph_svg(long)
    assert any(text.startswith("a-very-long-name") and text.endswith("…") for text in texts(picture))
    assert any(name in title for title in titles(picture))
    width = float(ElementTree.fromstring(picture).get("width", "0"))
    assert width < 600
    condition = " && ".join(f"output.number != {number}" for number in range(40))
    branch = {"rules": [{"condition": condition, "next_nodes": ["b"]}], "default": ["b"]}
    picture = pictures.graph_svg(document(node("a", branch=branch), node("b")))
    assert any(text.startswith("if output.number") and text.endswith("…") for text in texts(picture))
    assert any(condition in title for title in titles(picture))


async def finished(mill: Cluster) -> tuple[Any, list[dict[str, Any]]]:
    """A run with a branch, a map, a loop, a retry, a tolerated failure and a wait."""
    worker = await mill.process()
    big = {"condition": "output > 5", "next_nodes": ["big"]}
    flow = document(
        node("start", config=7, branch={"rules": [big], "default": ["small"]}),
        node("big"),
        node("small"),
        node("join", "big", "small", map={"over": [1, 2, 3]}),
        node("poll", "join", loop={"condition": "iteration < 2", "max_iterations": 9}),
        node(
            "flaky",
            "poll",
            type="fail",
            config={"attempts": 1, "retryable": True, "value": 1},
            retry={"backoff_seconds": 10, "jitter": 0},
        ),
        node("mail", "poll", type="fail", config={"kind": "no_route", "message": "no <route>"}, on_error="continue"),
        node("wait", "flaky", "mail", type="sleep", config={"seconds": 30}),
    )
    view = await worker.run(flow, key="run-1")
    return view, await worker.engine.events(view.run_id)


@simulated
async def test_a_run_with_everything(mill: Cluster) -> None:
    view, events = await finished(mill)
    picture = pictures.run_svg(view, events)
    check_golden("run.svg", picture)
    said = texts(picture)
    assert "test@1" in said
    assert any(text.startswith("completed in 40.") and "run run-1" in text for text in said)
    assert any("3 items" in text for text in said)
    assert any("3 passes" in text for text in said)
    assert any("2 attempts" in text for text in said)
    assert {"completed", "failed and handled", "skipped", "taken", "not taken"} <= set(said)
    assert any("no <route> [no_route]" in title for title in titles(picture))


@simulated
async def test_a_view_alone_is_enough(mill: Cluster) -> None:
    view, _ = await finished(mill)
    said = texts(pictures.run_svg(view))
    assert {"completed", "failed and handled", "skipped", "taken", "not taken"} <= set(said)


@simulated
async def test_a_run_that_goes_on_shows_what_it_waits_for(mill: Cluster) -> None:
    worker = await mill.process()
    run_id = await worker.start(
        document(node("a"), node("ask", "a", type="human", config={"title": "go?"}), node("b", "ask")), key="r"
    )
    await asyncio.sleep(5)
    view = await worker.engine.show(run_id)
    said = texts(pictures.run_svg(view, await worker.engine.events(run_id), now_ms=mill.now_ms()))
    assert any("waits for a decision" in text for text in said)
    assert {"waiting", "not reached"} <= set(said)
    assert any(text.startswith("running for 5.0 s") for text in said)


@simulated
async def test_a_failed_run_names_the_error(mill: Cluster) -> None:
    worker = await mill.process()
    view = await worker.run(document(node("a", type="fail", config={"kind": "no_car"}), node("b", "a")))
    picture = pictures.run_svg(view)
    assert "no_car" in texts(picture)
    assert "not reached" in texts(picture), "one failure is shown as one"
    assert any(text.startswith("failed after") for text in texts(picture))


def test_every_status_has_a_sign_and_a_word_of_its_own() -> None:
    signs = STATUS_SIGNS.values()
    assert len({sign.path for sign in signs}) == len({sign.word for sign in signs}) == len(STATUS_SIGNS)


def test_a_loop_over_several_nodes_is_a_link_back() -> None:
    workflow = graph_of([(0, 1), (1, 2)])
    loop = Loop(condition="true", max_iterations=4, back_to="n0", body=("n0", "n1"))
    nodes = (workflow.nodes[0], msgspec.structs.replace(workflow.nodes[1], loop=loop), workflow.nodes[2])
    picture = pictures.graph_svg(msgspec.structs.replace(workflow, nodes=nodes))
    assert "↺ at most 4 passes" in texts(picture)
    assert "loop" in texts(picture)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_large_workflows_are_drawn(shape: str) -> None:
    workflow = graph_of(SHAPES[shape](5_000))
    began = time.monotonic()
    picture = pictures.graph_svg(workflow)
    assert picture.count("<title>") == 5_001
    assert time.monotonic() - began < 60, "takes about two seconds"
