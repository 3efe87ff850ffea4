"""A deterministic event loop: real asyncio code under a clock that moves only when nothing else can happen.

A blocking function runs in a thread of its own, but only while the loop waits for it, so that everything happens in the
same order every time. Sockets are real: while a handler waits for one, the simulated clock runs with the real one.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import math
import random
import selectors
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from heapq import heappop, heappush
from typing import Any

import msgspec

from tidemill.handlers.contract import NodeContext
from tidemill.handlers.python.functions import Function, Ready, imported

REAL_SECONDS_MAX = 120.0
"""How long a blocking function or a socket may keep the loop waiting."""
END_SECONDS_MAX = 1.0
"""How long a function may do so once the loop is to end."""

Ask = Callable[[Coroutine[Any, Any, Any]], Any]
"""For a function in a thread: have the loop await something, and block until it has."""


class Overdue(RuntimeError):
    """Something outside the simulation takes too long."""


class _Selector(selectors.DefaultSelector):
    """Instead of waiting for I/O, let time pass."""

    loop: SimLoop

    def select(self, timeout: float | None = None) -> list[Any]:
        return self.loop.wait(timeout, super().select)


class SimLoop(asyncio.SelectorEventLoop):
    """Time is `now`, in seconds. Callbacks run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self.now = 1_000.0
        self.calling: dict[object, tuple[str, float]] = {}
        """Nodes whose real handlers are being called and may wait for the world, and since when."""
        self.given_up: BaseException | None = None
        """What the loop is to raise as soon as nothing is being called."""
        self.is_ending = False
        self._runnable: deque[Callable[[], None]] = deque()
        self._idle_sleeps: list[tuple[float, int, asyncio.Future[None]]] = []
        self._idle_slept = 0
        self.is_busy: Callable[[], bool] = lambda: False
        """Whether work is in progress, so that idle sleeps end in time."""
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self.now

    def wait(self, timeout: float | None, poll: Callable[[float | None], list[Any]]) -> list[Any]:
        """What the selector does between two rounds of the loop. Raises `given_up`."""
        if self.given_up is not None:
            error, self.given_up = self.given_up, None
            raise error
        selector: selectors.BaseSelector = self._selector  # type: ignore[attr-defined]
        # The loop itself has one: the pipe by which other threads wake it.
        has_sockets = len(selector.get_map()) > 1
        if timeout is not None and timeout <= 0:
            return poll(0) if has_sockets else []
        if self._runnable:
            self._runnable.popleft()()
            return []
        if has_sockets and self.calling:
            began = time.monotonic()
            events = poll(REAL_SECONDS_MAX if timeout is None else min(timeout, REAL_SECONDS_MAX))
            self._move(time.monotonic() - began)
            return events
        if self._idle_sleeps and (timeout is None or self.is_busy()):
            first = max(0.0, self._idle_sleeps[0][0] - self.now)
            timeout = first if timeout is None else min(timeout, first)
        if timeout is None:
            raise RuntimeError("deadlock: every task waits for something that will never happen")
        self._move(timeout)
        return []

    def _move(self, seconds: float) -> None:
        """Let time pass, and end the idle sleeps that are over."""
        self.now += seconds
        # After centuries a smaller step is lost in the rounding, and a due timer would never be due.
        self._clock_resolution = max(1e-6, 4 * math.ulp(self.now))
        while self._idle_sleeps and self._idle_sleeps[0][0] <= self.now:
            _, _, over = heappop(self._idle_sleeps)
            if not over.done():
                over.set_result(None)

    async def sleep_idly(self, seconds: float) -> None:
        """Sleep at least so long. In an idle loop that does not move the clock: a jump of hours ends it once."""
        over = self.create_future()
        self._idle_slept += 1
        heappush(self._idle_sleeps, (self.now + seconds, self._idle_slept, over))
        await over

    def next_timer(self) -> float | None:
        """When the next timer is due; idle sleeps are none."""
        scheduled: list[asyncio.TimerHandle] = self._scheduled  # type: ignore[attr-defined]
        return min((handle.when() for handle in scheduled if not handle.cancelled()), default=None)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        """Do at once what would be done in a thread."""
        future = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    def run_in_thread(self, function: Callable[[Ask], Any]) -> asyncio.Future[Any]:
        """Call a function that may block, as soon as the loop has nothing else to do; it is given an `Ask`."""
        call = _ThreadCall(self, function)
        self._runnable.append(call.resume)
        return call.future

    @contextmanager
    def call(self, node: str) -> Iterator[None]:
        """Note that the real handler of a node is being called."""
        key = object()
        self.calling[key] = node, time.monotonic()
        try:
            yield
        finally:
            del self.calling[key]

    def resume_later(self, resume: Callable[[], None]) -> None:
        """Resume a thread when the loop has nothing else to do."""
        self._runnable.append(resume)

    def end(self) -> None:
        """Cancel whatever is left, and close the loop."""
        self.is_ending = True
        try:
            for task in asyncio.all_tasks(self):
                task.cancel()
            for _ in range(3):
                self.run_until_complete(asyncio.sleep(0))
            self.run_until_complete(self.shutdown_asyncgens())
        finally:
            self.close()


