"""Random changes to random documents: what a patch may bring, kept only if the result is a document."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

from tests.model.documents import Shape, _edges

Json = Any
Document = dict[str, Json]

TRIES = 8


def changed(rng: random.Random, document: Document) -> Document | None:
    """The document after one to three changes; None when none was found that leaves it valid."""
    for _ in range(TRIES):
        made = copy.deepcopy(document)
        for _ in range(rng.choice((1, 1, 2, 3))):
            if made["nodes"]:
                rng.choice(CHANGES)(rng, made)
        if made != document and valid(made):
            return made
    return None


def valid(document: Document) -> bool:
    """Whether the compiler would take it."""
    written = {node["id"]: node for node in document["nodes"]}
    shape = Shape(random.Random(0))
    shape.nodes, shape.edges = list(written), _edges(document, written)
    if not written or any(at not in written or to not in written for at, to in shape.edges):
        return False
    shape.loops = {at: node["loop"].get("loop_back_to", at) for at, node in written.items() if "loop" in node}
    shape.errors = {(at, to) for at, node in written.items() for to in _routes(node)}
    if not shape.well_formed():
        return False
    return all(_joins(node, len(shape.into(at))) and _loops(shape, node) for at, node in written.items())


def _routes(node: Json) -> list[str]:
    return node["on_error"]["route"] if isinstance(node.get("on_error"), dict) else []


def _joins(node: Json, inbound: int) -> bool:
    join = node.get("join", "all")
    if not inbound:
        return "join" not in node
    return not isinstance(join, dict) or join["quorum"] <= inbound


def _loops(shape: Shape, node: Json) -> bool:
    at = node["id"]
    return (
        "loop" not in node
        or shape.loops[at] == at
        or (shape.loops[at] in shape.nodes and at in shape.descendants(shape.loops[at]))
    )


def _some(rng: random.Random, document: Document) -> Json:
    return rng.choice(document["nodes"])


def _add_node(rng: random.Random, document: Document) -> None:
    """Behind some nodes, and now and then before another."""
    known = [node["id"] for node in document["nodes"]]
    name = f"m{rng.randrange(1_000)}"
    if name in known:
        return
    behind = rng.sample(known, min(len(known), rng.choice((0, 1, 1, 1, 2))))
    added = {"id": name, "type": "value", "config": {"value": 1}, "dependencies": behind}
    if rng.random() < 0.2:
        added["map"] = {"over": [1, 2], "max_parallel": 1}
    if rng.random() < 0.2:
        added["on_error"] = "continue"
    if behind and rng.random() < 0.3:
        added["join"] = rng.choice(("any", "strict"))
    document["nodes"].insert(rng.randrange(len(known) + 1), added)
    if rng.random() < 0.5:
        _some(rng, document).setdefault("dependencies", []).append(name)


def _add_edge(rng: random.Random, document: Document) -> None:
    source, target = _some(rng, document), _some(rng, document)
    needs = target.setdefault("dependencies", [])
    if source is not target and source["id"] not in needs:
        needs.append(source["id"])


def _remove_edge(rng: random.Random, document: Document) -> None:
    node = _some(rng, document)
    if node.get("dependencies"):
        node["dependencies"].remove(rng.choice(node["dependencies"]))


def _remove_node(rng: random.Random, document: Document) -> None:
    """With its edges, and wherever a rule names it."""
    gone = _some(rng, document)["id"]
    document["nodes"] = [node for node in document["nodes"] if node["id"] != gone]
    document["edges"] = [edge for edge in document.get("edges", []) if gone not in edge.values()]
    for node in document["nodes"]:
        _forget(node, gone)


def _forget(node: Json, gone: str) -> None:
    for holder, key in _named_in(node):
        holder[key] = [name for name in holder[key] if name != gone]
    if isinstance(node.get("on_error"), dict) and not node["on_error"]["route"]:
        del node["on_error"]


def _named_in(node: Json) -> list[tuple[Json, str]]:
    """Wherever a node names others, as (mapping, key)."""
    branch, loop = node.get("branch", {}), node.get("loop", {})
    found = [(node, "dependencies"), (branch, "available_next_nodes"), (branch, "default")]
    found += [(rule, "next_nodes") for rule in branch.get("rules", ())]
    found += [(loop, "break_path"), (loop, "timeout_path")]
    found += [(node["on_error"], "route")] if isinstance(node.get("on_error"), dict) else []
    return [(holder, key) for holder, key in found if key in holder]


def _configure(rng: random.Random, document: Document) -> None:
    node = _some(rng, document)
    node["config"] = {**node["config"], "more": rng.randrange(100)}


def _toggle_loop(rng: random.Random, document: Document) -> None:
    """Take a loop away, or make one around some nodes."""
    node = _some(rng, document)
    if "loop" in node:
        del node["loop"]
    else:
        entry = _some(rng, document)["id"]
        node["loop"] = {"condition": "inputs.flag", "max_iterations": rng.choice((1, 2, 3)), "loop_back_to": entry}


def _rejoin(rng: random.Random, document: Document) -> None:
    node = _some(rng, document)
    node.pop("join", None)
    if rng.random() < 0.7:
        node["join"] = rng.choice(("all", "any", "strict", {"quorum": 1}))


def _remap(rng: random.Random, document: Document) -> None:
    node = _some(rng, document)
    if node.pop("map", None) is None:
        node["map"] = {"over": [1], "max_parallel": 2, "tolerate": rng.choice((0, 1))}


def _limit(rng: random.Random, document: Document) -> None:
    limits = document.setdefault("limits", {})
    limits.pop("max_parallel", None)
    if rng.random() < 0.6:
        limits["max_parallel"] = rng.randint(1, 4)


def _outputs(rng: random.Random, document: Document) -> None:
    if document.pop("outputs", None) is None:
        document["outputs"] = {"out": 1}


CHANGES: tuple[Callable[[random.Random, Document], None], ...] = (
    _add_node, _add_node, _add_node, _add_edge, _add_edge, _remove_edge, _remove_node, _remove_node, _configure,
    _toggle_loop, _rejoin, _remap, _limit, _outputs,
)  # fmt: skip
