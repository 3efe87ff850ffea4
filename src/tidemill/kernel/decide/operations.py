"""Operator actions: retry, rewind, override, close dead letter.

Operators' acts on visits: retry a run, rewind it to a node, close a dead letter.

Each is refused whole, with a reason and without a trace, or done whole. What they emit again they say: the
tokens of every visit that is to be made once more, so that the counter stays the sum of what was written.

Override: somebody settles a visit or an item by hand, with a value or by skipping it.

Whatever has not begun, waits, or failed can be settled; an ended run is reopened by it. The value counts as the
visit's result from then on: its edges are decided, and a token that comes later is absorbed.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.activation import ENDED, Activation, items_merged
from tidemill.kernel.commands import CloseDeadLetter, Override, Retry, Rewind
from tidemill.kernel.decide.builder import DecisionBuilder
from tidemill.kernel.decide.completion import drop_wait, end_visit
from tidemill.kernel.decide.routing import descendants, in_flight, on_completion
from tidemill.kernel.decide.visits import balance, follow, item_over, make_ready
from tidemill.kernel.events import (
    NOT_AN_ITEM,
    DeadLetterClosed,
    NodeOverridden,
    Reopened,
    Route,
    RunRetried,
    RunRewound,
)
from tidemill.kernel.jobs import key_of, run_job, system_job
from tidemill.kernel.model import Node
from tidemill.kernel.state import State, Visit, key_at, peek_at

REOPENABLE = frozenset({"FAILED", "CANCELLED"})


def _problem(code: str, message: str, hint: str = "") -> Problem:
    return Problem(code=code, message=message, hint=hint)


# Retry


def refuse_reopening(builder: DecisionBuilder, sure: tuple[str, ...]) -> Problem | None:
    """Why a run cannot go on where it stopped."""
    state = builder.state
    if state.status == "COMPLETED":
        return _problem("run_completed", "the run is COMPLETED, and that is final", "fork it instead")
    if state.live:
        return _problem("run_not_ended", f"the run is {state.status}", "rewind it to a node, or cancel it first")
    if state.rollback != "none":
        return _problem("run_rolled_back", f"its rollback is {state.rollback}", "fork it, or start a new run")
    asked = dict.fromkeys([*(key.rsplit("/", 2)[0] for key in state.unknown), *builder.flow.once])
    unsure = [name for name in asked if name not in sure and _unsure(builder.flow.by_id.get(name), state.peek(name))]
    if unsure:
        message = f"nobody knows whether {', '.join(unsure)} happened"
        return _problem("outcome_unknown", message, "override it with its value, or say that it did not happen")
    return None


def _unsure(node: Node | None, visit: Visit) -> bool:
    """Whether a visit, or an item of it, may have happened without anybody knowing."""
    if node is None:
        return False
    failed = visit.status == "FAILED" and not visit.tolerated
    if failed and visit.error is not None and visit.error.code == "unknown_outcome":
        return True
    if node.delivery != "at_most_once" or visit.status not in REOPENABLE:
        return False
    items = () if visit.map is None else [item for _, item in visit.map.known()]
    return any(_abandoned(act) for act in (visit, *items))


def _abandoned(act: Activation) -> bool:
    """Whether the run ended during an attempt: it was announced under a token that nobody reported about."""
    return act.status == "CANCELLED" and act.token > act.reported


def retry_run(builder: DecisionBuilder, retry: Retry) -> None:
    """Let the run go on where it stopped."""
    schedule(builder, reopen(builder, retry.reason, retry.confirmed_not_done))


def reopen(builder: DecisionBuilder, reason: str, sure: tuple[str, ...]) -> list[str]:
    """Bring every visit back to PENDING that had not ended well; answers their nodes, none of them scheduled yet."""
    state, flow = builder.state, builder.flow
    nodes = tuple(
        [
            Reopened(node.id, visit.visit, int(visit.has_start_token) or visit.taken)
            for node in flow.nodes
            if not stays(visit := state.peek(node.id))
        ]
    )
    letters = [key for key in _letters(state, [each.node for each in nodes]) if not _tolerated(state, key)]
    emitted = sum(opened.tokens for opened in nodes)
    renders = not nodes and flow.outputs is not None
    builder.emit(
        RunRetried(
            at_ms=builder.now,
            actor=builder.actor,
            command=builder.command,
            nodes=nodes,
            emitted=emitted + renders,
            counter=emitted + renders,
            renders=renders,
            deadline_at_ms=_deadline(builder),
            reason=reason,
            sure=sure,
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


def _tolerated(state: State, key: tuple[str, int, int]) -> bool:
    """Whether an item's failure was tolerated: then it stays as it is, and so does its letter."""
    item = peek_at(state.peek(key[0]), key[2]) if key[2] != NOT_AN_ITEM else None
    return item is not None and item.output is not None


