"""Live frames between processes: they arrive in order, before what is committed after them, and hold up nobody."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.conformance.stores.harness import OTHER, RUN
from tidemill.stores.contract import Commit, Frame
from tidemill.stores.sqlite import followers
from tidemill.stores.sqlite.followers import FrameReceiver, FrameSender, sockets_of
from tidemill.stores.sqlite.store import SqliteStore

FOLLOWING = """
import asyncio, json, sys
from tidemill.stores.contract import Stream
from tidemill.stores.sqlite.store import SqliteStore

async def main():
    store, seen = SqliteStore(sys.argv[1]), []
    await store.open()
    async for frame in store.follow(Stream("acme", "run", "r1"), 0):
        if frame.body == b"begin":
            print("listens", flush=True)
        elif frame.body == b"end":
            break
        else:
            seen.append(frame.body.decode())
    print(json.dumps(seen), flush=True)
    await store.close()

asyncio.run(main())
"""


async def write(store: SqliteStore, *records: bytes) -> None:
    (tail,) = await store.load({RUN: 0})
    await store.commit([Commit(stream=RUN, expected=tail.version, records=records)])


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(folder / "a.db", durability="relaxed")
    await store.open()
    await write(store, b"begin")
    yield store
    await store.close()


class Follower:
    """A process that follows a run until its end."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        return (await asyncio.wait_for(self._process.stdout.readline(), 20)).decode().strip()

    async def seen(self) -> list[str]:
        found: list[str] = json.loads(await self.line())
        await self._process.wait()
        return found

    async def kill(self) -> None:
        self._process.kill()
        await self._process.wait()

    def tell(self, number: int) -> None:
        self._process.send_signal(number)


@asynccontextmanager
async def following(store: SqliteStore) -> AsyncIterator[Follower]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FOLLOWING, str(store.path), stdout=asyncio.subprocess.PIPE, limit=1 << 24
    )
    follower = Follower(process)
    try:
        assert await follower.line() == "listens"
        yield follower
    finally:
        if process.returncode is None:
            await follower.kill()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody loses anything because the machine is busy."""
    monkeypatch.setattr(followers, "PATIENCE_MS", 1_000.0)


@pytest.mark.usefixtures("patient")
async def test_another_process_sees_all_in_order_and_before_what_is_written_after(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, following(store) as one, following(store) as two:
        expected = []
        for number in range(300):
            await store.publish(RUN, [b"%d" % number, b"%d'" % number])
            await store.publish(OTHER, [b"not yours"])
            expected += [f"{number}", f"{number}'"]
            if number % 10 == 0:
                await write(store, b"written %d" % number)
                expected.append(f"written {number}")
        await store.publish(RUN, [b"last"])
        await write(store, b"end")
        assert await one.seen() == [*expected, "last"]
        assert await two.seen() == [*expected, "last"]
    assert not sockets_of(store.path).exists()


@pytest.mark.usefixtures("patient")
async def test_a_burst_is_waited_for_as_long_as_it_is_read(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, following(store) as follower:
        frames = [b"%d " % number + b"x" * 50_000 for number in range(40)]
        await store.publish(RUN, frames)
        await write(store, b"end")
        assert [frame.split()[0] for frame in await follower.seen()] == [str(number) for number in range(40)]


async def test_who_stops_reading_misses_frames_and_slows_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "PATIENCE_MS", 1_000.0)
    letters = "x" * 100_000
    async with opened(tmp_path) as store, following(store) as reads, following(store) as stopped:
        stopped.tell(signal.SIGSTOP)
        begun = time.monotonic()
        for number in range(40):
            await store.publish(RUN, [f"{number} {letters}".encode()])
        spent = time.monotonic() - begun
        await write(store, b"written", b"end")
        assert await reads.seen() == [*(f"{number} {letters}" for number in range(40)), "written"]
        stopped.tell(signal.SIGCONT)
        seen = await stopped.seen()
        assert 1 < len(seen) < 41, "it took nothing, or all: then nobody stopped it"
        assert seen[-1] == "written"
        assert spent < 20, "more than one telling has waited for it"


async def test_what_a_killed_follower_leaves_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(followers, "BINDING_SECONDS", 0.0)
    async with opened(tmp_path) as store:
        async with following(store) as follower:
            await follower.kill()
        (left,) = sockets_of(store.path).iterdir()
        # Somebody who listens to something else finds it too.
        receiver = FrameReceiver(store.path, lambda *_: None)
        receiver.listen(OTHER)
        assert not left.exists()
        receiver.close()
        async with following(store) as follower:
            await store.publish(RUN, [b"heard"])
            await follower.kill()
        (left,) = sockets_of(store.path).iterdir()
        await asyncio.sleep(2 * followers.FOLLOWER_LOOK_EVERY_MS / 1000)
        await store.publish(RUN, [b"nobody hears"])
        await asyncio.sleep(2 * followers.FOLLOWER_LOOK_EVERY_MS / 1000)
        await store.publish(RUN, [b"nobody hears"])
        assert not left.exists()


async def test_a_socket_that_is_being_bound_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path) as store:
        async with following(store) as follower:
            await follower.kill()
        (left,) = sockets_of(store.path).iterdir()
        await store.publish(RUN, [b"nobody hears"])
        assert left.exists()


async def test_a_stream_that_nobody_follows_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as store, following(store):
        monkeypatch.setattr(store, "load", None)
        await store.publish(OTHER, [b"x"])
        with pytest.raises(TypeError):
            await store.publish(RUN, [b"x"])


async def test_who_wants_no_live_frames_is_not_told_any(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, opened(tmp_path) as teller:
        frames = store.follow(RUN, 2, live=False)
        waiting = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0.02)
        assert not sockets_of(store.path).exists()
        await store.publish(RUN, [b"x"])
        await teller.publish(RUN, [b"x"])
        await write(teller, b"end")
        assert await waiting == Frame(version=3, body=b"end")


@pytest.mark.parametrize("folder", ["a", "x" * 200])
async def test_own_frames_are_heard_once_and_names_may_be_long(tmp_path: Path, folder: str) -> None:
    place = tmp_path / folder
    place.mkdir()
    async with opened(place) as store, opened(place) as other:
        frames = store.follow(RUN, 2)
        waiting = asyncio.ensure_future(anext(frames))
        await asyncio.sleep(0.02)
        await store.publish(RUN, [b"own"])
        await other.publish(RUN, [b"other's"])
        assert [(await waiting).body, (await anext(frames)).body] == [b"own", b"other's"]


async def test_a_frame_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    async with opened(tmp_path) as store, following(store) as follower:
        await store.publish(RUN, [b"a", b"x" * 50_000_000, b"y" * followers.DATAGRAM_BYTES_MAX, b"b"])
        await write(store, b"end")
        assert await follower.seen() == ["a", "b"]


@pytest.mark.parametrize("how", ["open to others", "a link", "another user's"])
async def test_a_folder_that_others_can_enter_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    folder = sockets_of(tmp_path / "a.db")
    receiver, sender = FrameReceiver(tmp_path / "a.db", lambda *_: None), FrameSender(tmp_path / "a.db", ())
    if how == "a link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "elsewhere")
    else:
        folder.mkdir(mode=0o755 if how == "open to others" else 0o700)
    if how == "another user's":
        user = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: user)
    receiver.listen(RUN)
    assert not receiver.names
    assert not list(folder.iterdir())
    (folder / f"{followers._prefix(RUN)}0").touch()
    assert sender.listeners(RUN) == []
