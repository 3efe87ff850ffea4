"""Check what a handler returned before it is logged: waits, requests for children, files, statements; run outputs.

A handler is foreign code and the log is read for ever, so an invalid answer is the handler's failure here. Bytes are
stored first, then described by plain JSON in the value; a description that a caller or handler passes on must name an
existing blob, because no fact may point to a missing one. Values without bytes never reach that code.

`TransactionalStatement` carries the secrets that mask the store's refusal, which may come after the attempt has ended.
It stays in memory beside the command: never part of it, never written.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tidemill.blobs.contract import (
    GRACE,
    MARKED,
    PIECE_BYTES,
    BlobDamaged,
    BlobMissing,
    Blobs,
    files_in,
    is_digest,
)
from tidemill.blobs.payloads import NotJson, decode_value, encode_value
from tidemill.engine.attempts.invocation import failed_by, retry_until_stored
from tidemill.engine.attempts.rendering import (
    RUN_READER,
    Fetched,
    Values,
    all_payloads,
    check_memory,
    masked,
    needed_for_outputs,
    scope_of,
)
from tidemill.engine.compiled import CompiledWorkflow, off_loop
from tidemill.errors import Problem, Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.sandbox.pool import SandboxExecutor, render
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.contract import ApprovalRequest, Blob, ChildRun, Fail, Skip, Wait, is_media_type, truncate
from tidemill.kernel.commands import Done, Failed, Request, SkipRequested, WaitRequested
from tidemill.kernel.decide.retries import worker_killer
from tidemill.kernel.events import (
    INLINE_BYTES_MAX,
    NOT_AN_ITEM,
    BlobRef,
    Error,
    Payload,
)
from tidemill.kernel.spending import Budget
from tidemill.kernel.state import State
from tidemill.security.masking import NO_MASK, Mask
from tidemill.stores.contract import Lease, Statement, StatementRefused

WAIT_MS_MAX = 3_155_760_000_000
"""A hundred years, as for the node type `sleep`."""
MOMENT_MS_MAX = 253_402_300_800_000
"""The end of the year 9999."""
WORDS_MAX = 500
TEXT_MAX = 20_000
CHILD_ID_LENGTH_MAX = 120
FAMILY_NAME_LENGTH_MAX = 40
PRINCIPALS_MAX = 1_000
CHILD_KEY = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
"""A letter first: the children of items end in a number."""
WAITED_FOR = ("timer", "signal", "human", "child")
"""What a handler can wait for; no event would end another wait."""


def child_id(run_id: str, node: str, visit: int, index: int, key: str = "") -> str:
    """The id of the run that a visit or item starts: deterministic, so that it is started once."""
    tail = f".{node}.{visit}" if index == NOT_AN_ITEM else f".{node}.{visit}.{index}"
    if key:
        tail += f".{key}"
    if len((run_id + tail).encode()) <= CHILD_ID_LENGTH_MAX:
        return run_id + tail
    # Too deep for a readable id: hash the same facts. The prefix stays that of the root run, because
    # `in_run_tree` compares it.
    eldest = run_id.partition(".")[0]
    brief = "child-" + hashlib.sha256((run_id + tail).encode()).hexdigest()[:40]
    return f"{eldest}.{brief}" if len(eldest) <= FAMILY_NAME_LENGTH_MAX else brief


def asked_for(ended: Wait | Skip, child: str = "") -> tuple[SkipRequested | WaitRequested, bytes | None]:
    """The outcome of a handler that skips or waits, and the text of its request for a child.

    `child` is the id that a child of this activation has. Raises `Fail` when the request is impossible.
    """
    if isinstance(ended, Skip):
        return SkipRequested(reason=_word(ended.reason, "reason")), None
    for_ms, until_ms = _moment(ended.for_ms, "for_ms", WAIT_MS_MAX), _moment(ended.until_ms, "until_ms", MOMENT_MS_MAX)
    if ended.on not in WAITED_FOR:
        message = f"a handler cannot wait for {truncate(ended.on, 100)!r}"
        raise Fail("answer_invalid", message, hint=f"it can wait for: {', '.join(WAITED_FOR)}")
    if ended.on == "timer" and for_ms is None and until_ms is None:
        raise Fail("answer_invalid", "a timer without a time never ends", hint="give for_ms or until_ms")
    if (ended.on == "human") is (ended.approval is None) or (ended.on == "child") is (ended.child is None):
        hint = "give `approval` for a person, `child` for a child run, and neither otherwise"
        raise Fail("answer_invalid", f"a wait for {truncate(ended.on, 100)!r} is not asked for like this", hint=hint)
    waits = WaitRequested(
        on=ended.on,
        name=child if ended.child is not None else _word(ended.name, "name"),
        for_ms=for_ms,
        until_ms=until_ms,
        recall=bool(ended.resume),
        approval=None if ended.approval is None else _request(ended.approval),
        close="" if ended.child is None else ended.child.close,
        budget=None if ended.child is None else _budget(ended.child.budget),
        returns=bool(ended.resume) and ended.child is not None and ended.child.failure == "return",
    )
    return waits, None if ended.child is None else _ask(ended.child)


def _budget(given: Mapping[str, float] | None) -> Budget | None:
    if given is None:
        return None
    if any(name not in _BUDGETED or type(each) not in (int, float) or each < 0 for name, each in given.items()):
        raise Fail("answer_invalid", f"a budget has {', '.join(_BUDGETED)}, which are numbers from 0 on")
    calls, tokens, money = (given.get(name) for name in _BUDGETED)
    return Budget(
        None if calls is None else int(calls),
        None if tokens is None else int(tokens),
        None if money is None else round(money * 1_000_000),
    )


_BUDGETED = ("calls", "tokens", "money")


def _moment(ms: Any, field: str, most: int) -> int | None:
    if ms is not None and (type(ms) is not int or not 0 <= ms <= most):
        raise Fail("answer_invalid", f"{field} is {truncate(ms, 100)}, not a number of milliseconds")
    return ms


def _word(value: object, field: str, limit: int = WORDS_MAX) -> str:
    if not isinstance(value, str):
        raise Fail("answer_invalid", f"{field} is {type(value).__name__}, not text")
    return truncate(value, limit)


def _request(asked: ApprovalRequest) -> Request:
    if len(asked.approvers) > PRINCIPALS_MAX or len(asked.escalate_to) > PRINCIPALS_MAX:
        raise Fail("answer_invalid", f"more than {PRINCIPALS_MAX} approvers", hint="ask a role")
    if type(asked.quorum) is not int or asked.quorum < 1:
        raise Fail("answer_invalid", f"a quorum is a number of people, not {truncate(asked.quorum, 100)}")
    return Request(
        title=_word(asked.title, "title"),
        description=_word(asked.description, "description", TEXT_MAX),
        form=None if asked.form is None else _form(asked.form),
        approvers=tuple(_word(each, "approvers") for each in asked.approvers),
        quorum=asked.quorum,
        four_eyes=bool(asked.four_eyes),
        timeout_ms=_moment(asked.timeout_ms, "timeout_ms", WAIT_MS_MAX),
        on_timeout=asked.on_timeout,
        escalate_to=tuple(_word(each, "escalate_to") for each in asked.escalate_to),
        url=_word(asked.url, "url", 2_000),
    )


def _form(form: Any) -> bytes:
    """Check a form's schema now: otherwise only the person who fills in the form would notice an unusable one."""
    text = encode_value(form)
    if len(text) > INLINE_BYTES_MAX:
        raise Fail("config_invalid", f"the form's schema has more than {INLINE_BYTES_MAX} bytes")
    try:
        compile_schema(form)
    except ExpressionError as error:
        raise Fail("config_invalid", f"the form's schema cannot be used: {error.message}", hint=error.hint) from None
    return text


