"""The normal form of a document: one spelling for everything.

Keys have a fixed order, `nodes` is a list, plain dependencies are in sorted `edges`, and each condition is parsed once
and replaced by its normal form. Patches apply to this form, and documents that differ only in spelling have the same
one. `NormalizedDraft` remembers where each node and edge was written, so that later checks report the author's paths.
Also here: conditions that reference a schema or code by digest, which the caller resolves before compiling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import NamedTuple

import msgspec

from tidemill.errors import Problem
from tidemill.expressions import conditions
from tidemill.expressions.scope import References
from tidemill.kernel.document import fields, synonyms
from tidemill.kernel.document.problems import DocumentPath, ProblemCollector, pointer, shown
from tidemill.kernel.document.values import check_values
from tidemill.kernel.model import Json

SCHEME = "cas://"
"""An optional prefix of a digest."""

_REFERENCE_FIELDS = {"schema_validation": ("schema_ref", "schema"), "python_sandbox": ("code_ref", "code")}
_PLACEHOLDERS: Mapping[str, Json] = {"schema": True, "code": "def evaluate(output, context):\n    return True\n"}
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class ContentReference(NamedTuple):
    """A condition that refers to content by digest."""

    condition: dict[str, Json]
    key: str
    """`schema_ref` or `code_ref`."""
    field: str
    """The field that holds the content instead."""
    path: str

    @property
    def digest(self) -> str | None:
        value = self.condition[self.key]
        digest = value.removeprefix(SCHEME) if isinstance(value, str) else ""
        return digest if _DIGEST.fullmatch(digest) else None

    def fill(self, content: Json) -> None:
        del self.condition[self.key]
        self.condition[self.field] = content

    def misspelt(self) -> Problem:
        message = f"{self.key} is the digest of a stored blob, such as sha256:…, with 64 hexadecimal digits"
        return Problem(code="condition_shape", message=message, path=self.path, hint="`tidemill blobs put` prints it")


def borrowed_in(document: Json) -> list[ContentReference]:
    """List the references of a raw document; a value without the shape of a document has none."""
    found: list[ContentReference] = []
    seen: set[int] = set()
    waiting = list(_conditions(document))
    while waiting:
        path, condition = waiting.pop()
        # The same object may occur in many places, even inside itself.
        if not isinstance(condition, dict) or id(condition) in seen:
            continue
        seen.add(id(condition))
        kind = condition.get("type")
        if isinstance(kind, str) and kind in _REFERENCE_FIELDS:
            key, field = _REFERENCE_FIELDS[kind]
            if key in condition and field not in condition:
                found.append(ContentReference(condition, key, field, f"{path}/{key}"))
        waiting += _children(f"{path}/conditions", condition.get("conditions"))
    return sorted(found, key=lambda each: each.path)


def with_stand_ins(document: Json) -> tuple[Json, list[Problem]]:
    """Replace well-formed references by neutral placeholders, with a warning each, for checks without blobs."""
    if not borrowed_in(document):
        return document, []
    copy = deepcopy(document)
    warnings: list[Problem] = []
    for each in borrowed_in(copy):
        if each.digest is not None:
            each.fill(_PLACEHOLDERS[each.field])
            message = f"the content of {each.key} is checked only when the document is published"
            warnings.append(Problem(code="condition_ref_unchecked", message=message, path=each.path))
    return copy, warnings


def _conditions(document: Json) -> Iterator[tuple[str, Json]]:
    nodes = document.get("nodes") if isinstance(document, dict) else None
    for path, node in _children("/nodes", nodes):
        if isinstance(node, dict):
            yield f"{path}/when", node.get("when")
            yield f"{path}/loop/condition", _entry(node.get("loop"), "condition")
            for at, rule in _children(f"{path}/branch/rules", _entry(node.get("branch"), "rules")):
                yield f"{at}/condition", _entry(rule, "condition")


def _children(path: str, holder: Json) -> list[tuple[str, Json]]:
    items = holder.items() if isinstance(holder, dict) else enumerate(holder) if isinstance(holder, list) else ()
    return [(pointer(path, key), value) for key, value in items]


def _entry(holder: Json, key: str) -> Json:
    return holder.get(key) if isinstance(holder, dict) else None


NODES_MAX = 200_000
EDGES_MAX = 2_000_000
LEAVES_MAX = 10_000
LEAVES_PER_NODE = 10
"""Conditions of a document, counted with those that composite ones are made of."""

MONEY_MAX = 1_000_000_000
BUDGET = fields.table_of(calls=fields.whole(1), tokens=fields.whole(1), money=fields.number(0, MONEY_MAX, above=True))
"""What runs may spend on language models; money is in the currency of the prices."""

LIMITS = fields.Table(
    {
        "deadline_seconds": ("deadline_seconds", fields.seconds),
        "deadline_s": ("deadline_seconds", fields.seconds),
        "deadline_ms": ("deadline_seconds", fields.from_ms),
        "deadline_minutes": ("deadline_seconds", fields.from_minutes),
        "deadline_hours": ("deadline_seconds", fields.from_hours),
        "max_visits": ("max_visits", fields.whole(1)),
        "max_fanout": ("max_fanout", fields.whole(1)),
        "max_parallel": ("max_parallel", fields.whole(1)),
        "max_hops": ("max_hops", fields.whole(1)),
        "max_bytes": ("max_bytes", fields.whole(1)),
        "budget": ("budget", fields.mapping_of(BUDGET)),
    },
    synonyms.OF_LIMITS,
)

DAYS_MAX = 36_500
RETENTION = fields.table_of(days=fields.number(0, DAYS_MAX), keep=fields.flag)


def retention(place: DocumentPath, key: str, value: Json) -> Json:
    """Retention of finished runs: days, or for ever; `keep: false` is the default."""
    days = value if isinstance(value, int | float) and not isinstance(value, bool) else 30
    read = fields.mapping_of(RETENTION, example=f"{{days: {days}}}")(place, key, value)
    if read is None:
        return None
    if read.get("keep") is False:
        del read["keep"]
    if "keep" in read and "days" in read:
        place.child(key).problem("conflicting_keys", "days", "runs that are kept for ever have no days", "keep one")
    return read or None


DOCUMENT = fields.table_of(
    synonyms.OF_DOCUMENT,
    name=fields.matching(r"[a-z0-9][a-z0-9-]*", "lower-case letters, digits and -"),
    description=fields.text,
    inputs=fields.anything,
    outputs=fields.anything,
    defaults=fields.mapping_of(fields.Table({"retry": ("retry", fields.retry), **fields.TIMEOUTS})),
    limits=fields.mapping_of(LIMITS),
    on_failure=fields.mapping_of(
        fields.table_of(compensate=fields.choice("automatic", "manual")), example="{compensate: automatic}"
    ),
    retention=retention,
    nodes=fields.anything,
    edges=fields.anything,
)

_EDGE = fields.Table({"from": ("from", fields.text), "to": ("to", fields.text)}, synonyms.OF_EDGE)


class NormalizedDraft:
    __slots__ = ("document", "edges", "found", "index", "nodes", "paths")

    def __init__(self, found: ProblemCollector) -> None:
        self.found = found
        self.document: dict[str, Json] = {}
        self.nodes: list[dict[str, Json]] = []
        self.paths: list[str] = []
        self.index: dict[str, int] = {}
        """Position in `nodes` by id; of two nodes with one id the first counts."""
        self.edges: dict[tuple[str, str], str] = {}
        """Plain edges (from, to) and where each was first written."""

    def place(self, number: int) -> DocumentPath:
        return DocumentPath(self.found, self.paths[number], node=self.nodes[number]["id"])


def draft_of(raw: Json) -> NormalizedDraft:
    found = ProblemCollector()
    draft = NormalizedDraft(found)
    check_values(raw, found)
    if found.problems:
        return draft
    if not isinstance(raw, dict):
        found.problem("not_a_mapping", "", "the document is not a mapping", "start with keys such as `name`")
        return draft
    place = DocumentPath(found, "")
    document = fields.read_table(place, raw, DOCUMENT)
    fields.require(place, document, raw, "name", "nodes")
    nodes = document.pop("nodes", [])
    for step, node, given_id in _raw_nodes(place, nodes) if "nodes" in raw else ():
        _add_node(draft, step, node, given_id)
    _add_edges(draft, place, document.pop("edges", []))
    if len(draft.edges) > EDGES_MAX:
        found.problem("too_many_edges", "", f"more than {EDGES_MAX} edges")
    draft.document = {**document, "nodes": draft.nodes, "edges": _sorted_edges(draft)}
    return draft


def _raw_nodes(place: DocumentPath, raw: Json) -> Iterator[tuple[str | int, Json, str | None]]:
    """Each node's path step, raw form, and id where its key gives it."""
    if not isinstance(raw, list | dict):
        fields.wrong_type(place, "nodes", raw, "a list of nodes")
    elif not raw:
        place.problem("no_nodes", "nodes", "a workflow needs at least one node")
    elif len(raw) > NODES_MAX:
        place.problem("too_many_nodes", "nodes", f"{len(raw)} nodes, at most {NODES_MAX} are allowed")
    elif isinstance(raw, dict):
        yield from ((key, node, key) for key, node in raw.items())
    else:
        yield from ((number, node, None) for number, node in enumerate(raw))


