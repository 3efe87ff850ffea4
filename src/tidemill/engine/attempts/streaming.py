"""Output of running attempts: parts of their results, progress, printed and logged lines.

Parts and progress are live frames, which reach the followers of the run and are not stored; lines go to the log store.
`OutputBroadcaster` batches the output of all attempts of a worker: thousands of frames a second become a few dozen
calls.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from tidemill.ambient import Ambient
from tidemill.blobs.payloads import NotJson, decode_value
from tidemill.engine.attempts.log_store import AttemptId, AttemptLogWriter, StoredLine
from tidemill.engine.attempts.rendering import encoded
from tidemill.engine.attempts.results import announced
from tidemill.errors import Unavailable
from tidemill.handlers.contract import Cancelled, Fail
from tidemill.kernel.events import NOT_AN_ITEM
from tidemill.kernel.jobs import JobBody
from tidemill.observability.capture import release_line
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import SecretAccessLog
from tidemill.stores.contract import Lease, Store, Stream

LOG = logging.getLogger(__name__)

HAND_ON_MS = 20
"""How long frames are collected before they are published."""
WRITE_EVERY_MS = 1_000
"""How often the lines of a running attempt are written."""
FRAMES_WAITING_MAX = 20_000
PARTS_BYTES_MAX = 64 * 1_048_576
MESSAGE_MAX = 1_000
HANDFUL_BYTES = 65_536
"""Approximate size of a published batch: some stores cannot carry larger ones to other processes."""


class Frame(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A live frame: `part` with a value, or `progress` with a fraction and a message."""

    kind: str
    node: str
    visit: int
    index: int
    attempt: int
    number: int = 0
    """Number of the part, from 1; a gap means that parts were missed."""
    value: msgspec.Raw = msgspec.Raw(b"null")
    fraction: float | None = None
    message: str = ""


_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(list[Frame])


def shown(body: bytes) -> list[dict[str, Any]]:
    """Decode a published batch into the frames that followers get; a frame has no seq, because it is not an event."""
    return [_shown_part(frame) if frame.kind == "part" else _shown_progress(frame) for frame in _DECODER.decode(body)]


def _shown_part(frame: Frame) -> dict[str, Any]:
    return {
        "type": "NodeStreamed",
        "live": True,
        "node": frame.node,
        "visit": frame.visit,
        "index": frame.index,
        "attempt": frame.attempt,
        "number": frame.number,
        "value": decode_value(bytes(frame.value)),
    }


def _shown_progress(frame: Frame) -> dict[str, Any]:
    place = {"node": frame.node, "visit": frame.visit, "index": frame.index, "attempt": frame.attempt}
    return {"type": "NodeProgressed", "live": True, **place, "fraction": frame.fraction, "message": frame.message}


def _batches(bodies: Iterable[bytes]) -> Iterator[bytes]:
    """Batches that `shown` reads; a large frame has a batch of its own."""
    batch: list[bytes] = []
    size = 0
    for body in bodies:
        if batch and size + len(body) > HANDFUL_BYTES:
            yield b"[" + b",".join(batch) + b"]"
            batch, size = [], 0
        batch.append(body)
        size += len(body)
    yield b"[" + b",".join(batch) + b"]"


class OutputBroadcaster:
    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store, self._ambient = store, ambient
        self._lock, self._publishing = threading.Lock(), asyncio.Lock()
        self.holding = threading.Lock()
        """Held while an attempt changes what it holds back; one for all, because few attempts print secrets."""
        self._frames: dict[Stream, deque[bytes]] = {}
        self._journals: dict[AttemptLogWriter, None] = {}
        self._awake = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        with suppress(Unavailable):
            await self._publish()
            await self._write()
        self._loop, self._awake = None, False

    def now_ms(self) -> int:
        return self._ambient.now_ms()

    def frame(self, stream: Stream, frame: Frame) -> None:
        """Add a frame, from any thread; drops the oldest if publishing is too slow."""
        with self._lock:
            self._frames.setdefault(stream, deque(maxlen=FRAMES_WAITING_MAX)).append(_ENCODER.encode(frame))
        self._wake()

    def journal(self, journal: AttemptLogWriter, line: StoredLine) -> None:
        journal.add(line)
        with self._lock:
            self._journals[journal] = None
        self._wake()

    async def flush_attempt(self, journal: AttemptLogWriter | None) -> None:
        """Publish the frames and write the lines of an ended attempt, before its result is known."""
        try:
            await self._publish()
        except Unavailable as error:
            LOG.warning("progress of a handler could not be published: %s", error)
        if journal is not None:
            with self._lock:
                self._journals.pop(journal, None)
            await self._write_lines(journal)

    def _wake(self) -> None:
        if not self._awake and self._loop is not None:
            self._awake = True
            with suppress(RuntimeError):  # The loop is closed.
                self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._publish_loop(), name="tidemill-air")

    async def _publish_loop(self) -> None:
        due = self._ambient.monotonic_ms() + WRITE_EVERY_MS
        while True:
            await self._ambient.sleep(HAND_ON_MS)
            try:
                await self._publish()
                if self._ambient.monotonic_ms() >= due:
                    due = self._ambient.monotonic_ms() + WRITE_EVERY_MS
                    await self._write()
            except Unavailable as error:
                LOG.warning("log lines of handlers could not be published: %s", error)
            with self._lock:
                if not self._frames and not self._journals:
                    self._awake = False
                    return

    async def _publish(self) -> None:
        # One publication at a time keeps the order.
        async with self._publishing:
            with self._lock:
                frames, self._frames = self._frames, {}
            for stream, bodies in frames.items():
                await self._store.publish(stream, list(_batches(bodies)))

    async def _write(self) -> None:
        with self._lock:
            journals, self._journals = list(self._journals), {}
        for journal in journals:
            await self._write_lines(journal)

    async def _write_lines(self, journal: AttemptLogWriter) -> None:
        try:
            await journal.write(self._store)
        except Unavailable as error:
            LOG.warning("log lines of a handler could not be stored: %s", error)


