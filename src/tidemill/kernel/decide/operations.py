"""Operator actions on visits: retry a run, rewind it to a node, override a visit or item, close a dead letter.

Each action is refused without an event, or applied completely. Its event records the tokens of every visit that
starts again, so the counter stays the sum of what the log says. An overridden value counts as the visit's result:
its edges are decided, and later tokens are absorbed. An override reopens an ended run; after a partial rollback it
settles an unknown outcome and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from tidemill.errors import Problem, offered
from tidemill.kernel import events
from tidemill.kernel.activation import ENDED, Activation, items_merged
from tidemill.kernel.commands import CloseDeadLetter, Override, Rewind
from tidemill.kernel.decide.builder import DecisionBuilder, problem
from tidemill.kernel.decide.completion import end_visit
from tidemill.kernel.decide.edges_and_joins import descendants, in_flight, on_completion
from tidemill.kernel.decide.rollback import unknown_steps
from tidemill.kernel.decide.visits import balance, follow, item_over, make_ready
from tidemill.kernel.decide.waits import leave_wait
from tidemill.kernel.events import NOT_AN_ITEM, Reopened, Route
from tidemill.kernel.jobs import key_of, run_job, system_job
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.state import State, Visit, key_at, peek_at

REOPENABLE = frozenset({"FAILED", "CANCELLED"})


def refuse_reopening(builder: DecisionBuilder, sure: tuple[str, ...]) -> Problem | None:
    state = builder.state
    if state.status == "COMPLETED":
        return problem("run_completed", "the run is COMPLETED, and that is final", "fork it instead")
    if state.live:
        return problem("run_not_ended", f"the run is {state.status}", "rewind it to a node, or cancel it first")
    if state.rollback != "none":
        return _rolled_back(builder)
    unsure = [name for name in unknown_outcomes(builder.flow, state) if name not in sure]
    if unsure:
        message = f"the outcome of {', '.join(unsure)} is unknown"
        return problem("outcome_unknown", message, "override it with its value, or declare that it did not happen")
    return None


def _rolled_back(builder: DecisionBuilder) -> Problem:
    state, hint = builder.state, "fork it, or start a new run"
    if state.rollback == "partial" and unknown_steps(builder):
        hint += "; `tidemill runs override RUN NODE --value VALUE`, or `--skip`, settles an unknown outcome"
    return problem("run_rolled_back", f"its rollback is {state.rollback}", hint)


def how_to_continue(state: State) -> str:
    """How a run that has ended can be continued."""
    if state.status in REOPENABLE and state.rollback == "none":
        return "retry it: `tidemill runs retry RUN`"
    return "fork it: `tidemill runs fork RUN --node NODE`"


def unknown_outcomes(flow: Workflow, state: State) -> list[str]:
    """Nodes of an ended run whose effect may or may not have happened."""
    asked = dict.fromkeys([*(key.rsplit("/", 2)[0] for key in state.unknown), *flow.once])
    return [name for name in asked if _unsure(flow.by_id.get(name), state.peek(name))]


def _unsure(node: Node | None, visit: Visit) -> bool:
    """Whether the outcome of a visit, or of an item of it, is unknown."""
    if node is None:
        return False
    failed = visit.status == "FAILED" and not visit.tolerated
    if failed and visit.error is not None and visit.error.code == "unknown_outcome":
        return True
    if node.delivery != "at_most_once" or visit.status not in REOPENABLE:
        return False
    items = () if visit.map is None else [item for _, item in visit.map.known()]
    # A token above `reported` means that the run ended during an attempt that was recorded as started.
    return any(act.status == "CANCELLED" and act.token > act.reported for act in (visit, *items))


def reopen(builder: DecisionBuilder, reason: str, sure: tuple[str, ...]) -> list[str]:
    """Reset every failed or cancelled visit to PENDING; return its nodes, which the caller schedules.

    No failure is left for an operator then: all dead letters are closed, those of nodes that a patch removed included.
    """
    state, flow = builder.state, builder.flow
    nodes = tuple(
        Reopened(node.id, visit.visit, int(visit.has_start_token) or visit.taken)
        for node in flow.nodes
        if not stays(visit := state.peek(node.id))
    )
    letters = _open_letters(state)
    emitted = sum(opened.tokens for opened in nodes)
    renders = not nodes and flow.outputs is not None
    deadline, allowed = state.deadline_ms, flow.limits.deadline_ms
    if deadline is None or deadline <= builder.now:
        deadline = None if allowed is None else builder.now + allowed
    builder.emit(
        events.RunRetried(
            nodes=nodes,
            emitted=emitted + renders,
            counter=emitted + renders,
            renders=renders,
            deadline_at_ms=deadline,
            reason=reason,
            sure=sure,
            **builder.command_fields,
        )
    )
    builder.cause = builder.state.seq
    _close_letters(builder, letters, reason)
    builder.remove_job(key_of("report"))
    if builder.state.deadline_ms is not None:
        builder.add_job(system_job("deadline", builder.state.deadline_ms))
    if renders:
        builder.add_job(system_job("outputs"))
    return [opened.node for opened in nodes]


def stays(visit: Visit) -> bool:
    """Whether a visit's outcome is final: completed, skipped, or a tolerated failure."""
    return visit.status in ENDED and (visit.status not in REOPENABLE or visit.tolerated)


