"""The guards over what handlers say: that it arrives, stays bounded, and gives no secret away; and over node types."""

from __future__ import annotations

from tests.mutants.guard import Guard

STAGE = "engine/stage.py"
UTTERANCES = "engine/utterances.py"
JOURNALS = "engine/journals.py"
CONTEXTS = "engine/contexts.py"
ATTEMPT = "engine/attempt.py"
SECRETS = "security/secrets.py"
MASKING = "security/masking.py"
OVERHEARING = "observe/overhearing.py"
DISCOVERY = "handlers/discovery.py"

IN_STAGE = "tests/engine/test_stage.py::"
IN_UTTERANCES = "tests/engine/test_utterances.py::"
IN_JOURNALS = "tests/engine/test_journals.py::"
WHOLE = "tests/engine/test_archive_whole.py::"
IN_LEAKS = "tests/security/test_leaks.py::test_a_secret_is_nowhere_in_what_is_left"
IN_CANARIES = "tests/security/test_canaries.py::"
IN_SECRETS = "tests/security/test_secrets.py::"
IN_MASKING = "tests/security/test_masking.py::"
IN_OVERHEARING = "tests/observe/test_overhearing.py::"
IN_DISCOVERY = "tests/handlers/test_discovery.py::"

VOICES: tuple[Guard, ...] = (
    Guard(
        name="stage-opened-once",
        why="Every attempt would open the connections of its node type anew.",
        file=STAGE,
        snippet="if key not in self._opened:",
        sabotage="if True:",
        test=IN_STAGE + "test_it_is_opened_once_and_closed_at_the_end",
    ),
    Guard(
        name="stage-opening-forgotten",
        why="One failure to open would fail every later attempt of the process.",
        file=STAGE,
        snippet="del self._opened[handler.type.key]",
        sabotage="pass",
        test=IN_STAGE + "test_an_opening_that_fails_is_tried_again",
    ),
    Guard(
        name="stage-opening-shielded",
        why="An attempt that runs out of time would take the opening of all others with it.",
        file=STAGE,
        snippet="await asyncio.shield(self._opened[key])",
        sabotage="await self._opened[key]",
        test=IN_STAGE + "test_an_opening_that_takes_longer_than_an_attempt_goes_on",
    ),
    Guard(
        name="stage-opening-overheard-by-nobody",
        why="What a shared connection says later would stand in the lines of whoever opened it.",
        file=STAGE,
        snippet="ground.run(EAR.set, None)",
        sabotage="pass",
        test=IN_STAGE + "test_it_is_opened_once_and_closed_at_the_end",
    ),
    Guard(
        name="voice-before-the-result",
        why="The last parts of a result would never reach a follower, because the run has ended.",
        file=UTTERANCES,
        snippet="""        try:
            await self._hand_on()
        except Unavailable as error:
            LOG.warning("what a handler has shown is not handed on: %s", error)
""",
        sabotage="",
        test=IN_UTTERANCES + "test_a_second_attempt_begins_to_count_anew",
    ),
    Guard(
        name="voice-parts-bounded",
        why="A handler that never stops to show parts would fill the memory of its worker.",
        file=UTTERANCES,
        snippet="if self._size > PARTS_BYTES_MAX:",
        sabotage="if False:",
        test=IN_UTTERANCES + "test_parts_have_an_end",
    ),
    Guard(
        name="voice-heartbeat",
        why="Code in a thread would go on for ever after its time is up.",
        file=UTTERANCES,
        snippet="if self.over:",
        sabotage="if False:",
        test=IN_UTTERANCES + "test_code_in_a_thread_learns_that_nobody_waits",
    ),
    Guard(
        name="journal-old-segments-forgotten",
        why="A handler that talks without end would fill the disk.",
        file=JOURNALS,
        snippet="await store.forget(self._stream(self._segment - SEGMENTS_KEPT))",
        sabotage="pass",
        test=IN_JOURNALS + "test_about_the_last_megabyte_is_kept",
    ),
    Guard(
        name="journal-waiting-bounded",
        why="A handler that talks faster than the store writes would fill the memory.",
        file=JOURNALS,
        snippet="while self._waiting > KEPT_BYTES and len(self._lines) > 1:",
        sabotage="while False:",
        test=IN_JOURNALS + "test_more_than_can_be_written_does_not_fill_the_memory",
    ),
    Guard(
        name="journal-one-writer-at-a-time",
        why="A result could be known before the lines of its attempt are written.",
        file=JOURNALS,
        snippet="async with self._writing:",
        sabotage="if True:",
        test=IN_JOURNALS + "test_who_waits_for_a_write_finds_it_done",
    ),
    Guard(
        name="journal-own-stream-per-lease",
        why="A worker that takes over an attempt would write between the lines of the one that was lost.",
        file=JOURNALS,
        snippet="return Stream(self._tenant, JOURNAL, key_of(self._run_id, self._place, self._token, segment))",
        sabotage="return Stream(self._tenant, JOURNAL, key_of(self._run_id, self._place, 0, segment))",
        test=IN_JOURNALS + "test_two_workers_with_one_attempt_number_do_not_mix",
    ),
    Guard(
        name="journal-of-this-run",
        why="A run would show the lines of another one whose name begins alike.",
        file=JOURNALS,
        snippet="if found is None or found[1] != run_id:",
        sabotage="if found is None:",
        test=IN_JOURNALS + "test_runs_whose_names_begin_alike_are_apart",
    ),
    Guard(
        name="journal-leaves-with-its-run",
        why="The lines of archived runs would stay in the store for ever.",
        file="engine/retiring.py",
        snippet="await forget_journals(self._store, self._tenant, run_id, up_to=token)",
        sabotage="pass",
        test=IN_JOURNALS + "test_lines_leave_with_their_run",
    ),
    Guard(
        name="journal-stays-with-its-run",
        why="A run that goes on while it is archived would lose what its handlers have said.",
        file="engine/retiring.py",
        snippet="        if not await self._store.forget(stream, expected=state.seq, rows=gone):\n",
        sabotage="        if spoken is not None:\n            await self._forget_lines(stream.key, spoken)\n"
        "        if not await self._store.forget(stream, expected=state.seq, rows=gone):\n",
        test=WHOLE + "test_a_run_that_stays_keeps_its_lines",
    ),
    Guard(
        name="journal-left-behind-is-found",
        why="A sweep that dies at the wrong moment would leave the lines of a run for ever.",
        file="engine/retiring.py",
        snippet="            gone.append(Row(kind=SPOKEN, key=stream.key, sort=spoken))\n",
        sabotage="            pass\n",
        test=WHOLE + "test_lines_whose_run_is_gone_are_let_go_of_by_the_next_sweep",
    ),
    Guard(
        name="journal-of-the-later-run",
        why="A run would lose its lines because an older one of its name has left.",
        file=JOURNALS,
        snippet="if segment.token <= up_to]",
        sabotage="if True]",
        test=WHOLE + "test_lines_whose_run_is_gone_are_let_go_of_by_the_next_sweep",
    ),
    Guard(
        name="secret-not-in-values",
        why="A handler that repeats a secret would have it written into the log.",
        file=CONTEXTS,
        snippet="return text if mask is NO_MASK or not mask.is_in(text) else",
        sabotage="return text if True else",
        test=IN_LEAKS,
    ),
    Guard(
        name="secret-not-in-questions",
        why="A secret could leave in the reason of a skip, the title of an approval or the inputs of a child.",
        file=ATTEMPT,
        snippet="return self._asked(hidden(ended, self.mask))",
        sabotage="return self._asked(ended)",
        test=IN_LEAKS,
    ),
    Guard(
        name="secret-not-in-errors",
        why="A secret could leave in the message of an error.",
        file=ATTEMPT,
        snippet="if isinstance(outcome, Failed) and self._disclosed.values_seen:",
        sabotage="if False:",
        test=IN_LEAKS,
    ),
    Guard(
        name="secret-not-in-progress",
        why="A secret could leave in what is shown of an attempt's progress.",
        file=UTTERANCES,
        snippet="message=self.mask.text(str(message))[:MESSAGE_MAX]",
        sabotage="message=str(message)[:MESSAGE_MAX]",
        test=IN_LEAKS,
    ),
    Guard(
        name="secret-not-printed",
        why="A secret that a handler prints would stand in the terminal of the worker, and in its log.",
        file=UTTERANCES,
        snippet="said = self._masked_so_far(source, text)",
        sabotage="said = text",
        test=IN_LEAKS,
    ),
    Guard(
        name="secret-not-in-pieces",
        why="A secret that is printed in two pieces would stand in the terminal and in the lines.",
        file=UTTERANCES,
        snippet="begun = 0 if said.endswith(",
        sabotage="begun = 0 if True or said.endswith(",
        test=IN_LEAKS,
    ),
    Guard(
        name="kept-back-till-the-end",
        why="The end of what is printed would be lost where a secret might begin in it.",
        file=UTTERANCES,
        snippet="        for source, text in held.items():",
        sabotage="        for source, text in {}.items():",
        test=IN_UTTERANCES + "test_an_end_that_may_begin_a_secret_is_kept_after_all",
    ),
    Guard(
        name="secret-not-beside-a-cut",
        why="Most of a secret would be left where a message is cut before it is masked.",
        file=MASKING,
        snippet="            text = self._beside_cuts(text)",
        sabotage="            pass",
        test=IN_CANARIES + "test_nothing_of_a_secret_is_left_where_a_text_is_cut[process]",
    ),
    Guard(
        name="secret-not-in-class-names",
        why="A class that is named after a secret would give it away.",
        file=CONTEXTS,
        snippet="type=mask.text(error.type)",
        sabotage="type=error.type",
        test=IN_CANARIES + "test_nothing_of_a_secret_is_left_where_a_text_is_cut[thread]",
    ),
    Guard(
        name="cut-of-a-traceback-marked",
        why="The end of a secret would stand at the beginning of a long traceback.",
        file="handlers/raised.py",
        snippet='return clean if len(clean) <= limit else "…" + clean[1 - limit :]',
        sabotage="return clean[-limit:]",
        test=IN_CANARIES + "test_nothing_of_a_secret_is_left_where_a_text_is_cut[thread]",
    ),
    Guard(
        name="cut-of-an-output-marked",
        why="The end of a secret would stand at the beginning of what is kept of a command's output.",
        file="handlers/shell_process.py",
        snippet='return ("…" if self.cut else "") + data',
        sabotage="return data",
        test="tests/handlers/test_shell.py::test_a_flood_is_bounded",
    ),
    Guard(
        name="cut-of-a-record-marked",
        why="The beginning of a secret would stand at the end of a long log record from a process.",
        file="handlers/python_line.py",
        snippet="clipped(self.format(record), TEXT_MAX)",
        sabotage="self.format(record)[:TEXT_MAX]",
        test=IN_CANARIES + "test_nothing_of_a_secret_is_left_where_a_text_is_cut[process]",
    ),
    Guard(
        name="secret-not-in-a-late-refusal",
        why="A database that refuses a statement at last would have its parameters written into the log.",
        file="engine/bearing.py",
        snippet="return masked(failed, Mask(_DECODER.decode(within).secrets))",
        sabotage="return failed",
        test=IN_CANARIES + "test_a_database_quotes_no_secret_when_it_refuses_a_statement_at_last",
    ),
    Guard(
        name="secret-not-in-tidied-urls",
        why="The path of a secret URL would stand in messages, which hide its query first.",
        file=MASKING,
        snippet="    yield from _parts(value)",
        sabotage="    yield from ()",
        test="tests/handlers/test_http.py::test_a_url_that_is_a_secret_is_nowhere[tidied]",
    ),
    Guard(
        name="missing-secret-told",
        why="A secret that nobody has provided would be a KeyError, and be tried again.",
        file="engine/failures.py",
        snippet="if isinstance(error, SecretMissing):",
        sabotage="if False:",
        test=IN_CANARIES + "test_a_secret_that_is_not_there_is_told_with_what_to_do[thread]",
    ),
    Guard(
        name="missing-secret-told-by-a-process",
        why="The same of a function in a process.",
        file="handlers/python_child.py",
        snippet="    except SecretMissing as missing:",
        sabotage="    except ZeroDivisionError as missing:",
        test=IN_CANARIES + "test_a_secret_that_is_not_there_is_told_with_what_to_do[process]",
    ),
    Guard(
        name="masked-keys-numbered",
        why="Of two keys that look alike when they are masked, one would be lost with its value.",
        file=MASKING,
        snippet="while name != key and (name in left or name in value):",
        sabotage="while False:",
        test=IN_MASKING + "test_masked_keys_do_not_swallow_each_other",
    ),
    Guard(
        name="bytes-overheard",
        why="What is printed as bytes would go to the terminal unmasked, and not be kept.",
        file=OVERHEARING,
        snippet="return self.behind.buffer if EAR.get() is None else Decoded(self)",
        sabotage="return self.behind.buffer",
        test=IN_OVERHEARING + "test_bytes_are_heard_as_text",
    ),
)