def stays(visit: Visit) -> bool:
    """Whether a visit's outcome is final: completed, skipped, or a failure that was tolerated."""
    return visit.status in ENDED and (visit.status not in REOPENABLE or visit.tolerated)


def _deadline(builder: DecisionBuilder) -> int | None:
    """The deadline that was set, or a fresh one when it has passed."""
    allowed, old = builder.flow.limits.deadline_ms, builder.state.deadline_ms
    if allowed is None:
        return None
    return builder.now + allowed if old is None or old <= builder.now else old


def schedule(builder: DecisionBuilder, names: Iterable[str]) -> None:
    """Look at the joins of visits that are to be made again; those with a token of their own begin at once."""
    for name in names:
        visit = builder.state.peek(name)
        if visit.status in ENDED or not builder.state.live:
            continue
        if visit.has_start_token and not visit.fired:
            make_ready(builder, builder.flow.by_id[name], visit)
        elif visit.taken or visit.dead:
            builder.pending_nodes.append((name, builder.cause))


# Dead letters


def _letters(state: State, nodes: Iterable[str]) -> list[tuple[str, int, int]]:
    """The open dead letters of some nodes' present visits and of their items, also of a list that is gone."""
    present = {(name, state.peek(name).visit) for name in nodes}
    split = ((key.split("/"), letter) for key, letter in items_merged(state.letters).items())
    found = ((node, int(visit), int(index)) for (node, visit, index), letter in split if letter.open)
    return [key for key in found if key[:2] in present]


def _is_open(state: State, node: str, visit: int, index: int) -> bool:
    letter = state.letters.get(key_at(node, visit, index))
    return letter is not None and letter.open


def _close_letters(
    builder: DecisionBuilder, letters: list[tuple[str, int, int]], reason: str, status: str = "reprocessed"
) -> None:
    for node, visit, index in letters:
        builder.emit(
            DeadLetterClosed(
                at_ms=builder.now,
                cause=builder.cause,
                actor=builder.actor,
                command=builder.command,
                node=node,
                visit=visit,
                index=index,
                status=status,
                reason=reason,
            )
        )


def refuse_closing(builder: DecisionBuilder, command: CloseDeadLetter) -> Problem | None:
    """Why a dead letter cannot be discarded. One that was closed already is no reason."""
    if builder.state.letters.get(key_at(command.node, command.visit, command.index)) is None:
        message = f"there is no dead letter {key_at(command.node, command.visit, command.index)}"
        return _problem("dead_letter_unknown", message, "see `dlq list`")
    return None


def discard_letter(builder: DecisionBuilder, command: CloseDeadLetter) -> None:
    """Nobody will try this again."""
    if _is_open(builder.state, command.node, command.visit, command.index):
        _close_letters(builder, [(command.node, command.visit, command.index)], command.reason, "discarded")


# Rewind


def refuse_rewind(builder: DecisionBuilder, command: Rewind) -> Problem | None:
    """Why a run cannot be rewound to a node."""
    if command.node not in builder.flow.by_id:
        return _problem("node_unknown", f"the workflow has no node {command.node}")
    if not builder.state.live:
        hint = "fork it" if builder.state.status == "COMPLETED" else "retry it, or fork it"
        return _problem("run_ended", f"the run is {builder.state.status}", hint)
    if not _begun(builder.state.peek(command.node)):
        return _problem("node_not_begun", f"node {command.node} has not begun yet", "there is nothing to go back to")
    reach = descendants(builder.flow, command.node) | {command.node}
    unsure = [
        name
        for name in builder.flow.once
        if name in reach - {*command.confirmed_not_done} and _announced(builder.state.peek(name))
    ]
    if unsure:
        message = f"{', '.join(unsure)} is under way, and nobody would know whether it happened"
        return _problem("outcome_unknown", message, "let it end, or say that it did not happen")
    return None


