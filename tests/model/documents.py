"""Random workflow documents, valid by construction, and a translation of them into the IR."""

from __future__ import annotations

import random
import re
from collections.abc import Collection
from typing import Any

from tidemill.kernel.model import Branch, Limits, Loop, Map, Node, OnError, Retry, Rule, Workflow

Json = Any
Edge = tuple[str, str]


def random_document(rng: random.Random, size: int) -> dict[str, Json]:
    """A valid document of about `size` nodes (error handlers may add a few)."""
    shape = Shape(rng)
    shape.grow(max(1, size))
    return _Decorator(rng, shape).document()


def random_ir(rng: random.Random, size: int) -> Workflow:
    """The IR of a random document, translated here."""
    return translate(random_document(rng, size))


class Shape:
    """A graph with loops; `errors` are the edges that only an error path may name."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.nodes: list[str] = []
        self.edges: list[Edge] = []
        self.errors: set[Edge] = set()
        self.loops: dict[str, str] = {}

    def grow(self, size: int) -> None:
        """Blocks, then whatever else leaves the loops well formed."""
        exits: list[str] = []
        while len(self.nodes) < size:
            entry, leave = self._block(self.rng.randint(1, size - len(self.nodes)))
            if exits and self.rng.random() < 0.85:
                for source in self.rng.sample(exits, self.rng.randint(1, min(2, len(exits)))):
                    self._join(source, entry)
            exits.append(leave)
        for _ in range(self.rng.randint(0, 1 + size // 3)):
            self._try_edge(self.rng.choice(self.nodes), self.rng.choice(self.nodes), error=False)
        for _ in range(self.rng.choice((0, 0, 1, 1, 2, 3)) + bool(self.loops)):
            self._try_error_path()

    def out(self, source: str) -> list[str]:
        return [to for at, to in self.edges if at == source]

    def into(self, target: str) -> list[str]:
        return [at for at, to in self.edges if to == target]

    def _node(self) -> str:
        self.nodes.append(f"n{len(self.nodes)}")
        return self.nodes[-1]

    def _join(self, source: str, target: str) -> None:
        if (source, target) not in self.edges:
            self.edges.append((source, target))

    def _block(self, size: int) -> tuple[str, str]:
        """A piece with one entry and one exit, all of whose nodes lie between them."""
        kind = self.rng.choice(("series", "series", "parallel", "parallel", "loop"))
        if kind == "loop" and (size > 1 or self.rng.random() < 0.4):
            return self._loop(size)
        if size < 2:
            node = self._node()
            return node, node
        if kind == "parallel" and size > 2:
            return self._parallel(size)
        cut = self.rng.randint(1, size - 1)
        entry, middle = self._block(cut)
        then, leave = self._block(size - cut)
        self._join(middle, then)
        return entry, leave

    def _parallel(self, size: int) -> tuple[str, str]:
        split, left = self._node(), size - 2
        sides: list[tuple[str, str]] = []
        while left > 0 and len(sides) < 4:
            share = self.rng.randint(1, left)
            sides.append(self._block(share))
            left -= share
        join = self._node()
        for entry, leave in sides:
            self._join(split, entry)
            self._join(leave, join)
        if self.rng.random() < 0.2:
            self._join(split, join)
        return split, join

    def _loop(self, size: int) -> tuple[str, str]:
        """A block whose exit loops; an exit that loops already gets a successor that does."""
        if size > 3 and self.rng.random() < 0.5:
            entry, leave = self._parallel(size)
        elif size > 1:
            entry, leave = self._block(size - 1)
        else:
            entry = leave = self._node()
        if leave in self.loops:
            node = self._node()
            self._join(leave, node)
            leave = node
        self.loops[leave] = entry
        return entry, leave

    def _try_edge(self, source: str, target: str, error: bool) -> bool:
        """Add an edge if the document stays valid."""
        if source == target or (source, target) in self.edges:
            return False
        self.edges.append((source, target))
        if error:
            self.errors.add((source, target))
        if self.well_formed():
            return True
        self.edges.pop()
        self.errors.discard((source, target))
        return False

    def _try_error_path(self) -> None:
        """An error path, preferably out of a loop, to a new handler or to a node that exists."""
        inside = sorted({node for at in self.loops for node in self.body(at) if node != at})
        source = self.rng.choice(inside if inside and self.rng.random() < 0.8 else self.nodes)
        if self.rng.random() < 0.5:
            self._try_edge(source, self.rng.choice(self.nodes), error=True)
            return
        handler = self._node()
        self.edges.append((source, handler))
        self.errors.add((source, handler))
        for _ in range(self.rng.randint(0, 2)):
            self._try_edge(handler, self.rng.choice(self.nodes), error=False)

    def descendants(self, node: str) -> set[str]:
        found: set[str] = set()
        frontier = [node]
        while frontier:
            new = [to for to in self.out(frontier.pop()) if to not in found]
            found.update(new)
            frontier.extend(new)
        return found

    def body(self, looping: str) -> set[str]:
        """Every node on a path from the loop's entry to its looping node."""
        entry = self.loops[looping]
        after = self.descendants(entry) | {entry}
        return {node for node in after if node == looping or looping in self.descendants(node)}

    def well_formed(self) -> bool:
        """No cycle, and every loop body has one entry, one exit, and nests."""
        if any(node in self.descendants(node) for node in self.nodes):
            return False
        bodies = {looping: self.body(looping) for looping in self.loops}
        for looping, body in bodies.items():
            for source, to in self.edges:
                if to in body and source not in body and to != self.loops[looping]:
                    return False
                if source in body and to not in body and source != looping and (source, to) not in self.errors:
                    return False
            for other in bodies.values():
                if body & other and not (body <= other or other <= body):
                    return False
        return True


