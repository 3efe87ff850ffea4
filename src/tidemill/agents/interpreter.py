"""The built-in `code_interpreter`: runs Python that a model has written, on data, without files or network.

Without packages the code runs in the restricted interpreter of python_sandbox conditions. With packages (which the
operator has installed and allowed) it runs in a confined Python process of its own, which serves one call and is
killed. That bounds what code of a model can do by accident or by injection; it is not a virtual machine, so the
operator decides on packages.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from importlib import import_module
from io import StringIO
from typing import Any

import msgspec

from tidemill.errors import CONFIG_FILE
from tidemill.expressions.errors import shorten
from tidemill.expressions.limits import json_excess
from tidemill.expressions.sandbox.pool import SandboxExecutor
from tidemill.expressions.sandbox.tasks import RunCode
from tidemill.handlers.contract import CapabilityMissing, Fail
from tidemill.processes.child import ChildSpec, Pool, StartFailed, confine, minimal_environment
from tidemill.processes.supervisor import frame, read_frame

TIME_SECONDS = 30.0
MEMORY_MB = 512
CODE_MAX = 65_536
DATA_BYTES_MAX = 1 << 26
RESULT_BYTES_MAX = 1 << 25
PRINTED_MAX = 8_000
GRACE_SECONDS = 2.0
START_SECONDS = 30.0
"""For importing packages, beside the time of the code."""
MAIN = "main"


class CodeRequest(msgspec.Struct, frozen=True, kw_only=True):
    code: str
    data: msgspec.Raw
    packages: tuple[str, ...]
    time_seconds: float
    memory_mb: int


class CodeAnswer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    result: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    printed: str = ""
    error: str = ""


class CodeInterpreter:
    """Runs code; `allowed` are the packages that the operator lets models use."""

    def __init__(self, sandbox: SandboxExecutor, allowed: Sequence[str] = (), size: int = 2) -> None:
        self._sandbox, self._allowed, self._pool = sandbox, frozenset(allowed), Pool(size)

    async def run(
        self,
        code: str,
        data: Any,
        *,
        packages: tuple[str, ...] = (),
        time_seconds: float | None = None,
        memory_mb: int | None = None,
    ) -> dict[str, Any]:
        """`result` is what `main(data)` returns, `printed` what it prints. Raises `Fail`."""
        if len(code) > CODE_MAX:
            raise Fail("code_invalid", f"code is limited to {CODE_MAX} characters")
        text = msgspec.json.encode(data)
        if len(text) > DATA_BYTES_MAX:
            raise Fail("data_too_large", f"the data has more than {DATA_BYTES_MAX} bytes", hint="reduce it first")
        seconds = min(time_seconds or TIME_SECONDS, 300.0)
        if not packages:
            milliseconds = round(seconds * 1_000)
            task = RunCode(code=code, value=msgspec.Raw(text), memory_mb=MEMORY_MB, deadline_ms=milliseconds)
            found: dict[str, Any] = await self._sandbox.execute(task)
            return found
        if missing := [name for name in packages if name not in self._allowed]:
            hint = f'the operator adds "{missing[0]}" to `interpreter_packages` in {CONFIG_FILE}'
            raise CapabilityMissing("package_not_allowed", f"code may not use {', '.join(missing)}", hint=hint)
        request = CodeRequest(
            code=code,
            data=msgspec.Raw(text),
            packages=packages,
            time_seconds=seconds,
            memory_mb=memory_mb or MEMORY_MB,
        )
        return _value(await self._ask(request))

    async def _ask(self, request: CodeRequest) -> CodeAnswer:
        memory = (request.memory_mb << 20) * 5 // 4
        spec = ChildSpec(
            module="tidemill.agents.interpreter",
            flags=("-I", "-B"),
            env=minimal_environment(),
            cwd="/",
            memory_bytes_max=memory,
        )
        try:
            # Never reusable: the code may have changed anything in its process.
            async with self._pool.child(spec) as child:
                async with asyncio.timeout(START_SECONDS + request.time_seconds + GRACE_SECONDS):
                    await child.send(msgspec.json.encode(request))
                    body = await child.receive(RESULT_BYTES_MAX + PRINTED_MAX + 65_536)
                report = None if body is not None else await child.exit_report()
        except TimeoutError:
            raise _late(request) from None
        except StartFailed as error:
            raise CapabilityMissing("process_unavailable", f"no process for code: {error}", retryable=True) from error
        if body is None:
            assert report is not None, "it has ended"
            raise _died(report.status, bool(report.taken_bytes), request)
        try:
            return msgspec.json.decode(body, type=CodeAnswer)
        except msgspec.DecodeError:
            raise Fail("code_failed", "the code has spoiled its own answer") from None

    async def close(self) -> None:
        await self._pool.close()


def _value(answer: CodeAnswer) -> dict[str, Any]:
    if answer.error or answer.result is msgspec.UNSET:
        printed = f"; it printed: {shorten(answer.printed, 500)}" if answer.printed else ""
        raise Fail("code_failed", f"{answer.error or 'the code gave no result'}{printed}")
    if excess := json_excess(bytes(answer.result)):
        raise Fail("code_failed", f"the result is too large: {excess}", hint="return less")
    try:
        result = {"result": msgspec.json.decode(answer.result)}
    except (msgspec.DecodeError, RecursionError):
        raise Fail("code_failed", "the result cannot be read") from None
    return {**result, "printed": answer.printed} if answer.printed else result


def _late(request: CodeRequest) -> Fail:
    return Fail("code_timeout", f"the code took longer than {request.time_seconds:g} s", hint="do less at once")


def _died(status: int, out_of_memory: bool, request: CodeRequest) -> Fail:
    if status in (-signal.SIGALRM, -signal.SIGXCPU):
        return _late(request)
    if out_of_memory:
        return Fail("code_out_of_memory", f"the code needs more than {request.memory_mb} MB of memory")
    return Fail("code_failed", f"the process of the code ended with status {status}")


# In the process of the code.


def main(wire: socket.socket) -> None:
    """Serve one request."""
    wire.set_inheritable(False)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    wire.sendall(frame(b""))
    body = read_frame(wire)
    if body is None:
        return
    request = msgspec.json.decode(body, type=CodeRequest)
    wire.sendall(frame(msgspec.json.encode(_answer(request))))


def _answer(request: CodeRequest) -> CodeAnswer:
    printed = StringIO()
    try:
        modules = {name: import_module(name) for name in request.packages}
        confine(request.time_seconds + GRACE_SECONDS, request.memory_mb << 20)
        with redirect_stdout(printed), redirect_stderr(printed):
            result = execute(request.code, msgspec.json.decode(request.data), modules)
        text = msgspec.json.encode(result)
        if len(text) > RESULT_BYTES_MAX:
            return CodeAnswer(error=f"the result has more than {RESULT_BYTES_MAX} bytes", printed=_printed(printed))
        return CodeAnswer(result=msgspec.Raw(text), printed=_printed(printed))
    except BaseException as error:
        return CodeAnswer(error=_described(error), printed=_printed(printed))


def _printed(stream: StringIO) -> str:
    return stream.getvalue()[:PRINTED_MAX].encode("utf-8", "replace").decode()


def _described(error: BaseException) -> str:
    """The kind, the message and the line of the code."""
    line, at = 0, error.__traceback__
    while at is not None:
        if at.tb_frame.f_code.co_filename == "<code>":
            line = at.tb_lineno
        at = at.tb_next
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    where = f" (line {line})" if line else ""
    return shorten(text.encode("utf-8", "replace").decode(), 1_000) + where


def execute(code: str, data: Any, modules: dict[str, Any]) -> Any:
    """Run the code and call its function."""
    names: dict[str, Any] = {"__name__": "code", **modules}
    exec(compile(code, "<code>", "exec"), names)  # noqa: S102
    target = names.get(MAIN)
    if not callable(target):
        raise TypeError("the code defines no function main(data)")
    return target(data)