def _announced(visit: Visit) -> bool:
    """Whether an attempt at a visit or an item has begun and not ended."""
    items = () if visit.map is None else [item for _, item in visit.map.known()]
    return any(act.running for act in (visit, *items))


def _begun(visit: Visit) -> bool:
    return visit.fired or visit.status in ENDED


def rewind_run(builder: DecisionBuilder, node: str, reason: str) -> list[str]:
    """Let a node and everything behind it happen anew; answers the nodes, none of them scheduled yet."""
    state, flow = builder.state, builder.flow
    reach = descendants(flow, node) | {node}
    touched = [each for each in flow.nodes if each.id in reach and _touched(state.peek(each.id))]
    letters = _letters(state, [each.id for each in touched])
    builder.cause = state.seq
    for each in touched:
        if in_flight(state.peek(each.id)):
            end_visit(builder, each, f"the run was rewound to {node}")
    undecided = _undecided(builder, reach)
    anew = {each.id for each in touched}
    nodes = tuple([_again(state, each, node, anew) for each in touched])
    consumed = sum(state.peek(each.id).tokens for each in touched) + state.rendering
    emitted = sum(each.tokens for each in nodes)
    if state.rendering:
        builder.remove_job(key_of("outputs"))
    builder.emit(
        RunRewound(
            at_ms=builder.now,
            actor=builder.actor,
            command=builder.command,
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


def _touched(visit: Visit) -> bool:
    """Whether anything has happened to a visit, or to the passes before it."""
    return _begun(visit) or visit.has_start_token or visit.passes > 0 or visit.taken + visit.dead > 0


def _undecided(builder: DecisionBuilder, reach: set[str]) -> tuple[tuple[str, str], ...]:
    """Error paths out of loops that had ended and now go on: whoever is not rewound may still take them."""
    state = builder.state
    loops = [node.loop for node in builder.flow.nodes if node.loop is not None and node.id in reach]
    escapes = dict.fromkeys(edge for loop in loops for edge in loop.escapes)
    return tuple(
        (source, target)
        for source, target in escapes
        if source not in reach
        and state.peek(target).edges.get(source) is False
        and (target in reach or not state.peek(target).settled)
    )


def _again(state: State, node: Node, target: str, anew: set[str]) -> Reopened:
    """A node's next visit, with a token for every edge that was taken by a node that stays as it is."""
    visit = state.peek(node.id)
    if node.id == target and visit.has_start_token:
        return Reopened(node.id, visit.visit + 1, 1)
    kept = sum(bool(visit.edges.get(source)) for source in node.inbound if source not in anew)
    return Reopened(node.id, visit.visit + 1, kept)


def _override_problem(code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=message, hint=hint)


def refuse_override(builder: DecisionBuilder, command: Override) -> Problem | None:
    """Why a visit or item cannot be settled by hand."""
    node, visit = builder.flow.by_id[command.node], builder.state.peek(command.node)
    if command.visit not in (0, visit.visit):
        hint = "leave the visit out to settle the latest"
        return _override_problem("visit_over", f"node {node.id} is at visit {visit.visit}, not {command.visit}", hint)
    act = peek_at(visit, command.index)
    if act is None:
        message = f"node {node.id} has no item {command.index} that was queued"
        hint = "it is no map, or has no list: settle the node" if visit.map is None else _items(visit.map.count)
        return _override_problem("item_unknown", message, hint)
    if not builder.state.live:
        problem = refuse_reopening(builder, (command.node,))
        if problem is not None:
            return problem
    again = "rewind the run to it, or fork the run" if builder.state.live else "fork the run, beginning at it"
    return _unsettleable(node, visit, act, again) or _bad_route(node, command)


def _items(count: int) -> str:
    return f"its items are 0 to {count - 1}, and an item can be settled once it was queued" if count else "it has none"


def _unsettleable(node: Node, visit: Visit, act: Activation, again: str) -> Problem | None:
    """Why a visit or item in this state cannot be settled; `again` is how it could be made anew."""
    if act is not visit and stays(visit):
        message = f"node {node.id} is {visit.status}, and its items are over with it"
        return _override_problem("node_ended", message, again)
    if act.status in ("QUEUED", "RUNNING"):
        return _override_problem("node_live", f"node {node.id} is {act.status}", "let it end, or cancel the run")
    if act.status in ("COMPLETED", "SKIPPED"):
        return _override_problem("node_ended", f"node {node.id} is {act.status}, and that is final", again)
    if act.status == "FAILED" and act.output is not None:
        return _override_problem("node_ended", f"node {node.id} failed, and the run has gone on", again)
    if act.wait is not None and act.wait.on == "loop":
        message = f"node {node.id} has its result and waits for the rest of its loop"
        return _override_problem("node_live", message, "let the rest of the loop end, or settle what it waits for")
    return None


def _bad_route(node: Node, command: Override) -> Problem | None:
    if command.next_nodes is None:
        return None
    if command.output is None or not node.routed:
        message = "only a value of a node with a branch or loop has a way to go"
        return _override_problem("route_not_allowed", message, "leave the next nodes out")
    strange = [name for name in command.next_nodes if name not in node.outbound]
    if strange:
        known = ", ".join(node.outbound)
        return _override_problem(
            "route_not_allowed", f"{node.id} has no edge to {', '.join(strange)}", f"edges: {known}"
        )
    return None


def override(builder: DecisionBuilder, command: Override) -> None:
    """Settle a visit or item by hand; a run that had ended goes on, with everything else that was cut off."""
    node = builder.flow.by_id[command.node]
    reopened = [] if builder.state.live else reopen(builder, command.reason, (command.node,))
    visit = builder.state.peek(node.id)
    act = peek_at(visit, command.index)
    if act is not None and act.wait is not None:
        drop_wait(builder, node.id, visit.visit, command.index, act, close=True)
    builder.cause = builder.cause if reopened else 0
    if command.index != NOT_AN_ITEM:
        _settle_item(builder, node, command)
    elif command.output is None:
        _settle(builder, node, command, "SKIPPED", ())
    elif node.routed and command.next_nodes is None:
        _queue(builder, node, command)
    else:
        route = None if command.next_nodes is None else Route(branch=command.next_nodes)
        _settle(builder, node, command, "COMPLETED", on_completion(node, route))
    schedule(builder, reopened)


def _queue(builder: DecisionBuilder, node: Node, command: Override) -> None:
    """Let a worker evaluate the conditions over the value.

    A visit that no token has reached yet is given one: whatever is in flight holds at least one.
    """
    visit = builder.state.peek(node.id)
    given = int(not visit.tokens)
    event = _overridden(builder, node, command, "QUEUED")
    builder.emit(msgspec.structs.replace(event, emitted=given, counter=event.counter + given))
    builder.add_job(run_job(node, visit.visit))


def _settle_item(builder: DecisionBuilder, node: Node, command: Override) -> None:
    builder.emit(_overridden(builder, node, command, "COMPLETED", undoable=command.output is not None))
    if in_flight(builder.state.peek(node.id)):
        item_over(builder, node)


def _settle(builder: DecisionBuilder, node: Node, command: Override, status: str, taken: tuple[str, ...]) -> None:
    end = balance(builder, node, builder.state.peek(node.id), taken)
    event = _overridden(builder, node, command, status, undoable=status == "COMPLETED" and node.map is None)
    builder.emit(
        msgspec.structs.replace(
            event,
            taken=end.taken,
            dead=end.dead,
            dead_escapes=end.dead_escapes,
            emitted=end.emitted,
            consumed=end.consumed,
            counter=end.counter,
            renders=end.renders,
        )
    )
    follow(builder, node, end)


def _overridden(
    builder: DecisionBuilder, node: Node, command: Override, status: str, *, undoable: bool = False
) -> NodeOverridden:
    output = command.output
    if output is None and command.index != NOT_AN_ITEM:
        # The list has an entry for every item, also for one that was skipped.
        output = b"null"
    return NodeOverridden(
        at_ms=builder.now,
        cause=builder.cause,
        actor=builder.actor,
        command=builder.command,
        node=node.id,
        visit=builder.state.peek(node.id).visit,
        index=command.index,
        counter=builder.state.counter,
        status=status,
        output=output,
        reason=command.reason,
        size=command.size,
        undoable=undoable and node.compensator is not None,
    )
