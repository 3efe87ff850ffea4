"""From a state to the scope of expressions, the rendered config and the handler's context; masking of secrets.

Values are decoded only when an expression reads them. Blob values are cached by digest and decoded once per process,
because many attempts read the same one (all items of a map see the same inputs). The decoded form is shared and
read-only: a handler gets a copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from tidemill.blobs.contract import MARKED, Blobs, files_in
from tidemill.blobs.payloads import check_text, decode_value, encode_text, encode_value
from tidemill.errors import StoreUnusable, Unavailable
from tidemill.expressions.errors import ExpressionError
from tidemill.expressions.limits import decoded_size, json_excess
from tidemill.expressions.schema import Schema
from tidemill.expressions.scope import Absent, Scope, Seen
from tidemill.handlers.contract import Skip, Wait
from tidemill.kernel.activation import ENDED, QUEUED_ITEM, Activation, MapState, items_merged
from tidemill.kernel.commands import Failed
from tidemill.kernel.decide.edges_and_joins import ancestors
from tidemill.kernel.decide.fencing import phase_of
from tidemill.kernel.events import NOT_AN_ITEM, BlobRef, Payload
from tidemill.kernel.jobs import JobBody
from tidemill.kernel.model import Node, Workflow
from tidemill.kernel.queries import VisibleOutput, iteration, upstream, visible_output
from tidemill.kernel.state import State, Visit, peek_at
from tidemill.security.masking import NO_MASK, Mask

LOG = logging.getLogger(__name__)

HELD_BYTES_MAX = 96 * 1024 * 1024
TURN_SECONDS = 30.0
"""After that the job is left to another worker, or to a later time."""


class Held:
    """A loaded value: its text, and its decoded form once it was needed."""

    __slots__ = ("_decoded", "_files", "_known", "memory", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.memory = len(text) + decoded_size(text)
        """Bytes that text and decoded form take at most."""
        self._decoded: Any = None
        self._known = False
        self._files: frozenset[str] | None = None

    @property
    def files(self) -> frozenset[str]:
        """The digests of the files that it describes; looked for once."""
        if self._files is None:
            self._files = frozenset(files_in(self.text) if MARKED in self.text else ())
        return self._files

    def shared(self) -> Any:
        """The decoded value; read-only."""
        if not self._known:
            self._decoded, self._known = decode_value(self.text), True
        return self._decoded


Fetched = dict[str, Held]
"""The blob values of one attempt by digest; held until the attempt ends, whatever the cache evicts."""


class Values:
    """Cache of blob values, bounded by the memory that they take when they are decoded.

    `memory_max` bounds what attempts read at the same time, decoded: an attempt waits for its turn, and one that reads
    more than that is alone. None is no bound.
    """

    def __init__(self, blobs: Blobs, bytes_max: int = HELD_BYTES_MAX, memory_max: int | None = None) -> None:
        self._blobs, self._bytes_max, self._memory_max = blobs, bytes_max, memory_max
        self._free = memory_max or 0
        self._turns = deque[tuple[int, asyncio.Future[None]]]()
        """Attempts that wait until what they read has room, in order."""
        self._held: OrderedDict[tuple[str, str], Held] = OrderedDict()
        self._bytes = 0
        self._loading: dict[tuple[str, str], asyncio.Future[Held]] = {}
        self._lost: set[tuple[str, str]] = set()

    def known(self, tenant: str, digests: Iterable[str]) -> Fetched | None:
        """All of these values, or None when one of them must be loaded first, or wait for its turn."""
        if self._memory_max is not None:
            return None
        found: Fetched = {}
        for digest in digests:
            held = self._held.get((tenant, digest))
            if held is None:
                return None
            self._held.move_to_end((tenant, digest))
            found[digest] = held
        return found

    async def read(self, tenant: str, needed: Mapping[str, int]) -> tuple[Fetched, int]:
        """Values by digest and size, once there is room for them, and the amount to release when they are read.

        Raises `Unavailable` if there is none for long.
        """
        amount = sum(needed.values())
        while True:
            taken = await self._take(amount)
            try:
                fetched = await self.fetch(tenant, needed)
            except BaseException:
                self.release(taken)
                raise
            # Only a text tells what it becomes. What then has no room is forgotten, and loaded again in its turn.
            amount = min(sum(held.memory for held in fetched.values()), self._memory_max or 0)
            if amount - taken <= self._free:
                self._free -= amount - taken
                return fetched, amount
            self.release(taken)
            del fetched

    async def _take(self, amount: int) -> int:
        if self._memory_max is None:
            return 0
        amount = min(amount, self._memory_max)
        if not self._turns and amount <= self._free:
            self._free -= amount
            return amount
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._turns.append((amount, turn))
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await turn
        except BaseException as error:
            self.release(0 if turn.cancelled() else amount)
            if isinstance(error, TimeoutError):
                raise Unavailable("other nodes of this worker read large values; `limits.value_memory`") from None
            raise
        return amount

    def release(self, amount: int) -> None:
        """Give back what `read` has taken: others may have their turn."""
        self._free += amount
        while self._turns and (self._turns[0][1].cancelled() or self._turns[0][0] <= self._free):
            amount, turn = self._turns.popleft()
            if not turn.cancelled():
                self._free -= amount
                turn.set_result(None)

    async def fetch(self, tenant: str, digests: Iterable[str]) -> Fetched:
        """All of these values; loads the missing ones."""
        wanted = list(digests)
        absent = [digest for digest in wanted if (tenant, digest) not in self._held]
        loaded = await asyncio.gather(*(self._loaded(tenant, digest) for digest in absent))
        found = dict(zip(absent, loaded, strict=True))
        for digest in wanted:
            if digest not in found:
                found[digest] = self._held.get((tenant, digest)) or await self._loaded(tenant, digest)
        return found

    async def _loaded(self, tenant: str, digest: str) -> Held:
        """Load a value once for all that need it at the same time, such as the first items of a map."""
        loading = self._loading.get((tenant, digest))
        if loading is None:
            loading = self._loading[tenant, digest] = asyncio.ensure_future(self._load(tenant, digest))
            # Its error is that of those who wait, if there are any left.
            loading.add_done_callback(lambda done: done.cancelled() or done.exception())
        return await asyncio.shield(loading)

    async def _load(self, tenant: str, digest: str) -> Held:
        try:
            return self._keep(tenant, digest, await self._read(tenant, digest))
        finally:
            del self._loading[tenant, digest]

    async def _read(self, tenant: str, digest: str) -> bytes:
        """Read a blob. An error that an operator must fix is logged once, however often the blob is read."""
        try:
            text = await self._blobs.get(tenant, digest)
        except StoreUnusable as error:
            if (tenant, digest) not in self._lost:
                self._lost.add((tenant, digest))
                LOG.warning("%s; the node waits until it can be read", error)
            raise
        self._lost.discard((tenant, digest))
        return text

    def _keep(self, tenant: str, digest: str, text: bytes) -> Held:
        held = self._held[tenant, digest] = Held(text)
        self._bytes += held.memory
        # The newest stays, however large it is: the items of a map read it one after another.
        while self._bytes > self._bytes_max and len(self._held) > 1:
            _, oldest = self._held.popitem(last=False)
            self._bytes -= oldest.memory
        return held


def text_of(payload: Payload, fetched: Fetched) -> bytes:
    return fetched[payload.digest].text if isinstance(payload, BlobRef) else payload


def shared_value(payload: Payload, fetched: Fetched) -> Any:
    """The value behind a payload, for reading only."""
    return fetched[payload.digest].shared() if isinstance(payload, BlobRef) else decode_value(payload)


Lists = dict[tuple[str, int], list[Any]]
"""Decoded lists of maps by (node, visit): decoded once, not once per item."""


def outputs_of(items: MapState) -> list[Payload]:
    """The outputs of the items in index order; a tolerated failure's entry is its error envelope."""
    found = [(items.get(index) or QUEUED_ITEM).output for index in range(items.count)]
    return [output for output in found if output is not None]


