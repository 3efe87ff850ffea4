"""One request to a store or to a server, and its answer as text for people or as one JSON value for programs.

Every command that needs a store goes through `StoreSession`, so a refusal looks the same everywhere: a list of
problems and exit code 2. A session runs no nodes; that is left to workers and to `tidemill run`.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import msgspec

from tidemill import client
from tidemill.cli import main
from tidemill.cli.options import DEFAULT_STORE, STORE_VARIABLE, is_server, server_words
from tidemill.cli.render.terminal import print_json, report_problems
from tidemill.cli.user_code import importable, load_apps
from tidemill.client import Tidemill
from tidemill.engine.views import plain
from tidemill.errors import Problem, Rejected, StoreUnusable, rejected
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.model import RETENTION_BY_STORE
from tidemill.security.roles import OPERATOR_TENANT
from tidemill.storage_urls import ARCHIVE_VARIABLE, file_of, require_store_exists

T = TypeVar("T")

CLOSE_SECONDS_MAX = 0.3
"""The session does not wait for running work: fence tokens protect the store."""
PRIVATE_STORE = "memory://"
ALONE = "memory:// is empty in every new process: use --store, or TIDEMILL_STORE"
_NOT_FOUND = frozenset({"run_unknown", "workflow_unknown", "dead_letter_unknown", "approval_unknown"})
_FULL_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|key-[0-9a-f]{40}")
"""An id that the engine or a server has made; no other begins with it but those of its children."""


@dataclass(frozen=True, slots=True)
class StoreSession:
    store: str
    """The URL of a store, or the address of a server."""
    as_json: bool = False
    archive: str | None = None
    """The archive, if it is not the default one."""
    creates: bool = False
    """Whether a missing store is created."""
    retention_days: float | None = RETENTION_BY_STORE
    """How long finished runs stay, where old ones are asked about."""
    apps: tuple[str, ...] = ()
    """The user's own code, for requests about its node types."""
    tenant: str = OPERATOR_TENANT
    """Whose part of the store is asked about."""
    mill: Tidemill | None = None
    """An open engine to ask, instead of one for each request."""

    def with_runs(self, names: Sequence[str], command: Callable[..., int], given: dict[str, Any]) -> int:
        """Call a command with the ids of the runs that these arguments of it name."""
        unclear = {name: text for name in names if (text := given.get(name)) and not _FULL_ID.fullmatch(text)}
        if not unclear:
            return command(self, **given)

        def ask(mill: Tidemill) -> int:
            ids = {name: mill.resolve(text) for name, text in unclear.items()}
            return command(replace(self, mill=mill), **{**given, **ids})

        try:
            return self.asked(ask)
        except Rejected as refusal:
            return self.refused(refusal)

    def run_id(self, text: str) -> str:
        """The id of a run that is named by it, by the beginning of it, or by @last. Raises `Rejected`."""
        return text if _FULL_ID.fullmatch(text) else self.asked(lambda mill: mill.resolve(text))

    def ask_and_print(
        self, ask: Callable[[Tidemill], T], show: Callable[[T], None], *, ends: Callable[[T], int] | None = None
    ) -> int:
        """Ask the engine and print its answer; `ends` derives the exit code from an answer that may be bad news."""
        try:
            found = self.asked(ask)
        except Rejected as refusal:
            return self.refused(refusal)
        if self.as_json:
            print_json(plain(found))
        else:
            show(found)
        return main.OK if ends is None else ends(found)

    def stream(self, ask: Callable[[Tidemill], None]) -> int:
        """Run a request that prints its answers as they arrive."""
        try:
            self.asked(ask)
        except Rejected as refusal:
            return self.refused(refusal)
        return main.OK

    def asked(self, ask: Callable[[Tidemill], T]) -> T:
        """The engine's answer; raises `Rejected`."""
        if self.mill is not None:
            return _or_refused(ask, self.mill)
        if is_server(self.store):
            return self._asked_of_server(ask)
        if not self.creates:
            require_store_exists(self.store)
        with importable() if self.apps else nullcontext():
            app = load_apps(self.apps)
            mill = client.open(
                self.store,
                work=False,
                archive=self.archive,
                retention_days=self.retention_days,
                functions=app.functions,
                handlers=app.handlers,
                tenant=self.tenant,
            )
            main.start_collector()
            try:
                return _or_refused(ask, mill)
            finally:
                mill.close(timeout_s=CLOSE_SECONDS_MAX)

    def _asked_of_server(self, ask: Callable[[Tidemill], T]) -> T:
        if self.tenant != OPERATOR_TENANT:
            hint = "use a key of that tenant, or open the store directly: --store URL"
            raise rejected("not_remote", "the server takes the tenant from the key", hint=hint)
        with client.connect(self.store) as mill:
            main.start_collector()
            return ask(mill)

    def refused(self, refusal: Rejected) -> int:
        report_problems([self._placed(each) for each in refusal.problems], as_json=self.as_json)
        return main.REFUSED

    def _placed(self, problem: Problem) -> Problem:
        """Say where a missing run was looked for, if it is the default store."""
        if self.is_private_store and problem.code in _NOT_FOUND:
            return msgspec.structs.replace(problem, hint=ALONE)
        if self.store == DEFAULT_STORE and problem.code == "run_unknown":
            return msgspec.structs.replace(problem, message=f"{problem.message} in ./{file_of(self.store)}")
        return problem

    @property
    def is_private_store(self) -> bool:
        return self.store == PRIVATE_STORE

    def command(self, *words: str) -> str:
        """A command line for this store or server, and archive, that can be copied from the screen."""
        if is_server(self.store):
            return shlex.join(("tidemill", *words, *server_words(self.store)))
        meant = os.environ.get(STORE_VARIABLE) or DEFAULT_STORE
        store = () if self.store == meant else ("--store", self.store)
        elsewhere = self.archive is not None and self.archive != os.environ.get(ARCHIVE_VARIABLE)
        archive = ("--archive", self.archive or "") if elsewhere else ()
        return shlex.join(("tidemill", *words, *archive, *store))


def _or_refused(ask: Callable[[Tidemill], T], mill: Tidemill) -> T:
    try:
        return ask(mill)
    except StoreUnusable as error:
        # A command does not wait for a repair, so the caller gets a refusal.
        raise Rejected(error.problem) from error


def item_or_none(index: int) -> int | None:
    """The index of an item for JSON output: null where the object is not about an item."""
    return None if index == NOT_AN_ITEM else index
