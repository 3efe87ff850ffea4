"""`tidemill.connect` and `tidemill.aconnect`: the clients of an engine, with a server in its place.

`RemoteEngine` has the methods of an engine and calls a server, so both clients work with either.
"""

from __future__ import annotations

import os
from typing import Any, NoReturn
from urllib.parse import urlsplit

from tidemill.engine.engine import Engine
from tidemill.errors import rejected
from tidemill.handlers.python.functions import Function
from tidemill.remote.connection import Connection
from tidemill.remote.requests import RemoteService
from tidemill.remote.runs import RemoteBulk, RemoteInspection, RemotePatches, RemoteRuns
from tidemill.remote.services import (
    RemoteApprovals,
    RemoteAudit,
    RemoteBlobs,
    RemoteConcurrency,
    RemoteDeadLetters,
    RemoteKeys,
    RemoteMaintenance,
    RemoteQueues,
    RemoteSchedules,
    RemoteTenants,
    RemoteTools,
    RemoteUsage,
    RemoteWorkers,
    RemoteWorkflows,
)
from tidemill.settings import refuse_unknown_variables

KEY_VARIABLE = "TIDEMILL_KEY"
SERVER_VARIABLE = "TIDEMILL_SERVER"
DEFAULT_SERVER = "http://127.0.0.1:8321"

_SERVICES: dict[str, type[RemoteService]] = {
    "runs": RemoteRuns,
    "many": RemoteBulk,
    "inspection": RemoteInspection,
    "patches": RemotePatches,
    "approvals": RemoteApprovals,
    "dead_letters": RemoteDeadLetters,
    "workflows": RemoteWorkflows,
    "blobs": RemoteBlobs,
    "workers": RemoteWorkers,
    "queues": RemoteQueues,
    "usage": RemoteUsage,
    "tools": RemoteTools,
    "concurrency": RemoteConcurrency,
    "schedules": RemoteSchedules,
    "keys": RemoteKeys,
    "tenants": RemoteTenants,
    "audit": RemoteAudit,
    "maintenance": RemoteMaintenance,
}


class RemoteEngine(Engine):
    """The methods of an engine, as requests to a server. It runs no nodes."""

    def __init__(self, url: str, key: str | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            hint = f"write {DEFAULT_SERVER} or https://tidemill.example.com"
            raise rejected("server_unknown", f"{url.rpartition('@')[2]!r} is not the address of a server", hint=hint)
        if "@" in parts.netloc:
            # Messages name the address.
            hint = f"give an API key with --key-file or {KEY_VARIABLE}"
            raise rejected("server_unknown", "the address of a server holds no name and no password", hint=hint)
        self._connection = connection = Connection(url, key)
        self._published, self._functions = {}, {}
        self.worker, self.url = None, connection.url
        vars(self).update({name: service(connection) for name, service in _SERVICES.items()})

    def _register_function(self, *functions: Function, **named: Function) -> NoReturn:
        hint = (
            "give them to the workers of the server: `tidemill serve --app tasks.py`, `tidemill worker --app tasks.py`"
        )
        raise rejected("not_remote", "functions run in the workers of a server, not in its client", hint=hint)

    register: Any = _register_function

    async def open(self) -> RemoteEngine:
        try:
            await self._connection.open()
        except BaseException:
            await self._connection.close()
            raise
        return self

    async def permissions(self) -> frozenset[str]:
        """What the key permits."""
        return frozenset((await self._connection.ask("GET", "/me")).json()["permissions"])

    def drain(self) -> None:
        """A remote engine has no worker."""

    async def close(self) -> None:
        await self._connection.close()


def remote_engine(url: str | None, key: str | None) -> RemoteEngine:
    """An engine for a server; by default that of TIDEMILL_SERVER, with the key of TIDEMILL_KEY."""
    if not url or not key:
        refuse_unknown_variables()
    return RemoteEngine(
        url or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER, key or os.environ.get(KEY_VARIABLE) or None
    )
