"""Find the operator's functions, and call them in the event loop or in a thread.

A function is registered (`functions=`, `--app`) or named by its import path `module:function`. Importing a module
registers nothing: `@function` only stores a name on the function. What a generator yields is published to followers,
and is the result unless it returns one. A thread cannot be stopped from outside: its function learns at the next
heartbeat, checkpoint or chunk that the attempt is over, and one that never returns occupies only its own thread.
Thread-local values may outlive a call.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from itertools import repeat
from queue import SimpleQueue
from types import CellType
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar, overload

from tidemill.errors import offered, rejected
from tidemill.handlers.contract import (
    Cancelled,
    CapabilityMissing,
    Fail,
    HandlerOutcome,
    NodeContext,
    PendingOutcome,
    ended,
)
from tidemill.handlers.python.conversion import (
    SECRET_HINT,
    ConversionError,
    Converter,
    converter,
    failure_in,
    hints_of,
    result_check,
    secret_of_class,
    short,
    shown,
    to_json,
)

T = TypeVar("T")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

# Find a function.
Function = Callable[..., Any]
_F = TypeVar("_F", bound=Function)

_MARK = "__tidemill_function__"
TASK = "__tidemill_task__"
"""An attribute of an object made by a decorator: the function that it stands for."""


def plain_function(target: Any) -> Any:
    """The function behind a task, and any other object itself."""
    return getattr(target, TASK, target)


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


def add_functions(functions: dict[str, Function], more: Mapping[str, Function], *, again: bool = False) -> None:
    """Add functions by name, all or none. Raises Rejected if another function has one of the names.

    With `again` a function that was defined again, in a notebook or a module that was reloaded, replaces the old one.
    """
    for name in sorted(functions.keys() & more.keys()):
        known, function = functions[name], more[name]
        if not is_same(known, function) and not (again and _is_again(known, function)):
            homes = home_of(known), home_of(function)
            where = f"{homes[0]} and {homes[1]}" if homes[0] != homes[1] else f"{homes[0]} made both, with other values"
            hint = 'name one of them: @tidemill.task(name="…"), or @tidemill.function("…")'
            raise rejected("task_name_taken", f"two functions are called {name}: {where}", hint=hint)
    functions.update(more)


def home_of(function: Function) -> str:
    """Where a function is defined, as messages name it."""
    code = getattr(function, "__code__", None)
    at = f" ({os.path.basename(code.co_filename)}:{code.co_firstlineno})" if code else ""
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', repr(function))}{at}"


def _is_again(known: Any, function: Any) -> bool:
    """Whether a function has the place of another one in its module; inner functions and lambdas have none."""
    names = [getattr(each, "__qualname__", "<unknown>") for each in (known, function)]
    is_method = getattr(known, "__func__", known) is getattr(function, "__func__", function)
    return names[0] == names[1] and "<" not in names[0] and known.__module__ == function.__module__ and not is_method


def is_same(one: Any, other: Any, depth: int = 8) -> bool:
    """Whether two functions do the same: one code, with equal values in closure and defaults; or two values are equal.

    Values that can change are equal only to themselves. A module that was imported twice has two functions of one code.
    """
    one, other = plain_function(one), plain_function(other)
    if one is other:
        return True
    if inspect.isfunction(one) and inspect.isfunction(other):
        is_code = (one.__code__, one.__code__.co_filename) == (other.__code__, other.__code__.co_filename)
        values, others = _bound_values(one), _bound_values(other)
        is_code = is_code and depth > 0 and len(values) == len(others)
        return is_code and all(map(is_same, values, others, repeat(depth - 1)))
    try:
        return type(one) is type(other) and hash(one) == hash(other) and bool(one == other)
    except Exception:  # A value that cannot change can be hashed.
        return False


def _bound_values(function: Any) -> list[Any]:
    cells = [each.cell_contents for each in function.__closure__ or () if each != CellType()]
    return [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]


def function_registry(functions: Mapping[str, Function] | Iterable[Function] | None) -> dict[str, Function]:
    """Functions by name; in a list, the name is the one it was marked with or its own. Raises TypeError.

    A workflow written in Python stands for the functions of its tasks. Raises Rejected for two functions of one name.
    """
    if functions is None:
        return {}
    given: Any = functions
    if not isinstance(given, Iterable) or isinstance(given, (str, bytes)):
        raise TypeError(f"`functions` is a list of functions, or a mapping from names to functions, not {given!r}")
    pairs = list(given.items()) if isinstance(given, Mapping) else []
    for each in () if isinstance(given, Mapping) else given:
        tasks = getattr(each, "functions", None)
        if isinstance(tasks, Mapping):
            pairs += tasks.items()
        else:
            pairs.append((getattr(each, _MARK, None) or getattr(each, "__name__", ""), each))
    found: dict[str, Function] = {}
    for name, each in pairs:
        if not callable(each):
            raise TypeError(f"`functions` holds {each!r}, which is not a function")
        if not isinstance(name, str) or not name:
            raise TypeError(f"`functions` holds {each!r} without a name: write a mapping from names to functions")
        add_functions(found, {name: plain_function(each)})
    return found


def decorated_functions(module: object) -> dict[str, Function]:
    found: dict[str, Function] = {}
    for each in vars(module).values():
        if callable(each) and isinstance(name := getattr(each, _MARK, None), str):
            add_functions(found, {name: plain_function(each)})
    return found


def imported(name: str) -> Function:
    """Import a function of a module; one that another package defines is refused."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        module_name, dot, attribute = name.rpartition(".")
        path = f"{module_name}:{attribute}" if dot else "module:function"
        hint = f"register it (`--app FILE`, `open(functions=[…])`), or write {path}"
        hint += "; if it has another name now: tidemill runs patch RUN FILE --retry"
        raise CapabilityMissing("function_unknown", f"no function {name} is registered", hint=hint)
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        members = getattr(error.obj, "__dict__", {})
        hint = offered(str(error.name), [each for each, found in members.items() if callable(found)])
        if module_name.partition(".")[0] in sys.stdlib_module_names:
            hint = f"{hint} Or: " if hint.startswith("did you mean") else ""
            hint += f"Python loaded its own module, {members.get('__file__', 'built in')}: rename yours"
        raise CapabilityMissing("function_unknown", f"{name} cannot be imported: {error}", hint=hint) from error
    except SyntaxError as error:
        # The interpreter's own frames lead astray; the place of the mistake is in the error.
        message = f"{name} cannot be imported: {error.filename}:{error.lineno}: {error.msg}"
        raise CapabilityMissing("function_unknown", message, hint="correct that line") from None
    except (ImportError, ValueError) as error:
        hint = "modules are looked for beside the document, in the current folder and among what is installed"
        if module_name.endswith(".py"):
            hint = f"a module has no .py: write {module_name.removesuffix('.py')}:{attribute}"
        if isinstance(error, ImportError) and not f"{module_name}.".startswith(f"{error.name}."):
            # The module was found: what it imports itself is missing.
            frames = traceback.extract_tb(error.__traceback__)
            last = next((each for each in reversed(frames) if not each.filename.startswith("<frozen ")), frames[-1])
            hint = f"install it for the worker: {last.filename}, line {last.lineno} imports it"
        raise CapabilityMissing("function_unknown", f"{name} cannot be imported: {error}", hint=hint) from error
    if not callable(target):
        hint = "name a function: it takes what `args` of the config gives it"
        raise Fail("function_unknown", f"{name} is not a function: its type is {type(target).__name__}", hint=hint)
    home = str(getattr(target, "__module__", None) or type(target).__module__)
    if home.partition(".")[0] != module_name.partition(".")[0]:
        message = f"{name} is defined in {home}, not in {module_name.partition('.')[0]}"
        raise Fail("function_unknown", message, hint="name a function where it is defined, with `def`")
    found: Function = plain_function(target)
    return found


