"""Secrets by name: where their values come from, and which ones an attempt has read.

A document only holds a name (`secrets.CRM_TOKEN`). The worker looks the value up at the last moment; it stays in the
memory of one attempt, whose `SecretAccessLog` records what was read, so that it can be masked.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tidemill.errors import CONFIG_FILE, TidemillError, Unavailable
from tidemill.security.grants import SecretGrant, origin_in

PREFIX = "TIDEMILL_SECRET_"
VALUE_BYTES_MAX = 65_536
VALUE_MIN = 4
"""A shorter value occurs in ordinary text and cannot be masked, so it is refused."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")


class SecretUnusable(Unavailable):
    """The secret exists, but cannot be read or is not usable."""


class SecretMissing(KeyError):
    @property
    def message(self) -> str:
        return f'there is no secret "{self.args[0]}"'

    @property
    def hint(self) -> str:
        name = self.args[0]
        return f"set {PREFIX}{name} for the workers, or put a file {name} into the folder TIDEMILL_SECRETS"

    def __str__(self) -> str:
        return self.message


class SecretNotGranted(TidemillError):
    """The operator has not granted a secret to a workflow."""

    def __init__(self, name: str, workflow: str, origin: str = "") -> None:
        super().__init__(name)
        self.message = f"the operator has not granted the secret {name} to the workflow {workflow}"
        place = "" if origin else ', the place that it is sent to (or "shell"),'
        origin = origin or "https://HOST"
        lines = f'`workflows = ["{workflow}"]` and `origins = ["{origin}"]`{place}'
        self.hint = f"the operator writes {lines} under `[secrets.{name}]` in {CONFIG_FILE}, or sets "
        self.hint += f"TIDEMILL_SECRET_GRANTS={name}={origin}@{workflow}"

    def __str__(self) -> str:
        return self.message


class Secrets(Protocol):
    def get(self, name: str) -> str | None:
        """The value of a secret; None if there is none with that name."""


class EnvironmentSecrets:
    """Secrets in environment variables: `CRM_TOKEN` is in `TIDEMILL_SECRET_CRM_TOKEN`."""

    def get(self, name: str) -> str | None:
        return os.environ.get(PREFIX + name)


class FolderSecrets:
    """Secrets as files of a folder, as container platforms mount them; a final line end is removed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> str | None:
        """The content of the file. A symbolic link may leave the folder, a name may not."""
        if not _NAME.fullmatch(name):
            return None
        path = self._folder / name
        try:
            if not path.is_file():
                return None
            with path.open("rb") as file:
                raw = file.read(VALUE_BYTES_MAX + 1)
        except OSError as error:
            raise SecretUnusable(f"the secret {name} cannot be read: {error.strerror}") from error
        if len(raw) > VALUE_BYTES_MAX:
            raise SecretUnusable(f"the secret {name} is longer than {VALUE_BYTES_MAX} bytes")
        try:
            return raw.decode().removesuffix("\n").removesuffix("\r")
        except UnicodeDecodeError:
            raise SecretUnusable(f"the secret {name} is not text") from None


class ChainedSecrets:
    def __init__(self, *sources: Secrets) -> None:
        self._sources = sources

    def get(self, name: str) -> str | None:
        return next((value for source in self._sources if (value := source.get(name)) is not None), None)


class GrantedSecrets:
    """Secrets of which a workflow gets only those that the operator has granted to it.

    A tenant of `of_tenants` gets its own, and none of the others.
    """

    def __init__(
        self,
        source: Secrets,
        grants: Mapping[str, SecretGrant],
        of_tenants: Mapping[str, Mapping[str, SecretGrant]] = {},
    ) -> None:
        self._source, self.grants, self._of_tenants = source, grants, of_tenants

    def grants_of(self, tenant: str) -> Mapping[str, SecretGrant]:
        return self._of_tenants.get(tenant, self.grants)

    def get(self, name: str) -> str | None:
        return self._source.get(name)


class SecretAccessLog(Mapping[str, str]):
    """The secrets of one attempt; it iterates only over those that the attempt has read."""

    __slots__ = ("_config", "_secrets", "_tenant", "_workflow", "lacking", "values_seen")

    def __init__(self, secrets: Secrets, workflow: str = "", tenant: str = "", config: object = None) -> None:
        self._secrets, self._workflow, self._tenant = secrets, workflow, tenant
        self._config = config
        """Of the node, not rendered: a refusal names the origin that stands in it."""
        self.values_seen: dict[str, str] = {}
        self.lacking = False
        """Whether one was asked for that this worker has not, or may not give to the workflow."""

    @property
    def _grants(self) -> Mapping[str, SecretGrant] | None:
        return self._secrets.grants_of(self._tenant) if isinstance(self._secrets, GrantedSecrets) else None

    def forbidden_at(self, origin: str, texts: tuple[str, ...] | None = None) -> str:
        """The name of a secret that was read and may not be sent to an origin; empty if all may.

        With `texts`, only secrets that stand in one of them count, as they are or as JSON writes them.
        """
        grants = self._grants
        if grants is None:
            return ""
        held = [name for name, value in self.values_seen.items() if texts is None or _stands_in(value, texts)]
        return next((name for name in held if not grants[name].reaches(origin)), "")

    def __getitem__(self, name: str) -> str:
        known = self.values_seen.get(name)
        if known is None:
            grants = self._grants
            grant = None if grants is None else grants.get(name)
            if grants is not None and (grant is None or not grant.serves(self._workflow)):
                self.lacking = True
                raise SecretNotGranted(name, self._workflow, origin_in(self._config))
            known = self._secrets.get(name)
            if known is None:
                self.lacking = True
                raise SecretMissing(name)
            if not known:
                raise SecretUnusable(f"the secret {name} is empty")
            if len(known.strip()) < VALUE_MIN:
                raise SecretUnusable(f"the secret {name} is shorter than {VALUE_MIN} characters and cannot be masked")
            self.values_seen[name] = known
        return known

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_seen)

    def __len__(self) -> int:
        return len(self.values_seen)


def _stands_in(value: str, texts: tuple[str, ...]) -> bool:
    forms = {value, json.dumps(value, ensure_ascii=False)[1:-1]}
    return any(form in text for form in forms for text in texts)


class UnlistedSecrets(Mapping[str, str]):
    """Base of secrets that are found by name only."""

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


class RedactedSecrets(UnlistedSecrets):
    """Every secret as `***`, for a reader who is shown the input of an attempt."""

    def __getitem__(self, name: str) -> str:
        return MASKED


MASKED = "***"
