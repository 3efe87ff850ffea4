"""Find a user function, call it in the loop or a thread, generators.

The operator's own functions: how they get a name, how they are found by one, and what they are given.

A function is registered (`functions=`, `--app`) or named by its import path `module:function`. Nothing is registered
by importing something: `@function` only writes a name on a function, for those who collect them.

Functions that give their results bit by bit: each value that a generator yields is shown to followers.

The visit's value is all of them together, unless the generator returns one of its own.

Calling a function that may block, in a thread of its own.

One that never returns costs its own thread and nobody else's place. Nobody can stop a thread from outside, so when
the attempt is over it is told at its next heartbeat, checkpoint or chunk.
"""

from __future__ import annotations

import asyncio
import contextvars
import importlib
import inspect
import sys
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Mapping
from concurrent.futures import Future
from contextlib import aclosing, closing, suppress
from typing import Any, Generic, NamedTuple, TypeVar, overload

import msgspec

from tidemill.errors import offered
from tidemill.handlers.contract import Cancelled, CapabilityMissing, Ended, Fail, NodeContext, ended

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


def function_registry(functions: Mapping[str, Function] | Iterable[Function] | None) -> dict[str, Function]:
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


def decorated_functions(module: object) -> dict[str, Function]:
    """The functions of a module that were marked with a name."""
    members = [each for each in vars(module).values() if callable(each)]
    return {name: each for each in members if isinstance(name := getattr(each, _MARK, None), str)}


def imported(name: str) -> Function:
    """The function behind an import path."""
    module_name, colon, attribute = name.partition(":")
    if not colon:
        raise CapabilityMissing(
            "function_unknown", f"no function {name} is registered", hint="register it, or write module:function"
        )
    try:
        target: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            target = getattr(target, part)
    except AttributeError as error:
        there = getattr(error.obj, "__dict__", {})
        hint = offered(str(error.name), [each for each, found in there.items() if callable(found)])
        raise CapabilityMissing("function_unknown", f"{name} cannot be imported: {error}", hint=hint) from error
    except (ImportError, ValueError) as error:
        raise CapabilityMissing("function_unknown", f"{name} cannot be imported: {error}") from error
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


class FunctionSignature(NamedTuple):
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


def callee(function: Function) -> FunctionSignature:
    """Look at a function, once for all its calls."""
    try:
        return FunctionSignature(function, inspect.signature(function))
    except (TypeError, ValueError):
        return FunctionSignature(function, None)


CHUNKS_PER_BREATH = 64
"""So often a generator that never waits lets others have the loop."""


async def settled(result: Any, context: NodeContext) -> Ended:
    """What a call comes to in the loop: it may still be awaited, or asked for one value after the other."""
    if inspect.isawaitable(result):
        result = await result
    if isinstance(result, AsyncGenerator):
        result = await _drained_later(result, context)
    elif inspect.isgenerator(result):
        result = drained(result, context)
    return ended(result)


def is_final(result: Any) -> bool:
    """Whether there is nothing left to wait for or to be asked for."""
    return not (inspect.isawaitable(result) or inspect.isasyncgen(result) or inspect.isgenerator(result))


def drained(chunks: Generator[Any, Any, Any], context: NodeContext) -> Any:
    """Show what a generator yields; it is closed when the attempt no longer counts."""
    with closing(chunks):
        while True:
            try:
                chunk = next(chunks)
            except StopIteration as end:
                return context.voice.folded() if end.value is None else end.value
            context.stream(chunk)
            context.heartbeat()


async def _drained_later(chunks: AsyncGenerator[Any, Any], context: NodeContext) -> Any:
    shown = 0
    async with aclosing(chunks):
        async for chunk in chunks:
            context.stream(chunk)
            shown += 1
            if shown % CHUNKS_PER_BREATH == 0:
                await asyncio.sleep(0)
    return context.voice.folded()


T = TypeVar("T")


class Given(Generic[T]):
    """Something that is there already, for those who may await it but need not."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __await__(self) -> Generator[Any, None, T]:
        yield from ()
        return self.value


class _Bridge:
    """What a thread may ask of the loop."""

    def __init__(self, context: NodeContext, loop: asyncio.AbstractEventLoop) -> None:
        self._context, self._loop = context, loop
        self._home = threading.get_ident()
        self._asked: Future[None] | None = None
        self._over = False

    def context(self) -> NodeContext:
        """The attempt's context, with a checkpoint that a thread can wait for."""
        return msgspec.structs.replace(self._context, checkpoint=self._checkpoint)

    def _checkpoint(self, value: Any) -> Any:
        checkpoint = self._context.checkpoint
        assert checkpoint is not None, "every attempt can keep one"
        if threading.get_ident() == self._home:
            # What the function returned is awaited in the loop.
            return checkpoint(value)
        self._context.heartbeat()
        self._asked = asyncio.run_coroutine_threadsafe(_kept(checkpoint, value), self._loop)
        if self._over:
            self._asked.cancel()
        try:
            return Given(self._asked.result())
        except BaseException as error:
            if self._over:
                raise Cancelled("nobody wants the result of this attempt any more") from error
            raise

    def close(self) -> None:
        """The attempt is over: nothing is kept any more."""
        self._over = True
        if self._asked is not None:
            self._asked.cancel()


async def _kept(checkpoint: Callable[[Any], Any], value: Any) -> None:
    await checkpoint(value)


async def in_thread(name: str, function: Callable[[NodeContext], Any], context: NodeContext) -> Ended:
    """Call a function in a thread. What it returns may still want to be awaited, e.g. behind a decorator."""
    loop = asyncio.get_running_loop()
    bridge = _Bridge(context, loop)
    given = bridge.context()
    future: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        outcome, error = None, None
        try:
            outcome = _called(function, given)
        except BaseException as raised:
            error = raised
        with suppress(RuntimeError):  # The loop is closed: nobody waits any more.
            loop.call_soon_threadsafe(_settle, future, outcome, error)

    ground = contextvars.copy_context()
    threading.Thread(target=ground.run, args=(run,), name=f"tidemill-{name}", daemon=True).start()
    try:
        return await settled(await future, given)
    finally:
        bridge.close()


def _settle(future: asyncio.Future[Any], outcome: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


def _called(function: Callable[[NodeContext], Any], context: NodeContext) -> Any:
    try:
        result = function(context)
        return drained(result, context) if inspect.isgenerator(result) else result
    except (StopIteration, GeneratorExit) as error:
        # These mean something to those who wait for a future, so they cannot travel through one.
        raise RuntimeError(f"the function raised {type(error).__name__}: {error}") from error