def path_of(name: str, function: Function) -> str:
    """The path by which another process can import a registered function."""
    module, qualname = getattr(function, "__module__", None), str(getattr(function, "__qualname__", ""))
    target: Any = sys.modules.get(str(module))
    for part in qualname.split("."):
        target = getattr(target, part, None)
    if plain_function(target) is not function or module == "__main__":
        message = f"the function {name} cannot be imported by another process"
        raise Fail("function_not_importable", message, hint="define it at the top of a module, and not in a script")
    return f"{module}:{qualname}"


class FunctionSignature(NamedTuple):
    """A function, its signature and its type hints, inspected once for all calls."""

    function: Function
    signature: inspect.Signature | None
    """None if Python cannot inspect it; then the call checks the arguments."""
    hints: Mapping[str, Any] = {}
    converters: Mapping[str, Converter] = {}
    """By parameter, where its type hint asks for something."""
    check: Converter | None = None
    """Raises for a result that does not fit its type hint; None where any does."""
    names: frozenset[str] = frozenset()
    required: frozenset[str] = frozenset()
    is_coroutine: bool = False
    in_loop: bool = False
    """An async function, which runs in the event loop; any other may block."""

    @classmethod
    def of(cls, function: Function) -> FunctionSignature:
        is_coroutine = inspect.iscoroutinefunction(function)
        in_loop = is_coroutine or inspect.isasyncgenfunction(function)
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):
            return cls(function, None, is_coroutine=is_coroutine, in_loop=in_loop)
        hints = hints_of(function)
        parameters = {name: each for name, each in signature.parameters.items() if each.kind in _NAMED}
        found = {name: converter(hint) for name, hint in hints.items() if name in parameters and name != "context"}
        is_generator = inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
        return cls(
            function,
            signature,
            hints,
            {name: each for name, each in found.items() if each},
            None if is_generator else result_check(hints.get("return", Any)),
            frozenset(parameters),
            frozenset(name for name, each in signature.parameters.items() if each.default is each.empty),
            is_coroutine,
            in_loop,
        )

    def arguments(self, config: Mapping[str, Any], context: NodeContext) -> dict[str, Any]:
        """The arguments of a call, with the context if there is a parameter for it. Raises Fail."""
        args = dict(config.get("args") or {})
        if self.signature is None:
            return args
        if "context" in self.signature.parameters:
            args["context"] = context
        if not self.required <= args.keys() <= self.names:
            self._bind(args)
        for name, convert in self.converters.items():
            if name in args:
                try:
                    args[name] = convert(args[name])
                except ConversionError as error:
                    message = f"{self._name}(…): `{name}` {_misfit(self.hints[name], args[name], error)}"
                    hint = "pass a value of that type, or change the hint"
                    if failure := failure_in(args[name]):
                        message = f"{self._name}(…): `{name}` must be {shown(self.hints[name])}, but {failure}"
                        hint = "take failures out in a task whose hint allows them, such as `list[Any]`"
                    raise Fail("arguments_invalid", message, hint=hint) from None
        return args

    def _bind(self, args: Mapping[str, Any]) -> None:
        assert self.signature is not None
        known = [each for each in self.signature.parameters if each != "context"]
        try:
            self.signature.bind(**args)
        except TypeError as error:
            unknown = next((arg for arg in args if arg not in known and arg != "context"), "")
            message = f"args do not match {self._name}: {f'it has no parameter `{unknown}`' if unknown else error}"
            own = next((name for name, hint in self.hints.items() if hint is NodeContext and name != "context"), "")
            hint = f"call its parameter `{own}` `context`" if own and not unknown else offered(unknown, known)
            raise Fail("arguments_invalid", message, hint=hint) from None

    def checked(self, result: T) -> T:
        """The same result. Raises Fail if it does not fit its type hint; one to be awaited is not looked at yet."""
        if secret := secret_of_class(type(result)):
            raise Fail("output_invalid", f"{self._name}(…): {secret}", hint=SECRET_HINT)
        if self.check is None:
            return result
        try:
            self.check(result)
        except ConversionError:
            if is_final(result) and not isinstance(result, HandlerOutcome):
                self._check_as_json(self.check, result)
        return result

    def _check_as_json(self, check: Converter, result: Any) -> None:
        try:
            plain = to_json(result)
        except ConversionError:
            return  # Reported where it is written.
        try:
            check(plain)
        except ConversionError as error:
            message = f"{self._name}(…): the result {_misfit(self.hints['return'], result, error)}"
            raise Fail("output_invalid", message, hint="return a value of that type, or change the hint") from None

    @property
    def _name(self) -> str:
        return str(getattr(self.function, "__name__", "the function"))


