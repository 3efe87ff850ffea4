"""`tidemill runs …`: what can be done to a run. Every act is kept in its log, with who did it and why."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tidemill.cli.options import (
    DEFAULT_STORE,
    Actor,
    AsJson,
    Given,
    Item,
    Key,
    Labels,
    Node,
    Reason,
    Run,
    Store,
    Sure,
    Visit,
)
from tidemill.cli.patches import patch_command

if TYPE_CHECKING:
    from tidemill.front import Tidemill

NotHappened = Annotated[
    bool, typer.Option("--did-not-happen", help="Its outcome is unknown and it did not happen: run it again.")
]
NextNodes = Annotated[
    list[str] | None, typer.Option("--next", metavar="NODE", help="Where its branch goes on. Repeatable.")
]


def retry_command(
    run: Run,
    sure: Sure = None,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let a failed or cancelled run go on where it stopped."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        mill.retry(run, reason=reason, actor=acting(actor), did_not_happen=tuple(sure or ()), command_id=key)

    return act(Asking(store, as_json), run, "retried", do)


def rewind_command(
    run: Run,
    node: Node,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let a node and everything behind it happen anew.

    The run must not have ended; of one that has, fork it.
    """
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        mill.rewind(run, node, reason=reason, actor=acting(actor), command_id=key)

    return act(Asking(store, as_json), run, f"rewound to {node}", do)


def cancel_command(
    run: Run,
    compensate: Annotated[
        bool | None,
        typer.Option("--compensate/--no-compensate", help="Undo what was done. Default: what the document says."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Even while a rollback is under way.")] = False,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """End a run."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        who = acting(actor)
        mill.cancel(run, reason=reason, actor=who, compensate=compensate, force=force, command_id=key)

    return act(Asking(store, as_json), run, "cancelled", do)


def pause_command(
    run: Run,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Begin nothing more in a run until it is resumed.

    What is being worked on may finish.
    """
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        mill.pause(run, reason=reason, actor=acting(actor), command_id=key)

    return act(Asking(store, as_json), run, "paused", do)


def resume_command(
    run: Run,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let a paused run go on."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        mill.resume(run, reason=reason, actor=acting(actor), command_id=key)

    return act(Asking(store, as_json), run, "resumed", do)


def rollback_command(
    run: Run,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Undo what a run did, as far as its nodes say how."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting

    def do(mill: Tidemill) -> None:
        mill.rollback(run, reason=reason, actor=acting(actor), command_id=key)

    return act(Asking(store, as_json), run, "rollback asked for", do)


def relabel_command(
    run: Run,
    labels: Labels = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="KEY", help="A label to take away. Repeatable.")
    ] = None,
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Change the labels that a run can be found by."""
    from tidemill.cli.acting import act
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.sources import read_pairs
    from tidemill.errors import rejected

    def do(mill: Tidemill) -> None:
        if not labels and not remove:
            hint = "use --label key=value or --remove key"
            raise rejected("option_invalid", "no label to set or to remove is given", hint=hint)
        pairs = read_pairs("--label", labels or ())
        mill.relabel(run, pairs, tuple(remove or ()), actor=acting(actor), command_id=key)

    return act(Asking(store, as_json), run, "relabelled", do)


def signal_command(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name that a node waits for.")],
    payload: Annotated[
        str | None, typer.Argument(metavar="VALUE", help="What it says: JSON, a string, or @file. Default: null.")
    ] = None,
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Tell a run something that a node of it waits for."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.sources import read_value
    from tidemill.cli.verdicts import say

    def ask(mill: Tidemill) -> dict[str, str]:
        value = None if payload is None else read_value("VALUE", payload)
        sent = mill.signal(run, name, value, signal_id=key, actor=acting(actor))
        return {"run_id": run, "signal": name, "signal_id": str(sent)}

    return Asking(store, as_json).answer(ask, lambda sent: say(f"signal {name} was sent: {sent['signal_id']}"))


def override_command(
    run: Run,
    node: Node,
    value: Annotated[
        str | None, typer.Option("--value", metavar="VALUE", help="Its output: JSON, a string, or @file.")
    ] = None,
    skip: Annotated[bool, typer.Option("--skip", help="Skip it.")] = False,
    did_not_happen: NotHappened = False,
    next_nodes: NextNodes = None,
    visit: Visit = None,
    item: Item = None,
    reason: Reason = "",
    actor: Actor = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Settle a node by hand: give it a value, or skip it.

    Or say of one whose outcome is unknown that it did not happen, and let it run again.
    """
    from tidemill.cli.acting import Settling, act
    from tidemill.cli.asking import Asking, acting

    settling = Settling(value=value, skip=skip, did_not_happen=did_not_happen)

    def do(mill: Tidemill) -> None:
        who: dict[str, Any] = {"reason": reason, "actor": acting(actor), "command_id": key}
        settling.check()
        if did_not_happen:
            mill.retry(run, did_not_happen=(node,), **who)
            return
        nodes = None if next_nodes is None else tuple(next_nodes)
        place: dict[str, Any] = {"visit": visit, "index": item, "next_nodes": nodes}
        mill.override(run, node, **settling.given(), **place, **who)

    return act(Asking(store, as_json), run, f"{node} {settling.words}", do)


def fork_command(
    run: Run,
    at: Annotated[
        int | None, typer.Option("--at", metavar="SEQ", min=1, help="Share what happened up to this event.")
    ] = None,
    node: Annotated[str | None, typer.Option("--node", metavar="NODE", help="Begin anew at this node.")] = None,
    given: Given = None,
    patch: Annotated[str | None, typer.Option("--patch", metavar="FILE", help="A JSON Patch of its document.")] = None,
    labels: Labels = None,
    reason: Reason = "",
    actor: Actor = None,
    key: Annotated[str | None, typer.Option("--key", metavar="ID", help="The id of the new run.")] = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Branch a new run off another one, and print its id.

    It takes over what the other has done, up to an event, or up to the node where it begins anew.
    """
    from tidemill.cli.acting import Forking, forked
    from tidemill.cli.asking import Asking, acting

    forking = Forking(
        run=run,
        at=at,
        node=node,
        given=tuple(given or ()),
        patch=patch,
        labels=tuple(labels or ()),
        reason=reason,
        actor=acting(actor),
        key=key,
    )
    return forked(Asking(store, as_json), forking)


ACTS: dict[str, Callable[..., int]] = {
    "retry": retry_command,
    "rewind": rewind_command,
    "cancel": cancel_command,
    "pause": pause_command,
    "resume": resume_command,
    "rollback": rollback_command,
    "relabel": relabel_command,
    "signal": signal_command,
    "override": override_command,
    "fork": fork_command,
    "patch": patch_command,
}
"""All of them, in the order in which the help lists them."""
