"""Patches of a document: the standard, nodes by id, refusals, and the difference of two documents as a patch."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.kernel.authoring import TYPES, chain, compiled, document, node
from tests.model.documents import random_document
from tidemill.errors import Problem, Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.document.diff import Change, GraphDiff, NodeChange, diff_documents, diff_workflows, identical
from tidemill.kernel.document.json_patch import OPERATIONS_MAX, POINTER_LENGTH_MAX, apply_patch, same_value
from tidemill.kernel.document.reader import normalise
from tidemill.kernel.model import NodeType

Json = Any

RANDOM_TYPES = {name: [NodeType(name=name)] for name in ("value", "fail", "sleep", "python")}


def op(name: str, path: str, *value: Json, **more: Json) -> dict[str, Json]:
    written = {"op": name, "path": path, **{key.rstrip("_"): said for key, said in more.items()}}
    return {**written, "value": value[0]} if value else written


def normal(*ids: str, **top: Json) -> Json:
    return compile_document(chain(*ids, **top), TYPES).document


def refused(base: Json, *operations: Json) -> tuple[Problem, ...]:
    before = copy.deepcopy(base)
    with pytest.raises(Rejected) as caught:
        apply_patch(base, list(operations))
    assert base == before
    return caught.value.problems


def said(base: Json, *operations: Json) -> list[tuple[str, str]]:
    return [(problem.code, problem.path) for problem in refused(base, *operations)]


@pytest.mark.parametrize(
    ("base", "operations", "expected"),
    [
        ({"foo": "bar"}, [op("add", "/baz", "qux")], {"baz": "qux", "foo": "bar"}),
        ({"foo": ["bar", "baz"]}, [op("add", "/foo/1", "qux")], {"foo": ["bar", "qux", "baz"]}),
        ({"foo": ["bar"]}, [op("add", "/foo/-", ["abc", "def"])], {"foo": ["bar", ["abc", "def"]]}),
        ({"foo": 1}, [op("add", "/foo", 2)], {"foo": 2}),
        ({"baz": "qux", "foo": "bar"}, [op("remove", "/baz")], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [op("remove", "/foo/1")], {"foo": ["bar", "baz"]}),
        ({"baz": "qux", "foo": "bar"}, [op("replace", "/baz", "boo")], {"baz": "boo", "foo": "bar"}),
        ({"foo": [1, 2, 3]}, [op("replace", "/foo/1", 9)], {"foo": [1, 9, 3]}),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [op("move", "/qux/thud", from_="/foo/waldo")],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        ({"foo": ["all", "grass", "cows", "eat"]}, [op("move", "/foo/3", from_="/foo/1")], "eat last"),
        ({"foo": {"bar": 1}}, [op("copy", "/baz", from_="/foo")], {"foo": {"bar": 1}, "baz": {"bar": 1}}),
        ({"baz": "qux", "foo": ["a", 2]}, [op("test", "/baz", "qux"), op("test", "/foo/1", 2)], "unchanged"),
        ({"foo": "bar"}, [op("add", "/baz", "qux", xyz=123)], {"foo": "bar", "baz": "qux"}),
        ({"/": 9, "~1": 10}, [op("test", "/~01", 10), op("replace", "/~1", 8)], {"/": 8, "~1": 10}),
        ({"": 1, "a": {"": 2}}, [op("test", "/", 1), op("test", "/a/", 2), op("remove", "/a/")], {"": 1, "a": {}}),
        ({"foo": 1}, [op("replace", "", {"bar": 2})], {"bar": 2}),
        ({"foo": 1}, [op("add", "", {"bar": 2}), op("test", "", {"bar": 2})], {"bar": 2}),
        ({"foo": 1}, [op("move", "/foo", from_="/foo")], {"foo": 1}),
        ({"é\n": 1}, [op("remove", "/é\n")], {}),
    ],
)
def test_the_standard(base: Json, operations: Json, expected: Json) -> None:
    words = {"eat last": {"foo": ["all", "cows", "eat", "grass"]}, "unchanged": base}
    before = copy.deepcopy(base)
    assert apply_patch(base, operations) == (words[expected] if isinstance(expected, str) else expected)
    assert base == before


def test_what_is_copied_is_not_changed_with_its_original() -> None:
    base = {"a": {"b": [1]}}
    operations = [
        op("add", "/a/b/-", 2),
        op("copy", "/c", from_="/a"),
        op("add", "/c/b/-", 3),
        op("add", "/a/b/-", 4),
        op("copy", "/a/d", from_="/c/b"),
        op("remove", "/c/b/0"),
    ]
    assert apply_patch(base, operations) == {"a": {"b": [1, 2, 4], "d": [1, 2, 3]}, "c": {"b": [2, 3]}}
    assert base == {"a": {"b": [1]}}


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        (1, 1.0, True),
        (True, 1, False),
        ([1, {"a": 2}], [1.0, {"a": 2.0}], True),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ({"a": None}, {}, False),
        ([1, 2], [2, 1], False),
        ("1", 1, False),
        (10**30, 10**30, True),
    ],
)
def test_equality_of_json_values(one: Json, other: Json, equal: bool) -> None:
    assert same_value(one, other) is same_value(other, one) is equal
    if equal:
        assert apply_patch({"a": one}, [op("test", "/a", other)]) == {"a": one}
    else:
        assert said({"a": one}, op("test", "/a", other)) == [("patch_test_failed", "/0")]


def test_a_failed_test_says_what_is_there() -> None:
    base = {"a": {"b": "x"}, "n": 10**5000}
    (problem,) = refused(base, op("test", "/a/b", "x"), op("test", "/a", 3))
    assert problem.path == "/1" and problem.hint
    assert problem.message == "`/a` is a mapping of 1, not 3"
    assert refused(base, op("test", "/n", None))[0].message == "`/n` is a whole number, not null"
    assert refused(base, op("test", "", [True]))[0].message == "the document is a mapping of 2, not a list of 1"
    assert refused(base, op("test", "/a/b", "y"))[0].message == "`/a/b` is `x`, not `y`"
    assert refused(base, op("test", "/a/b", True))[0].message == "`/a/b` is `x`, not true"


@pytest.mark.parametrize(
    ("operations", "paths"),
    [
        ({"op": "add"}, [""]),
        (None, [""]),
        ([op("remove", "/name")] * (OPERATIONS_MAX + 1), [""]),
        (["remove", None], ["/0", "/1"]),
        ([{}], ["/0", "/0"]),
        ([op("zap", "/a"), op("add", "/a", 1), op("remove", "a")], ["/0/op", "/2/path"]),
        ([{"op": 1, "path": "/a"}, {"op": "remove", "path": 7}], ["/0/op", "/1/path"]),
        ([op("add", "/a"), op("replace", "/a"), op("test", "/a")], ["/0", "/1", "/2"]),
        ([op("move", "/a"), op("copy", "/a", from_=3)], ["/0", "/1/from"]),
        ([op("remove", "/a~2"), op("remove", "/a~"), op("copy", "/a", from_="b")], ["/0/path", "/1/path", "/2/from"]),
        ([op("remove", "/" + "a" * POINTER_LENGTH_MAX)], ["/0/path"]),
        ([op("remove", "")], ["/0/path"]),
        ([op("move", "/a/b", from_="/a"), op("move", "/a", from_="")], ["/0/path", "/1/path"]),
    ],
)
def test_everything_ill_formed_is_reported_at_once(operations: Json, paths: list[str]) -> None:
    with pytest.raises(Rejected) as caught:
        apply_patch(normal("a"), operations)
    assert [(problem.code, problem.path) for problem in caught.value.problems] == [
        ("patch_invalid", path) for path in paths
    ]


def test_the_longest_pointer_and_the_longest_patch_are_taken() -> None:
    path = "/" + "a" * (POINTER_LENGTH_MAX - 1)
    assert apply_patch({}, [op("add", path, 1)]) == {path[1:]: 1}
    assert apply_patch({"a": 1}, [op("test", "/a", 1)] * OPERATIONS_MAX) == {"a": 1}


def test_values_are_bounded_and_json_like_those_of_a_document() -> None:
    deep: Json = 1
    for _ in range(200):
        deep = [deep]
    assert [code for code, _ in said({}, op("add", "/a", deep))] == ["too_deep"]
    assert said({}, op("add", "/a", {"b": float("nan")})) == [("not_json", "/0/value/b")]
    assert said({}, op("add", "/a", {1, 2})) == [("not_json", "/0/value")]


def test_a_value_that_grows_by_copying_is_cheap_to_make_and_refused_by_the_compiler() -> None:
    doubling = [op("copy", "/nodes/0/config/b", from_="/nodes/0/config"), op("copy", "/nodes/0/config/a/x", from_="/x")]
    base = {**normal("a"), "x": 1}
    base["nodes"][0]["config"] = {"a": {}}
    grown = apply_patch(base, (doubling * 400)[:OPERATIONS_MAX])
    _, problems = normalise(grown)
    assert [problem.code for problem in problems] == ["too_deep"]


@pytest.mark.parametrize(
    ("operation", "path", "hint"),
    [
        (op("remove", "/limts"), "/0/path", "`limits`"),
        (op("replace", "/description", "x"), "/0/path", ""),
        (op("remove", "/nodes/fetsh"), "/0/path", "`fetch`"),
        (op("replace", "/nodes/fetsh/config", 1), "/0/path", "`fetch`"),
        (op("remove", "/nodes/zzz"), "/0/path", "by its id"),
        (op("remove", "/nodes/7"), "/0/path", "2 entries"),
        (op("add", "/nodes/3", {"id": "c"}), "/0/path", "2 entries"),
        (op("add", "/nodes/01", {"id": "c"}), "/0/path", "by its id"),
        (op("remove", "/nodes/-"), "/0/path", "by its id"),
        (op("test", "/edges/-", {}), "/0/path", "1 entries"),
        (op("add", "/edges/fetch", {}), "/0/path", "1 entries"),
        (op("remove", "/edges/" + "9" * 900), "/0/path", "1 entries"),
        (op("add", "/name/x", 1), "/0/path", ""),
        (op("move", "/a", from_="/limts"), "/0/from", "`limits`"),
        (op("copy", "/a", from_="/nodes/fetsh"), "/0/from", "`fetch`"),
    ],
)
def test_a_path_that_leads_nowhere(operation: Json, path: str, hint: str) -> None:
    base = normal("fetch", "store", limits={"max_hops": 5})
    (problem,) = refused(base, operation)
    assert (problem.code, problem.path) == ("patch_path_missing", path)
    assert hint in problem.hint and len(str(problem)) < 1_000


def test_application_stops_at_the_first_operation_that_does_not_fit() -> None:
    assert said(normal("a"), op("test", "/name", "test"), op("remove", "/b"), op("remove", "/c")) == [
        ("patch_path_missing", "/1/path")
    ]


def test_nodes_that_were_replaced_by_a_mapping_are_found_by_their_keys() -> None:
    operations = [op("replace", "/nodes", {"a": {"type": "value"}}), op("add", "/nodes/a/config", 1)]
    patched = apply_patch(
        normal("b"), [*operations, op("add", "/nodes/c", {"type": "value"}), op("remove", "/nodes/c")]
    )
    assert compile_document(patched, TYPES).workflow == compiled(node("a", config=1)).workflow


def test_a_node_is_found_by_its_id() -> None:
    base = normal("a", "b", "c")
    patched = apply_patch(base, [op("add", "/nodes/b/config", {"x": 1}), op("replace", "/nodes/c/type", "sleep")])
    assert patched["nodes"][1]["config"] == {"x": 1} and patched["nodes"][2]["type"] == "sleep"
    assert patched["nodes"][0] is base["nodes"][0] and patched["edges"] is base["edges"]


def test_a_new_node_is_added_under_its_id() -> None:
    added = apply_patch(normal("a", "b"), [op("add", "/nodes/c", {"type": "value", "dependencies": ["a", "b"]})])
    assert added["nodes"][2]["id"] == "c"
    again = compile_document(added, TYPES)
    assert again.workflow == compiled(node("a"), node("b", "a"), node("c", "a", "b")).workflow
    assert again.document["edges"][-1] == {"from": "b", "to": "c"}
    assert "dependencies" not in again.document["nodes"][2]


def test_a_node_that_was_added_is_found_by_the_next_operation() -> None:
    operations = [
        op("add", "/nodes/b", {"node_id": "b", "type": "value"}),
        op("add", "/nodes/b/config", 5),
        op("add", "/nodes/0", {"id": "z", "type": "value"}),
        op("test", "/nodes/b/config", 5),
        op("test", "/nodes/a/type", "value"),
        op("add", "/edges/-", {"from": "z", "to": "b"}),
    ]
    patched = apply_patch(normal("a"), operations)
    assert [node.get("id", node.get("node_id")) for node in patched["nodes"]] == ["z", "a", "b"]
    assert compile_document(patched, TYPES).workflow.by_id["b"].config == 5


def test_a_node_that_was_renamed_is_found_by_its_new_id() -> None:
    patched = apply_patch(normal("a"), [op("replace", "/nodes/a/id", "b"), op("add", "/nodes/b/config", 5)])
    assert patched["nodes"] == [{"id": "b", "type": "value", "config": 5}]
    assert said(normal("a"), op("replace", "/nodes/a/id", "b"), op("remove", "/nodes/a")) == [
        ("patch_path_missing", "/1/path")
    ]


@settings(max_examples=90)
@given(st.lists(st.tuples(st.sampled_from("rRaimnt"), st.integers(0, 9), st.integers(0, 9)), max_size=25))
def test_nodes_are_found_by_id_whatever_happened_before(story: list[tuple[str, int, int]]) -> None:
    """Beside a plain list of names, on which the same is done by index."""
    names = [f"n{number}" for number in range(8)]
    base = {"name": "x", "nodes": [{"id": name} for name in names], "edges": [{"from": "n3", "to": "n4"}]}
    edges, operations = {"n3", "n4"}, []
    for number, (what, one, other) in enumerate(story):
        if not names:
            break
        at, to = one % len(names), other % len(names)
        match what:
            case "r" | "R":
                operations.append(op("remove", f"/nodes/{names[at] if what == 'r' else at}"))
                name = names.pop(at)
                edges = set() if what == "r" and name in edges else edges
            case "a":
                operations.append(op("add", f"/nodes/a{number}", {}))
                names.append(f"a{number}")
            case "i":
                operations.append(op("add", f"/nodes/{at}", {"id": f"i{number}"}))
                names.insert(at, f"i{number}")
            case "m":
                operations.append(op("move", f"/nodes/{to}", from_=f"/nodes/{names[at]}"))
                names.insert(to, names.pop(at))
            case "n":
                operations.append(op("replace", f"/nodes/{names[at]}/id", f"r{number}"))
                names[at] = f"r{number}"
            case _:
                operations.append(op("test", f"/nodes/{names[at]}/id", names[at]))
    patched = apply_patch(base, operations)
    assert [entry["id"] for entry in patched["nodes"]] == names
    assert len(patched["edges"]) == bool(edges)


def test_of_two_nodes_with_one_id_the_second_is_found_once_the_first_is_gone() -> None:
    twice = [op("add", "/nodes/-", {"id": "a", "type": "sleep"}), op("test", "/nodes/a/type", "value")]
    patched = apply_patch(normal("a", "b"), [*twice, op("remove", "/nodes/a"), op("replace", "/nodes/a/type", "http")])
    assert patched["nodes"] == [{"id": "b", "type": "value"}, {"id": "a", "type": "http"}]


def test_adding_over_a_node_replaces_it_where_it_stands() -> None:
    for name in ("add", "replace"):
        patched = apply_patch(normal("a", "b"), [op(name, "/nodes/a", {"type": "sleep"})])
        assert patched["nodes"] == [{"id": "a", "type": "sleep"}, {"id": "b", "type": "value"}]
        assert patched["edges"] == [{"from": "a", "to": "b"}]


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        (op("add", "/nodes/c", {"id": "d", "type": "value"}), "/0/value"),
        (op("add", "/nodes/c", {"id": None, "node_id": "d"}), "/0/value"),
        (op("replace", "/nodes/a", {"id": "d", "type": "value"}), "/0/value"),
        (op("add", "/nodes/c", "value"), "/0/value"),
        (op("copy", "/nodes/c", from_="/nodes/a"), "/0"),
        (op("move", "/nodes/c", from_="/nodes/a"), "/0"),
        (op("move", "/nodes/0/config", from_="/nodes/a"), "/0/path"),
        (op("move", "/nodes/a/config", from_="/nodes/0"), "/0/path"),
    ],
)
def test_an_id_that_contradicts_its_path_is_refused(operation: Json, path: str) -> None:
    assert said(normal("a", "b"), operation) == [("patch_invalid", path)]


def test_a_node_removed_by_its_id_takes_its_edges_along() -> None:
    base = compiled(node("a"), node("b", "a"), node("c", "b"), node("d", "a", "c")).document
    patched = apply_patch(base, [op("remove", "/nodes/b")])
    assert patched["edges"] == [{"from": "a", "to": "d"}, {"from": "c", "to": "d"}]
    assert [problem.code for problem in normalise(patched)[1]] == []
    assert compile_document(patched, TYPES).workflow.entries == ("a", "c")


def test_a_node_removed_by_its_index_is_just_an_entry_of_a_list() -> None:
    patched = apply_patch(normal("a", "b"), [op("remove", "/nodes/1")])
    assert patched["edges"] == [{"from": "a", "to": "b"}]
    with pytest.raises(Rejected, match="unknown_dependency"):
        compile_document(patched, TYPES)
    strange = apply_patch(normal("a", "b"), [op("add", "/edges/-", {"from": "1", "to": "a"}), op("remove", "/nodes/1")])
    assert len(strange["edges"]) == 2


def test_a_node_is_moved_with_its_edges() -> None:
    base = normal("a", "b", "c")
    patched = apply_patch(base, [op("move", "/nodes/0", from_="/nodes/c"), op("move", "/nodes/1", from_="/nodes/a")])
    assert [entry["id"] for entry in patched["nodes"]] == ["c", "a", "b"] and patched["edges"] == base["edges"]
    assert apply_patch(base, [op("move", "/nodes/a", from_="/nodes/0")]) == base


def pair(seed: int) -> tuple[Json, Json]:
    """Two random documents: strangers, or one and what became of it."""
    rng = random.Random(seed)
    old = random_document(rng, rng.randint(1, 14))
    if rng.random() < 0.4:
        return old, random_document(rng, rng.randint(1, 14))
    new = copy.deepcopy(old)
    if rng.random() < 0.7:
        rng.shuffle(new["nodes"])
    for entry in new["nodes"]:
        if entry["type"] == "value" and rng.random() < 0.3:
            entry["config"]["value"] = {"x": rng.choice([1, 1.0, True, None, "ä/~"]), "a/b~": {"": rng.random()}}
        if rng.random() < 0.2:
            entry["retry"] = {"max_attempts": rng.randint(1, 3)}
    for number in range(rng.randint(0, 3)):
        place = rng.randint(0, len(new["nodes"]))
        new["nodes"].insert(place, node(f"extra{number}", *(f"extra{other}" for other in range(number))))
    return (old, new) if rng.random() < 0.5 else (new, old)


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_a_difference_makes_one_document_of_the_other(seed: int) -> None:
    old, new = (compile_document(raw, RANDOM_TYPES) for raw in pair(seed))
    before = copy.deepcopy(old.document)
    operations = diff_documents(old.document, new.document)
    patched = apply_patch(old.document, operations)
    assert old.document == before
    again = compile_document(patched, RANDOM_TYPES)
    assert again.workflow.digest == new.workflow.digest
    assert identical(again.document, new.document)
    assert (operations == []) is identical(old.document, new.document)


@settings(max_examples=100)
@given(st.permutations("abcdefgh"), st.sets(st.sampled_from("abcdefgh")), st.permutations("efghijkl"))
def test_few_nodes_are_moved(order: list[str], left_out: set[str], others: list[str]) -> None:
    old: Json = {"name": "x", "nodes": [{"id": name} for name in order if name not in left_out], "edges": []}
    new = {"name": "x", "nodes": [{"id": name} for name in others], "edges": []}
    operations = diff_documents(old, new)
    assert apply_patch(old, operations) == new
    both = {entry["id"] for entry in old["nodes"]} & set(others)
    assert sum(operation["op"] == "move" for operation in operations) <= max(0, len(both) - 1)


def test_a_difference_is_written_where_it_is() -> None:
    old = compiled(node("a", config={"url": "x", "n": 1}), node("b", "a"), node("c", "b"), limits={"max_hops": 5})
    new = compiled(
        node("a", config={"url": "y", "n": 1.0}),
        node("c", "a"),
        node("d", "c"),
        limits={"max_hops": 5},
        description="D",
    )
    assert diff_documents(old.document, new.document) == [
        op("add", "/description", "D"),
        op("remove", "/nodes/b"),
        op("add", "/nodes/d", {"id": "d", "type": "value"}),
        op("replace", "/nodes/a/config/url", "y"),
        op("replace", "/nodes/a/config/n", 1.0),
        op("add", "/edges/-", {"from": "a", "to": "c"}),
        op("add", "/edges/-", {"from": "c", "to": "d"}),
    ]


def test_moving_the_first_node_to_the_end_is_one_operation() -> None:
    old = compiled(*(node(f"n{number}") for number in range(50))).document
    new = compiled(*(node(f"n{number}") for number in [*range(1, 50), 0])).document
    assert diff_documents(old, new) == [op("move", "/nodes/49", from_="/nodes/n0")]


def test_a_difference_too_long_for_a_patch_replaces_the_document() -> None:
    old = compiled(*(node(f"n{number}", config=0) for number in range(OPERATIONS_MAX + 1))).document
    new = compiled(*(node(f"n{number}", config=1) for number in range(OPERATIONS_MAX + 1))).document
    assert diff_documents(old, new) == [op("replace", "", new)]
    new["nodes"][0] = old["nodes"][0]
    assert len(diff_documents(old, new)) == OPERATIONS_MAX


def test_a_key_too_long_for_a_pointer_is_replaced_with_what_holds_it() -> None:
    key = "~" * (POINTER_LENGTH_MAX // 2)
    old, new = (compiled(node("a", config={"in": {key: number, "x": 1}})).document for number in (1, 2))
    operations = diff_documents(old, new)
    assert operations == [op("replace", "/nodes/a/config/in", {key: 2, "x": 1})]
    assert apply_patch(old, operations) == new


@pytest.mark.parametrize(
    ("one", "other"), [(1, 1.0), (True, 1), (0.0, -0.0), ({"a": None}, {}), ([1], [1, 1]), ({}, []), ("a", "b")]
)
def test_what_is_written_differently_is_different(one: Json, other: Json) -> None:
    assert not identical(one, other) and identical(one, copy.deepcopy(one))
    old, new = (compiled(node("a", config={"x": value})) for value in (one, other))
    assert old.workflow.digest != new.workflow.digest
    assert diff_documents(old.document, new.document)


def compare(old: Json, new: Json, types: Json = TYPES) -> GraphDiff:
    left, right = compile_document(old, types), compile_document(new, types)
    return diff_workflows(left.workflow, left.document, right.workflow, right.document)


def test_the_graphs_of_two_workflows_are_compared() -> None:
    old = document(
        node("a", branch={"rules": [{"condition": "true", "next_nodes": ["b"]}], "default": ["c"]}),
        node("b"),
        node("c"),
        limits={"max_hops": 5},
    )
    new = document(node("d"), node("c", config=1), node("b", "c"), node("a"), description="D")
    branch = compile_document(old, TYPES).document["nodes"][0]["branch"]
    assert compare(old, new) == GraphDiff(
        nodes_added=("d",),
        nodes_removed=(),
        nodes_changed=(
            NodeChange(id="a", fields=(Change(field="branch", old=branch),)),
            NodeChange(id="c", fields=(Change(field="config", new=1),)),
        ),
        edges_added=(("c", "b"),),
        edges_removed=(("a", "b"), ("a", "c")),
        entries_added=("d", "c"),
        entries_removed=(),
        terminals_added=("d", "a"),
        terminals_removed=("c",),
        keys=(Change(field="limits", old={"max_hops": 5}), Change(field="description", new="D")),
        reordered=True,
    )


def test_a_workflow_does_not_differ_from_itself() -> None:
    found = compare(chain("a", "b"), chain("a", "b"))
    assert not any(getattr(found, field) for field in found.__struct_fields__)


def test_a_newer_major_of_a_type_is_a_change_of_the_node() -> None:
    raw = document({"id": "a", "type": "http", "config": {"url": "u"}})
    left = compile_document(raw, {"http": TYPES["http"][:1]})
    right = compile_document(raw, TYPES)
    found = diff_workflows(left.workflow, left.document, right.workflow, right.document)
    assert found.nodes_changed == (NodeChange(id="a", fields=(Change(field="type", old="http@1", new="http@2"),)),)