def _misfit(hint: Any, value: Any, error: BaseException) -> str:
    return f"must be {shown(hint)}, but {short(value)} is not: {error}"


# Results.


async def resolve_result(result: Any, context: NodeContext, target: FunctionSignature | None = None) -> HandlerOutcome:
    """The outcome of a call in the event loop: awaits awaitables and drains generators."""
    if inspect.isawaitable(result):
        result = await result
        if target is not None:
            target.checked(result)
    if isinstance(result, AsyncGenerator):
        result = await _drain_async(result, context)
    elif inspect.isgenerator(result):
        result = drain(result, context)
    return ended(result)


async def call_in_loop(target: FunctionSignature, arguments: Mapping[str, Any], context: NodeContext) -> HandlerOutcome:
    """Call a coroutine function when this is awaited, so that one that is closed before leaves no coroutine behind."""
    return await resolve_result(target.function(**arguments), context, target)


def is_final(result: Any) -> bool:
    return not (inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result))


def drain(chunks: Generator[Any, Any, Any], context: NodeContext) -> Any:
    """Publish what a generator yields; it is closed when the attempt no longer counts."""
    with closing(chunks):
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return context.voice.folded() if end.value is None else end.value
            context.stream(chunk)
            context.heartbeat()


async def _drain_async(chunks: AsyncGenerator[Any, Any], context: NodeContext) -> Any:
    published = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            context.stream(chunk)
            published += 1
            if published % 64 == 0:
                # A generator that never waits must let other tasks of the event loop run.
                await asyncio.sleep(0)
    return context.voice.folded()


