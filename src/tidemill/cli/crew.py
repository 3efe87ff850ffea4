"""Workers in text: a table of those that are there, and one of them with all that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tidemill.cli.ages import age, moment
from tidemill.cli.asking import ALONE, Asking, item_or_none, plain
from tidemill.cli.logbook import where
from tidemill.cli.problems import counted
from tidemill.cli.snippets import names
from tidemill.cli.tables import Column, Line, print_facts, print_hint, print_table, print_title
from tidemill.engine.registry import Held
from tidemill.engine.roster import WorkerView
from tidemill.errors import offered, rejected

TYPES_COLUMNS_MAX = 60


class Member(NamedTuple):
    """One worker."""

    worker: WorkerView

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        shown: dict[str, Any] = plain(self.worker)
        shown["held"] = [{**job, "index": item_or_none(job["index"])} for job in shown["held"]]
        return shown


class Crew:
    """Those that are there, and on request those that died lately."""

    def __init__(self, found: Sequence[WorkerView], *, every: bool) -> None:
        self.shown = [worker for worker in found if every or worker.state != "dead"]
        self.dead_left_out = len(found) - len(self.shown)

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {"workers": [Member(worker).to_dict() for worker in self.shown]}


def tell_crew(asking: Asking, crew: Crew) -> None:
    """Print workers, those that started last first."""
    if not crew.shown:
        print("no worker is running")
        print_hint(ALONE if asking.alone else asking.command("worker"))
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


def member(found: Sequence[WorkerView], name: str) -> Member:
    """The worker that is called so, in full or by what tells it from the others. Raises Rejected."""
    exact = [worker for worker in found if worker.name == name]
    near = [worker for worker in found if name in (worker.name.rpartition("/")[2], str(worker.pid))]
    for some in (exact, near):
        if len(some) == 1:
            return Member(some[0])
    raise rejected(
        "worker_unknown",
        f"{len(near)} workers go by {name}" if near else f"no worker is called {name}",
        hint=offered(name, (worker.name for worker in near or found)),
    )


def tell_member(shown: Member) -> None:
    """Print a worker and what it holds."""
    worker = shown.worker
    print_title(worker.name, f"pid {worker.pid} on {worker.host}")
    print_facts(_facts(worker))
    if worker.held:
        print()
        print_table((Column("RUN"), Column("JOB", gives=True), Column("SINCE")), map(_job, worker.held))
    if (more := worker.holding - len(worker.held)) > 0:
        print_hint(f"and {counted(more, 'job')} more")


def _facts(worker: WorkerView) -> Iterator[tuple[str, Any]]:
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
