"""What a workflow function can say besides calling tasks: conditions, loops, approvals, handled errors, other nodes.

    with tidemill.when(score.value > 80):
        notify(score)
    with tidemill.otherwise():
        archive(score)

Blocks are `with` statements, because Python runs an `if` while the graph is built, when no value is known yet.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, make_dataclass
from enum import Enum
from functools import wraps
from types import FrameType, NoneType, TracebackType
from typing import Any, Literal, NoReturn, ParamSpec, TypeVar, Union, cast, overload

from tidemill.authoring.control_flow import APPROVAL_TYPE, EXHAUSTED, Exit, Guarded, Loop, Otherwise
from tidemill.authoring.decorators import Recordable
from tidemill.authoring.document_builder import DocumentBuilder, current_builder, required_builder
from tidemill.authoring.formatted_text import MARKS, FormattedText, not_known, plain_text, texts_in
from tidemill.authoring.function_source import BlockSource, block_source, place_in_code, place_of_line
from tidemill.authoring.reference import (
    ITERATION,
    MISSING,
    Condition,
    Json,
    Place,
    Reference,
    condition_of,
    hint_of,
    place_of,
    varied_type_of,
)
from tidemill.authoring.task_options import Seconds, seconds
from tidemill.errors import Rejected, rejected
from tidemill.expressions.templates.template import check_template
from tidemill.handlers.python.conversion import ConversionError, to_json
from tidemill.handlers.python.hint_schemas import schemas_of

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


_PLAIN = (str, int, float, NoneType, Enum)


class BlockStatement(AbstractContextManager[T]):
    """What a `with` statement is given; Python would take it for true in an `if` or a `while`."""

    def __init__(self, name: str, entered: AbstractContextManager[T]) -> None:
        self._called, self._entered = f"tidemill.{name}(…)", entered
        self._is_loop = name == "loop"
        builder = current_builder()
        self._blocks: dict[object, tuple[str, str]] = {} if builder is None else builder.unentered
        self._blocks[self] = self._called, "" if builder is None else place_in_code()
        self._source: BlockSource | None = None
        self._steps_before, self._names_before = 0, frozenset[str]()

    def __enter__(self) -> T:
        self._blocks.pop(self, None)
        builder, frame = current_builder(), sys._getframe(1)
        if builder is not None:
            self._steps_before, self._names_before = len(builder.steps), frozenset(frame.f_locals)
            self._source = block_source(frame.f_code, frame.f_lineno)
        return self._entered.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        builder = current_builder()
        if kind is None and builder is not None:
            self._check(builder, sys._getframe(1))
        return self._entered.__exit__(kind, error, traceback)

    def _check(self, builder: DocumentBuilder, frame: FrameType) -> None:
        """Refuse what Python does in any case, and the author means for this block."""
        source, code = self._source, frame.f_code
        lost = None if source is None else source.lost_lines()
        if lost is not None:
            message = f"`return` ends the function here in any case, and line {lost[1]} is never reached"
            hint = "keep the result in a variable, and write `return tidemill.default(one, other)` at the end"
            builder.problem("block_returns", message, hint, at=place_of_line(code, lost[0]))
        elif len(builder.steps) == self._steps_before and not self._is_loop:
            message = f"no task is called in the block of {self._called}; all else in it happens in any case"
            hint = 'call a task in it; `tidemill.node("value", …)` is a step that only has a value'
            builder.problem("block_without_task", message, hint)
        changed = {} if source is None else source.names_changed()
        for name, (line, is_constant) in changed.items():
            if name in self._names_before and (is_constant or self._is_loop):
                message = f"`{name}` is changed once, while the graph is built, whatever happens in this block"
                hint = "return the new value from a task"
                builder.problem("block_assigns", message, hint, at=place_of_line(code, line))
        if source is not None and self._is_loop:
            for name, line in source.names_carried().items():
                if name in self._names_before:
                    message = f"`{name}` is what it was before the loop in every pass"
                    hint = "give the task `again.previous(task, first)`: what a task returned in the pass before"
                    builder.problem("loop_variable", message, hint, at=place_of_line(code, line))
        elif source is not None:
            for name, line in source.names_set().items():
                value = frame.f_locals.get(name, MISSING)
                if isinstance(value, _PLAIN) and not (isinstance(value, str) and MARKS.search(value)):
                    message = f"`{name}` is {value!r:.60} below in any case: a block decides only which tasks run"
                    hint = "return it from a task in the block, and write `tidemill.default(one, other)` below"
                    builder.problem("block_assigns", message, hint, at=place_of_line(code, line))

    def __bool__(self) -> NoReturn:
        message = f"Python asks whether {self._called} is true, and it is a block of tasks"
        raise rejected("block_not_entered", message, hint=f"write `with {self._called}:` instead of `if` or `while`")

    def __iter__(self) -> NoReturn:
        message = f"Python asks for the items of {self._called}, and it is a block of tasks"
        raise rejected("block_not_entered", message, hint=f"write `with {self._called}:` instead of `for`")


_USAGE = {"loop": "max_iterations=5", "on_exhausted": "again"}
"""What a block is given, where its first parameter does not say it."""


def _block(function: Callable[P, Iterator[T]]) -> Callable[P, BlockStatement[T]]:
    made, signature = contextmanager(function), inspect.signature(function)

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> BlockStatement[T]:
        try:
            signature.bind(*args, **kwargs)
        except TypeError as error:
            message, name = f"tidemill.{function.__name__}(…): {error}", next(iter(signature.parameters), "")
            usage = f"write tidemill.{function.__name__}({_USAGE.get(function.__name__, name)})"
            raise rejected("arguments_invalid", message, hint=usage) from None
        return BlockStatement(function.__name__, made(*args, **kwargs))

    return called


# Conditions.


@_block
def when(condition: object) -> Iterator[None]:
    """The tasks called inside run if a condition holds: `with tidemill.when(order.total > 100):`.

    It is a comparison of results and parameters, several of them joined with `&` and `|`, a result that is true or
    false, or a condition of a document: CEL text, or a mapping with a `type`.
    """
    builder = required_builder("tidemill.when(…)")
    found = condition_of(condition)
    _check(builder, found)
    with builder.inside(Guarded(builder.block, found)):
        yield


@_block
def otherwise() -> Iterator[None]:
    """The tasks called inside run if the condition of the `when` right above does not hold."""
    builder = required_builder("tidemill.otherwise()")
    with builder.inside(Otherwise(builder.block, builder.negated())):
        yield


def not_(condition: object) -> bool:
    """The opposite of a condition: `tidemill.not_(order.paid)`."""
    required_builder("tidemill.not_(…)")
    return cast(bool, ~condition_of(condition))


def default(value: T, otherwise: T, /, *others: T) -> T:
    """A result that may be missing, because its task may be skipped, or the first of the others that is not missing.

    Outside of a workflow function it is the value itself.
    """
    if not isinstance(value, Reference):
        return value
    if others:
        otherwise = default(otherwise, *others)
    builder = required_builder("tidemill.default(…)")
    second: Any = otherwise
    place = _with_default(builder, place_of(value), _stand_by(builder, second))
    first = second if isinstance(second, Reference) and place[:2] == place_of(second)[:2] else value
    varied, hint = varied_type_of(second), hint_of(first)
    hint = hint if varied is None else Union[hint, varied]  # noqa: UP007 - of values
    return cast(T, Reference(builder, place, hint))


def _stand_by(builder: DocumentBuilder, given: Any) -> Any:
    """What stands in for a missing value: a JSON value, another place, or a text."""
    try:
        found: Any = place_of(given) if isinstance(given, Reference) else to_json(given, plain_text)
    except ConversionError as error:
        raise rejected("argument_not_json", f"{given!r} cannot be written as JSON: {error}") from None
    if not isinstance(found, (str, Place)) and any(map(MARKS.search, texts_in(found))):
        raise not_known("a default holds a text with results", "make it inside a task")
    return builder.text(found) if isinstance(found, str) else found


def _with_default(builder: DocumentBuilder, place: Place, other: Any) -> Place:
    """A place with something in its stead; what stands there already comes before that."""
    if isinstance(other, Place) and builder.is_of_exhausted(other, place):
        # A loop that gave up has a result, too: that of its last pass.
        place, other = other, place
    if place.default is MISSING:
        return place._replace(default=other, handled=place.node in builder.handled)
    if isinstance(place.default, Place):
        return place._replace(default=_with_default(builder, place.default, other))
    name = Reference(builder, place)
    hint = "remove one of the defaults"
    raise rejected(
        "default_twice", f"{name!r} has a default that is never missing, so the other is never used", hint=hint
    )


def template(text: str) -> Any:
    """A Jinja template as in a document, for what references cannot say: `template("{{ fetch.output | length }}")`."""
    builder = required_builder("tidemill.template(…)")
    _require_text("template", text, "{{ fetch.output | length }}")
    problems, reach = check_template(text, "")
    if problems:
        raise Rejected(problems)
    return builder.template(text, tuple(Place(name) for name in sorted(reach.nodes)))


def _require_text(what: str, given: object, example: str) -> None:
    if not isinstance(given, str):
        hint = f"write tidemill.{what}({json.dumps(example)})"
        raise rejected("arguments_invalid", f"tidemill.{what}(…) takes a text, and {given!r} is not one", hint=hint)


def _check(builder: DocumentBuilder, condition: Condition) -> None:
    around = () if builder.block is None else (*builder.block.chain, builder.block)
    for place in condition.places():
        builder.check_reach(place, around)


# Loops.


class LoopBlock:
    """A loop as its block sees it."""

    def __init__(self, builder: DocumentBuilder, loop: Loop) -> None:
        self._builder, self._loop = builder, loop

    def until(self, condition: object) -> None:
        """Leave the loop after a pass in which the condition holds."""
        self._decide(~condition_of(condition))

    def repeat_while(self, condition: object) -> None:
        """Make another pass as long as the condition holds."""
        self._decide(condition_of(condition))

    @overload
    def previous(self, task: Recordable[..., Coroutine[Any, Any, T]]) -> T | None: ...
    @overload
    def previous(self, task: Recordable[..., Coroutine[Any, Any, T]], default: D) -> T | D: ...
    @overload
    def previous(self, task: Recordable[..., T]) -> T | None: ...
    @overload
    def previous(self, task: Recordable[..., T], default: D) -> T | D: ...
    @overload
    def previous(self, task: str, default: Any = None) -> Any: ...
    def previous(self, task: Recordable[..., Any] | str, default: Any = None) -> Any:
        """What a task further down in this loop returned in the pass before; `default` in the first pass."""
        given: Any = task
        if not isinstance(given, (Recordable, str)):
            hint = "give it the task: previous(step, default); `default` is the value in the first pass"
            raise rejected("result_expected", f"previous(…) is given {task!r}, which is not a task", hint=hint)
        name = task if isinstance(task, str) else task._options.id or getattr(task, "name", "").replace("-", "_")
        hint_ = Any if isinstance(task, str) else task.result_hint
        place = Place(self._builder.next_id(name), (), _stand_by(self._builder, default))
        return Reference(self._builder, place, hint_)

    @property
    def iteration(self) -> int:
        """The number of the pass, from 0: an argument of a task in the loop, or part of a condition."""
        block = self._builder.block
        loops = [] if block is None else [each for each in (*block.chain, block) if isinstance(each, Loop)]
        if not loops or loops[-1] is not self._loop:
            message = "`iteration` is known to the tasks of its own loop, not to those of a loop inside or outside"
            raise rejected("loop_incomplete", message, hint="pass it to a task of the loop that returns it")
        return cast(int, Reference(self._builder, Place(ITERATION), int))

    def _decide(self, condition: Condition) -> None:
        if self._loop.condition is not None:
            raise rejected("loop_incomplete", "a loop has two conditions", hint="join them with & or |")
        self._loop.condition = condition


@_block
def loop(*, max_iterations: int, delay: Seconds | None = None) -> Iterator[LoopBlock]:
    """The tasks called inside are repeated: `with tidemill.loop(max_iterations=5) as again: …; again.until(…)`.

    Without an `on_exhausted` block a run fails with `loop_exhausted` when all passes are used up. `delay` is a wait
    between passes: seconds, a timedelta, or an input or result from before the loop that holds seconds.
    """
    builder = required_builder("tidemill.loop(…)")
    block = Loop(builder.block, max_iterations, None if delay is None else seconds(delay))
    with builder.inside(block):
        yield LoopBlock(builder, block)
    builder.close_loop(block)


@_block
def on_exhausted(loop: LoopBlock) -> Iterator[None]:
    """The tasks called inside run if the loop has used up its passes; what else follows the loop is skipped."""
    builder = required_builder("tidemill.on_exhausted(…)")
    given: Any = loop
    if not isinstance(given, LoopBlock):
        hint = "give it the loop: `with tidemill.loop(…) as again:`, and below it `with tidemill.on_exhausted(again):`"
        raise rejected("result_expected", f"tidemill.on_exhausted(…) is given {given!r}", hint=hint)
    last = loop._loop.exit
    if last is None:
        raise rejected("loop_incomplete", "on_exhausted stands inside its loop", hint="write it below the loop's block")
    last.leaves = True
    with builder.inside(Exit(builder.block, last.id, EXHAUSTED)):
        yield


# Errors and people.


@_block
def on_error(result: object) -> Iterator[Any]:
    """The tasks called inside run if the task of a result has failed permanently; the block gets its error.

    What else follows the task is then skipped.
    """
    with _exit("on_error", result, "on_error") as node:
        builder = required_builder("tidemill.on_error(…)")
        builder.handled.add(node)
        yield Reference(builder, Place(node, ("error",)))


@dataclass(frozen=True)
class Approval:
    """What people decided."""

    decision: str
    """`approve`, `reject` or `changes`."""
    comments: str
    decided_by: str
    decided_at: str
    form: Any
    """What was filled in, or None."""


def approve(
    title: str,
    *,
    description: str = "",
    form: Any = None,
    approvers: Sequence[str] = (),
    quorum: int = 1,
    four_eyes: bool = False,
    timeout: Seconds | None = None,
    on_timeout: Literal["approve", "reject", "escalate", "fail"] = "fail",
    escalate_to: Sequence[str] = (),
    url: str = "",
    id: str = "approve",  # noqa: A002 - as in a document
    after: Any = (),
    gate: bool = True,
) -> Approval:
    """Ask people, and wait for their decision without holding a worker.

    An approval is a gate: it waits for everything above it, and everything below waits for it; `gate=False` leaves
    that to `after`. A rejection fails the run, unless there is an `on_reject` block. `form` is a JSON Schema or a
    class; `approvers` and `escalate_to` are people (`user:ada`) and roles (`role:finance`).
    """
    builder = required_builder("tidemill.approve(…)")
    given = (
        ("title", title, ""),
        ("description", description, ""),
        ("form", _form(form), None),
        ("approvers", approvers, ()),
        ("quorum", quorum, 1),
        ("four_eyes", four_eyes, False),
        ("timeout_seconds", None if timeout is None else seconds(timeout), None),
        ("on_timeout", on_timeout, "fail"),
        ("escalate_to", escalate_to, ()),
        ("approval_url", url, ""),
    )
    config = {
        key: value for key, value, usual in given if isinstance(value, (Reference, FormattedText)) or value != usual
    }
    is_model = isinstance(form, type)
    hint = make_dataclass("Approval", [("form", form)], bases=(Approval,), frozen=True) if is_model else Approval
    reference = builder.add(id, APPROVAL_TYPE, config, after=(after,), hint=hint, gate=gate, own_id=id != "approve")
    return cast(Approval, reference)


def _form(given: Any) -> Json:
    if not isinstance(given, type):
        return given
    schemas, shared = schemas_of([given])
    own = shared.pop(given.__name__, schemas[0])
    return {**own, **({"$defs": shared} if shared else {})}


@_block
def on_reject(approval: Approval) -> Iterator[None]:
    """The tasks called inside run if an approval was rejected; what else follows it is then skipped."""
    with _exit("on_reject", approval, "rejection_path"):
        yield


@_block
def on_changes(approval: Approval) -> Iterator[None]:
    """The tasks called inside run if changes were requested; what else follows the approval is then skipped."""
    with _exit("on_changes", approval, "changes_path"):
        yield


@contextmanager
def _exit(what: str, result: object, key: str) -> Iterator[str]:
    builder = required_builder(f"tidemill.{what}(…)")
    node = place_of(result).node if isinstance(result, Reference) else None
    if node is None or node not in builder.steps:
        raise rejected("result_expected", f"tidemill.{what}(…) is given {result!r}", hint="give it a task's result")
    if key != "on_error" and builder.steps[node].type != APPROVAL_TYPE:
        raise rejected(
            "result_expected", f"tidemill.{what}(…): `{node}` is not an approval", hint="see tidemill.approve"
        )
    builder.steps[node].leaves = True
    with builder.inside(Exit(builder.block, node, key)):
        yield node


# Other nodes.


def sleep(duration: Any, *, id: str = "sleep") -> None:  # noqa: A002 - as in a document
    """Wait on a durable timer: everything below begins after everything above has ended and the time has passed."""
    builder = required_builder("tidemill.sleep(…)")
    given = duration if isinstance(duration, Reference) else seconds(duration)
    builder.add(id, "sleep", {"seconds": given}, gate=True, own_id=id != "sleep")


def signal(name: str) -> Any:
    """Wait for a signal, and return its payload: everything below begins when it has come."""
    builder = required_builder("tidemill.signal(…)")
    _require_text("signal", name, "paid")
    return builder.add(name, "signal", {"name": name}, gate=True)


def node(
    type: str,  # noqa: A002 - as in a document
    config: Any = None,
    *,
    id: str | None = None,  # noqa: A002
    after: Any = (),
    timeout: Seconds | None = None,
    **keys: Json,
) -> Any:
    """Add a node of any type, as in a document: `node("http", {"url": url}, retry={"max_attempts": 5})`.

    Strings in it are templates. It depends on the results in `config` and in `after`, which may also hold ids. The
    other keys are those of a node: `when`, `join`, `map`, `branch`, `loop`, `on_error`, `retry` …
    """
    builder = required_builder("tidemill.node(…)")
    if timeout is not None:
        keys["timeout_seconds"] = seconds(timeout)
    over = keys["map"].get("over", MISSING) if isinstance(keys.get("map"), Mapping) else MISSING
    name = id or type.partition("@")[0]
    return builder.add(
        name, type, config, keys=keys, after=(after,), over=over, literal=False, exact=True, own_id=id is not None
    )
