"""A value that is missing inside a template.

It may be passed on, asked for keys, and given to `default(...)` or `is defined`; any other use fails with a sentence
that says what was missing and why. The sentence is built only then, because `default` never needs it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import jinja2  # noqa: F401 - the whole package first, or threads that import parts of it meet half of one
from jinja2.exceptions import UndefinedError
from jinja2.runtime import StrictUndefined
from jinja2.utils import missing as unset

from tidemill.expressions.errors import Explanation


class NotAvailable(StrictUndefined):
    """Strict when used, silent while it is only passed on; the first four parameters are Jinja's own."""

    __slots__ = ("_why",)

    def __init__(
        self,
        hint: str | None = None,
        obj: Any = unset,
        name: str | None = None,
        exc: type[UndefinedError] = UndefinedError,
        *,
        why: Callable[[], Explanation] | None = None,
    ) -> None:
        super().__init__(hint, obj, name, exc)
        self._why = why

    @property
    def _undefined_message(self) -> str:
        if self._why is not None:
            return self._why()
        return super()._undefined_message

    def __getitem__(self, key: object) -> NotAvailable:  # type: ignore[override]
        return self

    @property
    def explanation(self) -> str:
        """The sentence that any use of this value fails with; usually an `Explanation`."""
        return self._undefined_message

    def refuse(self) -> NoReturn:
        self._fail_with_undefined_error()
