"""What the attacks look at: ordinary values, and values that a hostile node could have left behind."""

from __future__ import annotations

from tidemill.expressions.scope import Absent, Json, Scope, Seen


def nested(depth: int) -> Json:
    """Put lists and objects into each other."""
    value: Json = 1
    for level in range(depth):
        value = [value] if level % 2 else {"k": value}
    return value


OUTPUT: Json = {
    "n": 3,
    "name": "Ada",
    "none": None,
    "flag": True,
    "text": "a" * 50_000,
    "rows": [{"id": number, "name": "a" * 40, "tags": ["x", "y"]} for number in range(100)],
}

SCENE = Scope(
    nodes={
        "plain": Seen({"n": 3, "name": "Ada"}, {"status": "COMPLETED"}),
        "many": Seen([{"id": number, "name": "a" * 20} for number in range(5000)]),
        "numbers": Seen(list(range(9000))),
        "long": Seen("a" * 1_000_000),
        "deep": Seen(nested(190)),
        "abyss": Seen(nested(20_000)),
        "lone": Seen("\ud800"),
        "digits": Seen(10**5000),
        "infinite": Seen([float("inf"), float("-inf"), float("nan")]),
        "keys": Seen({"__class__": "a key", "items": 5, "": 0, "\x00": 1, "a.b": 2, "constructor": 3}),
        "pattern": Seen("(a|aa)+$"),
        "looks": Seen("{{ inputs.customer }}{% for x in range(9) %}"),
        "gone": Absent("was skipped"),
    },
    inputs={"customer": "acme", "n": 3, "text": "a" * 60_000, "list": [3, 1, 2]},
    run={"id": "r1", "workflow": "w", "version": 4},
    iteration=1,
    has_output=True,
    output=OUTPUT,
    secrets={"TOKEN": "sw0rdfish-of-the-vault"},
)
