"""The operator's own functions: how they get a name, how they are found by one, and what they are given.

A function is registered (`functions=`, `--app`) or named by its import path `module:function`. Nothing is registered
by importing something: `@function` only writes a name on a function, for those who collect them.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar, overload

from tidemill.errors import offered
from tidemill.handlers.contract import Fail, Lacking, NodeContext

Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

_MARK = "__tidemill_function__"


@overload
def function(name: _F, /) -> _F: ...
@overload
def function(name: str | None = None) -> Callable[[_F], _F]: ...
def function(name: Any = None) -> Any:
    """Mark a function for nodes of type `python`: `@tidemill.function`, or `@tidemill.function("score")` to name it."""
    if callable(name):
        return _marked(name, None)
    if name is not None and (not isinstance(name, str) or not name):
        raise TypeError(f"tidemill.function takes the name of a function or the function itself, not {name!r}")
    return lambda function: _marked(function, name)


def _marked(function: Any, name: str | None) -> Any:
    name = name or getattr(function, "__name__", None)
    if not callable(function) or not name:
        raise TypeError(f"tidemill.function marks functions, and {function!r} is not a function with a name")
    setattr(function, _MARK, name)
    return function


def by_name(functions: Mapping[str, Function] | Iterable[Function] | None) -> dict[str, Function]:
    """Functions by name; in a list, each has the name that it was marked with, or else its own. Raises TypeError."""
    if functions is None:
        return {}
    given: Any = functions
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise TypeError(f"`functions` is a list of functions, or a mapping from names to functions, not {given!r}")
    if isinstance(given, Mapping):
        pairs = list(given.items())
    else:
        pairs = [(getattr(each, _MARK, None) or getattr(each, "__name__", ""), each) for each in given]
    for name, each in pairs:
        if not callable(each):
            raise TypeError(f"`functions` holds {each!r}, which is not a function")
        if not isinstance(name, str) or not name:
            raise TypeError(f"`functions` holds {each!r} without a name: write a mapping from names to functions")
    return dict(pairs)


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
