"""compile_document: a document becomes a workflow, or Rejected with everything that is wrong with it.

Compilation runs no handler and does no I/O: the same document and node types always give the same bytes. The order of
the checks in `_compiled` is the order in which the author reads the problems: shape, types, graph, loops, expressions.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from typing import NamedTuple

import msgspec

from tidemill.errors import Problem
from tidemill.expressions.conditions import compiled, meaning
from tidemill.expressions.errors import ExpressionError, pointer, shorten
from tidemill.expressions.schema import (
    Schema,
    check_schema,
    compile_schema,
    holds_wildcard,
    type_of,
)
from tidemill.expressions.scope import is_template
from tidemill.kernel.compile import references
from tidemill.kernel.compile.assemble import Assembly
from tidemill.kernel.compile.graph import Graph, build_graph, check_graph, find_loops
from tidemill.kernel.document.fields import NODE, node_ids
from tidemill.kernel.document.normalize import NormalizedDraft, Use, draft_of, parse_conditions
from tidemill.kernel.document.problems import DocumentPath, shown
from tidemill.kernel.document.reader import paused_collector
from tidemill.kernel.document.synonyms import CONFIG_KEYS, KEYS_AS_TYPES, OF_TYPE, TYPES, our_key
from tidemill.kernel.model import ConfigProblem, Json, Limits, NodeType, Workflow

Types = Mapping[str, Sequence[NodeType]]

UNOFFERED = " (no worker of this store has offered it)"
UNUSABLE_SHOWN_MAX = 3
"""Unusable node types that a problem names."""

TYPES_SHOWN_MAX = 30
SURE_SIMILARITY = 0.75
"""How similar an unknown type is to a known one that is surely meant."""
NAMES_SHOWN_MAX = 8
DEFAULTS_CHECKED_MAX = 200
"""Checking a default costs compiling a schema."""

DEFAULT_HINT = "runs without this input would be refused: write a default that the schema allows"


def _meant_type(name: str) -> str:
    if name in KEYS_AS_TYPES:
        return f"this is not a node of its own: any node may have the key `{KEYS_AS_TYPES[name][0]}`"
    return f"did you mean `{TYPES[name][0]}`?" if name in TYPES else OF_TYPE.get(name, "")


class TypeTable:
    """The node types by the names that documents use; lookups are cached."""

    def __init__(self, types: Types, unusable_types: Sequence[str] = (), *, of_workers: bool = False) -> None:
        self.types, self._unusable_types, self._of_workers = types, unusable_types, of_workers
        self.known: dict[str, NodeType | None] = {}
        self.schemas: dict[str, Schema] = {}

    def find(self, name: str) -> NodeType | None:
        """The type in the requested version, or the newest."""
        if name not in self.known:
            base, _, major = name.partition("@")
            versions = [each for each in self.types.get(base, ()) if not major or each.major == int(major)]
            self.known[name] = max(versions, key=lambda each: each.major, default=None)
        return self.known[name]

    def missing(self, place: DocumentPath, name: str) -> None:
        base, _, major = name.partition("@")
        versions = self.types.get(base)
        if versions:
            hint = "known: " + ", ".join(each.key for each in versions) + UNOFFERED * self._of_workers
            place.problem("unknown_type_version", "type", f"type `{base}` has no version {major}", hint)
        else:
            meant = _meant_type(base)
            sure = meant or get_close_matches(base, self.types, n=1, cutoff=SURE_SIMILARITY)
            hint = meant or place.found.nearest(base, self.types)
            more = ", …" if len(self.types) > TYPES_SHOWN_MAX else ""
            hint = hint or f"known types: {', '.join(sorted(self.types)[:TYPES_SHOWN_MAX])}{more}"
            if self._unusable_types:
                listed = "; ".join(shown(each, 300) for each in self._unusable_types[:UNUSABLE_SHOWN_MAX])
                hint += f"; or it is one of those: {listed}"
            hint += UNOFFERED * (self._of_workers and not sure)
            place.problem("unknown_node_type", "type", f"there is no node type `{shown(base)}`", hint)

    def check_config(
        self, draft: NormalizedDraft, number: int, type_: NodeType, owner: Mapping[str, Json], key: str
    ) -> None:
        """Check a configuration against its type's schema and checks; template strings match any type."""
        if "config_ref" in owner:
            return
        config = owner.get("config")
        config = {} if config is None else config
        if not self._follows_schema(draft, number, type_, config, key) and not type_.checks_anything:
            return
        if isinstance(config, dict) and (type_.schemas or type_.check is not None):
            # Record what the schema cannot express: invalid schemas in the config, and the type's own check.
            problems = list(type_.check(config)) if type_.check is not None else []
            for field in type_.schemas:
                inner = config.get(field)
                if inner is not None and not holds_wildcard(inner, is_template):
                    problems += [
                        ConfigProblem(each.path, each.message, each.hint) for each in check_schema(inner, f"/{field}")
                    ]
            place = draft.place(number)
            for each in problems:
                record = place.warning if each.warning else place.problem
                record(each.code, f"{key}{each.path}", each.message, each.hint)

    def _follows_schema(self, draft: NormalizedDraft, number: int, type_: NodeType, config: Json, key: str) -> bool:
        """Whether a configuration follows the schema of its type; records the problems."""
        if type_.config_schema is True:
            return True
        schema = self.schemas.get(type_.key)
        if schema is None:
            schema = self.schemas[type_.key] = compile_schema(type_.config_schema)
        if schema.accepts(config):
            return True
        place = draft.place(number)
        found = schema.problems(
            config, f"{place.path}/{key}", wildcard=is_template, code="config_invalid", synonyms=CONFIG_KEYS
        )
        place.extend(found)
        return not found