class ChildAsk(msgspec.Struct, frozen=True, kw_only=True):
    workflow: str
    inputs: Any = None
    labels: dict[str, str] = {}


def _ask(child: ChildRun) -> bytes:
    if not all(isinstance(text, str) for pair in child.labels.items() for text in pair):
        raise Fail("answer_invalid", "a child's labels are text")
    if child.key and not CHILD_KEY.fullmatch(child.key):
        hint = "up to 40 of A-Z, a-z, 0-9, - and _, a letter first"
        raise Fail("answer_invalid", f"{truncate(child.key, 100)!r} is not a valid key for a child run", hint=hint)
    workflow = _word(child.workflow, "workflow")
    return encode_value({"workflow": workflow, "inputs": child.inputs, "labels": dict(child.labels)})


def read_ask(text: bytes) -> ChildAsk:
    return ChildAsk(**decode_value(text))


HINT = "it worked in the dry run: find out what changed, and try it manually with the same parameters"


@dataclass(frozen=True, slots=True)
class TransactionalStatement:
    """A statement, and the secrets that were disclosed to its attempt."""

    statement: Statement = field(repr=False)
    _secrets: tuple[str, ...] = field(repr=False)

    def refusal(self, refused: StatementRefused) -> Failed:
        """The failure when the store refuses the statement; masked, because databases quote values in messages."""
        return masked(Failed(error=Error("sql_failed", refused.message, hint=HINT)), Mask(self._secrets))


