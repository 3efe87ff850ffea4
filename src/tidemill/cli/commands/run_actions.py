"""`tidemill runs …`: what can be done to a run. Its log records every action, with the actor and the reason."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import click

from tidemill.cli import options

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession
    from tidemill.client import Tidemill
    from tidemill.engine.services.bulk import BulkAction, BulkOutcome
    from tidemill.engine.services.patches import PatchOutcome


RETRIED = "retried"
BULK = ("cancel", "pause", "resume", "retry", "rollback")


def act(session: StoreSession, run_id: str, done: str, do: Callable[[Tidemill], object], *, follows: str = "") -> int:
    """Carry out an action on a run, and print the status that the run has afterwards, and what follows."""
    from tidemill.cli.render.runs import say, tolerated_failures
    from tidemill.cli.render.tables import names, print_hint
    from tidemill.cli.render.terminal import counted

    def ask(mill: Tidemill) -> dict[str, Any]:
        do(mill)
        view = mill.show(run_id)
        after = {"run_id": run_id, "done": done, "status": view.status, "events": view.events}
        return after | ({"tolerated": tolerated} if done == RETRIED and (tolerated := tolerated_failures(view)) else {})

    def show(after: dict[str, Any]) -> None:
        say(f"{done}; run {run_id} {'stays' if follows else 'is'} {after['status']}")
        if follows:
            print_hint(f"{follows}: {session.command('why', run_id)}")
        if left := after.get("tolerated"):
            said = names(f"{node} ({counted(items, 'item')})" if items else node for node, items in left.items())
            print_hint(f"tolerated failures stay as they are: {said}")
            print_hint(
                f"to rerun one and everything downstream: {session.command('runs', 'rewind', run_id, next(iter(left)))}"
            )

    return session.ask_and_print(ask, show)


@click.command("patch")
@options.run
@options.change_file
@options.sets
@options.dry_run
@options.flag("--retry", about="Retry a failed or cancelled run with the patch.")
@options.option("--base", metavar="DIGEST", about="Refuse if the run's document has changed since.")
@options.option(
    "--expect",
    "expected_seq",
    metavar="SEQ",
    type=options.Integers(1),
    about="Refuse if the run has moved past this event.",
)
@options.flag("--publish", about="Also publish the result as a new version.")
@options.did_not_happen
@options.option(
    "--message", "--reason", "-m", "message", metavar="TEXT", default="", about="A message, recorded with the change."
)
@options.actor
@options.command_id
@options.apps
@options.on_store()
def patch_command(
    session: StoreSession, run: str, file: str | None, sets: tuple[str, ...], base: str | None, **given: Any
) -> int:
    """Change the graph or the configuration of a run.

    FILE holds a JSON Patch or a whole document. The command prints what is added, removed, run again and kept; with
    --dry-run it changes nothing.
    """
    from tidemill.cli.inputs import edits_for
    from tidemill.cli.render.runs import print_patch

    def ask(mill: Tidemill) -> PatchOutcome:
        with edits_for(mill, run, file, sets, base) as edits:
            return mill.patch(run, **edits, **given)

    return session.ask_and_print(ask, lambda outcome: print_patch(run, outcome))


def plain_act(name: str, done: str, about: str, *more: options.Decorator, follows: str = "") -> click.Command:
    """A command that calls the engine's method of the same name with the options of the command."""

    @click.command(name, help=about)
    @options.run
    @options.together(*more, options.who)
    @options.on_store()
    def command(session: StoreSession, run: str, **given: Any) -> int:
        done_to = done.format(**given)
        return act(session, run, done_to, lambda mill: getattr(mill, name)(run, **given), follows=follows)

    return command


@click.command("resume")
@options.run
@options.who
@options.on_store()
def resume_command(session: StoreSession, run: str, **who: Any) -> int:
    """Resume a paused run."""
    from tidemill.cli.render.runs import say
    from tidemill.cli.render.tables import print_hint

    def ask(mill: Tidemill) -> dict[str, Any]:
        was = mill.show(run).status
        mill.resume(run, **who)
        view = mill.show(run)
        if not options.is_server(session.store) and not any(each.state == "alive" for each in mill.workers()):
            missing.append("worker")
        done = "resumed" if was == "PAUSED" else "was not paused"
        return {"run_id": run, "done": done, "status": view.status, "events": view.events}

    def show(after: dict[str, Any]) -> None:
        is_now = f"run {run} is {after['status']}"
        say(f"resumed; {is_now}" if after["done"] == "resumed" else f"{is_now}; it was not paused")
        if missing:
            here, worker = session.command("run", "FILE", "--resume", run), session.command("worker")
            print_hint(f"no worker is running: `{here}` or `{worker}` continues it")

    missing: list[str] = []
    return session.ask_and_print(ask, show)


