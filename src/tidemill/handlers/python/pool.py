"""Calls functions in a pool of warm child processes, each with one call at a time.

A process that was told to stop, has grown, gave no answer or left other processes running is not reused: the pool kills
it with everything that it has started.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
import signal
import sys
from contextlib import suppress
from typing import Any

import msgspec

from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.handlers.contract import CapabilityMissing, Done, Fail, HandlerOutcome, NodeContext, Skip
from tidemill.handlers.python import protocol
from tidemill.processes.child import ChildProcess, ChildSpec, Pool, StartFailed

GRACE_MS = 2_000
"""How long a function may take to end by itself when its time is up."""
CANCELLED_GRACE_MS = 800
"""The same for a cancelled attempt: the function is gone before the next attempt begins."""
OUT_OF_MEMORY_RETRIES = 2

Ending = protocol.Done | protocol.Paused | protocol.Skipped | protocol.Failed | protocol.Threw


class Limits(msgspec.Struct, frozen=True):
    time_seconds: float | None = None
    memory_mb: int | None = None


class PythonProcesses:
    def __init__(self, size: int | None = None) -> None:
        self._pool = Pool(size or max(4, 2 * (os.cpu_count() or 1)))

    async def call(self, function: str, context: NodeContext, limits: Limits) -> HandlerOutcome:
        """Call a function by its import path, and return its outcome."""
        # The supervisor allows a quarter more, so that the function sees a `MemoryError` first.
        most = None if limits.memory_mb is None else (limits.memory_mb << 20) * 5 // 4
        spec = ChildSpec(module="tidemill.handlers.python.child", memory_bytes_max=most, user_code=True)
        try:
            async with self._pool.child(spec) as child:
                call = FunctionCall(child, context, limits)
                answer = await call.run(function)
                retire = isinstance(answer, protocol.Done) and answer.retire
                child.reusable = not (call.interrupted or retire or child.has_other_processes())
        except StartFailed as error:
            why = f"no process could be started for a function: {error}"
            raise CapabilityMissing("process_unavailable", why, retryable=True) from error
        return _outcome(answer, context)

    async def close(self) -> None:
        """End all processes; running calls get no answer."""
        await self._pool.close()


class FunctionCall:
    """One call: replays the function's output, answers its requests, and enforces its time limit."""

    def __init__(self, process: ChildProcess, context: NodeContext, limits: Limits) -> None:
        self._process, self._context, self._limits = process, context, limits
        self.interrupted = False

    async def run(self, function: str) -> Ending:
        """Call the function and return its answer; raise `Fail` when its time is up."""
        call_context = contextvars.copy_context()
        self._process.set_output_callback(lambda source, text: call_context.run(replay_output, source, text))
        await self._process.send(protocol.encode(self._call(function)))
        answer = asyncio.ensure_future(self._answer())
        # Retrieve the exception, because a cancelled caller does not.
        answer.add_done_callback(lambda done: done.cancelled() or done.exception())
        seconds = self._limits.time_seconds
        try:
            if not await _is_done(answer, seconds):
                await self._stop(answer, GRACE_MS)
            message = answer.result() if answer.done() else protocol.Stopped()
            if isinstance(message, protocol.Stopped):
                why = f"the function took longer than {'it may' if seconds is None else f'{seconds:g} s'}"
                raise Fail("timeout", why, retryable=True, hint="raise limits.time_seconds")
            return message or await self._died()
        except asyncio.CancelledError:
            await self._stop(answer, CANCELLED_GRACE_MS)
            raise
        finally:
            answer.cancel()
            self._process.set_output_callback(None)

    async def _stop(self, answer: asyncio.Future[Any], grace_ms: int) -> None:
        """Ask the function to end, and wait for that."""
        self.interrupted = True
        self._process.send_signal(signal.SIGALRM)
        await _is_done(answer, grace_ms / 1000)

    async def _died(self) -> protocol.Failed:
        self.interrupted = True
        report = await self._process.exit_report()
        status = report.status
        if report.taken_bytes:
            had, allowed = report.taken_bytes >> 20, self._limits.memory_mb
            message = f"it was killed with {had} MB of memory; it may have {allowed} MB"
            return protocol.Failed(code="out_of_memory", message=message, hint="raise limits.memory_mb")
        if status == protocol.OUT_OF_MEMORY_STATUS:
            return protocol.Failed(code="out_of_memory", message="the function used up all of its memory")
        how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        hint = "the machine may have run out of memory" if status == -signal.SIGKILL else ""
        return protocol.Failed(code="process_died", message=f"the function's process {how}", retryable=True, hint=hint)

    async def _answer(self) -> protocol.Answer | None:
        """Process its messages up to the answer; None if it dies."""
        while (body := await self._process.receive(protocol.FRAME_MAX)) is not None:
            try:
                message = protocol.decode_message(body)
            except msgspec.DecodeError as error:
                why = f"the function ended with an invalid outcome: {error}"
                raise Fail("answer_invalid", why) from error
            match message:
                case protocol.Ask(what, value):
                    try:
                        reply = protocol.Reply(await self._look_up(what, decode_value(value)))
                    except Fail as fail:
                        reply = protocol.Reply(None, protocol.failed_of(fail))
                    await self._process.send(protocol.encode(reply))
                case protocol.Part(value, blobs):
                    part = decode_value(value)
                    self._context.stream(protocol.restore_blobs(part, blobs) if blobs else part)
                case protocol.Progress(fraction, text):
                    self._context.progress(fraction, text)
                case protocol.PrintedText(source, text):
                    replay_output(source, text)
                case protocol.Logged(name, level, text):
                    logging.getLogger(name).log(level, "%s", text)
                case _:
                    return message
        return None

    async def _look_up(self, what: str, value: Any) -> bytes | None:
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
            case "forbidden_at":
                return b"" if context.forbidden_at is None else context.forbidden_at(value).encode()
            case "checkpoint" if context.checkpoint is not None:
                await context.checkpoint(value)
                return None
            case "read" if context.read is not None:
                return await context.read(value)
        raise Fail("answer_invalid", f"the worker cannot answer {what}")

    def _call(self, function: str) -> protocol.Call:
        context = self._context
        fields: dict[str, Any] = {name: getattr(context, name) for name in protocol.PLAIN_FIELDS}
        fields |= {name: encode_value(getattr(context, name)) for name in protocol.JSON_FIELDS}
        return protocol.Call(
            function=function,
            **fields,
            memory_mb=self._limits.memory_mb,
            log_level=logging.getLogger().level,
            paths=[os.path.abspath(each) for each in sys.path],
        )


def replay_output(source: str, text: str) -> None:
    """Print what a function printed, so that the worker captures it as output of the attempt."""
    with suppress(OSError, ValueError, AttributeError):
        getattr(sys, source).write(text)


async def _is_done(answer: asyncio.Future[Any], seconds: float | None) -> bool:
    await asyncio.wait({answer}, timeout=seconds)
    return answer.done()


def _outcome(answer: Ending, context: NodeContext) -> HandlerOutcome:
    match answer:
        case protocol.Done(text, next_nodes, blobs):
            value = context.voice.folded() if text is None else decode_value(text)
            return Done(protocol.restore_blobs(value, blobs) if blobs else value, next_nodes)
        case protocol.Paused(pause):
            return pause
        case protocol.Skipped(reason):
            return Skip(reason)
        case protocol.Failed(code="out_of_memory"):
            retryable = context.attempt <= OUT_OF_MEMORY_RETRIES
            raise msgspec.structs.replace(answer, retryable=retryable).error()
        case protocol.Failed() | protocol.Threw():
            raise answer.error()
