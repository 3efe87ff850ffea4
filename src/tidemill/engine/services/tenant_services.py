"""The services of one tenant. Tenants share the store, the caches, the turns and the fleet of workers."""

from __future__ import annotations

from typing import NamedTuple

from tidemill.blobs.archive import Archive
from tidemill.engine.agents.composite_tools import CompositeToolService
from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
from tidemill.engine.maintenance.usage import UsageService
from tidemill.engine.services.access import AuditService, CredentialDirectory, KeyService, TenantService
from tidemill.engine.services.approvals import ApprovalService
from tidemill.engine.services.blobs import BlobService
from tidemill.engine.services.bulk import BulkService
from tidemill.engine.services.concurrency import ConcurrencyService
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.services.dead_letters import DeadLetterService
from tidemill.engine.services.inspection import InspectionService
from tidemill.engine.services.maintenance import MaintenanceService
from tidemill.engine.services.patches import PatchService
from tidemill.engine.services.runs import RunService
from tidemill.engine.services.workers import QueueService, WorkerService
from tidemill.engine.services.workflows import WorkflowService


class SharedParts(NamedTuple):
    """What the services of all tenants use, beside their contexts."""

    workers: WorkerService
    user: str
    archive: Archive | None
    retention_days: float | None
    ownership: BlobPlaceOwnership | None
    credentials: CredentialDirectory


class TenantServices:
    def __init__(self, context: ServiceContext, shared: SharedParts, *, begins_maintenance: bool) -> None:
        self.context, self.workers = context, shared.workers
        self.runs = RunService(context, shared.user, begins_maintenance=begins_maintenance)
        self.many = BulkService(self.runs)
        self.patches = PatchService(context)
        self.approvals = ApprovalService(context)
        self.dead_letters = DeadLetterService(context, self.runs, self.patches)
        self.workflows = WorkflowService(context)
        self.inspection = InspectionService(context, shared.workers)
        self.blobs = BlobService(context, shared.ownership)
        self.concurrency = ConcurrencyService(context.store, context.limits, audited=context.audited)
        self.maintenance = MaintenanceService(
            context, shared.archive, shared.retention_days, shared.workers, shared.ownership
        )
        self.usage, self.queues = UsageService(context), QueueService(context)
        self.credentials = shared.credentials
        self.keys = KeyService(context, shared.credentials)
        self.tenants = TenantService(context)
        self.audit = AuditService(context)
        self.tools = CompositeToolService(context)
