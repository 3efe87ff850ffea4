"""Which names an expression may use where it stands, and what every node refers to.

`item` and `index` exist only while a map runs an item, `output` only once the handler has returned, and a secret
only in a configuration field whose type promises to keep it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tidemill.expressions.templates import check_template
from tidemill.kernel.clauses import Use
from tidemill.kernel.findings import Place, pointer
from tidemill.kernel.model import Json, NodeType
from tidemill.kernel.normal import Draft

EVERYWHERE = frozenset(("inputs", "run", "ctx", "nodes", "iteration"))
ITEM = frozenset(("item", "index"))
OUTPUT = frozenset(("output",))
JUDGED = frozenset(("output", "current"))
SECRETS = frozenset(("secrets",))

_WHERE = {
    "item": "`item` exists only in the configuration of a node with `map`",
    "index": "`index` exists only in the configuration of a node with `map`",
    "output": "`output` exists only once the handler has returned: in `branch`, `loop` and `compensator`",
    "current": "`current` exists only in the conditions of `branch` and `loop`",
    "secrets": "`secrets` may be used only in a configuration field that the node type keeps secret",
}


def template_uses(place: Place, node: dict[str, Json], type_: NodeType | None) -> list[Use]:
    """Check the templates of a node and tell what they refer to."""
    uses: list[Use] = []
    in_config = EVERYWHERE | ITEM if "map" in node else EVERYWHERE
    if "config" in node:
        uses += templates_in(place, "config", node["config"], in_config, type_.secret_fields if type_ else ())
    if "map" in node and "over" in node["map"]:
        uses += templates_in(place, "map/over", node["map"]["over"], EVERYWHERE, ())
    return uses


def compensator_uses(place: Place, node: dict[str, Json], type_: NodeType | None) -> list[Use]:
    """Check the templates of a node's compensator, which also sees the output of what it undoes."""
    config = node["compensator"].get("config")
    allowed = EVERYWHERE | OUTPUT | (ITEM if "map" in node else frozenset())
    return templates_in(place, "compensator/config", config, allowed, type_.secret_fields if type_ else ())


def templates_in(
    place: Place, key: str, value: Json, allowed: frozenset[str], secret_fields: Sequence[str]
) -> list[Use]:
    problems, reach = check_template(value, f"{place.path}/{key}")
    for problem in problems:
        message = f"{place.who}: {problem.message}" if place.who else problem.message
        place.found.problem(problem.code, problem.path, message, problem.hint)
    use = Use(key, value, reach)
    if not reach.roots <= allowed:
        _check_secrets(place, use, secret_fields)
        check_roots(place, use, allowed | SECRETS)
    return [use] if reach.nodes or reach.dynamic else []


def check_roots(place: Place, use: Use, allowed: frozenset[str]) -> None:
    """Record the reserved names that do not exist where this expression stands."""
    for root in sorted(use.reach.roots - allowed):
        key = locate(use, root)
        if root == "secrets":
            place.problem("secret_not_allowed", key, _WHERE[root])
        else:
            place.problem("name_not_available", key, _WHERE.get(root, f"`{root}` is not available here"))


def _check_secrets(place: Place, use: Use, secret_fields: Sequence[str]) -> None:
    if "secrets" not in use.reach.roots:
        return
    kept = [tuple(field.split(".")) for field in secret_fields]
    for steps, text in strings(use.value):
        if "secrets" not in text or any(steps[: len(field)] == field for field in kept):
            continue
        if "secrets" in check_template(text, "")[1].roots:
            hint = f"fields that keep secrets: {', '.join(secret_fields)}" if secret_fields else "this type keeps none"
            place.problem("secret_not_allowed", _joined(use.key, steps), _WHERE["secrets"], hint)


def locate(use: Use, name: str) -> str:
    """The key of the one string inside a value that refers to a name; a condition is blamed as a whole."""
    if not use.key.endswith("condition") and use.key != "when":
        for steps, text in strings(use.value):
            if name in text and name in (reach := check_template(text, "")[1]).roots | reach.nodes:
                return _joined(use.key, steps)
    return use.key


def strings(value: Json, steps: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every string inside a value with the steps that lead to it; keys are not looked at."""
    if isinstance(value, str):
        yield steps, value
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from strings(child, (*steps, key))
    elif isinstance(value, list):
        for number, child in enumerate(value):
            yield from strings(child, (*steps, str(number)))


def _joined(key: str, steps: Sequence[str]) -> str:
    for step in steps:
        key = pointer(key, step)
    return key
