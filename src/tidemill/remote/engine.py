"""`RemoteEngine`: the verbs of an engine, asked of a server. The clients of an engine work with either."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NoReturn
from urllib.parse import urlsplit

from tidemill.engine.engine import Engine
from tidemill.errors import rejected
from tidemill.remote.connection import Connection
from tidemill.remote.services import (
    RemoteApprovals,
    RemoteBlobs,
    RemoteBulk,
    RemoteConcurrency,
    RemoteDeadLetters,
    RemoteInspection,
    RemotePatches,
    RemoteRuns,
    RemoteWorkers,
    RemoteWorkflows,
)

KEY_VARIABLE = "TIDEMILL_KEY"
SERVER_VARIABLE = "TIDEMILL_SERVER"


class _NotOffered:
    """Stands for a service that a server does not offer."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, method: str) -> Callable[..., NoReturn]:
        def refuse(*args: Any, **kwargs: Any) -> NoReturn:
            hint = "do it beside the store: --store URL, or tidemill.open(URL)"
            raise rejected("not_remote", f"a server does not offer `{self._name}.{method}`", hint=hint)

        return refuse


class RemoteEngine(Engine):
    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            hint = "write http://127.0.0.1:8321 or https://tidemill.example.com"
            raise rejected("server_unknown", f"{url!r} is no address of a server", hint=hint)
        self._connection = connection = Connection(url, key or os.environ.get(KEY_VARIABLE))
        self._published, self._functions = {}, {}
        self.worker = None
        services: dict[str, Any] = {
            "runs": RemoteRuns(connection),
            "many": RemoteBulk(connection),
            "inspection": RemoteInspection(connection),
            "patches": RemotePatches(connection),
            "approvals": RemoteApprovals(connection),
            "dead_letters": RemoteDeadLetters(connection),
            "workflows": RemoteWorkflows(connection),
            "blobs": RemoteBlobs(connection),
            "workers": RemoteWorkers(connection),
            "concurrency": RemoteConcurrency(connection),
        }
        for name in ("maintenance", "schedules", "keys", "tenants", "audit", "usage", "queues"):
            services.setdefault(name, _NotOffered(name))
        vars(self).update(services)

    async def open(self) -> RemoteEngine:
        return self

    def drain(self) -> None:
        """A remote engine has no worker."""

    async def close(self) -> None:
        await self._connection.close()
