"""What can be said of a JSON Schema before any value is checked: the work it can ask for, and the keys it guarantees.

A schema of forty lines can ask for 2^40 steps: each definition refers twice to the next. References are expanded as the
validator follows them, up to a limit. A reference to a definition that is being expanded is recursion: it ends with the
value, and the validator caches its decisions. Only where two such references can meet at the same place of a value does
a list of errors grow without bound. Of keys only what is certain counts: a schema that leaves something open, or refers
outside itself, guarantees nothing. No expression language is imported here: most documents need no check of types.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple
from urllib.parse import unquote, urldefrag, urljoin

import msgspec

from tidemill.expressions.errors import choices, listing, shorten
from tidemill.expressions.scope import Json

STEPS_MAX = 20_000
"""Subschemas, counted as often as the validator visits them at one place of a value."""

_RETURNS_MAX = 200
_TRAIL_PER_STEP = 16
_LISTS = ("allOf", "anyOf", "oneOf")
_ONES = ("not", "if", "then", "else")
_REFERENCES = ("$ref", "$dynamicRef")
_EVERY_CHILD = ("additionalProperties", "propertyNames", "items", "contains")
_REST = ("unevaluatedProperties", "unevaluatedItems")
_REST_FACTOR = 3
"""Measured: for unevaluated parts the validator repeats everything beside the keyword."""
_ANY = "*"

Place = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reach:
    steps: int
    """A lower bound; counting stops beyond `STEPS_MAX`."""
    refers: bool
    knotted: bool
    """Recursion meets itself at the same place of a value, so errors cannot be listed one by one."""
    endless: bool
    """Knotted in a way that the validator does not cache, so that it may never answer."""
    patterns: frozenset[str]
    problem: str
    """Why the references of the schema cannot be followed; empty if they can."""


@dataclass(frozen=True, slots=True, eq=False)
class _Target:
    """A definition that is being expanded for one reference, and the place it applies to."""

    schema: Json
    place: Place


class _Step(NamedTuple):
    """A subschema to expand: the place of the value, the definitions around it, how often it counts."""

    schema: Json
    place: Place
    trail: tuple[_Target, ...]
    weight: int


class _Parts(NamedTuple):
    """The subschemas, each with the child of the value it applies to, and the references of a schema."""

    applied: tuple[tuple[Json, str | None], ...]
    references: tuple[Json, ...]
    factor: int
    """How often everything in it counts."""


def cost_bound(schema: Json, known: frozenset[str] = frozenset()) -> Reach:
    """Expand a schema as the validator does, up to the limit; `known` names other schemas."""
    cost = SchemaCost(schema, known)
    waiting = [_Step(schema, (), (_Target(schema, ()),), 1)]
    steps = 0
    while waiting and steps <= STEPS_MAX:
        step = waiting.pop()
        # Deep inside references a step takes longer, here and in the validator.
        steps += step.weight + len(step.trail) // _TRAIL_PER_STEP
        if isinstance(step.schema, dict):
            waiting += _below(step, cost)
    knotted = cost.is_knotted()
    # Where recursion stays at its place or passes unevaluated parts, the validator was seen not to end.
    endless = knotted and (cost.has_rest or any(() in places for places in cost.returns.values()))
    return Reach(steps, cost.refers, knotted, endless, frozenset(cost.patterns), cost.problem)


class SchemaCost:
    def __init__(self, root: Json, known: frozenset[str]) -> None:
        self.root, self.known = root, known
        self.base = str(root.get("$id", "")) if isinstance(root, dict) else ""
        self.anchors: dict[str, Json] = {}
        self.patterns: set[str] = set()
        self.refers = False
        self.problem = ""
        self.has_rest = False
        self._parts: dict[int, _Parts] = {}
        self._resolved: dict[str, Json] = {}
        self.returns: dict[_Target, list[Place]] = {}
        """Recursive definition -> the places, relative to it, at which it is referred to again."""
        waiting = [root]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                for keyword in ("$anchor", "$dynamicAnchor"):
                    self.anchors.setdefault(str(each.get(keyword)), each)
                waiting += [below for below, _ in _applied(each)]
                waiting += _entries(each.get("$defs")).values()

    def parts(self, schema: dict[str, Json]) -> _Parts:
        """Split a subschema; cached, because it may be visited thousands of times."""
        known = self._parts.get(id(schema))
        if known is None:
            self.patterns.update(_entries(schema.get("patternProperties")))
            if isinstance(schema.get("pattern"), str):
                self.patterns.add(schema["pattern"])
            if "$id" in schema and schema is not self.root:
                self.problem = "$id is understood at the top of a schema only"
            has_rest = any(keyword in schema for keyword in _REST)
            self.has_rest = self.has_rest or has_rest
            references = tuple(schema[keyword] for keyword in _REFERENCES if keyword in schema)
            factor = _REST_FACTOR if has_rest else 1
            known = self._parts[id(schema)] = _Parts(tuple(_applied(schema)), references, factor)
        return known

    def resolved(self, reference: Json) -> Json:
        """Return the target of a reference; None if it is outside of the schema or not understood."""
        name = str(reference)
        if name not in self._resolved:
            self._resolved[name] = self._found(name)
        return self._resolved[name]

    def _found(self, reference: str) -> Json:
        name, fragment = urldefrag(urljoin(self.base, reference))
        if name not in ("", urldefrag(self.base)[0]):
            return None
        if fragment and not fragment.startswith("/"):
            return self.anchors.get(fragment)
        at = self.root
        for key in fragment.split("/")[1:]:
            key = unquote(key).replace("~1", "/").replace("~0", "~")
            if isinstance(at, list) and key.isdecimal() and int(key) < len(at):
                at = at[int(key)]
            else:
                at = at.get(key) if isinstance(at, dict) else None
        return at

    def is_knotted(self) -> bool:
        """True if two recursions of a definition can meet at the same place of a value, or one passes the other's."""
        # A definition with many references has the same recursions each time.
        for places in set(map(tuple, self.returns.values())):
            if len(places) > _RETURNS_MAX or any(_meet(*pair) for pair in combinations(places, 2)):
                return True
        return False


