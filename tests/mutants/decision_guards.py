"""The guards of decisions: what is recorded of them, what is decided elsewhere, what is refused before it runs."""

from __future__ import annotations

from tests.mutants.guard import Guard

DECISIONS = "tests/engine/test_decisions.py::"
ERRANDS = "tests/engine/test_errands_of_conditions.py::"
BORROWING = "tests/engine/test_borrowing.py::"
OPERANDS = "tests/kernel/test_operands.py::"
CEL_TESTS = "tests/expressions/test_cel.py"
TYPES = "tests/expressions/test_cel_types.py::"

KERNEL_DECISIONS: tuple[Guard, ...] = (
    Guard(
        name="decision-told-with-its-passes",
        why="A loop whose passes are used up would be told as one that goes on.",
        file="kernel/decisions.py",
        snippet='"the loop has no pass left" if taken else',
        sabotage='"the loop goes on" if taken else',
        test=DECISIONS + "test_a_loop_whose_passes_are_used_up",
    ),
    Guard(
        name="operands-checked-before-publication",
        why="A condition that can never be decided would be published and fail every run.",
        file="kernel/compile/__init__.py",
        snippet="    check_operands(draft, clauses, node_types)\n",
        sabotage="",
        test=OPERANDS + "test_a_node_sees_its_own_output",
    ),
    Guard(
        name="operands-of-maps-and-envelopes",
        why="A condition over the list of a map or over the envelope of an error would be refused for nothing.",
        file="kernel/compile/operands.py",
        snippet='return "map" not in node and node.get("on_error", "fail") == "fail"',
        sabotage="return True",
        test=OPERANDS + "test_nothing_is_said_where_nothing_is_known[first0-inputs0]",
    ),
    Guard(
        name="borrowed-content-is-a-digest",
        why="Whatever stands there would be asked of the blobs as if it were a digest.",
        file="kernel/document/borrowed.py",
        snippet="return digest if _DIGEST.fullmatch(digest) else None",
        sabotage="return digest",
        test=BORROWING + "test_a_misspelt_digest_has_no_stand_in",
    ),
)

ENGINE_DECISIONS: tuple[Guard, ...] = (
    Guard(
        name="decision-keeps-what-it-read",
        why="Nobody could tell later what a branch was decided over.",
        file="engine/routes.py",
        snippet="    asked.append(condition.references)\n",
        sabotage="",
        test=DECISIONS + "test_a_branch_keeps_the_rule_the_reason_and_what_was_read",
    ),
    Guard(
        name="admission-kept",
        why="Nobody could tell later why a visit happened that might have been skipped.",
        file="engine/attempt.py",
        snippet="        self.admission = answer\n",
        sabotage="",
        test=DECISIONS + "test_a_node_that_is_admitted_says_why_and_over_what",
    ),
    Guard(
        name="failed-decision-keeps-what-it-read",
        why="Nobody could tell later which value a condition failed over.",
        file="engine/routes.py",
        snippet="hint=error.hint), reads=reads)",
        sabotage="hint=error.hint))",
        test=DECISIONS + "test_a_decision_that_fails_says_which_and_over_what",
    ),
    Guard(
        name="agent-chooses-what-it-may",
        why="A node could go a way that its document does not offer it.",
        file="engine/routes.py",
        snippet="if name not in branch.available]",
        sabotage="if name not in branch.available and name not in branch.default]",
        test="tests/engine/test_attempt_phases.py::test_an_agent_chooses_within_its_closed_set[True-chosen6-FAILED-taken6]",
    ),
    Guard(
        name="decision-reads-only-what-was-looked-at",
        why="A condition that was decided without looking at a node would be an error because nobody has looked.",
        file="engine/readings.py",
        snippet="reach.nodes & nodes.keys()",
        sabotage="reach.nodes",
        test=DECISIONS + "test_a_part_that_was_not_asked_has_read_nothing",
    ),
    Guard(
        name="engine-ends-its-isolation",
        why="Processes would outlive the engine that started them.",
        file="engine/tools.py",
        snippet="        await self.isolation.close()\n",
        sabotage="",
        test=ERRANDS + "test_an_engine_closes_its_isolation",
    ),
    Guard(
        name="borrowed-content-has-a-size",
        why="Publishing would read a blob of any size into memory.",
        file="engine/borrowing.py",
        snippet="if known is not None and known.size > CONTENT_BYTES_MAX:",
        sabotage="if False:",
        test=BORROWING + "test_a_blob_that_holds_something_else[too large]",
    ),
    Guard(
        name="borrowed-content-in-a-copy",
        why="Publishing would change the document of whoever publishes it.",
        file="engine/borrowing.py",
        snippet="copy, problems = deepcopy(document), []",
        sabotage="copy, problems = document, []",
        test=BORROWING + "test_wherever_a_condition_stands[list]",
    ),
)

EXPRESSION_DECISIONS: tuple[Guard, ...] = (
    Guard(
        name="many-values-are-decided-elsewhere",
        why="A condition over many values would hold up everything else in the process, and nobody could stop it.",
        file="expressions/leaf.py",
        snippet="        if is_small(data):\n",
        sabotage="        if True:\n",
        test=ERRANDS + "test_an_errand_carries_the_condition_its_scope_and_its_deadline",
    ),
    Guard(
        name="mismatch-explained-in-bounds",
        why="All that is wrong with a large output would be listed, in this process, for one line of text.",
        file="expressions/matching.py",
        snippet="if not self.is_short or not is_small(scope.output, EXPLAINED_ITEMS_MAX, EXPLAINED_TEXT_MAX):",
        sabotage="if False:",
        test="tests/expressions/test_matching.py::test_a_mismatch_is_explained_only_if_that_ends_soon",
    ),
    Guard(
        name="integer-without-room-put-aside",
        why="One large number would fail every condition over the value that it stands in.",
        file="expressions/cel.py",
        snippet="_asked(program, put_aside(data))",
        sabotage="_asked(program, data)",
        test=f"{CEL_TESTS}::test_an_integer_without_room_is_equal_to_itself_only[inputs == inputs-True-{1 << 64}]",
    ),
    Guard(
        name="types-of-what-is-asked-for-first",
        why="A condition that asks whether a key is there would be refused because the key cannot be there.",
        file="expressions/cel_types.py",
        snippet="if (chain.root, *chain.keys[: seen.at + 1]) not in self.asked_for:",
        sabotage="if True:",
        test=TYPES + "test_nothing_is_said_of_what_may_work[has(inputs.nope) && inputs.nope == 1]",
    ),
    Guard(
        name="types-beside-null",
        why="The question whether a value is null would be refused.",
        file="expressions/cel_types.py",
        snippet='if function in _EQUALITY and "null" in left | right:',
        sabotage="if False:",
        test=TYPES + "test_nothing_is_said_of_what_may_work[inputs.name == null]",
    ),
    Guard(
        name="types-of-optional-steps",
        why="A step that expects to find nothing would be refused because there is nothing.",
        file="expressions/cel_types.py",
        snippet="        if _is_optional(tree):\n            return None\n",
        sabotage="",
        test=TYPES + "test_nothing_is_said_of_what_may_work[inputs.?nope.orValue(1) == 1]",
    ),
)
