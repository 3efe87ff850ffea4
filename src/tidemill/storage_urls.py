"""URL → store, blobs and archive: the part of the composition root that names concrete stores.

Stores and places for blobs are imported where one is made: a command that checks a document needs none of them. In URLs
of files and folders three slashes begin a relative path, and four an absolute one.
"""

from __future__ import annotations

import asyncio
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from tidemill.ambient import RealAmbient
from tidemill.blobs.s3 import Bucket
from tidemill.errors import Rejected, rejected

if TYPE_CHECKING:
    from tidemill.blobs.archive import Archive
    from tidemill.blobs.contract import Blobs
    from tidemill.blobs.directory import DirectoryBlobs
    from tidemill.blobs.s3 import S3Blobs
    from tidemill.engine.maintenance.blob_gc import BlobPlaceOwnership
    from tidemill.stores.contract import Store
    from tidemill.stores.postgres.database import Place as PostgresPlace
    from tidemill.stores.redis.database import Place as RedisPlace
    from tidemill.stores.sql_files import Step
    from tidemill.stores.sqlite.store import SqliteStore


DEFAULT_URL = "sqlite:///tidemill.db"
SCHEMES = "sqlite:///FILE, postgresql://USER:PASSWORD@HOST/DATABASE, redis://HOST or memory://"
ARCHIVE_VARIABLE = "TIDEMILL_ARCHIVE"
POSTGRES = ("postgresql", "postgres")
REDIS = ("redis", "rediss")


def store_url(given: str | os.PathLike[str]) -> str:
    """The URL of a store; a path is that of a SQLite file."""
    if isinstance(given, str):
        return given
    if isinstance(given, os.PathLike):
        return f"sqlite:///{quote(os.fspath(given))}"
    raise rejected("store_unknown", f"a store has a URL, and {given!r} is none", hint=f"use {SCHEMES}")


def as_sqlite(store: Store | None) -> SqliteStore | None:
    """A store that is a file and takes statements; None for any other."""
    if store is None:
        return None
    from tidemill.stores.sqlite.store import SqliteStore

    return store if isinstance(store, SqliteStore) else None


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
        """The store of that name, created on first use."""
        from tidemill.blobs.memory import MemoryBlobs
        from tidemill.stores.memory import SharedMemoryStore

        return self._storages.setdefault(name, Storage(SharedMemoryStore(), MemoryBlobs()))


NAMED_MEMORY = NamedMemory()
"""The one that `memory://NAME` means unless the caller passes its own."""


def open_storage(url: str, *, named_memory: NamedMemory = NAMED_MEMORY, read_only: bool = False) -> Storage:
    """The store that a URL names: `sqlite:///FILE`, `postgresql://…`, `redis://…`, `memory://` (new) or `memory://NAME`.

    The last is shared by `named_memory`. With `?durability=relaxed` a power cut may lose the most recent commits. A
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
    store = as_sqlite(open_storage(url).store)
    if store is not None:
        from tidemill.stores.sqlite.database import require_file

        require_file(store.path, file_of(url))


def migrated(url: str, *, dry_run: bool = False) -> tuple[Step, ...]:
    """Migrate a store to the schema of this version, or with `dry_run` only read it; returns its migrations."""
    if urlsplit(url).scheme in POSTGRES:
        return asyncio.run(_migrated_postgres(_postgres_place(url), dry_run))
    if urlsplit(url).scheme in REDIS:
        from tidemill.stores.redis import opening

        asyncio.run(opening.recorded(_redis_place(url)))
        return ()
    from tidemill.stores.sqlite.database import steps

    store = as_sqlite(open_storage(url).store)
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
        raise rejected("store_unknown", f"{without_password(url)!r} names no file", hint=_file_hint(f"{host}{path}"))
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

    store = SqliteStore(file_of(url), durability=durability, read_only=read_only)
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
    """The location for large values that a URL names: `dir:///FOLDER` or `s3://BUCKET/PREFIX?endpoint=…&region=…&sse=…`."""
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

        file = resolve_path(file_of(store_url))
        return DirectoryArchive(file.with_name(file.name + "-archive"))
    if location in (None, "none"):
        return None
    from tidemill.blobs.s3 import open_bucket

    try:
        place = place_of(location) if "://" in location else Path(location)
    except Rejected as refusal:
        hint = f"{refusal.problems[0].hint}; a folder may be written as it is"
        message = f"{without_password(location)!r} is not a location for an archive"
        raise rejected("archive_unknown", message, hint=hint) from None
    return DirectoryArchive(place, named=True) if isinstance(place, Path) else S3Archive(open_bucket(place))


def file_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path[1:]))


def _check_spelling(url: str) -> None:
    """Refuse what would be read as the name of another file than the one that was meant."""
    scheme, _, rest = url.partition(":")
    if scheme.strip().lower() == "sqlite" and not rest.startswith("//"):
        raise rejected("store_unknown", f"{without_password(url)!r} lacks slashes", hint=_file_hint(rest))
    if "#" in url:
        message = f"{without_password(url)!r} has a #, which ends a URL"
        raise rejected("store_unknown", message, hint="write %23 where it belongs to a name")
    if any(character in url for character in "\t\r\n"):
        message = f"{without_password(url)!r} contains a tab or a line break"
        raise rejected("store_unknown", message, hint="write %09, %0A or %0D where it belongs to a name")


def without_password(url: str) -> str:
    """A URL as messages show it."""
    url = re.sub(r"^([^:/@]*:(?://)?[^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"(?i)([?&][^=&]*(?:password|secret|token|key)[^=&]*=)[^&]*", r"\1***", url)


def _file_hint(name: str) -> str:
    """What to write for the file of a SQLite store, or for the names that SQLite gives to a store in memory."""
    if name in (":memory:", "memory", "memory:"):
        return "write memory://"
    return f"write sqlite:///{without_password(name).rstrip('/') or 'tidemill.db'}"


def _unknown(url: str) -> Rejected:
    hint = f"use {SCHEMES}"
    if url.startswith("file:") or (url and "://" not in url):
        meant = _file_hint(re.sub("^file:(//)?", "", url))
        hint = f"{meant}, or use {SCHEMES}" if "sqlite" in meant else meant
    return rejected("store_unknown", f"no store is known for {without_password(url)!r}", hint=hint)


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
        raise _unknown_blobs(url, f"{other!r} is not an option; there are {', '.join(OPTIONS)}")
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
