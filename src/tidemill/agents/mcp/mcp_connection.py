"""Connections to MCP servers: a program on this machine, or an address, within limits that the server cannot change.

The official SDK speaks the protocol; what carries its messages is made here. A program runs under a supervisor and ends
with the worker; a message that is too long ends it. HTTP goes through the egress guard to the origin that the operator
has written, and nowhere else. A `Connection` is opened on demand, closed when it is idle, and opened again after a
failure. This module needs the extra `mcp`: import it with the first connection.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any, TypeVar

import anyio
from mcp.client.client import Client
from mcp.client.session import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import CONNECTION_CLOSED, Implementation, jsonrpc_message_adapter
from pydantic import BaseModel, ConfigDict, ValidationError

from tidemill.expressions.errors import shorten
from tidemill.handlers.contract import Fail
from tidemill.net.egress import SCHEMES, CallFailed, Egress
from tidemill.net.http_client import Fetcher, read_url
from tidemill.net.origin_client import client_of_origin
from tidemill.processes.supervised import LaunchSpec, SupervisedProcess
from tidemill.version import __version__

CONNECT_SECONDS = 60.0
CLOSE_SECONDS = 10.0
IDLE_SECONDS = 300.0
"""A connection without a call for so long is closed."""
NOISE_LINES_MAX = 20
"""Lines of a program that are no messages, such as a greeting; one more ends it."""
STDERR_BYTES = 2_000

T = TypeVar("T")
Streams = tuple[Any, Any]
"""The read stream and the write stream of a transport of the SDK."""


class Answer(BaseModel):
    """An answer as it came; the SDK has compared it with the protocol."""

    model_config = ConfigDict(extra="allow")


class Channel:
    """What carries the messages of a connection, and what went wrong there."""

    fault: Fail | None = None
    """Why the connection has ended; it says more than the SDK can know."""
    remark = ""
    """What may explain that no answer came."""

    def transport(self) -> AbstractAsyncContextManager[Streams]:
        raise NotImplementedError


class ProgramChannel(Channel):
    """Messages as lines over the standard streams of a program."""

    def __init__(self, command: tuple[str, ...], env: Mapping[str, str], cwd: str, bytes_max: int) -> None:
        self._command, self._env, self._cwd, self._bytes_max = command, env, cwd, bytes_max
        self._line, self._stderr, self._noise = bytearray(), bytearray(), 0
        self._arrived: asyncio.Queue[SessionMessage | None] = asyncio.Queue()

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        process = self._start()
        to_session, from_server = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        to_server, from_session = anyio.create_memory_object_stream[SessionMessage](0)

        async def receive() -> None:
            async with to_session:
                while (message := await self._arrived.get()) is not None:
                    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                        await to_session.send(message)

        async def send() -> None:
            async with from_session:
                async for message in from_session:
                    text = message.message.model_dump_json(by_alias=True, exclude_unset=True)
                    process.write(text.encode() + b"\n")

        async def watch() -> None:
            await process.wait(None)
            report = process.report()
            status = "" if report is None else f" with status {report.status}"
            said = f": {shorten(bytes(self._stderr).decode('utf-8', 'replace').strip(), 400)}" if self._stderr else ""
            self._end(Fail("mcp_server_lost", f"the program {self._command[0]} has ended{status}{said}"))

        try:
            await process.launch(keep_stdin=True)
            async with anyio.create_task_group() as tasks:
                for each in (receive, send, watch):
                    tasks.start_soon(each)
                try:
                    yield from_server, to_server
                finally:
                    tasks.cancel_scope.cancel()
                    for stream in (from_server, to_server, to_session, from_session):
                        stream.close()
        finally:
            # The SDK may have cancelled all that is around; the program must end all the same.
            with anyio.CancelScope(shield=True):
                await process.end()

    def _start(self) -> SupervisedProcess:
        program = shutil.which(self._command[0], path=self._env.get("PATH"))
        if program is None:
            message = f"there is no program {self._command[0]} that this worker may run"
            raise Fail("mcp_server_unavailable", message, hint="the operator corrects `command` of this server")
        spec = LaunchSpec(program=program, argv=self._command, env=self._env)
        try:
            return SupervisedProcess(spec, self._read, reads_stdin=True, cwd=self._cwd or None)
        except (OSError, ValueError) as error:
            message = f"the program {self._command[0]} cannot be started: {error}"
            raise Fail("mcp_server_unavailable", message, retryable=True) from error

    def _read(self, stream: str, data: bytes) -> None:
        if stream == "stderr":
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]
            return
        if self.fault is not None:
            return
        # Only the new bytes are searched for an end of line.
        head, *lines = data.split(b"\n")
        self._line += head
        for line in lines:
            self._take(bytes(self._line))
            self._line = bytearray(line)
        if len(self._line) > self._bytes_max:
            self._end(too_long(self._bytes_max))

    def _take(self, line: bytes) -> None:
        if len(line) > self._bytes_max:
            self._end(too_long(self._bytes_max))
        elif line.strip() and self.fault is None:
            try:
                self._arrived.put_nowait(SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False)))
            except ValueError:
                self._noise += 1
                quoted = shorten(line.decode("utf-8", "replace"), 100)
                self.remark = self.remark or f"it wrote a line that is not a message: {quoted}"
                if self._noise > NOISE_LINES_MAX:
                    self._end(Fail("mcp_protocol_error", f"the server does not speak MCP: {self.remark}"))

    def _end(self, fault: Fail) -> None:
        self.fault = self.fault or fault
        self._line.clear()
        self._arrived.put_nowait(None)


class HttpChannel(Channel):
    """Messages over HTTP to one origin, through the egress guard."""

    def __init__(self, url: str, headers: Mapping[str, str], egress: Egress, bytes_max: int) -> None:
        self._url, self._headers, self._bytes_max = url, headers, bytes_max
        parts = read_url(url)
        # The operator has written this address, so it may be called; no other is opened by that.
        self._fetcher = Fetcher(egress.opening(parts.host, parts.port or SCHEMES[parts.scheme]))

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[Streams]:
        fetcher, url, limit = self._fetcher, self._url, self._bytes_max
        try:
            async with (
                client_of_origin(fetcher, url, self._headers, limit, self._on_status, self._on_failure) as client,
                streamable_http_client(url, http_client=client, max_sse_event_size=limit) as streams,
            ):
                yield streams
        finally:
            await self._fetcher.close()

    def _on_status(self, status: int, reason: str) -> None:
        if status in (401, 403):
            hint = "the operator writes credentials as `headers` of this server"
            self.fault = Fail("mcp_server_unavailable", f"the server answers {status} {reason}", hint=hint)
        elif status >= 400:
            self.remark = f"it answered {status} {reason}"

    def _on_failure(self, failed: CallFailed) -> None:
        if failed.code == "response_too_large":
            self.fault = too_long(self._bytes_max)
        elif failed.code in ("egress_refused", "url_invalid"):
            self.fault = Fail("mcp_server_unavailable", failed.message, hint=failed.hint)
        else:
            self.remark = failed.message


def too_long(bytes_max: int) -> Fail:
    message = f"the server sent a message of more than {bytes_max:,} bytes"
    return Fail("mcp_response_too_large", message, hint="ask for less; the operator raises `max_bytes` of this server")


class Connection:
    """A session with one server. A task of its own opens and closes it, as the SDK requires."""

    def __init__(self, name: str, open_channel: Callable[[], Channel], seconds: float) -> None:
        self._name, self._open_channel, self._seconds = name, open_channel, seconds
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[tuple[ClientSession, Channel]] | None = None
        self._used = asyncio.Event()
        self._closing = asyncio.Event()

    async def request(self, ask: Callable[[ClientSession], Awaitable[T]]) -> T:
        """Ask the server something. Every failure is a `Fail` that names the server."""
        session, channel = await self._session()
        try:
            async with asyncio.timeout(self._seconds):
                return await ask(session)
        except TimeoutError:
            message = f"did not answer within {self._seconds:g} s{_remark(channel)}"
            raise self._failed(Fail("mcp_timeout", message, retryable=True, unknown_outcome=True)) from None
        except MCPError as error:
            if error.code == CONNECTION_CLOSED or channel.fault is not None:
                await self.close()
                lost = Fail("mcp_server_lost", f"the connection was closed{_remark(channel)}")
                raise self._failed(channel.fault or lost, sent=True) from error
            raise self._failed(Fail("mcp_tool_failed", f"refused: {shorten(error.message, 400)}")) from error
        except ValidationError as error:
            what = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, what["loc"]))
            broken = Fail("mcp_protocol_error", f"an answer breaks the protocol: {place}: {what['msg']}")
            raise self._failed(broken, sent=True) from error
        finally:
            self._used.set()

    async def close(self) -> None:
        task, self._task, self._opened = self._task, None, None
        if task is not None:
            self._closing.set()
            done, _ = await asyncio.wait({task}, timeout=CLOSE_SECONDS)
            if not done:
                task.cancel()
                await asyncio.wait({task}, timeout=CLOSE_SECONDS)

    def _failed(self, fail: Fail, *, sent: bool = False) -> Fail:
        hint = fail.hint or f"see `tidemill tools mcp {self._name}`"
        message = f"MCP server {self._name}: {fail.message}"
        unknown = sent or fail.unknown_outcome
        return Fail(fail.code, message, retryable=fail.retryable, hint=hint, unknown_outcome=unknown)

    async def _session(self) -> tuple[ClientSession, Channel]:
        if self._task is None or self._task.done():
            self._closing = asyncio.Event()
            self._opened = asyncio.get_running_loop().create_future()
            self._task = asyncio.create_task(self._hold(self._opened, self._closing))
        opened = self._opened
        assert opened is not None, "it is made with the task"
        session, channel = await asyncio.shield(opened)
        if channel.fault is not None:
            await self.close()
            return await self._session()
        return session, channel

    async def _hold(self, opened: asyncio.Future[tuple[ClientSession, Channel]], closing: asyncio.Event) -> None:
        """Open the session, keep it while it is used, and close it."""
        channel: Channel | None = None
        try:
            channel = self._open_channel()
            client = Client(
                channel.transport(),
                cache=None,
                client_info=Implementation(name="tidemill", version=__version__),
            )
            async with asyncio.timeout(CONNECT_SECONDS) as clock, client:
                clock.reschedule(None)
                opened.set_result((client.session, channel))
                await self._until_idle(closing)
        except BaseException as error:
            if not opened.done():
                opened.set_exception(self._not_opened(error, channel))
                opened.exception()  # The caller may have stopped waiting.
            if isinstance(error, asyncio.CancelledError):
                raise

    async def _until_idle(self, closing: asyncio.Event) -> None:
        while not closing.is_set():
            self._used.clear()
            waits = {asyncio.create_task(event.wait()) for event in (closing, self._used)}
            done, open_waits = await asyncio.wait(waits, timeout=IDLE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            for each in open_waits:
                each.cancel()
            if not done:
                return

    def _not_opened(self, error: BaseException, channel: Channel | None) -> Fail:
        """Why there is no session; groups of exceptions say it in their innermost part."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        found = channel.fault if channel is not None and channel.fault is not None else error
        if isinstance(found, Fail):
            code = "mcp_server_unavailable" if found.code == "mcp_server_lost" else found.code
            return self._failed(Fail(code, found.message, retryable=True, hint=found.hint))
        if isinstance(error, ValidationError):
            return self._failed(Fail("mcp_protocol_error", "its first answer breaks the protocol"))
        late = isinstance(error, TimeoutError)
        why = f"it did not answer within {CONNECT_SECONDS:g} s" if late else shorten(str(error) or repr(error), 300)
        remark = "" if channel is not None and channel.remark in why else _remark(channel)
        message = f"no session could be opened: {why}{remark}"
        return self._failed(Fail("mcp_server_unavailable", message, retryable=True))


def _remark(channel: Channel | None) -> str:
    return f"; {channel.remark}" if channel is not None and channel.remark else ""
