"""The guards of upkeep: what leaves a store and comes back, what is listed, what the audit says of it."""

from __future__ import annotations

from tests.mutants.guard import Guard

RETENTION = "tests/engine/test_retention.py::"
VERIFY = "tests/engine/test_verify_log.py::"
RETIRING = "engine/retiring.py"
RUNS = "engine/runs.py"
SAMPLING = "engine/sampling.py"

UPKEEP: tuple[Guard, ...] = (
    Guard(
        name="retire-archives-first",
        why="A run would be deleted that is nowhere else.",
        file=RETIRING,
        snippet="            await self._put(stream, tail, state)\n",
        sabotage="            pass\n",
        test=RETENTION + "test_a_run_is_kept_for_its_days_and_then_leaves",
    ),
    Guard(
        name="retire-forgets-what-it-archived",
        why="What happened to a run after it was archived would be lost.",
        file=RETIRING,
        snippet="self._store.forget(stream, expected=state.seq, rows=gone)",
        sabotage="self._store.forget(stream, rows=gone)",
        test=RETENTION + "test_a_run_that_moved_on_after_it_was_archived_stays",
    ),
    Guard(
        name="retire-only-what-is-over",
        why="A wrong row would be enough to take a run away that is at work.",
        file=RETIRING,
        snippet="        if state.busy:\n",
        sabotage="        if False:\n",
        test=RETENTION + "test_a_row_that_is_wrong_costs_no_run",
    ),
    Guard(
        name="retire-after-the-parent",
        why="A parent that still waits would start its child anew.",
        file=RETIRING,
        snippet="(entry is not None and entry.state.busy)",
        sabotage="False",
        test=RETENTION + "test_what_is_not_over_stays",
    ),
    Guard(
        name="retire-after-the-messages",
        why="The end of a child that nobody has reported yet would go with its job.",
        file=RETIRING,
        snippet="        if await self._store.jobs(stream):\n",
        sabotage="        if False:\n",
        test=RETENTION + "test_messages_are_delivered_before_a_run_leaves",
    ),
    Guard(
        name="retire-keeps-for-an-hour",
        why="A process that knows the run would take a new one of the same name for it.",
        file=RETIRING,
        snippet="(self._store.now_ms() - GRACE_MS) // DAY_MS",
        sabotage="self._store.now_ms() // DAY_MS",
        test=RETENTION + "test_no_run_leaves_within_the_hour",
    ),
    Guard(
        name="retire-compares-what-is-there",
        why="A run would be deleted because something else has its place in the archive.",
        file=RETIRING,
        snippet="if there is None or decode_archived(name, there).records != tail.records:",
        sabotage="if False:",
        test=RETENTION + "test_an_entry_of_another_content_keeps_the_run",
    ),
    Guard(
        name="retire-leaves-what-was-restored",
        why="A run that somebody brought back would leave again within a minute.",
        file=RETIRING,
        snippet="max(quiet_day(state), restored_ms // DAY_MS)",
        sabotage="quiet_day(state)",
        test=RETENTION + "test_what_was_brought_back_is_kept_as_long_again",
    ),
    Guard(
        name="archive-checksum",
        why="An archived run that was changed would be brought back as if it had happened so.",
        file="engine/archiving.py",
        snippet='if msgspec.json.decode(last)["sha256"] != hashlib.sha256(b"".join(lines)).hexdigest():',
        sabotage="if False:",
        test=RETENTION + "test_a_damaged_entry_is_not_brought_back",
    ),
    Guard(
        name="restore-needs-every-value",
        why="A run would come back with facts that point to nothing.",
        file="engine/upkeep.py",
        snippet="if body is None or await self._blobs.put(self._tenant, body) != digest:",
        sabotage="if False:",
        test=RETENTION + "test_a_run_whose_values_the_archive_has_lost_is_not_brought_back",
    ),
    Guard(
        name="runs-known-for-a-while",
        why="A process would fold the events of a new run into the state of an old one of the same name.",
        file=RUNS,
        snippet="if abs(now_ms - entry.seen_ms) <= KNOWN_FOR_MS:",
        sabotage="if True:",
        test=RETENTION + "test_a_process_that_slept_does_not_take_a_new_run_for_the_one_it_knew",
    ),
    Guard(
        name="runs-forgotten-are-unknown",
        why="A run that has left the store would be shown for ever by whoever knew it.",
        file=RUNS,
        snippet="if tail.version == 0 and after[tail.stream] and not tail.damage:",
        sabotage="if False:",
        test=RETENTION + "test_a_run_that_was_forgotten_is_not_remembered",
    ),
    Guard(
        name="runs-ended-elsewhere-leave",
        why="Whoever asks now and then would keep an ended run until another one has its name.",
        file=RUNS,
        snippet="        if not entry.state.busy:\n            self._entries.pop(",
        sabotage="        if False:\n            self._entries.pop(",
        test=RETENTION + "test_a_run_that_ended_elsewhere_is_not_remembered",
    ),
    Guard(
        name="reindex-against-a-version",
        why="A row that was derived a moment ago would replace the one of a run that has ended since.",
        file="engine/indexing.py",
        snippet="Commit(stream=stream, expected=version, rows=tuple(rows))",
        sabotage="Commit(stream=stream, expected=None, rows=tuple(rows))",
        test="tests/engine/test_reindex.py::test_a_run_that_moves_on_is_derived_again",
    ),
    Guard(
        name="reindex-spares-the-unreadable",
        why="A run whose log is damaged would vanish from all lists, and nobody would look for it.",
        file="engine/indexing.py",
        snippet="            return True\n\n\ndef _mark",
        sabotage="            return False\n\n\ndef _mark",
        test="tests/engine/test_reindex.py::test_a_log_that_cannot_be_read_keeps_its_rows",
    ),
    Guard(
        name="audit-accuses-nobody-who-moved",
        why="Every run at work would sooner or later be called damaged.",
        file="engine/auditing.py",
        snippet="            found.moved = again.version != state.seq\n",
        sabotage="            found.moved = False\n",
        test=VERIFY + "test_a_run_that_moves_on_is_not_accused",
    ),
    Guard(
        name="sample-calls-out-once",
        why="One damaged run would fill the logs of every worker, every few seconds.",
        file=SAMPLING,
        snippet=" or row.key in self._called_out",
        sabotage="",
        test=VERIFY + "test_a_finding_is_called_out_once_and_listed",
    ),
    Guard(
        name="sample-rests",
        why="Auditing would take the time that work needs.",
        file=SAMPLING,
        snippet="if began < self._rest_until_ms:",
        sabotage="if False:",
        test=VERIFY + "test_the_sample_rests_a_hundred_times_as_long_as_it_took",
    ),
)
