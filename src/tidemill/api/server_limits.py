"""The limits of the HTTP service, as the operator sets them under `[server.limits]`. Loads nothing of the service."""

from __future__ import annotations

from typing import Annotated

import msgspec

Positive = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ServerLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    body_bytes: Positive = 2 << 20
    """Size of a request's body, except that of a blob."""
    blob_bytes: Positive = 256 << 20
    """Size of a blob that is uploaded."""
    json_depth: Positive = 100
    """How deep lists and objects of a body may be nested."""
    json_keys: Positive = 100_000
    """How many keys the objects of a body may have together."""
    body_seconds: Annotated[float, msgspec.Meta(gt=0)] = 30.0
    """How long a client may take to send a body, except that of a blob."""
    key_requests_per_second: Count = 1_000
    """Of one key, or one subject of tokens; 0: no limit."""
    tenant_requests_per_second: Count = 2_000
    """Of all keys of a tenant; 0: no limit."""
    key_streams: Positive = 256
    """Live streams of one key, or one subject of tokens, that are open at a time, in each server."""
    backlog_jobs: Positive = 100_000
    """Jobs of a tenant that are ready or under way; above that no run is started."""
    commit_ms: Positive = 1_000
    """While the slowest twentieth of the commits takes longer, no run is started."""
