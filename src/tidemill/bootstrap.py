"""Composition root: URL → store, blobs, archive, handlers, engine. This file and `node_types` name concrete classes.

Engines, stores and places for blobs are imported where one is made: a command that checks a document needs none of
them. In URLs of files and folders three slashes begin a relative path, and four an absolute one.
"""

from __future__ import annotations

import getpass
import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from tidemill.agents.mcp.mcp_client import McpServers, survey
from tidemill.ambient import RealAmbient
from tidemill.errors import rejected
from tidemill.expressions.sandbox.pool import SandboxExecutor, SandboxPool
from tidemill.handlers.contract import Fail, Handler, NodeClass
from tidemill.handlers.python.functions import Function, function_registry
from tidemill.handlers.shell import remove_leftovers
from tidemill.kernel.model import RETENTION_BY_STORE, RETENTION_DAYS
from tidemill.kernel.spending import Budget
from tidemill.node_types import BUILT_IN, NodeTypes, built_in_handlers, node_types, secret_sources
from tidemill.observability.metrics import Metrics
from tidemill.observability.tracing import Tracing, tracing_of
from tidemill.security.grants import ANY
from tidemill.security.roles import OPERATOR_TENANT, check_tenant_name
from tidemill.security.secrets import GrantedSecrets
from tidemill.settings import Settings, read_settings
from tidemill.storage_urls import DEFAULT_URL, REDIS, archive_at, open_storage
from tidemill.version import __version__

if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

    from tidemill.engine.engine import Engine
    from tidemill.engine.maintenance.approval_webhook import ApprovalWebhook
    from tidemill.stores.contract import Store


IMAGE_VARIABLE = "TIDEMILL_IMAGE"
REDIS_RETENTION_DAYS = 7.0
CONCURRENCY_MAX = 10_000
LOG = logging.getLogger(__name__)


def _settings_of(settings: Settings, *, work: bool) -> Settings:
    """What the operator has not said: a worker in the author's own process imports any function, and does no SQL."""
    if not work:
        return settings
    if settings.shell:
        threading.Thread(target=remove_leftovers, name="tidemill-leftovers", daemon=True).start()
    imports = ANY if settings.imports is None else settings.imports
    sql = msgspec.structs.replace(settings.sql, enabled=bool(settings.sql.enabled))
    return msgspec.structs.replace(settings, imports=imports, sql=sql)


async def survey_mcp_server(name: str) -> list[dict[str, str]]:
    """What an MCP server offers now, and which of it the operator has approved. Raises Rejected."""
    settings = read_settings()
    servers = McpServers(settings.mcp, settings.egress, secret_sources(settings))
    try:
        server = servers.get(name)
        return survey(server, await server.definitions())
    except Fail as failed:
        raise rejected(failed.code, failed.message, hint=failed.hint) from None
    finally:
        await servers.close()


def _secrets_of(settings: Settings) -> GrantedSecrets:
    secrets = secret_sources(settings)
    bound = {name: each.secrets for name, each in settings.tenants.items() if each.secrets is not None}
    return GrantedSecrets(secrets, settings.secrets, bound)


def _tenant_handlers(
    types: NodeTypes,
    functions: Mapping[str, Function],
    carrier: SandboxExecutor | None,
    store: Store,
    settings: Settings,
) -> dict[str, tuple[Handler, ...]]:
    """The handlers of tenants that have grants of their own: the same node types, made with those grants."""
    found: dict[str, tuple[Handler, ...]] = {}
    for tenant in settings.tenants:
        made = built_in_handlers(functions, carrier, store, settings.of_tenant(tenant))
        own = {handler.type.key: handler for handler in made}
        handlers = (own[each.handler.type.key] if each.origin == BUILT_IN else each.handler for each in types.offers)
        found[tenant] = tuple(handlers)
    return found


