"""Where handlers are called: prepared for, overheard, and cleaned up after."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from functools import partial
from typing import Any

from tidemill.blobs.payloads import decode_value
from tidemill.engine.calls import guarded
from tidemill.expressions.schema import Schema, compile_schema
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext
from tidemill.observe.overhearing import EAR, Ear

LOG = logging.getLogger(__name__)


class Stage:
    """The handlers that this process has opened."""

    def __init__(self) -> None:
        self._opened: dict[str, asyncio.Task[BaseException | None]] = {}
        self._handlers: list[Handler] = []
        self._schemas: dict[tuple[str, str], Schema] = {}

    def schema(self, handler: Handler) -> Schema:
        """What a config of this type must look like, compiled once."""
        return self._compiled("config", handler, handler.type.config_schema)

    def check_output(self, handler: Handler, text: bytes) -> None:
        """Raise `Fail` unless a result, as it will be stored, is what its type has promised."""
        schema = self._compiled("output", handler, handler.type.output_schema)
        _check(schema, decode_value(text), "output_invalid", f"the result is not what {handler.type.key} promises")

    def _check_input(self, handler: Handler, context: NodeContext) -> None:
        schema = self._compiled("input", handler, handler.type.input_schema)
        said = f"the nodes before it do not give what {handler.type.key} expects"
        _check(schema, dict(context.upstream), "input_invalid", said)

    def _compiled(self, part: str, handler: Handler, source: Any) -> Schema:
        known = self._schemas.get((part, handler.type.key))
        if known is None:
            known = self._schemas[part, handler.type.key] = compile_schema(source)
        return known

    def call(self, handler: Handler, context: NodeContext, ear: Ear) -> tuple[Context, Ended | Awaitable[Ended]]:
        """Call a handler where it is overheard; what is to be awaited must be awaited in the context given back."""
        if handler.type.input_schema is not True:
            self._check_input(handler, context)
        ground = copy_context()
        ground.run(EAR.set, ear)
        if handler.staged:
            return ground, self._staged(handler, context)
        if handler.close is not None and handler not in self._handlers:
            self._handlers.append(handler)
        return ground, ground.run(handler.call, context)

    async def close(self) -> None:
        """Close what was opened; one that fails to does not keep the others."""
        handlers, self._handlers, self._opened = self._handlers, [], {}
        for handler in reversed(handlers):
            if handler.close is not None and (error := await guarded(_taken(handler.close))) is not None:
                LOG.error("%s could not be closed", handler.type.key, exc_info=error)

    async def _staged(self, handler: Handler, context: NodeContext) -> Ended:
        await self._open(handler)
        try:
            if handler.prepare is not None:
                await _taken(partial(handler.prepare, context))
            ended = handler.call(context)
            return await ended if inspect.isawaitable(ended) else ended
        finally:
            if handler.finish is not None:
                error = await guarded(_taken(partial(handler.finish, context)))
                if error is not None:
                    # What the call came to stands: an effect that has happened is not made again for this.
                    LOG.error("%s could not finish", handler.type.key, exc_info=error)

    async def _open(self, handler: Handler) -> None:
        """Open a handler before its first attempt; those that come meanwhile wait, and a failure is tried again."""
        if handler.open is None and handler.close is None:
            return
        key = handler.type.key
        if key not in self._opened:
            # What is opened serves all attempts, so the first one does not hear what it says later.
            ground = copy_context()
            ground.run(EAR.set, None)
            self._opened[key] = asyncio.create_task(self._begin(handler), name=f"tidemill-open-{key}", context=ground)
        error = await asyncio.shield(self._opened[key])
        if error is not None:
            raise error

    async def _begin(self, handler: Handler) -> BaseException | None:
        error = None if handler.open is None else await guarded(_taken(handler.open))
        if error is None:
            self._handlers.append(handler)
        else:
            del self._opened[handler.type.key]
        return error


def _check(schema: Schema, value: Any, code: str, said: str) -> None:
    if not schema.accepts(value):
        first = schema.problems(value)[0]
        raise Fail(code, f"{said}: {first.sentence}", hint=first.hint)


async def _taken(step: Callable[[], Awaitable[None] | None]) -> None:
    pending = step()
    if pending is not None:
        await pending
