"""An endpoint on loopback that speaks the OpenAI protocol: it answers what a test tells it to, turn by turn."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from tests.handlers.kit import called
from tests.security.web import Asked, Cut, Script, Web, Writer, json_reply, raw, web
from tidemill.handlers.contract import Fail, Handler, Return
from tidemill.handlers.llm.openai import openai_provider
from tidemill.handlers.llm.provider import Providers, scripted
from tidemill.net.egress import Egress
from tidemill.net.http_client import Fetcher

PATH = "/v1/chat/completions"
NOW_MS = 1_700_000_000_000
USED = {"prompt_tokens": 10, "completion_tokens": 4, "total_tokens": 14}
SSE_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def says(text: str | None, finish: str = "stop", usage: Any = USED, **choice: Any) -> Script:
    """A whole answer."""
    message = {"role": "assistant", "content": text, **choice.pop("message", {})}
    body = {
        "id": "c-1",
        "object": "chat.completion",
        "model": "tiny-2026",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, **choice}],
        "usage": usage,
    }
    return json_reply(body)


def refuses(status: int, message: str = "no", code: str | None = None, **headers: str) -> Script:
    """An error as the protocol has it."""
    error = {"message": message, "type": "some_error", "param": None, "code": code}
    return json_reply({"error": error}, status, **headers)


def event(value: Any) -> bytes:
    text = value if isinstance(value, bytes) else msgspec.json.encode(value)
    return b"data: " + text + b"\n\n"


def piece(text: str | None = None, finish: str | None = None) -> bytes:
    delta = {} if text is None else {"content": text}
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return event({"object": "chat.completion.chunk", "model": "tiny-2026", "choices": choices})


END = event({"model": "tiny-2026", "choices": [], "usage": USED}) + event(b"[DONE]")


def streams(*parts: str | bytes | float, finish: str | None = "stop") -> Script:
    """An answer in parts; a number is a pause in seconds, and without `finish` the connection just ends."""
    sent = [piece(part) if isinstance(part, str) else part for part in parts]
    ending = [piece(finish=finish), END] if finish else []
    return ends(raw(SSE_HEAD, *sent, *ending))


def ends(script: Script) -> Script:
    """A script after which the connection is closed."""

    async def run(asked: Asked, write: Writer) -> None:
        await script(asked, write)
        raise Cut

    return run


@dataclass
class Endpoint:
    """A model behind an address, and what it was asked."""

    served: Web
    fetcher: Fetcher
    turns: list[Script]

    @property
    def url(self) -> str:
        return self.served.url("/v1")

    @property
    def bodies(self) -> list[dict[str, Any]]:
        return [msgspec.json.decode(asked.body) for asked in self.served.asked]

    @property
    def providers(self) -> Providers:
        return {"openai": openai_provider(self.fetcher, lambda: NOW_MS), "scripted": scripted}

    def config(self, **fields: Any) -> dict[str, Any]:
        return {"model": "tiny", "base_url": self.url, **fields}


@asynccontextmanager
async def endpoint(*turns: Script) -> AsyncIterator[Endpoint]:
    """A model that gives these answers, one after the other, and the last one again."""
    left = list(turns)

    async def next_turn(asked: Asked, write: Writer) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, write)

    fetcher = Fetcher(Egress(allow=("127.0.0.1:*",)))
    async with web({PATH: next_turn}) as served:
        yield Endpoint(served, fetcher, left)
    await fetcher.close()


async def output(handler: Handler, config: Any, **fields: Any) -> dict[str, Any]:
    ended = await called(handler, config, **fields)
    assert isinstance(ended, Return)
    found: dict[str, Any] = ended.value
    return found


async def failure(handler: Handler, config: Any, **fields: Any) -> Fail:
    with pytest.raises(Fail) as failed:
        await called(handler, config, **fields)
    return failed.value
