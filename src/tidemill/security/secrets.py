"""Secrets by name: where their values come from, and who has asked for which.

A document only ever holds a name (`secrets.CRM_TOKEN`). The worker looks the value up at the last moment, and it
stays in the memory of one attempt, which remembers what was disclosed to it so that it can be masked.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

from tidemill.errors import Unavailable

PREFIX = "TIDEMILL_SECRET_"
VALUE_BYTES_MAX = 65_536
VALUE_MIN = 4
"""A shorter value stands in every other word, so that it could not be masked; nobody is given it."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,127}")


class SecretUnusable(Unavailable):
    """There is a secret of that name, and it cannot be read or is no secret."""


class SecretMissing(KeyError):
    """There is no secret of that name."""

    @property
    def message(self) -> str:
        """What is missing."""
        return f'there is no secret "{self.args[0]}"'

    @property
    def hint(self) -> str:
        """Where it is looked for."""
        name = self.args[0]
        return f"set {PREFIX}{name} for the workers, or put a file {name} into the folder TIDEMILL_SECRETS"

    def __str__(self) -> str:
        return self.message


class Secrets(Protocol):
    """A place where secrets are kept."""

    def get(self, name: str) -> str | None:
        """The value of a secret, None if there is none of that name."""
        ...


class EnvironmentSecrets:
    """Secrets in environment variables: `CRM_TOKEN` is in `TIDEMILL_SECRET_CRM_TOKEN`."""

    def get(self, name: str) -> str | None:
        """The variable's value."""
        return os.environ.get(PREFIX + name)


class FolderSecrets:
    """Secrets in the files of a folder, one each, as container platforms mount them; a last line end is left out."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, name: str) -> str | None:
        """The file's content. A link may lead elsewhere, a name may not."""
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
    """Several places, asked in order."""

    def __init__(self, *places: Secrets) -> None:
        self._places = places

    def get(self, name: str) -> str | None:
        """The first value that is found."""
        return next((value for place in self._places if (value := place.get(name)) is not None), None)


class SecretAccessLog(Mapping[str, str]):
    """The secrets as one attempt sees them; it cannot list them, and what it has asked for is remembered."""

    __slots__ = ("_secrets", "values_seen")

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self.values_seen: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        known = self.values_seen.get(name)
        if known is None:
            known = self._secrets.get(name)
            if known is None:
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


class RedactedSecrets(Mapping[str, str]):
    """Every secret as somebody sees it who is only shown what an attempt was given."""

    def __getitem__(self, name: str) -> str:
        return MASKED

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


MASKED = "***"
