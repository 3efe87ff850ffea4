"""Grants of the operator: import paths, secrets, SQL on the store and MCP servers, and whether a workflow has them.

A grant is matched here and nowhere else. A refusal names the line of `tidemill.toml` that would grant what is missing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Annotated, NamedTuple
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import read_each, rejected

_IDENTIFIER = r"[^\W\d]\w*"
_PATTERN = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*(?:\.\*)?(?::(?:{_IDENTIFIER}|\*))?")
_PATH = re.compile(rf"{_IDENTIFIER}(?:\.{_IDENTIFIER})*:{_IDENTIFIER}")
_HOST = r"(?:\*\.)?(?:\[[\da-fA-F:.]+\]|[\w.-]+)"
_ORIGIN = re.compile(rf"(?:https?|smtps?)://{_HOST}(?::(?:\d{{1,5}}|\*))?|database:[\w-]+|shell")
_CONSTANT_URL = re.compile(r"(https?://[\w.-]+(?::\d{1,5})?)(?:[/?#]|$)")
PORTS = {"http": 80, "https": 443, "smtp": 587, "smtps": 465}
SHELL_ORIGIN = "shell"
"""The origin that stands for commands: they can send a secret anywhere, and print it in any form."""
_ANY_PORT = ":*"


class ImportGrants(msgspec.Struct, frozen=True):
    """Import paths that `python` nodes may name: `shop.tasks`, `shop.tasks:charge`, `shop.*`, or `*` for all."""

    patterns: tuple[str, ...] = ()

    @classmethod
    def read(cls, patterns: Iterable[str]) -> ImportGrants:
        """Raises Rejected with every pattern that can match nothing."""
        return cls(read_each(_import_pattern, dict.fromkeys(patterns)))

    def allow(self, path: str) -> bool:
        """Whether `module:function` is granted."""
        module, _, function = path.partition(":")
        return any(self._matches(pattern, module, function) for pattern in self.patterns)

    @staticmethod
    def _matches(pattern: str, module: str, function: str) -> bool:
        place, _, name = pattern.partition(":")
        if name not in ("", "*", function):
            return False
        package = place.removesuffix(".*")
        return place in ("*", module) or (place.endswith(".*") and f"{module}.".startswith(f"{package}."))


ANY = ImportGrants(("*",))


def _import_pattern(pattern: str) -> str:
    if pattern != "*" and not _PATTERN.fullmatch(pattern):
        hint = 'write "shop.tasks", "shop.tasks:charge" or "shop.*"'
        raise rejected("import_pattern_invalid", f"{pattern!r} is not an import path", hint=hint)
    return pattern


def is_import_path(name: str) -> bool:
    """Whether a text is `module:function`: one attribute of a module, nothing below it."""
    return _PATH.fullmatch(name) is not None


class SecretGrant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a secret may be sent, and which workflows may use it."""

    origins: tuple[str, ...]
    """`https://host`, `https://*.host`, `http://host:*`, `smtp://host`, `database:NAME`, `shell`."""
    workflows: tuple[str, ...]
    """Names of workflows; `*` stands for any text."""

    def __post_init__(self) -> None:
        wrong = [repr(each) for each in self.origins if not _is_origin(each)]
        if wrong:
            are = "is not an origin" if len(wrong) == 1 else "are not origins"
            raise ValueError(f"{', '.join(wrong)} {are}: write https://host, smtp://host:587, database:NAME or shell")

    def serves(self, workflow: str) -> bool:
        return any(fnmatchcase(workflow, pattern) for pattern in self.workflows)

    def reaches(self, origin: str) -> bool:
        """Whether the secret may be sent to an origin (`https://host:port`, `database:NAME`, `shell`)."""
        return any(_same_origin(pattern, origin) for pattern in self.origins)


class _Origin(NamedTuple):
    scheme: str
    host: str
    port: int | None
    """None is any port, in a grant."""