async def as_payload(blobs: Blobs, tenant: str, text: bytes) -> Payload:
    """The text itself, or the reference to a blob if it is long."""
    return text if len(text) <= INLINE_BYTES_MAX else BlobRef(await blobs.put(tenant, text), len(text))


MARK = "$blob"
"""The key that marks a description of a file; its value is the digest."""
NAME_LENGTH_MAX = 255
UNREADABLE = "blob_file_unreadable"
_END: Any = object()
"""Marks the end of an iterator, because no future can hold a StopIteration."""

_UNKNOWN_HINT = "return `tidemill.Blob`, or a description as it was given; a run knows the files of its own values"


async def unknown_file(blobs: Blobs, tenant: str, text: bytes) -> Problem | None:
    """The problem with a text that describes a file which the tenant does not have; the path leads into its value.

    A file in quarantine is restored, because the fact that is about to be written needs it.
    """
    for digest in files_in(text) if MARKED in text else ():
        # The collector may have deleted it before it could be restored.
        while (info := await blobs.stat(tenant, digest)) is not None and info.state == GRACE:
            if await blobs.restore(tenant, digest):
                break
        if info is None:
            path, hint = _path_to(digest, decode_value(text)) or "", "store the bytes first: `tidemill blobs put FILE`"
            return Problem(code="blob_unknown", message=f"there is no blob {digest}", path=path, hint=hint)
    return None


@dataclass(frozen=True)
class KnownFiles:
    """The files that a run may describe and read.

    They are those that its values describe, those that the attempt at hand has made, and those that are kept. Otherwise
    a digest in a document or an answer would give its author the bytes of another workflow.
    """

    blobs: Blobs
    tenant: str
    state: State
    made: frozenset[str] = frozenset()

    seen: Fetched = field(default_factory=dict)
    """Large values of the run that the attempt has loaded: most files come from them."""

    async def unknown(self, digests: Iterable[str]) -> str:
        """One of the digests that the run does not know; empty if it knows all. The run is looked through once."""
        wanted = set(digests) - self.made
        for held in self.seen.values() if wanted else ():
            wanted -= held.files
        large: dict[str, None] = {}
        for payload in all_payloads(self.state) if wanted else ():
            if isinstance(payload, BlobRef):
                large[payload.digest] = None
            elif MARKED in payload:
                wanted.difference_update(files_in(payload))
                if not wanted:
                    return ""
        for value in large if wanted else ():
            with suppress(BlobMissing, BlobDamaged):
                wanted.difference_update(files_in(await self.blobs.get(self.tenant, value)))
        for digest in sorted(wanted):
            info = await self.blobs.stat(self.tenant, digest)
            if info is None or not info.kept:
                return digest
        return ""

    async def check(self, text: bytes) -> None:
        """Raise `Fail` when a value describes a file that is not there, or that the run does not know."""
        if MARKED in text and (digest := await self.unknown(files_in(text))):
            raise Fail("blob_unknown", f"there is no blob {digest}", hint=_UNKNOWN_HINT)
        await check_files(self.blobs, self.tenant, text)

    async def wrong(self, text: bytes) -> Failed | None:
        """Like `check`, as a failure; waits for a blob store that is unreachable."""
        try:
            await retry_until_stored(lambda: self.check(text))
        except Fail as unknown:
            return failed_by(unknown)
        return None

    async def read(self, description: Any) -> bytes:
        """The bytes behind a description or a digest."""
        digest: Any = description.get(MARK) if isinstance(description, dict) else description
        if not is_digest(digest):
            message = "this does not describe a blob"
            raise Fail("blob_invalid", message, hint='pass {"$blob": "sha256:…", …}, or the digest alone')
        try:
            if await self.unknown((digest,)):
                raise Fail("blob_unknown", f"there is no blob {digest}", hint=_UNKNOWN_HINT)
            return await self.blobs.get(self.tenant, digest)
        except Unavailable as error:
            raise Fail("blob_unavailable", str(error), retryable=True) from error


