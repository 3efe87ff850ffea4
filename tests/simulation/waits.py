"""Documents whose nodes wait for people, signals and children, and undo what they did: put into the random ones."""

from __future__ import annotations

import random
from typing import Any

Json = Any

PEOPLE = ("ada", "bob", "cyd", "dan")
ROLES = {"ada": ("boss",), "bob": ("boss", "clerk"), "cyd": ("clerk",), "dan": ()}
"""Who has which role, unless it was revoked a moment ago."""
SIGNALS = ("go", "stop")
KID = "kid"


def with_waits(rng: random.Random, document: dict[str, Json]) -> dict[str, Json]:
    """The document with some of its nodes turned into waits, and compensators on others."""
    nodes = []
    for node in document["nodes"]:
        changed = dict(node)
        if rng.random() < 0.2:
            changed |= _waiting(rng, document, node)
        if rng.random() < 0.25:
            changed["compensator"] = _compensator(rng)
        nodes.append(changed)
    more = {"on_failure": {"compensate": "automatic"}} if rng.random() < 0.3 else {}
    return {**document, "nodes": nodes, **more}


def with_compensators(rng: random.Random, document: dict[str, Json]) -> dict[str, Json]:
    """The document with compensators on most of its nodes."""
    nodes = [{"compensator": _compensator(rng), **node} if rng.random() < 0.8 else node for node in document["nodes"]]
    return {**document, "nodes": nodes}


def _waiting(rng: random.Random, document: dict[str, Json], node: dict[str, Json]) -> dict[str, Json]:
    kind = rng.choice(("human", "human", "signal", "workflow", "wait_until"))
    config: Json = None
    if kind == "human":
        config = _approval(rng, document, node)
    elif kind == "signal":
        config = {"name": rng.choice(SIGNALS)}
    elif kind == "workflow":
        inputs = {"flag": True, "x": rng.randrange(4), "items": [1, 2]}
        config = {"workflow": KID, "inputs": inputs, "close": rng.choice(("cancel", "cancel", "abandon"))}
    else:
        config = {"at_ms": rng.choice((0, 5_000, 60_000))}
    return {"type": kind, "config": config}


def _approval(rng: random.Random, document: dict[str, Json], node: dict[str, Json]) -> dict[str, Json]:
    config: dict[str, Json] = {"title": f"{node['id']}?"}
    if rng.random() < 0.7:
        config["approvers"] = rng.sample(["user:ada", "user:bob", "role:boss", "role:clerk"], 3)
        config["quorum"] = rng.choice((1, 1, 2))
    if rng.random() < 0.3:
        config["four_eyes"] = True
    if rng.random() < 0.5:
        config["timeout_seconds"] = rng.choice((2, 10, 40))
        config["on_timeout"] = rng.choice(("approve", "reject", "escalate", "fail"))
        if config["on_timeout"] == "escalate":
            config["escalate_to"] = ["user:dan", "role:boss"]
    targets = [edge["to"] for edge in document.get("edges", ()) if edge["from"] == node["id"]]
    if targets and not node.keys() & {"branch", "loop", "map", "on_error"} and rng.random() < 0.5:
        paths = rng.sample(targets, min(2, len(targets)))
        config["rejection_path"] = paths[:1]
        if len(paths) > 1:
            config["changes_path"] = paths[1:]
    return config


def _compensator(rng: random.Random) -> dict[str, Json]:
    attempts = rng.choice((1, 2, 3))
    return {
        "type": "python",
        "config": {"function": "undo"},
        "retry": {"max_attempts": attempts, "backoff_seconds": 1},
        **({"timeout_seconds": 3} if rng.random() < 0.3 else {}),
    }
