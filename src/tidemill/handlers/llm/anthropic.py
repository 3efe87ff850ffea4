"""The provider `anthropic`: Anthropic's messages, and other endpoints that speak this protocol.

A message is a list of blocks here: tool calls are blocks of the assistant's turn, their results blocks of the user's.
Blocks in which a model has thought are sent again unchanged. `cache_control` marks where a prefix of the prompt ends
that the provider caches; its order is tools, instructions, messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.handlers.llm.endpoint import Assembly, BrokenOff, WireFormat, endpoint_provider
from tidemill.handlers.llm.provider import Ask, Message, Question, Settings, ToolCall, ToolSpec, Usage
from tidemill.net.http_client import Fetcher

NAME = "anthropic"
VERSION = "2023-06-01"
MAX_TOKENS = 8_192
"""Sent if the config does not limit the answer, because the protocol demands a limit."""
MARK = {"type": "ephemeral"}
Block = dict[str, Any]

# The request.


def body_of(question: Question) -> dict[str, Any]:
    settings = question.settings
    system, messages, stable = _turns(question)
    body: dict[str, Any] = {**settings.extra, "model": settings.model, "max_tokens": settings.max_tokens or MAX_TOKENS}
    stop = [settings.stop] if isinstance(settings.stop, str) else settings.stop
    passed_on = {"temperature": settings.temperature, "top_p": settings.top_p, "stop_sequences": stop}
    body |= {name: value for name, value in passed_on.items() if value is not None}
    if question.form is not None and settings.response_format == "json_schema":
        wanted = {"type": "json_schema", "schema": question.form}
        body["output_config"] = {**settings.extra.get("output_config", {}), "format": wanted}
    if question.tools:
        body |= {"tools": [_tool(each) for each in question.tools], "tool_choice": _choice(question)}
    if system:
        body["system"] = system
    if question.cached:
        _mark(stable or system or body.get("tools", []), messages)
    return body | {"stream": question.stream, "messages": messages}


def _tool(tool: ToolSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"name": tool.name, "description": tool.description, "input_schema": tool.schema}
    return described | {"strict": True} if tool.strict else described


def _choice(question: Question) -> dict[str, Any]:
    kinds = {"auto": "auto", "none": "none", "required": "any"}
    kind = kinds.get(question.tool_choice)
    choice: dict[str, Any] = {"type": "tool", "name": question.tool_choice} if kind is None else {"type": kind}
    if not question.parallel_tool_calls and kind != "none":
        choice["disable_parallel_tool_use"] = True
    return choice


def _mark(stable: list[Block], messages: list[Message]) -> None:
    """Mark the end of the stable prefix and the ends of the last two turns of the user.

    The next question finds what this one has cached at its second last turn, however many blocks lie between.
    """
    asked = [message["content"][-1] for message in messages if message["role"] == "user"]
    for block in (*stable[-1:], *asked[-2:]):
        block["cache_control"] = MARK


def _turns(question: Question) -> tuple[list[Block], list[Message], list[Block]]:
    """The instructions at the beginning, the messages, and the blocks of those that are stable.

    What follows of the same side is one message.
    """
    system: list[Block] = []
    turns: list[Message] = []
    stable: list[Block] = []
    for index, message in enumerate(question.conversation):
        role = message.get("role")
        blocks = _blocks(message)
        if role in ("system", "developer") and not turns:
            system += blocks
            continue
        stable += blocks if index < question.stable else []
        side = "assistant" if role == "assistant" else "user"
        if turns and turns[-1]["role"] == side:
            turns[-1]["content"] += blocks
        elif blocks:
            turns.append({"role": side, "content": blocks})
    return system, turns, stable


def _blocks(message: Message) -> list[Block]:
    native = message.get("native")
    if native and native["provider"] == NAME:
        return [*native["content"]]
    content = _content(message.get("content"))
    if message.get("role") == "tool":
        result: Block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
        if message.get("error"):
            # The provider wants to be told what is wrong.
            return [result | {"is_error": True, "content": content or [{"type": "text", "text": "it failed"}]}]
        return [result | {"content": content} if content else result]
    calls = [ToolCall(each["id"], each["name"], each["arguments"]) for each in message.get("tool_calls", ())]
    return [*content, *map(_tool_use, calls)]


def _tool_use(call: ToolCall) -> Block:
    return {"type": "tool_use", "id": call.id, "name": call.name, "input": msgspec.json.decode(call.object_text())}


def _content(content: Any) -> list[Block]:
    """The parts of chat completions as blocks; others are passed on. The provider refuses texts without a letter."""
    if content is None or isinstance(content, str):
        return [{"type": "text", "text": content}] if content and content.strip() else []
    blocks: list[Block] = []
    for part in content:
        match part:
            case {"type": "text", "text": str(text)} if not text.strip():
                pass
            case {"type": "image_url", "image_url": {"url": str(url)}}:
                blocks.append({"type": "image", "source": _image(url)})
            case _:
                blocks.append(dict(part))
    return blocks


def _image(url: str) -> dict[str, Any]:
    head, comma, data = url.partition(",")
    if comma and head.startswith("data:") and head.endswith(";base64"):
        return {"type": "base64", "media_type": head.removeprefix("data:").removesuffix(";base64"), "data": data}
    return {"type": "url", "url": url}


def _credentials(settings: Settings) -> dict[str, str]:
    key = {"x-api-key": settings.api_key} if settings.api_key else {}
    return {"anthropic-version": VERSION, **key}


# The answer.


class _Block(msgspec.Struct):
    type: str = ""
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: Any = None


class _Used(msgspec.Struct):
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Answer(msgspec.Struct):
    content: list[dict[str, Any]] | None = None
    model: str | None = None
    stop_reason: str | None = None
    usage: _Used | None = None
    error: Any = None


class _Delta(msgspec.Struct):
    type: str = ""
    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class _Event(msgspec.Struct):
    type: str = ""
    index: int = 0
    message: _Answer | None = None
    content_block: dict[str, Any] | None = None
    delta: _Delta | None = None
    usage: _Used | None = None
    error: Any = None


class _Part:
    """A block whose content arrives in pieces."""

    __slots__ = ("block", "kind", "pieces", "signature")

    def __init__(self, block: dict[str, Any], kind: str) -> None:
        self.block, self.kind, self.signature = block, kind, ""
        self.pieces: list[str] = []


_REASONS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
}
_THOUGHTS = ("thinking", "redacted_thinking")


def _read(body: bytes, assembly: Assembly) -> None:
    answer = msgspec.json.decode(body, type=_Answer)
    if answer.error:
        raise BrokenOff(answer.error)
    if answer.content is None:
        raise ValueError("it has no content")
    _begin(answer, assembly)
    for index, block in enumerate(answer.content):
        _begin_block(index, block, assembly)
    _finish(answer.stop_reason, None, assembly)


def _read_event(data: str, assembly: Assembly) -> bool:
    event = msgspec.json.decode(data, type=_Event)
    match event.type:
        case "error":
            raise BrokenOff(event.error or {"message": "the provider does not say why"})
        case "message_start" if event.message is not None:
            _begin(event.message, assembly)
        case "content_block_start" if event.content_block is not None:
            _begin_block(event.index, event.content_block, assembly)
        case "content_block_delta" if event.delta is not None:
            _continue_block(event.index, event.delta, assembly)
        case "message_delta":
            _finish(event.delta.stop_reason if event.delta is not None else None, event.usage, assembly)
    return event.type == "message_stop"


def _begin(answer: _Answer, assembly: Assembly) -> None:
    assembly.model = answer.model or assembly.model
    _count(answer.usage, assembly)


def _begin_block(index: int, raw: dict[str, Any], assembly: Assembly) -> None:
    block = msgspec.convert(raw, _Block)
    assembly.parts[index] = _Part(raw, block.type)
    if block.type == "text":
        _continue_block(index, _Delta(text=block.text), assembly)
    elif block.type == "tool_use":
        # In a stream the arguments follow; until then they are empty.
        given = msgspec.json.encode(block.input).decode() if block.input else None
        assembly.add_call(index, block.id, block.name, given)
    elif block.type in _THOUGHTS:
        assembly.begin()


def _continue_block(index: int, delta: _Delta, assembly: Assembly) -> None:
    part: _Part | None = assembly.parts.get(index)
    if part is None:
        raise ValueError(f"the block {index} has no beginning")
    if part.kind == "text" and delta.text:
        part.pieces.append(delta.text)
        assembly.add_text(delta.text)
    elif part.kind == "thinking":
        part.pieces.append(delta.thinking or "")
        part.signature += delta.signature or ""
    elif part.kind == "tool_use":
        assembly.add_call(index, None, None, delta.partial_json)


def _finish(stop_reason: str | None, used: _Used | None, assembly: Assembly) -> None:
    _count(used, assembly)
    if stop_reason is None:
        return
    assembly.finish_reason = _REASONS.get(stop_reason, stop_reason)
    if any(part.kind in _THOUGHTS for part in assembly.parts.values()):
        blocks = [_returned(index, assembly.parts[index], assembly) for index in sorted(assembly.parts)]
        assembly.native = [block for block in blocks if block.get("text") != ""]


def _returned(index: int, part: _Part, assembly: Assembly) -> dict[str, Any]:
    """A block as the provider wants it back."""
    if part.kind == "text":
        return {"type": "text", "text": "".join(part.pieces)}
    if part.kind == "tool_use":
        return _tool_use(assembly.call_at(index))
    if part.kind == "thinking" and part.pieces:
        thought = (part.block.get("thinking") or "") + "".join(part.pieces)
        return {"type": "thinking", "thinking": thought, "signature": part.signature or part.block.get("signature")}
    return part.block


def _count(used: _Used | None, assembly: Assembly) -> None:
    """Add what is known; later counts replace earlier ones. The provider counts cached input apart."""
    if used is None:
        return
    counts = assembly.counts
    counts |= {name: number for name, number in msgspec.structs.asdict(used).items() if number is not None}
    cached, written = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
    assembly.usage = Usage(
        input_tokens=counts.get("input_tokens", 0) + cached + written,
        output_tokens=counts.get("output_tokens", 0),
        cached_tokens=cached,
        cache_write_tokens=written,
    )


MESSAGES = WireFormat(
    title="an Anthropic-compatible endpoint",
    path="/messages",
    credentials=_credentials,
    body=body_of,
    dispensable={"output_config": ("output_config", "output format", "json_schema")},
    read=_read,
    read_event=_read_event,
)


def anthropic_provider(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Ask:
    return endpoint_provider(MESSAGES, fetcher, now_ms)
