"""Changes of runs: `POST /runs/{run_id}/…`, one path per action, and `/runs/bulk`.

Every act is recorded with the caller as its actor. With a `command_id`, or an `Idempotency-Key`, it may be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import Request, Response
from pydantic import ConfigDict, Field

from tidemill.api.auth import Caller, CurrentCaller, EndpointT, Router
from tidemill.api.problems import problem_answer
from tidemill.api.routes.runs import NUMBER_MAX, IdempotencyKey, StartedRun, id_of_key, location, need
from tidemill.api.schemas import Body, answer
from tidemill.engine.services.bulk import RUNS_MAX, BulkAction, BulkRun
from tidemill.engine.services.patches import Change, PatchOutcome
from tidemill.engine.services.run_actions import UNSET, ActionName, Rehearsal
from tidemill.engine.views import RunView
from tidemill.errors import Rejected
from tidemill.kernel.events import ApprovalDecided, ApprovalEvent, ApprovalVoted

router = Router()

MOVED_MAX = 1_000
"""Events that are read to say what has moved since a patch was made."""


class Act(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"reason": "asked for by the customer"}]})
    reason: str = Field(default="", description="The reason, recorded with the run.")
    command_id: str | None = Field(
        default=None, description="Your own request id: repeating the request with it changes nothing."
    )

    def who(self, caller: Caller, key: str | None) -> dict[str, Any]:
        """The arguments that all acts take."""
        return {
            "reason": self.reason,
            "actor": caller.actor,
            "command_id": key if self.command_id is None else self.command_id,
        }


async def _shown(caller: Caller, run_id: str) -> Response:
    return answer(await caller.services.inspection.show(run_id))


def _act(action: str) -> Callable[[EndpointT], EndpointT]:
    """A route that acts on a run, and shows it then."""
    return router.on("POST", f"/runs/{{run_id}}/{action}", may="runs:act", answers=RunView)


class CancelRun(Act):
    compensate: bool | None = Field(default=None, description="Run the compensators; by default as the document says.")
    force: bool = Field(default=False, description="Also stop a rollback in progress.")


@_act("cancel")
async def cancel_run(
    caller: CurrentCaller, run_id: str, body: CancelRun | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Cancel a run."""
    act = body or CancelRun()
    who = act.who(caller, idempotency_key)
    await caller.services.runs.cancel(run_id, compensate=act.compensate, force=act.force, **who)
    return await _shown(caller, run_id)