async def check_files(blobs: Blobs, tenant: str, text: bytes) -> None:
    """Raise `Fail` when a handler's value describes a file that is not there."""
    problem = await unknown_file(blobs, tenant, text)
    if problem is not None:
        raise Fail(problem.code, problem.sentence, hint=_UNKNOWN_HINT)


def _path_to(digest: str, value: Any, path: str = "") -> str | None:
    if isinstance(value, dict) and value.get(MARK) == digest:
        return path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = (_path_to(digest, each, f"{path}/{key}") for key, each in inner)
    return next((place for place in found if place is not None), None)


async def stored_value(
    blobs: Blobs, tenant: str, value: Any, refusal: NotJson, mask: Mask
) -> tuple[bytes, frozenset[str]]:
    """The JSON text of a value whose blobs are stored, and their digests.

    Raises `refusal` if blobs were not the reason for it.

    Secrets are masked in the value, in the names of blobs and in their bytes.
    """
    found = _blobs_in(value)
    if not found:
        raise refusal
    known = {key: await described(blobs, tenant, blob, mask) for key, blob in found.items()}
    text = encode_value(mask.value(msgspec.to_builtins(value, enc_hook=lambda blob: known[id(blob)])))
    return text, frozenset(description[MARK] for description in known.values())


def _blobs_in(value: Any) -> dict[int, Blob]:
    """The blobs in a value, each object once; none if the value is not JSON for other reasons too."""
    found: dict[int, Blob] = {}

    def note(thing: Any) -> None:
        if not isinstance(thing, Blob):
            raise NotImplementedError
        found[id(thing)] = thing

    try:
        msgspec.to_builtins(value, enc_hook=note)
    except (NotImplementedError, TypeError, ValueError, RecursionError):
        return {}
    return found


def announced(value: Any, refusal: NotJson) -> tuple[Any, int]:
    """A value with its unstored blobs described, and how many of their bytes are in memory; else raises `refusal`."""
    found = _blobs_in(value)
    if not found:
        raise refusal
    held = sum(len(blob.data) for blob in found.values() if isinstance(blob.data, (bytes, bytearray, memoryview)))
    return msgspec.to_builtins(
        value, enc_hook=lambda blob: {"media_type": blob.media_type, "name": _name_of(blob)}
    ), held


def _name_of(blob: Blob) -> str:
    return blob.data.name if blob.name == "" and isinstance(blob.data, Path) else blob.name