LIST_BYTES_MAX = 64 << 20
READ_BYTES_MAX = 128 << 20
"""Of large values for one attempt, counted as often as they can be read: a handler gets copies."""
READ_MEMORY_MAX = 512 << 20
"""The same values, decoded."""


def list_size(items: MapState) -> int:
    """The bytes of a list, before its parts are loaded; raises if they are too many. Equal parts are stored once."""
    size = sum(output.size if isinstance(output, BlobRef) else len(output) for output in outputs_of(items))
    if size > LIST_BYTES_MAX:
        raise _list_too_large(f"the outputs of the items have more than {LIST_BYTES_MAX} bytes")
    return size


def _list_too_large(message: str) -> ExpressionError:
    hint = "return less from each item, or start a child for each of them"
    return ExpressionError(code="output_too_large", message=message, hint=hint)


def assembled(items: MapState, fetched: Fetched) -> bytes:
    text = b"[" + b",".join([text_of(output, fetched) for output in outputs_of(items)]) + b"]"
    if excess := json_excess(text):
        raise _list_too_large(f"the list of the items' outputs is too large: {excess}")
    return text


def item_of(lists: Lists, task: JobBody, items: MapState, fetched: Fetched) -> Any:
    key = (task.node, task.visit)
    if key not in lists:
        lists[key] = decode_value(text_of(items.items, fetched))
    return lists[key][task.index]


