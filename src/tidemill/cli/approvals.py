"""`tidemill approvals`: what people are asked, and their answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tidemill.cli.groups import new_group
from tidemill.cli.options import (
    DEFAULT_STORE,
    PAGE,
    Actor,
    AsJson,
    Comments,
    Cursor,
    Item,
    Key,
    Limit,
    Node,
    Roles,
    Run,
    Store,
    Visit,
)

if TYPE_CHECKING:
    from tidemill.front import Tidemill

approvals = new_group("approvals", "See what waits for people, and decide.")

Status = Literal["pending", "decided", "expired", "cancelled", "all"]
Verb = Literal["approve", "reject", "changes"]


@approvals.command("list")
def list_command(
    status: Annotated[Status, typer.Option("--status", help="How they stand.")] = "pending",
    run: Annotated[str | None, typer.Option("--run", metavar="RUN", help="Of this run.")] = None,
    workflow: Annotated[str | None, typer.Option("--workflow", metavar="NAME", help="Of this workflow.")] = None,
    approver: Annotated[
        str | None, typer.Option("--approver", metavar="WHO", help="Those that ask user:NAME, role:NAME or anyone.")
    ] = None,
    limit: Limit = PAGE,
    after: Cursor = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """List approvals, newest first: those that are pending."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.rosters import Page, tell_approvals

    asking = Asking(store, as_json)
    wanted = {"status": None if status == "all" else status, "run": run, "workflow": workflow, "approver": approver}
    terms = [f"{name}:{value}" for name, value in wanted.items() if value is not None]

    def ask(mill: Tidemill) -> Page:
        return Page("approvals", *mill.approvals(terms, after=after, limit=limit))

    return asking.answer(ask, lambda page: tell_approvals(asking, page))


@approvals.command("show")
def show_command(
    run: Run,
    node: Node,
    visit: Visit = None,
    item: Item = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Show what is asked of whom, and who has decided."""
    from tidemill.cli.asking import Asking
    from tidemill.cli.ballots import tell_approval

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Any:
        return mill.approval(run, node, visit=visit, index=item)

    return asking.answer(ask, lambda view: tell_approval(asking, view.to_dict()))


@approvals.command("decide")
def decide_command(
    run: Run,
    node: Node,
    verb: Annotated[Verb, typer.Argument(metavar="VERB", help="approve, reject or changes.")],
    comments: Comments = "",
    form: Annotated[
        list[str] | None,
        typer.Option("--form", "-f", metavar="NAME=VALUE", help="A field of the form; @file gives all. Repeatable."),
    ] = None,
    actor: Actor = None,
    roles: Roles = None,
    visit: Visit = None,
    item: Item = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Approve, reject, or ask for changes."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.ballots import tell_decision
    from tidemill.cli.sources import read_inputs

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Any:
        return mill.decide(
            run,
            node,
            verb,
            actor=acting(actor),
            roles=tuple(roles or ()),
            comments=comments,
            form=read_inputs(form, "--form") if form else None,
            visit=visit,
            index=item,
            command_id=key,
        )

    return asking.answer(ask, lambda view: tell_decision(view.to_dict()))


@approvals.command("delegate")
def delegate_command(
    run: Run,
    node: Node,
    to: Annotated[str, typer.Argument(metavar="PERSON", help="Who shall decide instead.")],
    comments: Comments = "",
    actor: Actor = None,
    roles: Roles = None,
    visit: Visit = None,
    item: Item = None,
    key: Key = None,
    store: Store = DEFAULT_STORE,
    as_json: AsJson = False,
) -> int:
    """Let somebody else decide in your place."""
    from tidemill.cli.asking import Asking, acting
    from tidemill.cli.verdicts import say

    asking = Asking(store, as_json)

    def ask(mill: Tidemill) -> Any:
        return mill.delegate(
            run,
            node,
            to,
            actor=acting(actor),
            roles=tuple(roles or ()),
            comments=comments,
            visit=visit,
            index=item,
            command_id=key,
        )

    return asking.answer(ask, lambda _: say(f"{node}: {to} may decide now"))
