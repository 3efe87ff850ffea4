"""Attacks in JSONPath: syntax of other dialects, queries that find the same again and again, and patterns."""

from __future__ import annotations

from tests.attacks.attack import Attack, Ending, Failed, Gives, Refused, each
from tidemill.expressions.scope import Json

SYNTAX, SHAPE, FAILED = "condition_syntax", "condition_shape", "condition_failed"
NAUGHT = Failed(FAILED)
BROKEN = Refused(SYNTAX)
MISSHAPEN = Refused(SHAPE)


def asked(query: Json, operator: str = "count_ge", value: Json = 0, **more: Json) -> Json:
    """Write a condition."""
    return {"type": "jsonpath", "query": query, "operator": operator, "value": value, **more}


def queries(name: str, *pairs: tuple[str, Ending]) -> list[Attack]:
    """Write attacks that only differ in their query, with the number of values that they may find."""
    return each(name, *((asked(query), ending) for query, ending in pairs))


DIALECTS = queries(
    "dialect",
    ("$[(@.length-1)]", BROKEN),
    ("$[?(@.constructor.constructor('return process')())]", BROKEN),
    ("$[?(__import__('os').system('touch <file>.touched'))]", BROKEN),
    ("$[?open('<file>')]", BROKEN),
    ("$[?@.__class__()]", BROKEN),
    ("$.rows[?@.id.__class__]", Gives(True)),
    ("$.__class__.__mro__", Gives(True)),
    ("$['__class__']", Gives(True)),
    ("$.rows[?(@.id > 1; 1)]", BROKEN),
    ("$.rows[?@.id =~ /a/]", BROKEN),
    ("$..[?(@.id==1)].parent()", BROKEN),
    ("$^", BROKEN),
    ("$~", BROKEN),
    ("$.rows.`len`", BROKEN),
    ("$.rows.`sub(/(a+)+$/, x)`", BROKEN),
    ("$.rows[?@.id in [1, 2]]", BROKEN),
    ("$.rows.sum()", BROKEN),
    ("import os", BROKEN),
    ("<file>", BROKEN),
    ("<url>", BROKEN),
    ("file:<file>", BROKEN),
    ("", BROKEN),
    ("@.n", BROKEN),
    ("n", BROKEN),
    ("{{ secrets.TOKEN }}", BROKEN),
    ("$.secrets.TOKEN", Gives(True)),
    ("$.rows[?value(@..id) == 1]", Gives(True)),
    ("$.rows[?nothing(@.id)]", BROKEN),
    ("$.rows[?length(@.id, 1) > 1]", BROKEN),
    ("$.rows[?count(1) > 1]", BROKEN),
    ("$.rows[?@.* == 1]", BROKEN),
)

BOMBS = queries(
    "bomb",
    ("$..*", Gives(True)),
    ("$..*..*", Gives(True)),
    ("$..*..*..*..*..*..*..*..*", Gives(True)),
    ("$" + "..*" * 500, Gives(True)),
    ("$.rows" + "[*,*]" * 30, Gives(True)),
    ("$" + "['rows','rows']" + "[0,0,0,0]" * 12, Gives(True)),
    ("$.rows" + "[0,0,0,0,0,0,0,0]" + "['tags','tags','tags']" * 1 + "[0,0,0,0,0,0,0,0,0]" * 1, Gives(True)),
    ("$" + "[*,*,*,*,*,*,*,*]" * 12, Failed(FAILED, unless_quick=True)),
    ("$" + "[*]" * 500, Gives(True)),
    ("$.rows[" + ",".join(["*"] * 2000) + "]", Gives(True)),
    ("$..[" + ",".join(["?@.id"] * 200) + "]", Gives(True)),
    ("$.rows[?count($..*) > 1]", Gives(True)),
    ("$..[?count($..*) > 1]", Gives(True)),
    ("$..[?$..[?$..[?$..[?@.zzz]]]]", NAUGHT),
    ("$.rows[?$.rows == $.rows]", Gives(True)),
    ("$..[?$.rows == $.rows && $.text == $.text]", Gives(True)),
    ("$.rows[?search($.text, '(a|aa)+b')]", Gives(True)),
    ("$.rows[?match($.text, '(a|aa)+b')]", Gives(True)),
    ("$.rows[?search($.text, '(a?){300}b')]", NAUGHT),
    ("$.rows[?search(@.name, '(a|aa)+$')]", Gives(True)),
    ("$.rows[?match(@.name, '(a*)*b')]", Gives(True)),
    ("$.rows[?search(@.name, '(a?){30}a{30}')]", Gives(True)),
    ("$.rows[?search(@.name, 'a{1000}{1000}')]", BROKEN),
    ("$.rows[?search(@.name, '((a{100}){100}){100}')]", BROKEN),
    ("$.rows[?search(@.name, '(?=a)')]", BROKEN),
    ("$.rows[?search(@.name, '(a)\\\\1')]", BROKEN),
    ("$.rows[?search(@.name, '(')]", BROKEN),
    ("$.rows[?search(@.name, @.name)]", Gives(True)),
    ("$.rows[?search(@.name, $.text)]", Gives(True)),
    ("$.rows[?search(@.name, '" + "a?" * 2000 + "')]", BROKEN),
    ("$.rows[0:9223372036854775808:1]", BROKEN),
    ("$.rows[::9007199254740991]", Gives(True)),
    ("$.rows[::-9007199254740991]", Gives(True)),
    ("$.rows[::9007199254740992]", BROKEN),
    ("$.rows[::0]", Gives(True)),
    ("$.rows[-9007199254740991:9007199254740991:1]", Gives(True)),
    ("$.rows[" + "9" * 5000 + "]", BROKEN),
    ("$.rows[-0]", BROKEN),
    ("$.rows[01]", BROKEN),
    ("$.rows[?@.id == " + "9" * 5000 + "]", BROKEN),
    ("$.rows[?@.id == 1e999]", BROKEN),
    ("$.rows[?@.id == -1e-999]", Gives(True)),
)

