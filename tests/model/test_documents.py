"""Random documents: compiler and translation agree, spelling does not matter, and only Rejected is ever raised."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fixtures.kernel.authoring import TYPES
from tests.model.documents import random_document, translate
from tidemill.errors import Rejected
from tidemill.kernel.compile.compiler import compile_document
from tidemill.kernel.model import NodeType, decode_workflow, encode_workflow

PLAIN_TYPES = {name: [NodeType(name=name)] for name in ("value", "fail", "sleep", "python")}


@pytest.mark.parametrize("batch", range(8))
def test_the_compiler_and_the_translation_agree(batch: int) -> None:
    for seed in range(batch * 50, (batch + 1) * 50):
        rng = random.Random(seed)
        document = random_document(rng, rng.randint(1, 25))
        assert compile_document(document, PLAIN_TYPES).workflow == translate(document), seed


def test_compiling_the_normal_form_changes_nothing() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        first = compile_document(random_document(rng, rng.randint(1, 25)), PLAIN_TYPES)
        again = compile_document(first.document, PLAIN_TYPES)
        assert again.document == first.document
        assert again.workflow.digest == first.workflow.digest
        assert decode_workflow(encode_workflow(first.workflow)) == first.workflow


def shuffled(value: Any, rng: random.Random) -> Any:
    """The same JSON with the keys of every mapping in another order."""
    if isinstance(value, dict):
        keys = list(value)
        rng.shuffle(keys)
        return {key: shuffled(value[key], rng) for key in keys}
    return [shuffled(each, rng) for each in value] if isinstance(value, list) else value


def respelled(raw: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """The same workflow with every dependency in a place chosen at random."""
    raw = msgspec.json.decode(msgspec.json.encode(raw))
    nodes = {each["id"]: each for each in raw["nodes"]}
    edges = [(edge["from"], edge["to"]) for edge in raw.pop("edges", [])]
    edges += [(source, each["id"]) for each in raw["nodes"] for source in each.pop("dependencies", [])]
    rng.shuffle(edges)
    for source, target in edges:
        match rng.randrange(3):
            case 0:
                nodes[target].setdefault("dependencies", []).append(source)
            case 1:
                nodes[source].setdefault("dependents", []).append(target)
            case _:
                raw.setdefault("edges", []).append({"from": source, "to": target})
    return raw


def test_the_digest_does_not_depend_on_order_or_spelling() -> None:
    for seed in range(150):
        rng = random.Random(seed)
        raw = random_document(rng, rng.randint(2, 20))
        digest = compile_document(raw, PLAIN_TYPES).workflow.digest
        assert compile_document(respelled(shuffled(raw, rng), rng), PLAIN_TYPES).workflow.digest == digest


VOCABULARY = """
    id node_id type handler config config_ref dependencies dependents when join wait_for_all map over loop branch
    rules condition next_nodes enabled on_error route compensator action retry max_attempts backoff_ms limits
    deadline_s timeout_seconds name nodes edges from to inputs outputs defaults quorum loop_back_to max_iterations
    value any all unlimited a b c {{a.output}} output.x sha256:1 human agent_driven
"""
WORDS = st.sampled_from(VOCABULARY.split())
LEAVES = st.none() | st.booleans() | st.integers(-2, 2**70) | st.floats() | WORDS | st.text(max_size=3)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS | st.text(max_size=2), inner, max_size=5)
)


def compiles_or_is_refused(raw: Any) -> bool:
    """Whether all is well: a workflow whose normal form compiles to itself, or problems, and never anything else."""
    try:
        first = compile_document(raw, TYPES)
    except Rejected as refusal:
        return len(refusal.problems) > 0
    return compile_document(first.document, TYPES).workflow.digest == first.workflow.digest


@given(ANYTHING)
@settings(max_examples=120)
def test_any_value_compiles_or_is_refused(raw: Any) -> None:
    assert compiles_or_is_refused(raw)


NAMES = st.sampled_from("abcd")
ALMOST = {
    "id": NAMES,
    "type": st.sampled_from(["value", "human", "sleep", "nothing"]),
    "dependencies": st.lists(NAMES, max_size=3),
    "dependents": st.lists(NAMES, max_size=2),
    "config": ANYTHING,
    "when": ANYTHING,
    "join": st.sampled_from(["all", "any"]) | st.fixed_dictionaries({"quorum": st.integers(0, 3)}) | ANYTHING,
    "loop": st.fixed_dictionaries(
        {"condition": st.just("output.x"), "max_iterations": st.integers(1, 2) | ANYTHING},
        optional={"loop_back_to": NAMES},
    ),
    "branch": st.fixed_dictionaries(
        {},
        optional={
            "rules": st.lists(st.fixed_dictionaries({"condition": WORDS, "next_nodes": st.lists(NAMES)})),
            "default": ANYTHING,
        },
    ),
    "on_error": st.fixed_dictionaries({"route": st.lists(NAMES, max_size=2)}) | ANYTHING,
    "map": st.fixed_dictionaries({"over": ANYTHING}),
    "compensator": ANYTHING,
    "retry": ANYTHING,
}
NODES = st.fixed_dictionaries(
    {"id": ALMOST["id"], "type": ALMOST["type"]},
    optional={key: ALMOST[key] for key in ALMOST if key not in ("id", "type")},
)
DOCUMENTS = st.fixed_dictionaries(
    {"name": st.just("x"), "nodes": st.lists(NODES, min_size=1, max_size=6)},
    optional={"edges": ANYTHING, "outputs": ANYTHING, "inputs": ANYTHING, "limits": ANYTHING, "defaults": ANYTHING},
)


@given(DOCUMENTS)
@settings(max_examples=150)
def test_almost_documents_compile_or_are_refused(raw: Any) -> None:
    assert compiles_or_is_refused(raw)
