"""The guards of pipelines: tables that stay within bounds, and programs that see nothing but their table."""

from __future__ import annotations

from tests.mutants.guard import Guard

PIPELINE = "handlers/pipeline.py"
TABLES = "handlers/tables.py"
GROUPING = "handlers/grouping.py"
JOINING = "handlers/joining.py"
EXTRACTION = "handlers/extraction.py"
SIFTING = "handlers/sifting.py"
JQ = "expressions/jq.py"
IN_PIPELINE = "tests/handlers/test_pipeline.py::"
IN_TABLES = "tests/handlers/test_tables.py::"
IN_TRANSFORM = "tests/handlers/test_transform.py::"

PIPELINES: tuple[Guard, ...] = (
    Guard(
        name="jq-sees-no-environment",
        why="A program could read what the library finds in the environment of its process.",
        file=JQ,
        snippet="def env: {}; ",
        sabotage="",
        test=IN_PIPELINE + "test_jq[step6-rows6]",
    ),
    Guard(
        name="jq-imports-nothing",
        why="A program could read every JSON file of the machine.",
        file=JQ,
        snippet='return opening, f"{opening}{program}\\n) | tojson"',
        sabotage='return opening, f"{program} | tojson"',
        test=IN_PIPELINE + "test_a_program_reads_no_files[data]",
    ),
    Guard(
        name="jq-long-programs-elsewhere",
        why="Compiling a long program would hold up everything else in the process that publishes it.",
        file=JQ,
        snippet="if len(program) <= CHECKED_MAX:",
        sabotage="if True:",
        test=IN_PIPELINE + "test_a_long_program_is_not_compiled_in_this_process",
    ),
    Guard(
        name="jq-compiled-at-publish",
        why="A program with a slip in it would only be found when a run needs it.",
        file="handlers/pipeline.py",
        snippet="chain(flaws(config, http.type), program_flaws(config))",
        sabotage="flaws(config, http.type)",
        test=IN_PIPELINE + "test_a_program_that_cannot_be_compiled_is_refused_when_it_is_published[map(.a]",
    ),
    Guard(
        name="jq-passes-integers-on",
        why="Integers beyond a double would be rounded by a program that only passes them on.",
        file=JQ,
        snippet='return opening, f"{opening}{program}\\n) | tojson"',
        sabotage='return opening, f"{opening}{program}\\n) | tojson | fromjson | map_values(. + 0) | tojson"',
        test=IN_PIPELINE + "test_types_are_kept",
    ),
    Guard(
        name="pipeline-rows-bounded",
        why="A table could fill the memory of a worker.",
        file=PIPELINE,
        snippet="if len(rows) > limits.rows_max:",
        sabotage="if False:",
        test=IN_PIPELINE + "test_limits",
    ),
    Guard(
        name="pipeline-bytes-bounded",
        why="Rows that share their texts in memory would be gigabytes once they are stored.",
        file=PIPELINE,
        snippet="        if total > bytes_max:\n            return True\n",
        sabotage="",
        test=IN_PIPELINE + "test_limits",
    ),
    Guard(
        name="growth-of-a-join-noticed",
        why="A join would be measured only when it is stored, which is too late.",
        file=PIPELINE,
        snippet="    if name in _GROWING:\n",
        sabotage="    if False:\n",
        test=IN_PIPELINE + "test_what_would_only_be_large_once_it_is_stored_is_refused_in_time",
    ),
    Guard(
        name="join-ends-where-it-explodes",
        why="Two small tables with one key in common would give a product of any size.",
        file=JOINING,
        snippet="if len(joined) == rows_max:",
        sabotage="if False:",
        test=IN_TABLES + "test_a_join_ends_where_it_would_explode",
    ),
    Guard(
        name="step-calls-differ",
        why="A receiver would take the second call of a pipeline for a repetition of the first.",
        file=PIPELINE,
        snippet=', node=f"{means.context.node}.{number}"',
        sabotage="",
        test=IN_PIPELINE + "test_each_call_has_an_effect_key_of_its_own",
    ),
    Guard(
        name="boolean-keys-apart",
        why="Rows with true and rows with 1 would be one group, and partners in a join.",
        file=GROUPING,
        snippet="    return kind, value\n",
        sabotage='    return "", value\n',
        test=IN_TABLES + "test_groups_are_told_apart_like_json_values",
    ),
    Guard(
        name="null-has-no-partner",
        why="Every row without a key would be joined with every other one.",
        file=JOINING,
        snippet="    return any(value is None for _, value in key)",
        sabotage="    return False",
        test=IN_TABLES + "test_joining[inner-expected0]",
    ),
    Guard(
        name="mixed-values-not-sorted",
        why="Strings and numbers in one column would end in an exception without a row.",
        file=TABLES,
        snippet="        _comparable(values, key.field)\n",
        sabotage="",
        test=IN_TABLES
        + "test_what_has_no_order_is_refused[values0-1-a string cannot be compared with a number, as row 0 has it]",
    ),
    Guard(
        name="sum-is-finite",
        why="A sum beyond the doubles would be stored as null, or not at all.",
        file=GROUPING,
        snippet="if not math.isfinite(value):",
        sabotage="if False:",
        test=IN_TABLES + "test_what_cannot_be_computed_is_refused[sum-values5-None]",
    ),
    Guard(
        name="pattern-work-added-up",
        why="A pattern that is quick for one row would hold a thread for minutes over all of them.",
        file=EXTRACTION,
        snippet="            if budget < 0:\n",
        sabotage="            if False:\n",
        test=IN_TABLES + "test_a_pattern_is_never_too_much_work",
    ),
    Guard(
        name="long-filter-gives-way",
        why="A filter over a large table would keep every other node of the worker waiting.",
        file=SIFTING,
        snippet="        await asyncio.sleep(0)\n",
        sabotage="",
        test=IN_PIPELINE + "test_a_long_filter_lets_others_have_their_turn",
    ),
    Guard(
        name="rendered-steps-checked",
        why="What a template hid when the workflow was published would end in an exception.",
        file=PIPELINE,
        snippet="        for flaw in flaws(context.config, http.type):\n",
        sabotage="        for flaw in ():\n",
        test=IN_PIPELINE + "test_wrong_steps_are_refused_when_they_are_rendered[step2-/pipeline/0/k-integer]",
    ),
    Guard(
        name="heavy-query-leaves-the-process",
        why="A query over a large value would hold the loop for as long as it takes.",
        file="handlers/transform.py",
        snippet="(is_light(query, extract.path) and is_small(extract.source))",
        sabotage="True",
        test=IN_TRANSFORM + "test_what_could_take_long_is_done_elsewhere",
    ),
)
