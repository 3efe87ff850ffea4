"""The provider `openai_responses`: OpenAI's Responses, without state at the provider.

Nothing is stored there (`store: false`), so each question holds the whole conversation. In a conversation with tools,
the items in which a model has reasoned come back encrypted and are sent again unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.handlers.llm.endpoint import Assembly, BrokenOff, WireFormat, endpoint_provider
from tidemill.handlers.llm.openai import bearer, tool_fields
from tidemill.handlers.llm.provider import OPENAI_URL, Ask, Message, Question, ToolSpec, Usage
from tidemill.net.http_client import Fetcher

NAME = "openai_responses"

# The request.


def body_of(question: Question) -> dict[str, Any]:
    settings = question.settings
    body: dict[str, Any] = {"store": False, **settings.extra, "model": settings.model}
    passed_on = {"temperature": settings.temperature, "top_p": settings.top_p, "max_output_tokens": settings.max_tokens}
    body |= {name: value for name, value in passed_on.items() if value is not None}
    if question.form is not None and settings.response_format != "none":
        body["text"] = {**settings.extra.get("text", {}), "format": _format(question)}
    included = ["reasoning.encrypted_content"] if question.tools else []
    included += ["message.output_text.logprobs"] if question.logprobs else []
    if included:
        body["include"] = [*settings.extra.get("include", ()), *included]
    body |= tool_fields(question, _tool, lambda name: {"type": "function", "name": name})
    if question.cache_key and settings.url.rstrip("/") == OPENAI_URL:
        body["prompt_cache_key"] = question.cache_key[-64:]
    items = [item for message in question.conversation for item in _items(message, settings.model)]
    return body | {"stream": question.stream, "input": items}


def _format(question: Question) -> dict[str, Any]:
    settings = question.settings
    if settings.response_format == "json_object":
        return {"type": "json_object"}
    return {"type": "json_schema", "name": "answer", "schema": question.form, "strict": settings.strict}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    # Without `strict` the provider would enforce a stricter schema than this one.
    described = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", **described, "strict": tool.strict}


def _items(message: Message, model: str) -> Iterator[dict[str, Any]]:
    """A message as items of the input: text, calls and results are items of their own."""
    native, role = message.get("native"), message.get("role")
    if native and (native["provider"], native["model"]) == (NAME, model):
        yield from native["content"]
        return
    if role == "tool":
        output = _content(message["content"], role)
        yield {"type": "function_call_output", "call_id": message["tool_call_id"], "output": output}
        return
    if message.get("content"):
        yield {"role": role, "content": _content(message["content"], role)}
    for call in message.get("tool_calls", ()):
        yield {"type": "function_call", "call_id": call["id"], "name": call["name"], "arguments": call["arguments"]}


def _content(content: Any, role: Any) -> Any:
    """The parts of chat completions as those of Responses; others are passed on."""
    if isinstance(content, str):
        return content
    parts: list[Any] = []
    for part in content:
        match part:
            case {"type": "text", "text": text}:
                parts.append({"type": "output_text" if role == "assistant" else "input_text", "text": text})
            case {"type": "image_url", "image_url": {"url": url}}:
                parts.append({"type": "input_image", "image_url": url})
            case _:
                parts.append(part)
    return parts


# The answer.


class _Token(msgspec.Struct):
    token: str
    logprob: float


class _Content(msgspec.Struct):
    type: str = ""
    text: str | None = None
    refusal: str | None = None
    logprobs: list[_Token] | None = None


class _Item(msgspec.Struct):
    type: str = ""
    content: list[_Content] | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    encrypted_content: str | None = None
    """Of reasoning."""
    phase: str | None = None
    """Of a message before the last one; a model that gives it wants it back."""


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Used(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    input_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        cached = self.input_tokens_details.cached_tokens if self.input_tokens_details else None
        given, made = self.input_tokens or 0, self.output_tokens or 0
        return Usage(input_tokens=given, output_tokens=made, cached_tokens=cached or 0)


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class _Response(msgspec.Struct):
    status: str | None = None
    output: list[dict[str, Any]] | None = None
    model: str | None = None
    usage: _Used | None = None
    incomplete_details: _Incomplete | None = None
    error: Any = None


class _Event(msgspec.Struct):
    type: str = ""
    delta: Any = None
    output_index: int = 0
    item: dict[str, Any] | None = None
    response: _Response | None = None
    error: Any = None
    code: str | None = None
    message: str | None = None


_LAST = ("response.completed", "response.incomplete", "response.failed")
_BEGINNING = (
    *("response.function_call_arguments.delta", "response.refusal.delta"),
    *("response.reasoning_text.delta", "response.reasoning_summary_text.delta"),
)
"""Events that show that the model answers; what they hold is also in the whole response."""
_REASONS = {"max_output_tokens": "length"}
_KNOWN = ("message", "function_call", "reasoning")


def _read(body: bytes, assembly: Assembly) -> None:
    response = msgspec.json.decode(body, type=_Response)
    if response.output is None and not response.error:
        raise ValueError("it has no output")
    _finish(response, assembly)


def _read_event(data: str, assembly: Assembly) -> bool:
    if data.startswith("[DONE]"):
        return True
    event = msgspec.json.decode(data, type=_Event)
    match event.type:
        case "error":
            raise BrokenOff(event.error or {"code": event.code, "message": event.message})
        case "response.output_text.delta" if isinstance(event.delta, str):
            assembly.add_text(event.delta)
        case kind if kind in _BEGINNING:
            assembly.begin()
        case "response.output_item.done" if event.item is not None:
            assembly.parts[event.output_index] = event.item
        case last if last in _LAST:
            _finish(event.response or _Response(), assembly)
            return True
    return False


def _finish(response: _Response, assembly: Assembly) -> None:
    """Take the reply from the whole response; some endpoints end a stream with one that lacks the output."""
    if response.error or response.status == "failed":
        raise BrokenOff(response.error or {"message": "the response failed"})
    raw = response.output or [assembly.parts[index] for index in sorted(assembly.parts)]
    items = [msgspec.convert(item, _Item) for item in raw if item.get("type") in _KNOWN]
    contents = [content for item in items if item.type == "message" for content in item.content or ()]
    text = "".join(content.text or "" for content in contents if content.type == "output_text")
    if text:
        assembly.replace_text(text)
    for content in contents:
        assembly.add_refusal(content.refusal)
        assembly.tokens += [(each.token, each.logprob) for each in content.logprobs or ()]
    for index, item in enumerate(items):
        if item.type == "function_call":
            assembly.add_call(index, item.call_id, item.name, item.arguments)
    if any(item.encrypted_content or item.phase for item in items):
        assembly.native = list(_returned(raw))
    assembly.model = response.model or assembly.model
    assembly.usage = response.usage.usage() if response.usage is not None else None
    reason = response.incomplete_details.reason if response.incomplete_details is not None else None
    done = "tool_calls" if assembly.calls else "stop"
    assembly.finish_reason = done if reason is None else _REASONS.get(reason, reason)


def _returned(raw: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The items that are sent again; without its encrypted content, reasoning means nothing to the provider."""
    for item in raw:
        if item.get("type") in ("message", "function_call") or item.get("encrypted_content"):
            yield {key: value for key, value in item.items() if key != "status"}


RESPONSES = WireFormat(
    title="an endpoint of OpenAI's Responses",
    path="/responses",
    credentials=bearer,
    body=body_of,
    dispensable={
        "text": ("text.format", "json_schema", "response_format"),
        "include": ('"include"', "'include", "ncrypted content", "logprobs"),
        "parallel_tool_calls": ("parallel_tool_calls",),
        "prompt_cache_key": ("prompt_cache_key",),
    },
    read=_read,
    read_event=_read_event,
    remembered=frozenset({"include"}),
)


def openai_responses_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    return endpoint_provider(RESPONSES, fetcher, now_ms)
