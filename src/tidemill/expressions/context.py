"""One string while Jinja renders it: the scope that names are looked up in, and the meter that runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from jinja2.environment import Environment
from jinja2.nodes import EvalContext
from jinja2.runtime import Context
from jinja2.utils import Namespace

from tidemill.expressions.growth import bounded_range
from tidemill.expressions.meter import Meter
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

    spend: Callable[[int], None]
    tick: Callable[[], None]
    weigh: Callable[..., None]

    def __init__(
        self, environment: Environment, evaluation: EvalContext, scope: Scope, paths: tuple[Path, ...], meter: Meter
    ) -> None:
        self.environment = environment
        self.eval_ctx = evaluation
        self.scope = scope
        self.paths = paths
        self.spend = meter.spend
        self.tick = meter.tick
        self.weigh = meter.weigh
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
