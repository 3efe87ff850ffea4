"""A run as people and programs see it: one object, the same from Python, from `run --json` and over HTTP.

`_repr_html_` is what notebooks show: a head line, the place for a drawing (`picture_of`) and a small table.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from reprlib import Repr
from typing import Any, ClassVar, TypeVar, get_args, overload

import msgspec

from tidemill.authoring.decorators import Workflow as AuthoredWorkflow
from tidemill.blobs.contract import BlobDamaged, BlobMissing, Blobs
from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.engine.compiled import CompiledWorkflow
from tidemill.errors import RunFailed, offered, rejected
from tidemill.handlers.python.conversion import ConversionError, converter, shown
from tidemill.kernel.activation import Approval, ApprovalStatus, Vote, Wait, items_merged
from tidemill.kernel.events import NOT_AN_ITEM, BlobRef, Error, Payload
from tidemill.kernel.jobs import expected_jobs
from tidemill.kernel.model import Workflow
from tidemill.kernel.queries import dead_ends
from tidemill.kernel.spending import NOTHING_SPENT, Spend
from tidemill.kernel.state import State, Visit, key_at
from tidemill.pictures import DRAWN_NODES_MAX
from tidemill.stores.contract import Stream

T = TypeVar("T")

WAITING_SHOWN_MAX = 20
HTML_ROWS_MAX = 100
_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 80

ITEMS_LOOKED_AT_MAX = 200
"""A map may have a hundred thousand items, and every commit of a waiting run asks this."""


class RunStatus(StrEnum):
    """The status of a run; equal to its name as text."""

    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    def __repr__(self) -> str:
        return repr(self.value)


_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}


class NodeViews(dict[str, dict[str, Any]]):
    """The nodes of a run by name; one that is not there is refused with the nearest that is."""

    def __init__(self, run_id: str, nodes: Mapping[str, dict[str, Any]]) -> None:
        super().__init__(nodes)
        self._run_id = run_id

    def __missing__(self, name: str) -> dict[str, Any]:
        raise KeyError(f"run {self._run_id} has no node {name}: {offered(str(name), self)}")


class RunView:
    """A run: its status, outputs, error and nodes. `to_dict` returns the same as JSON."""

    json_schema: ClassVar[dict[str, Any]] = {
        "run_id": _STRING,
        "workflow": _STRING,
        "submitted_by": _STRING,
        "stuck": _STRING,
        "outputs_missing": _STRING,
        "version": _INTEGER,
        "revision": _INTEGER,
        "counter": _INTEGER,
        "events": _INTEGER,
        "created_ms": _INTEGER,
        "last_event_ms": _INTEGER,
        "status": {"type": "string", "enum": list(RunStatus)},
        "inputs": {},
        "outputs": {},
        "error": {"type": ["object", "null"]},
        "rollback": {"type": "object"},
        "failed_node": {"type": ["string", "null"]},
        "waiting_for": {"type": "array", "items": {"type": "string"}},
        "ended_ms": {"type": ["integer", "null"]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "parent": {"type": ["string", "null"]},
        "forked_from": {"type": ["array", "null"]},
        "nodes": {"type": "object", "additionalProperties": {"type": "object"}},
        "spent": {"type": "object", "additionalProperties": {"type": "number"}},
        "warnings": {"type": "array", "items": {"type": "string"}},
        "outputs_declared": {"type": "boolean"},
    }
    """What `to_dict` returns, by key, as JSON Schemas."""

    def __init__(self, run_id: str, state: State, outputs: Any, nodes: dict[str, dict[str, Any]]) -> None:
        self.run_id = run_id
        self.status = RunStatus(state.status)
        self.inputs: Any = None
        """What the run was started with, defaults included."""
        self.outputs = outputs
        """By name, or as the workflow declares them; None unless the run COMPLETED."""
        self.outputs_missing = ""
        """Why `outputs` are incomplete; nearly always empty."""
        self.counter = state.counter
        self.events = state.seq
        self.nodes: dict[str, dict[str, Any]] = NodeViews(run_id, nodes)
        self.error = error_view(state.error)
        self.workflow = state.workflow
        self.version = state.version
        self.revision = state.revision
        """How often the run was patched."""
        self.labels = dict(state.labels)
        self.submitted_by = state.submitted_by
        self.created_ms, self.ended_ms, self.last_event_ms = state.created_ms, state.ended_ms, state.last_ms
        self.failed_node = state.failed_node or None
        self.waiting_for: tuple[str, ...] = ()
        """What the run waits for, in a few words each."""
        self.stuck = ""
        """Why a worker gave up on the run for now."""
        self.spent = spending_view(state.spent)
        """What its nodes and child runs have spent on models: `calls`, `tokens`, `cached_tokens`, `cost`."""
        self.warnings: tuple[str, ...] = ()
        """What is odd about a run that completed: that no terminal node of it did."""
        steps = items_merged(state.undo)
        done = [undo for undo in steps.values() if undo.status == "done"]
        done.sort(key=lambda undo: -undo.seq)
        undone = [key_at(undo.node, undo.visit, undo.index) for undo in done]
        self.rollback: dict[str, Any] = {"status": state.rollback, "undone": undone, "left": list(state.undo_left)}
        failed = {key: error_view(step.error) for key in state.undo_left if (step := steps.get(key)) and step.error}
        if failed:
            # Why steps could not be undone.
            self.rollback["errors"] = failed
        if unknown := [key for key in state.undo_left if key in state.unknown]:
            # Steps that were left because the log does not say whether they happened; an override settles them.
            self.rollback["unknown"] = unknown
        self.parent = state.parent[0] if state.parent else None
        self.forked_from = list(state.forked_from) if state.forked_from else None
        self._declared = state.outputs is not None
        self.graph: Workflow | None = None
        """What the run runs; for pictures."""
        self.traces: dict[str, tuple[int, tuple[str, ...] | None]] = {}
        """By node: milliseconds of work in its latest visit, and the edges it took when that ended; for pictures."""

    @property
    def ok(self) -> bool:
        """Whether the run COMPLETED."""
        return self.status == RunStatus.COMPLETED

    @property
    def output(self) -> Any:
        """What the run returned.

        These are its declared outputs; without a declaration the output of its last node, or all `outputs` if several
        have one.
        """
        if self._declared or not isinstance(self.outputs, dict) or len(self.outputs) != 1:
            return self.outputs
        return next(iter(self.outputs.values()))

    @overload
    def output_as(self, kind: AuthoredWorkflow[..., Coroutine[Any, Any, T]]) -> T: ...
    @overload
    def output_as(self, kind: AuthoredWorkflow[..., T]) -> T: ...
    @overload
    def output_as(self, kind: type[T]) -> T: ...
    def output_as(self, kind: Any) -> Any:
        """`output` as a value of a type; of a decorated workflow, of the type that it returns."""
        output = self.raise_for_status().output
        hint = kind.result_hint if isinstance(kind, AuthoredWorkflow) else kind
        convert = converter(hint)
        try:
            return output if convert is None else convert(output)
        except ConversionError as error:
            message = f"the output of run {self.run_id} is not {shown(hint)}: {error}"
            raise rejected("output_type", message, hint="`run.output` is the value as JSON") from None

    def raise_for_status(self) -> RunView:
        """Raise `RunFailed`, which names run, node and error, unless the run COMPLETED; else return the run itself."""
        if not self.ok:
            raise RunFailed(
                self.run_id, self.status, workflow=self.workflow, node=self.failed_node or "", error=self.error or {}
            )
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RunView):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash(self.run_id)

    def __repr__(self) -> str:
        facts = [f"workflow='{self.workflow}@{self.version}'", f"status={self.status!r}"]
        if self.ok:
            facts.append(f"output={_SHORT.repr(self.output)}")
        if self.error:
            facts += [f"failed_node={self.failed_node!r}", f"error={_SHORT.repr(_error_words(self.error))}"]
        if self.waiting_for:
            facts.append(f"waiting_for={_SHORT.repr(list(self.waiting_for))}")
        return f"RunView({self.run_id!r}, {', '.join(facts)})"

    def _repr_html_(self) -> str:
        from html import escape

        took = "" if self.ended_ms is None else f" · {(self.ended_ms - self.created_ms) / 1_000:,.3f} s"
        head = f"<b>{escape(self.workflow)}@{self.version}</b> · <b>{self.status}</b>{took}"
        head += f"<br><code>{escape(self.run_id)}</code>"
        if self.error:
            head += f"<br>{escape(_error_words(self.error))}"
        traceback = str((self.error or {}).get("traceback") or "")
        head += f"</p><pre>{escape(traceback)}</pre><p>" if traceback else ""
        rows = (
            (name, self._node_status(name), str(node["attempts"]), self._node_took(name), _node_words(node))
            for name, node in islice(self.nodes.items(), HTML_ROWS_MAX)
        )
        heads = ("node", "status", "attempts", "took", "output")
        more = f"<p>… and {len(self.nodes) - HTML_ROWS_MAX} more nodes</p>" if len(self.nodes) > HTML_ROWS_MAX else ""
        return f"<p>{head}</p>{picture_of(self)}{html_table(heads, rows)}{more}"

    def _node_status(self, name: str) -> str:
        node = self.nodes[name]
        unreached = (node["error"] or {}).get("code") == "upstream_failed"
        return "tolerated" if node.get("tolerated") else "not reached" if unreached else str(node["status"])

    def _node_took(self, name: str) -> str:
        from tidemill.pictures.labels import duration

        spent_ms, _ = self.traces.get(name, (0, None))
        return duration(spent_ms) if spent_ms else ""

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> RunView:
        """The run that `to_dict` has shown; it has no graph for a picture."""
        view = cls.__new__(cls)
        for name in _RUN_FIELDS:
            # A server of an earlier version does not send the inputs.
            setattr(view, name, shown.get(name) if name == "inputs" else shown[name])
        view.nodes = NodeViews(view.run_id, view.nodes)
        view.status, view.waiting_for = RunStatus(shown["status"]), tuple(shown["waiting_for"])
        view.stuck, view.outputs_missing = shown.get("stuck", ""), shown.get("outputs_missing", "")
        view.spent = shown.get("spent", {})
        view.warnings, view._declared = tuple(shown.get("warnings", ())), bool(shown.get("outputs_declared"))
        view.graph, view.traces = None, {}
        return view

    def to_dict(self) -> dict[str, Any]:
        shown = {name: getattr(self, name) for name in _RUN_FIELDS}
        shown["status"], shown["waiting_for"] = self.status.value, list(self.waiting_for)
        rare = {
            "stuck": self.stuck,
            "outputs_missing": self.outputs_missing,
            "spent": self.spent,
            "warnings": list(self.warnings),
            "outputs_declared": self._declared,
        }
        return shown | {name: value for name, value in rare.items() if value}


_RUN_FIELDS = (
    "run_id", "workflow", "version", "revision", "status", "inputs", "outputs", "error", "counter", "events",
    "rollback", "failed_node", "waiting_for", "created_ms", "ended_ms", "last_event_ms", "submitted_by", "labels",
    "parent", "forked_from", "nodes",
)  # fmt: skip
_APPROVAL_FIELDS = (
    "status", "title", "description", "form", "approvers", "quorum", "four_eyes", "requester", "requested_ms",
    "expires_ms", "on_timeout", "escalate_to", "escalated", "escalated_ms", "url", "votes", "delegated", "decision",
    "decided_by", "on_behalf_of", "decided_ms", "comments",
)  # fmt: skip
"""The keys that `to_dict` returns, in this order."""


def spending_view(spent: Spend) -> dict[str, float]:
    """Empty if nothing was spent."""
    if spent == NOTHING_SPENT:
        return {}
    return {"calls": spent.calls, "tokens": spent.tokens, "cached_tokens": spent.cached, "cost": spent.cost}


class ApprovalView:
    """An approval with its form and votes; `to_dict` is the same as JSON."""

    json_schema: ClassVar[dict[str, Any]] = {
        **{name: {"type": "string"} for name in ("approval_id", "run_id", "workflow", "node")},
        **{name: {"type": "integer"} for name in ("visit", "quorum", "requested_ms")},
        **{name: {"type": ["integer", "null"]} for name in ("index", "expires_ms", "escalated_ms", "decided_ms")},
        **{name: {"type": "string"} for name in ("title", "description", "requester", "on_timeout", "url", "comments")},
        **{name: {"type": ["string", "null"]} for name in ("decision", "decided_by", "on_behalf_of")},
        **{name: {"type": "array", "items": {"type": "string"}} for name in ("approvers", "escalate_to")},
        **{name: {"type": "array", "items": {"type": "object"}} for name in ("votes", "delegated")},
        **{name: {"type": "boolean"} for name in ("four_eyes", "escalated")},
        "status": {"enum": list(get_args(ApprovalStatus))},
        "form": {},
    }
    """What `to_dict` returns."""

    def __init__(self, run_id: str, workflow: str, node: str, visit: int, index: int, approval: Approval) -> None:
        self.run_id, self.workflow, self.node, self.visit, self.index = run_id, workflow, node, visit, index
        self.approval = approval
        self.status: str = approval.status
        self.title, self.description, self.requester = approval.title, approval.description, approval.requester
        self.approvers, self.escalate_to, self.quorum = approval.approvers, approval.escalate_to, approval.quorum
        self.votes, self.decision, self.decided_by = approval.votes, approval.decision, approval.decided_by

    @property
    def approval_id(self) -> str:
        return activation_id(self.run_id, self.node, self.visit, self.index)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ApprovalView):
            return NotImplemented
        return self.to_dict() == other.to_dict()

    def __hash__(self) -> int:
        return hash((self.run_id, self.node, self.visit, self.index))

    def __repr__(self) -> str:
        asked = f"{self.run_id!r}, node={self.node!r}, status={self.status!r}"
        return f"ApprovalView({asked}, title={_SHORT.repr(self.approval.title)})"

    @classmethod
    def from_dict(cls, shown: Mapping[str, Any]) -> ApprovalView:
        """The approval that `to_dict` has shown."""
        known = {name: shown[name] for name in Approval.__struct_fields__ if name in shown}
        for name in ("decision", "decided_by", "on_behalf_of"):
            known[name] = shown[name] or ""
        form = None if shown["form"] is None else encode_value(shown["form"])
        votes = tuple(
            Vote(
                by=vote["by"],
                on_behalf_of=vote["on_behalf_of"] or "",
                comments=vote["comments"],
                form=None if vote["form"] is None else encode_value(vote["form"]),
            )
            for vote in shown["votes"]
        )
        delegated = tuple((each["by"], each["to"]) for each in shown["delegated"])
        lists = {name: tuple(shown[name]) for name in ("approvers", "escalate_to")}
        since_ms = shown.get("escalated_ms")
        timeout_ms = None if since_ms is None else shown["expires_ms"] - since_ms
        approval = Approval(
            **{**known, **lists, "form": form, "votes": votes, "delegated": delegated, "timeout_ms": timeout_ms}
        )
        index = NOT_AN_ITEM if shown["index"] is None else shown["index"]
        return cls(shown["run_id"], shown["workflow"], shown["node"], shown["visit"], index, approval)

    def to_dict(self) -> dict[str, Any]:
        approval = self.approval
        return {
            "approval_id": self.approval_id,
            "run_id": self.run_id,
            "workflow": self.workflow,
            "node": self.node,
            "visit": self.visit,
            "index": None if self.index < 0 else self.index,
            **{name: getattr(approval, name) for name in _APPROVAL_FIELDS},
            "form": _form(approval.form),
            "approvers": list(approval.approvers),
            "escalate_to": list(approval.escalate_to),
            "votes": [
                {
                    "by": vote.by,
                    "on_behalf_of": vote.on_behalf_of or None,
                    "comments": vote.comments,
                    "form": _form(vote.form),
                }
                for vote in approval.votes
            ],
            "delegated": [{"by": by, "to": to} for by, to in approval.delegated],
            **{name: getattr(approval, name) or None for name in ("decision", "decided_by", "on_behalf_of")},
        }


def activation_id(run_id: str, node: str, visit: int, index: int) -> str:
    """The id of an approval or dead letter in URLs: stable, and safe in a path whatever the run is called."""
    return base64.urlsafe_b64encode(f"{run_id}/{key_at(node, visit, index)}".encode()).rstrip(b"=").decode()


def read_activation_id(text: str) -> tuple[str, str, int, int] | None:
    """Run, node, visit and index of an id; None if it is none."""
    try:
        key = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
        run_id, node, visit, index = key.rsplit("/", 3)
        place = (run_id, node, int(visit), int(index))
    except (binascii.Error, ValueError):
        return None
    # Below -1 are no items.
    is_place = place[2] > 0 and place[3] >= NOT_AN_ITEM
    return place if is_place and activation_id(*place) == text else None


_SCALARS = frozenset({str, int, bool, float, type(None)})


def plain(value: Any) -> Any:
    """Any answer of the engine as a JSON value; structs become mappings, however they are stored."""
    if type(value) in _SCALARS:
        return value
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, msgspec.Struct):
        # `v` is the format of a stored row, which is not shown.
        fields = {name: plain(getattr(value, name)) for name in value.__struct_fields__ if name != "v"}
        config = value.__struct_config__
        return {"kind": str(config.tag), **fields} if config.tag_field == "kind" else fields
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(entry) for entry in value]
    return value


def _form(form: Payload | None) -> Any:
    return decode_value(form) if isinstance(form, bytes) else None


def error_view(error: Error | None) -> dict[str, Any] | None:
    """An error as people and programs see it; its traceback begins with the user's own code."""
    if error is None:
        return None
    optional = {"type": error.type, "hint": error.hint, "causes": list(error.causes), "traceback": error.traceback}
    index = {"index": error.index} if error.index >= 0 else {}
    given = {name: value for name, value in optional.items() if value}
    return {"code": error.code, "message": error.message, **given, **index}


