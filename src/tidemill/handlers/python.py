"""Node type `python`: call a function of the operator's own code, registered by name or found by import path.

An async function runs in the worker's loop. A plain function runs in a thread, so that it may block, unless
the node says `isolation: inline`. The function gets `args` as keyword arguments and, when it has a parameter
called `context`, the attempt's context.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import threading
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from tidemill.handlers.contract import Ended, Fail, Handler, Lacking, NodeContext, ended
from tidemill.kernel.model import NodeType

PYTHON = NodeType(
    name="python",
    description="Calls a Python function, sync or async.",
    config_schema={
        "type": "object",
        "properties": {
            "function": {"type": "string", "minLength": 1},
            "args": {"type": "object"},
            "isolation": {"enum": ["inline", "thread"]},
        },
        "required": ["function"],
        "additionalProperties": False,
    },
)

Function = Callable[..., Any]


def python_handler(functions: Mapping[str, Function]) -> Handler:
    """The node type over a set of registered functions; other names are import paths `module:function`."""
    found: dict[str, tuple[Function, bool]] = {}

    def resolve(name: str) -> tuple[Function, bool]:
        known = found.get(name)
        if known is None:
            function = functions.get(name) or _imported(name)
            known = found[name] = (function, _wants_context(function))
        return known

    def call(context: NodeContext) -> Ended | Awaitable[Ended]:
        config: dict[str, Any] = context.config
        function, wants_context = resolve(config["function"])
        args = dict(config.get("args") or {})
        if wants_context:
            args["context"] = context
        if inspect.iscoroutinefunction(function):
            return _awaited(function(**args))
        if config.get("isolation") == "inline":
            result = function(**args)
            return _awaited(result) if inspect.isawaitable(result) else ended(result)
        return _in_thread(function, args)

    return Handler(PYTHON, call)


async def _awaited(result: Awaitable[Any]) -> Ended:
    return ended(await result)


async def _in_thread(function: Function, args: dict[str, Any]) -> Ended:
    """Call a function that may block. What it returns may still want to be awaited, e.g. behind a decorator.

    Each call has a thread of its own: one that never returns costs its own thread and nobody else's place.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        try:
            outcome, error = _called(function, args), None
        except BaseException as raised:
            outcome, error = None, raised
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(_settle, future, outcome, error)

    context = contextvars.copy_context()
    threading.Thread(target=context.run, args=(run,), name=f"tidemill-{_name(function)}", daemon=True).start()
    result = await future
    return ended(await result if inspect.isawaitable(result) else result)


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def _name(function: Function) -> str:
    return str(getattr(function, "__name__", "call"))


def _called(function: Function, args: dict[str, Any]) -> Any:
    try:
        return function(**args)
    except (StopIteration, GeneratorExit) as error:
        # These mean something to those who wait for a future, so they cannot travel through one.
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error


def _wants_context(function: Function) -> bool:
    try:
        return "context" in inspect.signature(function).parameters
    except (TypeError, ValueError):
        return False


def _imported(name: str) -> Function:
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise Lacking(
            "function_unknown", f"no function {name} is registered", hint="register it, or write module:function"
        )
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise Lacking("function_unknown", f"{name} cannot be imported: {error}") from error
    if not callable(target):
        raise Fail("function_unknown", f"{name} is not a function")
    found: Function = target
    return found
