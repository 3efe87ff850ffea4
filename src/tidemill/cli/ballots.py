"""Approvals in text: what is asked of whom, who has decided, and how to decide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tidemill.cli.ages import moment
from tidemill.cli.asking import Asking
from tidemill.cli.ending import pretty
from tidemill.cli.snippets import names, snippet
from tidemill.cli.tables import print_facts, print_hint, print_title
from tidemill.kernel.events import NOT_AN_ITEM

ASKED_COLUMNS_MAX = 500
DECISIONS = {"approve": "approved", "reject": "rejected", "changes": "changes requested"}


def tell_approval(asking: Asking, approval: Mapping[str, Any]) -> None:
    """Print an approval, and how to decide it while it is pending."""
    print_title(str(approval.get("title") or approval["node"]), f"run {approval['run_id']}")
    print_facts(_facts(approval))
    if approval["status"] == "pending":
        print()
        print_hint(
            asking.command("approvals", "decide", approval["run_id"], approval["node"], "approve", *_which(approval))
        )


def _facts(approval: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "status", approval["status"]
    yield "node", approval["node"] + (f", item {approval['index']}" if _is_item(approval) else "")
    yield "visit", approval.get("visit") if (approval.get("visit") or 1) > 1 else None
    yield "asked", moment(approval.get("requested_ms"))
    yield "by", approval.get("requester")
    yield "approvers", asked_of(approval)
    if approval["status"] == "pending":
        yield "agreed", names(vote["by"] for vote in approval["votes"])
    yield "delegated", names(f"{each['by']} → {each['to']}" for each in approval["delegated"])
    if approval["status"] == "pending" and approval.get("expires_ms") is not None:
        yield "expires", f"{moment(approval['expires_ms'])}, then: {approval.get('on_timeout', 'fail')}"
    yield "decision", DECISIONS.get(approval["decision"])
    if approval.get("decided_by"):
        yield "decided", f"by {approval['decided_by']} {moment(approval.get('decided_ms'))}".rstrip()
    yield "comment", approval.get("comments")
    yield "look at", approval.get("url")
    yield "about", approval.get("description")
    if approval.get("form") is not None:
        yield "form", pretty(approval["form"])


def _is_item(approval: Mapping[str, Any]) -> bool:
    return approval.get("index", NOT_AN_ITEM) not in (None, NOT_AN_ITEM)


def _which(approval: Mapping[str, Any]) -> tuple[str, ...]:
    return ("--item", str(approval["index"])) if _is_item(approval) else ()


def asked_of(approval: Mapping[str, Any]) -> str:
    """Who is asked, and how many of them have to agree."""
    asked = names(approval.get("approvers") or ("anyone",), ASKED_COLUMNS_MAX)
    quorum = approval.get("quorum", 1)
    said = [asked] + ([f"{quorum} must agree"] if quorum > 1 else [])
    if approval.get("four_eyes"):
        said.append("not whoever submitted or patched the run")
    return "; ".join(said)


def form_words(schema: Any) -> str:
    """The fields of a form on one line."""
    fields = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(fields, Mapping):
        return snippet(schema, 60)
    required = schema.get("required") or ()
    return ", ".join(f"{name}{'' if name in required else '?'}" for name in fields)


def tell_decision(approval: Mapping[str, Any]) -> None:
    """Print what became of an approval after somebody has decided."""
    from tidemill.cli.verdicts import say

    place = approval["node"]
    if approval["status"] == "decided":
        say(f"{place}: {DECISIONS.get(approval['decision'], approval['decision'])} by {approval['decided_by']}")
        return
    agreed = len(approval.get("votes") or ())
    say(f"{place}: your vote counts, {agreed} of {approval.get('quorum', 1)} agree so far")
