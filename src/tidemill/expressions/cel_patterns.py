"""Regular expressions that are written out in a condition: compiled early, and how large their automata become.

CEL compiles a pattern only when it gets to it, so a mistake would be found in the run. Compiling takes time and
memory by the character (a class of Unicode letters has hundreds of ranges), hence the limit. Matching takes time
in proportion to the text times the states of the automaton, and counted repetitions multiply those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from math import inf, prod

from tidemill.expressions.cel_native import NativeEnv
from tidemill.expressions.cel_tree import Call, Const, Tree, children
from tidemill.expressions.wording import shorten

PATTERNS_MAX = 1024
"""Characters of all patterns of one expression together."""

_COUNTED = re.compile(r"(.)\{(\d+)?(?:,(\d+)?)?\}", re.DOTALL)
_UNWEIGHED = re.compile(r"\\[pP]|\(\?[^:]")


def states(pattern: str) -> float:
    """Estimate the states of a pattern from its text; infinite with classes of Unicode or flags."""
    if _UNWEIGHED.search(pattern):
        return inf
    counts = [(before, max(int(low or 0), int(high or 0), 1)) for before, low, high in _COUNTED.findall(pattern)]
    # The count of a group multiplies whatever is in it.
    groups = prod(count for before, count in counts if before == ")")
    return groups * (len(pattern) + sum(count for before, count in counts if before != ")"))


def pattern_problem(tree: Tree, env: NativeEnv) -> str | None:
    """Say what is wrong with a pattern that an expression spells out; nothing if all of them compile."""
    found = list(dict.fromkeys(_patterns(tree)))
    if sum(map(len, found)) > PATTERNS_MAX:
        return f"the patterns of matches() are limited to {PATTERNS_MAX} characters together"
    if not found:
        return None
    # The environment that evaluates it is also the one that knows which patterns there are.
    trial = env.compile("''.matches(output)")
    for pattern in found:
        said = trial.eval(data={"output": pattern}).value()
        if isinstance(said, str):
            return shorten(said.partition(": ")[2] or said, 200)
    return None


def _patterns(tree: Tree) -> Iterator[str]:
    waiting = [tree]
    while waiting:
        each = waiting.pop()
        waiting += children(each)
        if isinstance(each, Call) and each.function == "matches" and each.arguments:
            pattern = each.arguments[-1]
            if isinstance(pattern, Const) and isinstance(pattern.value, str):
                yield pattern.value