PLAIN = (
    plain_act("retry", RETRIED, "Retry a failed or cancelled run from where it stopped.", options.did_not_happen),
    plain_act(
        "rewind",
        "rewound to {node}",
        "Run a node and everything downstream of it again.\n\nOnly for runs that have not ended; fork those that have.",
        options.node,
    ),
    plain_act(
        "cancel",
        "cancelled",
        "Cancel a run.",
        options.option(
            "--compensate/--no-compensate",
            is_flag=True,
            default=None,
            about="Run the compensators of completed nodes. Default: as the document says.",
        ),
        options.flag("--force", about="Cancel even during a rollback."),
    ),
    plain_act("pause", "paused", "Pause a run: start no new nodes until it is resumed.\n\nRunning nodes may finish."),
    resume_command,
    plain_act(
        "rollback",
        "rollback requested",
        "Undo a run: run the compensators of its completed nodes.",
        follows="a worker runs the compensators one by one",
    ),
)


@click.command("relabel")
@options.run
@options.labels
@options.many("--remove", metavar="KEY", about="A label to remove.")
@options.actor
@options.command_id
@options.on_store()
def relabel_command(
    session: StoreSession, run: str, labels: tuple[str, ...], remove: tuple[str, ...], **who: Any
) -> int:
    """Change the labels of a run."""
    from tidemill.cli.inputs import read_pairs
    from tidemill.errors import rejected

    def do(mill: Tidemill) -> None:
        if not labels and not remove:
            hint = "use --label key=value or --remove key"
            raise rejected("option_invalid", "no label to set or remove was given", hint=hint)
        mill.relabel(run, read_pairs("--label", labels), remove, **who)

    return act(session, run, "relabelled", do)


@click.command("signal")
@options.run
@options.argument("name", "NAME", "The name of the signal.")
@options.argument(
    "payload", "[VALUE]", "The payload: JSON, a string, or @file. Default: null.", type=str, required=False
)
@options.actor
@options.command_id
@options.on_store()
def signal_command(
    session: StoreSession, run: str, name: str, payload: str | None, actor: str, command_id: str | None
) -> int:
    """Send a signal to a run."""
    from tidemill.cli.inputs import read_value
    from tidemill.cli.render.runs import say

    def ask(mill: Tidemill) -> dict[str, str]:
        value = None if payload is None else read_value("VALUE", payload)
        sent = mill.signal(run, name, value, signal_id=command_id, actor=actor)
        return {"run_id": run, "signal": name, "signal_id": str(sent)}

    return session.ask_and_print(ask, lambda sent: say(f"signal {name} was sent: {sent['signal_id']}"))


@click.command("override")
@options.run
@options.node
@options.option("--value", metavar="VALUE", about="The node's output: JSON, a string, or @file.", type=str)
@options.flag("--skip", about="Skip it.")
@options.flag("--did-not-happen", about="The outcome is unknown and you know it did not happen: run the node again.")
@options.many("--next", "next_nodes", metavar="NODE", about="The nodes its branch continues with.")
@options.visit
@options.item
@options.who
@options.on_store()
def override_command(
    session: StoreSession,
    run: str,
    node: str,
    value: str | None,
    skip: bool,
    did_not_happen: bool,
    next_nodes: tuple[str, ...],
    visit: int | None,
    item: int | None,
    **who: Any,
) -> int:
    """Set the result of a node manually: give it a value, or skip it.

    A node with an unknown outcome can also be declared as not happened; it then runs again.
    """
    from tidemill.cli.inputs import read_value
    from tidemill.errors import rejected

    def do(mill: Tidemill) -> None:
        if (value is not None) + skip + did_not_happen != 1:
            hint = "use one of --value JSON, --skip, --did-not-happen"
            raise rejected("option_invalid", "exactly one way to settle the node is needed", hint=hint)
        if did_not_happen:
            mill.retry(run, did_not_happen=(node,), **who)
            return
        settled: dict[str, Any] = {"skip": True} if value is None else {"value": read_value("--value", value)}
        mill.override(run, node, **settled, visit=visit, index=item, next_nodes=next_nodes or None, **who)

    done = "is retried" if did_not_happen else "is skipped" if skip else "has its value"
    place = node if item is None else f"item {item} of {node}"
    return act(session, run, f"{place} {done}", do)