def _add_node(draft: NormalizedDraft, step: str | int, raw: Json, given_id: str | None) -> None:
    path = pointer("/nodes", step)
    node = fields.read_node(_node_path(draft.found, path, raw, given_id, step), raw, given_id)
    if node is None or "id" not in node:
        return
    name: str = node["id"]
    if draft.index.setdefault(name, len(draft.nodes)) != len(draft.nodes):
        first = draft.paths[draft.index[name]]
        hint = "ids are unique within a workflow"
        draft.found.problem("duplicate_id", path, f"node `{shown(name)}` is already defined at {first}", hint)
        return
    for source_key in ("dependencies", "dependents"):
        for position, other in enumerate(node.pop(source_key, ())):
            edge = (other, name) if source_key == "dependencies" else (name, other)
            draft.edges.setdefault(edge, f"{path}/{source_key}/{position}")
    draft.nodes.append(node)
    draft.paths.append(path)


def _node_path(found: ProblemCollector, path: str, raw: Json, given_id: str | None, step: str | int) -> DocumentPath:
    if given_id is None and isinstance(raw, dict):
        given = raw.get("id", raw.get("node_id"))
        given_id = given if isinstance(given, str) else None
    return DocumentPath(found, path, f"node {step}", given_id)


def _add_edges(draft: NormalizedDraft, place: DocumentPath, raw: Json) -> None:
    if not isinstance(raw, list):
        fields.wrong_type(place, "edges", raw, "a list of {from, to}")
        return
    for step, edge in enumerate(raw):
        here = DocumentPath(draft.found, f"/edges/{step}", f"edge {step}")
        if not isinstance(edge, dict):
            fields.wrong_type(here, "", edge, "a mapping {from, to}")
            continue
        read = fields.read_table(here, edge, _EDGE)
        fields.require(here, read, edge, "from", "to")
        if len(read) == 2:
            draft.edges.setdefault((read["from"], read["to"]), here.path)