def find_types(draft: NormalizedDraft, table: TypeTable) -> list[NodeType | None]:
    types: list[NodeType | None] = []
    for number, node in enumerate(draft.nodes):
        name = node.get("type")
        types.append(table.find(name) if name is not None else None)
        if name is not None and types[-1] is None:
            table.missing(draft.place(number), name)
    return types


def explain_misplaced_keys(draft: NormalizedDraft, types: Sequence[NodeType | None]) -> None:
    """Say of a node's unknown keys that its type has them in `config`."""
    if not draft.found.problems:
        return
    numbers = {path: number for number, path in enumerate(draft.paths)}
    for step, problem in enumerate(draft.found.problems):
        path, _, key = problem.path.rpartition("/")
        type_ = types[numbers[path]] if problem.code == "unknown_key" and path in numbers else None
        schema = None if type_ is None else type_.config_schema
        properties = schema.get("properties", {}) if isinstance(schema, dict) else {}
        own = key if key in properties or our_key(key, NODE.entries) else our_key(key, properties, CONFIG_KEYS)
        if own in properties:
            hint = f"it belongs into `config`: config: {{{own}: …}}"
            draft.found.problems[step] = msgspec.structs.replace(problem, hint=hint)


def find_compensator_types(draft: NormalizedDraft, table: TypeTable) -> dict[int, NodeType]:
    types: dict[int, NodeType] = {}
    for number, node in enumerate(draft.nodes):
        name = node["compensator"].get("type") if "compensator" in node else None
        if name is None:
            continue
        type_ = table.find(name)
        if type_ is None:
            table.missing(draft.place(number).child("compensator"), name)
        else:
            types[number] = type_
    return types


def find_exits(draft: NormalizedDraft, types: Sequence[NodeType | None]) -> dict[int, dict[str, list[str]]]:
    """The exits that waiting nodes name in their configuration, such as `rejection_path`."""
    exits: dict[int, dict[str, list[str]]] = {}
    for number, type_ in enumerate(types):
        if type_ is not None and not type_.exits:
            continue
        config = draft.nodes[number].get("config")
        if isinstance(config, dict):
            for field in type_.exits if type_ is not None else _likely_exits(draft, config):
                if config.get(field) is not None:
                    targets = node_ids(draft.place(number).child("config"), field, config[field])
                    exits.setdefault(number, {})[field] = targets or []
    return exits


