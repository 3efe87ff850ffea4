"""The order in which a workflow is told: what every path passes through before a node decides where it is drawn.

A node hangs below its *dominator*, the last node that all paths to it share. A node with one way in is an arm
of its dominator; one with several is a join, and continues at the dominator's own level after its arms. Costs
O(edges · log nodes): dominators of a graph without cycles are common ancestors, found by jump pointers.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from tidemill.kernel.model import Workflow

START = -1
"""The imaginary node before all entries."""


class Outline:
    """Positions in `workflow.nodes`: for each node its arms and joins, and how many nodes hang below it."""

    def __init__(self, workflow: Workflow) -> None:
        nodes = workflow.nodes
        self.index = {node.id: number for number, node in enumerate(nodes)}
        self.order = _topological(workflow, self.index)
        parents = self._dominators(workflow)
        self.arms: dict[int, list[int]] = {}
        self.joins: dict[int, list[int]] = {}
        for number in self.order:
            kind = self.joins if len(nodes[number].inbound) > 1 else self.arms
            kind.setdefault(parents[number], []).append(number)
        self.sizes = [1] * len(nodes)
        for number in reversed(self.order):
            if parents[number] != START:
                self.sizes[parents[number]] += self.sizes[number]

    def _dominators(self, workflow: Workflow) -> list[int]:
        tree = _Ancestry(len(workflow.nodes))
        for number in self.order:
            above = [self.index[name] for name in workflow.nodes[number].inbound]
            parent = above[0] if above else START
            for other in above[1:]:
                parent = tree.meet(parent, other)
            tree.hang(number, parent)
        return tree.parents


def _topological(workflow: Workflow, index: dict[str, int]) -> list[int]:
    """Every node after the nodes before it; among several the one that was written first."""
    open_edges = [len(node.inbound) for node in workflow.nodes]
    ready = [number for number, count in enumerate(open_edges) if not count]
    heapify(ready)
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for name in workflow.nodes[number].outbound:
            target = index[name]
            open_edges[target] -= 1
            if not open_edges[target]:
                heappush(ready, target)
    return order


class _Ancestry:
    """A growing tree that finds the last common ancestor of two nodes in O(log depth).

    Each node remembers its parent and one ancestor further up, placed so that jumps of doubling length exist
    at every depth (skew-binary jump pointers). The root is START, stored at the end of each list.
    """

    def __init__(self, size: int) -> None:
        self.parents = [START] * (size + 1)
        self._jumps = [START] * (size + 1)
        self._depths = [0] * (size + 1)

    def hang(self, node: int, parent: int) -> None:
        jump = self._jumps[parent]
        even = self._depths[parent] - self._depths[jump] == self._depths[jump] - self._depths[self._jumps[jump]]
        self.parents[node], self._depths[node] = parent, self._depths[parent] + 1
        self._jumps[node] = self._jumps[jump] if even else parent

    def meet(self, one: int, other: int) -> int:
        one, other = self._lifted(one, self._depths[other]), self._lifted(other, self._depths[one])
        while one != other:
            if self._jumps[one] != self._jumps[other]:
                one, other = self._jumps[one], self._jumps[other]
            else:
                one, other = self.parents[one], self.parents[other]
        return one

    def _lifted(self, node: int, depth: int) -> int:
        while self._depths[node] > depth:
            node = self._jumps[node] if self._depths[self._jumps[node]] >= depth else self.parents[node]
        return node
