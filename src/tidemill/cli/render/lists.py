"""Lists of what a store holds, and its approvals, dead letters, workers and blobs one by one.

`LISTS` says for each kind which columns it has; `print_page` prints any of them, with the way to the next page.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.cli.options import acting, is_server
from tidemill.cli.render.board import duration
from tidemill.cli.render.events import where
from tidemill.cli.render.runs import pretty, reference, say
from tidemill.cli.render.tables import (
    Column,
    age,
    dotted,
    error_words,
    iso,
    label_words,
    moment,
    names,
    print_facts,
    print_hint,
    print_next,
    print_rows,
    print_title,
    print_traceback,
    size_of,
)
from tidemill.cli.render.terminal import counted, one_line
from tidemill.cli.session import ALONE, StoreSession, item_or_none
from tidemill.engine.index_rows import ApprovalRow, DeadLetterRow, RunRow
from tidemill.engine.services.concurrency import ConcurrencyLimit
from tidemill.engine.services.workers import WorkerView
from tidemill.engine.versions import TagMoved, Version
from tidemill.engine.views import ApprovalView, plain
from tidemill.engine.worker.registry import Held
from tidemill.errors import offered, rejected
from tidemill.kernel.activation import Approval
from tidemill.kernel.decide.approvals import as_user, delegated_to, entitled, is_entitled, who_words
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.explain.ended import IN_THE_DOCUMENT, remedy
from tidemill.kernel.explain.live import form_words
from tidemill.triggers.times import duration_text

if TYPE_CHECKING:
    from tidemill.client import Tidemill

# Pages of lists

DECISIONS = {"approve": "approved", "reject": "rejected", "changes": "changes requested"}
_OF_VISITS = frozenset({"approvals", "dead_letters"})
"""Lists whose rows may be about an item of a map."""


class Page(NamedTuple):
    """A page of a list, and where the next one begins."""

    kind: str
    rows: Sequence[Any]
    cursor: str | None
    children: Mapping[str, int] = {}
    """How many child runs below each run are left out."""

    def to_dict(self) -> dict[str, Any]:
        rows = plain(self.rows)
        if self.kind in _OF_VISITS:
            rows = [{**row, "index": item_or_none(row["index"])} for row in rows]
        return {self.kind: rows, "next": self.cursor}


class ListSpec(NamedTuple):
    columns: tuple[Column, ...]
    nothing: str
    """What is printed where there are no rows."""
    note: Callable[[Any], str] | None = None


def list_page(session: StoreSession, kind: str, fetch: Callable[[Tidemill], tuple[Sequence[Any], str | None]]) -> int:
    return session.ask_and_print(lambda mill: Page(kind, *fetch(mill)), lambda page: print_page(session, page))


def print_page(session: StoreSession, page: Page) -> None:
    """Print a page, or one line that says that there is nothing."""
    spec = LISTS[page.kind]
    if not page.rows:
        print(spec.nothing)
        print_left_out(page.children.get(ELSEWHERE, 0))
        if session.is_private_store:
            print_hint(ALONE)
        return
    note = spec.note
    if page.children:
        note = partial(_note_with_children, page.children)
    print_rows(spec.columns, page.rows, note)
    print_left_out(page.children.get(ELSEWHERE, 0))
    print_next(page.cursor)


def print_left_out(count: int) -> None:
    if count:
        print_hint(f"{counted(count, 'child run')} left out; --children includes them")


Fetch = Callable[["Tidemill", str | None, int], tuple[Sequence[RunRow], str | None]]
"""Fetches a page of runs after a cursor, with a limit."""
FOLDED_PAGES_MAX = 200
ELSEWHERE = ""
"""Children whose parent is not on the page."""


def list_runs(session: StoreSession, fetch: Fetch, after: str | None, limit: int, *, children: bool) -> int:
    """List runs; without `children` those are counted beside the run that they belong to."""

    def folded(mill: Tidemill) -> Page:
        rows, left_out, cursor = list[RunRow](), list[RunRow](), after
        for _ in range(FOLDED_PAGES_MAX):
            found, cursor = fetch(mill, cursor, limit - len(rows))
            for row in found:
                (left_out if row.parent else rows).append(row)
            if cursor is None or len(rows) >= limit:
                break
        below = {row.run_id: sum(each.run_id.startswith(f"{row.run_id}.") for each in left_out) for row in rows}
        below[ELSEWHERE] = len(left_out) - sum(below.values())
        return Page("runs", rows, cursor, {run_id: count for run_id, count in below.items() if count})

    if children:
        return list_page(session, "runs", lambda mill: fetch(mill, after, limit))
    return session.ask_and_print(folded, lambda page: print_page(session, page))


def _note_with_children(children: Mapping[str, int], row: RunRow) -> str:
    count = children.get(row.run_id, 0)
    return dotted(_run_note(row), counted(count, "child run") if count else "")


ERROR_COLUMNS_MAX = 120


def _run_note(row: RunRow) -> str:
    where = f"at {row.failed_node}" if row.failed_node else "as a whole"
    why = f": {one_line(row.error_message, ERROR_COLUMNS_MAX)}" if row.error_message else ""
    stuck = f"stuck [{row.stuck_reason}]" if row.stuck_reason else "stuck"
    return dotted(
        f"failed {where}{why} [{row.error_code}]" if row.status == "FAILED" else "",
        f"suspect [{row.suspect}]" if row.suspect else "",
        stuck if row.stuck else "",
        f"waits for {names(row.waiting_for)}" if row.waiting_for else "",
        f"rollback {row.rollback}" if row.rollback != "none" else "",
        f"{row.tolerated} tolerated" if row.tolerated else "",
        label_words(row.labels),
    )


def _took(row: RunRow) -> str:
    """How long an ended run took."""
    return "" if row.ended_ms is None else duration(row.ended_ms - row.created_ms)


def _place(row: ApprovalRow | DeadLetterRow) -> str:
    """A node with its visit and item, where they say anything."""
    visit = f" visit {row.visit}" if row.visit > 1 else ""
    return row.node + visit + (f" item {row.index}" if row.index != NOT_AN_ITEM else "")


def _approval_note(row: ApprovalRow) -> str:
    said = [row.title]
    if row.status == "pending":
        said.append(f"asks {names([*row.approvers, *(f'{by} → {to}' for by, to in row.delegated)]) or 'anyone'}")
        if row.quorum > 1:
            said.append(f"{len(row.votes)} of {row.quorum} agreed")
        if row.expires_ms is not None:
            # Those whom it was escalated to are the last ones that are asked.
            said.append(f"{'expire' if row.escalated else row.on_timeout}s {age(row.expires_ms)}")
    elif row.decided_by:
        said.append(f"by {row.decided_by} {age(row.decided_ms)}")
    return " · ".join(said)


def _dead_letter_note(row: DeadLetterRow) -> str:
    closed = f"{row.status} by {row.closed_by}" if row.closed_by else row.status
    tries = f"{row.attempts} attempt{'s' if row.attempts != 1 else ''}"
    return dotted("" if row.status == "open" else closed, row.workflow, tries, row.message)


LISTS = {
    "runs": ListSpec(
        (
            Column("RUN", "run_id"),
            Column("STATUS", "status", status=True),
            Column("WORKFLOW", lambda row: reference(row.workflow, row.version, row.revision), gives=True),
            Column("STARTED", lambda row: age(row.created_ms)),
            Column("TOOK", _took, number=True),
        ),
        "no run matches",
        _run_note,
    ),
    "approvals": ListSpec(
        (
            Column("RUN", "run_id"),
            Column("NODE", _place, gives=True),
            Column("STATUS", lambda row: DECISIONS.get(row.decision, row.status), status=True),
            Column("ASKED", lambda row: age(row.requested_ms)),
        ),
        "no approval matches",
        _approval_note,
    ),
    "dead_letters": ListSpec(
        (
            Column("RUN", "run_id"),
            Column("NODE", _place, gives=True),
            Column("CODE", "code", gives=True),
            Column("FAILED", lambda row: age(row.at_ms)),
        ),
        "no dead letter matches",
        _dead_letter_note,
    ),
    "workflows": ListSpec(
        (
            Column("WORKFLOW", "name", gives=True),
            Column("VERSIONS", "versions", number=True),
            Column("CHANGED", lambda row: age(row.updated_ms)),
            Column(
                "TAGS", lambda row: names(f"{tag}→{version}" for tag, version in sorted(row.tags.items())), gives=True
            ),
        ),
        "nothing is published",
        lambda row: str(row.description),
    ),
    "schedules": ListSpec(
        (
            Column("SCHEDULE", "name", gives=True),
            Column("STATUS", lambda row: "failing" if row.last_error else row.status, status=True),
            Column("WORKFLOW", "workflow", gives=True),
            Column(
                "WHEN", lambda row: f"every {duration_text(row.every_ms)}" if row.every_ms else row.cron, gives=True
            ),
            Column("NEXT", lambda row: age(row.next_ms)),
            Column("LAST RUN", lambda row: age(row.last_started_ms)),
        ),
        "no schedules",
        lambda row: row.description if row.last_error is None else str(row.last_error),
    ),
    "blobs": ListSpec(
        (
            Column("DIGEST", "digest"),
            Column("SIZE", lambda row: size_of(row.size), number=True),
            Column("STATE", lambda row: "kept" if row.kept else row.state),
            Column("SINCE", lambda row: age(row.since_ms)),
            Column(
                "USED BY", lambda row: row.used_by[0] + " …" * (len(row.used_by) > 1) if row.used_by else "", gives=True
            ),
        ),
        "no blobs",
    ),
    "keys": ListSpec(
        (
            Column("ID", "id"),
            Column("LABEL", "label", gives=True),
            Column("STATE", "state"),
            Column("ROLES", lambda row: names(row.roles), gives=True),
            Column("EXPIRES", lambda row: "never" if row.expires_ms is None else age(row.expires_ms)),
        ),
        "no keys",
    ),
    "tenants": ListSpec(
        (
            Column("TENANT", "name"),
            Column("STATE", "state"),
            Column("CREATED", lambda row: age(row.created_ms)),
            Column("BY", "created_by", gives=True),
        ),
        "no tenant was created",
    ),
    "audit": ListSpec(
        (
            Column("ENTRY", "seq", number=True),
            Column("WHEN", lambda row: age(row.at_ms)),
            Column("ACTOR", "actor", gives=True),
            Column("ACTION", "action"),
            Column("SUBJECT", "subject", gives=True),
        ),
        "no change matches",
        lambda row: str(row.detail),
    ),
}

# Versions and tags

DIGEST_SHOWN = 19
"""`sha256:` and twelve digits: enough to distinguish two blobs."""


def print_versions(versions: Sequence[Version], tags: dict[str, int]) -> None:
    """Print the versions of a workflow, newest first."""
    columns = (
        Column("VERSION", lambda row: f"{row.name}@{row.version}"),
        Column("PUBLISHED", lambda row: age(row.at_ms)),
        Column("BY", "author", gives=True),
        Column("DIGEST", lambda row: row.digest[:DIGEST_SHOWN]),
        Column(
            "TAGS", lambda row: names(tag for tag, number in sorted(tags.items()) if number == row.version), gives=True
        ),
    )

    def note(version: Version) -> str:
        return dotted(f"patch of @{version.parent}" if version.patch is not None else "", version.message)

    print_rows(columns, reversed(versions), note)


def shares(version: int, weights: Mapping[int, int]) -> str:
    """The version that a tag points to, or those that share it: `@3`, `@2 90 % @3 10 %`."""
    return " ".join(f"@{number} {percent} %" for number, percent in sorted(weights.items())) or f"@{version}"


def print_tags(tags: dict[str, int], moves: Sequence[TagMoved]) -> None:
    """Print the version that each tag points to, and the moves that led there."""
    weights = {move.tag: dict(move.weights) for move in moves}
    columns = (
        Column("TAG", itemgetter(0)),
        Column("VERSION", lambda tag: shares(tag[1], weights.get(tag[0], {})), number=True),
    )
    print_rows(columns, sorted(tags.items()))
    if not moves:
        return
    print()
    move_columns = (
        Column("WHEN", lambda move: iso(move.at_ms)),
        Column("TAG", "tag"),
        Column("FROM", lambda move: f"@{move.was}" if move.was else "—"),
        Column("TO", lambda move: shares(move.version, dict(move.weights)) if move.version else "—"),
        Column("BY", "actor", gives=True),
    )
    print_rows(move_columns, reversed(moves), lambda move: str(move.message))


# Approvals

ASKED_COLUMNS_MAX = 500


def print_approval(session: StoreSession, view: ApprovalView) -> None:
    approval = view.to_dict()
    print_title(str(approval.get("title") or approval["node"]), f"run {approval['run_id']}")
    print_facts(_approval_facts(approval))
    if approval["status"] == "pending":
        print()
        print_hint(decide_command(session, view, acting(None)))


def is_barred(approval: Approval, person: str) -> bool:
    """Whether a person may not decide in any role: four eyes, or they have delegated the decision."""
    return has_submitted(approval, person) or bool(delegated_to(approval, person))


def has_submitted(approval: Approval, person: str) -> bool:
    """Whether four eyes are required, and this person submitted the run."""
    return approval.four_eyes and bool(approval.requester) and as_user(approval.requester) == person


def may_decide(view: ApprovalView, actor: str, roles: tuple[str, ...]) -> bool:
    """Whether it makes sense to ask this person; the engine decides whether the answer counts."""
    person, approval = as_user(actor), view.approval
    return not is_barred(approval, person) and is_entitled(approval, person, roles)


def decide_command(session: StoreSession, view: ApprovalView, actor: str, roles: tuple[str, ...] = ()) -> str:
    """The command that approves, with placeholders for the fields that its form requires.

    It names one of those who are asked where this person is not. A server takes the person from the key.
    """
    approval, person = view.to_dict(), as_user(actor)
    barred = person if is_barred(view.approval, person) else ""
    named = not is_server(session.store) and not may_decide(view, actor, roles)
    who = who_words(entitled(view.approval), barred) if named else ()
    item = ("--item", str(approval["index"])) if _is_item(approval) else ()
    place = (approval["run_id"], approval["node"])
    return session.command("approvals", "decide", *place, "approve", *item, *form_words(approval["form"]), *who)


def _approval_facts(approval: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "status", approval["status"]
    yield "node", approval["node"] + (f", item {approval['index']}" if _is_item(approval) else "")
    yield "visit", approval.get("visit") if (approval.get("visit") or 1) > 1 else None
    yield "asked", moment(approval.get("requested_ms"))
    yield "by", approval.get("requester")
    yield "approvers", asked_of(approval)
    if approval.get("escalated"):
        yield "escalated", dotted(moment(approval.get("escalated_ms")), f"to {names(approval['escalate_to'])}")
    if approval["status"] == "pending" and (votes := approval["votes"]):
        said = (" for ".join(filter(None, (vote["by"], vote.get("on_behalf_of")))) for vote in votes)
        lines = map(dotted, said, (vote.get("comments") or "" for vote in votes))
        yield "votes", "\n".join((f"{len(votes)} of {approval.get('quorum', 1)} agree", *lines))
    yield "delegated", names(f"{each['by']} → {each['to']}" for each in approval["delegated"])
    if approval["status"] == "pending" and approval.get("expires_ms") is not None:
        then = "fail" if approval.get("escalated") else approval.get("on_timeout", "fail")
        then = f"escalate to {names(approval['escalate_to'])}" if then == "escalate" else then
        yield "expires", f"{moment(approval['expires_ms'])}, then: {then}"
    yield "decision", DECISIONS.get(approval["decision"])
    if approval.get("decided_by"):
        yield "decided", f"by {approval['decided_by']} {moment(approval.get('decided_ms'))}".rstrip()
    yield "comment", approval.get("comments")
    yield "link", approval.get("url")
    yield "about", approval.get("description")
    if approval.get("form") is not None:
        yield "form", pretty(approval["form"])


def _is_item(approval: Mapping[str, Any]) -> bool:
    return approval.get("index", NOT_AN_ITEM) not in (None, NOT_AN_ITEM)


def asked_of(approval: Mapping[str, Any]) -> str:
    """Who is asked, and how many of them have to agree."""
    asked = names(approval.get("approvers") or ("anyone",), ASKED_COLUMNS_MAX)
    quorum = approval.get("quorum", 1)
    agree = f"; {quorum} must agree" if quorum > 1 else ""
    return asked + agree + ("; not the person who submitted or patched the run" if approval.get("four_eyes") else "")


def print_decision(approval: Mapping[str, Any]) -> None:
    place = approval["node"]
    if approval["status"] == "decided":
        say(f"{place}: {DECISIONS.get(approval['decision'], approval['decision'])} by {approval['decided_by']}")
        return
    agreed = len(approval.get("votes") or ())
    say(f"{place}: your vote counts, {agreed} of {approval.get('quorum', 1)} agree so far")


# Workers

TYPES_COLUMNS_MAX = 60


class WorkerDetails(NamedTuple):
    worker: WorkerView

    def to_dict(self) -> dict[str, Any]:
        shown: dict[str, Any] = plain(self.worker)
        shown["held"] = [{**job, "index": item_or_none(job["index"])} for job in shown["held"]]
        return shown


class WorkerList:
    """Workers that are alive and, on request, those that died within the last hour."""

    def __init__(self, found: Sequence[WorkerView], *, every: bool) -> None:
        self.shown = [worker for worker in found if every or worker.state != "dead"]
        self.dead_left_out = len(found) - len(self.shown)

    def to_dict(self) -> dict[str, Any]:
        return {"workers": [WorkerDetails(worker).to_dict() for worker in self.shown]}


def print_workers(session: StoreSession, workers: WorkerList) -> None:
    if workers.shown:
        print_rows(_WORKER_COLUMNS, workers.shown, lambda each: f"pid {each.pid} on {each.host} · {_types(each)}")
    else:
        print("no worker is running")
        print_hint(ALONE if session.is_private_store else session.command("worker"))
    if workers.dead_left_out:
        print_hint(f"{workers.dead_left_out} more died within the last hour; --all lists them")


_WORKER_COLUMNS = (
    Column("WORKER", "name", gives=True),
    Column("STATE", "state", status=True),
    Column("HOLDS", "holding", number=True),
    Column("QUEUES", lambda worker: names(worker.queues) or "all", gives=True),
    Column("SINCE", lambda worker: age(worker.started_ms)),
    Column("LAST BEAT", lambda worker: age(worker.beat_ms)),
)


def print_limits(limits: Sequence[ConcurrencyLimit]) -> None:
    if limits:
        print_rows((Column("LIMIT", "name", gives=True), Column("NODES AT A TIME", "limit", number=True)), limits)
    else:
        print("nothing is limited")
        print_hint("tidemill concurrency set queue:NAME 4")


def _types(worker: WorkerView) -> str:
    return names((type_.removesuffix("@1") for type_ in worker.types), TYPES_COLUMNS_MAX)


def find_worker(found: Sequence[WorkerView], name: str) -> WorkerDetails:
    """The worker with this name, with this part of a name, or with this pid. Raises Rejected."""
    exact = [worker for worker in found if worker.name == name]
    near = [worker for worker in found if name in (*worker.name.split("/"), str(worker.pid))]
    for some in (exact, near):
        if len(some) == 1:
            return WorkerDetails(some[0])
    raise rejected(
        "worker_unknown",
        f"{len(near)} workers match {name}" if near else f"no worker is called {name}",
        hint=offered(name, (worker.name for worker in near or found)),
    )


def print_worker(shown: WorkerDetails) -> None:
    worker = shown.worker
    print_title(worker.name, f"pid {worker.pid} on {worker.host}")
    print_facts(
        (
            ("state", worker.state),
            ("started", moment(worker.started_ms)),
            ("last beat", moment(worker.beat_ms)),
            ("version", worker.version),
            ("queues", names(worker.queues) or "all"),
            ("types", ", ".join(worker.types)),
            ("lacks", "; ".join(worker.lacks)),
            ("blocked", _blocked(worker)),
            ("holds", f"{worker.holding} of {worker.concurrency}"),
            ("finished", f"{worker.finished:,}"),
        )
    )
    if worker.held:
        print()
        columns = (
            Column("RUN", "run_id"),
            Column("JOB", _job, gives=True),
            Column("SINCE", lambda job: age(job.since_ms)),
        )
        print_rows(columns, worker.held)
    if (more := worker.holding - len(worker.held)) > 0:
        print_hint(f"and {counted(more, 'job')} more")


def _blocked(worker: WorkerView) -> str:
    """The last time that something blocked its loop."""
    found = worker.blocked
    if found is None:
        return ""
    place = where({"node": found.node, "visit": found.visit, "index": found.index}) if found.node else ""
    by = " of ".join(filter(None, (place, found.run_id)))
    return f"{duration(found.ms)}{by and f' by {by}'}, {age(found.at_ms)}"


def _job(job: Held) -> str:
    place = where({"node": job.node, "visit": job.visit, "index": job.index})
    return place if job.kind == "run" else f"{job.kind} {place}".strip()


# Dead letters

INPUT_LINES_MAX = 40


def print_dead_letter(session: StoreSession, letter: Mapping[str, Any], *, final: bool) -> None:
    """Print a letter and what can be done with it; a run that is `final` cannot be retried."""
    item = f" item {letter['index']}" if letter["index"] is not None else ""
    print_title(f"{letter['workflow']} · {letter['node']}{item}", f"run {letter['run_id']}")
    code, is_open = letter["error"]["code"], letter["status"] == "open"
    print_facts([*_dead_letter_facts(letter), ("unblock", remedy(code)[0] if is_open and not final else "")])
    print_traceback(letter["error"])
    if is_open:
        which = ("--item", str(letter["index"])) if item else ()
        print()
        if final:
            print_hint("the run cannot be retried: fork it at a node before what was undone, or discard the letter")
            print_hint(session.command("runs", "fork", letter["run_id"], "--node", "NODE"))
        elif code in IN_THE_DOCUMENT:
            print_hint(session.command("runs", "patch", letter["run_id"], "FILE", "--retry"))
        else:
            print_hint(session.command("dlq", "retry", "--run", letter["run_id"]))
        print_hint(session.command("dlq", "discard", letter["run_id"], letter["node"], *which))


def _dead_letter_facts(letter: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    error = letter["error"]
    yield "status", letter["status"]
    if letter["closed_ms"] is not None:
        by = f"by {letter['closed_by']} " if letter["closed_by"] else ""
        yield "closed", f"{by}{moment(letter['closed_ms'])}"
    yield "reason", letter["reason"]
    yield "failed", moment(letter["at_ms"])
    yield "visit", letter["visit"] if letter["visit"] > 1 else None
    yield "attempts", letter["attempts"]
    yield "error", error_words(error)
    yield "hint", error.get("hint")
    yield "cause", "\n".join(error.get("causes", ()))
    if letter["input"] is not None:
        lines = pretty(letter["input"]).split("\n")
        more = f"\n… {len(lines) - INPUT_LINES_MAX} more lines; --json has them" * (len(lines) > INPUT_LINES_MAX)
        yield "input", "\n".join(lines[:INPUT_LINES_MAX]) + more


# Blobs