def engine_at(
    url: str = DEFAULT_URL,
    *,
    functions: Mapping[str, Function] | Iterable[Function] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    work: bool = True,
    concurrency: int = 64,
    queues: Sequence[str] = (),
    only: str = "",
    standing: bool = False,
    name: str = "",
    grace_ms: int = 30_000,
    beat_ms: int = 5_000,
    dead_after_ms: int = 15_000,
    archive: str | None = None,
    retention_days: float | None = RETENTION_BY_STORE,
    settings: Settings | None = None,
    read_only: bool = False,
    metrics: bool = False,
    tracer_provider: TracerProvider | None = None,
    tenant: str = OPERATOR_TENANT,
) -> Engine:
    """An engine on a store, with a worker in this process unless `work` is off; it serves all queues by default.

    `only` names a run that alone is worked on, with its children; a `standing` worker leaves what it lacks to others,
    also while there are none. Runs that ended `retention_days` ago go to the `archive`; without one they stay.
    `settings` are by default those of the file and the environment; without imports in them, any is allowed.
    """
    from tidemill.engine.engine import Engine
    from tidemill.engine.worker.leases import WorkerOptions
    from tidemill.triggers.scheduler import serve_schedules

    check_tenant_name(tenant)
    ambient, storage = RealAmbient(), open_storage(url, read_only=read_only)
    processes = SandboxPool() if work else None  # For what is too much for the worker's own process.
    settings, registry = _settings_of(_checked_settings(settings, work=work), work=work), function_registry(functions)
    types = node_types(registry, handlers, processes, storage.store, settings)
    options = WorkerOptions(
        **_process_facts(name, ambient.new_id()[-8:], work=work),
        queues=tuple(queues),
        only=only,
        standing=standing,
        concurrency=_checked_concurrency(concurrency),
        value_memory=settings.limits.value_memory,
        grace_ms=grace_ms,
        beat_ms=beat_ms,
        dead_after_ms=dead_after_ms,
        lease_ms=dead_after_ms,  # A worker loses its work when it counts as dead, and not before.
    )
    engine = Engine(
        **storage._asdict(),
        ambient=ambient,
        **_types_of(types),
        worker=options if work else None,
        tenant=tenant,
        fleet=OPERATOR_TENANT,
        user=os_user(),
        archive=archive_at(archive, url),
        retention_days=_retention_of(url, retention_days),
        **_limits_of(settings),
        isolation=processes,
        secrets=_secrets_of(settings),
        functions=registry,
        metrics=Metrics() if metrics else None,
        tracing=_tracing(settings, tracer_provider, work=work),
        tenant_handlers=_tenant_handlers(types, registry, processes, storage.store, settings),
        approval_webhook=_approval_webhook(storage.store, settings),
    )
    serve_schedules(engine)
    return engine


def _checked_settings(settings: object, *, work: bool) -> Settings:
    if settings is not None and not isinstance(settings, Settings):
        message = f"settings are those of tidemill.settings.read_settings(), not {type(settings).__name__}"
        hint = "write `settings=read_settings(FILE)`, or leave it out for `tidemill.toml` and the environment"
        raise rejected("option_invalid", message, hint=hint)
    return settings or read_settings(secrets=work)


def _checked_concurrency(number: object) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= CONCURRENCY_MAX:
        message = f"concurrency is {number!r}, and must be a whole number from 1 to {CONCURRENCY_MAX:,}"
        raise rejected("option_invalid", message, hint="leave it out for 64; work=False runs no nodes")
    return number


def _tracing(settings: Settings, provider: TracerProvider | None, *, work: bool) -> Tracing | None:
    wanted = settings.tracing
    tracing = tracing_of(provider, enabled=wanted.enabled, content=wanted.content)
    if tracing is not None and work:
        # A worker loads OpenTelemetry before it has work; another process only if it ends something.
        tracing.open()
    return tracing


def _limits_of(settings: Settings) -> dict[str, Any]:
    limits = settings.limits
    money = limits.agent_money_per_day
    micros = None if money is None else round(money * 1_000_000)
    return {
        "input_bytes_max": limits.input_bytes,
        "descendants_max": limits.max_descendants,
        "day_budget": Budget(limits.agent_calls_per_day, limits.agent_tokens_per_day, micros),
    }


def _types_of(types: NodeTypes) -> dict[str, Any]:
    """The node types as arguments of an engine; unusable ones are logged."""
    types.log_broken()
    return {
        "handlers": types.handlers,
        "unusable_types": types.unusable_types,
        "offers": types.not_built_in,
    }


def _approval_webhook(store: Store, settings: Settings) -> ApprovalWebhook | None:
    server = settings.server
    if not server.approval_webhook:
        return None
    from tidemill.engine.maintenance.approval_webhook import ApprovalWebhook
    from tidemill.security.signing import DecisionLinks

    return ApprovalWebhook(
        store,
        settings.egress,
        server.approval_webhook,
        server.approval_webhook_keys,
        server.public_url,
        DecisionLinks(server.secret, server.link_hours),
    )


def _process_facts(name: str, unique: str, *, work: bool) -> dict[str, Any]:
    """What a worker says of its process.

    Every tenant reads its name in events and in `why`: the host and the pid are in it only if the operator gives none.
    """
    host, pid, image = socket.gethostname(), os.getpid(), os.environ.get(IMAGE_VARIABLE, "")
    version = __version__ if work else ""
    return {"name": f"{name or f'{host}/{pid}'}/{unique}", "host": host, "pid": pid, "version": version, "image": image}


def _retention_of(url: str, days: float | None) -> float | None:
    if days != RETENTION_BY_STORE:
        return days
    return REDIS_RETENTION_DAYS if urlsplit(url).scheme in REDIS else RETENTION_DAYS


def os_user() -> str:
    """The user of this process; empty where the operating system knows none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