def schedule(builder: DecisionBuilder, names: Iterable[str]) -> None:
    """Start visits that hold a start token; queue the others to have their joins checked."""
    for name in names:
        visit = builder.state.peek(name)
        if visit.status in ENDED or not builder.state.live:
            continue
        if visit.has_start_token and not visit.fired:
            make_ready(builder, builder.flow.by_id[name], visit)
        elif visit.taken or visit.dead:
            builder.pending_nodes.append((name, builder.cause))


def _open_letters(state: State) -> list[tuple[str, int, int]]:
    split = (key.split("/") for key, letter in items_merged(state.letters).items() if letter.open)
    return [(node, int(visit), int(index)) for node, visit, index in split]


def _close_letters(
    builder: DecisionBuilder, letters: list[tuple[str, int, int]], reason: str, status: str = "reprocessed"
) -> None:
    for node, visit, index in letters:
        letter: dict[str, Any] = {"node": node, "visit": visit, "index": index, "status": status, "reason": reason}
        builder.emit(events.DeadLetterClosed(cause=builder.cause, **letter, **builder.command_fields))


def refuse_closing(builder: DecisionBuilder, command: CloseDeadLetter) -> Problem | None:
    """Why a dead letter cannot be discarded. Closing it twice is allowed."""
    key = key_at(command.node, command.visit, command.index)
    if builder.state.letters.get(key) is None:
        return problem("dead_letter_unknown", f"there is no dead letter {key}", "see `dlq list`")
    return None


def discard_letter(builder: DecisionBuilder, command: CloseDeadLetter) -> None:
    letter = builder.state.letters.get(key_at(command.node, command.visit, command.index))
    if letter is not None and letter.open:
        _close_letters(builder, [(command.node, command.visit, command.index)], command.reason, "discarded")


def refuse_rewind(builder: DecisionBuilder, command: Rewind) -> Problem | None:
    if command.node not in builder.flow.by_id:
        hint = offered(command.node, builder.flow.by_id)
        return problem("node_unknown", f"the workflow has no node {command.node}", hint)
    if not builder.state.live:
        hint = "fork it" if builder.state.status == "COMPLETED" else "retry it, or fork it"
        return problem("run_ended", f"the run is {builder.state.status}", hint)
    if not _has_begun(builder.state.peek(command.node)):
        return problem("node_not_begun", f"node {command.node} has not begun yet", "there is nothing to go back to")
    running = running_once(builder.flow, builder.state, command.node)
    unsure = [name for name in running if name not in command.confirmed_not_done]
    if unsure:
        message = f"{', '.join(unsure)} is running, and its outcome would be unknown"
        return problem("outcome_unknown", message, "wait for it to end, or declare that it did not happen")
    return None


def running_once(flow: Workflow, state: State, node: str) -> list[str]:
    """Nodes with `at_most_once` from this one on that are running."""
    reach = descendants(flow, node) | {node}
    return [name for name in flow.once if name in reach and _is_running(state.peek(name))]


def _is_running(visit: Visit) -> bool:
    """Whether an attempt at the visit or at an item of it is recorded as started and not ended."""
    items = () if visit.map is None else [item for _, item in visit.map.known()]
    return any(act.running for act in (visit, *items))


def _has_begun(visit: Visit) -> bool:
    return visit.fired or visit.status in ENDED


