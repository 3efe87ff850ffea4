"""The composition root: the only file that names concrete classes."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

from tidemill.ambient import RealAmbient
from tidemill.blobs.local import MemoryBlobs
from tidemill.engine.engine import Engine
from tidemill.engine.worker import WorkerOptions
from tidemill.errors import rejected
from tidemill.handlers.contract import Handler
from tidemill.handlers.plain import PLAIN
from tidemill.handlers.python import python_handler
from tidemill.kernel.model import NodeType
from tidemill.stores.contract import Store
from tidemill.stores.memory import MemoryStore

DEFAULT_URL = "memory://"


def built_in_handlers(functions: Mapping[str, Callable[..., Any]] | None = None) -> tuple[Handler, ...]:
    """The node types that come with Tidemill."""
    return (*PLAIN, python_handler(functions or {}))


def built_in_types() -> dict[str, Sequence[NodeType]]:
    """What the compiler knows of them, by name."""
    return {handler.type.name: (handler.type,) for handler in built_in_handlers()}


def store_at(url: str) -> Store:
    """The store behind a URL."""
    try:
        scheme = urlsplit(url).scheme
    except ValueError:
        scheme = ""
    if scheme == "memory":
        return MemoryStore()
    raise rejected("store_unknown", f"no store is known for {url!r}", hint="use memory://")


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
    ambient = RealAmbient()
    options = WorkerOptions(
        name=f"{socket.gethostname()}/{os.getpid()}/{ambient.new_id()[-8:]}",
        queues=tuple(queues),
        concurrency=concurrency,
    )
    return Engine(
        store=store_at(url),
        blobs=MemoryBlobs(),
        ambient=ambient,
        handlers=(*built_in_handlers(functions), *handlers),
        worker=options if work else None,
    )
