"""What the operator sets for the HTTP service: `[server]` of the file as it is written, and as the service reads it.

Loads nothing of the service.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from tidemill.security.identity import SESSION_HOURS, JwtRules
from tidemill.security.signing import LINK_HOURS

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


class JwtTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret: str = ""
    jwks: str = ""
    issuer: str = ""
    audience: str = ""
    leeway_seconds: Annotated[float, msgspec.Meta(ge=0, le=300)] = 30.0
    tenant_claim: str = "tenant"
    roles_claim: str = "roles"
    name_claim: str = "sub"


class ApprovalsTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    webhook: str = ""
    secret: tuple[str, ...] | str = ()
    link_hours: Annotated[float, msgspec.Meta(gt=0, le=LINK_HOURS)] = LINK_HOURS


class ServerTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    secret: str = ""
    public_url: str = ""
    limits: ServerLimits = ServerLimits()
    approvals: ApprovalsTable = ApprovalsTable()
    session_hours: Annotated[float, msgspec.Meta(gt=0, le=720)] = SESSION_HOURS
    jwt: JwtTable = JwtTable()


class ServerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Which credentials the HTTP service accepts, how it is reached and protected, and where it reports approvals."""

    secret: str = ""
    """Signs sessions and decision links; servers of a fleet share it. Without one, both end with the
    process that made them."""
    public_url: str = ""
    """Where people reach the server: what links begin with."""
    limits: ServerLimits = ServerLimits()
    approval_webhook: str = ""
    """The URL of the webhook about approvals."""
    approval_webhook_keys: tuple[str, ...] = ()
    link_hours: float = LINK_HOURS
    """How long a link to a decision holds at most."""
    jwt: JwtRules | None = None
    """Which tokens are accepted; None: none."""
    jwks: Path | None = None
    """The file with the public keys of the tokens, where they are not signed with a secret."""
    session_hours: float = SESSION_HOURS
