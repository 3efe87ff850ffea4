"""Node type `python`: call a function of the operator's own code, registered by name or found by import path.

An async function runs in the worker's loop, a plain one in a thread, so that it may block; `isolation` says otherwise:
`inline` is the loop itself, `process` is a process of its own with limits on time and memory. A generator of either
kind shows its result bit by bit. The function gets `args` as keyword arguments and, when it has a parameter called
`context`, the attempt's context.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import msgspec

from tidemill.handlers.contract import Ended, Handler, NodeContext, ended
from tidemill.handlers.python.functions import (
    Function,
    FunctionSignature,
    callee,
    imported,
    in_thread,
    is_final,
    path_of,
    settled,
)
from tidemill.handlers.python.pool import Limits, PythonProcesses
from tidemill.kernel.model import Capabilities, ConfigProblem, NodeType

MEMORY_MB_MIN = 128
"""An interpreter needs some for itself."""


def _flaws(config: Any) -> Iterator[ConfigProblem]:
    if config.get("limits") and config.get("isolation") in (None, "inline", "thread"):
        message = "limits are those of a process, and the function does not run in one"
        yield ConfigProblem("/limits", message, "write isolation: process, or use timeout_seconds")


PYTHON = NodeType(
    name="python",
    title="Python",
    icon="🐍",
    capabilities=Capabilities(streaming=True, checkpointing=True),
    description="Calls a Python function: sync, async or a generator, here or in a process of its own.",
    config_schema={
        "type": "object",
        "properties": {
            "function": {"type": "string", "minLength": 1},
            "args": {"type": "object"},
            "isolation": {"enum": ["inline", "thread", "process"]},
            "limits": {
                "type": "object",
                "properties": {
                    "time_seconds": {"type": "number", "exclusiveMinimum": 0},
                    "memory_mb": {"type": "integer", "minimum": MEMORY_MB_MIN},
                },
                "additionalProperties": False,
            },
        },
        "required": ["function"],
        "additionalProperties": False,
    },
    check=_flaws,
)


def python_handler(functions: Mapping[str, Function], processes: PythonProcesses | None = None) -> Handler:
    """The node type over a set of registered functions; other names are import paths `module:function`."""
    found: dict[str, FunctionSignature] = {}
    pool = processes or PythonProcesses()

    def resolve(name: str) -> FunctionSignature:
        known = found.get(name)
        if known is None:
            known = found[name] = callee(functions.get(name) or imported(name))
        return known

    def call(context: NodeContext) -> Ended | Awaitable[Ended]:
        config: dict[str, Any] = context.config
        name, isolation = config["function"], config.get("isolation")
        if isolation == "process":
            registered = functions.get(name)
            path = name if registered is None else path_of(name, registered)
            return pool.call(path, context, msgspec.convert(config.get("limits") or {}, Limits))
        target = resolve(name)
        function = target.function
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return _in_loop(function, target.arguments(config, context), context)
        if isolation == "inline":
            result = function(**target.arguments(config, context))
            return ended(result) if is_final(result) else settled(result, context)
        label = str(getattr(function, "__name__", "call"))
        return in_thread(label, lambda given: function(**target.arguments(config, given)), context)

    return Handler(PYTHON, call, close=pool.close)


async def _in_loop(function: Callable[..., Any], arguments: dict[str, Any], context: NodeContext) -> Ended:
    return await settled(function(**arguments), context)
