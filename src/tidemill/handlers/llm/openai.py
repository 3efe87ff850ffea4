"""The provider `openai`: OpenAI's chat completions, which most other endpoints and local servers speak too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.handlers.llm.endpoint import Assembly, BrokenOff, WireFormat, endpoint_provider
from tidemill.handlers.llm.provider import OPENAI_URL, Ask, Message, Question, Settings, ToolSpec, Usage
from tidemill.net.http_client import Fetcher

# The request.

_OWN = ("role", "content", "name", "tool_call_id")


def body_of(question: Question) -> dict[str, Any]:
    settings = question.settings
    body: dict[str, Any] = {**settings.extra, "model": settings.model}
    passed_on = {name: getattr(settings, name) for name in ("temperature", "top_p", "stop", "seed")}
    body |= {name: value for name, value in passed_on.items() if value is not None}
    at_openai = settings.url.rstrip("/") == OPENAI_URL
    if settings.max_tokens is not None:
        # Newer models of OpenAI require the new name of the field; other endpoints only know the old one.
        body["max_completion_tokens" if at_openai else "max_tokens"] = settings.max_tokens
    if question.form is not None and settings.response_format == "json_schema":
        wanted = {"name": "answer", "schema": question.form, "strict": settings.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif question.form is not None and settings.response_format == "json_object":
        body["response_format"] = {"type": "json_object"}
    if question.logprobs:
        body["logprobs"] = True
    if question.stream:
        body["stream_options"] = {"include_usage": True}
    body |= tool_fields(question, _tool, lambda name: {"type": "function", "function": {"name": name}})
    if question.cache_key and at_openai:
        body["prompt_cache_key"] = question.cache_key[-64:]
    return body | {"stream": question.stream, "messages": [_message(each) for each in question.conversation]}


def tool_fields(
    question: Question, tool: Callable[[ToolSpec], Any], choice: Callable[[str], dict[str, Any]]
) -> dict[str, Any]:
    """The fields of a request about tools, as both protocols of OpenAI have them."""
    if not question.tools:
        return {}
    fields: dict[str, Any] = {"tools": [tool(each) for each in question.tools]}
    if question.tool_choice in ("none", "required"):
        fields["tool_choice"] = question.tool_choice
    elif question.tool_choice != "auto":
        fields["tool_choice"] = choice(question.tool_choice)
    return fields if question.parallel_tool_calls else fields | {"parallel_tool_calls": False}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.schema}
    return {"type": "function", "function": function | {"strict": True} if tool.strict else function}


def _message(message: Message) -> Message:
    own = {key: message[key] for key in _OWN if key in message}
    if calls := message.get("tool_calls"):
        own["content"] = own.get("content") or None
        own["tool_calls"] = [
            {"id": each["id"], "type": "function", "function": {"name": each["name"], "arguments": each["arguments"]}}
            for each in calls
        ]
    return own


def bearer(settings: Settings) -> dict[str, str]:
    return {"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {}


# The answer.


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None
    """A text; a value from some local servers."""

    def text(self) -> str | None:
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments
        return msgspec.json.encode(self.arguments).decode()


class _Call(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Text(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None


class _Token(msgspec.Struct):
    token: str
    logprob: float


class _Tokens(msgspec.Struct):
    content: list[_Token] | None = None


class _Choice(msgspec.Struct):
    message: _Text | None = None
    delta: _Text | None = None
    finish_reason: str | None = None
    logprobs: _Tokens | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Used(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None

    def usage(self) -> Usage:
        cached = self.prompt_tokens_details.cached_tokens if self.prompt_tokens_details else None
        given, made = self.prompt_tokens or 0, self.completion_tokens or 0
        return Usage(input_tokens=given, output_tokens=made, cached_tokens=cached or 0)


class _Completion(msgspec.Struct):
    """A response, or one event of a streamed response."""

    choices: list[_Choice] | None = None
    model: str | None = None
    usage: _Used | None = None
    error: Any = None


def _read(body: bytes, assembly: Assembly) -> None:
    completion = msgspec.json.decode(body, type=_Completion)
    if not completion.choices and not completion.error:
        raise ValueError("it has no choices")
    _add(completion, assembly, whole=True)


def _read_event(data: str, assembly: Assembly) -> bool:
    if data.startswith("[DONE]"):
        return True
    _add(msgspec.json.decode(data, type=_Completion), assembly, whole=False)
    return False


def _add(part: _Completion, assembly: Assembly, *, whole: bool) -> None:
    if part.error:
        raise BrokenOff(part.error)
    assembly.model = part.model or assembly.model
    assembly.usage = part.usage.usage() if part.usage is not None else assembly.usage
    for choice in (part.choices or [])[:1]:
        text = choice.delta or choice.message or _Text()
        assembly.add_text(text.content)
        assembly.add_refusal(text.refusal)
        for number, call in enumerate(text.tool_calls or ()):
            function = call.function or _Function()
            assembly.add_call(number if whole else call.index, call.id, function.name, function.text())
        assembly.finish_reason = choice.finish_reason or assembly.finish_reason
        tokens = choice.logprobs.content if choice.logprobs is not None else None
        assembly.tokens += [(each.token, each.logprob) for each in tokens or ()]


CHAT_COMPLETIONS = WireFormat(
    title="an OpenAI-compatible endpoint",
    path="/chat/completions",
    credentials=bearer,
    body=body_of,
    dispensable={
        "response_format": ("response_format", "json_schema"),
        "logprobs": ("logprobs",),
        "stream_options": ("stream_options",),
        "parallel_tool_calls": ("parallel_tool_calls",),
        "prompt_cache_key": ("prompt_cache_key",),
    },
    read=_read,
    read_event=_read_event,
)


def openai_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    return endpoint_provider(CHAT_COMPLETIONS, fetcher, now_ms)
