"""How a template reads the scope: static paths, Jinja's context, and the test for template syntax.

A static path is `enrich.output.score`, `ctx["a-b"].meta.attempts` or `inputs.rows[0]`. Most templates are nothing else
and are followed here without Jinja; Jinja calls the same code inside larger templates. Only this module knows what a
name means, which shorthand applies, and how a missing value is explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jinja2  # noqa: F401 - the whole package first, or threads that import parts of it meet half of one
import msgspec
from jinja2.environment import Environment
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import Namespace

from tidemill.expressions.errors import Explanation, lacking, listing, meant, place
from tidemill.expressions.scope import NODE_MAPS, RESERVED, Absent, Json, References, Scope
from tidemill.expressions.templates.limits import RenderBudget, bounded_range
from tidemill.expressions.templates.undefined import NotAvailable


class Fault(NamedTuple):
    """Something that is wrong with the source of a template."""

    message: str
    line: int
    hint: str = ""


Key = str | int

_NOTHING = object()


class Path(msgspec.Struct, frozen=True):
    """A root, what is read from it, and the keys to follow from there."""

    text: str
    """The path as the author wrote it, for messages."""
    base: str
    """The part of it that `keys` start from, shorthand written out."""
    references: References
    keys: tuple[Key, ...]
    node: str | None = None
    meta: bool = False
    read: Callable[[Scope], object] | None = None
    """How to read a root that is not a node; None together with `node` None is a root without a value."""

    def follow(self, scope: Scope) -> Json | NotAvailable:
        """Walk to the value, shared with the scope and not copied; a missing one is `NotAvailable`."""
        if self.node is not None:
            seen = scope.nodes.get(self.node)
            if seen is None or (isinstance(seen, Absent) and not (self.meta and seen.meta)):
                return self._missing(scope)
            value: object = seen.meta if self.meta or isinstance(seen, Absent) else seen.output
        elif self.read is None:
            return self._missing(scope)
        else:
            value = self.read(scope)
        for key in self.keys:
            value = value.get(key, _NOTHING) if type(value) is dict else step(value, key)
            if value is _NOTHING:
                return self._missing(scope)
        return value if value is not _NOTHING else self._missing(scope)

    def _missing(self, scope: Scope) -> NotAvailable:
        return NotAvailable(why=partial(explain, self, scope))


def node_path(base: str, root: str, node: str, keys: Sequence[Key]) -> Path:
    """Build the path below a node: `.output` and `.meta` name its parts, any other key looks into the output."""
    aspect = keys[0] if keys else None
    meta = aspect == "meta"
    return Path(
        text=written(base, keys),
        base=f"{base}.meta" if meta else f"{base}.output",
        references=References(nodes=frozenset({node}), roots=frozenset({root}) & NODE_MAPS),
        keys=tuple(keys[1:] if meta or aspect == "output" else keys),
        node=node,
        meta=meta,
    )


def build(root: str, keys: Sequence[Key]) -> Path:
    if root not in RESERVED:
        return node_path(root, root, root, keys)
    if root in NODE_MAPS:
        if keys and isinstance(keys[0], str):
            return node_path(place(root, keys[0]), root, keys[0], keys[1:])
        references = References(roots=frozenset({root}), dynamic=True)
        return Path(text=root, base=root, references=references, keys=())
    references = References(roots=frozenset({root}))
    read = None if root == "secrets" and not keys else READERS[root]
    return Path(text=written(root, keys), base=root, references=references, keys=tuple(keys), read=read)


def written(base: str, keys: Sequence[Key]) -> str:
    for key in keys:
        base = place(base, key)
    return base


def step(value: object, key: object) -> object:
    """Look one key up the JSON way; `_NOTHING` (see `is_nothing`) when there is none."""
    if isinstance(value, Mapping):
        return value.get(key, _NOTHING) if isinstance(key, str) else _NOTHING
    if isinstance(value, list | tuple | str | range) and type(key) is int and -len(value) <= key < len(value):
        return value[key]
    return _NOTHING


def is_nothing(value: object) -> bool:
    """Whether `step` found nothing; JSON null is something."""
    return value is _NOTHING


def _output(scope: Scope) -> object:
    return scope.output if scope.has_output else _NOTHING


READERS: Mapping[str, Callable[[Scope], object]] = {
    "inputs": lambda scope: scope.inputs,
    "run": lambda scope: scope.run if type(scope.run) is dict else dict(scope.run),
    "iteration": lambda scope: scope.iteration,
    "secrets": lambda scope: scope.secrets,
    "item": lambda scope: scope.item if scope.has_item else _NOTHING,
    "index": lambda scope: scope.index if scope.has_item else _NOTHING,
    "output": _output,
    "current": _output,
}


def explain(path: Path, scope: Scope) -> Explanation:
    if path.node is not None:
        seen = scope.nodes.get(path.node)
        if seen is None or (isinstance(seen, Absent) and not (path.meta and seen.meta)):
            if seen is not None:
                hint = "if that may happen, give a value for it: `| default(...)`"
                return Explanation(f'node "{path.node}" {seen.reason}, so {path.text} has no value', hint)
            # Below `ctx` there are nodes only; a name by itself may be a misspelt root.
            near = meant(path.node, scope.nodes if path.references.roots & NODE_MAPS else [*scope.nodes, *RESERVED])
            known = listing(sorted(scope.nodes)) or "none"
            return Explanation(f'there is no name "{path.node}" here', f"{near} available nodes: {known}".strip())
        value: object = seen.meta if path.meta or isinstance(seen, Absent) else seen.output
    elif path.read is None:
        return Explanation(f"{path.text} has no value of its own", f"name one of its entries: {path.text}.NAME")
    else:
        value = path.read(scope)
        if value is _NOTHING:
            return Explanation(f"{path.base} is not available here", _AVAILABLE.get(path.base, ""))
    return _dead_end(path, value)


_AVAILABLE = {
    "item": "item and index exist only in the config of a node with `map`",
    "index": "item and index exist only in the config of a node with `map`",
    "output": "write the node's id: <node>.output",
    "current": "write the node's id: <node>.output",
}


def _dead_end(path: Path, value: object) -> Explanation:
    where = path.base
    for key in path.keys:
        below = step(value, key)
        if below is _NOTHING:
            if where == "secrets":
                # Names of secrets are not listed: a message ends up in an event.
                hint = (
                    f"set TIDEMILL_SECRET_{key} for the workers, or put a file {key} into the folder TIDEMILL_SECRETS"
                )
                # The document is in order: its author has nothing to correct.
                return Explanation(f'there is no secret "{key}"', hint, "secret_missing")
            message, hint = lacking(where, value, key)
            if not hint and where.endswith(".output") and path.text.startswith(place(where[: -len(".output")], key)):
                hint = f"below the id of a node stands `output`: {where}"
            return Explanation(message, hint)
        value, where = below, place(where, key)
    return Explanation(f"{path.text} has no value")


def _made_dict(**entries: Any) -> dict[str, Any]:
    return entries


def _made_namespace(**entries: Any) -> Namespace:
    return Namespace(**entries)


FUNCTIONS: Mapping[str, Any] = {"range": bounded_range, "dict": _made_dict, "namespace": _made_namespace}
"""What a template may call by name. A node with such an id is reached as `nodes["range"]`."""


class ScopeContext(Context):
    """Jinja's context over our scope; built directly, because Jinja's own way copies all names first."""

    spend: Callable[[int], None]
    tick: Callable[[], None]
    weigh: Callable[..., None]

    def __init__(
        self,
        environment: Environment,
        evaluation: EvalContext,
        scope: Scope,
        paths: tuple[Path, ...],
        meter: RenderBudget,
    ) -> None:
        self.environment = environment
        self.eval_ctx = evaluation
        self.scope, self.paths = scope, paths
        self.spend = meter.spend
        self.tick = meter.tick
        self.weigh = meter.weigh
        self.parent: dict[str, Any] = {}
        self.vars: dict[str, Any] = {}
        self.exported_vars: set[str] = set()
        self.blocks: dict[str, Any] = {}
        self.name = None

    def resolve_or_missing(self, key: str) -> Any:
        """Look up a name that the rewriting left alone: a variable, a function or a root; never a node."""
        if key in self.vars:
            return self.vars[key]
        if key in FUNCTIONS:
            return FUNCTIONS[key]
        return build(key, ()).follow(self.scope) if key in READERS else NotAvailable(name=key)

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002 - Jinja's name
        """Return this context: none of our functions reads the variables of a loop."""
        return self
