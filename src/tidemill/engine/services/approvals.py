"""Approvals for callers: list, show, decide, delegate. The rules of voting are the kernel's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.index_rows import APPROVAL, ApprovalRow, read_approval_row
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import ServiceContext, at_index, check_node
from tidemill.engine.validation import check_described, check_place, check_roles, check_words
from tidemill.engine.views import ApprovalView
from tidemill.errors import Rejected, rejected
from tidemill.expressions.schema import compile_schema
from tidemill.kernel.activation import Approval, folded
from tidemill.kernel.commands import Decide, Delegate, Verb
from tidemill.kernel.events import INLINE_BYTES_MAX, ApprovalEvent
from tidemill.kernel.state import peek_at

VERBS: tuple[Verb, ...] = ("approve", "reject", "changes")
TERMS = ("status", "run", "workflow", "approver", "decided_by")


class ApprovalService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[ApprovalRow], str | None]:
        """Approvals that have all terms (`status:pending`, `run:ID`, `workflow:NAME`, `approver:user:x`…)."""
        page = await self._context.page(APPROVAL, checked_terms(terms, TERMS), after, limit)
        return [read_approval_row(row) for row in page.rows], page.after

    async def show(self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None) -> ApprovalView:
        """One approval with its form; by default that of the node's latest visit."""
        check_place(visit, index)
        entry = await self._context.entry(run_id)
        check_node(entry.flow.workflow, node)
        cell = entry.state.peek(node)
        act = peek_at(cell, at_index(index))
        if visit is not None and 0 < visit < cell.visit:
            hint = "leave the visit out to speak of the latest"
            raise rejected("approval_closed", f"node {node} is at visit {cell.visit} by now", hint=hint)
        if act is None or act.approval is None or visit not in (None, cell.visit):
            hint = "see `tidemill approvals list`"
            raise rejected("approval_unknown", f"node {node} waits for no decision", hint=hint)
        return ApprovalView(run_id, entry.state.workflow, node, cell.visit, at_index(index), act.approval)

    async def decide(
        self,
        run_id: str,
        node: str,
        verb: Verb,
        *,
        actor: str,
        roles: Sequence[str] = (),
        comments: str = "",
        form: Any = None,
        visit: int | None = None,
        index: int | None = None,
        command_id: str | None = None,
    ) -> ApprovalView:
        """Approve, reject or request changes. The same decision again is answered like the first one.

        `roles` are those that `actor` has now. Data for the form is checked against its schema.
        """
        if verb not in VERBS:
            raise rejected("decision_unknown", f"{verb!r} is no decision", hint=f"one of: {', '.join(VERBS)}")
        _check_person(actor, roles, comments)
        shown = await self.show(run_id, node, visit=visit, index=index)
        words: dict[str, Any] = {"id": command_id, "actor": actor or None, "roles": tuple(roles), "comments": comments}
        decision = Decide(node=node, visit=shown.visit, index=shown.index, verb=verb, **words)
        # An actor who may not decide is refused before the form is looked at.
        await self._context.rehearse(run_id, decision)
        filled = _checked_form(shown.approval, verb, form) if shown.status == "pending" else None
        if filled is not None:
            await check_described(self._context.tenant, filled, self._context.blobs, path="/form")
        await self._context.command(run_id, msgspec.structs.replace(decision, form=filled))
        return await self._after(run_id, node, shown)

    async def delegate(
        self,
        run_id: str,
        node: str,
        to: str,
        *,
        actor: str,
        roles: Sequence[str] = (),
        comments: str = "",
        visit: int | None = None,
        index: int | None = None,
        command_id: str | None = None,
    ) -> ApprovalView:
        """Let another person decide in your place."""
        _check_person(actor, roles, comments)
        check_words(to=to)
        shown = await self.show(run_id, node, visit=visit, index=index)
        words: dict[str, Any] = {"id": command_id, "actor": actor or None, "roles": tuple(roles), "comments": comments}
        delegate = Delegate(node=node, visit=shown.visit, index=shown.index, to=to, **words)
        await self._context.command(run_id, delegate)
        return await self._after(run_id, node, shown)

    async def _after(self, run_id: str, node: str, shown: ApprovalView) -> ApprovalView:
        """The approval as the decision has left it; a loop may have gone on to the next visit since."""
        try:
            return await self.show(run_id, node, visit=shown.visit, index=None if shown.index < 0 else shown.index)
        except Rejected:
            place, approval = (node, shown.visit, shown.index), None
            for event in await self._context.log(run_id):
                if isinstance(event, ApprovalEvent) and (event.node, event.visit, event.index) == place:
                    approval = folded(approval, event)
            return ApprovalView(run_id, shown.workflow, *place, approval or shown.approval)


def _check_person(actor: str, roles: Sequence[str], comments: str) -> None:
    check_words(actor=actor, comments=comments)
    check_roles(roles)


def _checked_form(approval: Approval, verb: Verb, form: Any) -> bytes | None:
    """The checked form of a decision; to approve, it has to be complete."""
    if approval.form is None:
        if form is not None:
            hint = "decide without a form; say what there is to say in the comments"
            raise rejected("form_invalid", "this approval has no form", path="/form", hint=hint)
        return None
    if form is None and verb != "approve":
        return None
    assert isinstance(approval.form, bytes), "forms are short"
    filled = {} if form is None else form
    problems = compile_schema(decode_value(approval.form)).problems(filled, "/form", code="form_invalid")
    if problems:
        raise Rejected(problems)
    try:
        text = encode_value(filled)
    except NotJson as error:
        raise rejected("form_invalid", str(error), path="/form", hint="use plain JSON values") from None
    if len(text) > INLINE_BYTES_MAX:
        hint = "keep large values elsewhere and name where they are"
        raise rejected("form_too_large", f"a form holds at most {INLINE_BYTES_MAX} bytes", path="/form", hint=hint)
    return text
