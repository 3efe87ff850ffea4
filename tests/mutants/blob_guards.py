"""The guards of blobs and of their collector."""

from __future__ import annotations

from tests.mutants.guard import Guard

LAWS = "tests/blobs/test_local.py::TestMemoryBlobs::"
FILES = "tests/blobs/test_directory.py::TestDirectoryBlobs::"
TESTS = "tests/engine/test_collecting.py::"
MEMORY = "blobs/local.py"
FOLDER = "blobs/directory.py"
COLLECTOR = "engine/collecting.py"

BLOBS: tuple[Guard, ...] = (
    Guard(
        name="only-grace-is-deleted",
        why="A collector could delete a blob that a run has just put.",
        file=MEMORY,
        snippet="if state != GRACE or since_ms >= before_ms or place in self._kept:",
        sabotage="if since_ms >= before_ms or place in self._kept:",
        test=LAWS + "test_what_is_active_is_never_deleted",
    ),
    Guard(
        name="grace-is-waited-for",
        why="A blob could be deleted before the run that put it has committed what refers to it.",
        file=MEMORY,
        snippet="if state != GRACE or since_ms >= before_ms or place in self._kept:",
        sabotage="if state != GRACE or place in self._kept:",
        test=LAWS + "test_what_has_not_been_in_grace_for_long_is_not_deleted",
    ),
    Guard(
        name="kept-is-not-retired",
        why="A blob that somebody asked to keep could leave.",
        file=MEMORY,
        snippet="if place not in self._kept and self._states",
        sabotage="if self._states",
        test=LAWS + "test_what_is_kept_stays",
    ),
    Guard(
        name="put-brings-back",
        why="A blob that was put again while it was on its way out would be deleted under the run that needs it.",
        file=MEMORY,
        snippet="if state == GRACE or since_ms < now_ms - RENEW_MS:",
        sabotage="if place not in self._states:",
        test=TESTS + "test_a_put_at_any_moment_of_a_collection_is_safe[memory-grace]",
    ),
    Guard(
        name="folder-grace-is-waited-for",
        why="A file could be deleted before the run that put it has committed what refers to it.",
        file=FOLDER,
        snippet="if self._kept(tenant, digits) or _mtime_ms(path.stat()) >= before_ms:",
        sabotage="if self._kept(tenant, digits):",
        test=FILES + "test_what_has_not_been_in_grace_for_long_is_not_deleted",
    ),
    Guard(
        name="folder-move-dates-anew",
        why="A blob could leave as soon as it was set aside, since its file is old.",
        file=FOLDER,
        snippet="            os.utime(here)\n",
        sabotage="",
        test="tests/blobs/test_directory.py::test_time_in_grace_begins_with_the_move",
    ),
    Guard(
        name="folder-looks-twice",
        why="A blob that is moved between two looks would be called missing.",
        file=FOLDER,
        snippet="        for place in (ACTIVE, GRACE, ACTIVE):\n            with suppress(FileNotFoundError):",
        sabotage="        for place in (ACTIVE, GRACE):\n            with suppress(FileNotFoundError):",
        test="tests/blobs/test_directory.py::test_a_blob_that_is_moved_while_it_is_looked_for_is_found",
    ),
    Guard(
        name="digest-is-no-path",
        why="A made-up address could lead to any file of the machine.",
        file="blobs/contract.py",
        snippet="    if found is None:\n        raise missing(digest)\n    return found.group(1)",
        sabotage='    return digest.removeprefix("sha256:") if found is None else found.group(1)',
        test="tests/blobs/test_directory.py::test_an_address_does_not_lead_out_of_the_folder",
    ),
    Guard(
        name="needed-is-not-retired",
        why="The values of live runs would be collected.",
        file=COLLECTOR,
        snippet="                if not needed:\n                    await self._retire(info)",
        sabotage="                await self._retire(info)",
        test=TESTS + "test_what_any_run_needs_stays_and_the_rest_leaves",
    ),
    Guard(
        name="needed-comes-back",
        why="A blob that was set aside and is needed again would be deleted a day later.",
        file=COLLECTOR,
        snippet="elif needed and (info.kept or info.digest not in active):",
        sabotage="elif info.kept:",
        test=TESTS + "test_what_is_needed_again_comes_back_from_grace",
    ),
    Guard(
        name="young-is-left-alone",
        why="A blob could be set aside while the fact that refers to it is on its way.",
        file=COLLECTOR,
        snippet="young = info.state != GRACE and info.since_ms >= self._young_ms",
        sabotage="young = False",
        test=TESTS + "test_a_young_blob_is_left_alone",
    ),
    Guard(
        name="values-within-values",
        why="Files that a large value refers to would be collected.",
        file=COLLECTOR,
        snippet="found = set().union(*within) - self._needed",
        sabotage="found = set()",
        test=TESTS + "test_what_any_run_needs_stays_and_the_rest_leaves",
    ),
    Guard(
        name="chunks-overlap",
        why="An address that stands across two chunks of a value would be overlooked.",
        file=COLLECTOR,
        snippet="text, first = rest + chunk, False",
        sabotage="text, first = chunk, False",
        test=TESTS + "test_an_address_across_two_chunks_is_found",
    ),
    Guard(
        name="damaged-log-stops-collection",
        why="What a damaged log refers to would be collected, and its repair would come too late.",
        file=COLLECTOR,
        snippet="            _check_readable(tail)\n",
        sabotage="",
        test=TESTS + "test_a_log_that_cannot_be_read_stops_everything",
    ),
    Guard(
        name="told-damage-stops-collection",
        why="A store that says that a log is damaged would be taken for one with an empty log.",
        file=COLLECTOR,
        snippet="    if tail.damage:\n",
        sabotage="    if False:\n",
        test=TESTS + "test_damage_that_the_store_tells_of_stops_everything",
    ),
    Guard(
        name="listed-before-read",
        why="A blob that is put while the logs are read could be set aside although its fact is there.",
        file=COLLECTOR,
        snippet="    await collection.list()\n    await collection.mark()\n",
        sabotage="    await collection.mark()\n    await collection.list()\n",
        test=TESTS + "test_what_is_put_while_the_logs_are_read_is_no_candidate",
    ),
    Guard(
        name="grace-has-a-minimum",
        why="Without a grace period a run that is about to refer to a blob would find it gone.",
        file="engine/vault.py",
        snippet="if grace_ms < YOUNG_MS:",
        sabotage="if False:",
        test="tests/cli/test_blobs.py::test_bad_requests_are_refused[arguments5-grace_too_short]",
    ),
    Guard(
        name="bytes-before-the-fact",
        why="The log could point to bytes that were never stored.",
        file="engine/binaries.py",
        snippet="digest, size = await surely(lambda: blobs.put(tenant, body, keep=blob.keep)), len(body)",
        sabotage='digest, size = "sha256:" + __import__("hashlib").sha256(body).hexdigest(), len(body)',
        test="tests/engine/test_binaries.py::test_the_bytes_are_stored_before_the_fact",
    ),
    Guard(
        name="given-sets-in-order",
        why="After a restart the same inputs with a set in them would be refused as others under the same key.",
        file="blobs/payloads.py",
        snippet='encode_value(_in_order(value)) if b"[" in text else text',
        sabotage="text",
        test="tests/blobs/test_payloads.py::test_sets_that_are_given_have_the_same_order_in_every_process",
    ),
)