class FileChunk(NamedTuple):
    value: Any


class AttemptOutput:
    over = False
    """Output is no longer wanted. A flag instead of a reference to the attempt, which would be a cycle that only
    the garbage collector could free, for every attempt."""
    _journal: AttemptLogWriter | None = None
    _parts: Sequence[bytes | FileChunk] = ()
    _size = 0
    _mask, _masked = NO_MASK, 0
    _shown = False
    _held: dict[str, str] | None = None
    """The last text by source, held back because a secret may begin in it."""

    def __init__(
        self, broadcaster: OutputBroadcaster, lease: Lease, task: JobBody, attempt: int, disclosed: SecretAccessLog
    ) -> None:
        self._broadcaster, self._lease, self._task, self._attempt = broadcaster, lease, task, attempt
        self._disclosed = disclosed

    @property
    def _place(self) -> AttemptId:
        task = self._task
        return AttemptId(task.node, task.visit, task.index, self._attempt, task.kind == "undo")

    @property
    def mask(self) -> Mask:
        if len(self._disclosed.values_seen) != self._masked:
            self._masked = len(self._disclosed.values_seen)
            self._mask = Mask(self._disclosed.values_seen.values())
        return self._mask

    def chunk(self, value: Any) -> None:
        """Publish a part of the result, and keep it for the whole. Files are stored with the whole."""
        kept: bytes | FileChunk
        held_bytes = 0
        try:
            try:
                text = kept = encoded(value, self.mask)
            except NotJson as refusal:
                plain, held_bytes = announced(value, refusal)
                text, kept = encoded(plain, self.mask), FileChunk(value)
        except NotJson as error:
            raise Fail("output_not_json", f"a part of the result is not JSON: {error}") from error
        self._size += len(text) + held_bytes
        if self._size > PARTS_BYTES_MAX:
            raise Fail("output_too_large", f"the parts of the result have more than {PARTS_BYTES_MAX} bytes")
        parts = self._parts
        if not isinstance(parts, list):
            # Threads of a handler may be here at the same time, and all add to one list.
            parts = self.__dict__.setdefault("_parts", [])
        parts.append(kept)
        self._add_frame("part", number=len(parts), value=msgspec.Raw(text))

    def progress(self, fraction: float | None, message: str) -> None:
        shown = None if fraction is None else min(1.0, max(0.0, float(fraction)))
        self._add_frame("progress", fraction=shown, message=self.mask.text(str(message))[:MESSAGE_MAX])

    def raise_if_cancelled(self) -> None:
        if self.over:
            raise Cancelled("the result of this attempt no longer counts")

    def folded(self) -> Any:
        parts = [part.value if isinstance(part, FileChunk) else decode_value(part) for part in self._parts]
        return "".join(parts) if parts and all(isinstance(part, str) for part in parts) else parts

    @property
    def label(self) -> str:
        """Whose output it is, for lines in which that of several attempts is mixed."""
        place, run_id = self._place, self._lease.stream.key
        visit = f"#{place.visit}" if place.visit > 1 else ""
        item = f"[{place.index}]" if place.index != NOT_AN_ITEM else ""
        return f"{run_id} {place.node}{visit}{item}" + (f":{place.attempt}" if place.attempt > 1 else "")

    def __call__(self, source: str, text: str) -> str:
        """Record what was printed or logged; returns it masked."""
        masked = self._masked_so_far(source, text)
        if masked:
            self._write(source, masked)
        return masked

    def _masked_so_far(self, source: str, text: str) -> str:
        """The masked text without its possibly unfinished end: a secret may be printed in pieces."""
        mask = self.mask
        if not mask:
            return text
        with self._broadcaster.holding:
            held = self._held = {} if self._held is None else self._held
            masked = mask.text(held.pop(source, "") + text)
            begun = 0 if masked.endswith("\n") else mask.partial_match(masked)
            if not begun:
                return masked
            held[source] = masked[-begun:]
            return masked[:-begun]

    def _write(self, source: str, text: str) -> None:
        if self._journal is None:
            run = self._lease.stream
            self._journal = AttemptLogWriter(run.tenant, run.key, self._place, self._lease.token)
        self._broadcaster.journal(self._journal, StoredLine(self._broadcaster.now_ms(), source, text))

    async def flush_and_close(self) -> None:
        with self._broadcaster.holding:
            held, self._held = self._held or {}, None
        for source, text in held.items():
            self._write(source, text)
        release_line(self)
        if self.has_output:
            await self._broadcaster.flush_attempt(self._journal)

    @property
    def has_output(self) -> bool:
        """Whether there is output that must be written before the result."""
        return self._journal is not None or self._shown or bool(self._held)

    def _add_frame(self, kind: str, **fields: Any) -> None:
        task, self._shown = self._task, True
        frame = Frame(kind=kind, node=task.node, visit=task.visit, index=task.index, attempt=self._attempt, **fields)
        self._broadcaster.frame(self._lease.stream, frame)