class _Decorator:
    """Turns a shape into a document."""

    def __init__(self, rng: random.Random, shape: Shape) -> None:
        self.rng = rng
        self.shape = shape
        self.limits: dict[str, Json] = {}

    def document(self) -> dict[str, Json]:
        nodes = [self._node(node) for node in self.shape.nodes]
        document: dict[str, Json] = {"name": "random", "inputs": INPUTS, "nodes": nodes}
        self._connect(document, nodes)
        self._limit()
        if self.limits:
            document["limits"] = self.limits
        if self._chance(0.2):
            document["defaults"] = {"retry": {"max_attempts": self.rng.randint(1, 2)}}
        if self._chance(0.4):
            document["outputs"] = {"out": f"{{{{ {self.rng.choice(self.shape.nodes)}.output | default(none) }}}}"}
        if self._chance(0.3):
            self.rng.shuffle(nodes)
        return document

    def _chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def _some(self, ids: list[str]) -> list[str]:
        """A non-empty part of the ids, in random order."""
        return self.rng.sample(ids, self.rng.randint(1, len(ids)))

    def _node(self, node: str) -> dict[str, Json]:
        written: dict[str, Json] = {"id": node, "type": self.rng.choice(TYPES)}
        written["config"] = self._config(node, written["type"])
        normal = [to for to in self.shape.out(node) if (node, to) not in self.shape.errors]
        self._write_errors(written, node, normal)
        self._write_work(written, node)
        if node in self.shape.loops:
            self._write_loop(written, node, normal)
        if normal and self._chance(0.25):
            written["branch"] = self._branch(normal)
        if self.shape.into(node) and self._chance(0.8 if node in self.shape.loops else 0.5):
            written["join"] = self._join(len(self.shape.into(node)))
        return written

    def _write_errors(self, written: dict[str, Json], node: str, normal: list[str]) -> None:
        routes = [to for to in self.shape.out(node) if (node, to) in self.shape.errors]
        if routes:
            extra = self._some(normal) if normal and self._chance(0.1) else []
            written["on_error"] = {"route": routes + extra}
        elif self._chance(0.35):
            written["on_error"] = "continue"
        elif len(normal) > 1 and self._chance(0.15):
            written["on_error"] = {"route": [self.rng.choice(normal)]}

    def _write_work(self, written: dict[str, Json], node: str) -> None:
        if self._chance(0.12):
            expression = self.rng.choice(WHENS)
            written["when"] = expression if self._chance(0.5) else {"type": "cel", "expression": expression}
        if self._chance(0.3):
            written["retry"] = {"max_attempts": self.rng.randint(1, 4)}
        if self._chance(0.12):
            written["delivery"] = "at_most_once"
        if self._chance(0.15):
            mapped: dict[str, Json] = {"over": self.rng.choice(["{{ inputs.items }}", [1, 2, 3]])}
            if self._chance(0.6):
                mapped["max_parallel"] = self.rng.randint(1, 3)
            if self._chance(0.5):
                mapped["tolerate"] = self.rng.randint(0, 2)
            written["map"] = mapped

    def _write_loop(self, written: dict[str, Json], node: str, normal: list[str]) -> None:
        passes = self.rng.choice((1, 2, 2, 3, 4))
        loop: dict[str, Json] = {"condition": self.rng.choice(LOOPS), "max_iterations": passes}
        if self._chance(0.1):
            loop["max_iterations"] = "unlimited"
            self.limits["max_visits"] = self.rng.choice((60, 200))
        if self.shape.loops[node] != node or self._chance(0.3):
            loop["loop_back_to"] = self.shape.loops[node]
        if normal and self._chance(0.4):
            loop["break_path"] = list(normal) if self._chance(0.5) else self._some(normal)
        if normal and self._chance(0.4):
            loop["timeout_path"] = self._some(normal)
        delays = random.Random(f"{node} {loop}")
        if delays.random() < 0.2:
            loop["delay_seconds"] = delays.choice((0.01, 2))
        written["loop"] = loop

    def _branch(self, normal: list[str]) -> dict[str, Json]:
        targets = self._some(normal)
        branch: dict[str, Json]
        if self._chance(0.3):
            branch = {"type": "agent_driven", "available_next_nodes": targets}
        else:
            conditions = self.rng.sample(CONDITIONS, self.rng.randint(1, 3))
            rules = [{"condition": condition, "next_nodes": self._some(targets)} for condition in conditions]
            branch = {"type": "conditional", "rules": rules}
        if self._chance(0.7):
            branch["default"] = self._some(targets)
        return branch

    def _join(self, inbound: int) -> Json:
        quorum = {"quorum": self.rng.randint(1, inbound)}
        return self.rng.choice(("all", "strict", "any", "any", "any", quorum, quorum))

    def _config(self, node: str, kind: str) -> Json:
        value: Json = {"x": self.rng.randint(0, 9)}
        ancestors = [other for other in self.shape.nodes if node in self.shape.descendants(other)]
        if ancestors and self._chance(0.4):
            value["seen"] = f"{{{{ {self.rng.choice(ancestors)}.output }}}}"
        around = [looping for looping in self.shape.loops if node in self.shape.body(looping)]
        if around and self._chance(0.4):
            past = self.rng.choice(sorted(self.shape.body(self.rng.choice(around))))
            value["past"] = f"{{{{ {past}.output | default(0) }}}}"
        return CONFIGS[kind](value)

    def _connect(self, document: dict[str, Json], nodes: list[dict[str, Json]]) -> None:
        """Write each edge that no rule names, and now and then one that is named."""
        by_id = {written["id"]: written for written in nodes}
        listed: list[dict[str, str]] = []
        for source, to in self.shape.edges:
            if to in _named(by_id[source]) and not self._chance(0.15):
                continue
            if self._chance(0.2):
                listed.append({"from": source, "to": to})
            else:
                by_id[to].setdefault("dependencies", []).append(source)
        if listed:
            document["edges"] = listed

    def _limit(self) -> None:
        if self._chance(0.3):
            self.limits["max_parallel"] = self.rng.randint(1, 4)
        if self._chance(0.06):
            self.limits["max_visits"] = self.rng.randint(2, 20)
        if self._chance(0.06):
            self.limits["max_hops"] = self.rng.randint(2, 12)
        if self._chance(0.1):
            width = max(len(self.shape.out(node)) for node in self.shape.nodes)
            self.limits["max_fanout"] = max(width, 3)  # the compiler refuses what is certain to be wider


