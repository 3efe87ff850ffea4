"""A workflow as a Mermaid flowchart: text that Markdown viewers draw.

Ids are kept where Mermaid can read them and replaced where it would stumble; everything else is quoted and
escaped. Solid arrows are plain or conditional edges, dashed ones error paths, thick ones lead back in a loop.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from tidemill.cli.sketch import edges_of, loop_words, map_words, type_name
from tidemill.kernel.model import Node, Workflow

_SAFE = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_RESERVED = frozenset(
    {"call", "class", "classdef", "click", "default", "direction", "end", "flowchart", "graph", "href"}
    | {"interpolate", "linkstyle", "style", "subgraph"}
)
_ESCAPED = str.maketrans(
    {"#": "#35;", '"': "#quot;", "<": "#lt;", ">": "#gt;", "&": "#amp;", "`": "#96;", "|": "#124;", "\\": "#92;"}
)


def mermaid_lines(workflow: Workflow, waiting: Collection[str] = ()) -> Iterator[str]:
    """The flowchart, line by line. `waiting` names the types that wait without working, which look different."""
    names = {node.id: _name(node.id, number) for number, node in enumerate(workflow.nodes)}
    yield "---"
    yield f"title: {workflow.name}"
    yield "---"
    yield "flowchart TD"
    for node in workflow.nodes:
        yield f"    {names[node.id]}{_shape(node, waiting)}"
    for node in workflow.nodes:
        for edge in edges_of(node):
            label = f'|"{_quoted(edge.label)}"|' if edge.label else ""
            yield f"    {names[node.id]} {'-.->' if edge.error else '-->'}{label} {names[edge.target]}"
        if node.loop is not None:
            label = _quoted(loop_words(node, node.loop))
            yield f'    {names[node.id]} ==>|"{label}"| {names[node.loop.back_to]}'


def _name(node_id: str, number: int) -> str:
    if _SAFE.fullmatch(node_id) and node_id.lower() not in _RESERVED and not node_id.startswith("node_"):
        return node_id
    return f"node_{number}"


def _shape(node: Node, waiting: Collection[str]) -> str:
    """Rhombus: branch. Hexagon: loop. Double edge: map. Rounded: waits. Rectangle: everything else."""
    text = f"{_quoted(node.id)}<br/><small>{_quoted(type_name(node))}</small>"
    if node.map is not None:
        text += f"<br/><small>{_quoted(map_words(node.map))}</small>"
    if node.branch is not None:
        return f'{{"{text}"}}'
    if node.loop is not None:
        return f'{{{{"{text}"}}}}'
    if node.map is not None:
        return f'[["{text}"]]'
    if type_name(node) in waiting:
        return f'(["{text}"])'
    return f'["{text}"]'


def _quoted(text: str) -> str:
    return text.translate(_ESCAPED)