WEIGHTS = queries(
    "weight",
    ("$..[?count($..[?count($..*) > 1]) > 1]", NAUGHT),
    ("$.rows[?@.tags[?$.rows[?@.tags[?$.rows[?@.id]]]]]", NAUGHT),
)

NESTING = queries(
    "nesting",
    ("$.rows[?" + "(" * 3000 + "@.id" + ")" * 3000 + "]", BROKEN),
    ("$.rows[?" + "!" * 3000 + "@.id]", BROKEN),
    ("$.rows[?" + "!(" * 500 + "@.id" + ")" * 500 + "]", BROKEN),
    ("$.rows[?" + "@.a && " * 1000 + "@.id]", BROKEN),
    ("$.rows[?" + "@.a || " * 1000 + "@.id]", BROKEN),
    ("$.rows" + "[?@" * 1000 + "]" * 1000, BROKEN),
    ("$" + ".a" * 4000, Gives(True)),
    ("$['" + "a" * 8000 + "']", Gives(True)),
    ("$['" + "a" * 9000 + "']", Refused(SYNTAX, "limited to")),
    ("$.rows[?" + "length(" * 500 + "@.id" + ")" * 500 + " > 1]", BROKEN),
)

ABYSSES = each(
    "abyss",
    (asked("$.abyss.output..k", source="ctx"), NAUGHT),
    (asked("$.deep.output..k", source="ctx"), Gives(True)),
    (asked("$.abyss.output", "==", 1, source="ctx"), NAUGHT),
    (asked("$.abyss.output", "exists", True, source="ctx"), Gives(True)),
    (asked("$.abyss.output", "count_eq", 1, source="ctx"), Gives(True)),
    (asked("$..*", source="ctx"), NAUGHT),
    (asked("$[?@.output.n == 3]", source="ctx"), NAUGHT),
    (asked("$.lone.output", "==", "x", source="ctx"), Gives(False)),
    (asked("$.lone[?search(@, 'x')]", source="ctx"), NAUGHT),
    (asked("$.digits.output", ">", 1, source="ctx"), NAUGHT),
    (asked("$.infinite.output", "sum_gt", 0, source="ctx"), NAUGHT),
    (asked("$.infinite.output", "max_gt", 0, source="ctx"), Gives(True)),
    (asked("$.infinite.output[2]", "==", 0, source="ctx"), Gives(False)),
    (asked("$.numbers.output[*]", "sum_gt", 0, source="ctx"), Gives(True)),
    (asked("$.numbers.output[*]", "in", list(range(5000)), source="ctx"), NAUGHT),
    (asked("$.many.output[?@.id > 1].name", "contains", "x" * 9000, source="ctx"), Gives(False)),
    (asked("$.many.output[?$.many.output[?@.id == 1]]", source="ctx"), NAUGHT),
    (asked("$.many.output..[?$..id]", source="ctx"), NAUGHT),
    (asked("$.gone.output", "exists", False, source="ctx"), Gives(True)),
    (asked("$.secrets", "exists", False, source="ctx"), Gives(True)),
    (asked("$.keys.output['\\u0000']", "==", 1, source="ctx"), BROKEN),
    (asked("$.keys.output['__class__']", "==", "a key", source="ctx"), Gives(True)),
)

VALUES = each(
    "value",
    (asked("$.n", "==", True), Gives(False)),
    (asked("$.flag", "==", 1), Gives(False)),
    (asked("$.n", ">", True), Refused("condition_shape")),
    (asked("$.n", ">", "2"), NAUGHT),
    (asked("$.name", ">", 2), NAUGHT),
    (asked("$.none", ">", 2), NAUGHT),
    (asked("$.n", "__class__", 2), MISSHAPEN),
    (asked("$.n", ["=="], 2), MISSHAPEN),  # type: ignore[arg-type]
    (asked("$.n", "==", float("nan")), Gives(False)),
    (asked("$.n", "==", float("inf")), Gives(False)),
    (asked("$.n", "==", 10**4000), Gives(False)),
    (asked("$.n", "sum_gt", 1e308), Gives(False)),
    (asked("$.text", "contains", "a" * 40_000 + "b"), Gives(False)),
    (asked("$.rows", "in", "abc"), MISSHAPEN),
    (asked("$.rows", "exists", 1), MISSHAPEN),
    (asked(None), MISSHAPEN),
    (asked(["$"]), MISSHAPEN),
    (asked("$.n", source="secrets"), MISSHAPEN),
    (asked("$.n", source="<file>"), MISSHAPEN),
    (asked("$.n", source=["ctx"]), MISSHAPEN),
    (asked("$.n", light=True), MISSHAPEN),
    (asked("$.n.length()", ">", 1), NAUGHT),
    (asked("$.rows.length().length()", ">", 1), BROKEN),
    (asked("$\u200b.n"), BROKEN),
    (asked("$.\uff4e"), Gives(True)),
    (asked("$.n\x00"), BROKEN),
    (asked("$['\ud800']"), Gives(True)),
    (asked("$['\u202en']"), Gives(True)),
    (asked("$.n // comment"), BROKEN),
    (asked(" $.n "), BROKEN),
)
