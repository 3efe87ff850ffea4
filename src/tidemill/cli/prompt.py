"""Asking the person at the terminal, while the run that waits for them goes on in this process.

A question is given up when it is answered elsewhere or its time has passed. What is typed is read by lines, without
blocking, so that an interrupt and such news are noticed at once.
"""

from __future__ import annotations

import os
import select
import sys
from collections.abc import Callable, Mapping
from typing import Any

from tidemill.cli.ballots import asked_of, tell_decision
from tidemill.cli.paint import BOLD, DIM, MAGENTA, Paint
from tidemill.cli.problems import print_refusal
from tidemill.cli.sources import parse_value
from tidemill.cli.tables import print_facts
from tidemill.cli.terminal import clean, one_line
from tidemill.engine.views import ApprovalView
from tidemill.errors import Rejected
from tidemill.front import Tidemill
from tidemill.kernel.commands import Verb
from tidemill.kernel.deciding import as_role, as_user

POLL_SECONDS = 0.5
LINE_BYTES_MAX = 65_536
ABOUT_LINES_MAX = 20

VERBS: dict[str, Verb] = {"a": "approve", "r": "reject", "c": "changes"}
LATER = ("l", "later")


class Over(Exception):
    """Nobody needs this answer any more, or nobody will give one."""


class Typed:
    """Lines from the terminal. Between them it is asked whether they are still of interest."""

    def __init__(self, wanted: Callable[[], bool]) -> None:
        self._wanted = wanted
        self._kept = b""

    def line(self, question: str) -> str:
        """Ask, and wait for a line. Raises Over when it is not wanted any more, or will not come."""
        sys.stdout.write(question)
        sys.stdout.flush()
        while b"\n" not in self._kept:
            if select.select([sys.stdin], [], [], POLL_SECONDS)[0]:
                self._read()
            elif not self._wanted():
                print()
                raise Over
        first, _, self._kept = self._kept.partition(b"\n")
        return first.decode(errors="replace").strip()

    def _read(self) -> None:
        some = os.read(sys.stdin.fileno(), LINE_BYTES_MAX)
        if not some or len(self._kept) > LINE_BYTES_MAX:
            print()
            raise Over
        self._kept += some


def can_ask() -> bool:
    """Whether somebody sits at this terminal who can be asked."""
    return sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()


def may_decide(view: ApprovalView, actor: str, roles: tuple[str, ...]) -> bool:
    """Whether it makes sense to ask this person; whether their answer counts is decided by the engine."""
    person, approval = as_user(actor), view.approval
    if approval.four_eyes and approval.requester and as_user(approval.requester) == person:
        return False
    asked = {*approval.approvers, *(to for _, to in approval.delegated)}
    return not approval.approvers or person in asked or any(as_role(role) in asked for role in roles)


def ask_person(mill: Tidemill, view: ApprovalView, actor: str, roles: tuple[str, ...]) -> None:
    """Ask until there is an answer that is accepted, or the question has settled itself."""
    place: dict[str, Any] = {"visit": view.visit, "index": None if view.index < 0 else view.index}

    def pending() -> bool:
        return mill.approval(view.run_id, view.node, **place).status == "pending"

    typed, shown = Typed(lambda: _still(pending)), view.to_dict()
    _tell_question(shown)
    try:
        while True:
            verb = _verb(typed)
            form = _form(typed, shown["form"]) if shown["form"] is not None and verb == "approve" else None
            comments = typed.line("  comment (may be empty): ")
            try:
                answer = mill.decide(
                    view.run_id, view.node, verb, actor=actor, roles=roles, comments=comments, form=form, **place
                )
            except Rejected as refusal:
                print_refusal(refusal.problems)
                if not _still(pending):
                    return
            else:
                tell_decision(answer.to_dict())
                return
    except Over:
        still = _still(pending)
        print("  left for later; the run goes on waiting" if still else "  this is settled by now")


def _still(pending: Callable[[], bool]) -> bool:
    """Whether a question stands; of one that nobody knows any more it does not."""
    try:
        return pending()
    except Rejected:
        return False


def _tell_question(shown: Mapping[str, Any]) -> None:
    paint = Paint()
    print(f"\n{paint('◷', MAGENTA)} {paint(clean(shown['title']), BOLD)}  {paint(shown['node'], DIM)}")
    lines = str(shown["description"]).split("\n")
    about = "\n".join(lines[:ABOUT_LINES_MAX]) + ("\n…" if len(lines) > ABOUT_LINES_MAX else "")
    print_facts((("about", about), ("asks", asked_of(shown)), ("look at", shown["url"])), indent=2)


def _verb(typed: Typed) -> Verb:
    while True:
        said = typed.line("  [a]pprove, [r]eject, request [c]hanges, or [l]ater? ").lower()
        if said in LATER:
            raise Over
        for letter, verb in VERBS.items():
            if said in (letter, verb):
                return verb
        print("  please answer a, r, c or l")


def _form(typed: Typed, schema: Any) -> Any:
    """What is filled in, field by field; nothing is checked here."""
    fields = schema.get("properties") if isinstance(schema, dict) else None
    if not isinstance(fields, dict) or not fields:
        return _typed_value(typed, "  form (JSON): ")
    required = schema.get("required") or ()
    filled: dict[str, Any] = {}
    for name, field in fields.items():
        value = _typed_value(typed, f"  {_field_words(name, field, name in required)}: ")
        if value is not None:
            filled[name] = value
    return filled


def _field_words(name: str, field: Any, required: bool) -> str:
    kind = field.get("type") if isinstance(field, dict) else None
    about = field.get("title") or field.get("description") if isinstance(field, dict) else None
    said = [str(kind)] if isinstance(kind, str) else []
    if isinstance(field, dict) and isinstance(field.get("enum"), list):
        said = [" | ".join(map(str, field["enum"]))]
    said += [str(about)] if about else []
    said += [] if required else ["may be empty"]
    return one_line(f"{name} ({', '.join(said)})" if said else name, 100)


def _typed_value(typed: Typed, question: str) -> Any:
    """A value as it is given to options; None when nothing is typed."""
    while True:
        text = typed.line(question)
        if not text:
            return None
        try:
            return parse_value("this", text)
        except Rejected as refusal:
            print_refusal(refusal.problems)
