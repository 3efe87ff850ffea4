"""The board folds events into rows, and its words fit what happened."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import EXAMPLES
from tests.fixtures.graphs import chain, fan, graph_of
from tidemill.cli.render.board import NodeProgress, RunProgress, detail, duration

ERROR = {"code": "busy", "message": "the line is busy", "causes": ()}


def watched(path: Path, inputs: dict[str, Any] | None = None) -> tuple[RunProgress, tidemill.RunView]:
    """Run a document and fold its events."""
    with tidemill.open("memory://") as mill:
        published = mill.publish(path)
        board = RunProgress(mill.workflow(published.name), mill.start(published.name, inputs))
        for event in mill.follow(board.run_id):
            board.apply(event)
        return board, mill.show(board.run_id)


@pytest.mark.parametrize(
    ("name", "inputs"),
    [("hello", {}), ("branches", {"amount": 1}), ("loops", {"wanted": 99}), ("map", {}), ("errors", {})],
)
def test_the_board_ends_as_the_run_does(name: str, inputs: dict[str, Any]) -> None:
    board, view = watched(EXAMPLES / f"{name}.yaml", inputs)
    for node, shown in view.nodes.items():
        row = board.rows[node]
        assert row.phase.replace("TOLERATED", "FAILED") == shown["status"], node
        if "items" in shown:
            assert counts_of(row) == shown["items"]
        if row.phase == "COMPLETED":
            assert row.attempt == shown["attempts"]
    assert board.seq == view.events
    assert board.ended == len(view.nodes)
    assert sum(board.counts.values()) == len(view.nodes)
    assert board.elapsed_ms(0) >= 0


def counts_of(row: NodeProgress) -> dict[str, int | None]:
    cancelled = {"cancelled": row.cancelled} if row.cancelled else {}
    return {"count": row.count, "done": row.done, "failed": row.failed, **cancelled}


def test_cancelled_items_of_a_failed_map_have_not_ended_by_themselves(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    map_ = "{over: [60, -1], max_parallel: 2}"
    file.write_text(
        f"name: flow\nnodes: [{{id: a, type: sleep, map: {map_}, config: {{seconds: '{{{{ item }}}}'}}}}]\n"
    )
    board, view = watched(file)
    row = board.rows["a"]
    assert counts_of(row) == view.nodes["a"]["items"] == {"count": 2, "done": 2, "failed": 1, "cancelled": 1}
    assert detail(row, 0).startswith("1/2 items, 1 failed, 1 cancelled · ")


def test_a_failed_run_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text("name: flow\nnodes: [{id: a, type: fail}, {id: b, type: value, dependencies: [a]}]\n")
    board, _ = watched(file)
    assert board.failed_node == "a"
    assert board.error is not None and board.error["code"] == "failed"
    assert detail(board.rows["b"], 0) == "not reached: node a failed"
    assert [row.name for row in board.window(1)] == ["b"]


def at(kind: str, node: str, seq: int = 1, **more: Any) -> dict[str, Any]:
    return {"seq": seq, "type": kind, "at_ms": 1000, "node": node, "visit": 1, **more}


def test_a_retry_is_news_and_is_counted_down() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    assert board.apply(at("NodeScheduled", "n0")) is None
    row = board.apply(at("NodeFailed", "n0", attempt=1, error=ERROR, retry_at_ms=3500))
    assert row is board.rows["n0"]
    assert detail(row, 2000) == "attempt 1 failed: the line is busy [busy] · retry in 1.5 s"
    assert detail(row, 4000) == "attempt 2"
    assert board.spent(row, 4000) == "3.0 s"


def test_the_time_of_a_fork_is_its_own_and_goes_on_after_a_retry() -> None:
    board = RunProgress(graph_of(chain(1)))
    for kind, at_ms in (("RunCreated", 0), ("RunCompleted", 10), ("RunForked", 5_000)):
        board.apply({"type": kind, "seq": 1, "at_ms": at_ms})
    assert board.elapsed_ms(5_007) == 7
    board.apply({"type": "RunCompleted", "seq": 4, "at_ms": 5_020})
    assert board.elapsed_ms(9_000) == 20
    board.apply({"type": "RunRetried", "seq": 5, "at_ms": 6_000, "nodes": []})
    assert board.elapsed_ms(9_000) == 4_000


def test_waiting_says_for_what() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    board.apply(at("NodeScheduled", "n0"))
    row = board.rows["n0"]
    board.apply(at("NodeWaiting", "n0", attempt=1, on="timer", until_ms=62_000))
    assert detail(row, 0) == "sleeps, 1 m 02 s left"
    board.apply(at("NodeWaiting", "n0", attempt=1, on="signal", name="go"))
    assert detail(row, 0) == "waits for signal go"
    board.apply(at("NodeWaiting", "n0", attempt=1, on="loop"))
    assert detail(row, 0) == "waiting for the rest of its loop"


def test_a_held_node_says_so() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    board.apply(at("NodeScheduled", "n0", held=True))
    assert board.rows["n0"].phase == "PENDING"
    assert detail(board.rows["n0"], 0) == "held by max_parallel"


def test_items_are_counted() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    board.apply(at("NodeScheduled", "n0"))
    board.apply(at("NodeExpanded", "n0", count=1200))
    for index in range(3):
        assert board.apply(at("NodeCompleted", "n0", index=index, attempt=1)) is None
    board.apply(at("NodeFailed", "n0", index=3, attempt=2, error=ERROR))
    board.apply(at("NodeFailed", "n0", index=4, attempt=1, error=ERROR, retry_at_ms=5))
    assert detail(board.rows["n0"], 0) == "4/1,200 items, 1 failed · attempt 2"


def test_unknown_events_and_nodes_of_later_versions_are_let_pass() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    assert board.apply(at("NodeBlessed", "n0", seq=7)) is None
    assert board.apply(at("NodeCompleted", "stranger", seq=8)) is None
    assert board.apply({"seq": 9, "type": "SignalReceived", "at_ms": 0}) is None
    assert board.seq == 9


def test_the_window_shows_what_failed_what_runs_and_what_just_ended() -> None:
    board = RunProgress(graph_of(fan(1000)), "r")
    for number in range(1, 500):
        board.apply(at("NodeScheduled", f"n{number}"))
    for number in range(1, 100):
        board.apply(at("NodeCompleted", f"n{number}", attempt=1))
    board.apply(at("NodeFailed", "n400", attempt=1, error=ERROR, tolerated=True))
    rows = board.window(12)
    assert [row.number for row in rows] == sorted(row.number for row in rows)
    phases = [row.phase for row in rows]
    assert len(rows) == 12
    assert phases.count("TOLERATED") == 1
    assert phases.count("ACTIVE") == 8
    assert phases.count("COMPLETED") == 3
    assert len(board.window(5000)) == 1000


def test_a_window_costs_the_same_for_any_run() -> None:
    def seconds(size: int) -> float:
        board = RunProgress(graph_of(fan(size)), "r")
        for number in range(1, size):
            board.apply(at("NodeScheduled", f"n{number}"))
        taken = []
        for _ in range(5):
            began = time.process_time()
            for _ in range(200):
                board.window(25)
            taken.append(time.process_time() - began)
        return min(taken)

    assert seconds(20_000) <= 10 * seconds(200) + 0.02


@pytest.mark.parametrize(
    ("ms", "words"),
    [
        (0, "<1 ms"),
        (1, "1 ms"),
        (999, "999 ms"),
        (1000, "1.0 s"),
        (59_900, "59.9 s"),
        (59_960, "1 m 00 s"),
        (61_000, "1 m 01 s"),
        (3_600_000, "1 h 00 m"),
        (360_000_000, "100 h 00 m"),
    ],
)
def test_durations(ms: int, words: str) -> None:
    assert duration(ms) == words


def test_hostile_reasons_stay_on_their_line() -> None:
    row = NodeProgress(0, "a", phase="FAILED", reason="bad\n\x1b[2Jnews " + "x" * 500, code="c")
    assert "\n" not in detail(row, 0)
    assert "\x1b" not in detail(row, 0)
    assert len(detail(row, 0)) < 200


def test_a_row_says_whom_it_waits_for() -> None:
    board = RunProgress(graph_of(chain(2)), "r")
    row = board.rows["n0"]
    board.apply(at("NodeScheduled", "n0"))
    board.apply(at("NodeWaiting", "n0", on="human", expires_ms=61_000))
    assert detail(row, 1000) == "waits for a decision, 1 m 00 s left"
    board.apply(at("ApprovalRequested", "n0", title="?", approvers=("user:ada", "role:ops"), quorum=2))
    assert detail(row, 1000) == "waits for a decision by user:ada, role:ops, 0 of 2 agreed"
    board.apply(at("ApprovalVoted", "n0", by="user:ada"))
    assert detail(row, 1000) == "waits for a decision by user:ada, role:ops, 1 of 2 agreed"
    board.apply(at("ApprovalEscalated", "n0", to=("user:boss",), expires_ms=61_000))
    assert detail(row, 1000) == "waits for a decision by user:boss, 0 of 2 agreed, 1 m 00 s left"
    assert board.apply(at("NodeCompleted", "n0", output={})) is row
    board.apply(at("NodeWaiting", "n1", on="signal", name="go"))
    assert detail(board.rows["n1"], 1000) == "waits for signal go"
    board.apply(at("NodeWaiting", "n1", on="child"))
    assert detail(board.rows["n1"], 1000) == "waits for a child run"


def test_what_operators_do_is_seen() -> None:
    board = RunProgress(graph_of(chain(3)), "r")
    for status, phase in (("QUEUED", "ACTIVE"), ("COMPLETED", "COMPLETED"), ("SKIPPED", "SKIPPED")):
        board.apply(at("NodeScheduled", "n0"))
        board.apply(at("NodeOverridden", "n0", status=status))
        assert board.rows["n0"].phase == phase
    board.apply({"seq": 5, "type": "RunRewound", "at_ms": 1000, "node": "n0", "nodes": [{"node": "n0", "visit": 2}]})
    assert board.rows["n0"].phase == "PENDING"
    board.apply(at("NodeScheduled", "n1"))
    board.apply({"seq": 7, "type": "RunPatched", "at_ms": 1000, "added": ("late",), "removed": ("n1", "n2")})
    assert [row.name for row in board.window(10)] == ["n0", "late"]
    assert sum(board.counts.values()) == 2 and board.counts["PENDING"] == 2
    assert board.apply(at("NodeCompleted", "late")) is board.rows["late"]


def test_progress_is_shown_while_a_node_is_at_work() -> None:
    board = RunProgress(graph_of(chain(2)))
    name = next(iter(board.rows))
    told = {"type": "NodeProgressed", "live": True, "node": name, "visit": 1, "index": -1, "attempt": 1}
    early = {**told, "fraction": 0.1, "message": "too early"}
    assert board.apply(early) is None and detail(board.rows[name], 0) == ""
    board.apply({"type": "NodeScheduled", "seq": 1, "at_ms": 0, "node": name, "visit": 1})
    board.apply({**told, "fraction": 0.425, "message": "row 17\n of 40"})
    assert detail(board.rows[name], 0) == "42% row 17 of 40"
    board.apply({**told, "fraction": None, "message": "who knows"})
    assert detail(board.rows[name], 0) == "who knows"
    assert board.seq == 1, "what is shown live has no number"
    board.apply({"type": "NodeCompleted", "seq": 2, "at_ms": 5, "node": name, "visit": 1, "attempt": 1})
    board.apply({**told, "fraction": 1.0, "message": "late"})
    assert detail(board.rows[name], 0) == ""


def test_a_map_keeps_its_counts_when_the_run_is_retried() -> None:
    document = {
        "name": "flow",
        "nodes": [
            {"id": "m", "type": "python", "map": {"over": [0, 1, 2, 3], "max_parallel": 1, "tolerate": 1},
             "retry": {"max_attempts": 1}, "config": {"function": "some", "args": {"n": "{{ item }}"}}}
        ],
    }  # fmt: skip
    bad = {1, 2}

    def some(n: int) -> int:
        if n in bad:
            raise ValueError(n)
        return n

    with tidemill.open("memory://", functions={"some": some}) as mill:
        mill.publish(document)
        board = RunProgress(mill.workflow("flow"), mill.start("flow"))
        for event in mill.follow(board.run_id):
            board.apply(event)
        assert detail(board.rows["m"], 0).startswith("3/4 items, 2 failed")
        assert counts_of(board.rows["m"]) == mill.show(board.run_id).nodes["m"]["items"]
        bad.clear()
        mill.retry(board.run_id)
        for event in mill.follow(board.run_id, after=board.seq):
            board.apply(event)
        assert counts_of(board.rows["m"]) == mill.show(board.run_id).nodes["m"]["items"]
    assert (board.rows["m"].phase, detail(board.rows["m"], 0)) == ("COMPLETED", "4 items, 1 failed · 2 attempts")


def test_the_time_in_the_queue_is_not_the_nodes() -> None:
    board = RunProgress(graph_of(chain(2)))
    for kind, at_ms in (("NodeScheduled", 0), ("NodeStarted", 17_000), ("NodeCompleted", 17_002)):
        board.apply({**at(kind, "n0", attempt=1), "at_ms": at_ms})
    assert board.spent(board.rows["n0"], 99_000) == "2 ms"
