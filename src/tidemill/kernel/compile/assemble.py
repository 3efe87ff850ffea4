"""Builds the workflow (IR) from a checked document: milliseconds, defaults, edges.

Nothing is refused here. Everything a run needs of a node is stored on the node, in document order, and fields equal to
their default are left out, so that equal documents give equal bytes and one digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import TypeVar

import msgspec

from tidemill.kernel import model
from tidemill.kernel.compile.graph import Graph, Loops
from tidemill.kernel.compile.references import Reading
from tidemill.kernel.document.fields import UNLIMITED
from tidemill.kernel.document.normalize import NormalizedDraft
from tidemill.kernel.model import Json, NodeType
from tidemill.kernel.spending import Budget

VISITS_MIN = 10_000
VISITS_PER_NODE = 10
DEFAULT_RETRY = model.Retry()

_AS_WRITTEN = frozenset(("config", "config_ref", "when", "delivery", "priority"))
_CONTROL = frozenset(("join", "on_error", "branch", "loop", "map"))


Built = TypeVar("Built", bound=msgspec.Struct)


@cache
def _defaults(type_: type[msgspec.Struct]) -> dict[str, Json]:
    fields = msgspec.structs.fields(type_)
    return {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in fields
        if not field.required
    }


def without_defaults(type_: type[Built], **given: Json) -> Built:
    """Build a part of the IR without the fields that only repeat a default.

    The encoder omits a default only if it is the same object, so the digest would depend on whether the author wrote
    the default out.
    """
    defaults = _defaults(type_)
    return type_(**{name: value for name, value in given.items() if name not in defaults or value != defaults[name]})


def milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else max(1, round(seconds * 1000))


def limits_of(document: Mapping[str, Json]) -> model.Limits:
    """Limits; the default of `max_visits` depends on the size of the graph."""
    given = document.get("limits", {})
    visits = max(VISITS_MIN, VISITS_PER_NODE * len(document["nodes"]))
    return without_defaults(
        model.Limits,
        deadline_ms=milliseconds(given.get("deadline_seconds")),
        max_visits=given.get("max_visits", visits),
        max_fanout=given.get("max_fanout", model.Limits().max_fanout),
        max_parallel=given.get("max_parallel"),
        max_hops=given.get("max_hops"),
        max_bytes=given.get("max_bytes"),
        budget=budget_of(given.get("budget")),
    )


def budget_of(given: Mapping[str, Json] | None) -> Budget | None:
    """A budget of the document; money is counted in millionths."""
    if not given:
        return None
    money = given.get("money")
    return Budget(given.get("calls"), given.get("tokens"), None if money is None else round(money * 1_000_000))


def retry_of(given: Mapping[str, Json]) -> model.Retry:
    backoff, ceiling = given.get("backoff_seconds"), given.get("max_backoff_seconds")
    return without_defaults(
        model.Retry,
        max_attempts=given.get("max_attempts", DEFAULT_RETRY.max_attempts),
        backoff_ms=DEFAULT_RETRY.backoff_ms if backoff is None else round(backoff * 1000),
        multiplier=float(given.get("multiplier", DEFAULT_RETRY.multiplier)),
        max_backoff_ms=DEFAULT_RETRY.max_backoff_ms if ceiling is None else round(ceiling * 1000),
        jitter=float(given.get("jitter", DEFAULT_RETRY.jitter)),
    )


SINGLE_ATTEMPT = model.Retry(max_attempts=1)


class Assembly:
    def __init__(self, draft: NormalizedDraft, graph: Graph, loops: Loops, reading: Reading) -> None:
        self.draft, self.graph, self.loops, self.reading = draft, graph, loops, reading
        defaults = draft.document.get("defaults", {})
        self.default_retry: Mapping[str, Json] = defaults.get("retry", {})
        self.default_timeout: float | None = defaults.get("timeout_seconds")
        self.retries: dict[tuple[tuple[str, float], ...], model.Retry] = {(): retry_of(self.default_retry)}
        """Retry policies by their keys: nodes share equal ones."""

    def workflow(
        self,
        types: list[NodeType],
        compensators: Mapping[int, NodeType],
        exits: Mapping[int, Mapping[str, list[str]]],
        output_reads: tuple[str, ...],
    ) -> model.Workflow:
        document, graph = self.draft.document, self.graph
        retention = document.get("retention", {})
        days = None if retention.get("days") is None else float(retention["days"])
        return without_defaults(
            model.Workflow,
            name=document["name"],
            nodes=tuple(
                self._node(number, type_, compensators.get(number), exits.get(number))
                for number, type_ in enumerate(types)
            ),
            entries=graph.names([number for number, sources in enumerate(graph.into) if not sources]),
            terminals=graph.names([number for number, targets in enumerate(graph.out) if not targets]),
            description=document.get("description", ""),
            inputs=document.get("inputs"),
            outputs=document.get("outputs"),
            limits=limits_of(document),
            compensate=document.get("on_failure", {}).get("compensate", "manual"),
            output_reads=output_reads,
            retention=without_defaults(model.Retention, days=days, keep=retention.get("keep", False)),
        )

    def _node(
        self, number: int, type_: NodeType, compensator: NodeType | None, exits: Mapping[str, list[str]] | None
    ) -> model.Node:
        node, graph = self.draft.nodes[number], self.graph
        outbound, capabilities = graph.names(graph.out[number]), type_.capabilities
        fields: dict[str, Json] = {
            "id": node["id"],
            "type": type_.key,
            "retry": self._retry(node) if capabilities.retryable or "retry" in node else SINGLE_ATTEMPT,
            "timeout_ms": self._timeout(node, type_),
            "queue": node.get("queue", type_.queue),
            "inbound": graph.names(graph.into[number]),
            "outbound": outbound,
            "plain": graph.names(graph.plain(number)) if graph.ruled else outbound,
        }
        if capabilities.at_most_once:
            fields["delivery"] = "at_most_once"
        if capabilities.concurrency is not None and (type_.capped is None or type_.capped(node.get("config") or {})):
            fields["capped"] = True
        for key in node.keys() & _AS_WRITTEN:
            fields[key] = node[key]
        if not node.keys().isdisjoint(_CONTROL):
            fields.update(self._control(number, node))
        if compensator is not None:
            given = node["compensator"]
            fields["compensator"] = without_defaults(
                model.Compensator,
                type=compensator.key,
                config=given.get("config"),
                timeout_ms=self._timeout(given, compensator),
                retry=self._retry(given),
            )
        if exits:
            fields["exits"] = {field.removesuffix("_path"): tuple(targets) for field, targets in exits.items()}
        if number in self.loops.around:
            fields["loops"] = graph.names(self.loops.around[number])
        if number in self.reading.dynamic:
            fields["reads_all"] = True
        current, past = self.reading.current.get(number, ()), self.reading.past.get(number, ())
        if current or past:
            fields["reads"] = graph.names(sorted({*current, *past}))
            fields["reads_past"] = graph.names(sorted(past))
        return without_defaults(model.Node, **fields)

    def _control(self, number: int, node: Mapping[str, Json]) -> Iterator[tuple[str, Json]]:
        join, on_error = node.get("join", "all"), node.get("on_error", "fail")
        yield "join", "quorum" if isinstance(join, dict) else join
        yield "quorum", join["quorum"] if isinstance(join, dict) else 0
        yield "on_error", "route" if isinstance(on_error, dict) else on_error
        yield "error_path", tuple(on_error["route"]) if isinstance(on_error, dict) else ()
        yield "branch", branch_of(node["branch"]) if "branch" in node else None
        yield "loop", self._loop(number, node["loop"]) if "loop" in node else None
        yield "map", without_defaults(model.Map, **node["map"]) if "map" in node else None

    def _retry(self, owner: Mapping[str, Json]) -> model.Retry:
        """The node's keys over the document's over the built-in ones."""
        own = owner.get("retry", {})
        key = tuple(own.items())
        if key not in self.retries:
            self.retries[key] = retry_of({**self.default_retry, **own})
        return self.retries[key]

    def _timeout(self, owner: Mapping[str, Json], type_: NodeType) -> int | None:
        """The time-out of an attempt; the document's default does not apply to types that wait."""
        return milliseconds(owner.get("timeout_seconds", None if type_.waits else self.default_timeout))

    def _loop(self, number: int, loop: Mapping[str, Json]) -> model.Loop:
        ids, passes, delay = self.graph.ids, loop["max_iterations"], loop.get("delay_seconds")
        computed = isinstance(delay, str)
        return without_defaults(
            model.Loop,
            condition=loop["condition"],
            max_iterations=None if passes == UNLIMITED else passes,
            back_to=loop["loop_back_to"],
            break_path=tuple(loop.get("break_path", ())),
            timeout_path=tuple(loop.get("timeout_path", ())),
            body=self.graph.names(sorted(self.loops.bodies[number])),
            escapes=tuple((ids[source], ids[target]) for source, target in self.loops.escapes[number]),
            delay_ms=0 if computed else milliseconds(delay) or 0,
            delay=delay if computed else "",
        )


def branch_of(given: Mapping[str, Json]) -> model.Branch:
    return without_defaults(
        model.Branch,
        kind=given["type"],
        rules=tuple(
            model.Rule(condition=rule["condition"], next_nodes=tuple(rule["next_nodes"]))
            for rule in given.get("rules", ())
        ),
        available=tuple(given.get("available_next_nodes", ())),
        default=tuple(given.get("default", ())),
    )