def _meet(one: Place, other: Place) -> bool:
    return all(a == b or _ANY in (a, b) for a, b in zip(one, other, strict=False))


def _below(step: _Step, cost: SchemaCost) -> Iterator[_Step]:
    """Return the subschemas of a step, each with the place of the value it applies to."""
    _, place, trail, weight = step
    parts = cost.parts(step.schema)
    weight *= parts.factor
    for each, child in parts.applied:
        yield _Step(each, place if child is None else (*place, child), trail, weight)
    for reference in parts.references:
        yield from _referred(step._replace(weight=weight), cost, reference)


def _applied(schema: dict[str, Json]) -> Iterator[tuple[Json, str | None]]:
    """Return the subschemas, each with the child of the value it applies to; None is the value itself."""
    for keyword in _LISTS:
        yield from ((each, None) for each in _items(schema.get(keyword)))
    yield from ((schema[keyword], None) for keyword in _ONES if keyword in schema)
    yield from ((each, None) for each in _entries(schema.get("dependentSchemas")).values())
    yield from ((each, f".{key}") for key, each in _entries(schema.get("properties")).items())
    yield from ((each, f"[{number}]") for number, each in enumerate(_items(schema.get("prefixItems"))))
    yield from ((schema[keyword], _ANY) for keyword in (*_EVERY_CHILD, *_REST) if keyword in schema)
    yield from ((each, _ANY) for each in _entries(schema.get("patternProperties")).values())


def _referred(here: _Step, cost: SchemaCost, reference: Json) -> Iterator[_Step]:
    cost.refers = True
    found = cost.resolved(reference)
    if found is None:
        if reference not in cost.known:
            cost.problem = f"$ref to {shorten(str(reference), 80)} is not understood"
        return
    for number, target in enumerate(here.trail):
        if target.schema is found:
            # Record a recursion for every definition of the cycle, which starts at `first` of the trail.
            for each in here.trail[number:]:
                cost.returns.setdefault(each, []).append(here.place[len(each.place) :])
            return
    yield here._replace(schema=found, trail=(*here.trail, _Target(found, here.place)))


