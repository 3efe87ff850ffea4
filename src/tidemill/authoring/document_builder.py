"""Records what a workflow function calls, and writes it down as a document.

Every call is a `Step`. A step depends on the steps whose results it is given, so the graph is the flow of data; a
*gate* (an approval, a pause) also waits for everything above it, and everything below waits for it. Blocks (`when`,
`on_error`, `loop` …) guard the steps inside. All problems of a function are collected.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any

import msgspec

from tidemill.authoring.control_flow import (
    EXHAUSTED,
    Block,
    Exit,
    Guarded,
    Loop,
    NodeWriter,
    Step,
    guard_reads,
    inserted,
    never_with,
    surely_happens,
)
from tidemill.authoring.formatted_text import (
    FORMATTED,
    MARKS,
    REFUSALS,
    UNKNOWN,
    FormattedText,
    Mark,
    Marks,
    is_intact,
    not_known,
    plain_text,
    readable,
    shortened,
    template_in,
    texts_in,
)
from tidemill.authoring.function_source import (
    IN_A_TASK,
    decided_early,
    enclosed,
    frozen_calls,
    place_in_code,
    place_of_error,
    place_of_line,
)
from tidemill.authoring.hints import Named, value_of
from tidemill.authoring.reference import (
    MISSING,
    OF_MODELS,
    RESULTS,
    Condition,
    Json,
    Place,
    Reference,
    Text,
    hint_of,
    is_about_reference,
    model_of_references,
    name_of,
    place_of,
    recorder_of,
    template_literal,
    template_of,
    text_of,
    text_template_of,
)
from tidemill.errors import Problem, Rejected, rejected
from tidemill.expressions.scope import RESERVED, has_syntax
from tidemill.handlers.python.conversion import ConversionError, is_model, to_json
from tidemill.kernel.document.fields import ident
from tidemill.kernel.document.problems import DocumentPath, ProblemCollector

_CURRENT: ContextVar[DocumentBuilder | None] = ContextVar("tidemill_builder", default=None)

_PLAIN_CALL: ContextVar[str] = ContextVar("tidemill_plain_call", default="")
"""The workflow that is being called as a plain function."""


def current_builder() -> DocumentBuilder | None:
    """The builder of the workflow function that is being called, if one is."""
    return _CURRENT.get()


def required_builder(what: str) -> DocumentBuilder:
    builder, workflow = _CURRENT.get(), _PLAIN_CALL.get()
    if builder is None and workflow:
        message = f"{workflow} uses {what}, and a workflow that does so cannot be called as a plain function"
        hint = f"run it: mill.run({workflow}, …) of tidemill.open(…), or of tidemill.testing in a test"
        raise rejected("outside_workflow", message, hint=hint)
    if builder is None:
        message = f"{what} is used outside of a workflow function"
        raise rejected("outside_workflow", message, hint="call it in a function decorated with @tidemill.workflow")
    return builder


@contextmanager
def plain_call(workflow: str) -> Iterator[None]:
    """Within it, the function of a workflow is called for what it returns, not to build a graph."""
    token = _PLAIN_CALL.set(workflow)
    try:
        yield
    finally:
        _PLAIN_CALL.reset(token)


class DocumentBuilder:
    def __init__(self, name: str, written_at: str = "") -> None:
        self.name = name
        self._written_at, self._returned_at = written_at, ""
        """File and line of the workflow function."""
        self.is_called = True
        """Whether the function is still being called: a problem is that of the line it has reached."""
        self.steps: dict[str, Step] = {}
        self.block: Block | None = None
        self.functions: dict[str, Callable[..., Any]] = {}
        self.children: dict[int, Any] = {}
        """Workflows that this one starts, by identity."""
        self.handled: set[str] = set()
        """Steps with an `on_error` block."""
        self.named: list[Named] = []
        """What the function named when it was called."""
        self.unentered: dict[object, tuple[str, str]] = {}
        """Blocks that were called and not entered yet: what was called, and where."""
        self._problems: list[Problem] = []
        self._marks = Marks()
        self._altered: set[str] = set()
        """The lines with a text that Python has changed."""
        self._numbers: dict[str, int] = {}
        """The last numbers in ids, by name."""
        self._gates: list[Step] = []
        self._closed: Guarded | None = None
        """The `when` that ended last; a step in between forgets it."""

    @contextmanager
    def building(self) -> Iterator[None]:
        """Within it, calls of tasks are recorded here. Raises everything that is wrong at once."""
        token = _CURRENT.set(self)
        try:
            yield
        except Rejected as refusal:
            at = place_of_error(refusal) or self._written_at
            found = [_located(each, at) for each in refusal.problems]
            raise Rejected([*self._problems, *(each for each in found if each not in self._problems)]) from None
        except Exception as error:
            model = model_of_references(error)
            if not model and not is_about_reference(error):
                raise
            what = f"a result is used as a value ({readable(str(error))})"
            what = f"the model {model} is made of a result" if model else what
            message = f"{what}, and it is known only when the workflow runs"
            at = place_of_error(error, self._written_at.partition(":")[0])
            problem = Problem(code="value_not_known", message=message, path=at, hint=OF_MODELS if model else IN_A_TASK)
            raise Rejected([*self._problems, problem]) from error
        finally:
            _CURRENT.reset(token)

    def call(self, function: Callable[..., Any], given: Mapping[str, Any]) -> Any:
        """What the workflow function returns, and at which line it does."""
        code = getattr(inspect.unwrap(function), "__code__", None)

        names: dict[str, Any] = {}

        def note(frame: FrameType, event: str, _: object) -> None:
            if event == "return" and frame.f_code is code:
                self._returned_at = place_of_line(frame.f_code, frame.f_lineno)
                names.update({**frame.f_globals, **frame.f_locals})

        before, refusals = sys.getprofile(), list[tuple[Rejected, str]]()
        token = REFUSALS.set(refusals)
        sys.setprofile(note)
        try:
            returned = function(**given)
            returned = _awaited(returned) if isinstance(returned, Coroutine) else returned
        finally:
            sys.setprofile(before)
            REFUSALS.reset(token)
        for each, at in ((each, at) for refusal, at in refusals for each in refusal.problems):
            if at.partition(":")[0] == self._written_at.partition(":")[0]:
                # The function has caught it, and continued without the value.
                self.problem(each.code, each.message, each.hint, at=at)
        if code is not None:
            for found in (*decided_early(code, names, RESULTS, MARKS), *frozen_calls(code, names)):
                self.problem(found.code, found.message, found.hint, at=place_of_line(code, found.line))
        return returned

    def check_closure(self, function: Callable[..., Any]) -> None:
        """Refuse a task that uses results of the function around it: it gets them as arguments only."""
        for name, value in enclosed(function).items():
            if isinstance(value, RESULTS) or (isinstance(value, str) and MARKS.search(value)):
                message = f"{function.__name__} uses `{name}` of the workflow function, and has no value of it"
                self.problem("value_not_known", message, f"give it to the task as an argument: {name}={name}")

    def is_current(self) -> bool:
        """Whether what the function named is still the same."""
        return all(value_of(where, name) is known for where, name, known in self.named)

    # Problems.

    def problem(self, code: str, message: str, hint: str = "", at: str = "") -> None:
        at = at or (place_in_code() if self.is_called else self._written_at)
        problem = Problem(code=code, message=message, hint=hint, path=at)
        if problem not in self._problems:  # A line may be reached many times.
            self._problems.append(problem)

    def located(self, problems: Iterable[Problem], nodes: list[dict[str, Json]]) -> list[Problem]:
        """Problems of the document, with the lines that called the nodes."""
        found = []
        for each in problems:
            number = re.match(r"/nodes/(\d+)(?:/|$)", each.path)
            step = self.steps.get(nodes[int(number[1])]["id"]) if number and int(number[1]) < len(nodes) else None
            of_outputs = f"{each.path}/".startswith("/outputs/")
            at = step.written_at if step is not None else self._returned_at if of_outputs else ""
            told = not at or each.message.startswith(at)
            found.append(each if told else msgspec.structs.replace(each, message=f"{at}: {each.message}"))
        return found

    # Steps.

    def add(
        self,
        name: str,
        type_: str,
        config: Json,
        *,
        keys: Mapping[str, Json] | None = None,
        after: Iterable[Any] = (),
        over: Any = MISSING,
        hint: Any = Any,
        literal: bool = True,
        gate: bool = False,
        exact: bool = False,
        own_id: bool = False,
    ) -> Reference:
        """Record a node. `over` is the list of a map, `literal` says that plain strings are no templates.

        With `own_id` its name is the id that the author gave it, which no other node may have.
        """
        if own_id:
            self._check_id(name)
        step = Step(self.next_id(name), type_, self.block, keys or {}, exact=exact)
        step.number, step.written_at = len(self.steps), place_in_code()
        if exact:
            step.keys = self.rendered(step.keys, step, literal=False) or {}
        step.config = self.rendered(config, step, literal=literal)
        undo = step.keys.get("compensator")
        if undo is not None:
            step.keys["compensator"] = {**undo, "config": self.rendered(undo.get("config"), step, literal=literal)}
        if over is not MISSING:
            bounds = {key: value for key, value in step.keys.get("map", {}).items() if key != "over"}
            step.keys["map"] = {"over": self.rendered(over, step, literal=literal), **bounds}
        for other in after:
            self._depend_on(step, other)
        self._wait_for_gate(step)
        if gate:
            self._wait_for_all(step)
            self._gates.append(step)
        self.steps[step.id] = step
        self._closed = None
        return Reference(self, Place(step.id), hint)

    def _check_id(self, name: str) -> None:
        """Record what is wrong with an id that the author chose."""
        if MARKS.search(name):
            raise not_known(f"the id {readable(name)} holds a result", "an id is known when the workflow is built")
        found = ProblemCollector()
        ident(DocumentPath(found, ""), "id", name)
        for each in found.problems:
            self.problem(each.code, each.message, each.hint)
        if name in self.steps:
            self.problem("duplicate_id", f"two calls have the id {name}", "give each call an id of its own, or none")

    def next_id(self, name: str) -> str:
        """The id that the next step of this name gets."""
        base = re.sub(r"[^A-Za-z0-9_-]", "_", FORMATTED.sub(lambda found: f" {template_in(found[1])} ", name)) or "step"
        base = f"_{base}" if not re.match("[A-Za-z_]", base) else base
        found = f"{base}_1" if base in RESERVED else base
        number = self._numbers.get(base, 1)
        while found in self.steps:
            number += 1
            found = f"{base}_{number}"
        self._numbers[base] = max(1, number - 1)
        return found

    def _depend_on(self, step: Step, other: Any) -> None:
        if isinstance(other, Reference):
            self._use(place_of(other), step, recorder_of(other))
        elif isinstance(other, str):
            step.needs[other] = None
        elif isinstance(other, (list, tuple)):
            for each in other:
                self._depend_on(step, each)
        else:
            self.problem("after_invalid", f"`after` holds {other!r}", "give results of tasks")

    def _wait_for_gate(self, step: Step) -> None:
        """Let a step begin after the last gate above it, unless something that it needs does so already."""
        # What may be missing is waited for, too: that of both paths of an approval, for example.
        needed = [self.steps[name].number for name in (*step.needs, *step.accepts) if name in self.steps]
        for gate in reversed(self._gates):
            if any(number >= gate.number for number in needed):
                return
            if never_with(self.steps, gate, step):
                continue
            between = [guard for guard in gate.guards if guard not in step.blocks]
            if not between:
                step.needs[gate.id] = None
                return
            if not any(isinstance(guard, Exit) for guard in between):
                step.accepts[gate.id] = None

    def _wait_for_all(self, step: Step) -> None:
        """Let a gate begin after everything above it that no other step waits for."""
        above = [each for each in self.steps.values() if not never_with(self.steps, each, step)]
        waited_for = {name for each in above for name in (*each.needs, *each.accepts)}
        for other in above:
            if other.id not in waited_for and other.id not in step.needs:
                surely = all(guard in step.blocks for guard in other.guards)
                (step.needs if surely else step.accepts)[other.id] = None

    # Values.

    def formatted(self, reference: Reference) -> FormattedText:
        """The text that stands for a reference in a string until the string is rendered."""
        place = place_of(reference)
        among = template_of(place)
        template = among if hint_of(reference) is str else text_template_of(place)
        text, name = self._marks.add(Mark(template, among, (place,))), name_of(reference)
        if self.is_called:
            self._marks.expect(text, name, place_in_code())
        return FormattedText(text, name, lambda: self.is_called)

    def text(self, text: str) -> Text | str:
        """A string that references were formatted into, taken apart."""
        if is_intact(text):
            return text_of(text, self._marks)
        self._altered_problem(text)
        return text

    def template(self, text: str, places: tuple[Place, ...]) -> str:
        """The text that stands for a template that reads these places."""
        return self._marks.add(Mark(text, text, places))

    def rendered(self, value: Any, step: Step | None, *, literal: bool) -> Json:
        """A value as the document holds it: references become templates, and dependencies of the step."""
        if isinstance(value, Reference):
            self._use(place_of(value), step, recorder_of(value))
            return template_of(place_of(value))
        try:
            found = to_json(value, self._foreign)
        except ConversionError as error:
            message, hint = str(error), "pass JSON values, dataclasses or models, and results of tasks"
            if Reference.__name__ in message:
                message, hint = "a model in it holds a result", OF_MODELS
            self.problem("argument_not_json", f"{_shown(value)} cannot be written as JSON: {message}", hint)
            return None
        return self._filled(found, step, literal)

    def _foreign(self, value: Any) -> Any:
        if isinstance(value, Condition):
            raise TypeError("a comparison is not a value; compare inside a task")
        if isinstance(value, Reference):
            return recorder_of(value).template(template_of(place_of(value)), (place_of(value),))
        if is_model(value):
            raise TypeError(f"{value.__name__} is a class; write {value.__name__}.model_json_schema() for its schema")
        return plain_text(value)

    def _filled(self, value: Json, step: Step | None, literal: bool) -> Json:
        if isinstance(value, str):
            return self._text(value, step, literal)
        if isinstance(value, (list, tuple)):
            return [self._filled(each, step, literal) for each in value]
        if isinstance(value, dict):
            for key in value:
                if MARKS.search(key):
                    self._marks.use_all(key)
                    hint = "keys must be known when the workflow is built; make the mapping inside a task"
                    message = f"a result of a task is the key of a mapping: {shortened(key)}"
                    self.problem("value_not_known", message, hint)
            return {key: self._filled(each, step, literal) for key, each in value.items()}
        return value

    def _text(self, text: str, step: Step | None, literal: bool) -> str:
        if not MARKS.search(text):
            return "{{ " + template_literal(text) + " }}" if literal and has_syntax(text) else text
        if not is_intact(text):
            self._altered_problem(text)
            return text
        parts: list[str] = []
        pieces = FORMATTED.split(text)
        is_alone = len(pieces) == 3 and not pieces[0] and not pieces[2]
        for number, part in enumerate(pieces):
            if number % 2:
                mark = self._marks.use(part)
                if mark is None:
                    self._foreign_problem(template_in(part))
                    continue
                for place in mark.places:
                    self._use(place, step, self)
                parts.append(mark.template if is_alone else mark.among)
            elif part:
                escaped = literal and (has_syntax(part) or part.endswith("{"))
                parts.append("{{ " + template_literal(part) + " }}" if escaped else part)
        return "".join(parts)

    def _altered_problem(self, text: str, at: str = "") -> None:
        self._marks.use_all(text)
        message = f"Python has changed a text with results: {shortened(text)}, {UNKNOWN}"
        if (place := at or place_in_code()) not in self._altered:  # A text that was split is in many pieces.
            self._altered.add(place)
            self.problem("value_not_known", message, IN_A_TASK, at)

    def _use(self, place: Place, step: Step | None, recorder: object, *, optional: bool = False) -> None:
        """Record that a step, or the outputs of the workflow, read a place."""
        optional = optional or place.default is not MISSING
        if recorder is not self:
            self._foreign_problem(template_of(place))
        elif place.node is not None and place.node in self.steps:
            around = () if step is None else step.blocks
            self.check_reach(place, around, optional=optional, outputs=step is None)
            if step is not None and not (optional and place.node in step.needs):
                (step.accepts if optional else step.needs)[place.node] = None
                if not optional:
                    step.accepts.pop(place.node, None)
        for other in list(place.read())[1:]:
            self._use(other._replace(default=None), step, recorder)

    def _foreign_problem(self, what: str) -> None:
        message = f"{what} belongs to another workflow, or to another building of this one"
        self.problem("reference_foreign", message, "hand it over as an argument")

    def check_reach(
        self, place: Place, around: tuple[Block, ...], *, optional: bool = False, outputs: bool = False
    ) -> None:
        """Refuse a value that may be missing here, because it is made in a block that may not run."""
        found = self.steps.get(place.node or "")
        optional = optional or place.default is not MISSING
        inside = any(
            isinstance(block, Exit) and (block.holder, block.key) == (place.node, "on_error") for block in around
        )
        failed = place.node in self.handled and place.path[:1] != ("error",) and (outputs or inside)
        if found is not None and not optional and (failed or any(guard not in around for guard in found.guards)):
            where = "may fail, as its `on_error` block says" if failed else "is called in a block that may not run"
            message = f"`{place.node}` {where}, and its result is used where it may be missing"
            hint = f"write tidemill.default({place.node}, …) where it may be missing"
            self.problem("value_may_be_missing", message, hint)

    # Blocks.

    def is_of_exhausted(self, place: Place, result: Place) -> bool:
        """Whether a place is made in the `on_exhausted` block of a loop that makes the result."""
        steps = [self.steps.get(each.node or "") for each in (place, result)]
        loops = [] if steps[1] is None else [block for block in steps[1].blocks if isinstance(block, Loop)]
        exits = [] if steps[0] is None else [block for block in steps[0].blocks if isinstance(block, Exit)]
        holders = {loop.exit.id for loop in loops if loop.exit is not None}
        return any(block.key == EXHAUSTED and block.holder in holders for block in exits)

    @contextmanager
    def inside(self, block: Block) -> Iterator[None]:
        self.block, before = block, self.block
        try:
            yield
        finally:
            self.block = before
        self._closed = block if type(block) is Guarded else None

    def negated(self) -> Condition:
        """The opposite of the `when` that has just ended."""
        if self._closed is None or self._closed.outer is not self.block:
            message = "tidemill.otherwise() does not follow a tidemill.when(…)"
            raise rejected("otherwise_alone", message, hint="write it right after the block of the `when`")
        return ~self._closed.condition

    def close_loop(self, loop: Loop) -> None:
        """Find the first and the last step of a body; several are joined by a step of type `value`."""
        body = [step for step in self.steps.values() if loop in step.blocks]
        if not body or loop.condition is None:
            what = "calls no task" if not body else "says neither `until` nor `repeat_while`"
            self.problem("loop_incomplete", f"a loop {what}", "for example: loop.until(score.value > 8)")
            return
        names = {step.id for step in body}
        reads = {step.id: {*step.needs, *step.accepts, *guard_reads(step, loop)} & names for step in body}
        first = [step for step in body if not reads[step.id]]
        last = [step for step in body if not any(step.id in found for found in reads.values())]
        loop.entry, loop.exit = first[0], last[0]
        around = [block for block in loop.chain if not isinstance(block, Loop)]
        if len(first) > 1 or first[0].block is not loop or not surely_happens(self.steps, first[0].id, around):
            loop.entry = self._insert("begin", loop, before=body[0])
            names.add(loop.entry.id)
        for step in body:
            if step is not loop.entry and names.isdisjoint(step.needs):
                step.needs[loop.entry.id] = None
        if len(last) > 1 or last[0].block is not loop or not surely_happens(self.steps, last[0].id, around):
            loop.exit = self._insert("end", loop)
            loop.exit.needs[loop.entry.id] = None
            loop.exit.accepts |= dict.fromkeys(step.id for step in last)
        delay: Json = {} if loop.delay is None else {"delay_seconds": loop.delay}
        places = [*loop.condition.places()]
        if isinstance(loop.delay, Reference):
            delay = {"delay_seconds": template_of(place_of(loop.delay))}
            places += place_of(loop.delay).read()
        for place in places:
            self.check_reach(place, loop.exit.blocks)
            if place.node in self.steps and place.node not in names:
                loop.exit.needs[place.node] = None
        keys = {"max_iterations": loop.max_iterations, "loop_back_to": loop.entry.id}
        loop.exit.keys["loop"] = {"condition": loop.condition.render(loop.exit.id), **keys, **delay}

    def _insert(self, name: str, block: Block, before: Step | None = None) -> Step:
        step = Step(self.next_id(name), "value", block, {}, exact=False)
        self.steps = inserted(self.steps, step, before)
        return step

    # The document.

    def finish(self, returned: Any, head: Mapping[str, Json], refused: str = "") -> dict[str, Json]:
        """The document; `returned` is what the function returned, `refused` why it may not. Raises Rejected."""
        self.is_called = False
        for called, at in self.unentered.values():
            message, hint = f"{called} alone guards no task", f"write `with {called}:` around the tasks"
            self._problems.append(Problem(code="block_not_entered", message=message, hint=hint, path=at))
        if not self.steps and not self._problems:
            hint = "call a task: a function that is decorated with @tidemill.task"
            self.problem("no_nodes", f"the workflow {self.name} calls no task", hint)
        # What is wrong from here on is wrong with what it returned.
        self._written_at = self._returned_at or self._written_at
        if refused:
            self.problem("output_invalid", refused, "return a value of that type, or change the hint")
        outputs = {} if returned is None else {"outputs": self.rendered(returned, None, literal=True)}
        if found := self._problems or self._marks.unused():
            raise Rejected(found)
        nodes = NodeWriter(self.steps, self.next_id).nodes()
        for node in nodes:
            for text in filter(MARKS.search, texts_in(node)):
                self._altered_problem(text, self.steps[node["id"]].written_at)
        if self._problems:
            raise Rejected(self._problems)
        return {"name": self.name, **head, "nodes": nodes, **outputs}


async def gathered(
    call: Callable[..., Any], items: Iterable[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    """What the calls of an async function for every item return, outside of a workflow."""
    return list(await asyncio.gather(*(call(item, *args, **kwargs) for item in items)))


def _awaited(coroutine: Any) -> Any:
    """The result of an async workflow function, which awaits nothing but its tasks."""
    try:
        coroutine.send(None)
        line = coroutine.cr_frame.f_lineno
    except StopIteration as end:
        return end.value
    except RuntimeError as error:
        own = error.__traceback__ and error.__traceback__.tb_next
        if own is None or "event loop" not in str(error):
            raise
        line = own.tb_lineno
    coroutine.close()
    at, message = place_of_line(coroutine.cr_code, line), "the workflow function awaits something else than a task"
    raise rejected(
        "workflow_waits", message, path=at, hint="do it in a task; independent tasks run in parallel by themselves"
    )


def _shown(value: Any) -> str:
    token = REFUSALS.set(None)
    try:
        return shortened(repr(value))
    except Rejected:  # It shows a reference.
        return f"a value of type {type(value).__name__}"
    finally:
        REFUSALS.reset(token)


def _located(problem: Problem, at: str) -> Problem:
    found = msgspec.structs.replace(problem, path=problem.path or at)
    if not MARKS.search(found.message):
        return found
    return msgspec.structs.replace(found, code="value_not_known", message=readable(found.message), hint=IN_A_TASK)
