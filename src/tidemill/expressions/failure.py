"""How an expression fails: one exception for templates and conditions alike.

It is local to this room: the engine turns it into data in an event (`template_failed`, `condition_failed`),
so it never travels to a user as an exception. It is not one of the family in `errors`, because a failed node
is nobody's bug and no refusal of a request.
"""

from __future__ import annotations

from tidemill.errors import Problem

NO_OUTPUT = "`when` is decided before the node has an output"
"""The hint of a condition that asks for an output where there is none."""


class ExpressionError(Exception):
    """A template or condition has no result; never retried, because the same values fail again."""

    def __init__(self, *, code: str, message: str, hint: str = "", path: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint
        self.path = path
        """Where in the given value the expression stands, as a JSON pointer; empty for the value itself."""

    def __str__(self) -> str:
        return str(self.problem())

    def problem(self) -> Problem:
        """Give the same facts as the value that refusals and events carry."""
        return Problem(code=self.code, message=self.message, path=self.path, hint=self.hint)


class Explanation(str):
    """A message that carries its hint through a library that only transports strings."""

    __slots__ = ("hint",)
    hint: str

    def __new__(cls, message: str, hint: str = "") -> Explanation:
        explanation = super().__new__(cls, message)
        explanation.hint = hint
        return explanation


def template_failed(message: str, hint: str = "") -> ExpressionError:
    """Build the failure of a template; an explanation brings its own hint."""
    if isinstance(message, Explanation):
        hint = hint or message.hint
    return ExpressionError(code="template_failed", message=str.__str__(message), hint=hint)


def condition_failed(message: str, hint: str = "") -> ExpressionError:
    """Build the failure of a condition."""
    return ExpressionError(code="condition_failed", message=message, hint=hint)


def within(told: str, failure: ExpressionError) -> ExpressionError:
    """Say in which expression a condition has failed."""
    return condition_failed(f"{failure.message} (in `{told}`)", failure.hint)
