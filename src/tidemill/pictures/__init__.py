"""Pictures of workflows and runs: SVG and HTML without a browser or another package, light and dark.

    from tidemill import pictures

    svg = pictures.graph_svg(pathlib.Path("flow.yaml"))
    svg = pictures.run_svg(mill.show(run_id))

The same input gives the same bytes. Names are loaded when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemill.pictures.svg import graph_html, graph_svg, run_svg
    from tidemill.pictures.timeline import run_html, timeline_svg

DRAWN_NODES_MAX = 200
"""What notebooks draw: larger graphs are left out."""

__all__ = ["graph_html", "graph_svg", "run_html", "run_svg", "timeline_svg"]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        home = "timeline" if name in ("run_html", "timeline_svg") else "svg"
        return getattr(import_module(f"{__name__}.{home}"), name)