def _likely_exits(draft: NormalizedDraft, config: Mapping[str, Json]) -> list[str]:
    """Guess the exits of an unknown type, so that its nodes are not reported as unreachable."""
    return [
        field
        for field, targets in config.items()
        if field.endswith("_path") and isinstance(targets, list) and all(str(name) in draft.index for name in targets)
    ]


# Checks that need the whole graph but no expression

_ENCODER = msgspec.json.Encoder(order="sorted")
_INPUT = re.compile(r"\binputs\.([A-Za-z_][A-Za-z0-9_]*)")
_OPENING = ("$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")


def check_joins(draft: NormalizedDraft, graph: Graph) -> None:
    for number, node in enumerate(draft.nodes):
        join = node.get("join")
        if join is None:
            continue
        edges = len(graph.into[number])
        if not edges:
            hint = "remove `join`, or add dependencies"
            draft.place(number).problem(
                "join_on_entry", "join", "the node has no incoming edges, so there is nothing to join", hint
            )
        elif isinstance(join, dict) and join["quorum"] > edges:
            message = f"a quorum of {join['quorum']} can never be reached by {edges} incoming edges"
            draft.place(number).problem("quorum_too_large", "join/quorum", message, f"at most {edges}")


def check_widths(draft: NormalizedDraft, graph: Graph) -> None:
    width_max = draft.document.get("limits", {}).get("max_fanout", Limits().max_fanout)
    for number, targets in enumerate(graph.out):
        over = draft.nodes[number].get("map", {}).get("over")
        width = max(len(targets), len(over) if isinstance(over, list) else 0)
        if width > width_max:
            message = f"fans out to {width} at once, at most {width_max} are allowed"
            draft.place(number).problem("fanout_too_wide", "", message, "raise `limits.max_fanout`")


def check_rules(draft: NormalizedDraft) -> None:
    for number, node in enumerate(draft.nodes):
        rules = node.get("branch", {}).get("rules", ())
        if len(rules) < 2:
            continue
        first: dict[Hashable, int] = {}
        for step, rule in enumerate(rules):
            if "condition" not in rule:
                continue
            earlier = first.setdefault(_meaning(rule["condition"]), step)
            if earlier != step:
                message = f"rule {step + 1} can never match: rule {earlier + 1} has the same condition"
                place = draft.place(number)
                place.problem("unreachable_rule", f"branch/rules/{step}/condition", message, "join their `next_nodes`")


def _meaning(condition: Json) -> Hashable:
    """A key that is equal for equivalent conditions; an unreadable one is compared by its text."""
    try:
        return meaning(compiled(condition))
    except ExpressionError:
        return _ENCODER.encode(condition)


def closed_names(schema: Json) -> set[str] | None:
    """The only names that inputs can have, or None if the schema allows others."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") is not False:
        return None
    properties = schema.get("properties", {})
    if any(key in schema for key in _OPENING) or not isinstance(properties, dict):
        return None
    return set(properties)


_KEYWORD_NAMES = """
    type enum const title description default deprecated readOnly writeOnly examples format required
    properties patternProperties additionalProperties propertyNames minProperties maxProperties dependentRequired
    dependentSchemas dependencies unevaluatedProperties items prefixItems contains minContains maxContains minItems
    maxItems uniqueItems unevaluatedItems allOf anyOf oneOf not if then else minLength maxLength pattern multipleOf
    minimum maximum exclusiveMinimum exclusiveMaximum contentEncoding contentMediaType contentSchema definitions