@_act("pause")
async def pause_run(
    caller: CurrentCaller, run_id: str, body: Act | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Pause a run: start no new nodes."""
    await caller.services.runs.pause(run_id, **(body or Act()).who(caller, idempotency_key))
    return await _shown(caller, run_id)


@_act("resume")
async def resume_run(
    caller: CurrentCaller, run_id: str, body: Act | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Resume a paused run."""
    await caller.services.runs.resume(run_id, **(body or Act()).who(caller, idempotency_key))
    return await _shown(caller, run_id)


class RetryRun(Act):
    did_not_happen: list[str] = Field(default=[], description="Nodes with an unknown outcome that did not happen.")


@_act("retry")
async def retry_run(
    caller: CurrentCaller, run_id: str, body: RetryRun | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Retry a failed or cancelled run; completed nodes keep their results."""
    act = body or RetryRun()
    who = act.who(caller, idempotency_key)
    await caller.services.runs.retry(run_id, did_not_happen=act.did_not_happen, **who)
    return await _shown(caller, run_id)


class RewindRun(RetryRun):
    model_config = ConfigDict(json_schema_extra={"examples": [{"node": "fetch", "reason": "the source was wrong"}]})
    node: str = Field(description="The node to run again, with everything downstream of it.")


@_act("rewind")
async def rewind_run(
    caller: CurrentCaller, run_id: str, body: RewindRun, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run a node and everything downstream of it again."""
    who = body.who(caller, idempotency_key)
    await caller.services.runs.rewind(run_id, body.node, did_not_happen=body.did_not_happen, **who)
    return await _shown(caller, run_id)


class OverrideNode(Act):
    model_config = ConfigDict(json_schema_extra={"examples": [{"node": "charge", "value": {"paid": True}}]})
    node: str
    value: Any = Field(default=None, description="The output of the node; null is a value too.")
    skip: bool = Field(default=False, description="Skip the node instead of giving it a value.")
    visit: int | None = Field(default=None, ge=1, le=NUMBER_MAX, description="Of a loop; by default the latest.")
    index: int | None = Field(default=None, ge=0, le=NUMBER_MAX, description="An item of a map.")
    next_nodes: list[str] | None = Field(
        default=None, description="The nodes to continue with; by default the branch decides."
    )


@_act("override")
async def override_node(
    caller: CurrentCaller, run_id: str, body: OverrideNode, idempotency_key: IdempotencyKey = None
) -> Response:
    """Settle a node manually.

    Deciding on behalf of people who were asked needs `approvals:decide`.
    """
    if await caller.services.approvals.asks(run_id, body.node, body.index):
        need(caller, "approvals:decide", "a decision on behalf of others")
    await caller.services.runs.override(
        run_id,
        body.node,
        value=body.value if "value" in body.model_fields_set else UNSET,
        skip=body.skip,
        visit=body.visit,
        index=body.index,
        next_nodes=body.next_nodes,
        **body.who(caller, idempotency_key),
    )
    return await _shown(caller, run_id)


@_act("rollback")
async def roll_back_run(
    caller: CurrentCaller, run_id: str, body: Act | None = None, idempotency_key: IdempotencyKey = None
) -> Response:
    """Run the compensators of a run, in reverse order."""
    await caller.services.runs.rollback(run_id, **(body or Act()).who(caller, idempotency_key))
    return await _shown(caller, run_id)


class Rehearse(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"action": "rewind", "node": "fetch"}]})
    action: ActionName
    node: str = Field(default="", description="Of a rewind or an override.")
    visit: int | None = Field(default=None, ge=1, le=NUMBER_MAX)
    index: int | None = Field(default=None, ge=0, le=NUMBER_MAX)
    skip: bool = Field(default=False, description="An override that skips the node.")
    next_nodes: list[str] | None = None
    compensate: bool | None = None
    force: bool = False
    did_not_happen: list[str] = Field(default=[], description="Nodes with an unknown outcome that did not happen.")


@router.on("POST", "/runs/{run_id}/rehearse", may="runs:act", answers=Rehearsal)
async def rehearse_action(caller: CurrentCaller, run_id: str, body: Rehearse) -> Response:
    """What an action would do to a run now; nothing changes.

    Refused as the action would be, except for unknown outcomes, which it names.
    """
    return answer(await caller.services.runs.rehearse(run_id, **body.model_dump()))


class SendSignal(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "paid", "payload": {"amount": 12}}]})
    name: str = Field(description="The name of the signal.")
    payload: Any = None
    signal_id: str | None = Field(default=None, description="A second signal with the same id changes nothing.")


class SentSignal(msgspec.Struct, frozen=True, kw_only=True):
    run_id: str
    signal_id: str


@router.on("POST", "/runs/{run_id}/signal", may="runs:act", answers=SentSignal)
async def signal_run(
    caller: CurrentCaller, run_id: str, body: SendSignal, idempotency_key: IdempotencyKey = None
) -> Response:
    """Send a signal to a run."""
    signal_id = idempotency_key if body.signal_id is None else body.signal_id
    sent = await caller.services.runs.signal(run_id, body.name, body.payload, signal_id=signal_id, actor=caller.actor)
    return answer(SentSignal(run_id=run_id, signal_id=sent))


class RelabelRun(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"set": {"team": "b"}, "remove": ["draft"]}]})
    set: dict[str, str] = Field(default={}, description="Labels to add or to change.")
    remove: list[str] = Field(default=[], description="Labels to remove.")
    command_id: str | None = None


