"""The guards around the functions of operators: in threads, in processes, and in copies of this one."""

from __future__ import annotations

from tests.mutants.guard import Guard

PROCESS = "handlers/python_process.py"
CHILD = "handlers/python_child.py"
WARDEN = "handlers/warden.py"
LINE = "handlers/python_line.py"
ESCAPES = "tests/handlers/test_isolation.py::"
UNCOUNTED = ESCAPES + "test_memory_that_no_limit_of_the_process_counts"
UNHEARD = ESCAPES + "test_what_is_written_past_python_is_heard_in_order_and_masked"
TESTS = "tests/handlers/test_python_process.py::"
GENERATORS = "tests/handlers/test_python_generators.py::"
BRAZEN = "tests/engine/test_hostile_handlers.py::"
STRANGE = "tests/handlers/test_hostile.py::"
COPIES = STRANGE + "test_a_copy_that_it_makes_of_the_worker_ends_where_it_comes_back"

HOSTILE: tuple[Guard, ...] = (
    Guard(
        name="arguments-fit",
        why="Arguments that can never fit would be tried again and again, as if the function had failed.",
        file="handlers/functions.py",
        snippet="            self.signature.bind(**args)\n",
        sabotage="            pass\n",
        test="tests/handlers/test_python.py::test_wrong_arguments_are_refused_before_the_call[strange]",
    ),
    Guard(
        name="copy-ends-after-a-call",
        why="A handler that forks would leave two workers with the same sockets and files.",
        file="engine/stage.py",
        snippet="        finally:\n            end_copy(home)\n",
        sabotage="        finally:\n            pass\n",
        test=COPIES + "[inline]",
    ),
    Guard(
        name="finish-cannot-undo-the-call",
        why="A result would be thrown away because what was to tidy up after it leaves the program.",
        file="engine/stage.py",
        snippet="error = await guarded(_taken(partial(handler.finish, context)))",
        sabotage="error = await _taken(partial(handler.finish, context))",
        test=BRAZEN + "test_a_step_around_the_call_that_would_stop_the_program[finish-COMPLETED-leave]",
    ),
    Guard(
        name="loop-goes-on",
        why="One task that a handler leaves behind would end the process of all others, or leave it waiting for ever.",
        file="engine/loops.py",
        snippet="    while not over():\n",
        sabotage="    for _ in range(1):\n",
        test=BRAZEN + "test_a_loop_that_was_stopped_goes_on",
    ),
    Guard(
        name="checkpoint-outlasts-an-outage",
        why="A store that does not answer for a moment would cost a handler that has done nothing wrong an attempt.",
        file="engine/attempt_log.py",
        snippet="await surely(lambda: self._turns.command(lease.stream, command, hold=lease))",
        sabotage="await self._turns.command(lease.stream, command, hold=lease)",
        test="tests/engine/test_attempt_calls.py::test_a_checkpoint_waits_for_a_store_that_does_not_answer",
    ),
)

FRONT: tuple[Guard, ...] = (
    Guard(
        name="engine-without-tasks-says-so",
        why="Whoever asks an engine whose tasks a handler has cancelled would wait for ever.",
        file="front.py",
        snippet="            self._broken = True\n",
        sabotage="            self._broken = False\n",
        test=BRAZEN + "test_cancelling_every_task_ends_the_engine_and_says_so[0.0]",
    ),
)

