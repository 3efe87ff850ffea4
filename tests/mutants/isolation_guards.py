"""The guards around conditions that are decided in other processes."""

from __future__ import annotations

from tests.mutants.guard import Guard

PROCESSES = "expressions/processes.py"
CHILD = "expressions/child.py"
OFFSPRING = "expressions/offspring.py"
INTERPRETER = "expressions/interpreter.py"
TESTS = "tests/expressions/test_processes.py::"
IN_TIME = "async with asyncio.timeout(work.deadline_ms / 1000):"
SANDBOX_TESTS = "tests/expressions/test_sandbox.py::"

ISOLATION: tuple[Guard, ...] = (
    Guard(
        name="errand-deadline",
        why="A condition that never ends would hold its run, and its child, for ever.",
        file=PROCESSES,
        snippet="asyncio.timeout(work.deadline_ms / 1000)",
        sabotage="asyncio.timeout(None)",
        test=TESTS + "test_a_condition_that_takes_too_long_is_killed_in_time",
    ),
    Guard(
        name="errand-starts-when-awake",
        why="A busy machine on which a child starts slowly would fail conditions that have done nothing wrong.",
        file=PROCESSES,
        snippet=f"            await child.wake()\n            {IN_TIME}\n",
        sabotage=f"            {IN_TIME}\n                await child.wake()\n",
        test=TESTS + "test_waiting_for_a_child_to_start_does_not_count",
    ),
    Guard(
        name="late-child-killed",
        why="A child whose asker has gone away would give the answer to the next one.",
        file=PROCESSES,
        snippet="            if answer is not None and not answer.spent and not self._closed:\n",
        sabotage="            if not self._closed:\n",
        test=TESTS + "test_an_asker_who_goes_away_leaves_no_answer_behind",
    ),
    Guard(
        name="idle-child-alive",
        why="A child that died while nobody looked would fail the next condition.",
        file=PROCESSES,
        snippet="if child.alive():",
        sabotage="if True:",
        test=TESTS + "test_a_child_that_died_while_idle_is_replaced",
    ),
    Guard(
        name="killed-child-asked-again",
        why="A child that was killed from outside would fail a run for good.",
        file=PROCESSES,
        snippet="if answer is None and status == -signal.SIGKILL:",
        sabotage="if False:",
        test=TESTS + "test_a_child_that_somebody_killed_is_asked_again",
    ),
    Guard(
        name="children-few",
        why="As many processes would start as there are conditions waiting.",
        file=PROCESSES,
        snippet="asyncio.Semaphore(size)",
        sabotage="asyncio.Semaphore(size * 100)",
        test=TESTS + "test_many_askers_get_their_own_answers",
    ),
    Guard(
        name="child-environment-scrubbed",
        why="The secrets of the engine would be in the memory of a process that works for strangers.",
        file=PROCESSES,
        snippet="for name in _KEPT_VARIABLES if name in os.environ",
        sabotage="for name in os.environ",
        test=TESTS + "test_a_child_has_nothing_that_it_does_not_need",
    ),
    Guard(
        name="child-own-session",
        why="Ctrl-C at the terminal would reach the children, and conditions would fail with it.",
        file=OFFSPRING,
        snippet="start_new_session=True",
        sabotage="start_new_session=False",
        test=TESTS + "test_signals_for_the_parent_do_not_disturb_a_child",
    ),
    Guard(
        name="child-ignores-stop-signals",
        why="A service that is stopped would fail the conditions that are being decided.",
        file=CHILD,
        snippet="signal.signal(number, signal.SIG_IGN)",
        sabotage="pass",
        test=TESTS + "test_signals_for_the_parent_do_not_disturb_a_child",
    ),
    Guard(
        name="child-lifeline",
        why="Children would go on working when their parent is dead.",
        file=OFFSPRING,
        snippet="fcntl.fcntl(lifeline, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)",
        sabotage="pass",
        test=TESTS + "test_no_child_survives_its_parent[sandbox]",
    ),
    Guard(
        name="child-lifeline-of-the-group",
        why="The interpreter would go on working when the child and its parent are dead.",
        file=OFFSPRING,
        snippet="fcntl.F_SETOWN, -os.getpid()",
        sabotage="fcntl.F_SETOWN, os.getpid()",
        test=TESTS + "test_no_child_survives_its_parent[sandbox]",
    ),
    Guard(
        name="child-alarm",
        why="Native code would run without end when the parent is stopped.",
        file=CHILD,
        snippet="signal.setitimer(signal.ITIMER_REAL, (work.deadline_ms + GRACE_MS) / 1000)",
        sabotage="signal.setitimer(signal.ITIMER_REAL, 0)",
        test=TESTS + "test_a_child_ends_at_its_deadline_also_when_nobody_watches",
    ),
    Guard(
        name="child-memory",
        why="A condition could take all memory of the machine.",
        file=CHILD,
        snippet="    resource.RLIMIT_DATA: MEMORY_MAX_MB << 20,\n",
        sabotage="",
        test=TESTS + "test_memory_is_bounded",
    ),
    Guard(
        name="child-spent",
        why="A child that has grown would fail conditions which need little memory.",
        file=CHILD,
        snippet="spent=resident_mb() > SPENT_MB",
        sabotage="spent=False",
        test=TESTS + "test_a_child_that_has_grown_is_replaced",
    ),
    Guard(
        name="errand-carries-what-is-named",
        why="Values that a condition does not read would be decoded, copied and shown to another process.",
        file="expressions/frames.py",
        snippet="if references.dynamic:\n        return scope.nodes",
        sabotage="if True:\n        return scope.nodes",
        test=TESTS + "test_nothing_travels_but_what_is_referred_to",
    ),
    Guard(
        name="sandbox-time",
        why="Code of an author would run until the child is killed, and blame the machine.",
        file=INTERPRETER,
        snippet='"max_feed_duration_secs": sandbox.timeout_ms / 1000',
        sabotage='"max_feed_duration_secs": 3600',
        test=SANDBOX_TESTS + "test_time_is_bounded[loop]",
    ),
    Guard(
        name="sandbox-memory",
        why="Code of an author could take as much memory as a child may.",
        file=INTERPRETER,
        snippet='"max_memory": sandbox.max_memory_mb << 20',
        sabotage='"max_memory": None',
        test=SANDBOX_TESTS + "test_memory_is_bounded[modest]",
    ),
    Guard(
        name="sandbox-strict-boolean",
        why="A number or a list would choose a branch.",
        file=INTERPRETER,
        snippet="_answer if _answer is True or _answer is False else",
        sabotage="bool(_answer) if True else",
        test=SANDBOX_TESTS + "test_only_a_boolean_decides[number]",
    ),
    Guard(
        name="sandbox-no-clock",
        why="A decision would depend on the moment, and nobody could explain it.",
        file=INTERPRETER,
        snippet='"datetime": "call_host", "random_start": "call_host"',
        sabotage='"random_start": "call_host"',
        test=SANDBOX_TESTS + "test_the_world_is_out_of_reach[import-time-return-time-time-----0]",
    ),
    Guard(
        name="sandbox-every-use-of-the-context",
        why="A node that the code reaches by a computed name would be missing when it runs.",
        file="expressions/sandbox_code.py",
        snippet="any(id(use) not in constant for use in uses)",
        sabotage="False",
        test=SANDBOX_TESTS + "test_what_the_code_refers_to[computed]",
    ),
    Guard(
        name="sandbox-not-here",
        why="Code of an author would be taken for something that can be decided in this process.",
        file="expressions/sandbox.py",
        snippet='"""No code of an author runs in this process."""\n        return False',
        sabotage='"""No code of an author runs in this process."""\n        return True',
        test=SANDBOX_TESTS + "test_no_code_of_an_author_runs_in_this_process",
    ),
)
