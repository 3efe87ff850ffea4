"""Composition root: URL → store, blobs, archive, handlers, engine. The only file that names concrete classes.

Engines, stores and places for blobs are imported where one is made: a command that checks a document needs none of
them. In URLs of files and folders three slashes begin a relative path, and four an absolute one.
"""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from tidemill.ambient import RealAmbient
from tidemill.blobs.s3 import Bucket
from tidemill.errors import Rejected, rejected
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxExecutor, SandboxPool
from tidemill.handlers.contract import Handler, NodeClass, handler_of
from tidemill.handlers.control import BORDERS, PLAIN, WAITING
from tidemill.handlers.data.pipeline import pipeline_handler
from tidemill.handlers.data.search import SEARCHING
from tidemill.handlers.data.transform import transform_handler
from tidemill.handlers.discovery import NodeTypeSource, UnusableNodeType, collect_node_types, installed
from tidemill.handlers.email import email_handler
from tidemill.handlers.http.node import http_handler
from tidemill.handlers.http.webhook import webhook_handler
from tidemill.handlers.llm.classify import classify_handler
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.openai import openai_provider
from tidemill.handlers.llm.provider import scripted
from tidemill.handlers.python.functions import Function, function_registry
from tidemill.handlers.python.node import python_handler
from tidemill.handlers.shell import remove_leftovers, shell_handler
from tidemill.handlers.sql import Database, LateDatabase, sql_handler
from tidemill.kernel.model import RETENTION_BY_STORE, RETENTION_DAYS, NodeType
from tidemill.net.egress import TcpConnector
from tidemill.net.http_client import Fetcher
from tidemill.observability.metrics import Metrics
from tidemill.security.grants import ANY
from tidemill.security.identity import OPERATOR_TENANT, check_tenant_name
from tidemill.security.secrets import ChainedSecrets, EnvironmentSecrets, FolderSecrets, GrantedSecrets
from tidemill.settings import Settings, read_settings
from tidemill.version import __version__

if TYPE_CHECKING:
    from tidemill.blobs.archive import Archive
    from tidemill.blobs.contract import Blobs
    from tidemill.blobs.directory import DirectoryBlobs
    from tidemill.blobs.s3 import S3Blobs
    from tidemill.engine.engine import Engine
    from tidemill.engine.maintenance.approval_webhook import ApprovalWebhook
    from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
    from tidemill.stores.contract import Store
    from tidemill.stores.optional import TransactionalStatements
    from tidemill.stores.postgres.database import Place as PostgresPlace
    from tidemill.stores.redis.database import Place as RedisPlace
    from tidemill.stores.sql_files import Step
    from tidemill.stores.sql_text import Dialect
    from tidemill.stores.sqlite.store import SqliteStore


DEFAULT_URL = "sqlite:///tidemill.db"
SCHEMES = "sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE, redis://HOST or memory://"
ARCHIVE_VARIABLE = "TIDEMILL_ARCHIVE"
IMAGE_VARIABLE = "TIDEMILL_IMAGE"
POSTGRES = ("postgresql", "postgres")
REDIS = ("redis", "rediss")
REDIS_RETENTION_DAYS = 7.0
BUILT_IN = "Tidemill"
GIVEN = "`handlers`"
"""Where node types come from that no distribution offers."""
LOG = logging.getLogger(__name__)


def built_in_handlers(
    functions: Mapping[str, Callable[..., Any]] | None = None,
    carrier: SandboxExecutor | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
) -> tuple[Handler, ...]:
    """The node types that come with Tidemill; `carrier` does in other processes what is too much for this one."""
    settings = settings or read_settings()
    fetcher, carrier = Fetcher(settings.egress), carrier or NoSandbox()
    http = http_handler(fetcher, carrier)
    models = {"openai": openai_provider(fetcher), "scripted": scripted}
    return (
        *PLAIN,
        *WAITING,
        *BORDERS,
        *SEARCHING,
        python_handler({} if functions is None else functions, settings.imports, granted=settings.functions),
        http,
        webhook_handler(fetcher),
        llm_handler(models, fetcher.close),
        classify_handler(models, fetcher.close),
        pipeline_handler(http, carrier),
        transform_handler(carrier),
        shell_handler(enabled=settings.shell),
        email_handler(TcpConnector(fetcher.egress), settings.smtp),
        _sql_handler(store, settings),
    )