def _origin(text: str) -> _Origin:
    parts = urlsplit(text.removesuffix(_ANY_PORT))
    port = None if text.endswith(_ANY_PORT) else parts.port or PORTS[parts.scheme]
    return _Origin(parts.scheme, (parts.hostname or "").removesuffix("."), port)


def _is_origin(text: str) -> bool:
    if not _ORIGIN.fullmatch(text):
        return False
    try:
        return _is_name(text) or bool(_origin(text).host)
    except ValueError:
        return False


def _is_name(origin: str) -> bool:
    """Whether an origin is not an address: a database, or commands."""
    return origin == SHELL_ORIGIN or origin.startswith("database:")


def _same_origin(pattern: str, origin: str) -> bool:
    if _is_name(pattern) or _is_name(origin):
        return pattern == origin
    wanted, given = _origin(pattern), _origin(origin)
    if wanted.scheme != given.scheme or wanted.port not in (None, given.port):
        return False
    if wanted.host.startswith("*."):
        return given.host.endswith(wanted.host[1:])
    return wanted.host == given.host


def origin_in(config: object) -> str:
    """The origin of the URL that a node's config holds as a constant; empty if there is none."""
    if not isinstance(config, Mapping):
        return ""
    found = _CONSTANT_URL.match(str(config.get("url") or config.get("base_url")))
    return found[1] if found else ""


def read_secret_grants(text: str) -> dict[str, SecretGrant]:
    """Read `NAME=origin,origin@workflow,workflow; NAME=…`, as a variable holds it. Raises Rejected with all."""
    return dict(read_each(_secret_grant, filter(None, (each.strip() for each in text.split(";")))))


def _secret_grant(entry: str) -> tuple[str, SecretGrant]:
    name, equals, rest = entry.partition("=")
    origins, at, workflows = rest.rpartition("@")
    hint = "write CRM=https://api.example.com@billing"
    try:
        if equals and name.strip() and rest.strip() and not (at and workflows.strip()):
            hint = f"write {name.strip()}={rest.strip().rstrip('@')}@WORKFLOW"
            raise ValueError(f"{entry!r} is not a grant: the workflow is missing")
        if not (equals and name.strip() and rest.strip()):
            raise ValueError(f"{entry!r} is not a grant")
        return name.strip(), SecretGrant(_listed(origins), _listed(workflows))
    except ValueError as error:
        raise rejected("secret_grant_invalid", str(error), hint=hint) from None


def _listed(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (each.strip() for each in text.split(","))))


class StoreSqlGrants(msgspec.Struct, frozen=True):
    """SQL on the run's own store: whether there is any, and which workflows may use tables of others."""

    enabled: bool | None = None
    """None where the operator has not said: nothing is executed then, and a document is not refused for it."""
    tables: Mapping[str, tuple[str, ...]] = {}
    """By name of a table: workflows that may use it beside the one that made it; `*` stands for any text."""

    def shared_with(self, workflow: str) -> tuple[str, ...]:
        """Tables of others that a workflow may use."""
        granted = self.tables.items()
        return tuple(table for table, names in granted if any(fnmatchcase(workflow, name) for name in names))


MCP_NAME = re.compile(r"[a-z][a-z0-9-]{0,31}")
"""Names of MCP servers."""


class McpServerGrant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[mcp.NAME]` of the operator's configuration: how a server is reached, and which tools are approved."""

    command: tuple[str, ...] = ()
    """A program and its arguments; or `url`."""
    url: str = ""
    env: dict[str, str] = {}
    """Variables of the program, which may hold `{{ secrets.NAME }}`."""
    headers: dict[str, str] = {}
    """Headers of requests, which may hold `{{ secrets.NAME }}`."""
    cwd: str = ""
    tools: dict[str, str] = {}
    """Approved tools: their digests by name. No other exists for an agent."""
    timeout_seconds: Annotated[float, msgspec.Meta(gt=0, le=3_600)] = 60.0
    """Of one call."""
    max_bytes: Annotated[int, msgspec.Meta(ge=1_024, le=67_108_864)] = 1_048_576
    """Size of one message of the server."""
