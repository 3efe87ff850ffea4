"""Approvals for callers: list, show, review, decide, delegate. The rules of voting are the kernel's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.index_rows import ANYONE, APPROVAL, ApprovalRow, read_approval_row
from tidemill.engine.run_cache import CachedRun
from tidemill.engine.run_query import checked_terms
from tidemill.engine.services.context import ServiceContext, at_index, check_node
from tidemill.engine.validation import check_described, check_place, check_roles, check_words, with_defaults
from tidemill.engine.views import ApprovalView, plain
from tidemill.errors import Problem, Rejected, rejected
from tidemill.expressions.errors import choices, shorten
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.python.conversion import ConversionError, to_json
from tidemill.kernel.activation import Approval, folded
from tidemill.kernel.commands import Decide, Delegate, Verb
from tidemill.kernel.decide.approvals import Consequence, as_role, as_user, ask_again, consequences
from tidemill.kernel.events import INLINE_BYTES_MAX, ApprovalEvent, BlobRef, Payload
from tidemill.kernel.queries import VisibleOutput, upstream, visible_output
from tidemill.kernel.state import peek_at
from tidemill.stores.contract import Row, cursor_after

VERBS: tuple[Verb, ...] = ("approve", "reject", "changes")
TERMS = ("status", "run", "workflow", "approver", "decided_by")
HUMAN = "human@"
SCANNED_MAX = 5_000
"""Rows that one question looks through for those that fit."""
PAGE = 100


class ApprovalReview:
    """An approval with what a person needs to know to decide it."""

    json_schema: ClassVar[dict[str, Any]] = {
        **ApprovalView.json_schema,
        "evidence": {
            "type": ["object", "null"],
            "properties": {"inputs": {}, "nodes": {"type": "object"}, "item": {}},
            "description": "What the node sees; a large value is described by its blob. Null for an earlier visit.",
        },
        "consequences": {
            "type": "object",
            "description": "By decision: the nodes that follow, whether conditions choose among them, and failure.",
        },
    }

    def __init__(self, view: ApprovalView, evidence: dict[str, Any] | None, by_verb: dict[str, Consequence]) -> None:
        self.view, self.evidence, self.consequences = view, evidence, by_verb

    def to_dict(self) -> dict[str, Any]:
        return {**self.view.to_dict(), "evidence": self.evidence, "consequences": plain(self.consequences)}


class Decider(msgspec.Struct, frozen=True, kw_only=True):
    """The person who views an approval."""

    person: str
    refusal: Problem | None = None
    """Why this person cannot decide it now."""
    expires_ms: int | None = None
    """When the decision link expires, if they came by one."""


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a decision; repeating the same decision returns the same."""

    approval_id: str
    status: str
    """`pending` while more people have to agree."""
    decision: str | None
    next_nodes: tuple[str, ...]
    """The nodes that the decision leads to; conditions may choose among them."""


def check_verb(verb: str) -> None:
    """Refuse what is not a decision."""
    if verb not in VERBS:
        raise rejected("decision_unknown", f"{verb!r} is not a decision", hint=f"one of: {', '.join(VERBS)}")


