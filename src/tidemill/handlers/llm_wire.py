"""The chat completions of the OpenAI protocol: what is sent, and how what comes back is read.

Only the few fields that are used are looked at, because endpoints that speak this protocol differ in all others.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tidemill.handlers.llm_provider import OPENAI_URL, Hear, Question, Reply, Usage

PATH = "/chat/completions"
DISPENSABLE = ("response_format", "logprobs", "stream_options")
"""Fields of a request that make an answer better, and that not all endpoints know."""
_PASSED_ON = ("temperature", "top_p", "stop", "seed")


class _Text(msgspec.Struct):
    content: str | None = None
    refusal: str | None = None


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
        return Usage(
            input_tokens=self.prompt_tokens or 0, output_tokens=self.completion_tokens or 0, cached_tokens=cached or 0
        )


class Completion(msgspec.Struct):
    """An answer, or one part of a streamed one."""

    choices: list[_Choice] | None = None
    model: str | None = None
    usage: _Used | None = None
    error: Any = None


def body_of(question: Question) -> dict[str, Any]:
    """The body of a request."""
    settings = question.settings
    body: dict[str, Any] = {
        **settings.extra,
        "model": settings.model,
        "messages": [*question.messages, *question.correction],
        "stream": question.stream,
    }
    body |= {name: value for name in _PASSED_ON if (value := getattr(settings, name)) is not None}
    if settings.max_tokens is not None:
        # The field got a new name that the newer models of its inventor insist on, and that others do not know.
        body["max_completion_tokens" if settings.base_url.rstrip("/") == OPENAI_URL else "max_tokens"] = (
            settings.max_tokens
        )
    if question.form is not None and settings.response_format == "json_schema":
        wanted = {"name": "answer", "schema": question.form, "strict": settings.strict}
        body["response_format"] = {"type": "json_schema", "json_schema": wanted}
    elif question.form is not None and settings.response_format == "json_object":
        body["response_format"] = {"type": "json_object"}
    if question.logprobs:
        body["logprobs"] = True
    if question.stream:
        body["stream_options"] = {"include_usage": True}
    return body


def without(body: dict[str, Any], complaint: str) -> dict[str, Any] | None:
    """The body without the dispensable fields that a complaint is about; None if it is about none of them."""
    named = [field for field in DISPENSABLE if field in body and (field in complaint or _nickname(field) in complaint)]
    return {key: value for key, value in body.items() if key not in named} if named else None


def _nickname(field: str) -> str:
    return "json_schema" if field == "response_format" else field


class Assembly:
    """A reply that is put together from its parts."""

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._tokens: list[tuple[str, float]] = []
        self._model = self._finish_reason = ""
        self._usage: Usage | None = None

    @property
    def begun(self) -> bool:
        """Whether the model has said anything."""
        return bool(self._texts or self._refusals)

    @property
    def ended(self) -> bool:
        """Whether the model has said that this is all."""
        return bool(self._finish_reason)

    def add(self, part: Completion) -> None:
        """Take a part, or all of it at once."""
        self._model = part.model or self._model
        self._usage = part.usage.usage() if part.usage is not None else self._usage
        for choice in (part.choices or [])[:1]:
            said = choice.delta or choice.message or _Text()
            if said.content:
                self._texts.append(said.content)
                self._hear(said.content)
            if said.refusal:
                self._refusals.append(said.refusal)
            self._finish_reason = choice.finish_reason or self._finish_reason
            tokens = choice.logprobs.content if choice.logprobs is not None else None
            self._tokens += [(each.token, each.logprob) for each in tokens or ()]

    def reply(self, question: Question) -> Reply:
        """All of it."""
        return Reply(
            text="".join(self._texts),
            model=self._model or question.settings.model,
            finish_reason=self._finish_reason,
            refusal="".join(self._refusals),
            usage=self._usage,
            logprobs=tuple(self._tokens),
        )
