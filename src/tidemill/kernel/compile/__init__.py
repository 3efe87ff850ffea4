"""The compiler: a document becomes a workflow that can run, or a list of everything that is wrong with it.

It executes nothing and asks nobody: the same document and the same types always give the same bytes. The order
below is the order in which an author wants to hear about mistakes: shape, types, graph, loops, expressions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tidemill.errors import Problem
from tidemill.kernel.compile import validate
from tidemill.kernel.compile.assemble import Assembly
from tidemill.kernel.compile.graph import Graph, build_graph, check_graph
from tidemill.kernel.compile.loops import find_loops
from tidemill.kernel.compile.nodetypes import Types, TypeTable, find_compensator_types, find_exits, find_types
from tidemill.kernel.compile.operands import check_operands
from tidemill.kernel.compile.references import Reading, unknown_reference
from tidemill.kernel.compile.scopes import (
    EVERYWHERE,
    IN_JUDGEMENT,
    check_roots,
    find_templates,
    node_uses,
    template_uses,
)
from tidemill.kernel.document.clauses import Use, settle_conditions
from tidemill.kernel.document.collector import paused_collector
from tidemill.kernel.document.findings import Place
from tidemill.kernel.document.normal import Draft, draft_of
from tidemill.kernel.model import Json, NodeType, Workflow


class Compiled(NamedTuple):
    """What a document became."""

    workflow: Workflow
    document: Json
    """Its normal form, against which patches are made; compiling it again gives the same workflow."""
    warnings: tuple[Problem, ...]


def compile_document(raw: Json, types: Types, in_vain: Sequence[str] = ()) -> Compiled:
    """Compile a document against the registered node types, each with all its major versions.

    `in_vain` says in sentences which others were offered and cannot be used. Raises Rejected with all problems at once.
    """
    with paused_collector():
        return _compiled(raw, TypeTable(types, in_vain))


def _compiled(raw: Json, table: TypeTable) -> Compiled:
    draft = draft_of(raw)
    if not draft.nodes:
        draft.found.refuse()
    clauses = settle_conditions(draft)
    node_types = find_types(draft, table)
    undoing = find_compensator_types(draft, table)
    exits = find_exits(draft, node_types)
    graph = build_graph(draft, exits)
    check_graph(graph, draft)
    loops = find_loops(draft, graph)
    validate.check_joins(draft, graph)
    validate.check_widths(draft, graph)
    validate.check_rules(draft)
    validate.check_inputs(draft)
    _check_conditions(draft, clauses)
    check_operands(draft, clauses, node_types)
    reading = Reading(draft, graph, loops)
    names = validate.closed_names(draft.document.get("inputs"))
    for number, type_ in enumerate(node_types):
        uses = [*clauses.get(number, ()), *_checked_templates(draft, number, table, type_, undoing.get(number))]
        if uses:
            reading.add(number, uses)
            if names is not None:
                validate.warn_of_inputs(draft.place(number), uses, names)
    reading.settle()
    output_uses = _output_uses(draft, names)
    draft.found.refuse()
    known = [type_ for type_ in node_types if type_ is not None]
    assembly = Assembly(draft, graph, loops, reading)
    workflow = assembly.workflow(known, undoing, exits, _output_reads(draft, graph, output_uses))
    return Compiled(workflow, draft.document, tuple(draft.found.warnings))


def _check_conditions(draft: Draft, clauses: Mapping[int, list[Use]]) -> None:
    for number, uses in clauses.items():
        place = draft.place(number)
        for use in uses:
            check_roots(place, use, EVERYWHERE if use.key == "when" else IN_JUDGEMENT)


def _checked_templates(
    draft: Draft, number: int, table: TypeTable, type_: NodeType | None, undoing: NodeType | None
) -> list[Use]:
    """Check a node's configurations, and give what their templates refer to."""
    node = draft.nodes[number]
    if type_ is not None:
        table.check_config(draft, number, type_, node, "config")
    if undoing is not None:
        table.check_config(draft, number, undoing, node["compensator"], "compensator/config")
    return node_uses(draft, number, type_, undoing)


def _output_uses(draft: Draft, names: set[str] | None) -> list[Use]:
    """Check what the run returns; by then every node has ended, so any of them may be named."""
    if "outputs" not in draft.document:
        return []
    place = Place(draft.found, "", "outputs")
    uses = template_uses(place, "outputs", find_templates(draft.document["outputs"]), EVERYWHERE)
    if names is not None:
        validate.warn_of_inputs(place, uses, names)
    for use in uses:
        for name in sorted(use.reach.nodes):
            if name not in draft.index:
                unknown_reference(draft, place, use, name)
    return uses


def _output_reads(draft: Draft, graph: Graph, uses: list[Use]) -> tuple[str, ...]:
    if any(use.reach.dynamic for use in uses):
        return tuple(graph.ids)
    return graph.names(sorted({draft.index[name] for use in uses for name in use.reach.nodes}))