class ApprovalService:
    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def find(
        self, terms: str | Sequence[str] = (), *, after: str | None = None, limit: int = 50
    ) -> tuple[list[ApprovalRow], str | None]:
        """Approvals that have all terms (`status:pending`, `run:ID`, `workflow:NAME`, `approver:user:x`…)."""
        page = await self._context.page(APPROVAL, checked_terms(terms, TERMS), after, limit)
        return [read_approval_row(row) for row in page.rows], page.after

    async def inbox(
        self,
        terms: str | Sequence[str] = (),
        *,
        person: str = "",
        roles: Sequence[str] = (),
        by_role: bool = False,
        fits: Callable[[ApprovalRow], bool] = lambda row: True,
        after: str | None = None,
        limit: int = 50,
    ) -> tuple[list[ApprovalRow], str | None]:
        """Approvals with these terms that fit; with a `person` those that ask them, one of their roles, or anyone.

        With `by_role` only those that ask one of the roles.
        A page may be short, or empty, while there is a next one: a question looks through a bounded number of rows.
        """
        wanted = checked_terms(terms, TERMS)
        asked = [as_user(person), *map(as_role, roles), ANYONE] if person else []
        if by_role:
            asked = [as_role(each) for each in roles]
            if not asked:
                return [], None
        lists = [[*wanted, f"approver:{each}"] for each in dict.fromkeys(asked)] or [wanted]
        found: list[ApprovalRow] = []
        for _ in range(0, SCANNED_MAX, PAGE):
            rows, after = await self._merged(lists, after, PAGE)
            for row in rows:
                if fits(each := read_approval_row(row)):
                    found.append(each)
                    if len(found) == limit:
                        last = row is rows[-1] and after is None
                        return found, None if last else cursor_after(row)
            if after is None:
                return found, None
        return found, after

    async def _merged(
        self, lists: Sequence[Sequence[str]], after: str | None, limit: int
    ) -> tuple[list[Row], str | None]:
        """A page of the rows that are in one of these lists, each once; all are in the same order."""
        pages = [await self._context.page(APPROVAL, terms, after, limit) for terms in lists]
        rows = {row.key: row for page in pages for row in page.rows}
        ordered = sorted(rows.values(), key=lambda row: (row.sort, row.key), reverse=True)
        more = len(ordered) > limit or any(page.after is not None for page in pages)
        return ordered[:limit], cursor_after(ordered[:limit][-1]) if more and ordered else None

    async def show(self, run_id: str, node: str, *, visit: int | None = None, index: int | None = None) -> ApprovalView:
        """One approval with its form; by default that of the node's latest visit."""
        check_place(visit, index)
        entry = await self._context.entry(run_id)
        check_node(entry.flow.workflow, node)
        cell = entry.state.peek(node)
        act = peek_at(cell, at_index(index))
        if visit is not None and 0 < visit < cell.visit:
            hint = "leave out the visit to mean the latest"
            raise rejected("approval_closed", f"node {node} is already at visit {cell.visit}", hint=hint)
        if act is None or act.approval is None or visit not in (None, cell.visit):
            is_map = entry.flow.workflow.by_id[node].map is not None and index is None
            hint = "say which of its items: --item N, or index=N" if is_map else "see `tidemill approvals list`"
            what = "has not been reached yet" if cell.status == "PENDING" else "is not waiting for a decision"
            raise rejected("approval_unknown", f"node {node} {what}", hint=hint)
        return ApprovalView(run_id, entry.state.workflow, node, cell.visit, at_index(index), act.approval)

    async def asks(self, run_id: str, node: str, index: int | None = None) -> bool:
        """Whether a node of a run is a decision of people, or has asked for one."""
        entry = await self._context.entry(run_id)
        known = entry.flow.workflow.by_id.get(node)
        act = None if known is None else peek_at(entry.state.peek(node), at_index(index))
        return (known is not None and known.type.startswith(HUMAN)) or (act is not None and act.approval is not None)

    async def review(self, run_id: str, node: str, *, visit: int, index: int | None = None) -> ApprovalReview:
        """An approval, also of an earlier visit, with what is known about it and what each decision leads to."""
        view = await self._any_visit(run_id, node, visit, index)
        entry = await self._context.entry(run_id)
        cell = entry.state.peek(node)
        evidence = await self._evidence(entry, node, view.index) if cell.visit == visit else None
        return ApprovalReview(view, evidence, _consequences(entry, view))

    async def _any_visit(self, run_id: str, node: str, visit: int, index: int | None) -> ApprovalView:
        """An approval as it is, or as it was left when the node was visited again."""
        try:
            return await self.show(run_id, node, visit=visit, index=index)
        except Rejected as refusal:
            if refusal.code != "approval_closed":
                raise
        entry = await self._context.entry(run_id)
        approval = await self._from_log(run_id, node, visit, at_index(index))
        if approval is None:
            raise rejected("approval_unknown", f"visit {visit} of node {node} asked for no decision") from None
        return ApprovalView(run_id, entry.state.workflow, node, visit, at_index(index), approval)

    async def _evidence(self, entry: CachedRun, node: str, index: int) -> dict[str, Any]:
        """What the node sees: the inputs of the run, the outputs of its parents and of the nodes that it reads."""
        workflow, state, known = entry.flow.workflow, entry.state, entry.flow.workflow.by_id[node]
        payloads = upstream(workflow, state, known)
        for name in known.reads:
            if isinstance(seen := visible_output(workflow, state, known, name), VisibleOutput):
                payloads[name] = seen.payload
        items = state.peek(node).map
        evidence: dict[str, Any] = {
            "inputs": _value_or_blob(state.inputs),
            "nodes": {name: _value_or_blob(payload) for name, payload in payloads.items()},
        }
        if items is not None and index >= 0:
            listed = decode_value(await self._context.text(items.items))
            evidence["item"] = listed[index] if index < len(listed) else None
        return evidence

    async def history(self, run_id: str, node: str, *, visit: int, index: int | None = None) -> list[dict[str, Any]]:
        """What happened to an approval, oldest first: requested, voted, delegated, escalated, decided or expired."""
        await self._any_visit(run_id, node, visit, index)
        place, found = (node, visit, at_index(index)), list[dict[str, Any]]()
        for seq, event in enumerate(await self._context.log(run_id), 1):
            if isinstance(event, ApprovalEvent) and (event.node, event.visit, event.index) == place:
                told = {
                    name: getattr(event, name, None) for name in ("by", "to", "on_behalf_of", "decision", "comments")
                }
                kind = str(event.__struct_config__.tag)
                given = {name: plain(value) for name, value in told.items() if value}
                found.append({"seq": seq, "event": kind, "at_ms": event.at_ms, **given})
        return found

    async def check_person(
        self, run_id: str, node: str, *, actor: str, roles: Sequence[str], visit: int, index: int | None = None
    ) -> ApprovalView:
        """A pending approval that a person may decide now. Raises Rejected as a decision would."""
        _check_person(actor, roles, "")
        view = await self.show(run_id, node, visit=visit, index=index)
        decision = Decide(
            node=node, visit=view.visit, index=view.index, verb="approve", actor=actor, roles=tuple(roles)
        )
        await self._context.rehearse(run_id, decision)
        if view.status != "pending":
            hint = "see `GET /approvals/{id}`"
            raise rejected("approval_closed", f"the approval is {view.status}", hint=hint)
        return view

    async def decider(
        self, view: ApprovalView, *, person: str, roles: Sequence[str], expires_ms: int | None = None
    ) -> Decider:
        """Whether a person may decide an approval now."""
        place: dict[str, Any] = {"visit": view.visit, "index": None if view.index < 0 else view.index}
        refusal: Problem | None = None
        try:
            await self.check_person(view.run_id, view.node, actor=person, roles=roles, **place)
        except Rejected as refused:
            refusal = refused.problems[0]
        return Decider(person=as_user(person), refusal=refusal, expires_ms=expires_ms)

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
        """Approve, reject or request changes. Repeating the same decision returns the first result.

        A repetition with another form is refused, as a contrary decision is.

        `roles` are those that `actor` has now. Data for the form is checked against its schema.
        """
        check_verb(verb)
        _check_person(actor, roles, comments)
        shown = await self.show(run_id, node, visit=visit, index=index)
        words: dict[str, Any] = {"id": command_id, "actor": actor or None, "roles": tuple(roles), "comments": comments}
        decision = Decide(node=node, visit=shown.visit, index=shown.index, verb=verb, **words)
        # An actor who may not decide is refused before the form is looked at.
        await self._context.rehearse(run_id, decision)
        is_pending = shown.status == "pending"
        with suppress(*ConversionError):  # What is not JSON is refused with the fields of the form.
            form = to_json(form)
        if is_pending or form is not None:
            form = _completed(shown.approval, verb, form)
        filled = _checked_form(shown.approval, form) if is_pending else None if form is None else _encoded(form)
        if is_pending and filled is not None:
            await check_described(self._context.tenant, filled, self._context.blobs, path="/form")
        await self._context.command(run_id, msgspec.structs.replace(decision, form=filled))
        return await self._after(run_id, node, shown)

    async def settle(self, run_id: str, node: str, verb: Verb, *, visit: int, **given: Any) -> Decided:
        """Decide an approval by its visit, and say what that leads to.

        Also the repetition of a decision is answered after which the node was visited again; nothing changes then.
        """
        index: int | None = given.get("index")
        try:
            view = await self.decide(run_id, node, verb, visit=visit, **given)
        except Rejected as refusal:
            if refusal.code != "approval_closed":
                raise
            view = await self._any_visit(run_id, node, visit, index)
            if view.status == "expired":
                hint = ask_again((await self._context.entry(run_id)).state)
                raise rejected("approval_expired", "the time to decide has passed", hint=hint) from None
            if view.approval.decision not in ("", verb):
                message = f"it was already decided: {view.approval.decision} by {view.approval.decided_by}"
                raise rejected("decision_conflict", message, hint="see its history") from None
            if not view.approval.decision:
                raise
        decision = view.approval.decision or None
        leads_to = _consequences(await self._context.entry(run_id), view).get(decision or "", Consequence())
        return Decided(
            approval_id=view.approval_id, status=view.status, decision=decision, next_nodes=leads_to.next_nodes
        )

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
        """Delegate a decision to another person."""
        _check_person(actor, roles, comments)
        check_words(to=to)
        shown = await self.show(run_id, node, visit=visit, index=index)
        words: dict[str, Any] = {"id": command_id, "actor": actor or None, "roles": tuple(roles), "comments": comments}
        delegate = Delegate(node=node, visit=shown.visit, index=shown.index, to=to, **words)
        await self._context.command(run_id, delegate)
        return await self._after(run_id, node, shown)

    async def _after(self, run_id: str, node: str, shown: ApprovalView) -> ApprovalView:
        """The approval as the decision has left it; a loop may have continued with the next visit since."""
        try:
            return await self.show(run_id, node, visit=shown.visit, index=None if shown.index < 0 else shown.index)
        except Rejected:
            approval = await self._from_log(run_id, node, shown.visit, shown.index)
            return ApprovalView(run_id, shown.workflow, node, shown.visit, shown.index, approval or shown.approval)

    async def _from_log(self, run_id: str, node: str, visit: int, index: int) -> Approval | None:
        approval: Approval | None = None
        for event in await self._context.log(run_id):
            if isinstance(event, ApprovalEvent) and (event.node, event.visit, event.index) == (node, visit, index):
                approval = folded(approval, event)
        return approval


