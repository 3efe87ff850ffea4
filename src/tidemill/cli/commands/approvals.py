"""`tidemill approvals`: list and decide approvals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import click

from tidemill.cli import options

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession
    from tidemill.client import Tidemill


approvals = options.new_group("approvals")

STATUSES = ("pending", "decided", "expired", "cancelled", "all")
Verb = Literal["approve", "reject", "changes"]
deciding = options.together(options.actor, options.roles, options.visit, options.item, options.command_id)


@approvals.command("list")
@options.option("--status", type=click.Choice(STATUSES), default="pending", about="How they stand.")
@options.of_run
@options.of_workflow
@options.option("--approver", metavar="WHO", about="Only approvals that ask user:NAME, role:NAME or anyone.")
@options.page
@options.on_store()
def list_command(session: StoreSession, status: str, limit: int, after: str | None, **wanted: str | None) -> int:
    """List pending approvals, newest first; --status shows others."""
    from tidemill.cli.render.lists import list_page

    terms = options.status_terms(status, wanted)
    return list_page(session, "approvals", lambda mill: mill.approvals(terms, after=after, limit=limit))


@approvals.command("show")
@options.activation
@options.on_store()
def show_command(session: StoreSession, run: str, node: str, visit: int | None, item: int | None) -> int:
    """Show an approval: the question, who may decide, and who did."""
    from tidemill.cli.render.lists import print_approval

    return session.ask_and_print(
        lambda mill: mill.approval(run, node, visit=visit, index=item),
        lambda view: print_approval(session, view),
    )


@approvals.command("decide")
@options.run
@options.node
@options.argument("verb", "VERB", "approve, reject or changes.", type=click.Choice(get_args(Verb)))
@options.comments
@options.many(
    "--form", "-f", metavar="NAME=VALUE", about="A field of the form; a JSON object or @file gives all.", type=str
)
@deciding
@options.on_store()
def decide_command(
    session: StoreSession, run: str, node: str, verb: Verb, form: tuple[str, ...], item: int | None, **given: Any
) -> int:
    """Approve, reject, or request changes."""
    from tidemill.cli.inputs import read_inputs
    from tidemill.cli.render.lists import print_decision

    def ask(mill: Tidemill) -> Any:
        fields = read_inputs(form, "--form") if form else None
        return mill.decide(run, node, verb, form=fields, index=item, **given)

    return session.ask_and_print(ask, lambda view: print_decision(view.to_dict()))


@approvals.command("delegate")
@options.run
@options.node
@options.argument("to", "PERSON", "The person who decides instead.")
@options.comments
@deciding
@options.on_store()
def delegate_command(session: StoreSession, run: str, node: str, to: str, item: int | None, **given: Any) -> int:
    """Delegate your decision to another person."""
    from tidemill.cli.render.runs import say

    return session.ask_and_print(
        lambda mill: mill.delegate(run, node, to, index=item, **given), lambda _: say(f"{node}: {to} may decide now")
    )
