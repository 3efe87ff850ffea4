"""Node type `python`: calls a function of the operator's code, registered by name or found by its import path.

By default an async function runs in the worker's event loop and a plain one in a thread, so that it may block.
`isolation: inline` runs it in the event loop, `process` in a child process with limits on time and memory. The
function gets `args` as keyword arguments and, if it has a parameter `context`, the attempt's context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from tidemill.errors import CONFIG_FILE
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import (
    CapabilityMissing,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    ended,
    object_schema,
)
from tidemill.handlers.python.functions import (
    CallThreads,
    Function,
    FunctionSignature,
    call_in_loop,
    imported,
    is_final,
    path_of,
    resolve_result,
)
from tidemill.handlers.python.pool import Limits, PythonProcesses
from tidemill.kernel.model import Capabilities, ConfigProblem, Json, NodeType
from tidemill.security.grants import ANY, ImportGrants, is_import_path

NOT_ALLOWED = "import_not_allowed"
FUNCTION_NOT_GRANTED = "function_not_granted"


def _problem(name: str, imports: ImportGrants | None) -> ConfigProblem | None:
    """Why an import path may not be used; without grants, for a caller that only checks documents, any may."""
    if is_template(name):
        message = "the function is a constant: data must not choose what is run"
        hint = "use a branch with one node per function"
        return ConfigProblem("/function", message, hint, code="function_not_constant")
    if not is_import_path(name):
        message = f"{name} is not an import path: it names one function of a module"
        return ConfigProblem("/function", message, "write module:function", code="function_unknown")
    if imports is None or imports.allow(name):
        return None
    if ".py:" in name:
        hint = f"a module has no .py: write {name.replace('.py:', ':')}"
        return ConfigProblem("/function", f"there is no import of {name}", hint, code=NOT_ALLOWED)
    hint = f'register it, or the operator adds "{name}" to `imports` in {CONFIG_FILE}, or --allow-import of a worker'
    message = f"the operator has not granted the import of {name}"
    return ConfigProblem("/function", message, hint, code=NOT_ALLOWED)


def _perhaps_a_path(name: str) -> ConfigProblem | None:
    """A warning of a dotted path; it may be the name of a function that only workers have registered."""
    module, dot, attribute = name.rpartition(".")
    path = f"{module}:{attribute}"
    if not dot or not is_import_path(path):
        return None
    message = f"no function {name} is registered here"
    return ConfigProblem(
        "/function", message, f"an import path is written {path}", code="function_unknown", warning=True
    )


def _function_not_granted(name: str) -> ConfigProblem:
    message = f"the operator has not granted the function {name} to this tenant"
    hint = f'the operator adds "{name}" to `functions` under `[tenants.NAME]` in {CONFIG_FILE}'
    return ConfigProblem("/function", message, hint, code=FUNCTION_NOT_GRANTED)


def _check_limits(config: Json) -> Iterator[ConfigProblem]:
    if config.get("limits") and config.get("isolation") in (None, "inline", "thread"):
        message = "limits apply to a process, and the function does not run in one"
        yield ConfigProblem("/limits", message, "write isolation: process, or use timeout_seconds")


PYTHON = NodeType(
    name="python",
    title="Python",
    icon="🐍",
    capabilities=Capabilities(streaming=True, checkpointing=True),
    description="Calls a Python function: sync, async or a generator, here or in a process of its own.",
    config_schema=object_schema(
        ("function",),
        function={"type": "string", "minLength": 1},
        args={"type": "object"},
        isolation={"enum": ["inline", "thread", "process"]},
        limits={
            "type": "object",
            "properties": {
                "time_seconds": {"type": "number", "exclusiveMinimum": 0},
                # An interpreter needs 128 MB for itself.
                "memory_mb": {"type": "integer", "minimum": 128},
            },
            "additionalProperties": False,
        },
    ),
)


def python_handler(
    functions: Mapping[str, Function],
    imports: ImportGrants | None = ANY,
    processes: PythonProcesses | None = None,
    granted: Sequence[str] | None = None,
) -> Handler:
    """The node type over registered functions; other names are import paths `module:function`, if they are granted.

    Of the registered ones only those that `granted` names, where it is not None; `*` stands for any text.
    """
    found: dict[str, FunctionSignature] = {}
    pool, threads = processes or PythonProcesses(), CallThreads()

    async def close() -> None:
        await threads.close()
        await pool.close()

    def problem(name: str) -> ConfigProblem | None:
        if granted is not None and name in functions and not any(fnmatchcase(name, each) for each in granted):
            return _function_not_granted(name)
        is_path = ":" in name or is_template(name)
        return _problem(name, imports) if is_path and name not in functions else None

    def check(config: Json) -> Iterator[ConfigProblem]:
        name = config["function"]
        if found := problem(name) or (None if name in functions else _perhaps_a_path(name)):
            yield found
        yield from _check_limits(config)

    def call(context: NodeContext) -> HandlerOutcome | Awaitable[HandlerOutcome]:
        config: dict[str, Any] = context.config
        name, isolation = config["function"], config.get("isolation")
        if refused := problem(name):
            kind = CapabilityMissing if refused.code in (NOT_ALLOWED, FUNCTION_NOT_GRANTED) else Fail
            raise kind(refused.code, refused.message, hint=refused.hint)
        if isolation == "process":
            registered = functions.get(name)
            path = name if registered is None else path_of(name, registered)
            return pool.call(path, context, msgspec.convert(config.get("limits") or {}, Limits))
        registered, target = functions.get(name), found.get(name)
        if target is None or (registered is not None and target.function is not registered):
            # A function may be registered again while the engine is open.
            target = found[name] = FunctionSignature.of(registered or imported(name))
        function = target.function
        if target.in_loop or isolation == "inline":
            arguments = target.arguments(config, context)
            if target.is_coroutine:
                return call_in_loop(target, arguments, context)
            result = target.checked(function(**arguments))
            return ended(result) if is_final(result) else resolve_result(result, context, target)
        label = str(getattr(function, "__name__", "call"))
        return threads.call(
            label, lambda bridged: target.checked(function(**target.arguments(config, bridged))), context
        )

    return Handler(msgspec.structs.replace(PYTHON, check=check), call, close=close)
