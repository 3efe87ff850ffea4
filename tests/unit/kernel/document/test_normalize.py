"""The normal form: every other spelling reads as the one of ours, and normalising twice changes nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fixtures.kernel.authoring import TYPES, document, node
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.diff import diff_documents
from tidemill.kernel.document.json_patch import apply_patch
from tidemill.kernel.document.reader import normalise
from tidemill.kernel.model import Retention, Workflow, decode_workflow, encode_workflow

DIGEST = "sha256:" + "0" * 64
CEL = {"type": "cel", "expression": "output.ok"}

SPELLINGS: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("node_id", {"node_id": "a", "type": "value"}, {"id": "a", "type": "value"}),
    ("handler", {"id": "a", "handler": "value"}, {"id": "a", "type": "value"}),
    ("llm", {"id": "a", "handler": "llm_service"}, {"id": "a", "type": "llm"}),
    ("task", {"id": "a", "type": "task"}, {"id": "a", "type": "python"}),
    ("decision", {"id": "a", "type": "decision"}, {"id": "a", "type": "value"}),
    ("backoff_ms", node("a", retry={"backoff_ms": 1500}), node("a", retry={"backoff_seconds": 1.5})),
    ("retry", node("a", retry=3), node("a", retry={"max_attempts": 3})),
    ("deadline_s", node("a", limits={"deadline_s": 30}), node("a", timeout_seconds=30)),
    ("timeout_sec", node("a", timeout_sec=30), node("a", timeout_seconds=30)),
    ("timeout_minutes", node("a", timeout_minutes=2), node("a", timeout_seconds=120)),
    ("agent_config", node("a", agent_config={"model": "m"}), node("a", config={"model": "m"})),
    ("config_ref", node("a", config_ref=f"cas://{DIGEST}"), node("a", config_ref=DIGEST)),
    (
        "cas_ref",
        node("a", config_ref={"type_url": "svc.http/Config@1", "cas_ref": DIGEST}),
        node("a", config_ref=DIGEST),
    ),
    ("wait for all", node("a", wait_for_all=True), node("a", join="all")),
    ("when", node("a", when="inputs.x"), node("a", when={"type": "cel", "expression": "inputs.x"})),
    ("loop off", node("a", loop={"enabled": False, "rubbish": 1}), node("a")),
    ("branch off", node("a", branch={"enabled": False}), node("a")),
    (
        "loop on",
        node("a", loop={"enabled": True, "condition": "output.ok", "max_iterations": 2}),
        node("a", loop={"condition": CEL, "max_iterations": 2, "loop_back_to": "a"}),
    ),
    (
        "branch",
        node("a", branch={"enabled": True, "rules": [{"condition": "output.ok", "next_nodes": ["b"]}]}),
        node("a", branch={"type": "conditional", "rules": [{"condition": CEL, "next_nodes": ["b"]}]}),
    ),
    (
        "human",
        {
            "id": "a",
            "type": "human",
            "human_config": {
                "timeout_hours": 48,
                "approvers": ["boss"],
                "escalation_policy": "auto_approve_after_timeout",
                "approval_ui_url": "https://approvals.example",
            },
        },
        {
            "id": "a",
            "type": "human",
            "config": {
                "timeout_hours": 48,
                "approvers": ["boss"],
                "approval_url": "https://approvals.example",
                "on_timeout": "approve",
            },
        },
    ),
    (
        "compensator",
        node("a", compensator={"action": "stripe.refund", "timeout_sec": 60, "retry": 3}),
        node(
            "a",
            compensator={
                "type": "python",
                "config": {"function": "stripe.refund"},
                "timeout_seconds": 60,
                "retry": {"max_attempts": 3},
            },
        ),
    ),
    ("null is absent", node("a", config=None, retry=None, when=None), node("a")),
]


def normal(raw: Any) -> Any:
    form, problems = normalise(raw)
    assert problems == []
    return form


@pytest.mark.parametrize(("seed", "ours"), [row[1:] for row in SPELLINGS], ids=[row[0] for row in SPELLINGS])
def test_a_seed_spelling_reads_as_ours(seed: dict[str, Any], ours: dict[str, Any]) -> None:
    form = normal(document(seed))
    assert form == normal(document(ours))
    assert form["nodes"][0].keys() <= ours.keys()
    assert list(form["nodes"][0]) == list(normal(document(ours))["nodes"][0])


@pytest.mark.parametrize("row", range(len(SPELLINGS)))
def test_the_normal_form_is_its_own_normal_form(row: int) -> None:
    form = normal(document(SPELLINGS[row][1]))
    assert normal(form) == form


def test_the_normal_form_has_nodes_edges_and_a_fixed_order() -> None:
    raw = {
        "edges": [{"to": "c", "from": "b"}, {"from": "a", "to": "b"}],
        "limits": {"max_hops": 3, "deadline_s": 5},
        "nodes": [
            {"priority": 1, "type": "value", "id": "a", "dependents": ["c", "b"]},
            {"type": "value", "id": "b", "dependencies": ["a"]},
            {"config": 1, "id": "c", "type": "value"},
        ],
        "name": "x",
    }
    form = normal(raw)
    assert form == {
        "name": "x",
        "limits": {"deadline_seconds": 5, "max_hops": 3},
        "nodes": [
            {"id": "a", "type": "value", "priority": 1},
            {"id": "b", "type": "value"},
            {"id": "c", "type": "value", "config": 1},
        ],
        "edges": [{"from": "a", "to": "b"}, {"from": "a", "to": "c"}, {"from": "b", "to": "c"}],
    }
    assert [list(form), list(form["limits"]), list(form["nodes"][0]), list(form["edges"][0])] == [
        ["name", "limits", "nodes", "edges"],
        ["deadline_seconds", "max_hops"],
        ["id", "type", "priority"],
        ["from", "to"],
    ]


def test_nodes_may_be_a_mapping() -> None:
    listed = document({"id": "a", "type": "value"}, {"id": "b", "type": "value", "dependencies": ["a"]})
    mapped = {**listed, "nodes": {"a": {"type": "value"}, "b": {"id": "b", "type": "value", "dependencies": ["a"]}}}
    assert normal(mapped) == normal(listed)


def test_normalising_leaves_the_author_s_object_alone() -> None:
    raw = document(
        {"id": "a", "type": "human", "config": {"escalation_policy": "auto_approve_after_timeout"}},
        node("b", "a", "a", loop={"condition": "output.ok", "max_iterations": 1}),
    )
    before = repr(raw)
    compile_document(raw, TYPES)
    assert repr(raw) == before


REFUSED = [
    ("wrong_type", "/retention", 30),
    ("wrong_type", "/retention/days", {"days": "30"}),
    ("wrong_type", "/retention/days", {"days": True}),
    ("wrong_type", "/retention/keep", {"keep": 1}),
    ("out_of_range", "/retention/days", {"days": -1}),
    ("out_of_range", "/retention/days", {"days": 36_501}),
    ("unknown_key", "/retention/day", {"day": 3}),
    ("conflicting_keys", "/retention/days", {"days": 3, "keep": True}),
]


def compiled(**more: Any) -> Workflow:
    return compile_document(document(node("a"), **more), TYPES).workflow


@pytest.mark.parametrize(("code", "path", "given"), REFUSED)
def test_what_is_refused(code: str, path: str, given: Any) -> None:
    with pytest.raises(Rejected) as refused:
        compiled(retention=given)
    assert [(problem.code, problem.path) for problem in refused.value.problems] == [(code, path)]


LONG = 10**4_300


@pytest.mark.parametrize(
    ("path", "given"),
    [
        ("/nodes/0/config", document({"id": "a", "type": "value", "config": LONG})),
        ("/nodes/0/config/x/0", document({"id": "a", "type": "value", "config": {"x": [-LONG]}})),
        ("/nodes/0/priority", document({"id": "a", "type": "value", "config": 1, "priority": LONG})),
        ("/name", {"name": LONG}),
        ("", LONG),
        ("/nodes/0", document({"id": "a", "type": "value", LONG: 1})),
        ("/nodes/0/config", document({"id": "a", "type": "value", "config": {1: 2}})),
    ],
    ids=["config", "list", "priority", "name", "document", "key", "small key"],
)
def test_what_cannot_be_written_is_refused(path: str, given: Any) -> None:
    with pytest.raises(Rejected) as refused:
        compile_document(given, TYPES)
    assert [(problem.code, problem.path) for problem in refused.value.problems] == [("not_json", path)]


def test_the_longest_integer_is_kept() -> None:
    compiled = compile_document(document({"id": "a", "type": "value", "config": LONG - 1}), TYPES)
    assert compiled.workflow.by_id["a"].config == LONG - 1


def test_what_is_read() -> None:
    assert compiled().retention == Retention()
    assert compiled(retention={"days": 7}).retention == Retention(days=7.0)
    assert compiled(retention={"days": 0}).retention == Retention(days=0.0)
    assert compiled(retention={"keep": True}).retention == Retention(keep=True)


def test_saying_nothing_is_the_same_as_not_saying_it() -> None:
    plain = compiled()
    assert b"retention" not in encode_workflow(plain)
    for nothing in ({}, {"keep": False}, {"days": None}, None):
        assert compiled(retention=nothing).digest == plain.digest
        assert "retention" not in normalise(document(node("a"), retention=nothing))[0]


def test_a_compiled_form_is_read_back_with_its_digest() -> None:
    for given in ({"days": 30}, {"days": 0.5}, {"keep": True}):
        workflow = compiled(retention=given)
        again = decode_workflow(encode_workflow(workflow))
        assert (again, again.digest) == (workflow, workflow.digest)
        assert workflow.digest != compiled().digest


def test_patches_and_differences_know_it() -> None:
    old, _ = normalise(document(node("a")))
    new, _ = normalise(document(node("a"), retention={"days": 90}))
    operations = diff_documents(old, new)
    assert operations == [{"op": "add", "path": "/retention", "value": {"days": 90}}]
    assert normalise(apply_patch(old, operations))[0] == new