async def described(blobs: Blobs, tenant: str, blob: Blob, mask: Mask = NO_MASK) -> dict[str, Any]:
    """Store the bytes with secrets masked, and return their description."""
    name: Any = _name_of(blob)
    media_type: Any = blob.media_type
    # Both must be safe in a header, the name also as that of a file.
    if not isinstance(media_type, str) or not isinstance(name, str):
        raise Fail("blob_invalid", "a blob's media type and name are texts")
    if not is_media_type(media_type):
        message = f"{media_type[:100]!r} is not a media type"
        raise Fail("blob_invalid", message, hint='write "image/png", or "text/csv; charset=utf-8"')
    if len(name) > NAME_LENGTH_MAX or name in (".", "..") or not name.isprintable() or set(name) & set("/\\"):
        message = f"{name[:100]!r} cannot be the name of a file"
        hint = f"a name has no folders and no control characters, and at most {NAME_LENGTH_MAX} characters"
        raise Fail("blob_invalid", message, hint=hint)
    if isinstance(blob.data, (bytes, bytearray, memoryview)):
        body = await _masked(bytes(blob.data), mask)
        digest, size = await retry_until_stored(lambda: blobs.put(tenant, body, keep=blob.keep)), len(body)
    else:
        chunks = mask.chunks(_chunks(blob.data)) if mask else _chunks(blob.data)
        digest, size = await blobs.put_stream(tenant, chunks, keep=blob.keep)
    return {MARK: digest, "size": size, "media_type": media_type, "name": name}


async def _masked(body: bytes, mask: Mask) -> bytes:
    """Mask secrets in bytes; in a thread if they are many, so that the loop is not blocked."""
    if not mask:
        return body
    return await asyncio.to_thread(mask.content, body) if len(body) > PIECE_BYTES else mask.content(body)


async def _chunks(data: Any) -> AsyncIterator[bytes]:
    """The chunks of a blob; blocking reads run in a thread."""
    if isinstance(data, Path):
        async for chunk in _of_file(data):
            yield chunk
    elif isinstance(data, AsyncIterable):
        async for chunk in data:
            yield _checked(chunk)
    elif isinstance(data, Iterable) and not isinstance(data, str):
        chunks = iter(data)
        while (chunk := await asyncio.to_thread(lambda: next(chunks, _END))) is not _END:
            yield _checked(chunk)
    else:
        raise _not_bytes(data)


async def _of_file(path: Path) -> AsyncIterator[bytes]:
    try:
        file = await asyncio.to_thread(path.open, "rb")
    except OSError as error:
        message = f"the file of a blob cannot be read: {path}: {error.strerror or error}"
        raise Fail(UNREADABLE, message, hint="return the path of a file that is there") from error
    with file:
        while chunk := await asyncio.to_thread(file.read, PIECE_BYTES):
            yield chunk


def _checked(chunk: Any) -> bytes:
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise _not_bytes(chunk)
    return bytes(chunk)


def _not_bytes(thing: Any) -> Fail:
    message = f"a blob holds bytes, not {type(thing).__name__}"
    return Fail("blob_invalid", message, hint="give it bytes, a pathlib.Path, or something that yields bytes")


# The outputs of a run


async def outputs_of_run(
    flow: CompiledWorkflow, state: State, lease: Lease, values: Values, blobs: Blobs, executor: SandboxExecutor
) -> Done | Failed:
    """Render the outputs of a run. Raises `Unavailable` when a value they need cannot be loaded or stored.

    They are no attempt: they have no node, are not retried after a failure, and fail the whole run.
    """
    killer = worker_killer(lease.expired, "rendered it")
    if killer is not None:
        return Failed(error=killer)
    workflow, tenant = flow.workflow, lease.stream.tenant
    memory = 0
    try:
        fetched, memory = await values.read(tenant, needed_for_outputs(workflow, state))
        check_memory(fetched)
        scope = scope_of(workflow, state, lease.stream.key, RUN_READER, fetched)
        template = await off_loop(workflow.outputs, lambda: flow.outputs)
        text = encode_value(await render(template, scope, executor))
        await KnownFiles(blobs, tenant, state, seen=fetched).check(text)
        return Done(output=await as_payload(blobs, tenant, text), size=len(text))
    except Unavailable:
        raise
    except ExpressionError as error:
        error.path = f"/outputs{error.path}"
        return failed_by(error)
    except Exception as error:
        return failed_by(error)
    finally:
        values.release(memory)
