"""What a name means to Jinja when it cannot be a static path.

That is so when a template sets a variable of the same name (`{% set enrich = enrich.output %}`) and when a
node is chosen by a computed name (`nodes[inputs.which]`).
"""

from __future__ import annotations

from functools import partial

from tidemill.expressions.failure import Explanation
from tidemill.expressions.missing import Missing
from tidemill.expressions.paths import READERS, build, is_nothing, node_path
from tidemill.expressions.references import RESERVED
from tidemill.expressions.scope import Json, Scope


class NodeView:
    """A node that was reached by name; its keys are looked up as in a static path."""

    __slots__ = ("node", "scope", "text")

    def __init__(self, scope: Scope, node: str, text: str) -> None:
        self.scope = scope
        self.node = node
        self.text = text

    def get(self, key: object) -> Json | Missing:
        """Look up `output`, `meta`, or a key of the output."""
        if not isinstance(key, str | int):
            return Missing(why=partial(Explanation, f"{self.text} has no key of that kind"))
        return node_path(self.text, self.node, self.node, (key,)).follow(self.scope)

    def output(self) -> Json | Missing:
        """A node that is used as a value stands for its output."""
        return node_path(self.text, self.node, self.node, ()).follow(self.scope)


def chosen(scope: Scope, name: object) -> NodeView | Missing:
    """Find the node with a computed name."""
    if isinstance(name, Missing):
        return name
    if not isinstance(name, str):
        return Missing(why=partial(Explanation, "a node is chosen by a name that is not a string"))
    return NodeView(scope, name, f'nodes["{name}"]')


def named(scope: Scope, name: str) -> object:
    """Resolve a name from the scope for a template that also sets a variable of that name."""
    if name not in RESERVED:
        return NodeView(scope, name, name)
    if name in READERS and name != "secrets":
        value = READERS[name](scope)
        if not is_nothing(value):
            return value
        return build(name, ()).follow(scope)
    hint = "give the variable another name"
    return Missing(why=partial(Explanation, f'"{name}" is also set as a variable in this template', hint))
