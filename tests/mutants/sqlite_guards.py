"""The guards of the SQLite store: what keeps a file whole when disks, clocks and other processes do not play along."""

from __future__ import annotations

from tests.mutants.guard import Guard

FAULTS = "tests/durability/"
ALONE = "tests/stores/"
PLACE = "stores/sqlite/"
RELAY = ALONE + "test_sqlite_relay.py::"

SQLITE: tuple[Guard, ...] = (
    Guard(
        name="sqlite-sync-before-answer",
        why="A power cut would take away what was acknowledged.",
        file=PLACE + "writer.py",
        snippet='"FULL" if durable and',
        sabotage='"NORMAL" if durable and',
        test=FAULTS + "test_syncs.py::test_an_answer_comes_after_the_sync_of_what_it_says[in the loop]",
    ),
    Guard(
        name="sqlite-log-anew-after-failed-sync",
        why="The system drops what it could not write: later commits would stand behind a hole in the log.",
        file=PLACE + "writer.py",
        snippet="        if self._doubtful:\n",
        sabotage="        if False:\n",
        test=FAULTS + "test_syncs.py::test_what_a_failed_sync_dropped_is_written_again",
    ),
    Guard(
        name="sqlite-schema-asked-in-transaction",
        why="A process of an older version would write to a store that a newer one has migrated.",
        file=PLACE + "schema.py",
        snippet="    if found != schema:\n",
        sabotage="    if False:\n",
        test=ALONE + "test_sqlite_schema.py::test_a_new_schema_is_noticed_within_the_transaction",
    ),
    Guard(
        name="sqlite-rolled-back-by-itself",
        why="SQLite may have ended the transaction; the writer would die of a second end, and everybody would wait.",
        file=PLACE + "writer.py",
        snippet="        if self._connection.in_transaction:\n            with suppress(apsw.Error):\n",
        sabotage="        if True:\n            if True:\n",
        test=ALONE + "test_sqlite_writer.py::test_sqlite_may_have_ended_the_transaction_itself",
    ),
    Guard(
        name="sqlite-records-sealed",
        why="A bit that flipped on the disk would become part of a run.",
        file=PLACE + "seals.py",
        snippet='    if crc32(body, crc32(place)).to_bytes(SEAL_BYTES, "little") != sealed[:SEAL_BYTES]:\n',
        sabotage="    if False:\n",
        test=FAULTS + "test_flipped_bits.py::test_a_bit_of_every_record",
    ),
    Guard(
        name="sqlite-counters-sealed",
        why="A counter that fell back would give out a fence token twice, and let a stale worker in.",
        file=PLACE + "writer.py",
        snippet="            if found != seal_of(counters):\n",
        sabotage="            if False:\n",
        test=FAULTS + "test_flipped_bits.py::test_a_counter_never_falls_back[tokens]",
    ),
    Guard(
        name="sqlite-no-longer-than-asked",
        why="A clock that was set back would let a worker sleep for as long as it was set back by.",
        file=PLACE + "store.py",
        snippet="min(left, request.wait_ms, ROLL_CALL_MS)",
        sabotage="left",
        test=FAULTS + "test_clock_jumps.py::test_the_clock_is_set_back_and_put_right[3600000]",
    ),
    Guard(
        name="sqlite-look-before-touching",
        why="The database of another program would be changed before it is refused.",
        file=PLACE + "schema.py",
        snippet='        if not look(connection, path).pending and connection.pragma("journal_mode") == "wal":',
        sabotage="        if False:",
        test=FAULTS + "test_bad_input.py::test_a_file_that_cannot_be_a_store[another program's]",
    ),
    Guard(
        name="sqlite-lock-given-up",
        why="The number of a transaction that came to nothing comes again, and its lock would be taken by ourselves.",
        file=PLACE + "store.py",
        snippet="                except BaseException:\n                    give_up()\n",
        sabotage="                except BaseException:\n",
        test=ALONE + "test_sqlite_holders.py::test_a_process_that_could_not_become_known_tries_again",
    ),
    Guard(
        name="sqlite-pressing-log-left-alone",
        why="A log that is moved again and again beside the commits is never begun anew, and grows without bound.",
        file=PLACE + "wal.py",
        snippet="self._pages < PAGES_PRESSING and ",
        sabotage="",
        test=ALONE + "test_sqlite_writer.py::test_a_log_that_presses_is_left_to_the_commits",
    ),
    Guard(
        name="refused-commit-takes-its-statement-along",
        why="A statement would be done although the result that it belongs to was not recorded, and then once more.",
        file="stores/sqlite/statement.py",
        snippet='Committed):\n                tx.execute("ROLLBACK TO performance")',
        sabotage="Committed):\n                pass",
        test="tests/stores/test_sqlite_statements.py::test_a_refused_statement_takes_its_commit_along[statement0-False]",
    ),
    Guard(
        name="statement-comes-out-as-rehearsed",
        why="The log would tell another answer than the one that the statement gave when it was done.",
        file="stores/sqlite/statement.py",
        snippet="if statement.answer and answer != statement.answer:",
        sabotage="if False:",
        test="tests/stores/test_sqlite_statements.py::test_a_refused_statement_takes_its_commit_along[statement1-True]",
    ),
    Guard(
        name="statements-stay-out-of-the-store",
        why="A document could read and change the logs of every run.",
        file="stores/sqlite/statement.py",
        snippet="connection.authorizer = allowed",
        sabotage="pass",
        test="tests/stores/test_sqlite_statements.py"
        "::test_the_tables_of_the_store_are_out_of_reach_also_after_it_has_used_them",
    ),
    Guard(
        name="relay-in-a-private-folder",
        why="Another user of the machine could listen to what nodes show, or put words into their mouths.",
        file=PLACE + "relay.py",
        snippet=" and not found.st_mode & 0o077\n",
        sabotage="\n",
        test=RELAY + "test_a_folder_that_others_can_enter_is_not_used[open to others]",
    ),
    Guard(
        name="relay-in-a-folder-of-its-own-user",
        why="In a folder where everybody may write, another user could make the folder first, and listen.",
        file=PLACE + "relay.py",
        snippet=" and found.st_uid == os.geteuid()",
        sabotage="",
        test=RELAY + "test_a_folder_that_others_can_enter_is_not_used[another user's]",
    ),
    Guard(
        name="relay-heard-before-records",
        why="The end of a run would be seen before the last parts of its result, and they would be missed.",
        file=PLACE + "store.py",
        snippet="                        self._ears.drain(stream)\n",
        sabotage="",
        test=RELAY + "test_another_process_sees_all_in_order_and_before_what_is_written_after",
    ),
    Guard(
        name="relay-patience-ends",
        why="A follower that is stopped would hold up a worker again and again.",
        file=PLACE + "relay.py",
        snippet="elif name not in self._slow and time.monotonic()",
        sabotage="elif time.monotonic()",
        test=RELAY + "test_who_stops_reading_misses_frames_and_slows_nobody",
    ),
    Guard(
        name="relay-waits-for-a-burst",
        why="A follower that reads all the time would miss most of what is told at once.",
        file=PLACE + "relay.py",
        snippet="elif name not in self._slow and time.monotonic()",
        sabotage="elif False and time.monotonic()",
        test=RELAY + "test_a_burst_is_waited_for_as_long_as_it_is_read",
    ),
    Guard(
        name="relay-own-frames-once",
        why="Whoever follows and works in one process would see every part twice.",
        file=PLACE + "relay.py",
        snippet=" and name not in self._own]",
        sabotage="]",
        test=RELAY + "test_own_frames_are_heard_once_and_names_may_be_long[a]",
    ),
    Guard(
        name="relay-spares-the-young",
        why="A follower whose socket is just being bound would lose it to whoever looks at that moment.",
        file=PLACE + "relay.py",
        snippet=" and time.time() - (folder / name).stat().st_mtime > BINDING_SECONDS",
        sabotage="",
        test=RELAY + "test_a_socket_that_is_being_bound_is_left_alone",
    ),
)
