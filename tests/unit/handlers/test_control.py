"""The node types that touch nothing, and what the compiler knows of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.fixtures.handler_harness import called
from tidemill.errors import Problem, Rejected
from tidemill.handlers.contract import ApprovalRequest, ChildRun, Done, Fail, Wait
from tidemill.handlers.control import PLAIN, WAITING
from tidemill.kernel.compile.compiler import compile_document

HANDLERS = {handler.type.name: handler for handler in PLAIN}
TYPES = {handler.type.name: [handler.type] for handler in PLAIN}


@pytest.mark.parametrize("config", [None, 0, "text", [1, {"a": None}], {"x": {"y": 2.5}}])
async def test_value_returns_its_config(config: Any) -> None:
    assert await called(HANDLERS["value"], config) == Done(config)


async def test_fail_fails_with_its_kind() -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS["fail"], {"kind": "no_stock", "message": "sold out", "retryable": True})
    assert (failed.value.code, failed.value.message, failed.value.retryable) == ("no_stock", "sold out", True)


@pytest.mark.parametrize("config", [None, {}])
async def test_fail_has_defaults_and_is_not_retryable(config: Any) -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS["fail"], config)
    assert (failed.value.code, failed.value.retryable) == ("failed", False)
    assert failed.value.message


@pytest.mark.parametrize(("attempts", "fails"), [(0, 0), (1, 1), (3, 3)])
async def test_fail_may_stop_failing(attempts: int, fails: int) -> None:
    outcomes: list[Any] = []
    for attempt in range(1, 6):
        try:
            outcomes.append(await called(HANDLERS["fail"], {"attempts": attempts, "value": "v"}, attempt=attempt))
        except Fail:
            outcomes.append(None)
    assert outcomes == [None] * fails + [Done("v")] * (5 - fails)


@pytest.mark.parametrize(
    ("config", "ms"),
    [({"seconds": 5}, 5_000), ({"ms": 7}, 7), ({"seconds": 0.25}, 250), ({"seconds": 0}, 0), ({"ms": 0}, 0)],
)
async def test_sleep_asks_for_a_timer(config: Any, ms: int) -> None:
    assert await called(HANDLERS["sleep"], config) == Wait(on="timer", for_ms=ms)


BAD_CONFIGS = [
    ("sleep", {}),
    ("sleep", None),
    ("sleep", {"seconds": -1}),
    ("sleep", {"seconds": "5"}),
    ("sleep", {"seconds": 1, "ms": 1}),
    ("sleep", {"ms": 1.5}),
    ("sleep", {"ms": 10**15}),
    ("sleep", {"minutes": 1}),
    ("fail", {"kind": "Bad Kind"}),
    ("fail", {"kind": ""}),
    ("fail", {"kind": "x" * 65}),
    ("fail", {"attempts": -1}),
    ("fail", {"retryable": "yes"}),
    ("fail", {"surprise": 1}),
    ("fail", [1]),
]


@pytest.mark.parametrize(("name", "config"), BAD_CONFIGS)
def test_a_config_that_cannot_work_is_refused_when_published(name: str, config: Any) -> None:
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "t", "nodes": [{"id": "a", "type": name, "config": config}]}, TYPES)
    assert {problem.code for problem in refused.value.problems} == {"config_invalid"}


def test_a_default_that_its_form_does_not_allow_is_refused_when_published() -> None:
    form = {"type": "object", "properties": {"amount": {"type": "integer", "default": "many"}}}
    document = {"name": "t", "nodes": [{"id": "a", "type": "human", "config": {"form": form}}]}
    with pytest.raises(Rejected) as refused:
        compile_document(document, TYPES_OF_WAITING)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("schema_invalid", "/nodes/0/config/form/properties/amount/default")
    assert "who leaves this field out" in problem.hint


# The node types that wait: what may be configured, what is asked for, and what is refused before anything waits


HANDLERS_OF_WAITING = {handler.type.name: handler for handler in WAITING}
TYPES_OF_WAITING = {name: [handler.type] for name, handler in HANDLERS_OF_WAITING.items()}

WHOLE = {
    "title": "Pay?",
    "description": "An invoice",
    "form": {"type": "object"},
    "approvers": ["user:ada", "role:boss"],
    "quorum": 2,
    "four_eyes": True,
    "timeout_seconds": 90,
    "on_timeout": "escalate",
    "escalate_to": ["role:board"],
    "rejection_path": ["no"],
    "changes_path": ["again"],
    "approval_url": "https://example.org/pay",
}


def _document(type_: str, config: Any) -> dict[str, Any]:
    after = [{"id": name, "type": "signal", "dependencies": ["a"]} for name in ("no", "again")]
    return {"name": "t", "nodes": [{"id": "a", "type": type_, "config": config}, *after]}


def _refused(type_: str, config: Any) -> tuple[Problem, ...]:
    with pytest.raises(Rejected) as refused:
        compile_document(_document(type_, config), TYPES_OF_WAITING)
    return refused.value.problems


async def test_people_are_asked_for_everything_that_is_configured() -> None:
    assert await called(HANDLERS_OF_WAITING["human"], WHOLE) == Wait(
        on="human",
        approval=ApprovalRequest(
            title="Pay?",
            description="An invoice",
            form={"type": "object"},
            approvers=("user:ada", "role:boss"),
            quorum=2,
            four_eyes=True,
            timeout_ms=90_000,
            on_timeout="escalate",
            escalate_to=("role:board",),
            url="https://example.org/pay",
        ),
    )


@pytest.mark.parametrize("config", [None, {}])
async def test_without_a_config_anyone_decides_and_there_is_no_hurry(config: Any) -> None:
    assert await called(HANDLERS_OF_WAITING["human"], config, node="ship") == Wait(
        on="human", approval=ApprovalRequest(title="ship", quorum=1, on_timeout="fail")
    )


@pytest.mark.parametrize(
    ("config", "ms"),
    [
        ({"timeout_seconds": 5}, 5_000),
        ({"timeout_seconds": 0.25}, 250),
        ({"timeout_seconds": 0.0001}, 1),
        ({"timeout_hours": 2}, 7_200_000),
        ({"timeout_hours": 0.5}, 1_800_000),
        ({}, None),
    ],
)
async def test_time_to_decide(config: Any, ms: int | None) -> None:
    asked = await called(HANDLERS_OF_WAITING["human"], config)
    assert isinstance(asked, Wait) and asked.approval is not None
    assert asked.approval.timeout_ms == ms


@pytest.mark.parametrize(
    ("approvers", "quorum"), [(["user:a"], 2), (["user:a", "user:b"], 3), (["user:a", "user:a"], 2)]
)
async def test_more_people_than_are_asked_cannot_agree(approvers: list[str], quorum: int) -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS_OF_WAITING["human"], {"approvers": approvers, "quorum": quorum})
    assert failed.value.code == "config_invalid"
    assert str(quorum) in failed.value.message and failed.value.hint


async def test_a_list_that_is_too_short_is_named() -> None:
    config = {"approvers": ["role:boss"], "escalate_to": ["user:cfo"], "quorum": 2}
    with pytest.raises(Fail) as failed:
        await called(HANDLERS_OF_WAITING["human"], config)
    assert failed.value.message == "2 people have to agree, but `escalate_to` names only 1"
    assert failed.value.hint == "lower the quorum, or name a role in `escalate_to`"


@pytest.mark.parametrize(
    ("approvers", "quorum"), [([], 9), (["role:boss"], 9), (["user:a", "role:boss"], 9), (["user:a", "user:b"], 2)]
)
async def test_a_role_may_have_any_number_of_people(approvers: list[str], quorum: int) -> None:
    asked = await called(HANDLERS_OF_WAITING["human"], {"approvers": approvers, "quorum": quorum})
    assert isinstance(asked, Wait) and asked.approval is not None and asked.approval.quorum == quorum


async def test_a_number_that_was_computed_is_a_number_of_people() -> None:
    """Templates divide into doubles, and a schema takes 2.0 for an integer: so does the handler."""
    asked = await called(HANDLERS_OF_WAITING["human"], {"quorum": 2.0})
    assert isinstance(asked, Wait) and asked.approval is not None
    assert asked.approval.quorum == 2 and type(asked.approval.quorum) is int


def test_a_whole_config_compiles_and_its_paths_become_edges() -> None:
    workflow = compile_document(_document("human", WHOLE), TYPES_OF_WAITING).workflow
    assert set(workflow.by_id["a"].outbound) == {"no", "again"}
    assert {name: tuple(targets) for name, targets in workflow.by_id["a"].exits.items()} == {
        "rejection": ("no",),
        "changes": ("again",),
    }


@pytest.mark.parametrize(
    "config",
    [
        {"form": "{{ inputs.form }}"},
        {"form": {"properties": {"n": {"enum": "{{ inputs.choices }}"}}}},
        {"approvers": ["user:{{ inputs.who }}"], "quorum": 2},
        {"approvers": "{{ inputs.them }}", "quorum": 2},
        {"approvers": ["user:ada"], "quorum": "{{ inputs.n }}"},
        {"approvers": ["user:ada", "role:ops"], "quorum": 2},
        {"quorum": 2},
        "{{ inputs.all }}",
        None,
    ],
)
def test_what_is_not_known_yet_is_not_judged(config: Any) -> None:
    for type_, given in (("human", config), ("wait_until", {"at": "{{ inputs.when }}"})):
        assert compile_document(_document(type_, given), TYPES_OF_WAITING).workflow.nodes[0].config == given


def test_a_moment_that_is_none_is_refused_at_once() -> None:
    (problem,) = _refused("wait_until", {"at": "tomorrow"})
    assert (problem.code, problem.path) == ("config_invalid", "/nodes/0/config/at")
    assert "tomorrow" in problem.message and problem.hint


BAD_HUMANS = [
    ({"title": 5}, "/title"),
    ({"title": "x" * 501}, "/title"),
    ({"description": ["x"]}, "/description"),
    ({"description": "x" * 20_001}, "/description"),
    ({"form": "name"}, "/form"),
    ({"form": {"type": "objekt"}}, "/form/type"),
    ({"form": {"properties": {"n": {"minimum": "one"}}}}, "/form/properties/n/minimum"),
    ({"approvers": ["user:ada", "user:ada"], "quorum": 2}, "/quorum"),
    ({"on_timeout": "escalate", "timeout_seconds": 5, "escalate_to": ["user:ada"], "quorum": 2}, "/quorum"),
    ({"on_timeout": "reject"}, "/on_timeout"),
    ({"approvers": "user:ada"}, "/approvers"),
    ({"approvers": ["ada"]}, "/approvers/0"),
    ({"approvers": ["user:ada", "group:x"]}, "/approvers/1"),
    ({"approvers": ["user:"]}, "/approvers/0"),
    ({"approvers": ["user:x"] * 1_001}, "/approvers"),
    ({"quorum": 0}, "/quorum"),
    ({"quorum": 1.5}, "/quorum"),
    ({"quorum": "two"}, "/quorum"),
    ({"four_eyes": "yes"}, "/four_eyes"),
    ({"timeout_seconds": 0}, "/timeout_seconds"),
    ({"timeout_seconds": -1}, "/timeout_seconds"),
    ({"timeout_seconds": 10**12}, "/timeout_seconds"),
    ({"timeout_hours": 0}, "/timeout_hours"),
    ({"timeout_hours": 876_601}, "/timeout_hours"),
    ({"timeout_hours": 1, "timeout_seconds": 1}, ""),
    ({"on_timeout": "ignore"}, "/on_timeout"),
    ({"on_timeout": "escalate"}, ""),
    ({"on_timeout": "escalate", "escalate_to": []}, "/escalate_to"),
    ({"escalate_to": ["boss"]}, "/escalate_to/0"),
    ({"approval_url": 5}, "/approval_url"),
    ({"approval_url": "x" * 2_001}, "/approval_url"),
    ({"surprise": 1}, "/surprise"),
    (["a list"], ""),
]


@pytest.mark.parametrize(("config", "path"), BAD_HUMANS)
def test_a_human_node_that_cannot_work_is_refused_when_published(config: Any, path: str) -> None:
    problems = _refused("human", config)
    assert {(problem.code, problem.path) for problem in problems} == {("config_invalid", f"/nodes/0/config{path}")}


@pytest.mark.parametrize("field", ["rejection_path", "changes_path"])
def test_a_path_leads_to_a_node_that_exists(field: str) -> None:
    (problem,) = _refused("human", {field: ["nobody"]})
    assert problem.path.startswith(f"/nodes/0/config/{field}")
    assert "nobody" in problem.message


@pytest.mark.parametrize(("config", "name"), [(None, "n"), ({}, "n"), ({"name": "paid"}, "paid")])
async def test_a_signal_is_called_like_its_node_by_default(config: Any, name: str) -> None:
    assert await called(HANDLERS_OF_WAITING["signal"], config) == Wait(on="signal", name=name)


async def test_a_child_is_asked_for() -> None:
    whole = {"workflow": "kid@3", "inputs": {"x": 1}, "close": "abandon", "labels": {"k": "v"}}
    assert await called(HANDLERS_OF_WAITING["workflow"], whole) == Wait(
        on="child", child=ChildRun(workflow="kid@3", inputs={"x": 1}, close="abandon", labels={"k": "v"})
    )
    assert await called(HANDLERS_OF_WAITING["workflow"], {"workflow": "kid"}) == Wait(
        on="child", child=ChildRun(workflow="kid", inputs={}, close="cancel", labels={})
    )


NEW_YEAR_MS = int(datetime(2030, 1, 1, tzinfo=UTC).timestamp() * 1_000)


@pytest.mark.parametrize(
    ("config", "ms"),
    [
        ({"at": "2030-01-01T00:00:00+00:00"}, NEW_YEAR_MS),
        ({"at": "2030-01-01T00:00:00Z"}, NEW_YEAR_MS),
        ({"at": "2030-01-01T00:00:00"}, NEW_YEAR_MS),
        ({"at": " 2030-01-01 00:00 "}, NEW_YEAR_MS),
        ({"at": "2030-01-01"}, NEW_YEAR_MS),
        ({"at": "2030-01-01T01:00:00+01:00"}, NEW_YEAR_MS),
        ({"at": "2029-12-31T19:00:00.250-05:00"}, NEW_YEAR_MS + 250),
        ({"at": "1900-01-01"}, 0),
        ({"at_ms": 0}, 0),
        ({"at_ms": 5}, 5),
        ({"at_ms": 5.0}, 5),
    ],
)
async def test_a_moment(config: Any, ms: int) -> None:
    pause = await called(HANDLERS_OF_WAITING["wait_until"], config)
    assert isinstance(pause, Wait) and pause == Wait(on="timer", until_ms=ms)
    assert type(pause.until_ms) is int


@pytest.mark.parametrize("text", ["", "soon", "2030-13-01", "2030-01-01T25:00", "12:00", "0001-01-01T00:00:00+14:00x"])
async def test_a_text_that_is_no_moment(text: str) -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS_OF_WAITING["wait_until"], {"at": text})
    assert (failed.value.code, failed.value.retryable) == ("config_invalid", False)
    assert repr(text) in failed.value.message and failed.value.hint


BAD_CONFIGS_OF_WAITING = [
    ("signal", {"name": ""}, "/name"),
    ("signal", {"name": 5}, "/name"),
    ("signal", {"name": "x" * 201}, "/name"),
    ("signal", {"payload": 1}, "/payload"),
    ("workflow", None, ""),
    ("workflow", {"inputs": {}}, ""),
    ("workflow", {"workflow": ""}, "/workflow"),
    ("workflow", {"workflow": 3}, "/workflow"),
    ("workflow", {"workflow": "x" * 301}, "/workflow"),
    ("workflow", {"workflow": "kid", "close": "ignore"}, "/close"),
    ("workflow", {"workflow": "kid", "labels": {"k": 1}}, "/labels/k"),
    ("workflow", {"workflow": "kid", "labels": ["k"]}, "/labels"),
    ("workflow", {"workflow": "kid", "input": {}}, "/input"),
    ("wait_until", {}, ""),
    ("wait_until", {"at": "2030-01-01", "at_ms": 5}, ""),
    ("wait_until", {"at": 5}, "/at"),
    ("wait_until", {"at_ms": -1}, "/at_ms"),
    ("wait_until", {"at_ms": "5"}, "/at_ms"),
    ("wait_until", {"at_ms": 10**15}, "/at_ms"),
    ("wait_until", {"seconds": 5}, "/seconds"),
]


@pytest.mark.parametrize(("name", "config", "path"), BAD_CONFIGS_OF_WAITING)
def test_waiting_a_config_that_cannot_work_is_refused_when_published(name: str, config: Any, path: str) -> None:
    problems = _refused(name, config)
    assert {(problem.code, problem.path) for problem in problems} == {("config_invalid", f"/nodes/0/config{path}")}
