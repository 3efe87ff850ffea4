"""Which names an expression may use where it stands, and what every string of a node refers to.

`item` and `index` exist only while a map runs an item, `output` only once the handler has returned, and a secret
only in a configuration field whose type promises to keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tidemill.expressions.templates import check_template
from tidemill.kernel.document.clauses import Use
from tidemill.kernel.document.findings import Place, pointer
from tidemill.kernel.document.normal import Draft
from tidemill.kernel.document.values import LEAVES
from tidemill.kernel.model import Json, NodeType

EVERYWHERE = frozenset(("inputs", "run", "ctx", "nodes", "iteration"))
IN_ITEMS = EVERYWHERE | {"item", "index"}
IN_JUDGEMENT = EVERYWHERE | {"output", "current"}
SECRETS = "secrets"

_WHERE = {
    "item": "`item` exists only in the configuration of a node with `map`",
    "index": "`index` exists only in the configuration of a node with `map`",
    "output": "`output` exists only once the handler has returned: in `branch`, `loop` and `compensator`",
    "current": "`current` exists only in the conditions of `branch` and `loop`",
    SECRETS: "`secrets` may be used only in a configuration field that the node type keeps secret",
}

Found = list[tuple[tuple[str | int, ...], str]]


def node_uses(draft: Draft, number: int, type_: NodeType | None, undoing: NodeType | None) -> list[Use]:
    """Check every template of a node and tell what it refers to; `undoing` is the type of its compensator."""
    node = draft.nodes[number]
    is_map = "map" in node
    in_config = IN_ITEMS if is_map else EVERYWHERE
    uses: list[Use] = []
    if strings := find_templates(node.get("config")):
        secret_fields = type_.secret_fields if type_ else ()
        uses = template_uses(draft.place(number), "config", strings, in_config, secret_fields)
    if is_map and (strings := find_templates(node["map"].get("over"))):
        uses += template_uses(draft.place(number), "map/over", strings, EVERYWHERE)
    if "compensator" in node and (strings := find_templates(node["compensator"].get("config"))):
        secret_fields = undoing.secret_fields if undoing else ()
        uses += template_uses(draft.place(number), "compensator/config", strings, in_config | {"output"}, secret_fields)
    return uses


def template_uses(
    place: Place, key: str, strings: Found, allowed: frozenset[str], secret_fields: Sequence[str] = ()
) -> list[Use]:
    """Check the templates found in a value and tell what each of them refers to."""
    uses: list[Use] = []
    for steps, text in strings:
        at = key
        for step in steps:
            at = pointer(at, step)
        problems, reach = check_template(text, f"{place.path}/{at}")
        for problem in problems:
            place.found.problem(problem.code, problem.path, f"{place.who}: {problem.message}", problem.hint)
        use = Use(at, text, reach)
        if not reach.roots <= allowed:
            check_roots(place, use, allowed | {SECRETS} if _kept(steps, secret_fields) else allowed, secret_fields)
        uses.append(use)
    return uses


def find_templates(value: Json) -> Found:
    """The strings in a value that may be templates, each with the steps that lead to it; keys never are."""
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


def _kept(steps: tuple[str | int, ...], secret_fields: Sequence[str]) -> bool:
    """Whether a type keeps the field secret in which a string stands.

    A dot leads into a nested field, and a star is every item of a list.
    """
    fields = [field.split(".") for field in secret_fields]
    return any(
        len(steps) >= len(field) and all(part in ("*", step) for part, step in zip(field, steps, strict=False))
        for field in fields
    )


def check_roots(place: Place, use: Use, allowed: frozenset[str], secret_fields: Sequence[str] = ()) -> None:
    """Record the reserved names that do not exist where this expression stands."""
    for root in sorted(use.reach.roots - allowed):
        if root == SECRETS:
            hint = f"fields that keep secrets: {', '.join(secret_fields)}" if secret_fields else ""
            place.problem("secret_not_allowed", use.key, _WHERE[root], hint)
        else:
            place.problem("name_not_available", use.key, _WHERE.get(root, f"`{root}` is not available here"))
