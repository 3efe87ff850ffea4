"""Ask a model, and ask once more if the answer does not match its schema.

The second question shows the model its answer and what is wrong with it. There is no third, because each one costs
money.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tidemill.expressions.errors import shorten
from tidemill.expressions.schema import Schema, compile_schema
from tidemill.handlers.contract import Fail, NodeContext
from tidemill.handlers.llm.provider import Ask, FailedCall, Message, OnText, Question, Reply, Usage, ignore_text

CUT_SHORT = "length"
"""The finish reason of an answer that reached `max_tokens`."""
ANSWER_SHOWN_MAX = 400
"""Characters of a refused answer that its error shows; the log of the attempt has all of it."""


class Answered(msgspec.Struct, frozen=True, kw_only=True):
    reply: Reply
    """The last reply."""
    value: Any = None
    """The decoded text, if a schema was given."""
    usage: Usage | None
    """The sum of all turns."""
    cost: float | None
    """The sum of all turns."""
    failed: tuple[FailedCall, ...] = ()
    """Calls that failed before another model was asked, in all turns."""
    repaired: bool = False

    def account(self, *, with_fallbacks: bool) -> dict[str, Any]:
        """The output fields that all node types over models share; with fallbacks, also who has replied."""
        account = {
            "model": self.reply.model,
            "usage": None if self.usage is None else self.usage.to_output(),
            "cost": self.cost,
            "repaired": self.repaired,
        }
        if not with_fallbacks:
            return account
        failed = [msgspec.structs.asdict(each) for each in self.failed]
        return account | {"provider": self.reply.provider, "failed_calls": failed}


ACCOUNT_SCHEMA: dict[str, Any] = {
    "model": {"type": "string"},
    "usage": {
        "type": ["object", "null"],
        "properties": {name: {"type": "integer"} for name in (*Usage.__struct_fields__, "total_tokens")},
        "additionalProperties": False,
    },
    "cost": {"type": ["number", "null"]},
    "repaired": {"type": "boolean"},
    "provider": {"type": "string"},
    "failed_calls": {
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                **{name: {"type": "string"} for name in FailedCall.__struct_fields__},
                "unknown_outcome": {"type": "boolean"},
            },
            "additionalProperties": False,
        },
    },
}


def instructed(system: str, messages: list[Message], form: Any) -> tuple[Message, ...]:
    """The messages after one system message: the system prompt and the required form of the answer."""
    parts = [system] if system else []
    # Many local models accept only one system message, at the beginning.
    if messages and messages[0].get("role") == "system" and isinstance(messages[0].get("content"), str):
        parts, messages = [*parts, messages[0]["content"]], messages[1:]
    if form is not None:
        schema = msgspec.json.encode(form).decode()
        parts.append(f"Answer with JSON that matches this JSON Schema, and with nothing else:\n{schema}")
    return (*([{"role": "system", "content": "\n\n".join(parts)}] if parts else []), *messages)


async def answered(ask: Ask, question: Question, context: NodeContext) -> Answered:
    first = await _ask(ask, question, context.stream if question.stream else ignore_text, context)
    if question.form is None:
        return Answered(reply=first, usage=first.usage, cost=first.cost, failed=first.failed)
    schema = compile_schema(question.form)
    value, problems = read_value(first.text, schema)
    if not problems:
        return Answered(reply=first, value=value, usage=first.usage, cost=first.cost, failed=first.failed)
    _keep(first, problems, context)
    if first.finish_reason == CUT_SHORT:
        raise _invalid(first, problems, "the answer was cut short: raise max_tokens")
    second = await _ask(ask, _corrected(question, first, problems), ignore_text, context)
    usage = second.usage if first.usage is None else first.usage + (second.usage or Usage())
    costs = [each.cost for each in (first, second) if each.cost is not None]
    cost = round(sum(costs), 10) if costs else None
    value, problems = read_value(second.text, schema)
    if problems:
        _keep(second, problems, context)
        raise _invalid(second, problems, _hint(question))
    failed = (*first.failed, *second.failed)
    return Answered(reply=second, value=value, usage=usage, cost=cost, failed=failed, repaired=True)


async def _ask(ask: Ask, question: Question, on_text: OnText, context: NodeContext) -> Reply:
    reply = await ask(question, on_text)
    for failed in reply.failed:
        context.log.info("%s of %s failed: %s: %s", failed.model, failed.provider, failed.code, failed.message)
    usage = reply.usage
    used = "unknown tokens" if usage is None else f"{usage.input_tokens} + {usage.output_tokens} tokens"
    context.log.info("%s answered: %s, %s", reply.model, reply.finish_reason or "no reason to end", used)
    check_reply(reply)
    return reply


def check_reply(reply: Reply) -> None:
    """Raise if a reply is a refusal, or holds neither text nor a tool call."""
    if reply.refusal or reply.finish_reason == "content_filter":
        reason = shorten(reply.refusal, 300) if reply.refusal else "the provider's filter held the answer back"
        raise Fail("content_refused", f"the model does not answer: {reason}", hint="say it differently")
    if not reply.text.strip() and not reply.tool_calls:
        cut = reply.finish_reason == CUT_SHORT
        hint = "raise max_tokens: the model used all of them before it answered" if cut else ""
        raise Fail("empty_answer", "the model answered with nothing", retryable=not cut, hint=hint)


def _corrected(question: Question, reply: Reply, problems: list[str]) -> Question:
    """The question after a wrong answer, for the model that gave it."""
    turns = ({"role": "assistant", "content": reply.text}, {"role": "user", "content": correction_of(problems)})
    return msgspec.structs.replace(question, correction=turns, stream=False, begin_with=reply.position)


def correction_of(problems: list[str]) -> str:
    """The message to a model about an answer that does not match its schema."""
    wrong = "\n".join(f"- {problem}" for problem in problems)
    return f"This does not match the JSON Schema:\n{wrong}\nAnswer again, with the corrected JSON and nothing else."


def read_value(text: str, schema: Schema) -> tuple[Any, list[str]]:
    """The JSON value of a text, and its problems. Models often wrap JSON in a Markdown code block."""
    fenced = re.fullmatch(r"```[A-Za-z]*\s*(.*?)\s*```", text.strip(), re.DOTALL)
    try:
        value = msgspec.json.decode(fenced[1] if fenced else text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        return None, [f"it is not JSON: {error}"]
    problems = schema.problems(value)[:10]
    return value, [f"{each.path}: {each.message}" if each.path else each.message for each in problems]


def _keep(reply: Reply, problems: list[str], context: NodeContext) -> None:
    """Log an answer that is refused: it is paid for, and shows what to say differently."""
    context.log.info("the answer does not match the schema: %s; it was:\n%s", "; ".join(problems), reply.text)


def _hint(question: Question) -> str:
    """What to change so that an answer matches: a script is wrong by itself."""
    properties = question.form.get("properties") if isinstance(question.form, dict) else None
    if question.settings.provider == "scripted" and isinstance(properties, dict):
        return f"an entry of `answers` is an object: {{{', '.join(f'{name}: …' for name in properties)}}}"
    return "simplify the schema, say more in the prompt, or use another model"


def _invalid(reply: Reply, problems: list[str], hint: str) -> Fail:
    failed = Fail("output_invalid", f"the answer does not match the schema: {'; '.join(problems)}", hint=hint)
    failed.add_note(f"the model answered: {shorten(reply.text, ANSWER_SHOWN_MAX)}")
    return failed
