"""Errands and chores, carried out by child processes that can be killed.

A few children are kept warm, and each is asked one thing at a time. A child that does not answer in time is killed
and replaced, and so is one whose asker has gone away, so that no answer ever reaches the wrong asker. Whatever
becomes of a child, this process only learns that there is no answer.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess

from tidemill.errors import Unavailable
from tidemill.expressions.child import MEMORY_MAX_MB, READY
from tidemill.expressions.chores import Chore
from tidemill.expressions.failure import ExpressionError, condition_failed
from tidemill.expressions.frames import ANSWER_MAX, RESULT_MAX, Answer, packed, unpacked_answer
from tidemill.expressions.leaf import Errand
from tidemill.expressions.offspring import HEADER_SIZE, Offspring
from tidemill.expressions.scope import Json

SIZE = 2
"""How many children there are at most; the others who ask wait for their turn."""

START_MS = 30_000
"""How long a child may take to start; a machine that takes longer is in trouble."""

_PART_MAX = 1 << 20
_KEPT_VARIABLES = ("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that a child is given of the environment: where the libraries of the interpreter are."""


class Processes:
    """Keeps the children. It belongs to the event loop in which it is first used."""

    def __init__(self, size: int = SIZE) -> None:
        self._size = size
        self._turns = asyncio.Semaphore(size)
        self._idle: list[_Child] = []
        self._busy: set[_Child] = set()
        self._closed = False

    async def holds(self, errand: Errand) -> bool:
        """Decide before the deadline; raise `ExpressionError` if there is no answer, or none in time."""
        return (await self._answered(errand, ANSWER_MAX)).held()

    async def carry_out(self, chore: Chore) -> Json:
        """Give the result of a chore before its deadline; raise `ExpressionError` if there is none, or none in time."""
        return (await self._answered(chore, RESULT_MAX)).done()

    async def _answered(self, work: Errand | Chore, answer_max: int) -> Answer:
        frame = packed(work)
        async with self._turns:
            answer, status = await self._asked(frame, work, answer_max)
            if answer is None and status == -signal.SIGKILL:
                # No work does that to its process. Somebody else did, and it may work the second time.
                answer, status = await self._asked(frame, work, answer_max)
        if answer is None:
            raise _died(status, work)
        return answer

    async def close(self) -> None:
        """End all children; whoever still waits for one gets a `RuntimeError`. Who asks afterwards gets new ones."""
        self._closed = True
        for child in self._busy:
            # Its asker sees that it is gone, and clears up.
            child.kill()
        for _ in range(self._size):
            await self._turns.acquire()
        for _ in range(self._size):
            self._turns.release()
        while self._idle:
            await self._idle.pop().end()
        self._closed = False

    async def _asked(self, frame: bytes, work: Errand | Chore, answer_max: int) -> tuple[Answer | None, int]:
        """Ask a child; without an answer, give the status with which it ended."""
        child = self._taken()
        self._busy.add(child)
        answer = None
        try:
            await child.wake()
            async with asyncio.timeout(work.deadline_ms / 1000):
                answer = await child.ask(frame, answer_max)
        except TimeoutError:
            raise _late(work) from None
        finally:
            self._busy.discard(child)
            if answer is not None and not answer.spent and not self._closed:
                self._idle.append(child)
            else:
                await child.end()
        if answer is None and self._closed:
            raise RuntimeError("the processes were closed while one of them was at work")
        return answer, child.status()

    def _taken(self) -> _Child:
        if self._closed:
            raise RuntimeError("the processes are closed")
        while self._idle:
            child = self._idle.pop()
            if child.alive():
                return child
            child.let_go()
        try:
            return _Child()
        except OSError as error:
            raise Unavailable(f"no process could be started to decide a condition: {error}") from error


class _Child(Offspring):
    """One process that decides."""

    def __init__(self) -> None:
        kept = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
        super().__init__("tidemill.expressions.child", "-I", "-B", stdout=subprocess.DEVNULL, env=kept, cwd="/")
        self._awake = False

    async def wake(self) -> None:
        """Wait until it has started; its deadline does not count before."""
        if self._awake:
            return
        try:
            async with asyncio.timeout(START_MS / 1000):
                self._awake = await self._read() == READY
        except OSError:
            # A time-out is one as well.
            pass
        if not self._awake:
            raise Unavailable("the process that decides conditions did not start")

    async def ask(self, frame: bytes, answer_max: int) -> Answer | None:
        """Send a frame and wait for the answer; nothing if the process is gone."""
        try:
            await asyncio.get_running_loop().sock_sendall(self.wire, frame)
            body = await self._read(answer_max)
        except OSError:
            return None
        return None if body is None else unpacked_answer(body)

    async def _read(self, answer_max: int = ANSWER_MAX) -> bytes | None:
        loop, received, size = asyncio.get_running_loop(), bytearray(), HEADER_SIZE
        while len(received) < size:
            part = await loop.sock_recv(self.wire, min(size + ANSWER_MAX - len(received), _PART_MAX))
            received += part
            if len(received) >= HEADER_SIZE:
                size = HEADER_SIZE + int.from_bytes(received[:HEADER_SIZE], "big")
            if not part or size > HEADER_SIZE + answer_max:
                return None
        return bytes(received[HEADER_SIZE:])


def _late(work: Errand | Chore) -> ExpressionError:
    hint = "read less of the data, or ask for less"
    return condition_failed(f"{work.what} took longer than {work.deadline_ms} ms", hint)


def _died(status: int, work: Errand | Chore) -> ExpressionError:
    if status == -signal.SIGALRM:
        return _late(work)
    how = signal.Signals(-status).name if status < 0 else f"status {status}"
    hint = f"{work.what} needs more than {MEMORY_MAX_MB} MB of memory, or its values are nested too deeply"
    if status == -signal.SIGKILL:
        hint = "it was killed from outside, twice: the machine may have too little memory"
    verb = "decided" if isinstance(work, Errand) else "worked on"
    return condition_failed(f"the process that {verb} {work.what} died ({how})", hint)
