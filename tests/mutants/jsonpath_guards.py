"""The guards of JSONPath conditions: what is decided in this process, and what a query may reach."""

from __future__ import annotations

from tests.mutants.guard import Guard

REACH = "expressions/jsonpath_reach.py"
SYNTAX = "expressions/jsonpath_syntax.py"
TREE = "expressions/jsonpath_tree.py"
KIND = "expressions/jsonpath.py"
TESTS = "tests/expressions/test_jsonpath.py"
LIGHT = f"{TESTS}::test_what_is_light_is_known_from_the_query"

JSONPATH: tuple[Guard, ...] = (
    Guard(
        name="descents-multiply",
        why="A query that descends from every descendant would hold up the engine.",
        file=REACH,
        snippet=" or sum(segment.descendant for segment in query.segments) > 1:",
        sabotage=":",
        test=f"{LIGHT}[$..a..b-False]",
    ),
    Guard(
        name="repeats-multiply",
        why="A query that finds the same value twice at every step would find it a million times.",
        file=REACH,
        snippet="return repeats <= REPEATS_MAX and all(",
        sabotage="return all(",
        test=f"{LIGHT}[$[0,0][0,0][0,0]-False]",
    ),
    Guard(
        name="long-query-elsewhere",
        why="A filter of a thousand terms would be asked for every row while the engine waits.",
        file=REACH,
        snippet="if len(text) > LIGHT_TEXT_MAX or",
        sabotage="if False or",
        test=f"{TESTS}::test_a_long_query_is_not_light",
    ),
    Guard(
        name="inner-query-elsewhere",
        why="A filter that searches the whole document for every row would hold up the engine.",
        file=REACH,
        snippet="            return test.query.keys is not None\n",
        sabotage="            return True\n",
        test=f"{LIGHT}[$.rows[?@.*]-False]",
    ),
    Guard(
        name="counted-query-elsewhere",
        why="A filter that counts the whole document for every row would hold up the engine.",
        file=REACH,
        snippet="            return keys is not None\n",
        sabotage="            return True\n",
        test=f"{LIGHT}[$.rows[?count(@.*) == 1]-False]",
    ),
    Guard(
        name="far-values-compared-elsewhere",
        why="Two large values of the document would be compared once for every row.",
        file=REACH,
        snippet=" and not (_is_far(left) and _is_far(right))",
        sabotage="",
        test=f"{LIGHT}[$.rows[?$.a == $.b]-False]",
    ),
    Guard(
        name="pattern-elsewhere",
        why="A regular expression that is made for it takes seconds over one long text.",
        file=REACH,
        snippet="and is_plain(str(pattern.content))",
        sabotage="",
        test=f"{LIGHT}[$.rows[?search(@.a, '[ab]')]-False]",
    ),
    Guard(
        name="far-text-searched-elsewhere",
        why="One long text would be searched once for every row.",
        file=REACH,
        snippet=" and not _is_far(text)",
        sabotage="",
        test=f"{LIGHT}[$.rows[?search($.a, 'plain')]-False]",
    ),
    Guard(
        name="query-nesting-bounded",
        why="A query that was accepted once would be refused where less of the stack is left.",
        file=SYNTAX,
        snippet="def _test(expression: native.BaseExpression, depth: int) -> tree.Test:\n    if depth > NESTING_MAX:",
        sabotage="def _test(expression: native.BaseExpression, depth: int) -> tree.Test:\n    if False:",
        test=f"{TESTS}::test_terms_are_nested_to_a_fixed_depth",
    ),
    Guard(
        name="parentheses-bounded",
        why="Parentheses leave no trace in what was read, so their depth would depend on the stack.",
        file=SYNTAX,
        snippet='if text.count("(") > PARENTHESES_MAX:',
        sabotage="if False:",
        test=f"{TESTS}::test_terms_are_nested_to_a_fixed_depth",
    ),
    Guard(
        name="constant-pattern-compiled",
        why="A regular expression that cannot be compiled would match nothing for ever.",
        file=SYNTAX,
        snippet="and is_pattern(pattern.content)):",
        sabotage="):",
        test="tests/expressions/test_jsonpath_cases.py::test_a_text_that_is_no_query_is_refused[$[?match(@.a, '(')]]",
    ),
    Guard(
        name="integers-keep-their-digits",
        why="A filter for one large id would find its neighbour.",
        file=SYNTAX,
        snippet="native.IntegerLiteral(value=int(text))",
        sabotage="native.IntegerLiteral(value=int(float(text)))",
        test="tests/expressions/test_jsonpath_cases.py::test_a_query_finds[$[?@ == 9007199254740993]]",
    ),
    Guard(
        name="strings-are-not-sliced",
        why="A slice of a string would find its characters, which are no JSON values.",
        file=TREE,
        snippet="if type(value) is list and self.step != 0 else ()",
        sabotage="if isinstance(value, str | list) and self.step != 0 else ()",
        test="tests/expressions/test_jsonpath_cases.py::test_a_query_finds[$.name[0:2]]",
    ),
    Guard(
        name="filters-name-nodes-too",
        why="A node that only a filter names would not be there when the condition is decided.",
        file=KIND,
        snippet="absolute = [each for each in queries(query) if each.absolute]",
        sabotage="absolute = [query]",
        test=f"{TESTS}::test_the_nodes_that_a_query_reads_are_known"
        "[$.enrich.output.items[?@.id > $.text.output].n-nodes3-False]",
    ),
    Guard(
        name="descent-names-no-node",
        why="A descent through all nodes would be taken for one node of that name.",
        file=KIND,
        snippet="case (tree.Segment(selectors, False), *_):",
        sabotage="case (tree.Segment(selectors, _), *_):",
        test=f"{TESTS}::test_the_nodes_that_a_query_reads_are_known[$..score-nodes7-True]",
    ),
    Guard(
        name="filters-see-the-whole-document",
        why="A filter that looks something up from the root would find nothing, because only a part was bound.",
        file=KIND,
        snippet="    elif alone:\n",
        sabotage="    else:\n",
        test="tests/expressions/test_jsonpath.py::test_other_nodes_are_seen_with_output_and_meta"
        "[$.enrich.output.items[?@.id == $['a-b'].output[1]].n-==-b-True]",
    ),
)
