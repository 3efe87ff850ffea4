"""`tidemill keys`, `tenants` and `audit`: who may use a store over HTTP, and who changed what."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tidemill.cli import main, options

if TYPE_CHECKING:
    from tidemill.cli.session import StoreSession
    from tidemill.engine.maintenance.audit_chain import ChainCheck
    from tidemill.engine.services.access import CreatedKey

ROLES = "viewer, operator, author, approver or admin"
of_tenant = options.option("--tenant", metavar="NAME", default="default", about="Of this tenant.")

keys = options.new_group("keys")


@keys.command("create")
@options.argument("label", "LABEL", "What the key is for. Changes made with the key are recorded as by key:LABEL.")
@options.many("--role", "roles", metavar="ROLE", required=True, about=f"The role of the key: {ROLES}.")
@options.option(
    "--expires-days",
    metavar="DAYS",
    type=options.Numbers(0, 3660, min_open=True),
    default=365.0,
    about="How long the key is valid.",
)
@options.flag("--no-expiry", about="The key is valid until it is revoked.")
@of_tenant
@options.actor
@options.on_store(creates=True)
def create_key_command(
    session: StoreSession,
    label: str,
    roles: tuple[str, ...],
    expires_days: float,
    no_expiry: bool,
    tenant: str,
    actor: str,
) -> int:
    """Create an API key and print it. It is shown only once: the store keeps its hash."""
    from tidemill.cli.render.tables import moment, print_facts, print_hint

    def show(created: CreatedKey) -> None:
        print(created.key)
        view = created.view
        ends = "never" if view.expires_ms is None else moment(view.expires_ms)
        # A file that the output is written to holds the key alone.
        with redirect_stdout(sys.stderr):
            print_facts([("id", view.id), ("roles", ", ".join(view.roles)), ("tenant", tenant), ("expires", ends)])
            print_hint("save the key now: it is not shown again")

    days = None if no_expiry else expires_days
    return replace(session, tenant=tenant).ask_and_print(
        lambda mill: mill.create_key(label, roles=roles, expires_days=days, actor=_named(actor)), show
    )


@keys.command("list")
@of_tenant
@options.page
@options.on_store()
def list_keys_command(session: StoreSession, tenant: str, **wanted: Any) -> int:
    """List API keys without their secrets, newest first."""
    from tidemill.cli.render.lists import list_page

    return list_page(replace(session, tenant=tenant), "keys", lambda mill: mill.keys(**wanted))


@keys.command("revoke")
@options.argument("key_id", "ID", "The id of a key, as `keys list` shows it.")
@of_tenant
@options.actor
@options.on_store()
def revoke_key_command(session: StoreSession, key_id: str, tenant: str, actor: str) -> int:
    """Revoke a key. Every server refuses it within five seconds."""
    from tidemill.cli.render.runs import say

    return replace(session, tenant=tenant).ask_and_print(
        lambda mill: mill.revoke_key(key_id, actor=_named(actor)),
        lambda view: say(f"the key {view.label} ({view.id}) is revoked"),
    )


tenants = options.new_group("tenants")
tenant_argument = options.argument("name", "NAME", "The name of a tenant.")


@tenants.command("create")
@tenant_argument
@options.actor
@options.on_store(creates=True)
def create_tenant_command(session: StoreSession, name: str, actor: str) -> int:
    """Create a tenant: an isolated part of the store with its own keys."""
    from tidemill.cli.render.runs import say
    from tidemill.cli.render.tables import print_hint

    def show(_: object) -> None:
        say(f"tenant {name} created")
        print_hint(session.command("keys", "create", "first", "--role", "admin", "--tenant", name))

    return session.ask_and_print(lambda mill: mill.create_tenant(name, actor=_named(actor)), show)


@tenants.command("list")
@options.page
@options.on_store()
def list_tenants_command(session: StoreSession, **wanted: Any) -> int:
    """List tenants, newest first. The operator's own tenant, default, always exists."""
    from tidemill.cli.render.lists import list_page

    return list_page(session, "tenants", lambda mill: mill.tenants(**wanted))


@tenants.command("disable")
@tenant_argument
@options.actor
@options.on_store()
def disable_tenant_command(session: StoreSession, name: str, actor: str) -> int:
    """Refuse all keys and tokens of a tenant. Its runs continue."""
    from tidemill.cli.render.runs import say

    return session.ask_and_print(
        lambda mill: mill.disable_tenant(name, actor=_named(actor)), lambda _: say(f"the tenant {name} is disabled")
    )


@tenants.command("enable")
@tenant_argument
@options.actor
@options.on_store()
def enable_tenant_command(session: StoreSession, name: str, actor: str) -> int:
    """Accept the keys and tokens of a disabled tenant again."""
    from tidemill.cli.render.runs import say

    return session.ask_and_print(
        lambda mill: mill.enable_tenant(name, actor=_named(actor)), lambda _: say(f"the tenant {name} is enabled")
    )


audit = options.new_group("audit")


@audit.command("list")
@options.option("--actor", metavar="WHO", about="Changes by this actor: key:ci, a person, a user.")
@options.option(
    "--action", metavar="ACTION", about="Changes of this kind: runs.cancel, workflows.publish, keys.create."
)
@options.option("--subject", metavar="ID", about="Changes of this run, workflow, key or tenant.")
@options.option("--since", metavar="WHEN", about="Only changes since then: 2h (ago), or a date.")
@options.option("--until", metavar="WHEN", about="Only changes before then: 2h (ago), or a date.")
@of_tenant
@options.page
@options.on_store()
def list_audit_command(session: StoreSession, tenant: str, **wanted: Any) -> int:
    """List who changed what, newest first.

    The audit records every change made over HTTP, and every change of keys and tenants.
    """
    from tidemill.cli.render.lists import list_page

    return list_page(replace(session, tenant=tenant), "audit", lambda mill: mill.audit(**wanted))


@audit.command("verify")
@options.option("--head", metavar="HASH", default="", about="The head that an earlier check printed.")
@of_tenant
@options.on_store()
def verify_audit_command(session: StoreSession, tenant: str, head: str) -> int:
    """Check that no audit entry was changed or removed.

    Prints the head of the hash chain. Store it elsewhere and pass it as --head later to prove that no entry was removed
    from the end. Exits with 1 if the chain is broken.
    """
    from tidemill.cli.render.tables import print_facts

    # The key decides whose chain a server looks at.
    whose = "" if options.is_server(session.store) else f" of {tenant}"

    def show(found: ChainCheck) -> None:
        if found.intact:
            entries = f"{found.entries:,} {'entry' if found.entries == 1 else 'entries'}"
            print(f"✓ {entries}{whose}: no entry was changed or removed")
        else:
            print(f"✗ entry {found.broken_seq}{whose}: {found.problem}")
        print_facts([("head", found.head), ("not in the chain yet", found.waiting or None)])

    return replace(session, tenant=tenant).ask_and_print(
        lambda mill: mill.verify_audit(head), show, ends=lambda found: main.OK if found.intact else main.FAILED
    )


def _named(actor: str) -> str:
    """Who acts; changes of keys and tenants are audited, so they need a name."""
    return actor or "operator"