INPUTS: Json = {
    "type": "object",
    "properties": {"flag": {"type": "boolean"}, "x": {"type": "integer"}, "items": {"type": "array"}},
}
TYPES = ("value", "value", "value", "python", "python", "sleep", "fail")
WHENS = ("inputs.flag", "inputs.x > 2", "iteration < 2")
LOOPS = ("iteration < 2", "output.x > 3", "inputs.flag")
CONDITIONS = ("output.x > 3", "output.x > 5", "inputs.flag", "inputs.x == 1", "output.x < 2")
CONFIGS: dict[str, Any] = {
    "value": lambda value: {"value": value},
    "python": lambda value: {"function": "tests.model.documents:work", "args": value},
    "sleep": lambda value: {"seconds": value["x"]},
    "fail": lambda value: {"kind": "failed", "message": "on purpose"},
}


def work(**given: Json) -> Json:
    """What the `python` nodes of random documents call."""
    return given


def _named(written: dict[str, Json]) -> list[str]:
    """The targets that any rule of a node names, in the order in which they are written."""
    branch, loop, on_error = written.get("branch", {}), written.get("loop", {}), written.get("on_error", "fail")
    found: list[str] = []
    for rule in branch.get("rules", ()):
        found += rule["next_nodes"]
    found += branch.get("available_next_nodes", ())
    found += branch.get("default", ())
    found += [*loop.get("break_path", ()), *loop.get("timeout_path", ())]
    found += on_error["route"] if isinstance(on_error, dict) else ()
    return list(dict.fromkeys(found))


