"""The composite tools of a tenant: one stream per shape of a pipeline, whose row says what the tool is now.

Agents only count uses; people list, rename, pin and retire. A retired tool is neither found nor called, and its shape
is not promoted again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tidemill.agents.port import CompositeTool
from tidemill.agents.promotion import Lifted, ToolChanged, ToolHistory, ToolRecord
from tidemill.engine.corruption import require_intact
from tidemill.engine.services.context import ServiceContext
from tidemill.engine.validation import check_words
from tidemill.errors import Unavailable, offered, rejected
from tidemill.stores.contract import Commit, Committed, Row, Stream, Tail

TOOL = "tool"
PROMOTED = "promoted"
RACES_MAX = 16
TOOLS_MAX = 1_000
"""Promoted tools that a search looks through."""
DESCRIPTION_MAX = 2_000

_NAME = re.compile(r"[a-z][a-z0-9-]{0,63}")
_ENCODE = msgspec.msgpack.Encoder().encode
_RECORD: msgspec.msgpack.Decoder[ToolRecord] = msgspec.msgpack.Decoder(ToolRecord)
_HISTORY = msgspec.msgpack.Decoder(ToolHistory)


def fold(shape: str, records: Sequence[bytes]) -> ToolHistory:
    history = ToolHistory(shape=shape)
    for record in records:
        history.add(_RECORD.decode(record))
    return history


def _row(history: ToolHistory) -> Row:
    terms = [f"name:{history.name}"]
    if history.versions:
        terms.append("retired" if history.retired else PROMOTED)
    return Row(kind=TOOL, key=history.shape, sort=history.updated_ms, terms=tuple(terms), body=_ENCODE(history))


def tool_rows(tail: Tail) -> Sequence[Row]:
    """The row that the records of a shape call for."""
    return [_row(fold(tail.stream.key, tail.records))] if tail.records else []


STREAM_KINDS: Mapping[str, Callable[[Tail], Sequence[Row]]] = {TOOL: tool_rows}


class CompositeToolService:
    """List, look up and change the composite tools of a tenant."""

    def __init__(self, context: ServiceContext) -> None:
        self._context = context

    async def used(self, use: Lifted, key: str) -> CompositeTool | None:
        """Count a use of a pipeline, once per key; returns the tool that the pipeline has become, if any."""
        for _ in range(RACES_MAX):
            history, version = await self._load(use.shape)
            record = history.used(use, key, self._context.store.now_ms())
            if record is None or await self._commit(history, version, record):
                return None if history.retired else history.tool()
        # A count that is lost in a race comes with a later use.
        return None

    async def find(self, *, retired: bool = False, limit: int = 100) -> list[CompositeTool]:
        """The composite tools, most recently changed first."""
        return (await self.page(retired=retired, after=None, limit=limit))[0]

    async def page(self, *, retired: bool, after: str | None, limit: int) -> tuple[list[CompositeTool], str | None]:
        """A page of them, and the cursor of the next one."""
        page = await self._context.page(TOOL, ["retired" if retired else PROMOTED], after, limit)
        found = [tool for row in page.rows if (tool := _HISTORY.decode(row.body).tool()) is not None]
        return found, page.after

    async def get(self, reference: str) -> CompositeTool | None:
        """A tool by `name` or `name@version`; None if there is none or it is retired."""
        name, _, number = reference.partition("@")
        history = await self._named(name)
        if history is None or history.retired or (number and not number.isdecimal()):
            return None
        return history.tool(int(number) if number else None)

    async def show(self, reference: str) -> CompositeTool:
        """A tool by `name` or `name@version`, also a retired one."""
        name, _, number = reference.partition("@")
        history = await self._known(name)
        tool = history.tool(int(number)) if number.isdecimal() else history.tool() if not number else None
        if tool is None:
            message = f"the tool {name} has versions 1 to {len(history.versions)}, not {number[:20]}"
            raise rejected("tool_unknown", message, path="/version", hint="see `tidemill tools show`")
        return tool

    async def rename(
        self, name: str, new_name: str, *, description: str | None = None, actor: str = ""
    ) -> CompositeTool:
        """Rename a tool, and optionally change its description."""
        if not _NAME.fullmatch(new_name):
            hint = "a letter, then letters, digits and -, at most 64"
            raise rejected("bad_name", f"{new_name[:80]!r} cannot be the name of a tool", path="/name", hint=hint)
        if description is not None:
            check_words(DESCRIPTION_MAX, message=description)
        other = await self._named(new_name)
        if other is not None and other.name != name:
            raise rejected("tool_name_taken", f"there is a tool {new_name} already", path="/name")
        return await self._change(name, "rename", actor, name=new_name, description=description)

    async def pin(self, name: str, *, pinned: bool = True, actor: str = "") -> CompositeTool:
        """Pin a tool to its version, or unpin it."""
        return await self._change(name, "pin" if pinned else "unpin", actor, pinned=pinned)

    async def retire(self, name: str, *, retired: bool = True, actor: str = "") -> CompositeTool:
        """Retire a tool, or make it available again."""
        return await self._change(name, "retire" if retired else "restore", actor, retired=retired)

    async def _change(self, name: str, command: str, actor: str, /, **changes: Any) -> CompositeTool:
        check_words(actor=actor)
        self._context.check_actor(actor)
        for _ in range(RACES_MAX):
            shape = (await self._known(name)).shape
            history, version = await self._load(shape)
            now_ms = self._context.store.now_ms()
            record = ToolChanged(actor=actor, at_ms=now_ms, **changes)
            encoded = _ENCODE(record)
            audit = self._context.audit_rows(
                self._stream(shape), version + 1, encoded, actor=actor, command=command, at_ms=now_ms, detail=name
            )
            if await self._commit(history, version, record, audit):
                tool = history.tool()
                assert tool is not None, "it was found by its name"
                return tool
        raise Unavailable(f"the tool {name} is being changed by too many callers at once")

    # The store

    def _stream(self, shape: str) -> Stream:
        return Stream(self._context.tenant, TOOL, shape)

    async def _load(self, shape: str) -> tuple[ToolHistory, int]:
        (tail,) = await self._context.store.load({self._stream(shape): 0}, snapshots=False)
        intact = require_intact(tail)
        return fold(shape, intact.records), intact.version

    async def _commit(
        self, history: ToolHistory, version: int, record: ToolRecord, audit: tuple[Row, ...] = ()
    ) -> bool:
        """Write the record that follows; false when another writer was faster."""
        history.add(record)
        stream, rows = self._stream(history.shape), (_row(history), *audit)
        (result,) = await self._context.store.commit([Commit(stream, version, (_ENCODE(record),), rows=rows)])
        return isinstance(result, Committed)

    async def _named(self, name: str) -> ToolHistory | None:
        page = await self._context.page(TOOL, [f"name:{name}"], None, 10)
        return next((each for row in page.rows if (each := _HISTORY.decode(row.body)).versions), None)

    async def _known(self, name: str) -> ToolHistory:
        history = await self._named(name)
        if history is None:
            names = [tool.name for tool in await self.find(limit=TOOLS_MAX)]
            raise rejected("tool_unknown", f"there is no composite tool {name[:80]}", hint=offered(name, names))
        return history