async def view_run(
    stream: Stream, state: State, flow: CompiledWorkflow, blobs: Blobs, *, gaps: bool = False, values: bool = True
) -> RunView:
    """Build the view of a run; values stored as blobs are loaded, and without `values` inputs and outputs are null.

    With `gaps` a value whose blob is lost is null, with the reason beside it: the rest of the run is intact. Without,
    the loss raises.
    """
    workflow = flow.workflow
    visits = ((node.id, state.peek(node.id)) for node in workflow.nodes)
    nodes = {name: await _node_view(stream, visit, blobs, gaps=gaps, values=values) for name, visit in visits}
    outputs, missing = await _outputs(stream, state, workflow, nodes, blobs, gaps=gaps) if values else (None, "")
    view = RunView(stream.key, state, outputs, nodes)
    view.graph = workflow
    lost = ""
    if values:
        view.inputs, lost = await _value(stream, state.inputs, blobs, gaps=gaps)
    view.traces = {name: (visit.duration_ms, visit.edges_taken) for name, visit in state.cells.items()}
    view.outputs_missing = missing
    view.waiting_for = waiting_for(workflow, state) if state.live else ()
    view.warnings = dead_ends(workflow, state) + ((f"the inputs are missing: {lost}",) if lost else ())
    return view


async def _node_view(
    stream: Stream, visit: Visit, blobs: Blobs, *, gaps: bool = False, values: bool = True
) -> dict[str, Any]:
    payload = visit.output if values else None
    output, missing = (None, "") if payload is None else await _value(stream, payload, blobs, gaps=gaps)
    shown: dict[str, Any] = {
        "status": visit.status,
        "visits": visit.visit,
        "attempts": visit.attempt,
        "output": output,
        "error": error_view(visit.error) if visit.status in ("FAILED", "QUEUED", "RUNNING") else None,
    }
    if visit.map is not None:
        shown["items"] = visit.map.counts()
    if visit.status == "RUNNING":
        shown["since_ms"] = visit.since_ms
    if visit.status == "FAILED" and visit.tolerated:
        shown["tolerated"] = True
    if missing:
        shown["output_missing"] = missing
    return shown


