"""The provider `scripted`: a model that says what the config tells it to say.

It runs everywhere, at once and always alike, so that examples, tests and dry runs need neither a network nor a key.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tidemill.expressions.failure import ExpressionError
from tidemill.expressions.patterns import compile_pattern, work_of
from tidemill.expressions.wording import shorten
from tidemill.handlers.contract import Fail
from tidemill.handlers.llm_provider import Hear, Message, Question, Reply, Usage

MODEL = "scripted"
_WORD = re.compile(r"\S+\s*|\s+")


async def scripted(question: Question, hear: Hear) -> Reply:
    """Say the answer that is meant for a prompt. A word counts as a token."""
    answer = _meant(question.settings.answers, _prompt(question.messages), 1 if question.correction else 0)
    text = answer if isinstance(answer, str) else msgspec.json.encode(answer).decode()
    if question.stream:
        for word in _WORD.findall(text):
            hear(word)
    said = sum(len(_text(message).split()) for message in (*question.messages, *question.correction))
    usage = Usage(input_tokens=said, output_tokens=len(text.split()))
    return Reply(text=text, model=question.settings.model or MODEL, finish_reason="stop", usage=usage)


def _prompt(messages: tuple[Message, ...]) -> str:
    return next((_text(each) for each in reversed(messages) if each.get("role") == "user"), "")


def _text(message: Message) -> str:
    """The words of a message; of parts, those that have any."""
    content = message.get("content")
    if isinstance(content, list):
        return " ".join(str(part["text"]) for part in content if isinstance(part, dict) and "text" in part)
    return str(content or "")


def _meant(answers: list[Any] | dict[str, Any], prompt: str, turn: int) -> Any:
    """The answer of a turn: of a list, in order, and the last again; by pattern, that of the longest that matches."""
    if isinstance(answers, dict):
        # Mappings are stored in the order of their keys, so the order in the document says nothing.
        found = [pattern for pattern in answers if _matches(pattern, prompt)]
        if not found:
            hint = "a pattern such as .* stands for every other prompt"
            raise Fail("script_unmatched", f"no scripted answer suits {shorten(prompt, 200)!r}", hint=hint)
        meant = answers[max(found, key=lambda pattern: (len(pattern), pattern))]
        answers = meant if isinstance(meant, list) else [meant]
    if not answers:
        raise Fail("script_unmatched", "the scripted model has no answers", hint="write them under `answers`")
    return answers[min(turn, len(answers) - 1)]


def _matches(pattern: str, prompt: str) -> bool:
    try:
        compiled = compile_pattern(pattern)
        work_of(compiled, prompt)
    except ExpressionError as error:
        raise Fail("config_invalid", f"/answers: {error.message}", hint=error.hint) from error
    return compiled.search(prompt) is not None
