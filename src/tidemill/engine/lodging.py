"""Which place for blobs belongs to which store: a store remembers its place, and the place knows its stores.

Two processes that look for the blobs of one store in two places would wait for each other's values for ever. And a
collector only reads the logs of its own store: in a place that another store uses as well, it would delete what that
one needs. So a store writes down once where its blobs are, in a stream of its own, and leaves a mark in the place. Who
comes with another place is refused, unless it carries the mark: then it is the same one under another name. Who wants
to collect is refused as long as there are marks of others. Once that is settled, opening asks nothing of the place.

A file with blobs inside needs no mark. A copy of a store is another store: it is told by the number that the file
system gave it, and leaves a mark of its own.
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
from tidemill.stores.contract import Commit, Committed, Store, Stream

REMEMBERED = Stream("", "store", "blobs")
RACES_MAX = 16


class Lodged(msgspec.Struct, frozen=True, kw_only=True):
    """What a store remembers of its place; the newest record counts."""

    address: str
    mark: str
    file: int
    """The number of the store's file in its file system."""
    signed: bool = False
    """The mark is in the place. It is written down before, so that a killed process leaves none that nobody knows."""


_ENCODE = msgspec.json.Encoder().encode
_DECODE = msgspec.json.Decoder(Lodged).decode


class Lodging:
    """The file of a store and its place for blobs; `inside` is what the file itself can hold."""

    def __init__(self, store: Store, path: Path, inside: Blobs, outside: Outside | None, ambient: Ambient) -> None:
        self._store, self._path, self._inside, self._outside = store, path, inside, outside
        self._ambient = ambient

    async def settle(self, *, stays: bool) -> None:
        """Refuse a place that is not the one of the store, and let both remember each other the first time.

        Who only looks at a copy leaves no mark of it: a backup that is checked keeps nobody from collecting.
        """
        for _ in range(RACES_MAX):
            if await self._is_settled(stays):
                return
            # Another process was faster: what it wrote counts.
        raise Unavailable("too many processes write down at once where the blobs of the store are")

    async def check_alone(self) -> None:
        """Refuse to collect in a place that other stores use too."""
        if self._outside is None:
            return
        await self.settle(stays=True)
        known, _ = await self._known()
        own, marks = known.mark if known is not None else "", await self._outside.marks()
        others = {mark: words for mark, words in marks.items() if mark != own}
        if others:
            mark, words = min(others.items())
            where = self._outside.mark_path(mark)
            message = f"nothing was collected, because {words or 'another store'} keeps its blobs in the same place"
            hint = f"give each store a place of its own; if that one is gone or was moved, remove {where}"
            raise rejected("blobs_shared", message, hint=hint)
        if own and own not in marks:
            await self._outside.sign(own, str(self._path))

    async def _is_settled(self, stays: bool) -> bool:
        known, version = await self._known()
        if self._outside is None:
            if known is not None:
                raise _elsewhere(self._path, "in the file itself", known.address)
            return True
        if known is None:
            if not await self._may_begin(self._outside):
                return True
        elif known.address != self._outside.address and not await self._carries(self._outside, known.mark):
            raise _elsewhere(self._path, f"in {self._outside.address}", known.address)
        elif not stays:
            return True
        # A place that is away and a file that nobody may write to are told of by whoever needs them.
        with suppress(TidemillError):
            return await self._remembered(self._outside, known, version)
        return True

    async def _remembered(self, outside: Outside, known: Lodged | None, version: int) -> bool:
        """Write down what is not known yet; false when another process did."""
        file = self._path.stat().st_ino
        if known is None or known.file != file:
            known = Lodged(address=outside.address, mark=self._ambient.new_id(), file=file)
            if not await self._written(known, version):
                return False
            version += 1
        if not known.signed:
            await outside.sign(known.mark, str(self._path))
            return await self._written(msgspec.structs.replace(known, signed=True), version)
        return True

    async def _written(self, lodged: Lodged, version: int) -> bool:
        (answer,) = await self._store.commit([Commit(REMEMBERED, version, (_ENCODE(lodged),))])
        return isinstance(answer, Committed)

    async def _known(self) -> tuple[Lodged | None, int]:
        (tail,) = await self._store.load({REMEMBERED: 0})
        # What cannot be read is left alone, like the memory of a store that has none: `verify-log` tells of damage.
        with suppress(*DAMAGE):
            return (_DECODE(tail.records[-1]) if tail.records else None), tail.version
        return None, tail.version

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
