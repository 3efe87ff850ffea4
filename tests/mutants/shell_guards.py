"""The guards around commands: whether they run at all, what they are given, and that nothing of them is left."""

from __future__ import annotations

from tests.mutants.guard import Guard

SHELL = "handlers/shell.py"
PROCESS = "handlers/shell_process.py"
TESTS = "tests/handlers/test_shell.py::"

COMMANDS: tuple[Guard, ...] = (
    Guard(
        name="shell-off-by-default",
        why="Whoever may publish a document could run commands as the worker.",
        file=SHELL,
        snippet='        if not enabled:\n            raise Lacking("shell_disabled"',
        sabotage='        if False:\n            raise Lacking("shell_disabled"',
        test=TESTS + "test_a_worker_that_may_not_run_commands_leaves_them_to_others",
    ),
    Guard(
        name="shell-refused-when-published",
        why="A document with a command would be published where no worker runs one.",
        file=SHELL,
        snippet="        if not enabled:\n            yield Flaw(",
        sabotage="        if False:\n            yield Flaw(",
        test=TESTS + "test_a_document_is_refused_where_commands_are_off[None]",
    ),
    Guard(
        name="shell-environment-listed",
        why="A command would see every variable of the worker, passwords included.",
        file=SHELL,
        snippet="{name: around[name] for name in names if name in around}",
        sabotage="dict(around)",
        test=TESTS + "test_only_a_few_variables_are_inherited",
    ),
    Guard(
        name="shell-secrets-not-inherited",
        why="A document could have every secret of the worker printed, unmasked, by naming its variable.",
        file=SHELL,
        snippet=" if not name.startswith(PRIVATE)]",
        sabotage="]",
        test=TESTS + "test_only_a_few_variables_are_inherited",
    ),
    Guard(
        name="shell-folder-removed",
        why="Every command would leave a folder behind, until the disk is full.",
        file=SHELL,
        snippet="await asyncio.shield(asyncio.to_thread(shutil.rmtree, made, ignore_errors=True))",
        sabotage="pass",
        test=TESTS + "test_a_folder_of_its_own_is_removed",
    ),
    Guard(
        name="shell-whole-group-killed",
        why="What a command has started would go on after its time.",
        file=PROCESS,
        snippet="os.killpg(self._transport.get_pid(), number)",
        sabotage="os.kill(self._transport.get_pid(), number)",
        test=TESTS + "test_the_whole_group_is_killed",
    ),
    Guard(
        name="shell-cancelled-with-its-attempt",
        why="The command of a cancelled attempt would go on beside that of the next one.",
        file=PROCESS,
        snippet="    finally:\n        process.close()\n",
        sabotage="    finally:\n        pass\n",
        test=TESTS + "test_cancellation_kills_the_group",
    ),
    Guard(
        name="shell-ends-with-the-worker",
        why="The commands of a killed worker would go on beside those of its successor.",
        file=PROCESS,
        snippet="            _tie(theirs, self._transport.get_pid())\n",
        sabotage="",
        test=TESTS + "test_commands_end_with_a_killed_worker",
    ),
    Guard(
        name="shell-output-bounded",
        why="A command that never stops printing would fill the memory of the worker.",
        file=PROCESS,
        snippet="        if surplus > 0:\n",
        sabotage="        if False:\n",
        test=TESTS + "test_a_flood_is_bounded",
    ),
    Guard(
        name="shell-daemon-not-waited-for",
        why="A command that leaves a daemon behind would never end for its node.",
        file=PROCESS,
        snippet="await _happens(self._listener.silent, DRAINING_MS)",
        sabotage="await _happens(self._listener.silent, None)",
        test=TESTS + "test_a_daemon_that_holds_the_output_is_not_waited_for",
    ),
    Guard(
        name="shell-memory-bounded",
        why="A command could take all memory of the machine.",
        file=PROCESS,
        snippet='ulimit -d "$1" && shift',
        sabotage="shift",
        test=TESTS + "test_memory_is_bounded[2-True]",
    ),
)
