"""The compiler: a document becomes a workflow that can run, or a list of everything that is wrong with it.

It executes nothing and asks nobody: the same document and the same types always give the same bytes. The order
below is the order in which an author wants to hear about mistakes: shape, types, graph, loops, expressions.
"""

from __future__ import annotations

from typing import NamedTuple

from tidemill.errors import Problem
from tidemill.kernel import validate
from tidemill.kernel.assemble import Assembly
from tidemill.kernel.clauses import Use, settle_conditions
from tidemill.kernel.findings import Place
from tidemill.kernel.graph import Graph, build_graph, check_graph
from tidemill.kernel.loops import find_loops
from tidemill.kernel.model import Json, NodeType, Workflow
from tidemill.kernel.nodetypes import Types, TypeTable, check_config, find_exits, find_types
from tidemill.kernel.normal import Draft, draft_of
from tidemill.kernel.references import check_references, unknown_reference
from tidemill.kernel.scopes import EVERYWHERE, JUDGED, check_roots, compensator_uses, template_uses, templates_in


class Compiled(NamedTuple):
    """What a document became."""

    workflow: Workflow
    document: Json
    """Its normal form, against which patches are made; compiling it again gives the same workflow."""
    warnings: tuple[Problem, ...]


def compile_document(raw: Json, types: Types) -> Compiled:
    """Compile a document against the registered node types, each with all its major versions.

    Raises Rejected with every problem at once.
    """
    draft = draft_of(raw)
    if not draft.nodes:
        draft.found.refuse()
    uses = settle_conditions(draft)
    table = TypeTable(types)
    node_types = find_types(draft, table)
    undoing = _compensator_types(draft, table)
    exits = find_exits(draft, node_types)
    graph = build_graph(draft, exits)
    check_graph(graph, draft)
    loops = find_loops(draft, graph)
    validate.check_joins(draft, graph)
    validate.check_widths(draft, graph)
    validate.check_rules(draft)
    validate.check_inputs(draft)
    for number in range(len(draft.nodes)):
        _check_expressions(draft, number, node_types[number], undoing.get(number), uses)
    reading = check_references(draft, graph, loops, uses)
    output_uses = _output_uses(draft)
    schema = draft.document.get("inputs")
    validate.warn_of_inputs(schema, ((draft.place(number), of_node) for number, of_node in uses.items()))
    draft.found.refuse()
    known = [type_ for type_ in node_types if type_ is not None]
    assembly = Assembly(draft, graph, loops, reading)
    workflow = assembly.workflow(known, undoing, exits, _output_reads(draft, graph, output_uses))
    return Compiled(workflow, draft.document, tuple(draft.found.warnings))


def _compensator_types(draft: Draft, table: TypeTable) -> dict[int, NodeType]:
    found = {}
    for number, node in enumerate(draft.nodes):
        if "type" in node.get("compensator", ()):
            type_ = table.find(draft.place(number).inside("compensator"), node["compensator"]["type"])
            if type_ is not None:
                found[number] = type_
    return found


def _check_expressions(
    draft: Draft, number: int, type_: NodeType | None, undoing: NodeType | None, uses: dict[int, list[Use]]
) -> None:
    """Check the configuration, templates and conditions of one node, and add what they refer to."""
    node, place = draft.nodes[number], draft.place(number)
    for use in uses.get(number, ()):
        check_roots(place, use, EVERYWHERE if use.key == "when" else EVERYWHERE | JUDGED)
    if type_ is not None:
        check_config(place, type_, node)
    found = template_uses(place, node, type_)
    if "compensator" in node:
        if undoing is not None:
            check_config(place, undoing, node["compensator"], "compensator/config")
        found += compensator_uses(place, node, undoing)
    if found:
        uses.setdefault(number, []).extend(found)


def _output_uses(draft: Draft) -> list[Use]:
    """Check what the run returns; by then every node has ended, so any of them may be named."""
    if "outputs" not in draft.document:
        return []
    place = Place(draft.found, "", "outputs")
    found = templates_in(place, "outputs", draft.document["outputs"], EVERYWHERE, ())
    for use in found:
        for name in sorted(use.reach.nodes):
            if name not in draft.index:
                unknown_reference(draft, place, use, name)
    return found


def _output_reads(draft: Draft, graph: Graph, uses: list[Use]) -> tuple[str, ...]:
    if any(use.reach.dynamic for use in uses):
        return tuple(graph.ids)
    return graph.names(sorted({draft.index[name] for use in uses for name in use.reach.nodes}))