def rewind_run(builder: DecisionBuilder, node: str, reason: str) -> list[str]:
    """Reset a node and its descendants to their next visit; return the nodes, which the caller schedules."""
    state, flow = builder.state, builder.flow
    reach = descendants(flow, node) | {node}
    reached = [(each, state.peek(each.id)) for each in flow.nodes if each.id in reach]
    # What has any history: the visit, or an earlier pass of its node.
    touched = [
        each
        for each, visit in reached
        if _has_begun(visit) or visit.has_start_token or visit.passes > 0 or visit.taken + visit.dead > 0
    ]
    builder.cause = state.seq
    for each in touched:
        if in_flight(state.peek(each.id)):
            end_visit(builder, each, f"the run was rewound to {node}")
    # Edges out of loops that go on again, which nodes that are not rewound may still take.
    loops = [each.loop for each in flow.nodes if each.loop is not None and each.id in reach]
    undecided = tuple(
        (source, target)
        for source, target in dict.fromkeys(edge for loop in loops for edge in loop.escapes)
        if source not in reach
        and state.peek(target).edges.get(source) is False
        and (target in reach or not state.peek(target).settled)
    )
    reset = {each.id for each in touched}
    letters = [key for key in _open_letters(state) if key[0] in reset]
    nodes = tuple([_again(state, each, node, reset) for each in touched])
    consumed = sum(state.peek(each.id).tokens for each in touched) + state.rendering
    emitted = sum(each.tokens for each in nodes)
    if state.rendering:
        builder.remove_job(key_of("outputs"))
    builder.emit(
        events.RunRewound(
            **builder.command_fields,
            node=node,
            nodes=nodes,
            emitted=emitted,
            consumed=consumed,
            counter=state.counter + emitted - consumed,
            restarted=tuple(each.id for each in touched if each.loop is not None and node not in flow.bodies[each.id]),
            reason=reason,
            undecided=undecided,
        )
    )
    builder.cause = state.seq
    _close_letters(builder, letters, reason)
    return [each.node for each in nodes]


def _again(state: State, node: Node, target: str, reset: set[str]) -> Reopened:
    """A node's next visit, with a token for every taken edge from a node that is not reset."""
    visit = state.peek(node.id)
    if node.id == target and visit.has_start_token:
        return Reopened(node.id, visit.visit + 1, 1)
    kept = sum(bool(visit.edges.get(source)) for source in node.inbound if source not in reset)
    return Reopened(node.id, visit.visit + 1, kept)


def refuse_override(builder: DecisionBuilder, command: Override) -> Problem | None:
    if builder.state.rollback == "partial":
        return _refuse_settling(builder, command)
    node, visit = builder.flow.by_id[command.node], builder.state.peek(command.node)
    if command.visit not in (0, visit.visit):
        hint = "leave out the visit to settle the latest"
        return problem("visit_over", f"node {node.id} is at visit {visit.visit}, not {command.visit}", hint)
    act = peek_at(visit, command.index)
    if act is None:
        message = f"node {node.id} has no item {command.index} that was queued"
        hint = "it is not a map, or has no list: settle the node"
        if visit.map is not None:
            count = visit.map.count
            hint = f"its items are 0 to {count - 1}, and an item can be settled once it was queued"
            hint = hint if count else "it has none"
        return problem("item_unknown", message, hint)
    if not builder.state.live:
        refusal = refuse_reopening(builder, (command.node,))
        if refusal is not None:
            return refusal
    again = "rewind the run to it, or fork the run" if builder.state.live else "fork the run, beginning at it"
    return _unsettleable(node, visit, act, again) or _bad_route(node, command)


def _unsettleable(node: Node, visit: Visit, act: Activation, again: str) -> Problem | None:
    """Why a visit or item in this state cannot be overridden; `again` is the hint how to run it again."""
    if act is not visit and stays(visit):
        message = f"node {node.id} is {visit.status}, and its items ended with it"
        return problem("node_ended", message, again)
    if act.status in ("QUEUED", "RUNNING"):
        return problem("node_live", f"node {node.id} is {act.status}", "let it end, or cancel the run")
    if act.status in ("COMPLETED", "SKIPPED"):
        return problem("node_ended", f"node {node.id} is {act.status}, and that is final", again)
    if act.status == "FAILED" and act.output is not None:
        return problem("node_ended", f"node {node.id} failed, and the run has continued", again)
    if act.wait is not None and act.wait.on == "loop":
        message = f"node {node.id} has its result and waits for the rest of its loop"
        return problem("node_live", message, "let the rest of the loop end, or settle what it waits for")
    return None