def item_views(visit: Visit, after: int, limit: int, status: str) -> tuple[list[dict[str, Any]], int | None]:
    """Items of a map after `after`, optionally those with a status; and the index to continue from."""
    items = visit.map
    found: list[dict[str, Any]] = []
    if items is None:
        return found, None
    for index in range(after + 1, items.count):
        act = items.get(index)
        shown = ("QUEUED" if index < items.next else "PENDING") if act is None else act.status
        if status in ("", shown):
            error = None if act is None else error_view(act.error)
            found.append(
                {"index": index, "status": shown, "attempts": 0 if act is None else act.attempt, "error": error}
            )
            if len(found) == limit:
                return found, index
    return found, None


async def _value(stream: Stream, payload: Payload, blobs: Blobs, *, gaps: bool) -> tuple[Any, str]:
    """A value, and the reason if it is lost and gaps are allowed."""
    if not isinstance(payload, BlobRef):
        return decode_value(payload), ""
    try:
        return decode_value(await blobs.get(stream.tenant, payload.digest)), ""
    except (BlobMissing, BlobDamaged) as lost:
        if not gaps:
            raise
        return None, str(lost)


async def _outputs(
    stream: Stream, state: State, workflow: Workflow, nodes: dict[str, dict[str, Any]], blobs: Blobs, *, gaps: bool
) -> tuple[Any, str]:
    """The outputs of a COMPLETED run: declared ones, else those of terminal nodes; and why any of them is missing."""
    if state.status != "COMPLETED":
        return None, ""
    if state.outputs is not None:
        return await _value(stream, state.outputs, blobs, gaps=gaps)
    ends = [name for name in workflow.terminals if state.peek(name).output is not None]
    lost = (f"{name}: {nodes[name]['output_missing']}" for name in ends if "output_missing" in nodes[name])
    return {name: nodes[name]["output"] for name in ends}, "; ".join(lost)


