"""One rendering in progress: the scope that names are looked up in, and the budget that is left."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jinja2.environment import Environment
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import Namespace

from tidemill.expressions.bounds import STEPS_MAX
from tidemill.expressions.failure import template_failed
from tidemill.expressions.growth import bounded_range
from tidemill.expressions.missing import Missing
from tidemill.expressions.paths import READERS, Path, build
from tidemill.expressions.scope import Scope


def _made_dict(**entries: Any) -> dict[str, Any]:
    return entries


def _made_namespace(**entries: Any) -> Namespace:
    return Namespace(**entries)


FUNCTIONS: Mapping[str, Any] = {"range": bounded_range, "dict": _made_dict, "namespace": _made_namespace}
"""What a template may call by name. A node with such an id is reached as `nodes["range"]`."""


class ScopeContext(Context):
    """Jinja's context over our scope; built directly, because Jinja's own way copies all names first."""

    def __init__(
        self, environment: Environment, evaluation: EvalContext, scope: Scope, paths: tuple[Path, ...]
    ) -> None:
        self.environment = environment
        self.eval_ctx = evaluation
        self.scope = scope
        self.paths = paths
        self.steps_left = STEPS_MAX
        self.parent: dict[str, Any] = {}
        self.vars: dict[str, Any] = {}
        self.exported_vars: set[str] = set()
        self.blocks: dict[str, Any] = {}
        self.name = None

    def resolve_or_missing(self, key: str) -> Any:
        """Look a name up that the rewriting left alone: a variable, a function, or a root that is also set.

        A node is never found here, because then nobody would know that the template refers to it.
        """
        if key in self.vars:
            return self.vars[key]
        if key in FUNCTIONS:
            return FUNCTIONS[key]
        return build(key, ()).follow(self.scope) if key in READERS else Missing(name=key)

    def derived(self, locals: dict[str, Any] | None = None) -> Context:  # noqa: A002 - Jinja's name
        """Stay what we are: no function of ours looks at the variables of a loop."""
        return self

    def weigh(self, value: object) -> None:
        """Pay for every value inside, before they are compared one by one.

        A list that holds itself twice, sixty times over, is small in memory and endless to compare.
        """
        waiting = [value]
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                inside: list[Any] = list(each.values())
            elif isinstance(each, list | tuple):
                inside = list(each)
            else:
                continue
            self.spend(1 + len(inside))
            waiting.extend(inside)

    def spend(self, steps: int) -> None:
        """Pay for work; a rendering that spends too much ends."""
        self.steps_left -= max(0, steps)
        if self.steps_left < 0:
            raise template_failed(f"the template takes more than {STEPS_MAX} steps", "loop over fewer items")
