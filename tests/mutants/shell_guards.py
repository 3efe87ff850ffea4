"""The guards around commands: whether they run at all, what they are given, and that nothing of them is left."""

from __future__ import annotations

from tests.mutants.guard import Guard

SHELL = "handlers/shell.py"
PROCESS = "handlers/shell_process.py"
WARDEN = "handlers/warden.py"
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
        name="shell-cancelled-with-its-attempt",
        why="The command of a cancelled attempt would go on beside that of the next one.",
        file=PROCESS,
        snippet="        await asyncio.shield(ward.end())\n",
        sabotage="        pass\n",
        test=TESTS + "test_cancellation_kills_the_group",
    ),
    Guard(
        name="warden-adopts-orphans",
        why="A daemon that a command has started would go on for ever.",
        file=WARDEN,
        snippet="    _prctl(_PR_SET_CHILD_SUBREAPER, 1)\n",
        sabotage="",
        test=TESTS + "test_a_daemon_ends_with_its_command[is cancelled]",
    ),
    Guard(
        name="warden-kills-everybody",
        why="What has left the process group would be found, and be let go.",
        file=WARDEN,
        snippet="            for pid in descendants(os.getpid()):\n",
        sabotage="            for pid in ():\n",
        test=TESTS + "test_a_daemon_ends_with_its_command[ends]",
    ),
    Guard(
        name="warden-ends-with-the-worker",
        why="What the commands of a killed worker have started would go on beside those of its successor.",
        file=WARDEN,
        snippet="            if not words:\n                return 0\n",
        sabotage="            if not words:\n                os._exit(0)\n",
        test=TESTS + "test_commands_end_with_a_killed_worker[daemon]",
    ),
    Guard(
        name="command-ends-with-its-warden",
        why="Should its warden be killed, nobody would be left to end a command.",
        file=WARDEN,
        snippet="    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)\n",
        sabotage="",
        test=TESTS + "test_a_command_ends_with_a_killed_warden",
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
        name="shell-stranger-not-waited-for",
        why="A command whose output somebody else holds open would never end for its node.",
        file=PROCESS,
        snippet="await happens(ward.silent, DRAINING_MS)",
        sabotage="await happens(ward.silent, None)",
        test=TESTS + "test_a_stranger_who_holds_the_output_is_not_waited_for",
    ),
    Guard(
        name="shell-memory-bounded",
        why="A command could take all memory of the machine.",
        file=PROCESS,
        snippet="data_bytes_max=most,",
        sabotage="data_bytes_max=None,",
        test=TESTS + "test_memory_is_bounded[2-True]",
    ),
    Guard(
        name="shell-memory-watched",
        why="A command could take all memory of the machine, shared between its processes.",
        file=PROCESS,
        snippet="memory_bytes_max=most,",
        sabotage="memory_bytes_max=None,",
        test=TESTS + "test_memory_that_it_shares_is_bounded_too",
    ),
)