def _sql_handler(store: Store | None, settings: Settings) -> Handler:
    """Statements on the store itself need one that takes them; a process without a store does not know."""
    own: TransactionalStatements | None = _sqlite(store)
    dialect: Dialect = "sqlite"
    if store is not None and own is None and "tidemill.stores.postgres.store" in sys.modules:
        from tidemill.stores.postgres.store import PostgresStore

        if isinstance(store, PostgresStore):
            own, dialect = store, "postgresql"
    has_own = store is None or own is not None
    return sql_handler(databases(settings), own, settings.sql, has_own=has_own, dialect=dialect)


def databases(settings: Settings) -> dict[str, Database]:
    return {name: _database_at(url, source) for name, (url, source) in settings.databases.items()}


def _database_at(url: str, source: str) -> Database:
    """The database behind a URL, which is never shown: it may hold a password."""
    if url.startswith("sqlite:///") and _file_of(url).name:
        from tidemill.handlers.sql import SqliteDatabase

        return SqliteDatabase(_file_of(url))
    if url.startswith(("postgresql://", "postgres://")):

        def postgres() -> Database:
            from tidemill.handlers.sql_postgres import PostgresDatabase

            return PostgresDatabase(url)

        return LateDatabase("postgresql", postgres)
    hint = "write sqlite:////var/crm.db or postgresql://user:password@host/name"
    raise rejected("database_unknown", "this is neither sqlite:///FILE nor postgresql://…", path=source, hint=hint)


def _sqlite(store: Store | None) -> SqliteStore | None:
    """A store that is a file and takes statements; None for any other."""
    if store is None:
        return None
    from tidemill.stores.sqlite.store import SqliteStore

    return store if isinstance(store, SqliteStore) else None


class NodeTypes(NamedTuple):
    """The node types that there are, with their origins, and those that cannot be used."""

    offers: tuple[NodeTypeSource, ...]
    broken: tuple[UnusableNodeType, ...] = ()

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(offer.handler for offer in self.offers)

    @property
    def unusable_types(self) -> tuple[str, ...]:
        """What to say of a type that is not there: it may be one of those that cannot be used."""
        return tuple(map(str, self.broken))

    @property
    def not_built_in(self) -> tuple[NodeType, ...]:
        """Those that a process may lack."""
        return tuple(offer.handler.type for offer in self.offers if offer.origin != BUILT_IN)

    def log_broken(self) -> None:
        for broken in self.broken:
            LOG.warning("%s", broken)

    @property
    def by_name(self) -> dict[str, Sequence[NodeType]]:
        """What the compiler knows of them."""
        types: dict[str, list[NodeType]] = {}
        for handler in self.handlers:
            types.setdefault(handler.type.name, []).append(handler.type)
        return {**types}


def node_types(
    functions: Mapping[str, Callable[..., Any]] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    carrier: SandboxExecutor | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
) -> NodeTypes:
    """Those that come with Tidemill, those that installed distributions offer, and those that are given."""
    own = [NodeTypeSource(handler, BUILT_IN) for handler in built_in_handlers(functions, carrier, store, settings)]
    given = [NodeTypeSource(handler_of(handler), GIVEN) for handler in handlers]
    return NodeTypes(*collect_node_types(own, installed(), given))


def built_in_types() -> dict[str, Sequence[NodeType]]:
    return NodeTypes(tuple(NodeTypeSource(handler, BUILT_IN) for handler in built_in_handlers())).by_name


class Storage(NamedTuple):
    store: Store
    blobs: Blobs
    ownership: BlobPlaceOwnership | None = None
    """Which of them belong together, where they could be mixed up."""


class NamedMemory:
    """Memory stores by name. A store stays, with what it holds, when the engines that opened it are closed."""

    def __init__(self) -> None:
        self._storages: dict[str, Storage] = {}

    def storage(self, name: str) -> Storage:
        """The store of that name, made when it is first asked for."""
        from tidemill.blobs.memory import MemoryBlobs
        from tidemill.stores.memory import SharedMemoryStore

        return self._storages.setdefault(name, Storage(SharedMemoryStore(), MemoryBlobs()))


NAMED_MEMORY = NamedMemory()
"""The one that `memory://NAME` means unless the caller passes its own."""