def waiting_for(workflow: Workflow, state: State) -> tuple[str, ...]:
    """What a run waits for that has a name, in a few words each; works on drafts too."""
    found: list[str] = []
    for node in workflow.nodes:
        name, visit = node.id, state.peek(node.id)
        wait = visit.wait if visit.status == "WAITING" else _wait_of_items(visit)
        if wait is not None:
            found.append(f"{wait.on} ({name})")
        elif visit.held and visit.map is None:
            found.append(f"limit max_parallel ({name})")
        elif visit.retry_at_ms is not None and visit.status == "QUEUED":
            found.append(f"retry ({name})")
        if len(found) >= WAITING_SHOWN_MAX:
            break
    if state.status == "PAUSED":
        found.insert(0, "resume (the run is paused)")
    return tuple(found)


def _wait_of_items(visit: Visit) -> Wait | None:
    """What an item of a map waits for, of those queued last: they are the least likely to have ended."""
    items = visit.map
    if items is None or not items.flying:
        return None
    latest = range(items.next - 1, max(-1, items.next - 1 - ITEMS_LOOKED_AT_MAX), -1)
    acts = (items.get(index) for index in latest)
    return next((act.wait for act in acts if act is not None and act.wait is not None), None)


def named_wait(workflow: Workflow, state: State, now_ms: int) -> bool:
    """Whether a run waits for something that has a name: a timer, a person, a pause."""
    if state.status == "PAUSED":
        return True
    if any(visit.status == "WAITING" or _wait_of_items(visit) is not None for visit in state.cells.values()):
        return True
    if not state.in_flight and any(visit.map is not None and visit.map.flying for visit in state.cells.values()):
        return True
    return any(job.ready_at_ms > now_ms and job.task.kind != "deadline" for job in expected_jobs(workflow, state))


# What notebooks show


def picture_of(run: RunView) -> str:
    """The drawing of a run above the table of its nodes; large graphs are left out."""
    if run.graph is None or len(run.graph.nodes) > DRAWN_NODES_MAX:
        return ""
    from tidemill.pictures import run_svg

    return f'<div style="overflow-x: auto">{run_svg(run)}</div>'


def html_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of texts, which are escaped."""
    from html import escape

    head = "".join(f"<th>{escape(each)}</th>" for each in heads)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _error_words(error: Mapping[str, Any]) -> str:
    """An error on one line: of an exception its class, then message and code."""
    kind = f"{error['type']}: " if error["code"] == "exception" and error.get("type") else ""
    return f"{kind}{error['message']} [{error['code']}]"


def _node_words(node: dict[str, Any]) -> str:
    error = node["error"]
    if error is not None:
        return _error_words(error)
    return "" if node["output"] is None else _SHORT.repr(node["output"])
