"""Files on a disk: how old they are, whether they hold what their names promise, and that no power cut takes them."""

from __future__ import annotations

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from tidemill.blobs.contract import RENEW_MS

LEFTOVER_SECONDS = 24 * 3600
"""No process still writes to a temporary file of this age."""


def sweep(drafts: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    for leftover in drafts.iterdir():
        # Another process may sweep at the same time.
        with suppress(FileNotFoundError):
            if leftover.stat().st_mtime < time.time() - LEFTOVER_SECONDS:
                leftover.unlink()


def renewed(path: Path) -> bool:
    """Whether a file is there; its date is renewed when it is an old one."""
    try:
        if mtime_ms(path.stat()) < time.time_ns() // 1_000_000 - RENEW_MS:
            os.utime(path)
    except FileNotFoundError:
        return False
    return True


def is_sound(path: Path, digits: str) -> bool:
    """Whether a file holds the bytes that its name promises. One that cannot be read does not."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digits
    except OSError:
        return False


def mtime_ms(known: os.stat_result) -> int:
    """When a file was dated last."""
    return known.st_mtime_ns // 1_000_000


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on the disk."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def sync_file(file: IO[bytes]) -> None:
    """Make sure that what was written to a file is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def drop(draft: IO[bytes]) -> None:
    """Close a draft and take its temporary name away; what was linked stays under the other one."""
    with suppress(OSError):
        draft.close()
    with suppress(OSError):
        os.unlink(draft.name)


def write_synced(path: Path, body: bytes) -> None:
    """Write a small file whose bytes and name are on the disk afterwards."""
    with path.open("wb") as file:
        file.write(body)
        sync_file(file)
    sync_folder(path.parent)