def open_storage(url: str, *, named_memory: NamedMemory = NAMED_MEMORY, read_only: bool = False) -> Storage:
    """The store behind a URL: `sqlite:///FILE`, `postgresql://…`, `redis://…`, `memory://` (new) or `memory://NAME`.

    The last is shared by `named_memory`. With `?durability=relaxed` a power cut may lose the last moments of a file. A
    `read_only` store is neither created nor migrated nor changed.
    """
    try:
        parts = urlsplit(url)
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        raise _unknown(url) from None
    _check_spelling(url)
    options = dict(pairs)
    if len(options) < len(pairs):
        message = f"{without_password(url)!r} has an option twice"
        raise rejected("store_option_unknown", message, hint="name each option once")
    match parts.scheme:
        case "memory" if not options:
            from tidemill.blobs.memory import MemoryBlobs
            from tidemill.stores.memory import MemoryStore

            name = parts.netloc + parts.path
            return named_memory.storage(name) if name else Storage(MemoryStore(), MemoryBlobs())
        case "sqlite":
            return _in_file(url, parts.netloc, parts.path, options, read_only)
        case "postgresql" | "postgres":
            return _in_postgres(url, read_only)
        case "redis" | "rediss":
            return _in_redis(url, read_only)
        case _:
            raise _unknown(url)


def require_store_exists(url: str) -> None:
    """Refuse the URL of a store that does not exist, for commands that only read one."""
    if urlsplit(url).scheme in POSTGRES:
        place = _postgres_place(url)
        if not any(step.applied_ms for step in asyncio.run(_migrated_postgres(place, dry_run=True))):
            from tidemill.stores.postgres.database import missing_store

            raise missing_store(place)
        return
    if urlsplit(url).scheme in REDIS:
        there = _redis_place(url)
        from tidemill.stores.redis import opening

        if asyncio.run(opening.recorded(there)) is None:
            raise opening.missing_store(there)
        return
    store = _sqlite(open_storage(url).store)
    if store is not None:
        from tidemill.stores.sqlite.database import require_file

        require_file(store.path, _file_of(url))


def migrated(url: str, *, dry_run: bool = False) -> tuple[Step, ...]:
    """Bring a store to the schema that this version knows, or say what that would take; answers its migrations."""
    if urlsplit(url).scheme in POSTGRES:
        return asyncio.run(_migrated_postgres(_postgres_place(url), dry_run))
    from tidemill.stores.sqlite.database import steps

    store = _sqlite(open_storage(url).store)
    return steps(store.path, dry_run=dry_run) if store is not None else ()


async def _migrated_postgres(place: PostgresPlace, dry_run: bool) -> tuple[Step, ...]:
    from tidemill.stores.postgres.database import Link, steps

    link = Link(place, opened=False)
    try:
        return await steps(link, dry_run=dry_run)
    finally:
        await link.drop()


def _in_file(url: str, host: str, path: str, options: dict[str, str], read_only: bool) -> Storage:
    if host or len(path) < 2 or path.endswith("/"):
        raise rejected("store_unknown", f"{without_password(url)!r} names no file", hint="write sqlite:///tidemill.db")
    match options.pop("durability", "full"):
        case ("full" | "relaxed") as durability:
            pass
        case other:
            message = f"durability is full or relaxed, not {other!r}"
            raise rejected("store_option_unknown", message, path="/durability")
    blobs = options.pop("blobs", None)
    if options:
        message = f"a SQLite store has no option {next(iter(options))!r}"
        raise rejected("store_option_unknown", message, hint="the options are durability and blobs")
    from tidemill.blobs.sqlite import DatabaseBlobs
    from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
    from tidemill.stores.sqlite.database import connect, connect_to_read, translate_error
    from tidemill.stores.sqlite.store import SqliteStore

    store = SqliteStore(_file_of(url), durability=durability, read_only=read_only)
    inside = DatabaseBlobs(store.path, connect_to_read if read_only else connect, translate_error)
    outside = blobs_at(blobs, read_only=read_only) if blobs is not None else None
    ownership = BlobPlaceOwnership(store, store.path, inside, outside, RealAmbient(), read_only=read_only)
    return Storage(store, outside or inside, ownership)


def _in_postgres(url: str, read_only: bool) -> Storage:
    place = _postgres_place(url, read_only)
    from tidemill.blobs.postgres import PostgresBlobs
    from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
    from tidemill.stores.postgres.database import Readers
    from tidemill.stores.postgres.store import PostgresStore

    store = PostgresStore(place)
    inside = PostgresBlobs(lambda: Readers(place))
    outside = blobs_at(place.blobs, read_only=read_only) if place.blobs else None
    ownership = BlobPlaceOwnership(store, store.address, inside, outside, RealAmbient(), read_only=read_only)
    return Storage(store, outside or inside, ownership)