PYTHON: tuple[Guard, ...] = (
    Guard(
        name="installed-type-does-not-replace",
        why="A distribution could put its own code in the place of a node type that workflows already use.",
        file="handlers/discovery.py",
        snippet="        if others:\n",
        sabotage="        if False:\n",
        test="tests/handlers/test_discovery.py::test_an_installed_type_cannot_take_the_place_of_a_built_in_one",
    ),
    Guard(
        name="type-schemas-are-checked",
        why="A node type whose schema is none would make publishing crash.",
        file="handlers/discovery.py",
        snippet="        if flaw := _flaw(type_):\n",
        sabotage='        if flaw := "":\n',
        test="tests/handlers/test_discovery.py::test_a_given_type_with_a_bad_schema_is_left_out_and_told",
    ),
    Guard(
        name="copy-ends-after-a-step",
        why="An async function that forks would leave two loops that fight for the same events.",
        file="handlers/forks.py",
        snippet="        finally:\n            end_copy(home)\n",
        sabotage="        finally:\n            pass\n",
        test=COPIES + "[async]",
    ),
    Guard(
        name="copy-ends-in-its-thread",
        why="A copy of the worker would speak to the loop of the original.",
        file="handlers/threads.py",
        snippet="        end_copy(home)\n",
        sabotage="        pass\n",
        test=COPIES + "[thread]",
    ),
    Guard(
        name="late-thread-not-heard",
        why="What a thread of an earlier call shows would become a part of another attempt's result.",
        file="handlers/python_line.py",
        snippet="if call is not None and call != self.calls:",
        sabotage="if False:",
        test=STRANGE + "test_a_thread_that_outlives_its_call_is_not_heard_in_the_next_one",
    ),
    Guard(
        name="generator-asks-whether-to-go-on",
        why="An endless generator in a thread would run for ever when its attempt is over.",
        file="handlers/generators.py",
        snippet="            context.heartbeat()\n",
        sabotage="            pass\n",
        test=GENERATORS + "test_a_generator_in_a_thread_is_closed_when_its_time_is_up",
    ),
    Guard(
        name="late-thread-keeps-nothing",
        why="A thread whose attempt is over would ask the loop to write a checkpoint that nobody wants.",
        file="handlers/threads.py",
        snippet="        self._context.heartbeat()\n",
        sabotage="        pass\n",
        test=GENERATORS + "test_a_thread_whose_attempt_is_over_keeps_no_checkpoint",
    ),
    Guard(
        name="function-importable",
        why="A process would call another function of the same name, or none.",
        file="handlers/functions.py",
        snippet='if target is not function or module == "__main__":',
        sabotage="if False:",
        test=TESTS + "test_a_function_that_another_process_cannot_find",
    ),
    Guard(
        name="process-told-to-stop",
        why="A function could not clean up when its time is up.",
        file=PROCESS,
        snippet="self._process.tell(signal.SIGALRM)",
        sabotage="pass",
        test=TESTS + "test_a_time_limit_can_be_noticed_and_what_there_is_returned",
    ),
    Guard(
        name="process-without-an-answer-killed",
        why="A function that does not listen would run on, and its answer would reach the next asker.",
        file=PROCESS,
        snippet="                if again:\n",
        sabotage="                if True:\n",
        test=TESTS + "test_who_does_not_listen_is_killed",
    ),
    Guard(
        name="idle-process-alive",
        why="A process that died while nobody looked would fail the next attempt.",
        file=PROCESS,
        snippet="if not each.alive()",
        sabotage="if False",
        test=TESTS + "test_a_process_that_died_while_idle_is_replaced",
    ),
    Guard(
        name="out-of-memory-few-times",
        why="A function that always needs too much would be tried as often as one that was unlucky.",
        file=PROCESS,
        snippet="retryable = context.attempt <= OUT_OF_MEMORY_RETRIES",
        sabotage="retryable = True",
        test=TESTS + "test_out_of_memory_is_tried_again_twice_at_most",
    ),
    Guard(
        name="process-memory",
        why="A function would not be told that it has no memory left before its process is killed for that.",
        file=CHILD,
        snippet="        resource.setrlimit(resource.RLIMIT_DATA, (most if hard < 0 else min(most, hard), hard))\n",
        sabotage="        pass\n",
        test=ESCAPES + "test_a_function_is_told_before_it_is_killed",
    ),
    Guard(
        name="process-spent",
        why="What one function leaves in memory would count against the next one.",
        file=CHILD,
        snippet="resident_mb() > first_mb + SPENT_MB",
        sabotage="False",
        test=TESTS + "test_a_process_that_has_grown_is_replaced",
    ),
    Guard(
        name="process-memory-watched",
        why="A function whose memory no limit of the kernel counts could take all of the machine.",
        file=WARDEN,
        snippet="            if taken > memory_max:\n",
        sabotage="            if False:\n",
        test=UNCOUNTED + "[shares_memory]",
    ),
    Guard(
        name="process-memory-shared",
        why="Memory that is shared between processes would not be counted.",
        file=WARDEN,
        snippet='_HELD = (b"RssAnon:", b"RssShmem:", ',
        sabotage='_HELD = (b"RssAnon:", ',
        test=UNCOUNTED + "[shares_memory]",
    ),
    Guard(
        name="process-memory-of-all",
        why="A function could take all memory of the machine by dividing it among processes.",
        file=WARDEN,
        snippet="memory_of(descendants(os.getpid()), memory_max)",
        sabotage="memory_of([brood.program], memory_max)",
        test=ESCAPES + "test_memory_of_all_that_it_has_started_is_counted_together",
    ),
    Guard(
        name="process-memory-counted-once",
        why="A function that forks would be killed for memory that it does not take.",
        file=WARDEN,
        snippet="    if held <= bytes_max:\n",
        sabotage="    if True:\n",
        test=ESCAPES + "test_memory_that_several_share_is_counted_once",
    ),
    Guard(
        name="process-memory-hard",
        why="A function without any rights could lift its own limit.",
        file=WARDEN,
        snippet="    resource.setrlimit(resource.RLIMIT_DATA, (most, most))\n",
        sabotage="    pass\n",
        test=ESCAPES + "test_the_hard_limit_cannot_be_lifted",
    ),
    Guard(
        name="process-with-its-own-limit",
        why="A function would be called in a process that has the limit of another one.",
        file=PROCESS,
        snippet="if process.memory_bytes_max == limits.memory_bytes_max:",
        sabotage="if True:",
        test=ESCAPES + "test_a_limit_is_that_of_its_process_for_life",
    ),
    Guard(
        name="processes-few",
        why="Every other limit on memory would add processes that are kept for ever.",
        file=PROCESS,
        snippet="        if len(self._idle) + len(self._busy) >= self._size:\n",
        sabotage="        if False:\n",
        test=ESCAPES + "test_a_limit_is_that_of_its_process_for_life",
    ),
    Guard(
        name="process-leaves-nothing-running",
        why="A daemon that a function has started would go on when its call is over.",
        file=PROCESS,
        snippet=" or process.others())",
        sabotage=")",
        test=ESCAPES + "test_a_daemon_ends_with_its_call[returns-None]",
    ),
    Guard(
        name="strays-are-killed",
        why="A daemon of a function that kills its warden would run on.",
        file="handlers/wards.py",
        snippet="        if not self._last_words:\n",
        sabotage="        if False:\n",
        test=ESCAPES + "test_a_daemon_ends_with_its_call[kills-process_died]",
    ),
    Guard(
        name="process-heard-past-python",
        why="What C code and programs print would be lost.",
        file=PROCESS,
        snippet="ground.run(_print, source, text))",
        sabotage="None)",
        test=UNHEARD,
    ),
    Guard(
        name="process-heard-to-its-end",
        why="The last that a function writes to a file descriptor would be lost.",
        file=PROCESS,
        snippet="            self._process.hearken(None)\n",
        sabotage="            pass\n",
        test=UNHEARD,
    ),
    Guard(
        name="process-heard-in-order",
        why="What a function prints would be heard before what it had written to a file descriptor.",
        file=LINE,
        snippet="if not self._patient or not _unheard():",
        sabotage="if True:",
        test=UNHEARD,
    ),
)