def _sorted_edges(draft: NormalizedDraft) -> list[dict[str, str]]:
    """Edges in the order of their nodes, whatever the spelling."""
    last = len(draft.nodes)
    index = draft.index

    def rank(edge: tuple[str, str]) -> tuple[int, int, str, str]:
        source, target = edge
        return index.get(source, last), index.get(target, last), source, target

    return [{"from": source, "to": target} for source, target in sorted(draft.edges, key=rank)]


_ENCODER = msgspec.json.Encoder(order="sorted")

CONDITIONED_KEYS = frozenset(("when", "loop", "branch"))
"""Keys of a node that hold conditions, and no other expressions but the delay of a loop."""


class Clause(NamedTuple):
    key: str
    holder: dict[str, Json]
    field: str


class Use(NamedTuple):
    """A value of a node with the names it refers to."""

    key: str
    value: Json
    reach: References


def parse_conditions(draft: NormalizedDraft) -> dict[int, list[Use]]:
    """Parse every condition, record problems, write its normal form back, and return its references."""
    uses: dict[int, list[Use]] = {}
    parsed: dict[bytes, tuple[Json, References]] = {}
    left = leaves_max = LEAVES_MAX + LEAVES_PER_NODE * len(draft.nodes)
    for position, node in enumerate(draft.nodes):
        if node.keys().isdisjoint(CONDITIONED_KEYS):
            continue
        for clause in clauses_of(node):
            raw = clause.holder[clause.field]
            leaves = conditions.leaf_count(raw)
            left -= leaves
            if left < 0:
                message = f"all conditions of the document together are made of more than {leaves_max} simple ones"
                hint = "compute the decision in an upstream node, or split the workflow"
                draft.place(position).problem("too_many_conditions", clause.key, message, hint)
                return uses
            # A condition that is too large is refused when it is parsed; it may be too large to be encoded.
            fingerprint = _ENCODER.encode(raw) if leaves <= conditions.LEAVES_MAX else b""
            if fingerprint not in parsed:
                normal = _parse(draft, position, clause.key, raw)
                if normal is None:
                    continue
                parsed[fingerprint] = normal
            clause.holder[clause.field], reach = parsed[fingerprint]
            uses.setdefault(position, []).append(Use(clause.key, raw, reach))
    return uses


def clauses_of(node: dict[str, Json]) -> Iterator[Clause]:
    if "when" in node:
        yield Clause("when", node, "when")
    if "condition" in node.get("loop", ()):
        yield Clause("loop/condition", node["loop"], "condition")
    for step, rule in enumerate(node.get("branch", {}).get("rules", ())):
        if "condition" in rule:
            yield Clause(f"branch/rules/{step}/condition", rule, "condition")


def _parse(draft: NormalizedDraft, position: int, key: str, raw: Json) -> tuple[Json, References] | None:
    place = draft.place(position)
    condition, problems = conditions.parse_condition(raw, f"{place.path}/{key}")
    place.extend(problems)
    if condition is None:
        return None
    return conditions.normal(condition), condition.references
