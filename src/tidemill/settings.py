"""The operator's settings: what workflows are granted, and which services the engine uses.

They come from one `tidemill.toml` (`--config`, `TIDEMILL_CONFIG`, else the user's or the system's configuration folder)
and from `TIDEMILL_*` variables, which win. A `tidemill.toml` beside a document or in the current folder is never read
unless it is named: the author of the document may have written it. `Settings` holds plain values that `bootstrap`
builds objects from; an invalid value is refused at once, with the key or the variable as its path.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.handlers.email import server_at
from tidemill.handlers.smtp import Server
from tidemill.handlers.sql import STORE
from tidemill.net.egress import Egress, read_allow_list
from tidemill.security.grants import ImportGrants, SecretGrant, StoreSqlGrants, read_secret_grants

CONFIG_VARIABLE = "TIDEMILL_CONFIG"
CONFIG_NAME = "tidemill.toml"
DATABASE_PREFIX = "TIDEMILL_DATABASE_"
EGRESS_VARIABLE = "TIDEMILL_EGRESS_ALLOW"
IMPORTS_VARIABLE = "TIDEMILL_IMPORTS"
SECRETS_VARIABLE = "TIDEMILL_SECRETS"
SECRET_GRANTS_VARIABLE = "TIDEMILL_SECRET_GRANTS"
SHELL_VARIABLE = "TIDEMILL_SHELL"
SMTP_VARIABLE = "TIDEMILL_SMTP_URL"
SQL_STORE_VARIABLE = "TIDEMILL_SQL_STORE"
DESCENDANTS_MAX = 10_000
INPUT_BYTES_MAX = 1_048_576


T = TypeVar("T")


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Bounds that only the operator raises."""

    max_descendants: int = DESCENDANTS_MAX
    """Runs that one root run may start, directly and through its children."""
    input_bytes: int = INPUT_BYTES_MAX
    """Size of a run's inputs; larger values belong into blobs."""


class _SqlTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    store: bool | None = None
    tables: dict[str, tuple[str, ...]] = {}


class _ConfigFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The shape of `tidemill.toml`."""

    imports: tuple[str, ...] | None = None
    egress: tuple[str, ...] = ()
    shell: bool = False
    smtp: str = ""
    secrets_folder: str = ""
    secrets: dict[str, SecretGrant] = {}
    databases: dict[str, str] = {}
    sql: _SqlTable = _SqlTable()
    limits: Limits = Limits()


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator has said, from all sources together."""

    imports: ImportGrants | None = None
    """Import paths for `python` nodes; None where the operator has not said, and the command decides."""
    egress: Egress = Egress()
    shell: bool = False
    smtp: Server | None = None
    secrets_folder: Path | None = None
    secrets: Mapping[str, SecretGrant] = {}
    databases: Mapping[str, tuple[str, str]] = {}
    """By name: the URL, and where it was said."""
    sql: StoreSqlGrants = StoreSqlGrants()
    limits: Limits = Limits()
    source: Path | None = None
    """The configuration file that was read."""


def read_settings(config: str | Path | None = None, *, imports: Sequence[str] = ()) -> Settings:
    """Read the configuration file and the environment. `imports` are further grants, given as flags."""
    path = _config_path(config)
    file = _ConfigFile() if path is None else _read_file(path)
    where = "" if path is None else str(path)
    allowed = _imports(file.imports, imports)
    with _blaming(EGRESS_VARIABLE if EGRESS_VARIABLE in os.environ else f"{where}: egress"):
        egress = Egress(allow=read_allow_list(os.environ.get(EGRESS_VARIABLE, ",".join(file.egress))))
    return Settings(
        imports=allowed,
        egress=egress,
        shell=_switch(SHELL_VARIABLE, "shell_switch_invalid", "commands are", file.shell),
        smtp=_mail_server(file.smtp, where),
        secrets_folder=_secrets_folder(file.secrets_folder, where),
        secrets={**file.secrets, **_secret_grants()},
        databases=_databases(file.databases, where),
        sql=StoreSqlGrants(
            enabled=_switch(SQL_STORE_VARIABLE, "sql_switch_invalid", "SQL on the store is", file.sql.store),
            tables=file.sql.tables,
        ),
        limits=file.limits,
        source=path,
    )


def ignored_config(*folders: Path) -> Path | None:
    """A `tidemill.toml` in one of these folders, which is not read unless it is named."""
    read = _config_path(None)
    for folder in folders:
        found = folder / CONFIG_NAME
        if found.is_file() and (read is None or not found.samefile(read)):
            return found
    return None