NOTHING_FETCHED: Fetched = {}

RUN_READER = Node(id="", type="")
"""The reader for the run's outputs: it is in no loop and sees every node as it ended."""


class SeenNodes(Mapping[str, Seen | Absent]):
    __slots__ = ("_ancestors", "_fetched", "_known", "_reader", "_state", "_workflow", "looked_at")

    def __init__(self, workflow: Workflow, state: State, reader: Node, fetched: Fetched) -> None:
        self._workflow, self._state, self._reader, self._fetched = workflow, state, reader, fetched
        self._known: dict[str, Seen | Absent] = {}
        self.looked_at: dict[str, Payload] = {}
        """The outputs that were read."""
        self._ancestors: set[str] | None = None

    def __getitem__(self, name: str) -> Seen | Absent:
        known = self._known.get(name)
        if known is None:
            if name not in self._workflow.by_id:
                raise KeyError(name)
            known = self._known[name] = self._look(name)
        return known

    def _look(self, name: str) -> Seen | Absent:
        if self._hidden(name):
            return Absent("is not an ancestor")
        seen = visible_output(self._workflow, self._state, self._reader, name)
        if isinstance(seen, str):
            visit = self._state.peek(name)
            ended = visit.status in ENDED and name not in self._reader.reads_past
            return Absent(seen, self._meta(visit, visit.status) if ended else {})
        if not fetched_before(seen.payload, self._fetched):
            return Absent("has not ended")
        self.looked_at[name] = seen.payload
        visit = self._state.peek(name)
        meta = self._meta(visit, seen.status) if seen.visit == visit.visit else {"status": seen.status}
        return Seen(shared_value(seen.payload, self._fetched), meta)

    def _meta(self, visit: Visit, status: str) -> dict[str, Any]:
        return {"status": status, "attempts": visit.attempt, "duration_ms": visit.duration_ms}

    def _hidden(self, name: str) -> bool:
        """Whether a computed reference names a node that is not an ancestor of the reader. Static ones were checked."""
        reader = self._reader
        if not reader.reads_all or name in reader.reads or name in reader.reads_past:
            return False
        if self._ancestors is None:
            self._ancestors = ancestors(self._workflow, reader.id)
        return name not in self._ancestors

    def __iter__(self) -> Iterator[str]:
        return iter(self._workflow.by_id)

    def __len__(self) -> int:
        return len(self._workflow.by_id)


def fetched_before(payload: Payload, fetched: Fetched) -> bool:
    """Whether a value was loaded; that of a node that ended after the attempt began may not be."""
    return not isinstance(payload, BlobRef) or payload.digest in fetched


class Upstream(Mapping[str, Any]):
    """Outputs of the parents whose edges were taken; looked up and decoded on first access."""

    __slots__ = ("_fetched", "_found", "_node", "_state", "_workflow")

    def __init__(self, workflow: Workflow, state: State, node: Node, fetched: Fetched) -> None:
        self._workflow, self._state, self._node, self._fetched = workflow, state, node, fetched
        self._found: dict[str, Payload] | None = None

    def _payloads(self) -> dict[str, Payload]:
        if self._found is None:
            found = upstream(self._workflow, self._state, self._node)
            self._found = {name: value for name, value in found.items() if fetched_before(value, self._fetched)}
        return self._found

    def __getitem__(self, name: str) -> Any:
        return decode_value(text_of(self._payloads()[name], self._fetched))

    def __iter__(self) -> Iterator[str]:
        return iter(self._payloads())

    def __len__(self) -> int:
        return len(self._payloads())


def scope_of(workflow: Workflow, state: State, run_id: str, reader: Node, fetched: Fetched = NOTHING_FETCHED) -> Scope:
    return Scope(
        nodes=SeenNodes(workflow, state, reader, fetched),
        inputs=shared_value(state.inputs, fetched),
        run={"id": run_id, "workflow": state.workflow, "version": state.version},
        iteration=iteration(state, reader),
    )


def blobs_of(workflow: Workflow, state: State, node: Node) -> Iterable[BlobRef]:
    """References to load before an attempt at `node` can be rendered and called."""
    for payload in _payloads(workflow, state, node):
        if isinstance(payload, BlobRef):
            yield payload


