"""What makes a string a template, and what can be wrong with it: all that can be said without Jinja."""

from __future__ import annotations

import re
from typing import NamedTuple

_SYNTAX = re.compile(r"\{[{%#]")


class Fault(NamedTuple):
    """Something that is wrong with the source of a template."""

    message: str
    line: int
    hint: str = ""


def has_syntax(source: str) -> bool:
    """Tell whether a string is a template at all."""
    return "{" in source and _SYNTAX.search(source) is not None
