"""All attacks there are, in volleys of one language each that take a few seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.attacks import cel, jsonpath, sandbox, sandbox_bombs, schemas, template_bombs, templates
from tests.attacks.attack import Attack

CORPORA: Mapping[str, Sequence[Attack]] = {
    "template-loops": template_bombs.LOOPS,
    "cel-loops": cel.LOOPS,
    "template-escapes": (
        *templates.ATTRIBUTE_WALKS,
        *templates.SUBSCRIPT_WALKS,
        *templates.WALKS_OF_FILTERS,
        *templates.FORMATS,
        *templates.NAMES,
        *templates.TAGS,
    ),
    "template-growth": template_bombs.GROWTH,
    "template-captures": template_bombs.CAPTURES,
    "template-numbers": template_bombs.NUMBERS,
    "template-recursion": template_bombs.RECURSION,
    "template-texts": (*template_bombs.PATTERNS, *templates.TEXTS),
    "cel-values": (*cel.NAMES, *cel.TYPES, *cel.EDGES, *cel.TEXTS),
    "cel-nesting": (*cel.NESTING, *cel.PATTERNS, *cel.SHAPES),
    "cel-weights": cel.WEIGHTS,
    "jsonpath": (*jsonpath.DIALECTS, *jsonpath.NESTING, *jsonpath.ABYSSES, *jsonpath.VALUES),
    "jsonpath-bombs": jsonpath.BOMBS,
    "jsonpath-weights": jsonpath.WEIGHTS,
    "schema-references": schemas.REFERENCES,
    "schema-sizes": (*schemas.RECURSION, *schemas.SIZES),
    "schema-patterns": schemas.PATTERNS,
    "comparison": schemas.COMPARISONS,
    "sandbox-escapes": (*sandbox.IMPORTS, *sandbox.WALKS),
    "sandbox-answers": (*sandbox.ANSWERS, *sandbox.SYNTAXES),
    "sandbox-loops": sandbox_bombs.LOOPS,
    "sandbox-growth": sandbox_bombs.GROWTH,
}
