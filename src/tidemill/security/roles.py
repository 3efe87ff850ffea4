"""Tenants, roles and permissions: who asks, and what they may do.

`Principal.may` is the check of every request. The tenant comes from the credential alone, see `identity`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Literal

import msgspec

from tidemill.errors import Problem, Rejected, offered, rejected

# Tenants

OPERATOR_TENANT = "default"
"""The operator's own tenant. It always exists, and only its admins manage tenants."""
_TENANT = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")


def is_tenant_name(name: object) -> bool:
    return isinstance(name, str) and _TENANT.fullmatch(name) is not None


def check_tenant_name(name: object, path: str = "/tenant") -> None:
    if not is_tenant_name(name):
        message = f"{str(name)[:80]!r} cannot be the name of a tenant"
        hint = "lower-case letters, digits and -, at most 63 characters, with a letter or digit at both ends"
        raise rejected("tenant_name_invalid", message, path=path, hint=hint)


# Roles

Role = Literal["viewer", "operator", "author", "approver", "admin"]
_VIEWER = frozenset(
    [
        *("runs:read", "workflows:read", "approvals:read", "dead_letters:read", "schedules:read", "blobs:read"),
        *("fleet:read", "usage:read", "metrics:read"),
    ]
)
ROLES: Mapping[str, frozenset[str]] = {
    "viewer": _VIEWER,
    "operator": _VIEWER | {"runs:start", "runs:act", "dead_letters:write", "blobs:write", "schedules:write"},
    "author": _VIEWER | {"runs:start", "runs:patch", "workflows:write", "blobs:write", "schedules:write"},
    "approver": _VIEWER | {"approvals:decide"},
    "admin": _VIEWER
    | {
        *("runs:start", "runs:act", "runs:patch", "dead_letters:write", "blobs:write", "schedules:write"),
        *("workflows:write", "approvals:decide", "fleet:write", "keys:read", "keys:write", "audit:read"),
        *("tenants:read", "tenants:write"),
    },
}
"""What each role may do. `runs:patch` is to change the graph of a run, or to start one from a document of the caller:
both are writing workflows."""
PERMISSIONS = frozenset().union(*ROLES.values())
OPERATORS_ONLY = frozenset({"tenants:read", "tenants:write", "fleet:write", "metrics:read"})
"""Permissions about all tenants: they hold within the operator's own tenant only."""
ANYONE = "anyone"
"""The permission of everyone with a valid credential."""


class Principal(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks, as a credential has proved it."""

    tenant: str
    name: str
    """The actor of what they change: `key:LABEL`, or the subject of a token."""
    roles: tuple[str, ...] = ()
    """A token may carry more than the five roles: approvals can ask for those."""
    key_id: str = ""
    """The API key that proved it, also behind a session; empty for a token."""
    expires_ms: int | None = None

    @property
    def permissions(self) -> frozenset[str]:
        return permissions_of(self.roles, self.tenant == OPERATOR_TENANT)

    def may(self, permission: str) -> bool:
        return permission in self.permissions


@lru_cache(maxsize=1_024)
def permissions_of(roles: tuple[str, ...], operator: bool = True) -> frozenset[str]:
    granted: frozenset[str] = frozenset().union(*(ROLES.get(role, frozenset()) for role in roles))
    return (granted if operator else granted - OPERATORS_ONLY) | {ANYONE}


def check_roles_of_key(roles: object) -> tuple[str, ...]:
    """The roles of a new key, each once. Raises Rejected for every one that does not exist."""
    if not isinstance(roles, (list, tuple)) or not roles:
        hint = f"one or more of {', '.join(ROLES)}"
        raise rejected("roles_invalid", "a key has a list of roles", path="/roles", hint=hint)
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise Rejected(
            [
                Problem(
                    code="roles_invalid",
                    message=f"there is no role {str(role)[:80]!r}",
                    path="/roles",
                    hint=offered(str(role), ROLES),
                )
                for role in unknown[:20]
            ]
        )
    return tuple(dict.fromkeys(str(role) for role in roles))
