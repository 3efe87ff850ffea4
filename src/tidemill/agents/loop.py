"""The loop of an agent: ask the model, call the tools it asks for, until it answers. Durable after every call.

Every reply and every result is a record of the visit before the loop continues: an attempt after a crash begins behind
the last record and asks no model again for what is in the log. Before a call of the model an amount of the budgets is
set aside, mostly in the commit of the record before it. A call that was lost with its worker counts as spent, and is
announced again before it is made again. A tool that must not be called twice is announced before its call; without a
result in the log its outcome is unknown, and the loop tells the model so.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable
from typing import Any, TypeVar

import msgspec

from tidemill.agents.budget import NodeBudget, bounded
from tidemill.agents.conversation import (
    Call,
    Conversation,
    Record,
    chosen_in_text,
    failed_record,
    packed,
    record_of,
    reply_of,
    restored,
)
from tidemill.agents.memory import Accounts
from tidemill.agents.tools import Ended, Pending, Toolbox, ToolContext, ToolResult, error_result, preview_of
from tidemill.blobs.contract import files_in
from tidemill.expressions.errors import shorten
from tidemill.expressions.schema import compile_schema
from tidemill.handlers.contract import Done, Fail, HandlerOutcome, NodeContext, Wait
from tidemill.handlers.llm.accounting import (
    RUN_PAUSED,
    DayBudget,
    amounts_of,
    estimated,
    input_tokens,
    spent_by,
    spent_by_failure,
)
from tidemill.handlers.llm.fallback import ELSEWHERE, combined
from tidemill.handlers.llm.provider import Ask, Message, Question, Settings, ToolSpec
from tidemill.handlers.llm.structured_output import CUT_SHORT, check_reply, correction_of, read_value
from tidemill.kernel.spending import NOTHING_SPENT, Spend

ROUTE_TOOL = "choose_next_nodes"
CALL_TRIES = 3
"""How often a call of a model is made before its failure ends the attempt."""
RETRY_MS = 500
RETRY_MS_MAX = 20_000
"""A provider that asks for more time is left to the retries of the node."""
CALLS_MAX = 256
"""Calls of tools in one reply."""
TOGETHER_MAX = 16
"""Calls that only read, at the same time."""
REPAIRS_MAX = 2
"""How often the loop tells the model what is wrong with its answer."""
LISTED_MAX = 200
"""Calls of tools that the result lists."""
AGAIN: Record = {"t": "again"}
PAUSED_MS = 100
TURN_BREAK = "\n\n"
"""A part of a stream of its own, between what a model says in one turn and in the next."""
MARK, FILES_MAX = "$blob", 1_000

T = TypeVar("T")


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    instructions: str = ""
    prompt: str = ""
    max_turns: int = 20
    timeout_seconds: float = 300.0
    context_tokens: int = 150_000
    budget: NodeBudget = NodeBudget()
    output_schema: Any = None
    session: str = ""
    session_turns: int = 20
    context: bool = True
    examples: list[dict[str, str]] = []
    stream: bool = False


class Prefix(msgspec.Struct, frozen=True):
    """What every question of a node begins with, byte by byte the same in all turns and runs."""

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    digest: str
    size: int


class AgentLoop:
    """One attempt at a visit of an agent."""

    def __init__(
        self,
        context: NodeContext,
        config: AgentConfig,
        settings: Settings,
        toolbox: Toolbox,
        prefix: Prefix,
        ask: Ask,
    ) -> None:
        assert context.append is not None, "an agent's attempt can append"
        self._context, self._config = context, config
        self._toolbox, self._prefix, self._model = toolbox, prefix, ask
        self._append, self._accounts = context.append, context.accounts
        self._conversation: Conversation = restored(context.appended)
        self._chain = (msgspec.structs.replace(settings, fallbacks=[]), *settings.chain()[1:])
        """Each is asked on its own, so that every call is recorded and paid by itself."""
        self._clock = asyncio.get_running_loop().time
        self._began, self._before = self._clock(), self._conversation.work_ms / 1_000
        self._reserved: Spend | None = None
        """What is set aside for the next call of the model, by this attempt."""
        self._refused: Fail | None = None
        """A budget beyond the node's has nothing left."""
        self._paused = False
        """The run is: no model is asked."""
        self._has_result = context.recalled
        """What a tool waited for has not been used yet."""
        self._child_files: list[dict[str, str]] = []
        """Files in the outputs of a child run, which this run knows from then on."""
        self._day = DayBudget(context)
        self._speaks_in = -1
        """The turn of the latest streamed text."""
        self._muted_in = -1
        """The turn of which followers have heard a part of an answer that was cut off; they get it as a whole."""
        self._instead: int | None = None
        """The model of the chain that is asked because the one before it has failed."""
        self._child_spent: Spend | None = context.child_spent
        """What a child run has spent, until a record says so."""
        self._conversation.spent += self._child_spent or NOTHING_SPENT

    async def run(self) -> HandlerOutcome:
        if not self._conversation.begun:
            await self._begin()
        while True:
            if self._conversation.pending:
                outcome = await self._work()
            elif self._conversation.finished:
                outcome = await self._finish()
            else:
                outcome = await self._turn()
            if outcome is not None:
                return outcome

    # Records

    async def _add(self, record: Record, *, asks: bool = False, spent: Spend | None = None) -> None:
        """Record something. `asks`: the model is asked next, so an amount for that is set aside in the same commit."""
        reserve, told = None, {} if self._child_spent is None else {"child": amounts_of(self._child_spent)}
        if asks and self._why_stop() is None:
            reserve = estimated(self._prefix.size, self._after(record), self._asked_settings())
            asking = record | {"ask": amounts_of(reserve)}
            try:
                await self._append(asking | told, reserve=reserve, spent=spent)
                record = asking
            except Fail as refused:
                reserve, self._paused = None, refused.code == RUN_PAUSED
                self._refused = None if self._paused else refused
        if reserve is None:
            await self._append(record | told, spent=spent)
        self._reserved, self._child_spent = reserve, None
        self._conversation.add(record)

    def _after(self, record: Record) -> list[Message]:
        """The messages as they will be, as far as an estimate needs them."""
        text = record.get("text") or record.get("prompt") or ""
        return [*self._conversation.messages, {"role": "user", "content": text}]

    async def _begin(self) -> None:
        config, prompt = self._config, prompt_of(self._config, self._context)
        record: Record = {"t": "begin", "prompt": prompt, "prefix": self._prefix.digest[:23]}
        if config.session and self._accounts is not None:
            accounts: Accounts = self._accounts
            record["memory"] = (await accounts.session(config.session)).messages(config.session_turns)
        await self._add(record, asks=True)

    # Time and budgets

    @property
    def _seconds(self) -> float:
        """Time that the visit has worked, without waits and without attempts that were lost."""
        return self._before + self._clock() - self._began

    @property
    def _seconds_left(self) -> float:
        limits = (self._config.timeout_seconds, self._config.budget.seconds or self._config.timeout_seconds)
        return max(0.001, min(limits) - self._seconds)

    def _why_stop(self) -> Fail | None:
        """Why the model is not asked again."""
        conversation, config = self._conversation, self._config
        if conversation.replies >= config.max_turns:
            hint = "raise `max_turns`, or say more clearly when the work is done"
            return Fail("max_turns_exceeded", f"the agent has not finished after {config.max_turns} turns", hint=hint)
        if self._seconds >= config.timeout_seconds:
            return _out_of_time(config.timeout_seconds)
        used_up = config.budget.exceeded(conversation, self._seconds)
        if used_up:
            hint = "raise `budget`, or let the agent do less"
            return Fail("budget_exceeded", f"the agent has used {used_up}", hint=hint)
        return None

    def _warning(self) -> str:
        return self._config.budget.warning(self._conversation, self._seconds)

    def _position(self) -> int:
        """The model of the chain that is asked first: the one that replied last, or a cheaper one after the warning."""
        if self._instead is not None:
            return self._instead
        position = self._conversation.position
        degrades = self._config.budget.degrade and self._conversation.warned
        return max(position, 1) if degrades and len(self._chain) > 1 else min(position, len(self._chain) - 1)

    def _asked_settings(self) -> Settings:
        return self._chain[self._position()]

    # The model

    async def _turn(self) -> HandlerOutcome | None:
        """Ask the model once and record its reply, unless a budget is used up."""
        stopped = self._why_stop()
        if stopped is not None:
            return await self._stop(stopped)
        if input_tokens(self._prefix.size, self._conversation.messages) > self._config.context_tokens:
            compaction, reserved = self._conversation.compaction(), self._reserved
            if compaction is not None:
                await self._add(compaction)
                # What was set aside for the longer question stays set aside.
                self._reserved = reserved
        if self._reserved is None and self._refused is None and not self._paused:
            warning = self._warning()
            # Without a warning, the call was announced by an attempt that was lost, or has failed.
            record = {"t": "note", "why": "budget", "text": warning} if warning else AGAIN
            await self._add(record, asks=True)
        if self._paused:
            # The timer of a paused run is due when the run continues; the attempt then begins behind the last record.
            return Wait("timer", for_ms=PAUSED_MS, resume=True)
        if self._reserved is None:
            return await self._stop(self._refused or self._why_stop() or _out_of_time(self._seconds))
        refused = await self._ask_until_answered(self._reserved)
        return None if refused is None else await self._stop(refused)

    async def _ask_until_answered(self, reserved: Spend) -> Fail | None:
        """Ask the models of the chain and record every call; what is returned instead is the refusal of a budget."""
        tries, failures = 1, list[tuple[Settings, Fail]]()
        while True:
            position = self._position()
            failed = await self._ask_once(position, reserved)
            if failed is None or failed is self._refused:
                self._instead = None
                return failed
            failures.append((self._chain[position], failed))
            if failed.code in ELSEWHERE and len(failures) < len(self._chain):
                self._instead, delay_ms, record = (position + 1) % len(self._chain), 0, AGAIN
            else:
                failed, self._instead = combined(failures), None
                again = self._again(failed, tries)
                if again is None:
                    raise failed
                delay_ms, record = again
                tries, failures = tries + 1, []
            await asyncio.sleep(delay_ms / 1_000)
            await self._add(record, asks=True)
            if self._paused:
                return None
            if self._reserved is None:
                return self._refused or self._why_stop() or failed
            reserved = self._reserved

    async def _ask_once(self, position: int, reserved: Spend) -> Fail | None:
        """Ask one model, and record its reply, or its failure, which is returned."""
        settings = self._chain[position]
        try:
            seconds = min(self._seconds_left, settings.timeout_seconds)
            day_key = await self._day.reserve(reserved, seconds, self._conversation.replies)
        except Fail as refused:
            await self._add(failed_record(refused, NOTHING_SPENT), spent=NOTHING_SPENT)
            self._refused = refused
            return refused
        began = self._clock()
        try:
            reply = await self._limited(self._model(self._question(settings), self._on_text))
        except Fail as failed:
            self._muted_in = self._speaks_in
            spent, ms = spent_by_failure(failed, reserved), round((self._clock() - began) * 1_000)
            asked = [settings.provider, settings.model]
            await self._add(failed_record(failed, spent) | {"ms": ms, "asked": asked}, spent=spent)
            await self._day.settle(day_key, spent)
            return failed
        spent, ms = spent_by(reply, reserved, settings.prices), round((self._clock() - began) * 1_000)
        if len(reply.tool_calls) > CALLS_MAX:
            message = f"the model asks for {len(reply.tool_calls)} calls at once, at most {CALLS_MAX} are made"
            many = Fail("too_many_calls", message, hint="see the transcript; change the instructions")
            await self._add(failed_record(many, spent) | {"ms": ms}, spent=spent)
            await self._day.settle(day_key, spent)
            raise many
        reply = msgspec.structs.replace(reply, position=position)
        record = record_of(reply, self._conversation.replies + 1, spent, ms, self._request_digest())
        record |= {"asked": settings.model} if settings.model and settings.model != reply.model else {}
        await self._add(record, spent=spent)
        await self._day.settle(day_key, spent)
        return None

    def _again(self, failed: Fail, tries: int) -> tuple[int, Record] | None:
        """How long to wait before the call is made again, and the record that says so; None: not in this attempt."""
        if failed.code == "context_too_long" and tries < CALL_TRIES:
            # The model holds less than the config says.
            compaction = self._conversation.compaction()
            return None if compaction is None else (0, compaction)
        delay_ms = failed.retry_after_ms if failed.retry_after_ms is not None else RETRY_MS * 2**tries
        if not failed.retryable or tries == CALL_TRIES or delay_ms > min(RETRY_MS_MAX, self._seconds_left * 1_000):
            return None
        return delay_ms, AGAIN

    async def _limited(self, pending: Awaitable[T]) -> T:
        """Await a call within the time that is left to the visit."""
        try:
            async with asyncio.timeout(self._seconds_left):
                return await pending
        except TimeoutError:
            raise _out_of_time(min(self._config.timeout_seconds, self._seconds)) from None

    def _question(self, settings: Settings) -> Question:
        return Question(
            settings=settings,
            messages=(*self._prefix.messages, *self._conversation.messages),
            form=self._config.output_schema,
            stream=self._config.stream,
            tools=self._prefix.tools,
            stable=len(self._prefix.messages),
            cache_key=self._prefix.digest,
            turn=self._conversation.replies,
            forbidden_at=self._context.forbidden_at,
        )

    def _on_text(self, part: str) -> None:
        if not self._config.stream:
            return
        turn = self._conversation.replies
        if turn == self._muted_in:
            return
        if self._speaks_in not in (-1, turn):
            self._context.stream(TURN_BREAK)
        self._speaks_in = turn
        self._context.stream(part)

    def _request_digest(self) -> str:
        """What the model was asked, in short: the prefix and all messages."""
        text = msgspec.json.encode([self._prefix.digest, self._conversation.messages], order="sorted")
        return hashlib.sha256(text).hexdigest()[:16]

    # Tools

    async def _work(self) -> HandlerOutcome | None:
        """Make the next calls, and record their results. A call that must wait ends the attempt."""
        counted = 0
        for call, ended, ms in await self._next_results():
            if isinstance(ended, Pending):
                wait = bounded(ended.wait, self._config.budget.left(self._conversation))
                words = {"state": packed(ended.state), "wait": packed(msgspec.to_builtins(wait))}
                await self._add({"t": "wait", "n": call.position, **words})
                return wait
            # Calls that were made at the same time take as long as the longest of them.
            work, counted = max(0, ms - counted), max(ms, counted)
            await self._record_result(call, ended, ms, work)
        return self._waiting()

    def _waiting(self) -> Wait | None:
        """The wait of the next call, if an attempt that was lost has recorded it and did not begin it."""
        call = next(iter(self._conversation.pending), None)
        if call is None or call.wait is None or call.started or self._has_result:
            return None
        wait: Wait = msgspec.convert(call.wait, Wait)
        return wait

    async def _next_results(self) -> list[tuple[Call, Ended, int]]:
        """Results of the next calls: of one, or of several that only read, which are made at the same time."""
        if self._waiting() is not None:
            return []
        pending = self._conversation.pending
        readers = [call for call in pending if self._only_reads(call)]
        together = pending[: len(readers)] if readers and readers == pending[: len(readers)] else pending[:1]
        together = together[:TOGETHER_MAX]
        if len(together) < 2:
            return [await self._timed(pending[0])]
        results: list[tuple[Call, Ended, int]] = []
        for result in await asyncio.gather(*map(self._timed, together), return_exceptions=True):
            if isinstance(result, BaseException):
                raise result
            results.append(result)
            if isinstance(result[1], Pending):
                # What comes after it is read again behind the wait.
                break
        return results

    def _only_reads(self, call: Call) -> bool:
        tool = next((each for each in self._toolbox.tools if each.name == call.call.name), None)
        return tool is not None and tool.effect.read_only and call.wait is None and not call.started

    async def _timed(self, call: Call) -> tuple[Call, Ended, int]:
        began = self._clock()
        ended = await self._limited(self._make(call))
        return call, ended, round((self._clock() - began) * 1_000)

    async def _make(self, call: Call) -> Ended:
        """Make a call of the model, or refuse it."""
        if call.started:
            message = "a worker was lost during this call; it is not repeated"
            return error_result("unknown_outcome", message, unknown_outcome=True)
        if call.call.name == ROUTE_TOOL and self._context.routes:
            return self._route(call)
        used, same = self._conversation.before(call)
        most = self._config.budget.identical_calls
        if call.wait is None and same >= most:
            if same >= 2 * most:
                message = f"the model asks for the same call of {call.call.name} again and again"
                raise Fail("identical_calls_exceeded", message, hint="see the transcript; change the instructions")
            message = f"you have made this call {most} times in a row; it is not made again"
            return error_result("identical_call", message, hint="use its result, or do something else")
        prepared = self._toolbox.prepare(call.call.name, call.call.arguments_text, used)
        if isinstance(prepared, ToolResult):
            return prepared
        context = self._context
        tool_context = ToolContext(
            node=context,
            port=context.port,
            call_id=call.call.id,
            key=f"{context.effect_key}/{self._conversation.replies}.{call.position}",
            begin=lambda: self._add({"t": "start", "n": call.position}),
            tools=self._toolbox.tools,
        )
        if call.wait is None:
            return await self._toolbox.call(prepared, tool_context)
        self._has_result, resumed = False, context.resumed
        if call.wait.get("on") == "child":
            self._child_files = [{MARK: digest} for digest in files_in(msgspec.json.encode(resumed))[:FILES_MAX]]
        return await self._toolbox.resume(prepared, tool_context, call.state, resumed)

    async def _record_result(self, call: Call, ended: ToolResult, ms: int, work: int) -> None:
        record: Record = {"t": "tool", "n": call.position, "text": ended.text, "ms": ms}
        record |= {} if work == ms else {"work": work}
        more = {
            "name": call.call.name,
            "id": call.call.id,
            "error": ended.error,
            "ref": ended.reference,
            "preview": "" if ended.preview is None else packed(ended.preview),
            "run": ended.run_id,
            "unknown": ended.unknown_outcome,
            "files": self._child_files,
        }
        self._child_files = []
        record |= {name: value for name, value in more.items() if value}
        if call.call.name == ROUTE_TOOL and not ended.error and self._context.routes:
            record |= {"route": ended.content["next_nodes"], "reason": ended.content["reason"]}
        wrong_route = call.call.name == ROUTE_TOOL and ended.error == "route_not_allowed"
        is_last = len(self._conversation.pending) == 1
        await self._add(record, asks=is_last and not wrong_route and not self._warning())
        if wrong_route:
            raise Fail("route_not_allowed", ended.content["error"]["message"], hint=ended.content["error"]["hint"])

    def _route(self, call: Call) -> ToolResult:
        """Take the choice of the model; a node that it may not choose is refused."""
        routes = self._context.routes
        hint = f"it may choose {', '.join(routes)}"
        try:
            arguments = call.call.arguments()
        except ValueError as error:
            return error_result("arguments_invalid", str(error), hint=hint)
        names, reason = arguments.get("next_nodes"), arguments.get("reason", "")
        names = [names] if isinstance(names, str) else names
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or not names:
            return error_result("arguments_invalid", "next_nodes is a list of names", hint=hint)
        strange = [name for name in names if name not in routes]
        if strange:
            message = f"{shorten(', '.join(strange), 200)} is not among the nodes it may choose"
            return error_result("route_not_allowed", message, hint=hint)
        return ToolResult(content={"next_nodes": list(dict.fromkeys(names)), "reason": shorten(str(reason), 1_000)})

    # The end

    async def _finish(self) -> HandlerOutcome | None:
        """The result of the visit; None if the model is asked to correct its answer."""
        last, config = self._conversation.last, self._config
        assert last is not None, "the model has answered"
        text: str = last["text"]
        value: Any = text
        problems, cut_short = list[str](), last.get("finish") == CUT_SHORT
        try:
            check_reply(reply_of(last))
        except Fail as failed:
            if failed.code != "empty_answer":
                raise
            failed.retryable, problems = False, [failed.message]
            wrong, words = failed, "You have answered with nothing. Answer now."
        else:
            if config.output_schema is not None:
                value, problems = read_value(text, compile_schema(config.output_schema))
            wrong, words = _invalid(text, problems, cut_short), correction_of(problems)
        if not problems:
            return await self._done(value, text, "max_tokens" if cut_short else "")
        if cut_short or self._conversation.repairs >= REPAIRS_MAX or self._why_stop() is not None:
            raise wrong
        await self._add({"t": "note", "why": "repair", "text": words}, asks=True)
        return None

    async def _stop(self, failed: Fail) -> HandlerOutcome:
        """End without an answer: the records keep what was done, and `finish` makes it the result."""
        last = self._conversation.last
        if self._config.budget.on_exceeded == "finish" and failed.code in ("budget_exceeded", "max_turns_exceeded"):
            text = "" if last is None else last["text"]
            return await self._done(None if self._config.output_schema is not None else text, text, failed.code)
        raise failed

    async def _done(self, value: Any, text: str, stopped: str = "") -> Done:
        conversation = self._conversation
        chosen, reason = conversation.chosen, conversation.reason
        if chosen is None and self._context.routes:
            chosen, reason = chosen_in_text(text)
        if self._config.session and self._accounts is not None and not stopped:
            accounts: Accounts = self._accounts
            prompt = self._config.prompt or self._config.instructions
            await accounts.remember(self._config.session, self._context.effect_key, prompt, text)
        return Done(
            {
                "value": value,
                "text": text,
                "preview": preview_of(value),
                "turns": conversation.replies,
                "tool_calls": conversation.ended[:LISTED_MAX],
                "usage": conversation.usage.to_output(),
                "model": "" if conversation.last is None else conversation.last.get("model", ""),
                "cost": None if conversation.cost is None else round(conversation.cost, 10),
                "stopped": stopped,
                "route": {"next_nodes": list(chosen or ()), "reason": reason},
            },
            next_nodes=chosen,
        )


def _invalid(text: str, problems: list[str], cut_short: bool) -> Fail:
    hint = "simplify the schema, say more in the instructions, or use another model"
    hint = "the answer was cut short: raise max_tokens" if cut_short else hint
    failed = Fail("output_invalid", f"the answer does not match the schema: {'; '.join(problems)}", hint=hint)
    failed.add_note(f"the model answered: {shorten(text, 400)}")
    return failed


def _out_of_time(seconds: float) -> Fail:
    hint = "raise `timeout_seconds`, or give the agent less to do"
    return Fail("agent_timeout", f"the agent has worked for {seconds:.0f} seconds", hint=hint)


def prompt_of(config: AgentConfig, context: NodeContext) -> str:
    """The volatile part of the first question: the prompt, and what the nodes before have given, in short."""
    parts = [config.prompt] if config.prompt else ["Do your work with what the nodes before you have given."]
    if config.context:
        seen = {name: preview_of(value) for name, value in sorted(context.upstream.items())}
        if seen:
            shown = msgspec.json.encode(seen, order="sorted").decode()
            parts.append(f"Results of the nodes before you, as previews (type, row_count, sample):\n{shown}")
    return "\n\n".join(parts)
