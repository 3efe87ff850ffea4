"""Running one `python` node through a real engine."""

from __future__ import annotations

from typing import Any

import tidemill
from tidemill.engine.views import RunView

ONCE = {"retry": {"max_attempts": 1}}


def document(function: str, node: dict[str, Any] | None = None, **config: Any) -> dict[str, Any]:
    """A workflow of one node."""
    whole = {"function": function, **config}
    return {"name": "one", "nodes": [{"id": "a", "type": "python", "config": whole, **(node or {})}]}


def in_process(mill: tidemill.Tidemill, name: str, node: dict[str, Any] | None = None, **config: Any) -> RunView:
    """Call a function of `crafts` in a process."""
    return mill.run(document(f"tests.handlers.crafts:{name}", node, isolation="process", **config), timeout_s=40)


def error(view: RunView) -> dict[str, Any]:
    """Why the node failed."""
    assert view.status == "FAILED", view
    found: dict[str, Any] = view.nodes["a"]["error"]
    return found


def output(view: RunView) -> Any:
    """What the node returned."""
    assert view.status == "COMPLETED", view.nodes["a"]
    return view.nodes["a"]["output"]