@_act("relabel")
async def relabel_run(
    caller: CurrentCaller, run_id: str, body: RelabelRun, idempotency_key: IdempotencyKey = None
) -> Response:
    """Change the labels of a run."""
    command_id = idempotency_key if body.command_id is None else body.command_id
    await caller.services.runs.relabel(run_id, body.set, body.remove, actor=caller.actor, command_id=command_id)
    return await _shown(caller, run_id)


async def check_decisions(
    caller: Caller,
    run_id: str,
    kinds: tuple[type[ApprovalEvent], ...] = (ApprovalVoted, ApprovalDecided),
    until: int | None = None,
) -> int | None:
    """Refuse other inputs or another graph after a decision, unless the caller may decide: people have seen these.

    Answers how many events the run had; None if that does not matter.
    """
    if caller.principal.may("approvals:decide"):
        return None
    log = await caller.services.context.log(run_id)
    if any(isinstance(event, kinds) for event in log[:until]):
        need(caller, "approvals:decide", "a change of graph or inputs after a decision")
    return len(log)


class ForkRun(Body):
    model_config = ConfigDict(json_schema_extra={"examples": [{"node": "score", "reason": "what if"}]})
    at: int | None = Field(
        default=None,
        ge=1,
        le=NUMBER_MAX,
        description="The last event to copy; by default all.",
    )
    node: str | None = Field(default=None, description="A node that runs again in the fork.")
    inputs: Any = Field(
        default=None, description="Inputs in place of those of the same name; the others are those of the run."
    )
    patch: Any = Field(default=None, description="A JSON Patch of the run's document. Needs `runs:patch`.")
    document: dict[str, Any] | str | None = Field(
        default=None, description="Instead of `patch`: the new document, also as YAML."
    )
    labels: dict[str, str] | None = Field(default=None, description="By default those of the run.")
    reason: str = ""


@router.on("POST", "/runs/{run_id}/fork", may="runs:start", answers=StartedRun, status=201)
async def fork_run(
    request: Request, caller: CurrentCaller, run_id: str, body: ForkRun, idempotency_key: IdempotencyKey = None
) -> Response:
    """Fork a run: start a new one with its history.

    With an `Idempotency-Key`, a repetition returns the same fork with 200. Other inputs or another graph after a
    decision of people, only with `approvals:decide`.
    """
    patches = body.patch is not None or body.document is not None
    if patches:
        need(caller, "runs:patch", "a patch")
    services, known = caller.services, None
    if patches or body.inputs is not None:
        # Those who have only voted are asked again by a fork.
        known = await check_decisions(caller, run_id, (ApprovalDecided,), body.at)
    new_id = services.context.ambient.new_id
    fork_id = new_id() if idempotency_key is None else id_of_key(idempotency_key, f"fork {run_id}")
    created = await services.patches.fork_as(
        fork_id,
        run_id,
        Change(body.patch, body.document),
        known=known,
        at=body.at,
        node=body.node,
        inputs=body.inputs,
        labels=body.labels,
        reason=body.reason,
        actor=caller.actor,
    )
    return answer(StartedRun(run_id=fork_id, created=created), 201 if created else 200, location(request, fork_id))


class PatchRun(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "operations": [{"op": "replace", "path": "/nodes/0/config/url", "value": "https://example.org"}],
                    "retry": True,
                    "message": "the service has moved",
                }
            ]
        }
    )
    operations: Any = Field(
        default=None, description="A JSON Patch of the run's document (`GET /runs/{run_id}/document`)."
    )
    document: dict[str, Any] | str | None = Field(
        default=None, description="Instead of `operations`: the new document, also as YAML."
    )
    dry_run: bool = Field(default=False, description="Only report what the patch would do.")
    retry: bool = Field(default=False, description="Let a failed or cancelled run continue with it.")
    base_digest: str | None = Field(default=None, description="Refuse if the run's document has changed since.")
    expected_seq: int | None = Field(
        default=None, ge=1, le=NUMBER_MAX, description="Refuse if the run has moved past this event."
    )
    publish: bool = Field(default=False, description="Also publish the result as a new version.")
    did_not_happen: list[str] = Field(default=[], description="Nodes with an unknown outcome that did not happen.")
    message: str = Field(default="", description="A message, recorded with the patch.")
    command_id: str | None = None


