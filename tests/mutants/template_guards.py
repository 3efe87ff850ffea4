"""The guards of templates over time and memory, and over what patterns may cost."""

from __future__ import annotations

from tests.mutants.guard import Guard

METER = "expressions/meter.py"
PATTERNS = "expressions/patterns.py"
BOUNDS = "tests/expressions/test_template_bounds.py"
MATCHING = "tests/expressions/test_template_patterns.py"

TEMPLATES: tuple[Guard, ...] = (
    Guard(
        name="render-steps-end",
        why="A template with loops inside of loops would block a worker for hours.",
        file=METER,
        snippet="if self._steps_left < 0:",
        sabotage="if False:",
        test=f"{BOUNDS}::test_negative_amounts_earn_no_budget",
    ),
    Guard(
        name="render-steps-only-down",
        why="A negative amount would give a template more to spend.",
        file=METER,
        snippet="self._steps_left -= max(0, steps)",
        sabotage="self._steps_left -= steps",
        test=f"{BOUNDS}::test_negative_amounts_earn_no_budget",
    ),
    Guard(
        name="render-time-ends",
        why="A template of few and slow steps would block a worker.",
        file=METER,
        snippet="if used > _SECONDS_MAX:",
        sabotage="if False:",
        test=f"{BOUNDS}::test_work_in_few_steps_ends_at_the_deadline",
    ),
    Guard(
        name="render-time-is-work",
        why="A process that was stopped for a while would fail a run that did nothing wrong.",
        file=METER,
        snippet="now = thread_time()",
        sabotage="now = perf_counter()",
        test=f"{BOUNDS}::test_a_process_that_is_held_up_does_not_fail_its_renderings",
    ),
    Guard(
        name="joined-text-is-paid-for",
        why="A value with thousands of long texts would be rendered for free.",
        file="expressions/programs.py",
        snippet="meter.spend(1 + (len(whole) >> 6))",
        sabotage="meter.spend(1)",
        test=f"{BOUNDS}::test_the_strings_of_a_value_share_one_budget",
    ),
    Guard(
        name="pattern-work-is-bounded",
        why="A pattern of many states over a long text would keep native code busy for half a minute.",
        file=PATTERNS,
        snippet="if work > PATTERN_WORK_MAX:",
        sabotage="if False:",
        test=f"{MATCHING}::test_a_pattern_is_refused_for_a_text_that_is_too_long",
    ),
    Guard(
        name="pattern-memory-is-bounded",
        why="A pattern of counted repetitions would take gigabytes.",
        file=PATTERNS,
        snippet="options.max_mem = PATTERN_BYTES_MAX",
        sabotage="options.max_mem = 1 << 30",
        test=f"{MATCHING}::test_a_pattern_has_little_memory",
    ),
    Guard(
        name="pattern-length-is-bounded",
        why="A pattern of a megabyte would take half a second and hundreds of megabytes to be refused.",
        file=PATTERNS,
        snippet="if len(pattern) > PATTERN_MAX:",
        sabotage="if False:",
        test=f"{MATCHING}::test_a_pattern_is_short",
    ),
    Guard(
        name="matches-are-counted",
        why="A pattern that looks to the end of the text for every match would take minutes.",
        file=PATTERNS,
        snippet="context.spend(1)",
        sabotage="pass",
        test=f"{MATCHING}::test_matches_are_counted",
    ),
    Guard(
        name="pattern-faults-are-silent",
        why="The library would write the patterns of users to the standard error of the worker.",
        file=PATTERNS,
        snippet="options.log_errors = False",
        sabotage="options.log_errors = True",
        test=f"{MATCHING}::test_nothing_is_written_to_the_terminal",
    ),
    Guard(
        name="lost-backslash-is-told",
        why="A pattern with a word boundary would look for a backspace, and never match.",
        file=PATTERNS,
        snippet="if _EATEN.search(text):",
        sabotage="if False:",
        test=f"{MATCHING}::test_a_lost_backslash_is_noticed",
    ),
    Guard(
        name="written-patterns-are-checked",
        why="A pattern that cannot be used would be noticed by a run instead of by its author.",
        file="expressions/rewriting.py",
        snippet="if failure is not None:",
        sabotage="if False:",
        test=f"{MATCHING}::test_a_pattern_has_little_memory",
    ),
)
