"""JSONPath by example: what each query finds, in order, and which queries are none (RFC 9535)."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.expressions.jsonpath.parser import QueryFault, read_query

SHOP: Any = {
    "name": "Corner",
    "open": True,
    "rating": 4.5,
    "owner": None,
    "limits": {"price": 10, "stock": 3},
    "goods": [
        {"sku": "pen", "price": 2, "tags": ["blue", "ink"], "stock": 40},
        {"sku": "pad", "price": 5.5, "tags": [], "stock": 3},
        {"sku": "bag", "price": 30, "tags": ["blue"], "on_sale": False},
        {"sku": "cap", "price": 10, "on_sale": True, "size": {"cm": 58}},
    ],
    "staff": {"ann": {"age": 41}, "bob": {"age": 29}},
}
PEN, PAD, BAG, CAP = SHOP["goods"]

NUMBERS: Any = [0, 1, 2, 3, 4, 5, 6]
ODD: Any = {
    "a-b": 1,
    "": 4,
    "'": 5,
    '"': 6,
    "\\": 7,
    "é": 8,
    "😀": 9,
    "\n": 10,
    "true": 13,
    "length": 14,
    "/": 17,
}
NEST: Any = {"a": {"a": {"a": 1, "b": [2, {"a": 3}]}}, "b": {"a": 4}}
MIXED: Any = [1, 1.0, True, False, None, "1", "", [1], [True], {"a": 1}, {"a": True}, 0, -1, 9007199254740993]
PAIRS: Any = [{"a": 1, "b": 1}, {"a": 1}, {"b": 1}, {}, {"a": None}, {"a": "x", "b": "y"}, {"a": [1], "b": [1]}]
WORDS: Any = ["ab", "abc", "xab", "a\nb", "a\rb", "a.b", "", "é", "😀x", "AB", 5, None, ["ab"], "a1", "12"]

FINDS: list[tuple[str, Any, list[Any]]] = [
    # The root
    ("$", 5, [5]),
    ("$", None, [None]),
    # Names
    ("$.name", SHOP, ["Corner"]),
    ("$['name']", SHOP, ["Corner"]),
    ("$.limits.price", SHOP, [10]),
    ("$ .limits\n.price", SHOP, [10]),
    ("$.owner", SHOP, [None]),
    ("$.missing", SHOP, []),
    ("$.name.length", SHOP, []),
    ("$.goods.sku", SHOP, []),
    ("$['a-b']", ODD, [1]),
    ("$['']", ODD, [4]),
    ("$['\\'']", ODD, [5]),
    ('$["\\""]', ODD, [6]),
    ("$['\\\\']", ODD, [7]),
    ("$.é", ODD, [8]),
    ("$['\\u00e9']", ODD, [8]),
    ("$.😀", ODD, [9]),
    ("$['\\ud83d\\ude00']", ODD, [9]),
    ("$['\\n']", ODD, [10]),
    ("$.true", ODD, [13]),
    ("$.length", ODD, [14]),
    ("$['\\/']", ODD, [17]),
    # Indexes
    ("$[0]", NUMBERS, [0]),
    ("$[7]", NUMBERS, []),
    ("$[-1]", NUMBERS, [6]),
    ("$[-8]", NUMBERS, []),
    ("$[9007199254740991]", NUMBERS, []),
    ("$[0]", {"0": 1}, []),
    ("$[0]", "text", []),
    ("$.goods[1].sku", SHOP, ["pad"]),
    # Slices
    ("$[1:3]", NUMBERS, [1, 2]),
    ("$[:3]", NUMBERS, [0, 1, 2]),
    ("$[5:]", NUMBERS, [5, 6]),
    ("$[:]", NUMBERS, NUMBERS),
    ("$[::2]", NUMBERS, [0, 2, 4, 6]),
    ("$[::-1]", NUMBERS, [6, 5, 4, 3, 2, 1, 0]),
    ("$[3:0:-1]", NUMBERS, [3, 2, 1]),
    ("$[:-5]", NUMBERS, [0, 1]),
    ("$[-100:100]", NUMBERS, NUMBERS),
    ("$[::0]", NUMBERS, []),
    ("$[ 1 : 5 : 2 ]", NUMBERS, [1, 3]),
    ("$[0:2]", "text", []),
    ("$.goods[:2].sku", SHOP, ["pen", "pad"]),
    # Wildcards
    ("$[*]", NUMBERS, NUMBERS),
    ("$.*", {"b": 1, "a": 2}, [1, 2]),
    ("$.staff.*.age", SHOP, [41, 29]),
    ("$.goods[*].sku", SHOP, ["pen", "pad", "bag", "cap"]),
    ("$.goods.*.tags[*]", SHOP, ["blue", "ink", "blue"]),
    ("$.*", 5, []),
    ("$[*][*]", [[1, 2], 3, {"a": 4}], [1, 2, 4]),
    # Several selectors: in their order, with repetitions
    ("$['b','a']", {"a": 1, "b": 2}, [2, 1]),
    ("$[0,0]", NUMBERS, [0, 0]),
    ("$[6,0:2]", NUMBERS, [6, 0, 1]),
    ("$[*,0]", [1, 2], [1, 2, 1]),
    ("$['name','missing','open']", SHOP, ["Corner", True]),
    ("$.goods[*]['sku','price']", SHOP, ["pen", 2, "pad", 5.5, "bag", 30, "cap", 10]),
    ("$['a', ?@ > 1]", {"a": 1, "b": 2}, [1, 2]),
    # Descendants: a value before what is below it
    ("$..a", NEST, [NEST["a"], NEST["a"]["a"], 1, 3, 4]),
    ("$..b", NEST, [NEST["b"], [2, {"a": 3}]]),
    ("$..*", [[1], 2], [[1], 2, 1]),
    ("$..[*]", {"a": {"b": 1}}, [{"b": 1}, 1]),
    ("$..price", SHOP, [10, 2, 5.5, 30, 10]),
    ("$..['ann','bob']", SHOP, [{"age": 41}, {"age": 29}]),
    ("$..[1]", [[1, 2], [3, 4]], [[3, 4], 2, 4]),
    ("$..a..a", {"a": {"a": {"a": 1}}}, [{"a": 1}, 1, 1]),
    ("$..a", 5, []),
    # Filters: a query alone asks whether there is something
    ("$.goods[?@.on_sale].sku", SHOP, ["bag", "cap"]),
    ("$.goods[?!@.on_sale].sku", SHOP, ["pen", "pad"]),
    ("$.goods[?@.tags[0]].sku", SHOP, ["pen", "bag"]),
    ("$.goods[?@..cm].sku", SHOP, ["cap"]),
    ("$[?@.a]", PAIRS, [PAIRS[0], PAIRS[1], PAIRS[4], PAIRS[5], PAIRS[6]]),
    ("$[?@]", [None, False, 0], [None, False, 0]),
    ("$[?@.a]", 5, []),
    ("$.goods[?$.open].sku", SHOP, ["pen", "pad", "bag", "cap"]),
    # Comparisons
    ("$.goods[?@.price == 10].sku", SHOP, ["cap"]),
    ("$.goods[?@.price < 10].sku", SHOP, ["pen", "pad"]),
    ("$.goods[?@.price > 10].sku", SHOP, ["bag"]),
    ("$.goods[?10 > @.price].sku", SHOP, ["pen", "pad"]),
    ("$.goods[?@.price >= 1e1].sku", SHOP, ["bag", "cap"]),
    ("$.goods[?@.sku == 'pen'].price", SHOP, [2]),
    ("$.goods[?@['sku'] > 'c' && @.price < 3].sku", SHOP, ["pen"]),
    ("$.goods[?@.price > $.limits.price].sku", SHOP, ["bag"]),
    ("$.goods[?@.size == $.goods[3].size].sku", SHOP, ["cap"]),
    ("$.goods[?@.missing == $.nowhere].sku", SHOP, ["pen", "pad", "bag", "cap"]),
    ("$[?@.a == @.b]", PAIRS, [PAIRS[0], {}, PAIRS[6]]),
    ("$[?@.a != @.b]", PAIRS, [PAIRS[1], PAIRS[2], PAIRS[4], PAIRS[5]]),
    ("$[?@.a <= @.b]", PAIRS, [PAIRS[0], {}, PAIRS[5], PAIRS[6]]),
    ("$[?@.a < @.b]", PAIRS, [PAIRS[5]]),
    ("$[?@.a == null]", PAIRS, [PAIRS[4]]),
    ("$[?@ == 1]", MIXED, [1, 1.0]),
    ("$[?@ == true]", MIXED, [True]),
    ("$[?@ == null]", MIXED, [None]),
    ("$[?@ == '1']", MIXED, ["1"]),
    ("$[?@ == $[7]]", MIXED, [[1]]),
    ("$[?@ == $[8]]", MIXED, [[True]]),
    ("$[?@ == 9007199254740993]", MIXED, [9007199254740993]),
    ("$[?@ == 9007199254740992]", MIXED, []),
    ("$[?@ < 1]", MIXED, [0, -1]),
    ("$[?@ <= true]", MIXED, [True]),
    ("$[?@ == -0]", MIXED, [0]),
    ("$[?@ < 'b']", ["a", "b", "B", "é", 1], ["a", "B"]),
    ("$[?@ > '\\uffff']", ["😀", "a"], ["😀"]),
    # Logic
    ("$.goods[?@.price < 6 && @.stock > 10].sku", SHOP, ["pen"]),
    ("$.goods[?@.price < 6 || @.on_sale == true].sku", SHOP, ["pen", "pad", "cap"]),
    ("$.goods[?@.price < 3 || @.price > 20 && @.on_sale].sku", SHOP, ["pen", "bag"]),
    ("$.goods[?(@.price < 3 || @.price > 20) && @.on_sale].sku", SHOP, ["bag"]),
    ("$.goods[?!(@.price < 6)].sku", SHOP, ["bag", "cap"]),
    ("$.goods[?@.on_sale == false, ?@.on_sale == true].sku", SHOP, ["bag", "cap"]),
    ("$.goods[?@.tags[?@ == 'ink']].sku", SHOP, ["pen"]),
    ("$..[?@.age < 30]", SHOP, [{"age": 29}]),
    # Functions
    ("$.goods[?length(@.tags) == 2].sku", SHOP, ["pen"]),
    ("$.goods[?length(@.sku) == 3].sku", SHOP, ["pen", "pad", "bag", "cap"]),
    ("$.goods[?length(@.price) == 1].sku", SHOP, []),
    ("$.goods[?length(@.missing) == length(@.price)].sku", SHOP, ["pen", "pad", "bag", "cap"]),
    ("$[?length(@) == 1]", ["😀", "é", "ab"], ["😀", "é"]),
    ("$.goods[?count(@.tags[*]) == 0].sku", SHOP, ["pad", "cap"]),
    ("$.goods[?count(@..*) == 5].sku", SHOP, ["bag", "cap"]),
    ("$.goods[?value(@..cm) == 58].sku", SHOP, ["cap"]),
    ("$.goods[?value(@.tags[*]) == 'blue'].sku", SHOP, ["bag"]),
    ("$[?match(@, 'ab')]", WORDS, ["ab"]),
    ("$[?search(@, 'ab')]", WORDS, ["ab", "abc", "xab"]),
    ("$[?match(@, 'a.b')]", WORDS, ["a.b"]),
    ("$[?match(@, '.')]", WORDS, ["é"]),
    ("$[?match(@, '[a-c]{2,3}')]", WORDS, ["ab", "abc"]),
    ("$[?match(@, '\\\\p{L}+')]", WORDS, ["ab", "abc", "xab", "é", "AB"]),
    ("$[?search(@, '^ab')]", WORDS, ["ab", "abc"]),
    ("$[?search(@, 'ab$')]", WORDS, ["ab", "xab"]),
    ("$[?!search(@, '[a-z]')]", WORDS, ["", "é", "AB", 5, None, ["ab"], "12"]),
    ("$.words[?search(@, $.pattern)]", {"words": ["ab", "c"], "pattern": "a"}, ["ab"]),
    ("$.words[?search(@, $.pattern)]", {"words": ["ab", "c"], "pattern": "["}, []),
    ("$.words[?search(@, $.pattern)]", {"words": ["ab", "c"], "pattern": 5}, []),
]

REFUSED: list[tuple[str, str]] = [
    ("", "begins with $"),
    ("name", "begins with $"),
    (" $.a", "begins with $"),
    ("$.a ", "whitespace"),
    ("$.", "ends too early"),
    ("$. a", "column 3"),
    ("$.a-b", "column 4"),
    ("$.1", "column"),
    ("$a", "unexpected"),
    ("$[", "ends too early"),
    ("$[]", "empty"),
    ("$['a]", "column"),
    ("$['a',]", "column"),
    ("$[$.a]", "column"),
    ("$[01]", "leading zero"),
    ("$[-0]", "leading zero"),
    ("$[9007199254740992]", "out of range"),
    ("$[" + "9" * 5000 + "]", "cannot be read"),
    ("$['\\x41']", "escape"),
    ("$['\\ud83d']", "escape"),
    ("$['\n']", "invalid character"),
    ("$['\\\"']", "escape"),
    ("$[?]", "end of expression"),
    ("$[?@.a == ]", "end of expression"),
    ("$[?@.a = 1]", "column 8"),
    ("$[?@.a <> 1]", "no operator <>"),
    ("$[?@.a & @.b]", "column"),
    ("$[?@.a and @.b]", "unexpected 'and'"),
    ("$[?@.a == [1]]", "not a value"),
    ("$[?@.a in ['x']]", "unexpected 'in'"),
    ("$[?@.a =~ /x/]", "column"),
    ("$[?@.* == 1]", "several values"),
    ("$[?@['a','b'] == 1]", "several values"),
    ("$[?length(@.*) == 1]", "must be a value"),
    ("$[?length(@.a)]", "must be compared"),
    ("$[?length() == 1]", "requires 1 argument"),
    ("$[?count(1) == 1]", "must be a query"),
    ("$[?match(@.a, 'x') == true]", "not comparable"),
    ("$[?match(@.a, '(')]", "regular expression"),
    ("$[?search(@.a, '(a{1000}){1000}')]", "regular expression"),
    ("$[?search(@.a, 5)]", "regular expression"),
    ("$[?sum(@.a) > 1]", "not defined"),
    ("$[?true]", "must be compared"),
    ("$[?@.a == 01]", "not a number"),
    ("$[?@.a == 1e400]", "too large"),
    ("$[?@.a == 1.]", "column"),
    ("$[?@.a == True]", "unexpected 'True'"),
    ("$[?!@.a == 1]", "not a value"),
    ("$[?(@.a == 1]", "parentheses"),
    ("$.a.length()", "column"),
]


@pytest.mark.parametrize(("query", "document", "found"), FINDS, ids=[query for query, _, _ in FINDS])
def test_a_query_finds(query: str, document: Any, found: list[Any]) -> None:
    values = list(read_query(query).find(document, document))
    assert values == found
    assert [type(value) for value in values] == [type(value) for value in found]


@pytest.mark.parametrize(("query", "said"), REFUSED, ids=[query[:40] for query, _ in REFUSED])
def test_a_text_that_is_no_query_is_refused(query: str, said: str) -> None:
    with pytest.raises(QueryFault) as caught:
        read_query(query)
    assert said in caught.value.message
    assert "TOKEN" not in caught.value.message


def test_the_table_is_large_enough_to_mean_something() -> None:
    assert len(FINDS) + len(REFUSED) >= 150
