"""What the arguments of a command mean, read without pydantic where that is plain.

Typer has pydantic read every value, defaults too, and importing it takes longer than all the rest of the parsing. A
text is a text, and a number that was not given has its default: that needs nobody. Whatever is not plainly right is
left to Typer, which knows how to complain about it.
"""

from __future__ import annotations

from typing import Any, Literal, get_args, get_origin

from typer import Context
from typer.core import TyperArgument, TyperCommand, TyperGroup, TyperOption
from typer.models import ParameterInfo

DIGITS_MAX = 9


def read_quickly(command: TyperCommand | TyperGroup, parent: Context | None = None) -> None:
    """Have the values of a command, and of those below it, read this way."""
    # With a context, because --help is a parameter that there is only in one.
    context = Context(command, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):
        if isinstance(parameter, (TyperOption, TyperArgument)):
            # The one place where Typer makes a reader, when there is a value for it.
            parameter.get_runtime_param = Reader(parameter).itself  # type: ignore[method-assign]
    for below in command.commands.values() if isinstance(command, TyperGroup) else ():
        assert isinstance(below, (TyperCommand, TyperGroup))
        read_quickly(below, context)


class Reader:
    """Stands in for Typer's reader of a parameter, and has that one made where it is needed."""

    def __init__(self, parameter: TyperOption | TyperArgument) -> None:
        self._parameter, self._of_typer = parameter, parameter.get_runtime_param

    def itself(self) -> Any:
        """What Typer is given when it asks the parameter for its reader."""
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value that the command is called with."""
        if value is None:
            return () if self._parameter.multiple or self._parameter.nargs == -1 else None
        kind = self._parameter.type_descriptor
        plain = plainly(value, kind.annotation, kind.parameter_info)
        return self._of_typer().coerce(value, param=param, ctx=ctx) if plain is None else plain


def plainly(value: Any, annotation: Any, limits: ParameterInfo) -> Any:
    """What a value means, where that is plain; None where it is not."""
    if annotation == list[str]:
        return [*value] if isinstance(value, (list, tuple)) and all(map(_is_text, value)) else None
    if annotation is str:
        return value if _is_text(value) else None
    if get_origin(annotation) is Literal:
        return value if value in get_args(annotation) else None
    if annotation in (int, float) and type(value) is annotation:
        return value
    if annotation is int and isinstance(value, str):
        return _number(value, limits)
    return None


def _is_text(value: Any) -> bool:
    """Whether something is a text that can be written down; bytes that are none arrive as half characters."""
    return isinstance(value, str) and (value.isascii() or value.isprintable())


def _number(text: str, limits: ParameterInfo) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    low, high = limits.min, limits.max
    number = int(text)
    return number if (low is None or low <= number) and (high is None or number <= high) else None
