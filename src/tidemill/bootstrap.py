"""The composition root: the only file that names concrete classes."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from tidemill.ambient import RealAmbient
from tidemill.blobs.contract import Blobs
from tidemill.blobs.local import MemoryBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.worker import WorkerOptions
from tidemill.errors import rejected
from tidemill.handlers.contract import Handler
from tidemill.handlers.plain import PLAIN
from tidemill.handlers.python import python_handler
from tidemill.handlers.waiting import WAITING
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Store
from tidemill.stores.memory import MemoryStore

DEFAULT_URL = "memory://"


def built_in_handlers(functions: Mapping[str, Callable[..., Any]] | None = None) -> tuple[Handler, ...]:
    """The node types that come with Tidemill."""
    return (*PLAIN, *WAITING, python_handler(functions or {}))


def built_in_types() -> dict[str, Sequence[NodeType]]:
    """What the compiler knows of them, by name."""
    return {handler.type.name: (handler.type,) for handler in built_in_handlers()}


class Shelf(NamedTuple):
    """Where runs and their large values are kept."""

    store: Store
    blobs: Blobs


class SharedMemoryStore(MemoryStore):
    """A store in memory with a name: it lives as long as the process, whoever opens and closes it."""

    async def close(self) -> None:
        """Stay open for the others."""


_NAMED: dict[str, Shelf] = {}
"""Stores in memory by name, like the files that other URLs name: what they hold outlives whoever opened them."""


def shelf_at(url: str) -> Shelf:
    """The store behind a URL. `memory://` is a new one, `memory://NAME` the same one throughout this process."""
    try:
        parts = urlsplit(url)
        scheme, name = parts.scheme, parts.netloc + parts.path
    except ValueError:
        scheme, name = "", ""
    if scheme != "memory":
        raise rejected("store_unknown", f"no store is known for {url!r}", hint="use memory://")
    if not name:
        return Shelf(MemoryStore(), MemoryBlobs())
    return _NAMED.setdefault(name, Shelf(SharedMemoryStore(), MemoryBlobs()))


def engine_at(
    url: str = DEFAULT_URL,
    *,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    handlers: Sequence[Handler] = (),
    work: bool = True,
    concurrency: int = 64,
    queues: Sequence[str] = (),
) -> Engine:
    """An engine on a store, with a worker in this process unless `work` is off; it serves all queues by default."""
    ambient, shelf = RealAmbient(), shelf_at(url)
    options = WorkerOptions(
        name=f"{socket.gethostname()}/{os.getpid()}/{ambient.new_id()[-8:]}",
        queues=tuple(queues),
        concurrency=concurrency,
    )
    return Engine(
        store=shelf.store,
        blobs=shelf.blobs,
        ambient=ambient,
        handlers=(*built_in_handlers(functions), *handlers),
        worker=options if work else None,
        user=os_user(),
    )


def os_user() -> str:
    """Whoever the operating system says that this process runs for; nobody where it does not know."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
