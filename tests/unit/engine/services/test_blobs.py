"""A store and its place for blobs belong together: who comes with another place, or shares one, is told so."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tidemill.engine.maintenance.blob_gc import REMEMBERED
from tidemill.errors import Rejected
from tidemill.storage_urls import open_storage

FLOW = {"name": "flow", "nodes": [{"id": "a", "type": "value", "config": "x" * 70_000}]}


def at(file: Path, place: Path | None = None, *, work: bool = False) -> Any:
    """An engine on a file and its place."""
    return tidemill.open(f"sqlite:///{file}" + (f"?blobs=dir:///{place}" if place else ""), work=work)


def used(file: Path, place: Path | None = None) -> Path:
    """A store with a workflow, whose document is a blob."""
    with at(file, place) as mill:
        mill.publish(FLOW)
    return file


def refusal(file: Path, place: Path | None = None) -> tidemill.Problem:
    with pytest.raises(Rejected) as told:
        at(file, place).close()
    return told.value.problems[0]


def test_a_store_is_opened_with_its_own_place_only(tmp_path: Path) -> None:
    store = used(tmp_path / "a.db", tmp_path / "place")
    for other in (tmp_path / "other", None):
        problem = refusal(store, other)
        assert problem.code == "blobs_elsewhere"
        assert f"{tmp_path}/place" in problem.message and f"?blobs=dir:///{tmp_path}/place" in problem.hint
    used(store, tmp_path / "place")


def test_a_store_with_blobs_inside_has_none_outside(tmp_path: Path) -> None:
    problem = refusal(used(tmp_path / "a.db"), tmp_path / "place")
    assert (problem.code, problem.hint) == ("blobs_elsewhere", "open it without ?blobs=")


def test_a_place_that_was_moved_is_the_same_place(tmp_path: Path) -> None:
    store = used(tmp_path / "a.db", tmp_path / "place")
    (tmp_path / "place").rename(tmp_path / "moved")
    with at(store, tmp_path / "moved") as mill:
        assert mill.workflow_document("flow")["name"] == "flow"
        mill.collect_blobs()


def test_nothing_is_collected_in_a_place_that_stores_share(tmp_path: Path) -> None:
    first, second = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "b.db"
    at(second, tmp_path / "place", work=True).close()
    for store, other in ((first, second), (second, first)):
        with at(store, tmp_path / "place") as mill:
            with pytest.raises(Rejected) as told:
                mill.collect_blobs(dry_run=True)
            problem = told.value.problems[0]
            assert problem.code == "blobs_shared"
            assert str(other) in problem.message
    Path(problem.hint.rpartition(" ")[2]).unlink()
    with at(second, tmp_path / "place") as mill:
        mill.collect_blobs()


def test_a_copy_collects_nothing_until_the_marker_of_its_original_is_removed(tmp_path: Path) -> None:
    first, copy = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "b.db"
    shutil.copy(first, copy)
    with at(copy, tmp_path / "place", work=True) as mill:
        with pytest.raises(Rejected, match=str(first)) as told:
            mill.collect_blobs(dry_run=True)
        Path(told.value.problems[0].hint.rpartition(" ")[2]).unlink()
        mill.collect_blobs()
    with at(first, tmp_path / "place") as mill, pytest.raises(Rejected, match=str(copy)):
        mill.collect_blobs()


def test_a_marker_that_a_killed_process_has_left_is_used_again(tmp_path: Path) -> None:
    store, place = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "place"
    forget(store)
    at(store, place).close()
    assert len([*(place / ".stores").iterdir()]) == 1
    with at(store, place) as mill:
        mill.collect_blobs()


def forget(file: Path) -> None:
    """Have a store remember no place."""
    shelf = open_storage(f"sqlite:///{file}")

    async def forgetting() -> None:
        await shelf.store.open()
        assert await shelf.store.forget(REMEMBERED)
        await shelf.store.close()

    asyncio.run(forgetting())


def test_a_store_from_before_is_taken_in(tmp_path: Path) -> None:
    """It remembers nothing, and its place is full; a place that is empty may be a slip of the pen."""
    store, place = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "place"
    forget(store)
    shutil.rmtree(place / ".stores")
    at(store, tmp_path / "typo").close()
    at(store, place).close()
    assert refusal(store, tmp_path / "typo").code == "blobs_elsewhere"


def test_who_looks_at_a_backup_keeps_nobody_from_collecting(tmp_path: Path) -> None:
    store, place = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "place"
    shutil.copy(store, tmp_path / "backup.db")
    with at(tmp_path / "backup.db", place) as mill:
        assert mill.verify_log().clean
    with at(store, place) as mill:
        mill.collect_blobs()
    with at(tmp_path / "backup.db", place) as mill, pytest.raises(Rejected, match=str(store)):
        mill.collect_blobs()


def test_a_settled_store_asks_nothing_of_its_place(tmp_path: Path) -> None:
    store, place = used(tmp_path / "a.db", tmp_path / "place"), tmp_path / "place"
    (mark,) = (place / ".stores").iterdir()
    mark.unlink()
    at(store, place).close()
    assert not [*(place / ".stores").iterdir()]
    with at(store, place) as mill:
        mill.collect_blobs()
    assert [*(place / ".stores").iterdir()] == [mark]