def _items(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _entries(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


# What a schema guarantees for a chain of keys.

Kinds = frozenset[str]


class Choices(Kinds):
    """The kinds of a value that is one of these."""

    values: tuple[Json, ...] = ()

    @classmethod
    def of(cls, kinds: Kinds, values: Sequence[Json]) -> Choices:
        found = cls(kinds)
        found.values = tuple(values)
        return found


REFS_MAX = 20
"""References followed from one schema to the next, so that a cycle ends."""

_TYPES: dict[str, Kinds] = {
    "null": frozenset({"null"}),
    "boolean": frozenset({"bool"}),
    "integer": frozenset({"int"}),
    "number": frozenset({"int", "double"}),
    "string": frozenset({"string"}),
    "array": frozenset({"list"}),
    "object": frozenset({"map"}),
}
_PYTHON = {type(None): "null", bool: "bool", int: "int", float: "double", str: "string", list: "list", dict: "map"}
_OPENING = ("$ref", "$dynamicRef", "$recursiveRef", "allOf", "anyOf", "oneOf", "if", "patternProperties")
"""Keywords beside which `additionalProperties: false` is not taken at its word."""


class MissingKey(msgspec.Struct, frozen=True):
    """The key at this place of a chain can never be there."""

    at: int
    kinds: Kinds
    """What the value is that has no such key."""
    known: tuple[str, ...] = ()
    """The keys that it can have, if it is an object."""
    undeclared: bool = False
    """It may be there all the same: the schema does not exclude it."""

    def below(self, depth: int) -> MissingKey:
        """The same place, of a chain with as many keys before it."""
        return MissingKey(self.at + depth, self.kinds, self.known, self.undeclared)

    def message(self, where: str, key: str) -> str:
        """Say it of the value that has no such key."""
        if self.kinds != {"map"}:
            return f'{where} is {kinds_text(self.kinds)}, so it has no key "{key}"'
        return f'the schema of {where} has no key "{key}"' if self.undeclared else f'{where} never has a key "{key}"'

    @property
    def others(self) -> str:
        """A hint with the keys that there can be."""
        return f"known keys: {listing(self.known) or 'none'}" if self.kinds == {"map"} else ""


def expected(schema: Json, keys: Sequence[str], *, declared: bool = False) -> Kinds | MissingKey | None:
    """Follow keys into a schema: the possible kinds, the key that is missing, or None if nothing is certain.

    With `declared`, a key is also missing where an object's schema has other properties and says nothing of more.
    """
    here = _followed(schema, schema)
    for at, key in enumerate(keys):
        if here is None:
            return None
        kinds = _kinds(here)
        if kinds is not None and "map" not in kinds:
            return MissingKey(at, kinds)
        properties = here.get("properties", {})
        if not isinstance(properties, dict):
            return None
        if key in properties:
            here = _followed(schema, properties[key])
        elif here.get("additionalProperties") is False and not any(word in here for word in _OPENING):
            return MissingKey(at, _TYPES["object"], tuple(properties))
        elif declared and properties and not any(word in here for word in ("additionalProperties", *_OPENING)):
            return MissingKey(at, _TYPES["object"], tuple(properties), undeclared=True)
        else:
            return None
    return None if here is None else _kinds(here)


def _followed(root: Json, schema: Json) -> dict[str, Json] | None:
    """Follow references within the document; None if one leads elsewhere."""
    for _ in range(REFS_MAX):
        if not isinstance(schema, dict) or ("$id" in schema and schema is not root):
            return None
        reference = schema.get("$ref")
        if reference is None:
            return schema
        schema = _pointed(root, reference)
    return None


def _pointed(root: Json, reference: Json) -> Json:
    if not isinstance(reference, str) or not reference.startswith("#/") or "%" in reference:
        return None
    for step in reference[2:].split("/"):
        root = root.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(root, dict) else None
    return root


def _kinds(schema: dict[str, Json]) -> Kinds | None:
    given, kinds = schema.get("type"), None
    if given is not None:
        names = given if isinstance(given, list) else [given]
        found = [_TYPES.get(name) if isinstance(name, str) else None for name in names]
        kinds = None if None in found else frozenset().union(*(kinds for kinds in found if kinds))
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if not isinstance(values, list):
        return kinds
    return Choices.of(frozenset(map(kind_named, values)) if given is None else kinds or frozenset(), values)


def kind_named(value: Json) -> str:
    """Name the kind of a value; a whole number is an integer to a schema, however it is written."""
    return "int" if isinstance(value, float) and value.is_integer() else _PYTHON[type(value)]


_WORDS = {"bool": "a boolean", "int": "an integer", "uint": "an unsigned integer", "double": "a double"} | {
    "string": "a string",
    "list": "a list",
    "map": "an object",
}


def kinds_text(kinds: Kinds) -> str:
    if kinds == {"int", "double"}:
        return "a number"
    return " or ".join(_WORDS.get(kind, kind) for kind in sorted(kinds))


# A schema in words.

ELSE = "something else that the schema allows"
KINDS = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "an integer",
    "null": "null",
    "number": "a number",
    "object": "an object",
    "string": "a string",
}


def described(schema: Json) -> str:
    described = schema.get("description") if isinstance(schema, dict) else None
    return shorten(described, 120) if isinstance(described, str) else ""


def takes_of(schema: Json) -> str:
    """What a key takes, in the words of its schema if it has some; empty if that cannot be said shortly."""
    wanted = described(schema) or wanted_by(schema)
    return "" if wanted == ELSE else wanted


def wanted_by(schema: Json) -> str:
    match schema:
        case {"const": value}:
            return choices([value])
        case {"enum": list(values)}:
            return choices(values)
        case {"type": str(kind), "pattern": str(pattern)}:
            return f"{KINDS.get(kind, kind)} like {shorten(pattern, 60)}"
        case {"type": str(kind)}:
            return KINDS.get(kind, kind)
        case {"required": [*keys]}:
            return f"an object with {', '.join(map(str, keys))}"
    return ELSE
