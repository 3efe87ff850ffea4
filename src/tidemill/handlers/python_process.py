"""Calling functions in processes that can be killed: a few are kept warm, each is asked one thing at a time.

Whatever becomes of such a process, the worker only learns that there is no answer. One that was told to stop, has
grown, has left its asker without an answer or something running is not used again: it is killed with all that it has
started, and no answer ever reaches the wrong asker.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import msgspec

from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.handlers.contract import Ended, Fail, NodeContext, Return, Skip
from tidemill.handlers.python_blobs import put_back
from tidemill.handlers.python_frames import (
    OUT_OF_MEMORY_STATUS,
    Answer,
    Ask,
    Call,
    Done,
    Failed,
    Logged,
    Part,
    Paused,
    Progress,
    Reply,
    Said,
    Skipped,
    Stopped,
    Threw,
    failed_of,
)
from tidemill.handlers.python_peer import DYING_MS, START_MS, Peer, no_process

GRACE_MS = 2_000
"""How long a function whose time is up may take to end by itself."""
CANCELLED_GRACE_MS = 800
"""The same for one that nobody waits for any more: it is gone before the next attempt begins."""
OUT_OF_MEMORY_RETRIES = 2

Ending = Done | Paused | Skipped | Failed | Threw


class Limits(msgspec.Struct, frozen=True):
    """What a call may take."""

    time_seconds: float | None = None
    memory_mb: int | None = None

    @property
    def memory_bytes_max(self) -> int | None:
        """What a process and all that it has started are killed for: a quarter more, to say that there is none left."""
        return None if self.memory_mb is None else (self.memory_mb << 20) * 5 // 4


class PythonProcesses:
    """Keeps the processes. It belongs to the event loop in which it is used, until it is closed."""

    def __init__(self, size: int | None = None) -> None:
        self._size = size or max(4, 2 * (os.cpu_count() or 1))
        self._turns: asyncio.Semaphore | None = None
        self._idle: list[Peer] = []
        self._busy: set[Peer] = set()
        self._calls: set[asyncio.Task[Any]] = set()

    async def call(self, function: str, context: NodeContext, limits: Limits) -> Ended:
        """Call a function by its import path, and give what it comes to."""
        async with self._place():
            process = await self._taken(limits)
            self._busy.add(process)
            again = False
            try:
                await process.wake()
                conversation = _Conversation(process, context, limits)
                answer = await conversation.held(function)
                spent = isinstance(answer, Done) and answer.spent
                again = not (conversation.interrupted or spent or process.others())
            finally:
                self._busy.discard(process)
                if again:
                    self._idle.append(process)
                else:
                    await asyncio.shield(process.end())
        return _outcome(answer, context)

    async def close(self) -> None:
        """End all processes; whoever still waits for one gets no answer."""
        for process in self._busy:
            process.kill()
        if self._calls:
            await asyncio.wait(self._calls, timeout=START_MS / 1000)
        while self._idle:
            await self._idle.pop().end()
        self._turns = None

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None, "a function is waited for"
        if self._turns is None:
            self._turns = asyncio.Semaphore(self._size)
        self._calls.add(task)
        try:
            async with self._turns:
                yield
        finally:
            self._calls.discard(task)

    async def _taken(self, limits: Limits) -> Peer:
        """One with the same limit on its memory, which is part of a process; a new one takes the place of another."""
        dead = [each for each in self._idle if not each.alive()]
        self._idle = [each for each in self._idle if each not in dead]
        await asyncio.shield(asyncio.gather(*(each.end() for each in dead)))
        for process in reversed(self._idle):
            if process.memory_bytes_max == limits.memory_bytes_max:
                self._idle.remove(process)
                return process
        if len(self._idle) + len(self._busy) >= self._size:
            await asyncio.shield(self._idle.pop(0).end())
        try:
            return Peer(limits.memory_bytes_max)
        except OSError as error:
            raise no_process(str(error)) from error


class _Conversation:
    """One call: what the function says meanwhile is heard, what it asks for is answered."""

    def __init__(self, process: Peer, context: NodeContext, limits: Limits) -> None:
        self._process, self._context, self._limits = process, context, limits
        self.interrupted = False

    async def held(self, function: str) -> Ending:
        """Call the function, and see to it that it ends."""
        ground = contextvars.copy_context()
        self._process.hearken(lambda source, text: ground.run(_print, source, text))
        await self._process.send(self._call(function))
        answer = asyncio.ensure_future(self._answer())
        # Who has gone away does not look at what it came to.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        seconds = self._limits.time_seconds
        try:
            if not await _is_done(answer, seconds):
                await self._stop(answer, GRACE_MS)
            found = answer.result() if answer.done() else Stopped()
            if isinstance(found, Stopped):
                raise _late(seconds)
            return found or await self._died()
        except asyncio.CancelledError:
            await self._stop(answer, CANCELLED_GRACE_MS)
            raise
        finally:
            answer.cancel()
            self._process.hearken(None)

    async def _stop(self, answer: asyncio.Future[Any], grace_ms: int) -> None:
        """Ask the function to end, and wait a moment."""
        self.interrupted = True
        self._process.tell(signal.SIGALRM)
        await _is_done(answer, grace_ms / 1000)

    async def _died(self) -> Failed:
        """Find out how the process ended."""
        self.interrupted = True
        await self._process.ended(DYING_MS)
        report = self._process.report()
        status = 0 if report is None else report.status
        if report is not None and report.taken_bytes:
            return self._too_large(report.taken_bytes)
        if status == OUT_OF_MEMORY_STATUS:
            return Failed(code="out_of_memory", message="the function used up all of its memory")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        hint = "the machine may have run out of memory" if status == -signal.SIGKILL else ""
        return Failed(code="process_died", message=f"the function's process {how}", retryable=True, hint=hint)

    def _too_large(self, taken_bytes: int) -> Failed:
        message = f"it was killed with {taken_bytes >> 20} MB of memory; it may have {self._limits.memory_mb} MB"
        return Failed(code="out_of_memory", message=message, hint="raise limits.memory_mb")

    async def _answer(self) -> Answer | None:
        """Hear all that it says, up to the answer; nothing if it dies."""
        while (message := await self._process.hear()) is not None:
            match message:
                case Ask():
                    await self._process.send(await self._reply(message))
                case Part(value, blobs):
                    part = decode_value(value)
                    self._context.stream(put_back(part, blobs) if blobs else part)
                case Progress(fraction, text):
                    self._context.progress(fraction, text)
                case Said(source, text):
                    _print(source, text)
                case Logged(name, level, text):
                    logging.getLogger(name).log(level, "%s", text)
                case _:
                    return message
        return None

    async def _reply(self, ask: Ask) -> Reply:
        try:
            return Reply(await self._asked(ask.what, decode_value(ask.value)))
        except Fail as fail:
            return Reply(None, failed_of(fail))

    async def _asked(self, what: str, value: Any) -> bytes | None:
        context = self._context
        match what:
            case "inputs":
                return encode_value(context.inputs)
            case "names":
                return encode_value(list(context.upstream))
            case "upstream":
                return encode_value(context.upstream[value]) if value in context.upstream else None
            case "secret":
                secret = context.secrets.get(value)
                return None if secret is None else secret.encode()
            case "checkpoint" if context.checkpoint is not None:
                await context.checkpoint(value)
                return None
            case "read" if context.read is not None:
                return await context.read(value)
        raise Fail("answer_invalid", f"nobody here can answer {what}")

    def _call(self, function: str) -> Call:
        context = self._context
        return Call(
            function=function,
            run_id=context.run_id,
            node=context.node,
            visit=context.visit,
            index=context.index,
            attempt=context.attempt,
            config=encode_value(context.config),
            deadline_ms=context.deadline_ms,
            last_checkpoint=encode_value(context.last_checkpoint),
            resumed=encode_value(context.resumed),
            undoing=context.undoing,
            at_most_once=context.at_most_once,
            memory_mb=self._limits.memory_mb,
            log_level=logging.getLogger().level,
            paths=[os.path.abspath(each) for each in sys.path],
        )


def _print(source: str, text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):
        getattr(sys, source).write(text)


async def _is_done(answer: asyncio.Future[Any], seconds: float | None) -> bool:
    await asyncio.wait({answer}, timeout=seconds)
    return answer.done()


def _outcome(answer: Ending, context: NodeContext) -> Ended:
    match answer:
        case Done(text, next_nodes, blobs):
            value = context.voice.folded() if text is None else decode_value(text)
            return Return(put_back(value, blobs) if blobs else value, next_nodes)
        case Paused(pause):
            return pause
        case Skipped(reason):
            return Skip(reason)
        case Failed(code="out_of_memory"):
            retryable = context.attempt <= OUT_OF_MEMORY_RETRIES
            raise msgspec.structs.replace(answer, retryable=retryable).error()
        case Failed() | Threw():
            raise answer.error()


def _late(seconds: float | None) -> Fail:
    bound = "it may" if seconds is None else f"{seconds:g} s"
    return Fail("timeout", f"the function took longer than {bound}", retryable=True, hint="raise limits.time_seconds")
