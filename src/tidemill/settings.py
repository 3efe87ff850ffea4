"""Settings from environment variables, read and checked whenever an engine is opened.

These are plain values; `bootstrap` builds objects from them. An invalid variable is refused at once with its name as
the path: later it would look like the fault of a node.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tidemill.errors import Rejected, rejected
from tidemill.handlers.email import server_at
from tidemill.handlers.smtp import Server
from tidemill.handlers.sql import STORE
from tidemill.net.egress import Egress, read_allow_list

DATABASE_PREFIX = "TIDEMILL_DATABASE_"
EGRESS_VARIABLE = "TIDEMILL_EGRESS_ALLOW"
SECRETS_VARIABLE = "TIDEMILL_SECRETS"
SHELL_VARIABLE = "TIDEMILL_SHELL"
SMTP_VARIABLE = "TIDEMILL_SMTP_URL"


def egress_here() -> Egress:
    """Which calls may leave this process: to the open internet, and to what the environment allows beyond it."""
    with _blaming(EGRESS_VARIABLE):
        return Egress(allow=read_allow_list(os.environ.get(EGRESS_VARIABLE, "")))


def shell_here() -> bool:
    """Whether shell commands run in this process: only if the environment enables them."""
    match os.environ.get(SHELL_VARIABLE, "off"):
        case "on":
            return True
        case "off" | "":
            return False
        case other:
            message = f"commands are on or off, not {other!r}"
            raise rejected("shell_switch_invalid", message, path=SHELL_VARIABLE, hint=f"write {SHELL_VARIABLE}=on")


def mail_server_here() -> Server | None:
    url = os.environ.get(SMTP_VARIABLE)
    with _blaming(SMTP_VARIABLE):
        return server_at(url) if url else None


def secrets_folder_here() -> Path | None:
    text = os.environ.get(SECRETS_VARIABLE)
    if not text:
        return None
    folder = Path(text)
    if not os.access(folder, os.X_OK) or not folder.is_dir():
        message = f"there is no folder {text} that this user may look into"
        hint = "name a folder that holds a file for each secret"
        raise rejected("secrets_folder_invalid", message, path=SECRETS_VARIABLE, hint=hint)
    return folder


def database_variables() -> dict[str, str]:
    """The variables of databases by the name that documents use: `crm` is `TIDEMILL_DATABASE_CRM`."""
    found: dict[str, str] = {}
    for variable in sorted(os.environ):
        if variable.startswith(DATABASE_PREFIX):
            name = variable.removeprefix(DATABASE_PREFIX).lower()
            problem = "" if name else "the database has no name"
            if name == STORE:
                problem = f"{STORE!r} means the store that holds the run"
            elif name in found:
                problem = f"{found[name]} names the same database"
            if problem:
                hint = f"give it another name, such as {DATABASE_PREFIX}CRM"
                raise rejected("database_name_invalid", problem, path=variable, hint=hint)
            found[name] = variable
    return found


@contextmanager
def _blaming(variable: str) -> Iterator[None]:
    """Set the path of a refusal to the variable."""
    try:
        yield
    except Rejected as refusal:
        raise Rejected([msgspec.structs.replace(each, path=variable) for each in refusal.problems]) from None