# Threads.

BLOCKED_SECONDS = 0.0005
"""A thread that takes longer for a call counts as blocked: no other call waits for it."""
QUEUED_SECONDS_MAX = 0.005
"""After this a call no longer waits, however quick the calls before it are."""


class Ready(Generic[T]):
    """A value that can be awaited but need not be."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self.value


NO_LONGER_COUNTS = "the result of this attempt no longer counts"


class ThreadCall(PendingOutcome):
    """A call of a function in a thread. Its checkpoints are written by the event loop while the thread waits."""

    error: BaseException | None = None
    outcome: Any = None
    """Of the function, or what it returned if that is to be awaited, until the event loop takes it over."""
    _checkpointing: Future[None] | None = None

    def __init__(self, name: str, function: Callable[[NodeContext], Any], context: NodeContext) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop=loop)
        self.name, self.function, self.loop = name, function, loop
        self._checkpointer, self._loop_thread = context.checkpoint, threading.get_ident()
        context.checkpoint = self.checkpoint
        self.context, self.variables = context, contextvars.copy_context()
        self.queued = time.monotonic()

    def checkpoint(self, value: Any) -> Any:
        """Write a checkpoint, and block the thread until that is done."""
        checkpointer = self._checkpointer
        assert checkpointer is not None, "every attempt can keep one"
        if threading.get_ident() == self._loop_thread:
            # The function returned an awaitable, which runs in the event loop.
            return checkpointer(value)
        self.context.heartbeat()
        pending = self._checkpointing = asyncio.run_coroutine_threadsafe(_checkpoint(checkpointer, value), self.loop)
        if self.done():
            pending.cancel()
        try:
            return Ready(pending.result())
        except BaseException as error:
            if self.done():
                raise Cancelled(NO_LONGER_COUNTS) from error
            raise

    def cancel(self, msg: Any = None) -> bool:
        """The attempt is over, whatever the function does: its checkpoints raise `Cancelled`."""
        over = super().cancel(msg)
        self._close()
        return over

    def _close(self) -> None:
        self.context.checkpoint = _refuse_checkpoint  # It refers to this call, which refers to the context.
        if self._checkpointing is not None:
            self._checkpointing.cancel()

    def settle(self) -> None:
        """In the event loop: pass on what came of the call."""
        if self.done():
            return
        if self.error is not None:
            self._end(None, self.error)
        elif isinstance(self.outcome, HandlerOutcome):
            self._end(self.outcome, None)
        else:
            resolving = self.loop.create_task(self._resolve(), context=self.variables)
            self.add_done_callback(lambda _: resolving.cancel())

    async def _resolve(self) -> None:
        try:
            outcome = await resolve_result(self.outcome, self.context)
        except BaseException as error:
            self._end(None, error)
        else:
            self._end(outcome, None)

    def _end(self, outcome: HandlerOutcome | None, error: BaseException | None) -> None:
        if self.done():
            return
        self._close()
        if error is not None:
            self.set_exception(error)
        else:
            assert outcome is not None
            self.set_result(outcome)


def _refuse_checkpoint(value: Any) -> NoReturn:
    raise Cancelled(NO_LONGER_COUNTS)


async def _checkpoint(checkpointer: Callable[[Any], Any], value: Any) -> None:
    await checkpointer(value)


class CallThreads:
    """Threads for calls that may block.

    One thread works off the queue, because starting or waking a thread costs more than a short call. Calls behind one
    that blocks get threads of their own. Outcomes that are ready together are handed to the event loop together.
    """

    def __init__(self) -> None:
        self._queue: deque[ThreadCall] = deque()
        self._wakeup: SimpleQueue[None] = SimpleQueue()
        self._begun: float | None = None
        """When the thread began its present call; None while it waits for one."""
        self._thread: threading.Thread | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._done: deque[ThreadCall] = deque()
        self._settling = self._closed = False

    def call(self, name: str, function: Callable[[NodeContext], Any], context: NodeContext) -> ThreadCall:
        """Call a function in a thread."""
        call = ThreadCall(name, function, context)
        self._submit(call)
        return call

    def _submit(self, call: ThreadCall) -> None:
        if self._closed or self._blocked(call.queued):
            self._start(call)
            return
        self._queue.append(call)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="tidemill-calls", daemon=True)
            self._thread.start()
        self._wakeup.put(None)
        if self._timer is None:
            self._timer = call.loop.call_later(BLOCKED_SECONDS, self._start_late_calls)

    def _blocked(self, now: float) -> bool:
        begun = self._begun
        return begun is not None and now - begun > BLOCKED_SECONDS

    def _start_late_calls(self) -> None:
        """In the event loop: calls that wait behind one that blocks get threads of their own."""
        self._timer = None
        now = time.monotonic()
        with suppress(IndexError):  # The thread empties the queue meanwhile.
            while self._blocked(now) or self._queue[0].queued + QUEUED_SECONDS_MAX <= now:
                self._start(self._queue.popleft())
            self._timer = self._queue[0].loop.call_later(BLOCKED_SECONDS, self._start_late_calls)

    def _start(self, call: ThreadCall) -> None:
        threading.Thread(target=self._run, args=(call,), name=f"tidemill-{call.name}", daemon=True).start()

    def _work(self) -> None:
        thread = threading.current_thread()
        while True:
            self._wakeup.get()
            try:
                call = self._queue.popleft()
            except IndexError:  # It got a thread of its own.
                if self._closed:
                    return
                continue
            self._begun, thread.name = time.monotonic(), f"tidemill-{call.name}"
            self._run(call)
            self._begun = None

    def _run(self, call: ThreadCall) -> None:
        if call.cancelled():
            return
        try:
            call.outcome = call.variables.run(_call_in_thread, call.function, call.context)
        except BaseException as raised:
            call.error = raised
        self._done.append(call)
        if not self._settling:
            self._settling = True
            with suppress(RuntimeError):  # The event loop is closed.
                call.loop.call_soon_threadsafe(self._settle)
        del call  # The traceback of an exception refers to this frame.

    def _settle(self) -> None:
        # A thread that finds this true has added its call before: it is settled below.
        self._settling = False
        while self._done:
            self._done.popleft().settle()

    async def close(self) -> None:
        self._closed = True
        self._wakeup.put(None)


def _call_in_thread(function: Callable[[NodeContext], Any], context: NodeContext) -> Any:
    """The outcome, or a value to be awaited. A value may run code of its own when its class is asked for."""
    try:
        result = function(context)
        if inspect.isgenerator(result):
            result = drain(result, context)
        return ended(result) if is_final(result) else result
    except (StopIteration, GeneratorExit) as error:
        # A future cannot hold these, because `await` and generators give them a meaning.
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error
