"""The operator's own functions: how they get a name, how they are found by one, and what they are given.

A function is registered (`functions=`, `--app`) or named by its import path `module:function`. Nothing is registered
by importing something: `@function` only writes a name on a function, for those who collect them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from tidemill.errors import offered
from tidemill.handlers.contract import Fail, Lacking, NodeContext

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

_MARK = "__tidemill_function__"


def function(name: str) -> Callable[[_F], _F]:
    """Give a function the name by which nodes of type `python` call it: `@tidemill.function("score")`."""

    def mark(function: _F) -> _F:
        setattr(function, _MARK, name)
        return function

    return mark


def by_name(functions: Mapping[str, Function] | Iterable[Function] | None) -> dict[str, Function]:
    """Functions by name; in a list, each has the name that it was marked with, or else its own."""
    if functions is None:
        return {}
    if isinstance(functions, Mapping):
        return dict(functions)
    return {str(getattr(each, _MARK, None) or getattr(each, "__name__", each)): each for each in functions}


def marked_in(module: object) -> dict[str, Function]:
    """The functions of a module that were marked with a name."""
    members = [each for each in vars(module).values() if callable(each)]
    return {name: each for each in members if isinstance(name := getattr(each, _MARK, None), str)}


def imported(name: str) -> Function:
    """The function behind an import path."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise Lacking(
            "function_unknown", f"no function {name} is registered", hint="register it, or write module:function"
        )
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        there = getattr(error.obj, "__dict__", {})
        hint = offered(str(error.name), [each for each, found in there.items() if callable(found)])
        raise Lacking("function_unknown", f"{name} cannot be imported: {error}", hint=hint) from error
    except (ImportError, ValueError) as error:
        raise Lacking("function_unknown", f"{name} cannot be imported: {error}") from error
    if not callable(target):
        raise Fail("function_unknown", f"{name} is not a function")
    found: Function = target
    return found


def path_of(name: str, function: Function) -> str:
    """The import path of a registered function, under which another process finds it."""
    module, words = getattr(function, "__module__", None), str(getattr(function, "__qualname__", ""))
    target: Any = sys.modules.get(str(module))
    for part in words.split("."):
        target = getattr(target, part, None)
    if target is not function or module == "__main__":
        message = f"the function {name} cannot be imported by another process"
        raise Fail("function_not_importable", message, hint="define it at the top of a module, and not in a script")
    return f"{module}:{words}"


class Callee(NamedTuple):
    """A function, and what it can be called with."""

    function: Function
    signature: inspect.Signature | None
    """None where Python cannot tell: then the call itself will."""

    def arguments(self, config: Mapping[str, Any], context: NodeContext) -> dict[str, Any]:
        """What the function is called with; the context only if it has a place for it. Raises Fail."""
        args = dict(config.get("args") or {})
        if self.signature is None:
            return args
        known = self.signature.parameters
        if "context" in known:
            args["context"] = context
        try:
            self.signature.bind(**args)
        except TypeError as error:
            name = getattr(self.function, "__name__", "the function")
            strange = next((arg for arg in args if arg not in known), "")
            hint = offered(strange, [each for each in known if each != "context"])
            raise Fail("arguments_invalid", f"args do not fit {name}: {error}", hint=hint) from None
        return args


def callee(function: Function) -> Callee:
    """Look at a function, once for all its calls."""
    try:
        return Callee(function, inspect.signature(function))
    except (TypeError, ValueError):
        return Callee(function, None)
