"""A disk that can be watched, that fails when it is told to, and that forgets what was never synced."""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import apsw

SECTOR = 512
_numbers = count()


class Step(NamedTuple):
    """Something that SQLite did to a file; `what` is write, sync or truncate."""

    what: str
    file: str
    offset: int = 0
    size: int = 0


Fault = Callable[[Step], None]
"""Asked before a step is made; raises to fail it."""


class Remembered:
    """What a file would hold after a power cut, and what has been written to it since."""

    def __init__(self, path: str) -> None:
        self.content = bytearray(Path(path).read_bytes() if os.path.exists(path) else b"")
        self.pending: list[tuple[int, bytes | None]] = []

    def settle(self) -> None:
        for offset, data in self.pending:
            _write(self.content, offset, data)
        self.pending.clear()

    def after_cut(self, rng: random.Random) -> bytes:
        """Any part of what was not synced may have reached the disk, in any order, sector by sector."""
        content = bytearray(self.content)
        share = rng.choice((0.0, 0.5, 0.9, 1.0))
        for offset, data in self.pending:
            if data is None:
                if rng.random() < share:
                    _write(content, offset, None)
                continue
            for start in range(0, len(data), SECTOR):
                if rng.random() < share:
                    _write(content, offset + start, data[start : start + SECTOR])
        return bytes(content)


def _write(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk(apsw.VFS):
    """The layer. `lossy_sync`: a sync that fails also drops what it should have written, as Linux does."""

    def __init__(self, *, remember: bool = False, lossy_sync: bool = False) -> None:
        self.name, self.under = f"disk-{next(_numbers)}", apsw.vfs_names()[0]
        self.steps: list[Step] = []
        self.fault: Fault | None = None
        self.lossy_sync = lossy_sync
        self._remember = remember
        self.files: dict[str, Remembered] = {}
        self.lock = threading.Lock()
        super().__init__(self.name, self.under, makedefault=True, iVersion=3)

    def xOpen(self, name: Any, flags: list[int]) -> apsw.VFSFile:  # noqa: N802 - SQLite names it
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        if self._remember and path and path not in self.files:
            self.files[path] = Remembered(path)
        return File(self, path or "", name, flags)

    def xDelete(self, name: str, sync_dir: bool) -> None:  # noqa: N802 - SQLite names it
        self.files.pop(name, None)
        super().xDelete(name, sync_dir)

    def note(self, step: Step) -> None:
        with self.lock:
            self.steps.append(step)
        if self.fault is not None:
            self.fault(step)

    def power_cut(self, folder: Path, rng: random.Random) -> Path:
        """What is left of the file and its log, in another folder; answers where the file is."""
        folder.mkdir()
        main = folder / "none"
        with self.lock:
            for path, remembered in self.files.items():
                if path.endswith("-shm"):
                    continue
                target = folder / Path(path).name
                target.write_bytes(remembered.after_cut(rng))
                if not path.endswith(("-wal", "-journal")):
                    main = target
        return main


class File(apsw.VFSFile):
    """One file of a `Disk`."""

    def __init__(self, disk: Disk, path: str, name: Any, flags: list[int]) -> None:
        self._disk, self._path, self._called = disk, path, Path(path).name
        super().__init__(disk.under, name, flags)

    @property
    def _remembered(self) -> Remembered | None:
        return self._disk.files.get(self._path)

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802 - SQLite names it
        self._disk.note(Step("write", self._called, offset, len(data)))
        super().xWrite(data, offset)
        if self._remembered is not None:
            with self._disk.lock:
                self._remembered.pending.append((offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802 - SQLite names it
        self._disk.note(Step("truncate", self._called, size))
        super().xTruncate(size)
        if self._remembered is not None:
            with self._disk.lock:
                self._remembered.pending.append((size, None))

    def xSync(self, flags: int) -> None:  # noqa: N802 - SQLite names it
        try:
            self._disk.note(Step("sync", self._called))
        except apsw.Error:
            if self._disk.lossy_sync and self._remembered is not None:
                with self._disk.lock:
                    self._remembered.pending.clear()
            raise
        super().xSync(flags)
        if self._remembered is not None:
            with self._disk.lock:
                self._remembered.settle()


@contextmanager
def installed(**options: Any) -> Iterator[Disk]:
    """Every connection that is opened meanwhile goes through this disk."""
    disk = Disk(**options)
    try:
        yield disk
    finally:
        disk.fault = None
        disk.unregister()


def failing(what: str, file_end: str, error: Callable[[], Exception], *, at: int = 1, times: int = 1) -> Counted:
    """A fault at the `at`-th such step and the ones after it, `times` of them."""
    return Counted(what, file_end, error, at, times)


class Counted:
    """A fault that counts: how many steps it has seen that it is meant for, and how often it has fired."""

    def __init__(self, what: str, file_end: str, error: Callable[[], Exception], at: int, times: int) -> None:
        self._what, self._file_end, self._error, self._at, self._times = what, file_end, error, at, times
        self.seen = self.fired = 0

    def __call__(self, step: Step) -> None:
        if step.what not in self._what.split("|") or not step.file.endswith(self._file_end):
            return
        self.seen += 1
        if self._at <= self.seen < self._at + self._times:
            self.fired += 1
            raise self._error()


def disk_full() -> Exception:
    """What SQLite says when nothing more fits."""
    return _error(apsw.SQLITE_FULL, "database or disk is full")


def write_failed() -> Exception:
    """What it says when a write fails for any other reason."""
    return _error(apsw.SQLITE_IOERR_WRITE, "disk I/O error")


def sync_failed() -> Exception:
    """What it says when nobody knows whether what was written is on the disk."""
    return _error(apsw.SQLITE_IOERR_FSYNC, "disk I/O error")


def _error(code: int, words: str) -> Exception:
    error = apsw.exception_for(code)
    error.args = (words,)
    return error
