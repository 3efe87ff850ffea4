"""Who works on the store: the verb that lists workers, and what `why` asks about them."""

from __future__ import annotations

import msgspec

from tidemill.engine.desk import Desk
from tidemill.engine.registry import Held, Registry, State, WorkerRow, registered
from tidemill.kernel.explain import Able, Workers


class WorkerView(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as lists show it; moments are those of the store's clock."""

    name: str
    state: State
    host: str
    pid: int
    version: str
    started_ms: int
    beat_ms: int
    """When it last said that it is alive."""
    queues: tuple[str, ...]
    """Which queues it serves; none named means all of them."""
    types: tuple[str, ...]
    """Node types that it can run, as `name@major`."""
    concurrency: int
    holding: int
    held: tuple[Held, ...]
    """The first of the jobs in its hands."""
    finished: int


class Roster(Desk):
    """The verbs."""

    registry: Registry | None = None

    async def workers(self) -> list[WorkerView]:
        """Every worker that is known, those that started last first; a dead one is forgotten after an hour."""
        now = self._store.now_ms()
        return [_view(row, row.state(now)) for row in await self._registered()]

    async def _registered(self) -> list[WorkerRow]:
        """All rows, with this process's worker as it is now, also before it has written its own."""
        rows = await registered(self._store, self._tenant)
        if self.registry is None or not self.registry.is_open:
            return rows
        mine = self.registry.row()
        return [mine, *(row for row in rows if row.name != mine.name)]

    async def _others(self) -> bool:
        """Whether there are workers beside the one of this process, as far as it serves more than one run."""
        if self.registry is None or self.registry.serves_one_run:
            return False
        now, mine = self._store.now_ms(), self.registry.row().name
        return any(row.state(now) == "alive" and row.name != mine for row in await self._registered())

    async def _workers(self) -> Workers:
        """What those can do between them who take on work now."""
        now = self._store.now_ms()
        return Workers.of([_able(row) for row in await self._registered() if row.state(now) == "alive"])


def _able(row: WorkerRow) -> Able:
    return Able(name=row.name, queues=frozenset(row.queues) if row.queues else None, types=frozenset(row.types))


def _view(row: WorkerRow, state: State) -> WorkerView:
    fields = {name: getattr(row, name) for name in WorkerView.__struct_fields__ if name != "state"}
    return WorkerView(state=state, **fields)