def needed_for(
    workflow: Workflow, state: State, node: Node, index: int = NOT_AN_ITEM, *, list_known: bool = False
) -> dict[str, int]:
    """Digests to load before an attempt at a node, or at an item of a map whose list may be known."""
    visit = state.peek(node.id)
    act, items = peek_at(visit, index) or QUEUED_ITEM, visit.map
    more: list[Payload | None] = [act.resumed, act.checkpoint]
    if items is not None and phase_of(node, visit, index) != "call":
        more += outputs_of(items)
    elif items is not None and not list_known:
        more.append(items.items)
    return digests_of([*blobs_of(workflow, state, node), *(ref for ref in more if isinstance(ref, BlobRef))])


def needed_for_outputs(workflow: Workflow, state: State) -> dict[str, int]:
    reader = msgspec.structs.replace(RUN_READER, reads=workflow.output_reads)
    return digests_of(list(blobs_of(workflow, state, reader)))


def digests_of(refs: list[BlobRef]) -> dict[str, int]:
    """What to load, with sizes; raises if that is too much."""
    if sum(ref.size for ref in refs) > READ_BYTES_MAX:
        raise _values_too_large(f"have more than {READ_BYTES_MAX} bytes")
    return {ref.digest: ref.size for ref in refs}


def check_memory(fetched: Fetched) -> Fetched:
    """Refuse values that would take too much memory once they are decoded."""
    if sum(held.memory for held in fetched.values()) > READ_MEMORY_MAX:
        raise _values_too_large(f"take more than {READ_MEMORY_MAX >> 20} MB of memory")
    return fetched


def _values_too_large(why: str) -> ExpressionError:
    message = f"the values that can be seen here {why}"
    return ExpressionError(code="values_too_large", message=message, hint="depend on fewer nodes, or return less")


def _payloads(workflow: Workflow, state: State, node: Node) -> Iterable[Payload]:
    yield state.inputs
    names: Iterable[str] = state.cells if node.reads_all else node.reads + node.reads_past
    for name in names:
        seen = visible_output(workflow, state, node, name)
        if isinstance(seen, VisibleOutput):
            yield seen.payload
    yield from upstream(workflow, state, node).values()


def all_payloads(state: State) -> Iterator[Payload]:
    """Every value that a run has at present: its inputs, and what its nodes were given and returned."""
    yield state.inputs
    for visit in items_merged(state.cells).values():
        yield from _own_payloads(visit)
        for previous in (visit.past or {}).values():
            if previous.output is not None:
                yield previous.output
        if visit.map is not None:
            yield visit.map.items
            for _, item in visit.map.known():
                yield from _own_payloads(item)


def _own_payloads(act: Activation) -> Iterator[Payload]:
    wait = act.wait
    found = (act.output, act.checkpoint, act.resumed, *((wait.output, wait.ask) if wait is not None else ()))
    return (payload for payload in found if payload is not None)


def rendered(value: Any, text: bytes, schema: Schema) -> Any:
    """A rendered config of this text, checked against its type's schema. Raises NotJson and ExpressionError."""
    check_text(value, text)
    # Rendering shares structure with the values it read; the handler gets a copy that it may change.
    config = decode_value(text)
    problems = () if schema.accepts(config) else schema.problems(config, "")
    if problems:
        hints = dict.fromkeys(problem.hint for problem in problems if problem.hint)
        message = "; ".join(problem.sentence for problem in problems)
        raise ExpressionError(code="config_invalid", message=message, hint="; ".join(hints))
    return config


def encoded(value: Any, mask: Mask) -> bytes:
    """The JSON text of a value with its secrets masked. Raises NotJson."""
    return checked(value, encode_text(value), mask)


def checked(value: Any, text: bytes, mask: Mask) -> bytes:
    """The text of a value with its secrets masked. Raises NotJson."""
    check_text(value, text)
    return text if mask is NO_MASK or not mask.is_in(text) else encode_value(mask.value(decode_value(text)))


def hidden(ended: Wait | Skip, mask: Mask) -> Wait | Skip:
    """A wait or skip with its secrets masked."""
    if not mask or not mask.is_in(msgspec.json.encode(ended)):
        return ended
    shown: Wait | Skip = msgspec.convert(mask.value(msgspec.to_builtins(ended)), type(ended))
    return shown


def masked(failed: Failed, mask: Mask) -> Failed:
    error = failed.error
    hidden = msgspec.structs.replace(
        error,
        code=mask.text(error.code),
        message=mask.text(error.message),
        type=mask.text(error.type),
        hint=mask.text(error.hint),
        causes=tuple(mask.text(cause) for cause in error.causes),
        traceback=mask.text(error.traceback),
    )
    return msgspec.structs.replace(failed, error=hidden)
