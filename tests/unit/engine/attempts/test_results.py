"""The real error is never hidden: whatever a handler raises or answers, its failure can be written down and read.

Each hostile case runs end to end, beside an innocent run in the same process that must not notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.fixtures.cluster import Cluster, simulated
from tests.fixtures.kernel.authoring import document, node
from tests.fixtures.scripted_functions import Ledger, call
from tidemill.engine.attempts.invocation import failed_by, guarded, timed_out
from tidemill.errors import Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.handlers.contract import (
    CAUSES_MAX,
    MESSAGE_MAX,
    TRACEBACK_MAX,
    Blob,
    Done,
    Fail,
    Handler,
    NodeContext,
    Skip,
    Wait,
)
from tidemill.kernel.codec import decode_event, encode_event
from tidemill.kernel.events import Error, NodeFailed
from tidemill.kernel.model import NodeType
from tidemill.testing.faulty_store import refuse


class HostileStr(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not even this")


class DeadlyStr(Exception):
    def __str__(self) -> str:
        raise SystemExit(1)


class NoStr(Exception):
    def __str__(self) -> Any:
        return NotImplemented


class Endless(str):
    """A message that lies about itself."""

    def encode(self, *args: Any, **kwargs: Any) -> bytes:
        raise RuntimeError("no bytes for you")


def _chain(length: int) -> Exception:
    """Causes of causes of causes."""
    error: Exception = ValueError("the root")
    for number in range(length):
        outer = RuntimeError(f"level {number}")
        outer.__cause__ = error
        error = outer
    return error


def _circle() -> Exception:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    return first


RAISED: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("plain"),
    "empty": lambda: ValueError(),
    "huge": lambda: ValueError("x" * 5_000_000),
    "surrogate": lambda: ValueError("half \ud800 a pair"),
    "nul": lambda: ValueError("a\x00b"),
    "hostile str": HostileStr,
    "deadly str": DeadlyStr,
    "no str": NoStr,
    "lying message": lambda: Fail("lying", Endless("x")),
    "long chain": lambda: _chain(500),
    "circle": _circle,
    "group": lambda: ExceptionGroup("many", [ValueError(str(i)) for i in range(100)]),
    "exit": lambda: SystemExit(3),
    "generator exit": lambda: GeneratorExit(),
    "stop": lambda: StopIteration(7),
    "assertion": lambda: AssertionError(),
    "unicode": lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
    "recursion": lambda: RecursionError("too deep"),
    "memory": lambda: MemoryError(),
    "cancelled": lambda: asyncio.CancelledError(),
}


@pytest.mark.parametrize("what", [name for name in RAISED if name != "cancelled"])
def test_every_exception_becomes_an_error_that_can_be_written_and_read(what: str) -> None:
    try:
        raise RAISED[what]()
    except BaseException as error:
        failed = failed_by(error)
    event = NodeFailed(node="a", visit=1, attempt=1, error=failed.error)
    assert decode_event(encode_event(event)) == event
    assert failed.error.code and failed.error.message
    assert len(failed.error.message) <= MESSAGE_MAX
    assert len(failed.error.traceback) <= TRACEBACK_MAX
    assert len(failed.error.causes) <= CAUSES_MAX
    assert len(msgspec.json.encode(failed.error)) < 100_000


def test_an_exception_keeps_what_helps() -> None:
    nobody: dict[str, int] = {}

    def deep() -> None:
        try:
            nobody["missing"]
        except KeyError as error:
            raise ValueError("no customer") from error

    with pytest.raises(ValueError, match="no customer") as caught:
        deep()
    error = failed_by(caught.value).error
    assert (error.code, error.type, error.message, error.retryable) == ("exception", "ValueError", "no customer", True)
    assert error.causes == ("KeyError: 'missing'",)
    assert "in deep" in error.traceback and "no customer" in error.traceback


def test_notes_and_those_that_are_grouped_are_told() -> None:
    first, root = ValueError("a"), OSError("root")
    first.add_note("look at line 7")
    first.__cause__ = root
    group = ExceptionGroup("two", [first, KeyError("b")])
    group.add_note("both at once")
    told = ("note: both at once", "ValueError: a", "note: look at line 7", "OSError: root", "KeyError: 'b'")
    assert failed_by(group).error.causes == told


def test_a_circle_of_causes_is_told_once() -> None:
    assert failed_by(_circle()).error.causes == ("ValueError: second",)


def test_a_context_counts_as_a_cause() -> None:
    def clumsy() -> None:
        try:
            raise OSError("first")
        except OSError:
            raise ValueError("second")  # noqa: B904

    with pytest.raises(ValueError, match="second") as caught:
        clumsy()
    assert failed_by(caught.value).error.causes == ("OSError: first",)


def test_what_is_retryable() -> None:
    assert failed_by(ValueError("x")).error.retryable
    assert not failed_by(SystemExit(1)).error.retryable
    assert not failed_by(Fail("a", "b")).error.retryable
    assert failed_by(Fail("a", "b", retryable=True, retry_after_ms=5)).retry_after_ms == 5
    assert not failed_by(ExpressionError(code="template_failed", message="m", hint="h")).error.retryable
    late = timed_out(5)
    assert late.error.retryable and late.unknown_outcome and late.error.code == "timeout"


ANSWERED: dict[str, Any] = {
    "skip without a text": lambda: Skip(None),  # type: ignore[arg-type]
    "skip with half a pair": lambda: Skip("\ud800"),
    "skip with a novel": lambda: Skip("x" * 5_000_000),
    "wait for a fraction": lambda: Wait(on="timer", for_ms=1.5),  # type: ignore[arg-type]
    "wait backwards": lambda: Wait(on="timer", for_ms=-5),
    "wait for ever": lambda: Wait(on="timer", for_ms=2**70),
    "wait for text": lambda: Wait(on="timer", for_ms="soon"),  # type: ignore[arg-type]
    "wait on half a pair": lambda: Wait(on="\ud800", for_ms=5),
    "wait on nothing": lambda: Wait(on=None, for_ms=5),  # type: ignore[arg-type]
    "choose half a pair": lambda: Done({}, ("\ud800",)),
    "choose a novel": lambda: Done({}, ("y" * 5_000_000,)),
    "answer None": lambda: None,
    "answer a number": lambda: 5,
}

FAILED: dict[str, Callable[[], BaseException]] = {
    "code with half a pair": lambda: Fail("\ud800", "m"),
    "code that is none": lambda: Fail(None, "m"),  # type: ignore[arg-type]
    "code that is a number": lambda: Fail(404, "m"),  # type: ignore[arg-type]
    "huge code": lambda: Fail("c" * 5_000_000, "m"),
    "message that is no text": lambda: Fail("a", {"not": "text"}),  # type: ignore[arg-type]
    "hint with half a pair": lambda: Fail("a", "m", hint="\udcff"),
    "hint that is none": lambda: Fail("a", "m", hint=None),  # type: ignore[arg-type]
    "huge hint": lambda: Fail("a", "m", hint="h" * 5_000_000),
    "retry after a fraction": lambda: Fail("a", "m", retryable=True, retry_after_ms=0.5),  # type: ignore[arg-type]
    "retry after text": lambda: Fail("a", "m", retryable=True, retry_after_ms="1"),  # type: ignore[arg-type]
    "retry after an age": lambda: Fail("a", "m", retryable=True, retry_after_ms=2**70),
    "retryable in words": lambda: Fail("a", "m", retryable="yes"),  # type: ignore[arg-type]
}


async def _survives(mill: Cluster, handler: Callable[[NodeContext], Any], *, asynchronous: bool) -> Error | None:
    """Run a hostile handler beside an innocent one; answers how the hostile one failed, if it did."""

    async def later(context: NodeContext) -> Any:
        await asyncio.sleep(0.5)
        return handler(context)

    ledger = Ledger()
    hostile = Handler(NodeType(name="hostile"), later if asynchronous else handler)
    worker = await mill.process(more=[hostile], functions={"work": ledger.work})
    innocent = await worker.start(document(call("i", args={"seconds": 0.5}), call("j", "i"), name="innocent"))
    branch = {"type": "agent_driven", "available_next_nodes": ["b"], "default": ["b"]}
    run_id = await worker.start(
        document(node("a", type="hostile", branch=branch, retry={"max_attempts": 2, "backoff_seconds": 0}), node("b"))
    )
    async with asyncio.timeout(60):
        assert (await worker.end(innocent)).status == "COMPLETED"
    assert ledger.count("i") == ledger.count("j") == 1
    await asyncio.sleep(40)
    # A second process that knows nothing reads the log from its bytes.
    other = await mill.process("other", work=False)
    shown = await other.engine.show(run_id)
    assert shown.status in ("COMPLETED", "FAILED") or shown.nodes["a"]["status"] in ("WAITING", "QUEUED")
    assert (await worker.run(document(call("k"), name="still-at-work"))).status == "COMPLETED"
    for event in await mill.events(run_id):
        assert len(encode_event(event)) < 200_000
    failed = await mill.of(run_id, NodeFailed, "a")
    return failed[-1].error if failed else None


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", RAISED)
@simulated
async def test_whatever_is_raised_the_run_fails_and_says_so(mill: Cluster, what: str, asynchronous: bool) -> None:
    def handler(context: NodeContext) -> Any:
        raise RAISED[what]()

    error = await _survives(mill, handler, asynchronous=asynchronous)
    assert error is not None
    assert error.code in ("exception", "lying")


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", FAILED)
@simulated
async def test_however_a_failure_is_described_it_is_recorded(mill: Cluster, what: str, asynchronous: bool) -> None:
    def handler(context: NodeContext) -> Any:
        raise FAILED[what]()

    error = await _survives(mill, handler, asynchronous=asynchronous)
    assert error is not None


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("what", ANSWERED)
@simulated
async def test_whatever_is_answered_the_log_stays_readable(mill: Cluster, what: str, asynchronous: bool) -> None:
    error = await _survives(mill, lambda context: ANSWERED[what](), asynchronous=asynchronous)
    assert error is None or error.code


# What a handler came to is kept while it cannot be stored: the handler is not called again for that


LONG = "x" * 100_000


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
@simulated
async def test_a_store_that_is_out_of_reach_for_long(mill: Cluster, delivery: str, ledger: Ledger) -> None:
    worker = await mill.process(functions={"work": ledger.work})
    node = call("a", args={"seconds": 1}, retry={"max_attempts": 1}, delivery=delivery)
    run_id = await worker.start(document(node))
    await mill.until(lambda: ledger.count("a") == 1)
    before = worker.faulty_store.fired["commit"]
    # Maintenance meets some of them.
    for _ in range(60):
        worker.faulty_store.next("commit", refuse)
    run = await worker.end(run_id)
    assert worker.faulty_store.fired["commit"] - before == 60, "the store was not out of reach"
    assert (run.status, ledger.count("a"), run.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)


@pytest.mark.parametrize("output", [LONG, Blob(LONG.encode())], ids=["a long value", "a file"])
@simulated
async def test_a_place_for_blobs_that_is_out_of_reach(
    mill: Cluster, output: Any, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def work() -> Any:
        calls.append(1)
        return output

    worker = await mill.process(functions={"work": work})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 1})))
    put, refused = mill.blobs.put, list[int]()

    async def out_of_reach(*given: Any, **options: Any) -> str:
        if len(refused) < 12:
            refused.append(1)
            raise Unavailable("no room")
        return await put(*given, **options)

    monkeypatch.setattr(mill.blobs, "put", out_of_reach)
    run_id = await worker.engine.start(reference)
    run = await worker.end(run_id)
    assert (run.status, len(calls), len(refused)) == ("COMPLETED", 1, 12)
    assert [record.getMessage() for record in caplog.records if "holds a result" in record.getMessage()] == [
        "the worker holds a result until the store accepts it: no room"
    ]


@simulated
async def test_bytes_that_were_given_only_once_fail_the_attempt(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """They cannot be stored again, so this is an attempt that failed, on record, and tried again by the rules."""
    calls: list[int] = []

    def work() -> Blob:
        calls.append(1)
        return Blob(iter([b"a", b"b"]))

    worker = await mill.process(functions={"work": work})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 3, "backoff_seconds": 1})))
    stream, refused = mill.blobs.put_stream, list[int]()

    async def out_of_reach(*given: Any, **options: Any) -> tuple[str, int]:
        if not refused:
            refused.append(1)
            raise Unavailable("no room")
        return await stream(*given, **options)

    monkeypatch.setattr(mill.blobs, "put_stream", out_of_reach)
    run = await worker.end(await worker.engine.start(reference))
    assert (run.status, len(calls), run.nodes["a"]["attempts"]) == ("COMPLETED", 2, 2)
    assert [each.lost for each in await mill.of(run.run_id, NodeFailed)] == [False], "it is no lost worker"
    await asyncio.sleep(0)


@simulated
async def test_a_result_that_waits_long_for_the_place_of_blobs_is_visible(
    mill: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await mill.process(functions={"work": lambda: LONG})
    reference = await worker.publish(document(call("a", retry={"max_attempts": 1})))
    put = mill.blobs.put

    async def out_of_reach(*given: Any, **options: Any) -> str:
        raise Unavailable("no room")

    monkeypatch.setattr(mill.blobs, "put", out_of_reach)
    run_id = await worker.engine.start(reference)
    await asyncio.sleep(50)
    assert not (await mill.row(run_id)).stuck
    await asyncio.sleep(100)
    row = await mill.row(run_id)
    assert (row.stuck, row.stuck_reason) == (True, "a result cannot be stored: no room")
    assert "a result cannot be stored" in (await worker.engine.why(run_id)).headline
    monkeypatch.setattr(mill.blobs, "put", put)
    run = await worker.end(run_id)
    assert (run.status, run.nodes["a"]["attempts"]) == ("COMPLETED", 1)
    assert not (await mill.row(run_id)).stuck


@simulated
async def test_a_result_that_waits_long_for_the_store_is_visible(mill: Cluster, ledger: Ledger) -> None:
    """As far as the store lets the mark be written: here it refuses records alone."""
    worker = await mill.process(functions={"work": ledger.work})
    run_id = await worker.start(document(call("a", args={"seconds": 1}, retry={"max_attempts": 1})))
    commit = mill.store.commit

    async def no_records(commits: Any) -> Any:
        if any(each.records for each in commits):
            raise Unavailable("no records today")
        return await commit(commits)

    mill.store.commit = no_records  # type: ignore[method-assign]
    await asyncio.sleep(1_200)
    row = await mill.row(run_id)
    assert (row.stuck, row.stuck_reason) == (True, "a result of a cannot be stored: no records today")
    mill.store.commit = commit  # type: ignore[method-assign]
    run = await worker.end(run_id)
    assert (run.status, ledger.count("a"), run.nodes["a"]["attempts"]) == ("COMPLETED", 1, 1)


def test_a_traceback_begins_with_the_code_of_the_user() -> None:
    nothing: dict[str, int] = {}

    async def function() -> None:
        try:
            nothing["missing"]
        except KeyError as error:
            raise ValueError("no customer") from error

    def traceback_of(pending: Any) -> str:
        error = asyncio.run(guarded(pending))
        assert isinstance(error, BaseException)
        return failed_by(error).error.traceback

    shown = traceback_of(function())
    cause, last = shown.split("The above exception was the direct cause of the following exception:")
    for each in (cause, last):
        assert each.strip().splitlines()[1].endswith("in function")
    assert "invocation.py" not in shown
    assert "invocation.py" in traceback_of(None), "a bug of ours has no other frames"
