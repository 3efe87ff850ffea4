"""What a decision was made over, as digests: kept with the decision, so that it can be told later what it saw.

A digest is that of the whole value's text, the same under which a large value is stored. `run` and `iteration`
are not listed: the log itself says what they were.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tidemill.blobs.contract import digest_of
from tidemill.engine.scopes import SeenNodes
from tidemill.expressions.references import References, merged
from tidemill.expressions.scope import Scope
from tidemill.kernel.events import BlobRef, Payload, Reading

READINGS_MAX = 50


def readings_of(
    asked: Iterable[References], scope: Scope, inputs: Payload, output: Payload | None = None
) -> tuple[Reading, ...]:
    """List what conditions read of a scope: the node's own output, the run's inputs, then other nodes by name."""
    reach = merged(asked)
    nodes: Mapping[str, Payload] = scope.nodes.looked_at if isinstance(scope.nodes, SeenNodes) else {}
    found: list[Reading] = []
    if output is not None and reach.roots & {"output", "current"}:
        found.append(("output", _digest(output)))
    if "inputs" in reach.roots:
        found.append(("inputs", _digest(inputs)))
    names = sorted(nodes if reach.dynamic else reach.nodes & nodes.keys())
    found += [(f"ctx.{name}", _digest(nodes[name])) for name in names[: READINGS_MAX - len(found)]]
    return tuple(found)


def _digest(payload: Payload) -> str:
    return payload.digest if isinstance(payload, BlobRef) else digest_of(payload)