def _consequences(entry: CachedRun, view: ApprovalView) -> dict[str, Consequence]:
    """What each decision leads to in the graph that the run has now; nothing if a patch took the node away."""
    node = entry.flow.workflow.by_id.get(view.node)
    if node is None:
        return {}
    cell = entry.state.peek(view.node)
    act = peek_at(cell, view.index) if cell.visit == view.visit else None
    # Only `human` nodes leave it to the graph; the code of other types is called with the decision, if it wants to be.
    asks = not node.type.startswith(HUMAN)
    return consequences(node, view.index, recall=asks if act is None or act.wait is None else act.wait.recall)


def _value_or_blob(payload: Payload) -> Any:
    """A value as JSON; a large one as the description of its blob."""
    if isinstance(payload, BlobRef):
        return {"$blob": payload.digest, "size": payload.size, "media_type": payload.media_type}
    return decode_value(payload)


def _check_person(actor: str, roles: Sequence[str], comments: str) -> None:
    check_words(actor=actor, comments=comments)
    check_roles(roles)


def _completed(approval: Approval, verb: Verb, form: Any) -> Any:
    """A form with the defaults of its schema; who does not approve may give none."""
    if approval.form is None or (form is None and verb != "approve"):
        return form
    try:
        return with_defaults(form, _schema_of(approval))
    except Rejected:
        hint = "shorten the defaults of the form, or the lists"
        raise rejected("form_too_large", "the defaults add too much to the form", path="/form", hint=hint) from None


