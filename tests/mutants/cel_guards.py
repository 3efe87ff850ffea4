"""The guards of CEL, of comparisons between nodes and of schemas: what hostile authors cannot do with them."""

from __future__ import annotations

from tests.mutants.guard import Guard

WEIGHT = "expressions/cel_weight.py"
WEIGHT_TESTS = "tests/expressions/test_cel_weight.py"
HEAVY = f"{WEIGHT_TESTS}::test_what_may_take_long_is_not_light"
REFUSED = f"{WEIGHT_TESTS}::test_a_hostile_expression_is_refused_soon"
REACH = "expressions/schema_reach.py"
SCHEMA_TESTS = "tests/expressions/test_schema.py"
COMPARE_TESTS = "tests/expressions/test_compare.py"

CEL: tuple[Guard, ...] = (
    Guard(
        name="loops-not-nested",
        why="Loops in loops would hold up the engine for as long as their author likes.",
        file=WEIGHT,
        snippet="if bound or chain_of(loop.range, self.roots, bound) is None:",
        sabotage="if chain_of(loop.range, self.roots, bound) is None:",
        test=f"{HEAVY}[output.a.all(x, output.b.all(y, x == y))]",
    ),
    Guard(
        name="loops-over-the-scope-only",
        why="A loop over a list that the expression makes could be over any number of items.",
        file=WEIGHT,
        snippet="if bound or chain_of(loop.range, self.roots, bound) is None:",
        sabotage="if bound:",
        test=f"{HEAVY}[output.s.split('').all(x, x == 'a')]",
    ),
    Guard(
        name="two-lists-are-built-elsewhere",
        why="Building lists is quadratic, and a row of such loops would hold up the engine.",
        file=WEIGHT,
        snippet="_LISTING_LOOP if makes_a_list else _LOOP",
        sabotage="_LOOP",
        test=f"{HEAVY}[output.a.map(x, x) == output.b.map(x, x)]",
    ),
    Guard(
        name="wide-values-not-in-every-pass",
        why="A long text that is searched in every pass of a loop would hold up the engine.",
        file=WEIGHT,
        snippet="(inf if wide else _CALL_IN_LOOP) if bound else _CALL",
        sabotage="_CALL_IN_LOOP if bound else _CALL",
        test=f"{HEAVY}[output.a.all(x, size(output.s) > 1)]",
    ),
    Guard(
        name="search-for-short-constants",
        why="Searching a long text for a long text is quadratic and cannot be interrupted.",
        file=WEIGHT,
        snippet="self._need(not any(wide[1:]) and isinstance(operands[1], Const))",
        sabotage="pass",
        test=f"{HEAVY}[output.s.contains(output.t)]",
    ),
    Guard(
        name="unpriced-functions-elsewhere",
        why="A function that makes texts grow would eat the memory of the engine.",
        file=WEIGHT,
        snippet="self._need(function in _KEEPING or function in _SMALL)",
        sabotage="pass",
        test=f"{HEAVY}[output.s.replace('', output.s) == '']",
    ),
    Guard(
        name="patterns-have-a-price",
        why="A pattern with a thousand states would be matched while the engine waits.",
        file=WEIGHT,
        snippet="self.points += size * _PATTERN_STATE",
        sabotage="self.points += 0 * _PATTERN_STATE",
        test=f"{HEAVY}[output.s.matches('a.{{900}}z')]",
    ),
    Guard(
        name="counted-groups-multiply",
        why="A counted group of counted repetitions would be taken for a small pattern.",
        file="expressions/cel_patterns.py",
        snippet="return groups * (",
        sabotage="return 1 * (",
        test=f"{HEAVY}[output.s.matches('(a.{{20}}){{20}}')]",
    ),
    Guard(
        name="patterns-are-compiled-early",
        why="A pattern that cannot be compiled would be found in the run.",
        file="expressions/cel_patterns.py",
        snippet="if isinstance(said, str):",
        sabotage="if False:",
        test=f"{REFUSED}[output.s.matches('(')-invalid regular expression]",
    ),
    Guard(
        name="patterns-are-limited",
        why="Compiling the patterns of one expression would take seconds.",
        file="expressions/cel_patterns.py",
        snippet="if sum(map(len, found)) > PATTERNS_MAX:",
        sabotage="if False:",
        test=f"{WEIGHT_TESTS}::test_the_patterns_of_an_expression_are_limited_together",
    ),
    Guard(
        name="doubling-macros-are-limited",
        why="Thirty macros in a row would be written out to a billion nodes, and the process would die.",
        file="expressions/cel.py",
        snippet="if len(_DOUBLING.findall(expression)) > DOUBLINGS_MAX:",
        sabotage="if False:",
        test=f"{WEIGHT_TESTS}::test_macros_that_double_are_limited",
    ),
    Guard(
        name="keys-are-text-too",
        why="An object with enormous keys would count as little text.",
        file="expressions/leaf.py",
        snippet="            text -= sum(map(len, each))\n",
        sabotage="",
        test=f"{WEIGHT_TESTS}::test_keys_count_as_text",
    ),
    Guard(
        name="true-is-not-one",
        why="A comparison would take a flag for a number.",
        file="expressions/relations.py",
        snippet="elif kind is bool or type(b) is bool:",
        sabotage="elif False:",
        test="tests/expressions/test_relations.py::test_equality[1-True-False]",
    ),
    Guard(
        name="order-between-like-kinds",
        why="A missing value that was read as null could be less than a number.",
        file="expressions/relations.py",
        snippet="isinstance(value, int | float) and not isinstance(value, bool)",
        sabotage="isinstance(value, int | float)",
        test="tests/expressions/test_relations.py::test_order_exists_between_numbers_and_between_strings_only[>]",
    ),
    Guard(
        name="missing-operand-is-an-error",
        why="A comparison with a value that is not there would silently decide.",
        file="expressions/compare.py",
        snippet="        if not isinstance(found, Missing):\n            return found\n",
        sabotage="        if not isinstance(found, Missing):\n            return found\n        return None\n",
        test=f"{COMPARE_TESTS}::test_output_is_missing_in_when",
    ),
    Guard(
        name="own-meta-is-not-read",
        why="What looks like this node's attempts would be a key of its output.",
        file="expressions/cel_doubles.py",
        snippet='    if key == "meta":',
        sabotage="    if False:",
        test=f"{COMPARE_TESTS}::test_a_computation_has_no_meta_of_its_own",
    ),
    Guard(
        name="references-do-not-multiply",
        why="A schema of forty lines would keep the engine busy for years.",
        file="expressions/schema.py",
        snippet="if found.steps > STEPS_MAX or found.endless:",
        sabotage="if found.endless:",
        test=f"{SCHEMA_TESTS}::test_a_schema_of_many_steps_is_refused",
    ),
    Guard(
        name="endless-recursion-refused",
        why="A definition that refers to itself twice at one place would keep the engine busy for ever.",
        file="expressions/schema.py",
        snippet="if found.steps > STEPS_MAX or found.endless:",
        sabotage="if found.steps > STEPS_MAX:",
        test=f"{SCHEMA_TESTS}::test_recursion_that_the_validator_does_not_remember_is_refused[leftovers]",
    ),
    Guard(
        name="leftovers-count-thrice",
        why="Nested leftovers would take three times as long with every level.",
        file=REACH,
        snippet="_REST_FACTOR if rest else 1",
        sabotage="1",
        test=f"{SCHEMA_TESTS}::test_leftovers_that_multiply_are_refused",
    ),
    Guard(
        name="knots-are-told-together",
        why="A report of errors would grow without bound and take the process with it.",
        file="expressions/schema.py",
        snippet="        if self._knotted:\n",
        sabotage="        if False:\n",
        test=f"{SCHEMA_TESTS}::test_the_errors_of_a_small_knot_are_told_together",
    ),
    Guard(
        name="unfollowed-references-refused",
        why="A reference that was not followed could lead to any number of steps.",
        file="expressions/schema.py",
        snippet='return (_invalid(found.problem, "", _DEFS_HINT),) if found.problem else Schema',
        sabotage="return Schema",
        test=f"{SCHEMA_TESTS}::test_a_schema_that_cannot_be_weighed_is_refused[id]",
    ),
    Guard(
        name="what-is-not-json-does-not-mismatch",
        why="An output that cannot be checked would count as one that does not match.",
        file="expressions/matching.py",
        snippet="return self.schema.matches(data) is not self.invert",
        sabotage="return self.schema.accepts(data) is not self.invert",
        test="tests/expressions/test_matching.py::test_a_value_that_is_not_json_is_an_error_and_no_mismatch[surrogate-True]",
    ),
)
