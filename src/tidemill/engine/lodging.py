"""Bind a store to its blob location.

On first open the store writes a marker file with its id there and records the location and the id in a stream of its
own; both are written once. Later opens must name the same location or find the marker: then it is the same location
under another name. They ask nothing of the location otherwise.

Garbage collection reads the logs of its own store only, so it refuses to run where another store has left a marker. A
marker names the file of its store, so a copy of a store, which has the same id, must not collect either.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.contract import Blobs, Outside
from tidemill.engine.rows import RUN
from tidemill.engine.versions import WORKFLOW
from tidemill.errors import Rejected, TidemillError, Unavailable, rejected
from tidemill.kernel.codec import DAMAGE
from tidemill.stores.contract import Commit, Store, Stream

REMEMBERED = Stream("", "store", "blobs")


class Lodged(msgspec.Struct, frozen=True, kw_only=True):
    """What a store records of its blob location."""

    address: str
    mark: str
    """The store's id: the name of its marker."""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Lodged).decode


class Lodging:
    """The file of a store and its place for blobs; `inside` is what the file itself can hold."""

    def __init__(self, store: Store, path: Path, inside: Blobs, outside: Outside | None, ambient: Ambient) -> None:
        self._store, self._path, self._inside, self._outside = store, path, inside, outside
        self._ambient = ambient

    async def settle(self) -> None:
        """Refuse a place that is not the store's; the first time, bind the two."""
        known, outside = await self._known(), self._outside
        if known is None and outside is not None and await self._may_begin(outside):
            # A location that cannot be reached, and a file that cannot be written, are reported where they are needed.
            with suppress(TidemillError):
                await self._bind(outside)
            known = await self._known()
        if known is None:
            return
        if outside is None:
            raise _elsewhere(self._path, "in the file itself", known.address)
        if known.address != outside.address and not await self._carries(outside, known.mark):
            raise _elsewhere(self._path, f"in {outside.address}", known.address)

    async def check_alone(self) -> None:
        """Refuse to collect in a place that other stores, or copies of this one, use too."""
        outside = self._outside
        if outside is None:
            return
        await self.settle()
        marks = await outside.marks()
        others = {mark: path for mark, path in marks.items() if path != str(self._path)}
        if others:
            mark, path = min(others.items())
            where = outside.mark_path(mark)
            message = f"nothing was collected, because {path or 'another store'} keeps its blobs in the same place"
            hint = f"give each store a place of its own; if that one is gone or was moved, remove {where}"
            raise rejected("blobs_shared", message, hint=hint)
        known = await self._known()
        if known is not None and known.mark not in marks:
            await outside.sign(known.mark, str(self._path))

    async def _bind(self, outside: Outside) -> None:
        """Write the marker, then the record. A marker that a killed process has left for this file is used again."""
        left = [mark for mark, path in (await outside.marks()).items() if path == str(self._path)]
        mark = min(left) if left else self._ambient.new_id()
        await outside.sign(mark, str(self._path))
        # Refused when another process was faster: its record counts, and both markers name the same file.
        await self._store.commit([Commit(REMEMBERED, 0, (_ENCODE(Lodged(address=outside.address, mark=mark)),))])

    async def _known(self) -> Lodged | None:
        (tail,) = await self._store.load({REMEMBERED: 0})
        # What cannot be read is left alone, like the memory of a store that has none: `verify-log` tells of damage.
        with suppress(*DAMAGE):
            return _DECODE(tail.records[-1]) if tail.records else None
        return None

    async def _may_begin(self, outside: Outside) -> bool:
        """Whether a place can be the one of a store that remembers none.

        An empty one cannot, for a store that has been used: it may be a slip of the pen, or the blobs are in the file.
        """
        with suppress(Unavailable):
            if await outside.tenants():
                return True
            await self._inside.open()
            try:
                if await self._inside.tenants():
                    raise _elsewhere(self._path, f"in {outside.address}", "")
            finally:
                await self._inside.close()
            return not any([await self._store.streams(kind, limit=1) for kind in (WORKFLOW, RUN)])
        return False

    async def _carries(self, outside: Outside, mark: str) -> bool:
        with suppress(Unavailable):
            return mark in await outside.marks()
        return False


def _elsewhere(path: Path, given: str, address: str) -> Rejected:
    where = f"in {address}" if address else "in the file itself"
    hint = f"open it with ?blobs={quote(address, safe=':/?=')}" if address else "open it without ?blobs="
    return rejected("blobs_elsewhere", f"{path} keeps its blobs {where}, not {given}", hint=hint)
