"""What expressions may refer to: names by position, nodes that can have run, operands whose schemas fit.

A node may read its ancestors, over edges of any kind; inside a loop also itself and the rest of the body as they were
when the pass began. `item` and `index` exist only in a map's configuration, `output` only after the handler returned,
secrets only in fields that the node type keeps secret. Operand checks report only what a schema makes certain.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING

from tidemill.expressions.conditions import compiled
from tidemill.expressions.schema import holds_wildcard
from tidemill.expressions.schema_analysis import Kinds, MissingKey, expected
from tidemill.expressions.scope import has_syntax, is_template
from tidemill.kernel.compile.graph import Edge, Graph, Loops, ancestor_pairs, dominates_pairs, walk
from tidemill.kernel.document.normalize import CONDITIONED_KEYS, NormalizedDraft, Use
from tidemill.kernel.document.problems import DocumentPath, pointer, shown
from tidemill.kernel.document.synonyms import OF_TEMPLATE
from tidemill.kernel.document.values import LEAVES
from tidemill.kernel.model import Json, NodeType

if TYPE_CHECKING:
    from tidemill.expressions.cel.ast import Chain
    from tidemill.expressions.templates.lookup import Path
    from tidemill.expressions.type_check import TypeMismatch

EARLY_TARGETS_MAX = 8192
"""Bounds the sweeps that warnings may cost."""

FEW = 16


class Reading:
    """What every node reads. `add` resolves references to parents at once, `check_references` the distant ones."""

    def __init__(self, draft: NormalizedDraft, graph: Graph, loops: Loops) -> None:
        self.draft, self.graph, self.loops = draft, graph, loops
        self.current: dict[int, list[int]] = {}
        """Ancestors whose output of this pass is read, by reader."""
        self.past: dict[int, list[int]] = {}
        """Nodes that are read as they were when the pass began, by reader."""
        self.dynamic: set[int] = set()
        """Nodes with a computed reference."""
        self._distant: dict[Edge, str] = {}
        self._early: dict[Edge, str] = {}
        self._needed = {
            number: 1 if join == "any" else join["quorum"]
            for number, node in enumerate(draft.nodes)
            if (join := node.get("join", "all")) not in ("all", "strict")
        }
        self._escapes: dict[Edge, list[int]] = {}
        """By edge: the loops that it leaves while they may continue."""
        for looping in loops.bodies:
            for edge in loops.escapes.get(looping, ()):
                self._escapes.setdefault(edge, []).append(looping)
        self._may_begin_early = set(walk(graph.out, [*self._needed, *(target for _, target in self._escapes)]))
        """Nodes that may begin before all their ancestors have ended."""

    def add(self, number: int, uses: Iterable[Use]) -> None:
        """Record the references of a node, and problems for unknown names."""
        for use in uses:
            if use.reach.dynamic:
                self.dynamic.add(number)
            names = use.reach.nodes
            for name in names if len(names) < 2 else sorted(names):
                other, sources = self.draft.index.get(name), self.graph.into[number]
                if other is None:
                    unknown_reference(self.draft, self.draft.place(number), use, name)
                elif other in sources if len(sources) < FEW else number in self.graph.out[other][:FEW]:
                    self._reads(number, other, use.key)
                else:
                    self._distant.setdefault((number, other), use.key)

    def check_references(self) -> None:
        """Classify the distant references; record impossible ones and warn of early reads."""
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
                place, name = self.draft.place(number), shown(self.graph.ids[other])
                if number == other:
                    hint = "conditions and compensators see the node's own result as `output`"
                    place.problem("self_reference", key, "refers to its own output, which does not exist yet", hint)
                else:
                    hint = f"make it depend on `{name}` if you need its output"
                    place.problem(
                        "reference_not_ancestor", key, f"refers to `{name}`, which cannot have run by then", hint
                    )
        self._warn()

    def _reads(self, number: int, other: int, key: str) -> None:
        read = self.current.setdefault(number, [])
        if other not in read[:FEW]:
            read.append(other)
        if number in self._may_begin_early:
            self._early.setdefault((number, other), key)

    def _warn(self) -> None:
        """Warn of ancestors that may not have ended: after a partial join, or through an exit of a loop."""
        asked = set(islice(dict.fromkeys(other for _, other in self._early), EARLY_TARGETS_MAX))
        pairs = [pair for pair in self._early if pair[1] in asked]
        if not pairs:
            return
        certain = dominates_pairs(self.graph, pairs, self._needed, self._escapes, self.loops.bodies)
        for number, other in pairs:
            if (number, other) not in certain:
                name = shown(self.graph.ids[other])
                message = f"refers to `{name}`, which may not have ended by then"
                hint = f"wait for it with `join: all`, or give a default: `{name}.output | default(…)`"
                self.draft.place(number).warning("early_reference", self._early[number, other], message, hint)


def unknown_reference(draft: NormalizedDraft, place: DocumentPath, use: Use, name: str) -> None:
    message = f"`{shown(name)}` is neither a node of this workflow nor a known name"
    in_condition = use.key.partition("/")[0] in CONDITIONED_KEYS and use.key != LOOP_DELAY
    written = "written `ctx.<id>.output` in a condition" if in_condition else "`<id>.output`"
    hyphened = next((each for each in draft.index if "-" in each and name in each.split("-")), "")
    if hyphened:
        # The language reads the hyphen as a minus. One problem is enough for all parts of an id.
        before = hyphened.split("-")[: hyphened.split("-").index(name)]
        if any(part in use.reach.nodes and part not in draft.index for part in before):
            return
        by_key = f'ctx["{shown(hyphened)}"]' if in_condition else f"nodes['{shown(hyphened)}']"
        hint = f"an id with a hyphen is written `{by_key}.output`"
    else:
        hint = _of_others(name, use) or draft.found.nearest(name, draft.index)
        hint = hint or f"a node's output is {written}, an input `inputs.<name>`"
    place.problem("unknown_reference", use.key, message, hint)


def _of_others(name: str, use: Use) -> str:
    """What to write for a name that other engines have, with the name that follows it."""
    text = use.value if isinstance(use.value, str) else ""
    following = re.search(rf"\b{re.escape(name)}(?:\.|\[['\"])([A-Za-z_][\w-]*)", text)
    return OF_TEMPLATE.get(name, "").format(following[1] if following else "NAME")


_TEXT, _WHOLE = {"type": "string"}, {"type": "integer"}
_RUN = {
    "type": "object",
    "properties": {"id": _TEXT, "workflow": _TEXT, "version": _WHOLE},
    "additionalProperties": False,
}
_META = {
    "type": "object",
    "properties": {"status": _TEXT, "attempts": _WHOLE, "duration_ms": _WHOLE},
    "additionalProperties": False,
}


Promise = Kinds | MissingKey | None


class KnownSchemas:
    """What the node types, their configs and the schema of the inputs say of the values that expressions read."""

    def __init__(self, draft: NormalizedDraft, types: Sequence[NodeType | None]) -> None:
        self._roots = {"inputs": draft.document.get("inputs"), "run": _RUN, "iteration": _WHOLE}
        self._outputs: dict[str, Json] = {}
        self._keys: dict[str, Mapping[str, Json]] = {}
        for node, type_ in zip(draft.nodes, types, strict=True):
            # The output of a map is a list, and a tolerated error is an envelope.
            if type_ is None or type_.output_schema is True or "map" in node or node.get("on_error", "fail") != "fail":
                continue
            name, config = str(node.get("id")), node.get("config", {})
            self._outputs[name] = type_.output_schema
            if type_.output_keys is not None and isinstance(config, dict) and "config_ref" not in node:
                found = type_.output_keys(config).items()
                self._keys[name] = {key: each for key, each in found if not holds_wildcard(each, is_template)}

    def of_root(self, node: str, root: str, keys: Sequence[str], *, declared: bool = False) -> Promise:
        """What is known below a root; `output` is that of the node."""
        if root in OF_THE_NODE:
            return self.of_node(node, keys, declared=declared)
        # What a caller gives need not be declared.
        return expected(self._roots.get(root), keys)

    def of_node(self, node: str, keys: Sequence[str], *, declared: bool = False) -> Promise:
        """What is known below the output of a node."""
        part = self._keys.get(node, {}).get(keys[0], True) if keys else True
        schema: Json = self._outputs.get(node)
        if part is True:
            return expected(schema, keys, declared=declared)
        if part is False:
            known = tuple(key for key in schema["properties"] if self._keys[node].get(key) is not False)
            return MissingKey(0, frozenset({"map"}), known)
        found = expected(part, keys[1:], declared=declared)
        return found.below(1) if isinstance(found, MissingKey) else found

    def of_chain(self, node: str, chain: Chain, *, declared: bool = False) -> Promise:
        """What is known of what a condition reads."""
        if chain.root != "ctx":
            return self.of_root(node, chain.root, chain.keys, declared=declared)
        if len(chain.keys) < 2:
            return None
        name, part, *keys = chain.keys
        found = self.of_node(name, keys, declared=declared) if part == "output" else expected(_META, keys)
        return found.below(2) if isinstance(found, MissingKey) else found

    def of_path(self, node: str, path: Path, *, declared: bool = False) -> Promise:
        """What is known of what a template reads, up to the first number among its keys."""
        keys = [key for key in takewhile(lambda key: isinstance(key, str), path.keys) if isinstance(key, str)]
        if path.node is None:
            return self.of_root(node, path.base, keys, declared=declared)
        return expected(_META, keys) if path.meta else self.of_node(path.node, keys, declared=declared)


def check_keys(place: DocumentPath, node: str, uses: Iterable[Use], known: KnownSchemas) -> None:
    """Refuse templates that always fail, because a key that they read is never there; warn of undeclared keys."""
    from tidemill.expressions.templates.lookup import written
    from tidemill.expressions.templates.template import compile_source

    for use in uses:
        for path in compile_source(use.value).strict if has_syntax(use.value) else ():
            found = known.of_path(node, path, declared=True)
            if isinstance(found, MissingKey):
                where, key = written(path.base, path.keys[: found.at]), str(path.keys[found.at])
                hint = place.found.nearest(key, found.known) or found.others
                if found.undeclared:
                    place.warning("undeclared_key", use.key, found.message(where, key), hint)
                else:
                    place.problem("template_type", use.key, found.message(where, key), hint)


def check_operands(draft: NormalizedDraft, clauses: Mapping[int, list[Use]], known: KnownSchemas) -> None:
    """Refuse conditions that can never be decided; warn of undeclared keys."""
    if not any(clauses.values()):
        return
    # Imported late: most documents need no type check.
    from tidemill.expressions.type_check import misfits

    shared: dict[str, tuple[list[TypeMismatch], list[TypeMismatch]]] = {}
    """Of conditions that read nothing of their own node; many nodes may have the same one."""
    for number, uses in clauses.items():
        place, name = draft.place(number), str(draft.nodes[number].get("id"))
        for use in uses:
            value, own = use.value, use.reach.roots & OF_THE_NODE
            found = None if own or not isinstance(value, str) else shared.get(value)
            if found is None:
                problems, declared = (
                    list(misfits(compiled(value), value, partial(known.of_chain, name, declared=declared)))
                    for declared in (False, True)
                )
                found = problems, [each for each in declared if each not in problems]
                if not own and isinstance(value, str):
                    shared[value] = found
            for key, mismatch in found[0]:
                place.problem("condition_type", f"{use.key}{key}", mismatch.message, mismatch.hint)
            for key, mismatch in found[1]:
                place.warning("undeclared_key", f"{use.key}{key}", mismatch.message, mismatch.hint)


EVERYWHERE = frozenset(("inputs", "run", "ctx", "nodes", "iteration"))
IN_ITEMS = EVERYWHERE | {"item", "index"}
OF_THE_NODE = frozenset(("output", "current"))
IN_JUDGEMENT = EVERYWHERE | OF_THE_NODE
LOOP_DELAY = "loop/delay_seconds"
SECRETS = "secrets"
_SECRET_NAME = r"""(?:\.\w+|\["[\w.-]+"\]|\['[\w.-]+'\])"""
_LONE_SECRET = re.compile(r"(?:(?!{[{%#]).)*+{{-?\s*secrets" + _SECRET_NAME + r"\s*-?}}(?:(?!{[{%#]).)*+", re.DOTALL)

_WHERE = {
    "item": "`item` exists only in the configuration of a node with `map`",
    "index": "`index` exists only in the configuration of a node with `map`",
    "output": "`output` exists only once the handler has returned: in `branch`, `loop` and `compensator`",
    "current": "`current` exists only in the conditions of `branch` and `loop`",
    SECRETS: "`secrets` may be used only in a configuration field that the node type keeps secret",
}

Found = list[tuple[tuple[str | int, ...], str]]

TEMPLATES_MAX = 10_000
TEMPLATES_PER_NODE = 2
TEMPLATE_PARTS_MAX = 100_000
TEMPLATE_PARTS_PER_NODE = 20
COLLECTED_PARTS = 1_000


class TemplateLimits:
    """Counts the different templates of a document and what they are made of; refuses the document beyond a limit."""

    def __init__(self, nodes: int) -> None:
        self._templates_max = TEMPLATES_MAX + TEMPLATES_PER_NODE * nodes
        self._parts_max = self._parts_left = TEMPLATE_PARTS_MAX + TEMPLATE_PARTS_PER_NODE * nodes
        self._seen: set[str] = set()
        self._uncollected = 0

    def count(self, text: str, place: DocumentPath, at: str) -> None:
        """Compile a template that was not seen before."""
        from tidemill.expressions.templates.template import compile_source

        if text in self._seen or not has_syntax(text):
            return
        self._seen.add(text)
        if len(self._seen) <= self._templates_max:
            parts = compile_source(text).parts
            self._parts_left -= parts
            self._uncollected += parts
            if self._uncollected > COLLECTED_PARTS:
                # Syntax trees are cycles, and the collector is paused: all of them at its end would take seconds.
                self._uncollected = 0
                gc.collect(1)
            if self._parts_left >= 0:
                return
            message = f"the templates of the document have more than {self._parts_max} names, values and tags"
        else:
            message = f"the document has more than {self._templates_max} different templates"
        hint = "pass data as inputs and loop over it, or split the workflow"
        place.problem("too_many_templates", at, message, hint)
        place.found.refuse()


def node_uses(
    draft: NormalizedDraft,
    number: int,
    type_: NodeType | None,
    compensator_type: NodeType | None,
    limits: TemplateLimits,
) -> list[Use]:
    """Check every template of a node and return its references; `compensator_type` is its compensator type."""
    node = draft.nodes[number]
    is_map = "map" in node
    in_config = IN_ITEMS if is_map else EVERYWHERE
    uses: list[Use] = []
    if strings := find_templates(node.get("config")):
        secret_fields = type_.secret_fields if type_ else ()
        uses = template_uses(draft.place(number), "config", strings, in_config, limits, secret_fields)
    if is_map and (strings := find_templates(node["map"].get("over"))):
        uses += template_uses(draft.place(number), "map/over", strings, EVERYWHERE, limits)
    if "loop" in node and (strings := find_templates(node["loop"].get("delay_seconds"))):
        uses += template_uses(draft.place(number), LOOP_DELAY, strings, EVERYWHERE | {"output"}, limits)
    if "compensator" in node and (strings := find_templates(node["compensator"].get("config"))):
        secret_fields = compensator_type.secret_fields if compensator_type else ()
        allowed = in_config | {"output"}
        uses += template_uses(draft.place(number), "compensator/config", strings, allowed, limits, secret_fields)
    return uses


def template_uses(
    place: DocumentPath,
    key: str,
    strings: Found,
    allowed: frozenset[str],
    limits: TemplateLimits,
    secret_fields: Sequence[str] = (),
) -> list[Use]:
    # Imported where there are templates: many documents have none, and the template language takes 12 ms.
    from tidemill.expressions.templates.template import check_template

    uses: list[Use] = []
    for steps, text in strings:
        at = key
        for step in steps:
            at = pointer(at, step)
        limits.count(text, place, at)
        problems, reach = check_template(text, f"{place.path}/{at}")
        place.extend(problems)
        if text.startswith("${{") and text.endswith("}}") and text.count("{{") == 1:
            message = "the `$` before the template is text: it stays before the value"
            place.warning("dollar_template", at, message, f"to have the value alone, write {shown(text[1:])}")
        use = Use(at, text, reach)
        if not reach.roots <= allowed:
            check_roots(place, use, allowed | {SECRETS} if _is_secret(steps, secret_fields) else allowed, secret_fields)
            if SECRETS in reach.roots and not _LONE_SECRET.fullmatch(text):
                message = "a secret may only stand alone or in fixed text, without filters, other values or expressions"
                place.problem("secret_not_alone", at, message, "write {{ secrets.NAME }}")
        uses.append(use)
    return uses


def find_templates(value: Json) -> Found:
    """The strings in a value that may be templates, with the steps to each; keys never are."""
    found: Found = []
    if isinstance(value, str):
        if "{" in value:
            found.append(((), value))
    elif value is not None:
        _find(value, (), found)
    return found


def _find(value: Json, steps: tuple[str | int, ...], found: Found) -> None:
    items: Iterable[tuple[str | int, Json]] = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for step, child in items:
        kind = type(child)
        if kind is str:
            if "{" in child:
                found.append(((*steps, step), child))
        elif kind not in LEAVES:
            _find(child, (*steps, step), found)


def _is_secret(steps: tuple[str | int, ...], secret_fields: Sequence[str]) -> bool:
    """Whether the string is in a secret field; a dot leads into a nested field, a star is every item of a list."""
    fields = [field.split(".") for field in secret_fields]
    return any(
        len(steps) >= len(field) and all(part in ("*", step) for part, step in zip(field, steps, strict=False))
        for field in fields
    )


def check_roots(place: DocumentPath, use: Use, allowed: frozenset[str], secret_fields: Sequence[str] = ()) -> None:
    for root in sorted(use.reach.roots - allowed):
        if root == SECRETS:
            hint = "such as `headers` of `http` and `env` of `shell`"
            hint = f"fields that keep secrets: {', '.join(secret_fields)}" if secret_fields else hint
            place.problem("secret_not_allowed", use.key, _WHERE[root], hint)
        else:
            place.problem("name_not_available", use.key, _WHERE.get(root, f"`{root}` is not available here"))
