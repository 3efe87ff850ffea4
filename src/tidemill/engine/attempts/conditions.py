"""Evaluate a node's conditions: `when` before its visit, loop and branch over its output.

The worker evaluates them once; the outcome is recorded with the digests of what it read, and never computed again.
Each evaluation is a generator that stops where a condition must be evaluated in a sandbox process. A digest is that of
the whole value's text, under which a large value is stored. `run` and `iteration` are not listed: the log has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from tidemill.blobs.contract import digest_of
from tidemill.engine.attempts.rendering import SeenNodes
from tidemill.engine.compiled import CompiledNode
from tidemill.expressions.conditions import Condition, EvaluationSteps, LoopShare, Verdict, decide
from tidemill.expressions.errors import ExpressionError, kind_of, listing
from tidemill.expressions.scope import References, Scope, merged
from tidemill.handlers.contract import truncate
from tidemill.kernel.commands import Failed, SkipRequested
from tidemill.kernel.document.fields import SECONDS_MAX
from tidemill.kernel.events import Admission, BlobRef, Error, Payload, Reading, Route
from tidemill.kernel.model import Branch, Node

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


NAMED_MAX = 5
"""Limit of wrong choices named in an error, and of rules whose outcome a reason lists."""

Chosen = tuple[str, ...] | None
"""The route that the handler chose, where an agent-driven branch allows it."""


Reads = Callable[[Sequence[References]], tuple[Reading, ...]]
"""Returns the digests of the values that conditions referred to."""


def find_admission(when: Condition, scope: Scope, reads: Reads) -> EvaluationSteps[Admission | SkipRequested | Failed]:
    """Evaluate `when`: whether the visit happens, and why."""
    asked: list[References] = []
    try:
        verdict = yield from _ask(when, scope, asked)
    except ExpressionError as error:
        return _undecided("when", error, reads(asked))
    reason = f"when: {verdict.reason}"
    return Admission(reason, reads(asked)) if verdict.value else SkipRequested(reason=reason, reads=reads(asked))


def find_route(
    node: Node, program: CompiledNode, scope: Scope, chosen: Chosen, reads: Reads
) -> EvaluationSteps[Route | Failed]:
    """Choose the route of a visit; `scope` holds its output. An error in a condition fails the visit."""
    asked: list[References] = []
    where = "loop"
    try:
        again, why = None, ""
        if program.again is not None:
            verdict = yield from _ask(program.again, scope, asked)
            again, why = verdict.value, verdict.reason
        if again or node.branch is None:
            return Route(again, again_reason=why, reads=reads(asked))
        if node.branch.kind == "agent_driven":
            return _by_agent(node.branch, Route(again, again_reason=why, reads=reads(asked)), scope.output, chosen)
        verdicts: list[Verdict] = []
        share = LoopShare()
        for number, rule in enumerate(program.rules):
            where = f"rule {number + 1} of {len(program.rules)}"
            if share.is_spent():
                yield None
            verdicts.append((yield from _ask(rule, scope, asked, share)))
            if verdicts[-1].value:
                reason = f"{where} matched: {verdicts[-1].reason}"
                return Route(again, node.branch.rules[number].next_nodes, number, reason, why, reads(asked))
        named = [f"({number}) {verdict.reason}" for number, verdict in enumerate(verdicts[:NAMED_MAX], start=1)]
        named += [f"and {len(verdicts) - NAMED_MAX} more"] if len(verdicts) > NAMED_MAX else []
        reason = f"no rule matched: {', '.join(named)}" if named else "no rule matched"
        return Route(again, node.branch.default, -1, reason, why, reads(asked))
    except ExpressionError as error:
        return _undecided(where, error, reads(asked))


def delay_ms_of(rendered: Any) -> int:
    """The milliseconds of a loop's delay, rendered under its keys."""
    seconds = rendered["loop"]["delay_seconds"]
    given = kind_of(seconds)
    if isinstance(seconds, (int, float)) and not isinstance(seconds, bool):
        if 0 <= seconds <= SECONDS_MAX:
            return round(seconds * 1000)
        given = "less" if seconds < 0 else "more"
    message = f"the delay must be a number of seconds from 0 to {SECONDS_MAX:,}, and the template gave {given}"
    hint = "give it a number, such as {{ output.retry_after | default(5) }}"
    raise ExpressionError(code="template_failed", message=message, hint=hint, path="/loop/delay_seconds")


def _undecided(where: str, error: ExpressionError, reads: tuple[Reading, ...]) -> Failed:
    """A condition that is neither true nor false fails the visit; the message names the condition."""
    part = f", {error.path}" if error.path else ""
    return Failed(error=Error(error.code, f"{where}{part}: {error.message}", hint=error.hint), reads=reads)


def _ask(
    condition: Condition, scope: Scope, asked: list[References], share: LoopShare | None = None
) -> EvaluationSteps[Verdict]:
    asked.append(condition.references)
    return (yield from decide(condition, scope, share))


def _by_agent(branch: Branch, route: Route, output: Any, chosen: Chosen) -> Route | Failed:
    names: Any = chosen
    if names is None and isinstance(output, dict):
        names = output.get("next_nodes")
    if isinstance(names, str):
        names = [names]
    if not names:
        return replace(route, branch=branch.default, reason="nothing was chosen")
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        return Failed(error=Error("route_not_allowed", "next_nodes is not a list of node ids", hint=_choices(branch)))
    strange = [name for name in names if name not in branch.available]
    if strange:
        named = truncate(", ".join(strange[:NAMED_MAX]), 500)
        message = f"{named} is not among the nodes it may choose"
        return Failed(error=Error("route_not_allowed", message, hint=_choices(branch)))
    return replace(route, branch=tuple(names), reason=_reason(output))


def _reason(output: Any) -> str:
    """Why a node chose its route, as it says itself."""
    said = output.get("route") if isinstance(output, dict) else None
    reason = said.get("reason") if isinstance(said, dict) else None
    chosen = "chosen by the node"
    return f"{chosen}: {truncate(reason, 500)}" if isinstance(reason, str) and reason else chosen


def _choices(branch: Branch) -> str:
    return f"it may choose {listing(branch.available)}"