"""
_KEYWORDS = frozenset(_KEYWORD_NAMES.split())


def check_names_typed(schema: Json, path: str) -> list[Problem]:
    """Refuse a mapping from names to types: it is a valid schema, because unknown keywords are, and checks nothing."""
    if not isinstance(schema, dict):
        return []
    strings = (key for key in schema if isinstance(key, str))
    names = [key for key in strings if key not in _KEYWORDS and not key.startswith(("x-", "$"))]
    typed = [key for key in names if type_of(schema[key]) or (isinstance(schema[key], dict) and "type" in schema[key])]
    if not names or (len(names) < len(schema) and not typed):
        return []
    # A property may be called like a keyword.
    meant = [key for key in schema if key in names or (isinstance(key, str) and key != "type" and type_of(schema[key]))]
    parts = [f"{shorten(key, 60)}: {_as_schema(schema[key])}" for key in meant[:NAMES_SHOWN_MAX]]
    parts += ["…"] * (len(meant) > NAMES_SHOWN_MAX)
    words = ", ".join(f"`{shorten(key, 60)}`" for key in names[:NAMES_SHOWN_MAX])
    message = (
        f"this is a JSON Schema, and {words} {'is not a keyword' if len(names) == 1 else 'are not keywords'} of it"
    )
    hint = f"write {{type: object, properties: {{{', '.join(parts)}}}}}"
    return [Problem(code="schema_invalid", message=message, path=path, hint=hint)]


def _as_schema(value: Json) -> str:
    inner = value.get("type") if isinstance(value, dict) else value
    return f"{{type: {type_of(inner)}}}" if type_of(inner) else "{}"


def warn_of_inputs(place: DocumentPath, uses: Iterable[Use], names: set[str]) -> None:
    """Warn of inputs that the schema excludes; no problem, because `default` and `has` may expect it."""
    for use in uses:
        if "inputs" in use.reach.roots:
            # A condition may be a mapping; its JSON text is searched.
            text = use.value if isinstance(use.value, str) else _ENCODER.encode(use.value).decode()
            for name in sorted(set(_INPUT.findall(text)) - names):
                message = f"the schema of `inputs` has no `{shown(name)}` and allows nothing else"
                place.warning("unknown_input", use.key, message, place.found.nearest(name, names))


class Compiled(NamedTuple):
    workflow: Workflow
    document: Json
    """The normal form, to which patches apply; compiling it gives the same workflow."""
    warnings: tuple[Problem, ...]


def compile_document(
    raw: Json, types: Types, unusable_types: Sequence[str] = (), *, of_workers: bool = False
) -> Compiled:
    """Compile a document, or raise Rejected with all problems.

    For hints: `unusable_types` describes types that cannot be used, and `of_workers` says that `types` includes those
    that workers offer.
    """
    with paused_collector():
        return _compiled(raw, TypeTable(types, unusable_types, of_workers=of_workers))


def _compiled(raw: Json, table: TypeTable) -> Compiled:
    draft = draft_of(raw)
    if not draft.nodes:
        draft.found.refuse()
    clauses = parse_conditions(draft)
    node_types = find_types(draft, table)
    explain_misplaced_keys(draft, node_types)
    compensators = find_compensator_types(draft, table)
    exits = find_exits(draft, node_types)
    graph = build_graph(draft, exits)
    check_graph(graph, draft)
    loops = find_loops(draft, graph)
    check_joins(draft, graph)
    check_widths(draft, graph)
    check_rules(draft)
    inputs = draft.document.get("inputs")
    if inputs is not None:
        wrong = check_names_typed(inputs, "/inputs") or check_schema(inputs, "/inputs")
        draft.found.extend(wrong or check_defaults(inputs, "/inputs"))
    for number, uses in clauses.items():
        for use in uses:
            allowed = references.EVERYWHERE if use.key == "when" else references.IN_JUDGEMENT
            references.check_roots(draft.place(number), use, allowed)
    known_schemas = references.KnownSchemas(draft, node_types)
    references.check_operands(draft, clauses, known_schemas)
    reading = references.Reading(draft, graph, loops)
    names = closed_names(inputs)
    limits = references.TemplateLimits(len(draft.nodes))
    for number, type_ in enumerate(node_types):
        checked = _checked_templates(draft, number, table, type_, compensators.get(number), limits)
        references.check_keys(draft.place(number), str(draft.nodes[number].get("id")), checked, known_schemas)
        uses = [*clauses.get(number, ()), *checked]
        if uses:
            reading.add(number, uses)
            if names is not None:
                warn_of_inputs(draft.place(number), uses, names)
    reading.check_references()
    output_uses = _output_uses(draft, names, limits, known_schemas)
    draft.found.refuse()
    known = [type_ for type_ in node_types if type_ is not None]
    assembly = Assembly(draft, graph, loops, reading)
    output_reads = graph.names(sorted({draft.index[name] for use in output_uses for name in use.reach.nodes}))
    if any(use.reach.dynamic for use in output_uses):
        output_reads = tuple(graph.ids)
    workflow = assembly.workflow(known, compensators, exits, output_reads)
    return Compiled(workflow, draft.document, tuple(draft.found.warnings))


def _checked_templates(
    draft: NormalizedDraft,
    number: int,
    table: TypeTable,
    type_: NodeType | None,
    compensator: NodeType | None,
    limits: references.TemplateLimits,
) -> list[Use]:
    node = draft.nodes[number]
    if type_ is not None:
        table.check_config(draft, number, type_, node, "config")
    if compensator is not None:
        table.check_config(draft, number, compensator, node["compensator"], "compensator/config")
    return references.node_uses(draft, number, type_, compensator, limits)


def _output_uses(
    draft: NormalizedDraft,
    names: set[str] | None,
    limits: references.TemplateLimits,
    known: references.KnownSchemas,
) -> list[Use]:
    """Check the outputs; every node has ended by then, so any may be named."""
    if "outputs" not in draft.document:
        return []
    place = DocumentPath(draft.found, "", "outputs")
    found = references.find_templates(draft.document["outputs"])
    uses = references.template_uses(place, "outputs", found, references.EVERYWHERE, limits)
    references.check_keys(place, "", uses, known)
    if names is not None:
        warn_of_inputs(place, uses, names)
    for use in uses:
        for name in sorted(use.reach.nodes):
            if name not in draft.index:
                references.unknown_reference(draft, place, use, name)
    return uses


def check_defaults(schema: Json, path: str) -> list[Problem]:
    """Refuse defaults that their own part of a valid schema does not allow; one that others complete is not checked."""
    found: list[Problem] = []
    waiting, checked = [(schema, path)], 0
    shared = {"$defs": schema["$defs"]} if isinstance(schema, dict) and "$defs" in schema else {}
    while waiting and checked < DEFAULTS_CHECKED_MAX:
        part, at = waiting.pop()
        if not isinstance(part, dict):
            continue
        waiting += reversed(list(_inner_schemas(part, at)))
        rest = {key: each for key, each in part.items() if key != "default"}
        if "default" in part and b'"default"' not in msgspec.json.encode(rest):
            checked += 1
            with suppress(ExpressionError):  # It refers to something outside of `$defs`.
                found += compile_schema({**shared, **rest}).problems(part["default"], f"{at}/default")
    return [msgspec.structs.replace(each, code="schema_invalid", hint=each.hint or DEFAULT_HINT) for each in found]


def _inner_schemas(schema: dict[str, Json], path: str) -> Iterator[tuple[Json, str]]:
    for key in ("items", "additionalProperties"):
        if key in schema:
            yield schema[key], f"{path}/{key}"
    for key in ("properties", "$defs", "allOf", "anyOf", "oneOf", "prefixItems"):
        inner = schema.get(key, ())
        for name, each in inner.items() if isinstance(inner, dict) else enumerate(inner):
            yield each, pointer(f"{path}/{key}", name)