SECRECY: tuple[Guard, ...] = (
    Guard(
        name="secret-not-in-base-sixty-four",
        why="A header of basic authentication would give its password away.",
        file=MASKING,
        snippet="for before in range(3):",
        sabotage="for before in range(1):",
        test=IN_MASKING + "test_base64_of_something_longer_gives_nothing_away[-user:]",
    ),
    Guard(
        name="secret-names-stay-in-the-folder",
        why="A document could read any file of the worker as a secret.",
        file=SECRETS,
        snippet="if not _NAME.fullmatch(name):",
        sabotage="if False:",
        test=IN_SECRETS + "test_a_name_cannot_leave_the_folder[../outside]",
    ),
)

EARS: tuple[Guard, ...] = (
    Guard(
        name="overheard-once",
        why="Every line would be kept twice when the live display is on.",
        file=OVERHEARING,
        snippet="token = EAR.set(None)",
        sabotage="token = EAR.set(EAR.get())",
        test=IN_OVERHEARING + "test_ears_upon_ears_hear_once",
    ),
)

NODE_TYPES: tuple[Guard, ...] = (
    Guard(
        name="node-type-twice",
        why="Which code a node calls would depend on the order in which packages are found.",
        file=DISCOVERY,
        snippet="if other is not offer:",
        sabotage="if False:",
        test=IN_DISCOVERY + "test_two_types_of_one_name_are_refused[points1-handlers1-origins1]",
    ),
    Guard(
        name="node-type-broken-apart",
        why="One broken package would keep every process from starting.",
        file=DISCOVERY,
        snippet="        except BaseException as error:\n            broken.append",
        sabotage="        except ZeroDivisionError as error:\n            broken.append",
        test=IN_DISCOVERY
        + "test_a_broken_one_is_told_and_the_rest_goes_on[loud:nothing-code1-TypeError: int is not a Handler]",
    ),
    Guard(
        name="output-as-promised",
        why="A node type could return what its schema rules out, and conditions were checked against that.",
        file="engine/attempt.py",
        snippet="        if self._handler.type.output_schema is not True:",
        sabotage="        if False:",
        test="tests/engine/test_stage.py::test_a_result_that_is_not_what_the_type_promises_is_a_failure",
    ),
    Guard(
        name="bytes-as-promised",
        why="A result with bytes in it would not be held to what its type promises.",
        file="engine/attempt.py",
        snippet="return await _resolved(self._returned(text, chosen))",
        sabotage="return await _resolved(self._finish(text, chosen))",
        test="tests/engine/test_stage.py::test_a_promise_is_checked_on_what_is_stored",
    ),
    Guard(
        name="input-as-expected",
        why="A node type would be called with outputs that it says it cannot work with.",
        file="engine/stage.py",
        snippet="        if handler.type.input_schema is not True:",
        sabotage="        if False:",
        test="tests/engine/test_stage.py::test_a_type_is_not_called_with_what_it_does_not_expect",
    ),
    Guard(
        name="short-secret-refused",
        why="A secret too short to be masked would stand in results and lines.",
        file="security/secrets.py",
        snippet="if len(known.strip()) < VALUE_MIN:",
        sabotage="if False:",
        test="tests/security/test_secrets.py::test_a_secret_that_could_not_be_masked_is_not_disclosed[abc]",
    ),
    Guard(
        name="files-masked",
        why="A secret in a file that a handler returns would be stored.",
        file="engine/binaries.py",
        snippet="mask.content(body)\n",
        sabotage="body\n",
        test="tests/security/test_leaks.py::test_a_secret_is_nowhere_in_what_is_left",
    ),
    Guard(
        name="streamed-files-masked",
        why="The same of a file that comes bit by bit, where the secret lies across two bits.",
        file="security/masking.py",
        snippet="sure = len(window) - reach",
        sabotage="sure = len(window)",
        test="tests/security/test_masking.py::test_a_file_that_comes_bit_by_bit_is_masked_as_a_whole",
    ),
    Guard(
        name="empty-secret-refused",
        why="A secret that was mounted empty would be sent as one.",
        file="security/secrets.py",
        snippet="            if not known:",
        sabotage="            if False:",
        test="tests/security/test_secrets.py::test_an_empty_secret_is_none_that_can_be_used",
    ),
    Guard(
        name="retry-after-at-most-a-day",
        why="A server could put a run off for years with one header.",
        file="handlers/answers.py",
        snippet="return min(int(seconds[1][:_DIGITS_MAX]) * 1_000, RETRY_AFTER_MS_MAX)",
        sabotage="return int(seconds[1][:_DIGITS_MAX]) * 1_000",
        test="tests/handlers/test_http.py::test_a_server_says_when_to_come_again[long-429]",
    ),
    Guard(
        name="secrets-folder-there",
        why="A folder of secrets that was not mounted would be noticed by the first node that needs one.",
        file="settings.py",
        snippet="if not os.access(folder, os.X_OK) or not folder.is_dir():",
        sabotage="if False:",
        test="tests/cli/test_nodes.py::test_a_wrong_setting_is_told_before_anything_is_done[TIDEMILL_SECRETS-/nowhere-secrets_folder_invalid]",
    ),
    Guard(
        name="store-name-reserved",
        why="A database called `store` would never be asked: the run's own store would be.",
        file="settings.py",
        snippet="if name == STORE:",
        sabotage="if False:",
        test="tests/cli/test_nodes.py::test_a_wrong_setting_is_told_before_anything_is_done[TIDEMILL_DATABASE_STORE-sqlite:///x.db-database_name_invalid]",
    ),
    Guard(
        name="setting-not-the-document",
        why="A wrong variable of the operator would be blamed on the document.",
        file="cli/validate.py",
        snippet="        _tell_nothing_checked(refusal.problems, as_json)",
        sabotage="        _tell_refused(file, refusal.problems, as_json)",
        test="tests/cli/test_nodes.py::test_a_wrong_setting_is_not_the_documents_fault[TIDEMILL_SHELL-yes-shell_switch_invalid]",
    ),
)