class _ThreadCall:
    """A function in a thread. Either the thread runs or the loop, never both."""

    def __init__(self, loop: SimLoop, function: Callable[[Ask], Any]) -> None:
        self._loop, self._function = loop, function
        self.future: asyncio.Future[Any] = loop.create_future()
        self._thread_may_run, self._loop_may_run = threading.Semaphore(0), threading.Semaphore(0)
        self._asked: Coroutine[Any, Any, Any] | None = None
        self._answer: asyncio.Task[Any] | None = None
        self._result: Any = None
        self._error: BaseException | None = None
        self._context = contextvars.copy_context()
        run = contextvars.copy_context().run
        self._thread = threading.Thread(target=run, args=(self._run,), name="tidemill-simulated", daemon=True)

    def resume(self) -> None:
        """In the loop: let the thread run until it has ended or asks for something."""
        if (self.future.cancelled() or self._loop.is_ending) and not self._thread.is_alive():
            return
        if self._thread.is_alive():
            self._thread_may_run.release()
        else:
            self._thread.start()
        if not self._loop_may_run.acquire(timeout=END_SECONDS_MAX if self._loop.is_ending else REAL_SECONDS_MAX):
            if self._loop.is_ending:
                return
            nodes = ", ".join(dict.fromkeys(node for node, _ in self._loop.calling.values())) or "a function"
            raise Overdue(f"{nodes} has not returned for {REAL_SECONDS_MAX:.0f} seconds of real time")
        if self._asked is not None:
            self._answer = self._loop.create_task(self._asked, context=self._context)
            self._asked = None
            self._answer.add_done_callback(lambda _: self._loop.resume_later(self.resume))
        elif not self.future.cancelled():
            if self._error is None:
                self.future.set_result(self._result)
            else:
                self.future.set_exception(self._error)

    def _run(self) -> None:
        try:
            self._result = self._function(self._ask)
        except (StopIteration, GeneratorExit) as error:
            # A future cannot hold these, because `await` and generators give them a meaning.
            self._error = RuntimeError(f"the function raised {type(error).__name__}: {error}")
        except BaseException as error:
            self._error = error
        self._loop_may_run.release()

    def _ask(self, asked: Coroutine[Any, Any, Any]) -> Any:
        """In the thread: have the loop await something."""
        self._asked = asked
        self._loop_may_run.release()
        self._thread_may_run.acquire()
        assert self._answer is not None
        if self._answer.cancelled():
            raise RuntimeError("the process of this function was killed")
        return self._answer.result()


class SimAmbient:
    """Everything a process takes from its machine, seeded. `skew_ms` is how wrong its wall clock is."""

    def __init__(self, loop: SimLoop, rng: random.Random, name: str) -> None:
        self._loop, self._rng, self._name = loop, rng, name
        self._ids = 0
        self.skew_ms = 0
        self.idle_from_ms = math.inf
        """Sleeps of this length or longer are those of an idle process."""

    def now_ms(self) -> int:
        return int(self._loop.now * 1000) + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._loop.now * 1000

    async def sleep(self, ms: float) -> None:
        await (asyncio.sleep(ms / 1000) if ms < self.idle_from_ms else self._loop.sleep_idly(ms / 1000))

    def new_id(self) -> str:
        self._ids += 1
        return f"{self._name}-{self._ids}"

    def chance(self) -> float:
        return self._rng.random()


# Functions


class SimulatedFunctions(dict[str, Function]):
    """Functions by name, and those of import paths; each is made to run under simulated time."""

    def __bool__(self) -> bool:
        return True

    def get(self, name: str, default: Any = None) -> Any:
        return _under_simulation(self[name] if name in self else imported(name))

    def known(self, name: str) -> Function | None:
        """A function as it is, if it was given or can be imported."""
        try:
            return self[name] if name in self else imported(name)
        except Exception:
            return None


def _under_simulation(function: Function) -> Function:
    """An async function that calls a blocking one in a thread of the simulated loop."""
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return function

    @wraps(function)
    async def call(**arguments: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)

        def in_thread(ask: Ask) -> Any:
            context = arguments.get("context")
            if isinstance(context, NodeContext) and context.checkpoint is not None:
                arguments["context"] = msgspec.structs.replace(context, checkpoint=_blocking(context, ask))
            return function(**arguments)

        return await loop.run_in_thread(in_thread)

    return call


def _blocking(context: NodeContext, ask: Ask) -> Any:
    async def write(value: Any) -> None:
        assert context.checkpoint is not None
        await context.checkpoint(value)

    return lambda value: Ready(ask(write(value)))