def _config_path(named: str | Path | None) -> Path | None:
    """The configuration file: the named one must exist, one of the configuration folders may."""
    variable = os.environ.get(CONFIG_VARIABLE)
    if named or variable:
        path = Path(named or variable or "").expanduser()
        if not path.is_file():
            message = f"there is no configuration file {path}"
            raise rejected("config_missing", message, path="--config" if named else CONFIG_VARIABLE)
        return path
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser())
    places = (home / "tidemill" / CONFIG_NAME, Path("/etc/tidemill") / CONFIG_NAME)
    return next((each for each in places if each.is_absolute() and each.is_file()), None)


def _read_file(path: Path) -> _ConfigFile:
    try:
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise rejected("config_unreadable", f"{path} cannot be read: {error.strerror}", path=str(path)) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise rejected("config_unreadable", f"{path} is not TOML: {error}", path=str(path)) from None
    try:
        return msgspec.convert(raw, _ConfigFile)
    except msgspec.ValidationError as error:
        hint = "the keys are listed in docs/reference/configuration.md"
        raise rejected("config_invalid", f"{path}: {error}", path=str(path), hint=hint) from None


def _imports(file: tuple[str, ...] | None, flags: Sequence[str]) -> ImportGrants | None:
    variable = os.environ.get(IMPORTS_VARIABLE)
    listed = [each.strip() for each in variable.split(",")] if variable is not None else file
    if listed is None and not flags:
        return None
    with _blaming(IMPORTS_VARIABLE if variable is not None else "imports"):
        return ImportGrants.read([*filter(None, listed or ()), *flags])


def _switch(variable: str, code: str, subject: str, default: T) -> bool | T:
    match os.environ.get(variable, ""):
        case "on":
            return True
        case "off":
            return False
        case "":
            return default
        case other:
            raise rejected(code, f"{subject} on or off, not {other!r}", path=variable, hint=f"write {variable}=on")


def _mail_server(file: str, where: str) -> Server | None:
    url = os.environ.get(SMTP_VARIABLE) or file
    with _blaming(SMTP_VARIABLE if os.environ.get(SMTP_VARIABLE) else f"{where}: smtp"):
        return server_at(url) if url else None


def _secrets_folder(file: str, where: str) -> Path | None:
    text = os.environ.get(SECRETS_VARIABLE) or file
    if not text:
        return None
    folder = Path(text)
    if not os.access(folder, os.X_OK) or not folder.is_dir():
        message = f"there is no folder {text} that this user may look into"
        hint = "name a folder that holds a file for each secret"
        path = SECRETS_VARIABLE if os.environ.get(SECRETS_VARIABLE) else f"{where}: secrets_folder"
        raise rejected("secrets_folder_invalid", message, path=path, hint=hint)
    return folder


def _secret_grants() -> dict[str, SecretGrant]:
    with _blaming(SECRET_GRANTS_VARIABLE):
        return read_secret_grants(os.environ.get(SECRET_GRANTS_VARIABLE, ""))


def _databases(file: Mapping[str, str], where: str) -> dict[str, tuple[str, str]]:
    """The databases by the name that documents use: `crm` is `TIDEMILL_DATABASE_CRM`, or a key of `[databases]`."""
    found = {name: (url, f"{where}: databases.{name}") for name, url in file.items()}
    if STORE in found:
        raise rejected("database_name_invalid", f"{STORE!r} means the store that holds the run", path=found[STORE][1])
    variables: dict[str, str] = {}
    for variable in sorted(each for each in os.environ if each.startswith(DATABASE_PREFIX)):
        name = variable.removeprefix(DATABASE_PREFIX).lower()
        if problem := _name_problem(name, variables):
            hint = f"give it another name, such as {DATABASE_PREFIX}CRM"
            raise rejected("database_name_invalid", problem, path=variable, hint=hint)
        variables[name] = variable
        found[name] = (os.environ[variable], variable)
    return found


def _name_problem(name: str, others: dict[str, str]) -> str:
    if name == STORE:
        return f"{STORE!r} means the store that holds the run"
    if name in others:
        return f"{others[name]} names the same database"
    return "" if name else "the database has no name"


@contextmanager
def _blaming(place: str) -> Iterator[None]:
    """Set the path of a refusal to where the value was given."""
    try:
        yield
    except Rejected as refusal:
        raise Rejected([msgspec.structs.replace(each, path=place) for each in refusal.problems]) from None