def translate(document: dict[str, Json]) -> Workflow:
    """The IR of a document in the generator's spelling."""
    written = {node["id"]: node for node in document["nodes"]}
    edges = _edges(document, written)
    shape = Shape(random.Random(0))
    shape.nodes, shape.edges = list(written), edges
    shape.loops = {at: node["loop"].get("loop_back_to", at) for at, node in written.items() if "loop" in node}
    nodes = tuple(_translate_node(document, node, shape) for node in written.values())
    limits = dict(document.get("limits", {}))
    limits.setdefault("max_visits", max(10_000, 10 * len(nodes)))
    return Workflow(
        name=document["name"],
        nodes=nodes,
        entries=tuple(node.id for node in nodes if not node.inbound),
        terminals=tuple(node.id for node in nodes if not node.outbound),
        inputs=document.get("inputs"),
        outputs=document.get("outputs"),
        limits=Limits(**limits),
        output_reads=_references(document.get("outputs"), written),
    )


def _edges(document: dict[str, Json], written: dict[str, dict[str, Json]]) -> list[Edge]:
    """The one edge set: dependencies, listed edges and everything that rules name, in document order."""
    found = {(source, to) for to, node in written.items() for source in node.get("dependencies", ())}
    found |= {(edge["from"], edge["to"]) for edge in document.get("edges", ())}
    found |= {(source, to) for source, node in written.items() for to in _named(node)}
    order = {node: position for position, node in enumerate(written)}
    return sorted(found, key=lambda edge: (order[edge[0]], order[edge[1]]))


def _translate_node(document: dict[str, Json], written: dict[str, Json], shape: Shape) -> Node:
    at = written["id"]
    out, named = shape.out(at), _named(written)
    join = written.get("join", "all")
    on_error: Json = written.get("on_error", "fail")
    routed: OnError = "route" if isinstance(on_error, dict) else on_error
    around = [looping for looping in shape.loops if at in shape.body(looping)]
    reads = _references([written.get("config"), written.get("map")], shape.nodes)
    return Node(
        id=at,
        type=f"{written['type']}@1",
        config=written["config"],
        when=_condition(written.get("when")),
        join="quorum" if isinstance(join, dict) else join,
        quorum=join["quorum"] if isinstance(join, dict) else 0,
        branch=_translate_branch(written["branch"]) if "branch" in written else None,
        loop=_translate_loop(at, written["loop"], shape) if "loop" in written else None,
        map=Map(**written["map"]) if "map" in written else None,
        on_error=routed,
        error_path=tuple(on_error["route"]) if isinstance(on_error, dict) else (),
        retry=Retry(**{**document.get("defaults", {}).get("retry", {}), **written.get("retry", {})}),
        delivery=written.get("delivery", "at_least_once"),
        inbound=tuple(shape.into(at)),
        outbound=tuple(out),
        plain=tuple(to for to in out if to not in named),
        loops=tuple(sorted(around, key=lambda looping: len(shape.body(looping)))),
        reads=reads,
        reads_past=tuple(other for other in reads if at not in shape.descendants(other)),
    )


def _condition(written: Json) -> Json:
    """A plain string is CEL."""
    return {"type": "cel", "expression": written} if isinstance(written, str) else written


def _translate_branch(written: dict[str, Json]) -> Branch:
    rules = (
        Rule(condition=_condition(rule["condition"]), next_nodes=tuple(rule["next_nodes"]))
        for rule in written.get("rules", ())
    )
    return Branch(
        kind=written["type"],
        rules=tuple(rules),
        available=tuple(written.get("available_next_nodes", ())),
        default=tuple(written.get("default", ())),
    )


def _translate_loop(at: str, written: dict[str, Json], shape: Shape) -> Loop:
    body = shape.body(at)
    return Loop(
        condition=_condition(written["condition"]),
        max_iterations=None if written["max_iterations"] == "unlimited" else written["max_iterations"],
        back_to=shape.loops[at],
        break_path=tuple(written.get("break_path", ())),
        timeout_path=tuple(written.get("timeout_path", ())),
        body=tuple(node for node in shape.nodes if node in body),
        escapes=tuple(edge for edge in shape.edges if edge[0] in body and edge[1] not in body and edge[0] != at),
        delay_ms=round(1000 * written.get("delay_seconds", 0)),
    )


def _references(value: Json, known: Collection[str]) -> tuple[str, ...]:
    """Ids inside the templates of a value, in the order of the document."""
    if isinstance(value, str):
        inside = " ".join(re.findall(r"\{\{(.*?)\}\}", value))
        found = set(re.findall(r"\bn\d+\b", inside))
    else:
        parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        found = {word for part in parts for word in _references(part, known)}
    return tuple(node for node in known if node in found)
