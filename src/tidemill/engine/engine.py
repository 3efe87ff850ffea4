"""`Engine`: wires store, blobs, catalog, turns and services, and opens and closes them in order.

With `WorkerOptions` it also has a worker and the maintenance tasks of its store. What callers can ask
lives in `engine/services/`, one service per subject. Everything is async; `tidemill.open` offers the flat verbs to
blocking callers.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import partial, wraps
from inspect import signature
from typing import Any, Concatenate, ParamSpec, TypeGuard, TypeVar, cast, overload

from tidemill.agents.port import AgentPort
from tidemill.ambient import Ambient
from tidemill.authoring.decorators import Workflow, authored
from tidemill.blobs.archive import Archive
from tidemill.blobs.contract import Blobs
from tidemill.engine.agents.accounts import FORGET_OLD_EVERY_MS, SETTLE_EVERY_MS, AgentAccounts, AgentHost
from tidemill.engine.agents.composite_tools import STREAM_KINDS as TOOL_STREAM_KINDS
from tidemill.engine.agents.composite_tools import CompositeToolService
from tidemill.engine.attempts.runtime import ProcessRuntime
from tidemill.engine.attempts.streaming import OutputBroadcaster
from tidemill.engine.catalog import Catalog, Published
from tidemill.engine.children import ChildRunMessenger, DescendantLimit
from tidemill.engine.maintenance.approval_webhook import TELL_EVERY_MS, ApprovalWebhook
from tidemill.engine.maintenance.audit_chain import CHAIN_EVERY_MS, CHAIN_REST_FACTOR, AuditChain
from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
from tidemill.engine.maintenance.reconciler import REST_FACTOR, AuditSampler, Reconciler
from tidemill.engine.maintenance.retention import RETENTION_EVERY_MS, RetentionTask
from tidemill.engine.maintenance.schedule import RECONCILE, MaintenanceSchedule, MaintenanceTask
from tidemill.engine.maintenance.usage import ROLL_UP, ROLL_UP_EVERY_MS, UsageRollup
from tidemill.engine.maintenance.verify import Auditor
from tidemill.engine.run_cache import RunCache
from tidemill.engine.services.access import STREAM_KINDS, AuditService, CredentialDirectory, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.blobs import COLLECT_EVERY_MS, BlobService
from tidemill.engine.services.bulk import BulkService
from tidemill.engine.services.concurrency import ConcurrencyService, KnownLimits
from tidemill.engine.services.context import AnyRun, ServiceContext, with_run_id
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.inspection import InspectionService
from tidemill.engine.services.maintenance import MaintenanceService
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.runs import LAST, RunService
from tidemill.engine.services.tenant_services import SharedParts, TenantServices
from tidemill.engine.services.workers import WorkerService
from tidemill.engine.services.workflows import Document, WorkflowService
from tidemill.engine.turn import TurnLoop
from tidemill.engine.validation import Seconds, timeout_of
from tidemill.engine.views import RunView
from tidemill.engine.worker.instrumentation import Instrumentation, measured
from tidemill.engine.worker.leases import WorkerOptions
from tidemill.engine.worker.registry import FORGET_EVERY_MS, Registry
from tidemill.engine.worker.spans import RunSpans
from tidemill.engine.worker.worker import Worker
from tidemill.errors import Rejected, rejected
from tidemill.expressions.sandbox.pool import Isolation, NoSandbox
from tidemill.handlers.contract import Handler, NodeContext
from tidemill.handlers.python.functions import Function, add_functions, function_registry
from tidemill.kernel.model import RETENTION_DAYS, NodeType
from tidemill.kernel.spending import NO_BUDGET, Budget
from tidemill.observability.metrics import Metrics
from tidemill.observability.tracing import Tracing
from tidemill.security.masking import Mask
from tidemill.security.secrets import ChainedSecrets, Secrets
from tidemill.stores.contract import Store

P = ParamSpec("P")
T = TypeVar("T")
FunctionT = TypeVar("FunctionT", bound=Function)

TENANTS_KEPT = 1_000
"""Tenants whose services an engine keeps."""
OWN_OPTIONS = ("key", "labels", "submitted_by", "correlation_id", "deadline_seconds", "traceparent")
START_OPTIONS = (*OWN_OPTIONS, "timeout")


def service_verb(service: str, method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Engine, P], T]:
    """A verb of the engine that calls a method of one of its services, or of what stands for that service."""

    @wraps(method)
    def call(self: Engine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        options = {name: named(name, each) for name, each in kwargs.items()}
        return cast(T, getattr(getattr(self, service), method.__name__)(*map(partial(named, ""), args), **options))

    return call


def named(parameter: str, given: Any) -> Any:
    """A workflow written in Python stands for its name, or for its document where one is wanted."""
    if not isinstance(given, Workflow):
        return given
    return given.document() if parameter == "document" else given.name


def run_verb(
    service: str, method: Callable[Concatenate[Any, str, P], T]
) -> Callable[Concatenate[Engine, AnyRun, P], T]:
    """The same, of a method whose first parameter is the id of a run: a view or a row, or `@last`, will do."""
    _, *listed = signature(method).parameters.values()
    parameters = {each.name: each for each in listed}

    @wraps(method)
    def call(self: Engine, /, *args: Any, **kwargs: Any) -> T:
        positional, options = with_run_id(parameters, args, kwargs)
        options = {name: named(name, each) for name, each in options.items()}
        verb = getattr(getattr(self, service), method.__name__)
        if LAST in positional[:1] and asyncio.iscoroutinefunction(method):
            return cast(T, of_last(self, verb, positional[1:], options))
        return cast(T, verb(*positional, **options))

    async def of_last(self: Engine, verb: Callable[..., Any], args: Sequence[Any], options: dict[str, Any]) -> Any:
        return await verb(await self.runs.resolve(LAST), *args, **options)

    return cast("Callable[Concatenate[Engine, AnyRun, P], T]", call)


def _is_name(workflow: object) -> TypeGuard[str]:
    """Whether it names a published workflow, and is no document as text."""
    return isinstance(workflow, str) and "\n" not in workflow and not workflow.lstrip().startswith("{")


def _by_name(handlers: Sequence[Handler]) -> dict[str, list[NodeType]]:
    types: dict[str, list[NodeType]] = {}
    for handler in handlers:
        types.setdefault(handler.type.name, []).append(handler.type)
    return types


def _by_key(handlers: Sequence[Handler]) -> dict[str, Handler]:
    return {handler.type.key: handler for handler in handlers}


class Engine:
    """The services of one tenant, and the life of a process that offers them. `worker`: it also runs nodes.

    Without `audit_every_ms` there is no maintenance: in a simulation an idle worker must have nothing to do.
    `offers` are the node types that its worker describes to processes without them: those that are not built in.
    `functions` are those that its handlers look up by name; `register` adds to them. `tenant_handlers` are those of
    tenants with grants of their own. `fleet` is the tenant that workers register in, by default its own. The agents of
    each tenant may spend the `day_budget` in a day.

    Callers use the services: `engine.runs.start(...)`, `engine.patches.patch(...)`. The flat verbs (`engine.start`,
    `engine.patch`) call them.
    """

    # The flat verbs: each is a method of a service.
    result = run_verb("runs", RunService.result)
    follow = run_verb("runs", RunService.follow)
    find = service_verb("runs", RunService.find)
    count = service_verb("runs", RunService.count)
    summary = service_verb("runs", RunService.summary)
    facets = service_verb("runs", RunService.facets)
    histogram = service_verb("runs", RunService.histogram)
    failure_groups = service_verb("runs", RunService.failure_groups)
    resolve = run_verb("runs", RunService.resolve)
    cancel = run_verb("runs", RunService.cancel)
    pause = run_verb("runs", RunService.pause)
    resume = run_verb("runs", RunService.resume)
    retry = run_verb("runs", RunService.retry)
    rewind = run_verb("runs", RunService.rewind)
    override = run_verb("runs", RunService.override)
    rollback = run_verb("runs", RunService.rollback)
    relabel = run_verb("runs", RunService.relabel)
    bulk = service_verb("many", BulkService.bulk)
    signal = run_verb("runs", RunService.signal)
    document = run_verb("patches", PatchService.document)
    patch = run_verb("patches", PatchService.patch)
    fork = run_verb("patches", PatchService.fork)
    approval = run_verb("approvals", ApprovalService.show)
    decide = run_verb("approvals", ApprovalService.decide)
    delegate = run_verb("approvals", ApprovalService.delegate)
    dead_letter = run_verb("dead_letters", DeadLetterService.show)
    discard = run_verb("dead_letters", DeadLetterService.discard)
    reprocess = service_verb("dead_letters", DeadLetterService.reprocess)
    workflow = service_verb("workflows", WorkflowService.show)
    workflow_document = service_verb("workflows", WorkflowService.document)
    patch_workflow = service_verb("workflows", WorkflowService.patch)
    versions = service_verb("workflows", WorkflowService.versions)
    diff = service_verb("workflows", WorkflowService.diff)
    tag = service_verb("workflows", WorkflowService.tag)
    rollback_tag = service_verb("workflows", WorkflowService.rollback_tag)
    untag = service_verb("workflows", WorkflowService.untag)
    tags = service_verb("workflows", WorkflowService.tags)
    tag_history = service_verb("workflows", WorkflowService.tag_history)
    delete_workflow = service_verb("workflows", WorkflowService.delete)
    show = run_verb("inspection", InspectionService.show)
    events = run_verb("inspection", InspectionService.events)
    path = run_verb("inspection", InspectionService.path)
    tokens = run_verb("inspection", InspectionService.tokens)
    why = run_verb("inspection", InspectionService.why)
    why_node = run_verb("inspection", InspectionService.why_node)
    compare = run_verb("inspection", InspectionService.compare)
    transcript = run_verb("inspection", InspectionService.transcript)
    logs = run_verb("inspection", InspectionService.logs)
    follow_logs = run_verb("inspection", InspectionService.follow_logs)
    put_blob = service_verb("blobs", BlobService.put)
    blob = service_verb("blobs", BlobService.show)
    save_blob = service_verb("blobs", BlobService.save)
    collect_blobs = service_verb("blobs", BlobService.collect)
    concurrency_limits = service_verb("concurrency", ConcurrencyService.find)
    limit_concurrency = service_verb("concurrency", ConcurrencyService.set)
    unlimit_concurrency = service_verb("concurrency", ConcurrencyService.remove)
    tool = service_verb("tools", CompositeToolService.show)
    rename_tool = service_verb("tools", CompositeToolService.rename)
    pin_tool = service_verb("tools", CompositeToolService.pin)
    retire_tool = service_verb("tools", CompositeToolService.retire)
    diagnose = service_verb("maintenance", MaintenanceService.diagnose)
    verify_log = service_verb("maintenance", MaintenanceService.verify_log)
    reindex = service_verb("maintenance", MaintenanceService.reindex)
    archive_sweep = service_verb("maintenance", MaintenanceService.archive_sweep)
    archive_list = service_verb("maintenance", MaintenanceService.archive_list)
    archive_show = run_verb("maintenance", MaintenanceService.archive_show)
    archive_restore = run_verb("maintenance", MaintenanceService.archive_restore)
    create_key = service_verb("keys", KeyService.create)
    revoke_key = service_verb("keys", KeyService.revoke)
    create_tenant = service_verb("tenants", TenantService.create)
    disable_tenant = service_verb("tenants", TenantService.disable)
    enable_tenant = service_verb("tenants", TenantService.enable)
    verify_audit = service_verb("audit", AuditService.verify)

    worker: Worker | None = None
    registry: Registry | None = None
    reconciler: Reconciler | None = None
    schedule: MaintenanceSchedule | None = None

    def __init__(
        self,
        *,
        store: Store,
        blobs: Blobs,
        ambient: Ambient,
        handlers: Sequence[Handler],
        worker: WorkerOptions | None = None,
        tenant: str = "default",
        fleet: str = "",
        user: str = "",
        audit_every_ms: int | None = 10_000,
        archive: Archive | None = None,
        retention_days: float | None = RETENTION_DAYS,
        input_bytes_max: int = 1_048_576,
        descendants_max: int = 10_000,
        isolation: Isolation | None = None,
        secrets: Secrets | None = None,
        unusable_types: Sequence[str] = (),
        offers: Sequence[NodeType] = (),
        ownership: BlobPlaceOwnership | None = None,
        functions: dict[str, Function] | None = None,
        metrics: Metrics | None = None,
        tracing: Tracing | None = None,
        tenant_handlers: Mapping[str, Sequence[Handler]] = {},
        approval_webhook: ApprovalWebhook | None = None,
        day_budget: Budget = NO_BUDGET,
    ) -> None:
        store = store if metrics is None else measured(store, metrics, ambient)
        self.spans = None if tracing is None else RunSpans(tracing, blobs)
        self._store, self._blobs, self._ownership, self._approval_webhook = store, blobs, ownership, approval_webhook
        self._functions: dict[str, Function] = {} if functions is None else functions
        self._published: dict[Workflow[..., Any], tuple[str, list[object]]] = {}
        """Versions of workflows written in Python that this engine has published, and of which builds."""
        self.types: Mapping[str, Sequence[NodeType]] = _by_name(handlers)
        tenant_types = {name: _by_name(each) for name, each in tenant_handlers.items()}
        self.catalog = Catalog(store, blobs, ambient, self.types, unusable_types, tenant_types, fleet=fleet or tenant)
        self.run_cache = RunCache(store, self.catalog)
        lease_ms, owner = (worker.lease_ms, worker.name) if worker else (15_000, "")
        self.turns = TurnLoop(store, self.run_cache, ambient, owner=owner, lease_ms=lease_ms)
        isolation = isolation or NoSandbox()
        limits = self.turns.limits = KnownLimits(store)
        self.context = ServiceContext(
            store, blobs, ambient, self.catalog, self.run_cache, self.turns, tenant, input_bytes_max, isolation, limits
        )
        self.metrics = None if metrics is None else Instrumentation(metrics, store, ambient, tenant)
        self.turns.metrics, self.turns.spans = self.metrics, self.spans
        self.context.stream_kinds.update({**STREAM_KINDS, **TOOL_STREAM_KINDS})
        self.workers = WorkerService(dataclasses.replace(self.context, tenant=fleet or tenant))
        self._shared = SharedParts(
            self.workers, user, archive, retention_days, ownership, CredentialDirectory(store, ambient)
        )
        self._tenants: dict[tuple[str, bool], TenantServices] = {}
        self._has_maintenance = audit_every_ms is not None
        own = TenantServices(self.context, self._shared, begins_maintenance=worker is None and self._has_maintenance)
        self.runs, self.many, self.patches, self.approvals = own.runs, own.many, own.patches, own.approvals
        self.dead_letters, self.workflows, self.inspection = own.dead_letters, own.workflows, own.inspection
        self.blobs, self.concurrency, self.maintenance = own.blobs, own.concurrency, own.maintenance
        self.usage, self.queues, self.tools = own.usage, own.queues, own.tools
        self.keys, self.tenants, self.audit, self.credentials = own.keys, own.tenants, own.audit, own.credentials
        self._tenants[tenant, False] = own
        another, broadcaster = self.workers.another_may_have, OutputBroadcaster(store, ambient)
        self.agents = AgentHost(AgentAccounts(store, day_budget))
        read = secrets or ChainedSecrets()
        self._runtime = ProcessRuntime(another, isolation, read, broadcaster, agents=self.agents, spans=self.spans)
        self.agents.port = self._agent_port
        if worker is not None:
            self._add_worker(
                worker, handlers, tenant_handlers, offers, audit_every_ms, descendants_max, archive is not None
            )

    def _add_worker(
        self,
        options: WorkerOptions,
        handlers: Sequence[Handler],
        tenant_handlers: Mapping[str, Sequence[Handler]],
        offers: Sequence[NodeType],
        audit_every_ms: int | None,
        descendants_max: int,
        has_archive: bool,
    ) -> None:
        context = self.context
        messenger = ChildRunMessenger(
            self.run_cache, self.turns, self.catalog, context.blobs, DescendantLimit(context.store, descendants_max)
        )
        self.worker = Worker(
            store=context.store,
            runs=self.run_cache,
            turns=self.turns,
            blobs=context.blobs,
            ambient=context.ambient,
            handlers=_by_key(handlers),
            tenant_handlers={name: _by_key(each) for name, each in tenant_handlers.items()},
            messenger=messenger,
            options=options,
            runtime=self._runtime,
        )
        self.worker.metrics = self.metrics
        self.workers.registry = self.registry = Registry(
            tenant=self.workers.tenant,
            store=context.store,
            ambient=context.ambient,
            worker=self.worker,
            options=options,
            types=(handler.type.key for handler in handlers),
            missing=self._runtime.missing,
            limits=context.limits,
            offers=offers,
        )
        if audit_every_ms is not None:
            self._add_maintenance(self.worker, self.registry, messenger, audit_every_ms, has_archive)

    def _add_maintenance(
        self, worker: Worker, registry: Registry, messenger: ChildRunMessenger, audit_every_ms: int, has_archive: bool
    ) -> None:
        context, only = self.context, registry.options.only
        auditor = Auditor(context.store, context.blobs, self.catalog)
        sampling = AuditSampler(tenant=context.tenant, store=context.store, auditor=auditor)
        sampling.on_finding = None if self.metrics is None else self.metrics.found
        self.reconciler = Reconciler(
            tenant=context.tenant,
            store=context.store,
            runs=self.run_cache,
            turns=self.turns,
            messenger=messenger,
            sampling=sampling,
        )
        tasks = [
            MaintenanceTask(RECONCILE, audit_every_ms, self.reconciler.sweep),
            MaintenanceTask("audit", audit_every_ms, sampling.audit_next, REST_FACTOR),
            MaintenanceTask("audit-chain", CHAIN_EVERY_MS, AuditChain(context.store).task, CHAIN_REST_FACTOR),
            MaintenanceTask("workers", FORGET_EVERY_MS, registry.forget_dead),
            MaintenanceTask("blobs", COLLECT_EVERY_MS, self.blobs.maintain),
        ]
        if self.agents.accounts.has_budget:
            tasks.append(MaintenanceTask("agent-budget", SETTLE_EVERY_MS, self.agents.accounts.settle_expired))
        tasks.append(MaintenanceTask("agent-memory", FORGET_OLD_EVERY_MS, self.agents.accounts.forget_old))
        if not only:
            # It needs the lease of its job; a worker for one run has none.
            tasks.append(MaintenanceTask(ROLL_UP, ROLL_UP_EVERY_MS, UsageRollup(context.store).run))
        if has_archive:
            retention = RetentionTask(self.maintenance.retention_sweep)
            tasks.append(MaintenanceTask("retention", RETENTION_EVERY_MS, retention.run))
        if self._approval_webhook is not None and not only:
            tasks.append(MaintenanceTask("approval-webhook", TELL_EVERY_MS, self._approval_webhook.tell, 0))
        self.schedule = MaintenanceSchedule(
            tenant=context.tenant,
            store=context.store,
            ambient=context.ambient,
            tasks=tasks,
            leased=not only,
        )
        worker.job_handlers["maintain"] = self.schedule.handle
        self.schedule.claim_when_full = worker.claim_maintenance

    def _agent_port(self, tenant: str, context: NodeContext, mask: Callable[[], Mask]) -> AgentPort:
        # Imported here, because few runs have agents.
        from tidemill.engine.agents.agent_port import EngineAgentPort

        services = self.for_tenant(tenant, audited=True)
        return EngineAgentPort(services, context.run_id, context.node, mask, context.read)

    def for_tenant(self, tenant: str, *, audited: bool = False) -> TenantServices:
        """The services of another tenant on the same store; `audited` ones want an actor for every change."""
        services = self._tenants.get((tenant, audited))
        if services is None:
            if len(self._tenants) > TENANTS_KEPT:
                self._tenants.pop(next(each for each in self._tenants if each != (self.context.tenant, False)))
            context = dataclasses.replace(self.context, tenant=tenant, audited=audited)
            services = TenantServices(context, self._shared, begins_maintenance=self._has_maintenance)
            self._tenants[tenant, audited] = services
        return services

    async def publish(
        self, document: Document | Workflow[..., Any], *, author: str = "", message: str = ""
    ) -> Published:
        """Publish a document: a mapping, YAML or JSON text, the path of a file, or a workflow written in Python.

        Refused whole, with every problem in `Rejected.problems`, or taken whole. Of a workflow in Python the functions
        are registered, and the workflows that it starts are published too.
        """
        flow = None if isinstance(document, (str, Mapping)) else authored(document)
        if flow is None:
            assert not isinstance(document, Workflow)
            return await self.workflows.publish(document, author=author, message=message)
        # The workflow function is called, which may take a while.
        add_functions(self._functions, await asyncio.to_thread(lambda: flow.functions), again=True)
        older: dict[str, str] = {}
        for each in flow.family():
            try:
                published = await self.workflows.publish(each.document_with(older), author=author, message=message)
            except Rejected as refusal:
                raise Rejected(each.located(refusal.problems)) from None
            if not published.created and (await self.workflows.show(each.name)).digest != published.digest:
                # A parent would start the latest version of a child that was changed back to this one.
                older[each.name] = f"{each.name}@{published.version}"
        self._published[flow] = f"{published.name}@{published.version}", flow.builds()
        return published

    async def start(
        self,
        /,
        workflow: Document | Workflow[..., Any],
        inputs: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: Seconds | None = None,
        traceparent: str = "",
        **arguments: Any,
    ) -> str:
        """Start a run and return its id once it is durable.

        `key` makes it idempotent: the same key with the same inputs returns the same run, with others it is refused.
        Without `submitted_by` it is the user of this process. A run that has not ended after `deadline_seconds` fails.
        Its spans belong to the trace of `traceparent`, by default to that of the caller's current span.
        Text on one line is the name of a published workflow. A document (a mapping, YAML or JSON text, a `Path`) and a
        workflow written in Python are published first; the latter takes its inputs by name too: `start(report, n=3)`.
        """
        flow = None if isinstance(workflow, str) else authored(workflow)
        if arguments and (flow is None or inputs is not None):
            name = next(iter(arguments))
            near = get_close_matches(name, START_OPTIONS, n=1)
            if flow is None or near:
                meant = f"did you mean {near[0]}?" if near else f"give the inputs as one mapping, {{{name!r}: …}}"
                raise TypeError(f"Engine.start() got the unexpected keyword argument {name!r}: {meant}")
        if flow is not None and inputs is None:
            given = key, labels, submitted_by, correlation_id, deadline_seconds, traceparent
            flow.refuse_options("start", dict(zip(OWN_OPTIONS, given, strict=True)), arguments)
        if flow is not None:
            inputs = flow.run_inputs(inputs, arguments)
        return await self.runs.start(
            workflow if _is_name(workflow) else await self._published_as(workflow),
            inputs,
            key=key,
            labels=labels,
            submitted_by=submitted_by,
            correlation_id=correlation_id,
            deadline_seconds=deadline_seconds,
            traceparent=traceparent,
        )

    async def start_many(
        self,
        workflow: Document | Workflow[..., Any],
        inputs: Iterable[Any],
        *,
        keys: Iterable[str] | None = None,
        labels: Mapping[str, str] | None = None,
        submitted_by: str = "",
        correlation_id: str = "",
        deadline_seconds: Seconds | None = None,
        traceparent: str = "",
    ) -> list[str]:
        """Start a run for each of the `inputs` and return their ids once all are durable.

        All inputs and keys are checked first: if one is refused, no run is started. After an error some runs may have
        started; with `keys`, one for each input, the call can be repeated. `workflow` is what `start` takes.
        """
        flow = None if isinstance(workflow, str) else authored(workflow)
        if isinstance(inputs, (str, bytes, Mapping)) or not isinstance(inputs, Iterable):
            message = f"many runs are started with a list of inputs, not with {type(inputs).__name__}"
            raise rejected("inputs_invalid", message, path="/inputs", hint="write start_many(flow, [{…}, {…}])")
        return await self.runs.start_many(
            workflow if _is_name(workflow) else await self._published_as(workflow),
            inputs if flow is None else [flow.run_inputs(each) for each in inputs],
            keys=keys,
            labels=labels,
            submitted_by=submitted_by,
            correlation_id=correlation_id,
            deadline_seconds=deadline_seconds,
            traceparent=traceparent,
        )

    async def _published_as(self, workflow: Document | Workflow[..., Any]) -> str:
        """The version that a document, or a workflow written in Python, is published as; it is published if need be."""
        if isinstance(workflow, Workflow):
            known = self._published.get(workflow)
            if known is None or known[1] != workflow.builds():
                await self.publish(workflow)
            return self._published[workflow][0]
        published = await self.publish(workflow)
        return f"{published.name}@{published.version}"

    async def run(
        self,
        /,
        workflow: Document | Workflow[..., Any],
        inputs: Any = None,
        *,
        key: str | None = None,
        labels: Mapping[str, str] | None = None,
        timeout: Seconds | None = None,  # noqa: ASYNC109 - as callers guess it
        timeout_s: Seconds | None = None,
        **arguments: Any,
    ) -> RunView:
        """Start a workflow and wait for its end.

        `workflow`, `inputs`, `key` and `labels` are those of `start`. After `timeout` seconds (`timeout_s` is the same)
        it raises TimeoutError, which names the run; the run continues all the same.
        """
        if inputs is None and isinstance(workflow, Workflow):
            own = {"key": key, "labels": labels, "timeout": timeout, "timeout_s": timeout_s}
            workflow.refuse_options("run", own, arguments)
        seconds = timeout_of(timeout, timeout_s)
        run_id = await self.start(workflow, inputs, key=key, labels=labels, **arguments)
        return await self.result(run_id, timeout=seconds)

    @overload
    def register(self, function: FunctionT, /) -> FunctionT: ...
    @overload
    def register(self, *functions: Function, **named: Function) -> Function | None: ...
    def register(self, *functions: Function, **named: Function) -> Function | None:
        """Add functions that nodes of type `python` call by name, or replace them by new ones of the same name.

        A function has the name that it was marked with, else its own; `register(score=f)` gives it another. Also a
        decorator: it returns the first function. Attempts that have begun keep the function they have. Functions of a
        workflow replace only those that were defined again: others of their names are refused.
        """
        found = function_registry(functions)
        given = function_registry([each for each in functions if not isinstance(each, Workflow)])
        add_functions(self._functions, {name: each for name, each in found.items() if name not in given}, again=True)
        self._functions.update({**given, **function_registry(named)})
        return functions[0] if functions else None

    async def open(self) -> Engine:
        await self._store.open()
        await self._blobs.open()
        if self._ownership is not None:
            try:
                await self._ownership.verify_or_claim()
            except BaseException:
                await self._blobs.close()
                await self._store.close()
                raise
        self.turns.open()
        if self.worker is not None:
            self._runtime.open()
        for part in (self.worker, self.registry, self.schedule):
            if part is not None:
                part.open()
        return self

    def drain(self) -> None:
        """Stop claiming jobs, and announce it to other processes; `close` waits for running attempts."""
        if self.worker is not None:
            self.worker.drain()
        if self.registry is not None:
            self.registry.announce()

    def release_output(self) -> None:
        """Stop capturing what handlers print; for a simulation that ends without closing."""
        self._runtime.capture.remove()

    async def close(self) -> None:
        self.drain()
        parts = (self.schedule, self.worker, self._approval_webhook, self._runtime, self.registry)
        for part in (*parts, self.turns, self.spans, self.metrics, self._blobs, self._store):
            if part is not None:
                await part.close()

    async def __aenter__(self) -> Engine:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()
