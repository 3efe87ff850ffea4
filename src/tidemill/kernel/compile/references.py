"""References between nodes: does the other node exist, and can it have run by then?

A node may read its ancestors, over edges of any kind. Inside a loop it may also read itself and the rest of the
body, as they were when the current pass began. Anything else can never be there, so it is refused now.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from tidemill.kernel.compile.ancestry import ancestor_pairs, certain_pairs
from tidemill.kernel.compile.graph import Edge, Graph, walk
from tidemill.kernel.compile.loops import Loops
from tidemill.kernel.document.clauses import CONDITIONED_KEYS, Use
from tidemill.kernel.document.findings import Place, shown
from tidemill.kernel.document.normal import Draft

EARLY_TARGETS_MAX = 8192
"""Warnings are worth some sweeps over the graph, not any number of them."""

FEW = 16


class Reading:
    """What every node reads. Nodes are added one after the other; `settle` then judges the distant references.

    Almost all references are to a parent and are settled at once, so that a large document costs little memory.
    """

    def __init__(self, draft: Draft, graph: Graph, loops: Loops) -> None:
        self.draft = draft
        self.graph = graph
        self.loops = loops
        self.current: dict[int, list[int]] = {}
        """Ancestors whose output of this pass is read, by reader."""
        self.past: dict[int, list[int]] = {}
        """Nodes that are seen only as they were when the current pass began, by reader."""
        self.dynamic: set[int] = set()
        """Nodes with a computed reference."""
        self._distant: dict[Edge, str] = {}
        self._doubted: dict[Edge, str] = {}
        self._needed = {
            number: 1 if join == "any" else join["quorum"]
            for number, node in enumerate(draft.nodes)
            if (join := node.get("join", "all")) not in ("all", "strict")
        }
        self._escapes = _left_early(loops)
        self._doubtful = set(walk(graph.out, [*self._needed, *(target for _, target in self._escapes)]))
        """Nodes that may begin before all their ancestors have ended."""

    def add(self, number: int, uses: Iterable[Use]) -> None:
        """Note what a node refers to, and record names that nobody has."""
        for use in uses:
            if use.reach.dynamic:
                self.dynamic.add(number)
            names = use.reach.nodes
            for name in names if len(names) < 2 else sorted(names):
                other = self.draft.index.get(name)
                if other is None:
                    unknown_reference(self.draft, self.draft.place(number), use, name)
                elif self._is_parent(number, other):
                    self._reads(number, other, use.key)
                else:
                    self._distant.setdefault((number, other), use.key)

    def settle(self) -> None:
        """Sort the distant references, record the impossible ones, and warn of what may be read too early."""
        if not self.graph.acyclic:
            return
        ancestors = ancestor_pairs(self.graph, self._distant)
        for pair, key in self._distant.items():
            number, other = pair
            if pair in ancestors:
                self._reads(number, other, key)
            elif self.loops.share(number, other):
                self.past.setdefault(number, []).append(other)
            else:
                self._impossible(number, other, key)
        self._warn()

    def _is_parent(self, number: int, other: int) -> bool:
        sources = self.graph.into[number]
        return other in sources if len(sources) < FEW else number in self.graph.out[other][:FEW]

    def _reads(self, number: int, other: int, key: str) -> None:
        read = self.current.setdefault(number, [])
        if other not in read[:FEW]:
            read.append(other)
        if number in self._doubtful:
            self._doubted.setdefault((number, other), key)

    def _impossible(self, number: int, other: int, key: str) -> None:
        place, name = self.draft.place(number), shown(self.graph.ids[other])
        if number == other:
            hint = "conditions and compensators see the node's own result as `output`"
            place.problem("self_reference", key, "refers to its own output, which is not there yet", hint)
        else:
            hint = f"let it depend on `{name}`, if that is what it means"
            place.problem("reference_not_ancestor", key, f"refers to `{name}`, which cannot have run by then", hint)

    def _warn(self) -> None:
        """Warn of ancestors that need not have ended: past a join that does not wait, or by a way out of a loop."""
        asked = set(islice(dict.fromkeys(other for _, other in self._doubted), EARLY_TARGETS_MAX))
        pairs = [pair for pair in self._doubted if pair[1] in asked]
        if not pairs:
            return
        certain = certain_pairs(self.graph, pairs, self._needed, self._escapes, self.loops.bodies)
        for number, other in pairs:
            if (number, other) not in certain:
                name = shown(self.graph.ids[other])
                message = f"refers to `{name}`, which may not have ended by then"
                hint = f"wait for it with `join: all`, or give a default: `{name}.output | default(…)`"
                self.draft.place(number).warning("early_reference", self._doubted[number, other], message, hint)


def unknown_reference(draft: Draft, place: Place, use: Use, name: str) -> None:
    """Record a name that is neither a node nor anything else an expression can see."""
    message = f"`{shown(name)}` is neither a node of this workflow nor a known name"
    in_condition = use.key.partition("/")[0] in CONDITIONED_KEYS
    written = "written `ctx.<id>.output` in a condition" if in_condition else "`<id>.output`"
    hint = draft.found.nearest(name, draft.index) or f"a node's output is {written}, an input `inputs.<name>`"
    place.problem("unknown_reference", use.key, message, hint)


def _left_early(loops: Loops) -> dict[Edge, list[int]]:
    """The loops that an edge leaves while they may still go on, by edge."""
    left: dict[Edge, list[int]] = {}
    for looping in loops.bodies:
        for edge in loops.escapes.get(looping, ()):
            left.setdefault(edge, []).append(looping)
    return left