def _postgres_place(url: str, read_only: bool = False) -> PostgresPlace:
    try:
        from tidemill.stores.postgres.database import place_at
    except ImportError:
        message = "a PostgreSQL store needs psycopg, which is not installed"
        raise rejected("extra_missing", message, hint="pip install 'tidemill[postgres]'") from None
    return place_at(url, read_only=read_only)


def _in_redis(url: str, read_only: bool) -> Storage:
    place = _redis_place(url)
    from tidemill.ambient import RealAmbient
    from tidemill.blobs.redis import RedisBlobs
    from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
    from tidemill.stores.redis.opening import BlobSpaces
    from tidemill.stores.redis.store import RedisStore

    store = RedisStore(place, read_only=read_only)
    inside = RedisBlobs(lambda: BlobSpaces(place))
    outside = blobs_at(place.blobs, read_only=read_only) if place.blobs else None
    ownership = BlobPlaceOwnership(store, store.address, inside, outside, RealAmbient())
    return Storage(store, outside or inside, ownership)


def _redis_place(url: str) -> RedisPlace:
    try:
        from tidemill.stores.redis.database import place_at
    except ImportError:
        message = "a Redis store needs redis and hiredis, which are not installed"
        raise rejected("extra_missing", message, hint="pip install 'tidemill[redis]'") from None
    return place_at(url)


def blobs_at(url: str, *, read_only: bool = False) -> DirectoryBlobs | S3Blobs:
    """The place for large values behind a URL: `dir:///FOLDER` or `s3://BUCKET/PREFIX?endpoint=…&region=…&sse=…`."""
    from tidemill.blobs.directory import DirectoryBlobs
    from tidemill.blobs.s3 import S3Blobs

    place = place_of(url)
    return DirectoryBlobs(place, read_only=read_only) if isinstance(place, Path) else S3Blobs(place)


def archive_at(location: str | None, store_url: str) -> Archive | None:
    """Where old runs go: `location`, else that of the environment, else beside the store's file; `none`: nowhere."""
    from tidemill.blobs.archive import DirectoryArchive, S3Archive

    location = location or os.environ.get(ARCHIVE_VARIABLE)
    if location is None and urlsplit(store_url).scheme == "sqlite":
        from tidemill.stores.sqlite.database import resolve_path

        file = resolve_path(_file_of(store_url))
        return DirectoryArchive(file.with_name(file.name + "-archive"))
    if location in (None, "none"):
        return None
    from tidemill.blobs.s3 import open_bucket

    try:
        place = place_of(location) if "://" in location else Path(location)
    except Rejected as refusal:
        hint = f"{refusal.problems[0].hint}; a folder may be written as it is"
        message = f"{without_password(location)!r} is no place for an archive"
        raise rejected("archive_unknown", message, hint=hint) from None
    return DirectoryArchive(place, named=True) if isinstance(place, Path) else S3Archive(open_bucket(place))


def _file_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path[1:]))


def _check_spelling(url: str) -> None:
    """Refuse what would be read as the name of another file than the one that was meant."""
    scheme, _, rest = url.partition(":")
    if scheme.strip().lower() == "sqlite" and not rest.startswith("//"):
        raise rejected("store_unknown", f"{without_password(url)!r} lacks slashes", hint=f"write sqlite:///{rest}")
    if "#" in url:
        message = f"{without_password(url)!r} has a #, which ends a URL"
        raise rejected("store_unknown", message, hint="write %23 where it belongs to a name")
    if any(character in url for character in "\t\r\n"):
        message = f"{without_password(url)!r} has a tab or the end of a line in it"
        raise rejected("store_unknown", message, hint="write %09, %0A or %0D where it belongs to a name")


def without_password(url: str) -> str:
    """A URL as messages show it."""
    url = re.sub(r"^([^:/@]*:(?://)?[^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*", r"\1***", url)


def _unknown(url: str) -> Rejected:
    return rejected("store_unknown", f"no store is known for {without_password(url)!r}", hint=f"use {SCHEMES}")


def _settings_of(settings: Settings, *, work: bool) -> Settings:
    """What the operator has not said: a worker in the author's own process imports any function, and does no SQL."""
    if not work:
        return settings
    imports = ANY if settings.imports is None else settings.imports
    sql = msgspec.structs.replace(settings.sql, enabled=bool(settings.sql.enabled))
    return msgspec.structs.replace(settings, imports=imports, sql=sql)


