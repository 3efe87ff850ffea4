"""Override: somebody settles a visit or an item by hand, with a value or by skipping it.

Whatever has not begun, waits, or failed can be settled; an ended run is reopened by it. The value counts as the
visit's result from then on: its edges are decided, and a token that comes later is absorbed.
"""

from __future__ import annotations

import msgspec

from tidemill.errors import Problem
from tidemill.kernel.activation import Activation
from tidemill.kernel.commands import Override
from tidemill.kernel.endings import drop_wait
from tidemill.kernel.events import NOT_AN_ITEM, NodeOverridden, Route
from tidemill.kernel.jobs import run_job
from tidemill.kernel.model import Node
from tidemill.kernel.pen import Pen
from tidemill.kernel.reopening import refuse_reopening, reopen, schedule, stays
from tidemill.kernel.routing import in_flight, on_completion
from tidemill.kernel.state import Cell, peek_at
from tidemill.kernel.visits import balance, follow, item_over


def _problem(code: str, message: str, hint: str) -> Problem:
    return Problem(code=code, message=message, hint=hint)


def refuse_override(pen: Pen, command: Override) -> Problem | None:
    """Why a visit or item cannot be settled by hand."""
    node, cell = pen.flow.by_id[command.node], pen.state.peek(command.node)
    if command.visit not in (0, cell.visit):
        hint = "leave the visit out to settle the latest"
        return _problem("visit_over", f"node {node.id} is at visit {cell.visit}, not {command.visit}", hint)
    act = peek_at(cell, command.index)
    if act is None:
        message = f"node {node.id} has no item {command.index} that was queued"
        hint = "it is no map, or has no list: settle the node" if cell.map is None else _items(cell.map.count)
        return _problem("item_unknown", message, hint)
    if not pen.state.live:
        problem = refuse_reopening(pen, (command.node,))
        if problem is not None:
            return problem
    again = "rewind the run to it, or fork the run" if pen.state.live else "fork the run, beginning at it"
    return _unsettleable(node, cell, act, again) or _bad_route(node, command)


def _items(count: int) -> str:
    return f"its items are 0 to {count - 1}, and an item can be settled once it was queued" if count else "it has none"


def _unsettleable(node: Node, cell: Cell, act: Activation, again: str) -> Problem | None:
    """Why a visit or item in this state cannot be settled; `again` is how it could be made anew."""
    if act is not cell and stays(cell):
        message = f"node {node.id} is {cell.status}, and its items are over with it"
        return _problem("node_ended", message, again)
    if act.status in ("QUEUED", "RUNNING"):
        return _problem("node_live", f"node {node.id} is {act.status}", "let it end, or cancel the run")
    if act.status in ("COMPLETED", "SKIPPED"):
        return _problem("node_ended", f"node {node.id} is {act.status}, and that is final", again)
    if act.status == "FAILED" and act.output is not None:
        return _problem("node_ended", f"node {node.id} failed, and the run has gone on", again)
    if act.wait is not None and act.wait.on == "loop":
        message = f"node {node.id} has its result and waits for the rest of its loop"
        return _problem("node_live", message, "let the rest of the loop end, or settle what it waits for")
    return None


def _bad_route(node: Node, command: Override) -> Problem | None:
    if command.next_nodes is None:
        return None
    if command.output is None or not node.routed:
        message = "only a value of a node with a branch or loop has a way to go"
        return _problem("route_not_allowed", message, "leave the next nodes out")
    strange = [name for name in command.next_nodes if name not in node.outbound]
    if strange:
        known = ", ".join(node.outbound)
        return _problem("route_not_allowed", f"{node.id} has no edge to {', '.join(strange)}", f"edges: {known}")
    return None


def override(pen: Pen, command: Override) -> None:
    """Settle a visit or item by hand; a run that had ended goes on, with everything else that was cut off."""
    node = pen.flow.by_id[command.node]
    reopened = [] if pen.state.live else reopen(pen, command.reason, (command.node,))
    cell = pen.state.peek(node.id)
    act = peek_at(cell, command.index)
    if act is not None and act.wait is not None:
        drop_wait(pen, node.id, cell.visit, command.index, act, close=True)
    pen.cause = pen.cause if reopened else 0
    if command.index != NOT_AN_ITEM:
        _settle_item(pen, node, command)
    elif command.output is None:
        _settle(pen, node, command, "SKIPPED", ())
    elif node.routed and command.next_nodes is None:
        _queue(pen, node, command)
    else:
        route = None if command.next_nodes is None else Route(branch=command.next_nodes)
        _settle(pen, node, command, "COMPLETED", on_completion(node, route))
    schedule(pen, reopened)


def _queue(pen: Pen, node: Node, command: Override) -> None:
    """Let a worker evaluate the conditions over the value.

    A visit that no token has reached yet is given one: whatever is in flight holds at least one.
    """
    cell = pen.state.peek(node.id)
    given = int(not cell.tokens)
    event = _overridden(pen, node, command, "QUEUED")
    pen.emit(msgspec.structs.replace(event, emitted=given, counter=event.counter + given))
    pen.put(run_job(node, cell.visit))


def _settle_item(pen: Pen, node: Node, command: Override) -> None:
    pen.emit(_overridden(pen, node, command, "COMPLETED", undoable=command.output is not None))
    if in_flight(pen.state.peek(node.id)):
        item_over(pen, node)


def _settle(pen: Pen, node: Node, command: Override, status: str, taken: tuple[str, ...]) -> None:
    end = balance(pen, node, pen.state.peek(node.id), taken)
    event = _overridden(pen, node, command, status, undoable=status == "COMPLETED" and node.map is None)
    pen.emit(
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
    follow(pen, node, end)


def _overridden(pen: Pen, node: Node, command: Override, status: str, *, undoable: bool = False) -> NodeOverridden:
    output = command.output
    if output is None and command.index != NOT_AN_ITEM:
        # The list has an entry for every item, also for one that was skipped.
        output = b"null"
    return NodeOverridden(
        at_ms=pen.now,
        cause=pen.cause,
        actor=pen.actor,
        command=pen.command,
        node=node.id,
        visit=pen.state.peek(node.id).visit,
        index=command.index,
        counter=pen.state.counter,
        status=status,
        output=output,
        reason=command.reason,
        size=command.size,
        undoable=undoable and node.compensator is not None,
    )