@router.on("POST", "/runs/{run_id}/patch", may="runs:patch", answers=PatchOutcome)
async def patch_run(
    request: Request, caller: CurrentCaller, run_id: str, body: PatchRun, idempotency_key: IdempotencyKey = None
) -> Response:
    """Change the graph or the configuration of a run.

    409 with `moved` if the run has moved on since `base_digest` or `expected_seq`. Of a run in which people have
    decided, only with `approvals:decide`.
    """
    asked = body.model_dump(exclude={"operations", "command_id"})
    command_id = idempotency_key if body.command_id is None else body.command_id
    if body.publish:
        need(caller, "workflows:write", "to publish")
    if not body.dry_run:
        await check_decisions(caller, run_id)
    try:
        outcome = await caller.services.patches.patch(
            run_id, body.operations, actor=caller.actor, command_id=command_id, **asked
        )
    except Rejected as refusal:
        if refusal.code != "patch_stale":
            raise
        moved = await _moved(caller, run_id, body.expected_seq)
        return problem_answer(request, refusal.problems, more={"moved": moved})
    return answer(outcome)


async def _moved(caller: Caller, run_id: str, since: int | None) -> dict[str, Any]:
    """The present state of a run, and which nodes have had events since."""
    state = (await caller.services.context.entry(run_id)).state
    names: list[str] = []
    if since is not None:
        events = await caller.services.inspection.events(run_id, after=since, limit=MOVED_MAX)
        names = list(dict.fromkeys(event["node"] for event in events if event.get("node")))
    nodes = {name: state.peek(name).status for name in names}
    facts = {"seq": state.seq, "status": state.status, "digest": state.digest, "revision": state.revision}
    return {**facts, "nodes": nodes}


class BulkRequest(Body):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"action": "retry", "query": "status:failed workflow:billing", "dry_run": True}]
        }
    )
    action: BulkAction
    query: str = Field(default="", description="A query, such as `status:failed workflow:billing`.")
    run_ids: list[str] = Field(
        default=[], max_length=RUNS_MAX, description="Instead of `query`: the runs by their ids."
    )
    limit: int = Field(
        default=RUNS_MAX, ge=1, le=RUNS_MAX, description="Maximum number of runs to act on, newest first."
    )
    dry_run: bool = Field(default=False, description="Only report which runs match, and which would refuse.")
    reason: str = ""


class BulkAnswer(msgspec.Struct, frozen=True, kw_only=True):
    action: BulkAction
    dry_run: bool
    count: int
    """Runs in `runs`: those on which the action has an effect, up to `limit`, and those that refuse."""
    done: int
    refused: int
    skipped: int
    """Runs on which the action has no effect."""
    more: bool
    """The action has an effect on more runs than `limit` allows."""
    runs: tuple[BulkRun, ...]


@router.on("POST", "/runs/bulk", may="runs:act", answers=BulkAnswer)
async def act_on_runs(caller: CurrentCaller, body: BulkRequest) -> Response:
    """Apply one action to all runs that a query finds, or to named runs."""
    outcome = await caller.services.many.bulk(
        body.action,
        body.query,
        run_ids=body.run_ids,
        limit=body.limit,
        dry_run=body.dry_run,
        reason=body.reason,
        actor=caller.actor,
    )
    refused = sum(run.result == "refused" for run in outcome.runs)
    return answer(
        BulkAnswer(
            action=outcome.action,
            dry_run=body.dry_run,
            count=len(outcome.runs),
            done=0 if body.dry_run else outcome.done,
            refused=refused,
            skipped=outcome.skipped,
            more=outcome.more,
            runs=outcome.runs,
        )
    )