@click.command("fork")
@options.run
@options.option("--at", metavar="SEQ", type=options.Integers(1), about="Copy the run up to this event.")
@options.option("--node", metavar="NODE", about="Run again from this node.")
@options.given
@options.option("--patch", metavar="FILE", about="A JSON Patch, or a whole document.", type=str)
@options.sets
@options.labels
@options.reason
@options.actor
@options.option("--key", metavar="ID", about="The id of the new run.")
@options.on_store()
def fork_command(
    session: StoreSession,
    run: str,
    given: tuple[str, ...],
    patch: str | None,
    sets: tuple[str, ...],
    labels: tuple[str, ...],
    **more: Any,
) -> int:
    """Fork a run and print the id of the new run.

    The new run copies the history up to an event, or up to the node that runs again. Inputs replace those of the same
    name; the others are those of the run.
    """
    from tidemill.cli.inputs import Source, read_change, read_inputs, read_pairs, undeclared
    from tidemill.cli.render.terminal import print_warnings

    def ask(mill: Tidemill) -> dict[str, Any]:
        change = None
        if patch is not None or sets:
            change = read_change(patch, sets, lambda: mill.document(run).document)
        whole, inputs = change if isinstance(change, Source) else None, read_inputs(given) if given else None
        if inputs and change is None and not session.as_json:
            print_warnings(undeclared(mill.document(run).document.get("inputs"), inputs), sys.stderr)
        with whole.located() if whole is not None else nullcontext():
            new = mill.fork(
                run,
                inputs=inputs,
                patch=change if whole is None else None,
                document=None if whole is None else whole.document,
                labels=read_pairs("--label", labels) if labels else None,
                **more,
            )
        return {"run_id": new, "forked_from": run}

    return session.ask_and_print(ask, lambda found: print(found["run_id"]))


@click.command("bulk")
@options.argument("action", "ACTION", "cancel, pause, resume, retry or rollback.", type=click.Choice(BULK))
@options.argument(
    "query", "QUERY...", "A query, e.g. status:failed workflow:billing 'started>-2h'.", nargs=-1, required=True
)
@options.dry_run
@options.flag("--children", about="Act on child runs, too; they are left out unless parent:, root: or workflow:.")
@options.flag("--yes", "-y", about="Do not ask.")
@options.option(
    "--limit", metavar="N", type=options.Integers(1, 100_000), default=1_000, about="Maximum number of runs to act on."
)
@options.reason
@options.actor
@options.on_store()
def bulk_command(
    session: StoreSession, action: BulkAction, query: tuple[str, ...], children: bool, yes: bool, **given: Any
) -> int:
    """Apply an action to all runs that match a query.

    These are the runs that `runs list` shows for it. Runs on which the action has no effect are skipped.

    --dry-run lists them. Otherwise the command asks first; without a terminal it needs --yes.
    """
    from msgspec.structs import replace

    from tidemill.cli import main
    from tidemill.cli.inputs import without_children
    from tidemill.cli.render.lists import print_left_out
    from tidemill.cli.render.runs import print_bulk
    from tidemill.cli.render.tables import print_hint
    from tidemill.cli.render.terminal import can_prompt, counted
    from tidemill.errors import rejected

    refused: list[str] = []
    left_out: list[int] = []

    def ask(mill: Tidemill) -> BulkOutcome:
        # An empty query is refused.
        text = " ".join(without_children(query, query, children or not "".join(query).strip()))
        if text != " ".join(query):
            left_out.append(mill.count(" ".join(query)) - mill.count(text))
        if not (given["dry_run"] or yes):
            found = mill.bulk(action, text, **{**given, "dry_run": True})
            if not found.done:
                return found
            if session.as_json or not can_prompt():
                message = f"{action} would act on {counted(found.done, 'run')}"
                raise rejected("confirmation_missing", message, hint="add --yes, or look first: --dry-run")
            if not click.confirm(f"{action} {counted(found.done, 'run')}?"):
                refused.append(action)
                return replace(found, runs=())
        return mill.bulk(action, text, **given)

    def ends(outcome: BulkOutcome) -> int:
        return main.REFUSED if outcome.runs and not (outcome.done or given["dry_run"]) else main.OK

    def show(outcome: BulkOutcome) -> None:
        if refused or (outcome.skipped and not outcome.runs):
            print("nothing was done")
        else:
            print_bulk(outcome)
        if outcome.skipped and not refused:
            print_hint(f"{counted(outcome.skipped, 'run')} skipped: {action} has no effect")
        print_left_out(sum(left_out))

    return session.ask_and_print(ask, show, ends=ends)


ACTS = (*PLAIN, relabel_command, signal_command, override_command, fork_command, patch_command, bulk_command)
"""All of them, in the order in which the help lists them."""