def _checked_form(approval: Approval, form: Any) -> bytes | None:
    """The checked form of a decision; to approve, it has to be complete."""
    if form is None:
        return None
    if approval.form is None:
        hint = "decide without a form; use the comment instead"
        raise rejected("form_invalid", "this approval has no form", path="/form", hint=hint)
    schema = _schema_of(approval)
    problems = compile_schema(schema).problems(form, "/form", code="form_invalid")
    if problems:
        hint = f"the form has: {_fields_of(schema)}"
        raise Rejected([each if each.hint else msgspec.structs.replace(each, hint=hint) for each in problems])
    return _encoded(form)


def _schema_of(approval: Approval) -> Any:
    assert isinstance(approval.form, bytes), "forms are short"
    return decode_value(approval.form)


def _encoded(filled: Any) -> bytes:
    try:
        text = encode_value(filled)
    except NotJson as error:
        raise rejected("form_invalid", str(error), path="/form", hint="use plain JSON values") from None
    if len(text) > INLINE_BYTES_MAX:
        hint = "store large values elsewhere and pass a reference"
        raise rejected("form_too_large", f"a form holds at most {INLINE_BYTES_MAX} bytes", path="/form", hint=hint)
    return text


def _fields_of(schema: Any) -> str:
    """The fields of a form with their choices."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    told = []
    for name, field in fields.items() if isinstance(fields, dict) else ():
        options = field.get("enum") if isinstance(field, dict) else None
        told.append(f"{name} ({choices(options)})" if isinstance(options, list) else name)
    return shorten(", ".join(told), 500) or "no named fields"
