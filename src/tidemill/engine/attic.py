"""Reading an archive: which entries it has, which of them belong to a run, and which one is meant.

A key may be used again once its run has left, and a run that was brought back may go on and leave a second time, so
several entries may have the same run id. The newest one is meant unless somebody names another. An older one never
stands in for a newer one that cannot be read.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from tidemill.blobs.archives import Archive
from tidemill.engine.archiving import (
    ENDING,
    Archived,
    Header,
    decode_archived,
    decode_header,
    folder,
    short_name,
    stamp_of,
)
from tidemill.errors import Rejected, Unavailable, rejected

PAGE = 200
ENTRY_DEPTH = 2
"""Folders above an entry: its month and its workflow."""


class Listed(Header, frozen=True, kw_only=True):
    """An archived run, and where it stands in the archive."""

    entry: str
    """The name of its entry, which every verb takes in place of the run's id."""
    others: tuple[str, ...] = ()
    """Other entries of the same run id, the newest first, where one run was asked for."""


class ArchivePage(msgspec.Struct, frozen=True, kw_only=True):
    """Archived runs, the latest months first."""

    runs: tuple[Listed, ...]
    more: bool = False
    damaged: tuple[str, ...] = ()
    """Names of entries that cannot be read."""


class Attic:
    """The entries of a tenant in an archive."""

    def __init__(self, archive: Archive, tenant: str) -> None:
        self._archive, self._root = archive, folder(tenant)

    async def page(self, workflow: str | None, limit: int) -> ArchivePage:
        """The first entries, the latest months first. One that cannot be read hides no other."""
        found, damaged = list[Listed](), list[str]()
        async for name in self._entries(workflow):
            if len(found) + len(damaged) == limit:
                return ArchivePage(runs=tuple(found), damaged=tuple(damaged), more=True)
            try:
                found.append(_listed(await self._header(name), name))
            except (Rejected, Unavailable):
                damaged.append(name)
        return ArchivePage(runs=tuple(found), damaged=tuple(damaged))

    async def read(self, wanted: str) -> tuple[Listed, Archived]:
        """The newest entry of a run, or the entry of this name."""
        name, others = (wanted, []) if await self._is_entry(wanted) else await self._newest(wanted)
        found = decode_archived(name, await self._archive.get(name) or b"")
        return _listed(found.header, name, others), found

    async def _is_entry(self, wanted: str) -> bool:
        """Whether this is the name of an entry. It is looked for in the list, so no name leads out of the archive."""
        likely = wanted.startswith(self._root) and wanted.endswith(ENDING)
        return likely and wanted in await self._archive.names(wanted, limit=1)

    async def _newest(self, run_id: str) -> tuple[str, list[str]]:
        """The newest entry of a run, and its other ones."""
        names = [
            name
            async for group in self._groups()
            for name in await self._archive.names(f"{group}{short_name(run_id)}.")
        ]
        if not names:
            raise rejected("archived_run_unknown", f"run {run_id} is not archived", hint="see `tidemill archive list`")
        headers, damage = await self._headers(names)
        ranked = sorted(headers, key=lambda name: _rank(headers[name]), reverse=True)
        for name, refusal in damage.items():
            if not ranked or _may_be_newer(name, headers[ranked[0]]):
                raise _instead(refusal, ranked)
        return ranked[0], ranked[1:]

    async def _headers(self, names: list[str]) -> tuple[dict[str, Header], dict[str, Rejected]]:
        """What can be read of some entries, and what is wrong with the others."""
        headers, damage = dict[str, Header](), dict[str, Rejected]()
        for name in names:
            try:
                headers[name] = await self._header(name)
            except Rejected as refusal:
                damage[name] = refusal
        return headers, damage

    async def _header(self, name: str) -> Header:
        return decode_header(name, await self._archive.get(name) or b"")

    async def _entries(self, workflow: str | None) -> AsyncIterator[str]:
        """Names of archived runs, the latest months first."""
        groups = [group async for group in self._groups()]
        for group in sorted(groups, key=lambda group: group.split("/")[-3:-1], reverse=True):
            if workflow is not None and group.split("/")[-2] != workflow:
                continue
            after = ""
            while names := await self._archive.names(group, after=after, limit=PAGE):
                for name in filter(self._is_name, names):
                    yield name
                after = names[-1]

    def _is_name(self, name: str) -> bool:
        """Whether an entry may be called so; anything else was put there by somebody else, and hides no entry."""
        return name.endswith(ENDING) and name.removeprefix(self._root).count("/") == ENTRY_DEPTH

    async def _groups(self) -> AsyncIterator[str]:
        """The folders of the archive, one for each month and workflow, found by leaping from one to the next."""
        after = self._root
        while names := await self._archive.names(self._root, after=after, limit=1):
            if not self._is_name(names[0]):
                after = names[0]
                continue
            group = names[0].rpartition("/")[0] + "/"
            yield group
            # The sign behind `/`: everything in this folder stands before it.
            after = group[:-1] + "0"


def _listed(header: Header, entry: str, others: list[str] | None = None) -> Listed:
    return Listed(**msgspec.structs.asdict(header), entry=entry, others=tuple(others or ()))


def _rank(header: Header) -> tuple[int, int]:
    """A run that began later is newer; of one run, what it was when it had more events."""
    return header.created_ms, header.seq


def _may_be_newer(damaged: str, readable: Header) -> bool:
    created_ms, seq = stamp_of(damaged)
    return (readable.created_ms if created_ms is None else created_ms, seq) > _rank(readable)


def _instead(refusal: Rejected, ranked: list[str]) -> Rejected:
    """The refusal of a damaged entry; it names the older one that can be read, if there is one."""
    problem = refusal.problems[0]
    if not ranked:
        return refusal
    return rejected(problem.code, problem.message, hint=f"{problem.hint}; an older one can be read: {ranked[0]}")
