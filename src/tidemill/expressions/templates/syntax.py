"""Which strings are templates, decided without importing Jinja: handlers and the compiler ask before they render."""

from __future__ import annotations

import re

from tidemill.expressions.scope import Json

_SYNTAX = re.compile(r"\{[{%#]")


def has_syntax(source: str) -> bool:
    """Tell whether a string is a template at all."""
    return "{" in source and _SYNTAX.search(source) is not None


def is_template(value: Json) -> bool:
    """Tell whether a value is a string with template syntax, so that its real value is not known yet."""
    return isinstance(value, str) and has_syntax(value)