def _refuse_settling(builder: DecisionBuilder, command: Override) -> Problem | None:
    """Why an operator cannot settle an unknown outcome that a rollback has left."""
    cell = builder.state.peek(command.node)
    latest, items = cell.visit, cell.map
    visit = command.visit or latest
    if key_at(command.node, visit, command.index) not in unknown_steps(builder):
        return _rolled_back(builder)
    if command.output is not None and visit != latest:
        message = f"node {command.node} is at visit {latest}: what visit {visit} saw is not known any more"
        return problem("visit_over", message, "undo it by hand, then skip it")
    if command.output is not None and command.index >= (0 if items is None else items.count):
        message = f"item {command.index} of node {command.node} is of a list that a patch has replaced"
        return problem("item_unknown", message, "undo it by hand, then skip it")
    if command.next_nodes is not None:
        message = "a run that was rolled back does not continue"
        return problem("route_not_allowed", message, "leave the next nodes out")
    return None


def _bad_route(node: Node, command: Override) -> Problem | None:
    if command.next_nodes is None:
        return None
    if command.output is None or not node.routed:
        message = "only the value of a node with a branch or loop can choose next nodes"
        return problem("route_not_allowed", message, "leave the next nodes out")
    strange = [name for name in command.next_nodes if name not in node.outbound]
    if strange:
        known = ", ".join(node.outbound)
        return problem("route_not_allowed", f"{node.id} has no edge to {', '.join(strange)}", f"edges: {known}")
    return None


def override(builder: DecisionBuilder, command: Override) -> None:
    """Settle a visit or item with the operator's value; an ended run continues, unless it was rolled back."""
    node = builder.flow.by_id[command.node]
    if builder.state.rollback == "partial":
        _settle_unknown(builder, node, command)
        return
    reopened = [] if builder.state.live else reopen(builder, command.reason, (command.node,))
    leave_wait(builder, node, command.index, close=True)
    builder.cause = builder.cause if reopened else 0
    if command.index != NOT_AN_ITEM:
        builder.emit(_overridden(builder, node, command, "COMPLETED", undoable=command.output is not None))
        if in_flight(builder.state.peek(node.id)):
            item_over(builder, node)
    elif command.output is None:
        _settle(builder, node, command, "SKIPPED", ())
    elif node.routed and command.next_nodes is None:
        # Queue the visit so that a worker evaluates its conditions over the value.  A visit without a token gets
        # one, because every visit in flight holds at least one.
        visit = builder.state.peek(node.id)
        given = int(not visit.tokens)
        event = _overridden(builder, node, command, "QUEUED")
        builder.emit(msgspec.structs.replace(event, emitted=given, counter=event.counter + given))
        builder.add_job(run_job(node, visit.visit))
    else:
        route = None if command.next_nodes is None else Route(branch=command.next_nodes)
        _settle(builder, node, command, "COMPLETED", on_completion(node, route))
    schedule(builder, reopened)


def _settle_unknown(builder: DecisionBuilder, node: Node, command: Override) -> None:
    """Record whether a step happened that a rollback could not undo. The run stays as it ended: no edge is decided."""
    state, happened = builder.state, command.output is not None
    visit, builder.cause = command.visit or state.peek(node.id).visit, 0
    event = _overridden(builder, node, command, "COMPLETED" if happened else "SKIPPED", undoable=happened)
    builder.emit(msgspec.structs.replace(event, visit=visit))
    letter = state.letters.get(key_at(node.id, visit, command.index))
    if letter is not None and letter.open:
        _close_letters(builder, [(node.id, visit, command.index)], command.reason)


def _settle(builder: DecisionBuilder, node: Node, command: Override, status: str, taken: tuple[str, ...]) -> None:
    end = balance(builder, node, builder.state.peek(node.id), taken)
    event = _overridden(builder, node, command, status, undoable=status == "COMPLETED" and node.map is None)
    builder.emit(msgspec.structs.replace(event, **msgspec.structs.asdict(end)))
    follow(builder, node, end)


def _overridden(
    builder: DecisionBuilder, node: Node, command: Override, status: str, *, undoable: bool = False
) -> events.NodeOverridden:
    output = command.output
    if output is None and command.index != NOT_AN_ITEM:
        # The list of a map has an entry for every item, also for a skipped one.
        output = b"null"
    return events.NodeOverridden(
        **builder.node_fields(node.id, command.index),
        actor=builder.actor,
        command=builder.command,
        counter=builder.state.counter,
        status=status,
        output=output,
        reason=command.reason,
        size=command.size,
        undoable=undoable and node.compensator is not None,
    )