def _secrets_of(settings: Settings) -> GrantedSecrets:
    secrets = ChainedSecrets(EnvironmentSecrets(), *map(FolderSecrets, filter(None, [settings.secrets_folder])))
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
    tenant: str = OPERATOR_TENANT,
) -> Engine:
    """An engine on a store, with a worker in this process unless `work` is off; it serves all queues by default.

    `only` names a run that alone is worked on, with its children; a `standing` worker leaves what it lacks to others,
    also while there are none. Runs that ended `retention_days` ago go to the `archive`; without one they stay.
    `settings` are by default those of the file and the environment; without imports in them, any is allowed.
    """
    from tidemill.engine.engine import Engine
    from tidemill.engine.worker.worker import WorkerOptions
    from tidemill.triggers.scheduler import serve_schedules

    check_tenant_name(tenant)
    ambient, storage = RealAmbient(), open_storage(url, read_only=read_only)
    processes = SandboxPool() if work else None  # For what is too much for the worker's own process.
    settings, registry = _settings_of(settings or read_settings(), work=work), function_registry(functions)
    types = node_types(registry, handlers, processes, storage.store, settings)
    types.log_broken()
    _remove_leftovers(settings, work=work)
    options = WorkerOptions(
        **_process_facts(name, ambient.new_id()[-8:], work=work),
        queues=tuple(queues),
        only=only,
        standing=standing,
        concurrency=concurrency,
        grace_ms=grace_ms,
        beat_ms=beat_ms,
        dead_after_ms=dead_after_ms,
        lease_ms=dead_after_ms,  # A worker loses its work when it counts as dead, and not before.
    )
    engine = Engine(
        store=storage.store,
        blobs=storage.blobs,
        ambient=ambient,
        handlers=types.handlers,
        worker=options if work else None,
        tenant=tenant,
        fleet=OPERATOR_TENANT,
        user=os_user(),
        archive=archive_at(archive, url),
        retention_days=_retention_of(url, retention_days),
        input_bytes_max=settings.limits.input_bytes,
        descendants_max=settings.limits.max_descendants,
        isolation=processes,
        secrets=_secrets_of(settings),
        unusable_types=types.unusable_types,
        offers=types.not_built_in,
        ownership=storage.ownership,
        functions=registry,
        metrics=Metrics() if metrics else None,
        tenant_handlers=_tenant_handlers(types, registry, processes, storage.store, settings),
        approval_webhook=_approval_webhook(storage.store, settings),
    )
    serve_schedules(engine)
    return engine


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
        DecisionLinks(server.secret),
    )


def _process_facts(name: str, unique: str, *, work: bool) -> dict[str, Any]:
    """What a worker says of its process."""
    host, pid, image = socket.gethostname(), os.getpid(), os.environ.get(IMAGE_VARIABLE, "")
    version = __version__ if work else ""
    return {"name": f"{name or host}/{pid}/{unique}", "host": host, "pid": pid, "version": version, "image": image}


def _remove_leftovers(settings: Settings, *, work: bool) -> None:
    if work and settings.shell:
        threading.Thread(target=remove_leftovers, name="tidemill-leftovers", daemon=True).start()


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


FORMS = "write dir:///FOLDER or s3://BUCKET/PREFIX"
OPTIONS = ("endpoint", "region", "sse", "kms_key_id")
"""Options of a bucket, spelled as in `Bucket`."""


def place_of(url: str) -> Path | Bucket:
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _unknown_blobs(url, FORMS) from None
    path = unquote(parts.path)
    if parts.scheme == "dir" and not parts.netloc and len(path) > 1 and not options:
        return Path(path[1:])
    if parts.scheme == "s3" and parts.netloc:
        return _bucket(url, parts.netloc, path.strip("/"), options)
    raise _unknown_blobs(url, FORMS)


def _bucket(url: str, name: str, prefix: str, options: dict[str, str]) -> Bucket:
    other = next((option for option in options if option not in OPTIONS), None)
    if other is not None:
        raise _unknown_blobs(url, f"{other!r} is no option; there are {', '.join(OPTIONS)}")
    match options.get("sse", ""):
        case "" | "AES256" | "aws:kms" as sse:
            pass
        case _:
            raise _unknown_blobs(url, "sse is AES256 or aws:kms")
    key = options.get("kms_key_id", "")
    if key and sse != "aws:kms":
        raise _unknown_blobs(url, "kms_key_id needs sse=aws:kms")
    where = {"endpoint": options.get("endpoint", ""), "region": options.get("region", "")}
    return Bucket(name=name, prefix=prefix, sse=sse, kms_key_id=key, **where)


def _unknown_blobs(url: str, hint: str) -> Rejected:
    return rejected("blobs_unknown", f"no place for blobs is known for {without_password(url)!r}", hint=hint)
