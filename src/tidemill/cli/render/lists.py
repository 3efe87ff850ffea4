"""Lists of runs, approvals, letters, workflows, workers, blobs; one approval, one letter.

Lists in text: runs, approvals, dead letters, workflows, versions. Each says how to get its next page.

Approvals in text: what is asked of whom, who has decided, and how to decide.

Workers in text: a table of those that are there, and one of them with all that it holds.

A dead letter in text: what failed with which input, and what can be done about it.

Blobs in text: one, many, and what a collection did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tidemill.blobs.contract import BlobInfo
from tidemill.cli.render.events import where
from tidemill.cli.render.runs import pretty
from tidemill.cli.render.tables import (
    Column,
    Line,
    age,
    iso,
    moment,
    names,
    print_facts,
    print_hint,
    print_next,
    print_table,
    print_title,
    size_of,
    snippet,
)
from tidemill.cli.render.terminal import counted
from tidemill.cli.session import ALONE, StoreSession, item_or_none, plain
from tidemill.engine.index_rows import ApprovalRow, DeadLetterRow, RunRow
from tidemill.engine.maintenance.blob_gc import GcReport
from tidemill.engine.services.workers import WorkerView
from tidemill.engine.versions import TagMoved, Version, WorkflowRow
from tidemill.engine.worker.registry import Held
from tidemill.errors import offered, rejected
from tidemill.kernel.events import NOT_AN_ITEM

ASKED_COLUMNS_MAX = 500
DECISIONS = {"approve": "approved", "reject": "rejected", "changes": "changes requested"}


def tell_approval(asking: StoreSession, approval: Mapping[str, Any]) -> None:
    """Print an approval, and how to decide it while it is pending."""
    print_title(str(approval.get("title") or approval["node"]), f"run {approval['run_id']}")
    print_facts(_approval_facts(approval))
    if approval["status"] == "pending":
        print()
        print_hint(
            asking.command("approvals", "decide", approval["run_id"], approval["node"], "approve", *_which(approval))
        )


def _approval_facts(approval: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
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
    from tidemill.cli.render.runs import say

    place = approval["node"]
    if approval["status"] == "decided":
        say(f"{place}: {DECISIONS.get(approval['decision'], approval['decision'])} by {approval['decided_by']}")
        return
    agreed = len(approval.get("votes") or ())
    say(f"{place}: your vote counts, {agreed} of {approval.get('quorum', 1)} agree so far")


TYPES_COLUMNS_MAX = 60


class WorkerDetails(NamedTuple):
    """One worker."""

    worker: WorkerView

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        shown: dict[str, Any] = plain(self.worker)
        shown["held"] = [{**job, "index": item_or_none(job["index"])} for job in shown["held"]]
        return shown


class WorkerList:
    """Those that are there, and on request those that died lately."""

    def __init__(self, found: Sequence[WorkerView], *, every: bool) -> None:
        self.shown = [worker for worker in found if every or worker.state != "dead"]
        self.dead_left_out = len(found) - len(self.shown)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"workers": [WorkerDetails(worker).to_dict() for worker in self.shown]}


def tell_crew(asking: StoreSession, crew: WorkerList) -> None:
    """Print workers, those that started last first."""
    if not crew.shown:
        print("no worker is running")
        print_hint(ALONE if asking.is_private_store else asking.command("worker"))
    else:
        heads = (
            Column("WORKER", gives=True),
            Column("STATE", status=True),
            Column("HOLDS", number=True),
            Column("QUEUES", gives=True),
            Column("SINCE"),
            Column("LAST BEAT"),
        )
        print_table(heads, map(_line, crew.shown))
    if crew.dead_left_out:
        print_hint(f"{crew.dead_left_out} more died within the last hour; --all lists them")


def _line(worker: WorkerView) -> Line:
    cells = (
        worker.name,
        worker.state,
        str(worker.holding),
        names(worker.queues) or "all",
        age(worker.started_ms),
        age(worker.beat_ms),
    )
    note = f"pid {worker.pid} on {worker.host} · {names(map(_short, worker.types), TYPES_COLUMNS_MAX)}"
    return Line(cells, note)


def _short(type_: str) -> str:
    return type_.removesuffix("@1")


def member(found: Sequence[WorkerView], name: str) -> WorkerDetails:
    """The worker that is called so, in full or by what tells it from the others. Raises Rejected."""
    exact = [worker for worker in found if worker.name == name]
    near = [worker for worker in found if name in (worker.name.rpartition("/")[2], str(worker.pid))]
    for some in (exact, near):
        if len(some) == 1:
            return WorkerDetails(some[0])
    raise rejected(
        "worker_unknown",
        f"{len(near)} workers go by {name}" if near else f"no worker is called {name}",
        hint=offered(name, (worker.name for worker in near or found)),
    )


def tell_member(shown: WorkerDetails) -> None:
    """Print a worker and what it holds."""
    worker = shown.worker
    print_title(worker.name, f"pid {worker.pid} on {worker.host}")
    print_facts(_worker_facts(worker))
    if worker.held:
        print()
        print_table((Column("RUN"), Column("JOB", gives=True), Column("SINCE")), map(_job, worker.held))
    if (more := worker.holding - len(worker.held)) > 0:
        print_hint(f"and {counted(more, 'job')} more")


def _worker_facts(worker: WorkerView) -> Iterator[tuple[str, Any]]:
    yield "state", worker.state
    yield "started", moment(worker.started_ms)
    yield "last beat", moment(worker.beat_ms)
    yield "version", worker.version
    yield "queues", names(worker.queues) or "all"
    yield "types", ", ".join(worker.types)
    if worker.lacks:
        yield "lacks", "; ".join(worker.lacks)
    yield "holds", f"{worker.holding} of {worker.concurrency}"
    yield "finished", f"{worker.finished:,}"


def _job(job: Held) -> Line:
    place = where({"node": job.node, "visit": job.visit, "index": job.index})
    what = place if job.kind == "run" else f"{job.kind} {place}".strip()
    return Line((job.run_id, what, age(job.since_ms)))


INPUT_LINES_MAX = 40


def tell_letter(asking: StoreSession, letter: Mapping[str, Any]) -> None:
    """Print a dead letter and what can be done about it."""
    item = f" item {letter['index']}" if letter["index"] is not None else ""
    print_title(f"{letter['workflow']} · {letter['node']}{item}", f"run {letter['run_id']}")
    print_facts(_dead_letter_facts(letter))
    if letter["status"] == "open":
        which = ("--item", str(letter["index"])) if item else ()
        print()
        print_hint(asking.command("dlq", "retry", "--run", letter["run_id"]))
        print_hint(asking.command("dlq", "discard", letter["run_id"], letter["node"], *which))


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
    yield "error", f"{error['message']} [{error['code']}]"
    yield "hint", error.get("hint")
    yield "cause", "\n".join(error.get("causes", ()))
    if letter["input"] is not None:
        lines = pretty(letter["input"]).split("\n")
        more = f"\n… {len(lines) - INPUT_LINES_MAX} more lines; --json has them" * (len(lines) > INPUT_LINES_MAX)
        yield "input", "\n".join(lines[:INPUT_LINES_MAX]) + more


DIGEST_SHOWN = 19
"""`sha256:` and twelve digits: enough to tell two apart."""


_ABOUT_VISITS = frozenset({"approvals", "dead_letters"})
"""Lists whose rows may be about an item of a map."""


class Page:
    """A page of a list, and where the next one begins."""

    def __init__(self, kind: str, rows: Sequence[Any], cursor: str | None) -> None:
        self.kind, self.rows, self.cursor = kind, rows, cursor

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        rows = plain(self.rows)
        if self.kind in _ABOUT_VISITS:
            rows = [{**row, "index": item_or_none(row["index"])} for row in rows]
        return {self.kind: rows, "next": self.cursor}


def tell_page(asking: StoreSession, page: Page, heads: Sequence[Column], lines: Iterable[Line], nothing: str) -> None:
    """Print a page, or one line that says that there is nothing."""
    if not page.rows:
        print(nothing)
        if asking.is_private_store:
            print_hint(ALONE)
        return
    print_table(heads, lines)
    print_next(page.cursor)


def tell_runs(asking: StoreSession, page: Page) -> None:
    """Print runs, newest first."""
    heads = (Column("RUN"), Column("STATUS", status=True), Column("WORKFLOW", gives=True), Column("STARTED"))
    lines = (Line((row.run_id, row.status, _reference(row), age(row.created_ms)), _run_note(row)) for row in page.rows)
    tell_page(asking, page, heads, lines, "no run matches")


def _reference(row: RunRow) -> str:
    return f"{row.workflow}@{row.version}" + (f"+{row.revision}" if row.revision else "")


def _run_note(row: RunRow) -> str:
    said = []
    if row.status == "FAILED":
        where = f"at {row.failed_node}" if row.failed_node else "as a whole"
        said.append(f"failed {where} [{row.error_code}]")
    if row.suspect:
        said.append(f"suspect [{row.suspect}]")
    if row.stuck:
        said.append(f"stuck [{row.stuck_reason}]" if row.stuck_reason else "stuck")
    if row.waiting_for:
        said.append(f"waits for {names(row.waiting_for)}")
    if row.rollback != "none":
        said.append(f"rollback {row.rollback}")
    if row.tolerated:
        said.append(f"{row.tolerated} tolerated")
    if row.labels:
        said.append(names(f"{key}={value}" for key, value in sorted(row.labels.items())))
    return " · ".join(said)


def tell_approvals(asking: StoreSession, page: Page) -> None:
    """Print approvals, newest first."""
    heads = (
        Column("RUN"),
        Column("NODE", gives=True),
        Column("STATUS", status=True),
        Column("ASKED"),
    )
    lines = (
        Line(
            (row.run_id, place(row), DECISIONS.get(row.decision, row.status), age(row.requested_ms)),
            _approval_note(row),
        )
        for row in page.rows
    )
    tell_page(asking, page, heads, lines, "no approval matches")


def place(row: ApprovalRow | DeadLetterRow) -> str:
    """A node with its visit and item, as far as they say anything."""
    visit = f" visit {row.visit}" if row.visit > 1 else ""
    return row.node + visit + (f" item {row.index}" if row.index != NOT_AN_ITEM else "")


def _approval_note(row: ApprovalRow) -> str:
    said = [row.title]
    if row.status == "pending":
        said.append(f"asks {names(row.approvers) or 'anyone'}")
        if row.quorum > 1:
            said.append(f"{len(row.votes)} of {row.quorum} agreed")
        if row.expires_ms is not None:
            said.append(f"{row.on_timeout}s {age(row.expires_ms)}")
    elif row.decided_by:
        said.append(f"by {row.decided_by} {age(row.decided_ms)}")
    return " · ".join(said)


def tell_letters(asking: StoreSession, page: Page) -> None:
    """Print dead letters, newest first."""
    heads = (Column("RUN"), Column("NODE", gives=True), Column("CODE", gives=True), Column("FAILED"))
    lines = (Line((row.run_id, place(row), row.code, age(row.at_ms)), _letter_note(row)) for row in page.rows)
    tell_page(asking, page, heads, lines, "no dead letter matches")


def _letter_note(row: DeadLetterRow) -> str:
    tries = f"{row.attempts} attempt{'s' if row.attempts != 1 else ''}"
    closed = () if row.status == "open" else (f"{row.status} by {row.closed_by}" if row.closed_by else row.status,)
    return " · ".join((*closed, row.workflow, tries, row.message))


def tell_workflows(asking: StoreSession, page: Page) -> None:
    """Print workflows, those that changed last first."""
    heads = (
        Column("WORKFLOW", gives=True),
        Column("VERSIONS", number=True),
        Column("CHANGED"),
        Column("TAGS", gives=True),
    )
    rows: Sequence[WorkflowRow] = page.rows
    lines = (
        Line((row.name, str(row.versions), age(row.updated_ms), names(_tags(row.tags))), row.description)
        for row in rows
    )
    tell_page(asking, page, heads, lines, "nothing is published")


def _tags(tags: dict[str, int]) -> Iterator[str]:
    return (f"{tag}→{version}" for tag, version in sorted(tags.items()))


def tell_versions(versions: Sequence[Version], tags: dict[str, int]) -> None:
    """Print the versions of a workflow, newest first."""
    heads = (
        Column("VERSION"),
        Column("PUBLISHED"),
        Column("BY", gives=True),
        Column("DIGEST"),
        Column("TAGS", gives=True),
    )
    print_table(heads, (_version_line(version, tags) for version in reversed(versions)))


def _version_line(version: Version, tags: dict[str, int]) -> Line:
    reference = f"{version.name}@{version.version}"
    pointing = names(tag for tag, number in sorted(tags.items()) if number == version.version)
    made = f"patch of @{version.parent}" if version.patch is not None else ""
    note = " · ".join(part for part in (made, version.message) if part)
    return Line((reference, age(version.at_ms), version.author, version.digest[:DIGEST_SHOWN], pointing), note)


def tell_tags(tags: dict[str, int], moves: Sequence[TagMoved]) -> None:
    """Print where tags point, and how they came there."""
    print_table((Column("TAG"), Column("VERSION", number=True)), (Line((t, f"@{v}")) for t, v in sorted(tags.items())))
    if not moves:
        return
    print()
    heads = (Column("WHEN"), Column("TAG"), Column("FROM"), Column("TO"), Column("BY", gives=True))
    print_table(heads, (_move_line(move) for move in reversed(moves)))


def _move_line(move: TagMoved) -> Line:
    was, to = (f"@{number}" if number else "—" for number in (move.was, move.version))
    return Line((iso(move.at_ms), move.tag, was, to, move.actor), move.message)


UNREADABLE_SHOWN = 10


def tell_blobs(asking: StoreSession, page: Page) -> None:
    """Print blobs in the order of their digests."""
    heads = (Column("DIGEST"), Column("SIZE", number=True), Column("STATE"), Column("SINCE"))
    rows: Sequence[BlobInfo] = page.rows
    lines = (Line((row.digest, size_of(row.size), _state(row), age(row.since_ms))) for row in rows)
    tell_page(asking, page, heads, lines, "there is no blob")


def _state(info: BlobInfo) -> str:
    return "kept" if info.kept else info.state


def tell_blob(asking: StoreSession, info: BlobInfo) -> None:
    """Print what is known of a blob."""
    print_title(info.digest)
    print_facts(
        (
            ("size", f"{info.size} bytes"),
            ("state", info.state),
            ("since", moment(info.since_ms)),
            ("kept", "it is never collected" if info.kept else None),
        )
    )
    print()
    print_hint(asking.command("blobs", "get", info.digest, "-o", "FILE"))


def tell_collected(told: GcReport) -> None:
    """Print what a collection did, or would do."""
    would = "would be " if told.dry_run else ""
    print_facts(
        (
            ("looked at", f"{told.scanned} blobs; {told.reachable} are referred to"),
            ("set aside", f"{told.retired} {would}set aside" if told.retired else None),
            ("deleted", f"{told.deleted} {would}deleted, {size_of(told.bytes_freed)}" if told.deleted else None),
            ("brought back", told.restored or None),
            ("left alone", "; ".join(_left(told)) or None),
            ("unreadable", _unreadable(told.unreadable)),
        )
    )


def _left(told: GcReport) -> Iterator[str]:
    if told.waiting:
        yield f"{told.waiting} whose grace period is not over"
    if told.young:
        yield f"{told.young} that came within the hour"
    if told.kept:
        yield f"{told.kept} kept"


def _unreadable(digests: Sequence[str]) -> str:
    """Blobs that something refers to and that are missing or damaged, a line each."""
    more = [f"and {len(digests) - UNREADABLE_SHOWN} more; --json has them"] * (len(digests) > UNREADABLE_SHOWN)
    return "\n".join([*digests[:UNREADABLE_SHOWN], *more])
