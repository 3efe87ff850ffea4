"""`@tidemill.task` and `@tidemill.workflow`: functions whose calls make the graph of a workflow.

Outside of a workflow function a task, and a workflow too, is just its function. Inside one, a call is recorded, and
what it returns is a reference that type checkers take for the function's own result. Wrong arguments are found there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import cached_property, update_wrapper
from os import PathLike
from types import GenericAlias
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Union, cast, overload

from tidemill.authoring.document_builder import (
    DocumentBuilder,
    current_builder,
    gathered,
    plain_call,
)
from tidemill.authoring.function_source import place_of_line
from tidemill.authoring.hints import ToleratedFailure, check_names, misfit, named_values, resolve_locals
from tidemill.authoring.reference import ITEM, MISSING, Json, Place, Reference, hint_of
from tidemill.authoring.task_options import Options, OtherVerb, Seconds, refuse_bounds, refuse_input_names, told_usage
from tidemill.errors import Problem, for_callers, offered, rejected
from tidemill.handlers.contract import NodeContext
from tidemill.handlers.python.conversion import (
    SECRET_HINT,
    ConversionError,
    Converter,
    alternatives_of,
    ambiguity,
    converter,
    hints_of,
    item_of,
    secret_in,
    short,
    shown,
    to_json,
)
from tidemill.handlers.python.functions import TASK, add_functions, home_of, is_same
from tidemill.handlers.python.hint_schemas import parameters_schema

P = ParamSpec("P")
Q = ParamSpec("Q")
A = TypeVar("A")
R = TypeVar("R")
S = TypeVar("S", bound="Recordable[..., Any]")
T = TypeVar("T")

CONTEXT = "context"
"""The parameter that receives the attempt's context, and is not passed."""
CHILD_TYPE = "workflow"
"""The type of nodes that start a child workflow."""


class Recordable(Generic[P, R]):
    """What tasks and workflows have in common: they can be called, mapped over a list, and given options."""

    __name__: str

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        self.function, self._options, self._declared = function, options, options
        self._conversions: dict[str, tuple[str, str, Converter | None]] = {}
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        builder = current_builder()
        if builder is None:
            return self._plainly(*args, **kwargs)
        return cast(R, self._record(builder, self._bound(builder, args, kwargs)))

    @overload
    def map(
        self: Recordable[Concatenate[A, Q], Coroutine[Any, Any, T]], items: Iterable[A], /, *_: Q.args, **__: Q.kwargs
    ) -> list[T]: ...
    @overload
    def map(self: Recordable[Concatenate[A, Q], R], items: Iterable[A], /, *_: Q.args, **__: Q.kwargs) -> list[R]: ...
    def map(self, items: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call it for every item of a list, which becomes the first argument; the results are a list.

        Outside of a workflow the calls are made one after another; those of an async function together, when the
        result is awaited.
        """
        builder = current_builder()
        if builder is None:
            if inspect.iscoroutinefunction(self.function):
                return cast("list[R]", gathered(self._plainly, items, args, kwargs))
            return [self._plainly(item, *args, **kwargs) for item in items]
        hint = item_of(hint_of(items)) if isinstance(items, Reference) else Any
        if isinstance(items, Reference) and (problem := misfit(list, items, None)):
            message = f"{self.__name__}.map(…) takes a list, and {problem}"
            builder.problem("arguments_invalid", message, "give it a result that is a list")
        item = Reference(builder, Place(ITEM), hint)
        bound = self._bound(builder, (item, *args), kwargs, mapped=True)
        over: Any = items
        if not isinstance(over, Reference):
            is_list = isinstance(over, Iterable) and not isinstance(over, (str, bytes, Mapping))
            if not is_list:
                message = f"{self.__name__}.map(…) takes a list, and {short(over)} is not one"
                builder.problem("arguments_invalid", message, "give it a list, or a result that is one")
            over = list(over) if is_list else []
            self._check_items(builder, next((name for name, value in bound.items() if value is item), ""), over)
        return self._record(builder, bound, over=over)

    def _plainly(self, *args: Any, **kwargs: Any) -> R:
        """What the function itself returns."""
        return self.function(*args, **kwargs)

    def _check_items(self, builder: DocumentBuilder, name: str, items: Sequence[Any]) -> None:
        """Record the first item of a map that cannot have the type of its parameter."""
        hint, (*_, convert) = self.hints.get(name, Any), self._conversion(name)
        for number, item in enumerate(items):
            problem = misfit(hint, item, convert)
            if problem:
                message = f"{self.__name__}.map(…): item {number}: `{name}` is {shown(hint)}, and {problem}"
                builder.problem("arguments_invalid", message, "pass values of that type")
                return

    if not TYPE_CHECKING:
        submit, delay, apply_async, s, si = (OtherVerb() for _ in range(5))
        expand, starmap, chunks = (OtherVerb() for _ in range(3))

    def options(
        self: S,
        *,
        id: str | None = None,  # noqa: A002 - as in a document
        retries: int | None = None,
        retry_delay: Seconds | None = None,
        retry: Mapping[str, Json] | int | None = None,
        timeout: Seconds | None = None,
        on_error: Literal["fail", "continue"] | None = None,
        compensate: Task[..., Any] | None = None,
        at_most_once: bool | None = None,
        queue: str | None = None,
        priority: int | None = None,
        isolation: Literal["inline", "thread", "process"] | None = None,
        limits: Mapping[str, Json] | None = None,
        max_parallel: int | None = None,
        tolerate: int | None = None,
        after: Any = None,
    ) -> S:
        """The same with other options: `fetch.options(timeout=5)(url)`."""
        given = {key: value for key, value in locals().items() if key != "self" and value is not None}
        if "after" in given:
            given["after"] = (*self._options.after, given["after"])
        return self._with(self._options.changed(given))

    def after(self: S, *results: Any) -> S:
        """The same, begun only after these results are there: `pay.after(approval)(order)`."""
        return self._with(replace(self._options, after=(*self._options.after, *results)))

    def _with(self: S, options: Options) -> S:
        other = type(self).__new__(type(self))
        other.__dict__ |= self.__dict__
        other._options = options
        return other

    @cached_property
    def signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def hints(self) -> dict[str, Any]:
        return hints_of(self.function)

    @property
    def result_hint(self) -> Any:
        return self.hints.get("return", Any)

    def _record(self, builder: DocumentBuilder, arguments: dict[str, Any], over: Any = MISSING) -> Reference:
        raise NotImplementedError

    def _add(
        self, builder: DocumentBuilder, name: str, type_: str, config: Json, arguments: Mapping[str, Any], over: Any
    ) -> Reference:
        """Add the node of a call, with its options and what undoes it."""
        options, mapped = self._options, over is not MISSING
        self._check_result(builder)
        if not mapped:
            refuse_bounds(builder.problem, self.__name__, options, self._declared)
        item = Union[self.result_hint, ToleratedFailure] if mapped and options.tolerate else self.result_hint  # noqa: UP007
        hint = GenericAlias(list, (item,)) if mapped else item
        keys = options.keys(mapped=mapped)
        undo = options.compensate
        if undo is not None:
            add_functions(builder.functions, {undo.name: undo.function})
            config_of_undo = self._undo(builder, undo, arguments)
            keys["compensator"] = {"type": "python", "config": config_of_undo, **undo._options.retry_keys()}
        after, own_id = options.after, options.id is not None
        return builder.add(
            options.id or name, type_, config, keys=keys, after=after, over=over, hint=hint, own_id=own_id
        )

    def _check_result(self, builder: DocumentBuilder) -> None:
        """Record a return hint that no result keeps, and hints that name nothing."""
        check_names(self.function, builder.problem)
        if secret := self._conversion("return")[1]:
            message = f"{self.__name__} returns {shown(self.result_hint)}, and {secret}"
            builder.problem("hint_secret", message, SECRET_HINT)

    def _undo(self, builder: DocumentBuilder, undo: Task[..., Any], arguments: Mapping[str, Any]) -> Json:
        """The configuration of a compensator: arguments of the same name, and the result for the one that is left."""
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        wanted = {each.name: each for each in undo._parameters(builder) if each.kind not in variadic}
        own = {name: each.default for name, each in self.signature.parameters.items() if each.kind not in variadic}
        given = {
            **{name: default for name, default in own.items() if default is not inspect.Parameter.empty},
            **arguments,
        }
        # A default of both is left to the compensator: it may not be JSON.
        passed = {
            name: given[name] for name, each in wanted.items() if given.get(name, each.default) is not each.default
        }
        left = [name for name in wanted if name not in own and name not in given]
        # Beside one that has no default, those that have one are left out.
        left = [name for name in left if wanted[name].default is inspect.Parameter.empty] or left
        if len(left) > 1:
            message = f"{undo.name}, which undoes {self.__name__}, has the parameters {', '.join(left)}"
            hint = f"it may have parameters of {self.__name__}, and one more for the result"
            builder.problem("compensation_invalid", message, hint)
        result = Reference(builder, Place(self.__name__), self.result_hint)
        for name, value in {**passed, **dict.fromkeys(left[:1], result)}.items():
            undo._check(builder, name, value)
        output = builder.template("{{ output }}", ())
        return undo._config({**passed, **dict.fromkeys(left[:1], output)})

    def _parameters(self, builder: DocumentBuilder) -> list[inspect.Parameter]:
        """The parameters that a call gives; records those that cannot be passed by name."""
        found = [each for each in self.signature.parameters.values() if each.name != CONTEXT]
        for each in [each for each in found if NodeContext in alternatives_of(self.hints.get(each.name))]:
            found.remove(each)
            message = f"{self.__name__}(…): `{each.name}` is the context of the attempt"
            builder.problem("arguments_invalid", message, f"call it `{CONTEXT}`, as in `{CONTEXT}: NodeContext`")
        for each in found:
            if each.kind is each.POSITIONAL_ONLY:
                message = f"{self.__name__}(…): `{each.name}` is positional-only, and nodes pass arguments by name"
                builder.problem("arguments_invalid", message, f"leave out the `/` in the parameters of {self.__name__}")
        return found

    def _bound(
        self, builder: DocumentBuilder, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, mapped: bool = False
    ) -> dict[str, Any]:
        """The arguments by name; records what does not fit the signature or the type hints."""
        parameters = self._parameters(builder)
        signature = self.signature.replace(parameters=parameters)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            names = [each.name for each in parameters]
            unknown = next((name for name in kwargs if name not in names), "")
            hint = offered(unknown, names) if unknown else f"it takes {signature}"
            if unknown in inspect.signature(Recordable.options).parameters:
                hint = f"options are given before: {self.__name__}.options({unknown}={kwargs[unknown]!r:.60})"
                hint += ".map(…)" if mapped else "(…)"
            message = f" has no parameter `{unknown}`" if unknown else f": {error}"
            builder.problem("arguments_invalid", f"{self.__name__}(…){message}", hint)
            return {}
        found: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_KEYWORD:
                found |= value
            elif kind is inspect.Parameter.VAR_POSITIONAL:
                message = f"{self.__name__}(…) takes any number of arguments, and nodes pass arguments by name"
                builder.problem("arguments_invalid", message, "take a list instead")
            else:
                found[name] = value
                self._check(builder, name, value)
        return found

    def _conversion(self, name: str) -> tuple[str, str, Converter | None]:
        """What is ambiguous in the hint of a parameter, or secret, and what converts its arguments; found once."""
        if name not in self._conversions:
            hint = self.hints.get(name, Any)
            self._conversions[name] = ambiguity(hint), secret_in(hint), converter(hint)
        return self._conversions[name]

    def _check(self, builder: DocumentBuilder, name: str, value: Any) -> None:
        """Record an argument that cannot have the type of its parameter, and a type that no argument gets."""
        hint = self.hints.get(name, Any)
        unclear, secret, convert = self._conversion(name)
        if secret:
            message = f"{self.__name__}(…): `{name}` is {shown(hint)}, and {secret}"
            builder.problem("hint_secret", message, SECRET_HINT)
            return
        if unclear and isinstance(self, Task):
            message = (
                f"{self.__name__}(…): `{name}` is {shown(hint)}, and JSON does not tell the types of {unclear} apart"
            )
            tags = "make them msgspec structs with a tag, or Pydantic models with a discriminator"
            builder.problem("hint_ambiguous", message, f"{tags}; with `Any` the task gets plain JSON")
            return
        problem = misfit(hint, value, convert)
        if problem:
            message = f"{self.__name__}(…): `{name}` is {shown(hint)}, and {problem}"
            known = "a result" if isinstance(value, Reference) else "a value"
            builder.problem("arguments_invalid", message, f"pass {known} of that type")


if not TYPE_CHECKING:
    Recordable.map = told_usage(Recordable.map, "map(items)")
    Recordable.options = told_usage(Recordable.options, "options(name=value)(…)")


class Task(Recordable[P, R]):
    """A function that is a step of workflows. Called in a workflow function it becomes a node of type `python`."""

    def __init__(self, function: Callable[P, R], options: Options) -> None:
        super().__init__(function, options)
        self.name = options.name or function.__name__
        setattr(self, TASK, function)
        self.__tidemill_function__ = self.name

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    def _record(self, builder: DocumentBuilder, arguments: dict[str, Any], over: Any = MISSING) -> Reference:
        add_functions(builder.functions, {self.name: self.function})
        builder.check_closure(self.function)
        return self._add(builder, self.name, "python", self._config(arguments), arguments, over)

    def _config(self, arguments: Mapping[str, Any]) -> dict[str, Json]:
        options = self._options
        return {
            "function": self.name,
            **({"args": dict(arguments)} if arguments else {}),
            **({"isolation": options.isolation} if options.isolation else {}),
            **({"limits": dict(options.limits)} if options.limits else {}),
        }


class Workflow(Recordable[P, R]):
    """A function that describes a workflow. It is called once, with references, to build the document."""

    def __init__(self, function: Callable[P, R], options: Options, head: Mapping[str, Json], name: str | None) -> None:
        super().__init__(function, options)
        self.name = name or re.sub(r"[^a-z0-9]+", "-", function.__name__.lower()).strip("-")
        self._head = dict(head)
        self._built: tuple[dict[str, Json], DocumentBuilder] | None = None

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"

    def _repr_html_(self) -> str:
        from tidemill.pictures.svg import graph_for_notebook

        return graph_for_notebook(self)

    def _plainly(self, *args: Any, **kwargs: Any) -> R:
        with plain_call(self.__name__):
            found: Any = self.function(*args, **kwargs)
        return cast(R, self._awaited(found)) if isinstance(found, Coroutine) else found

    async def _awaited(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with plain_call(self.__name__):
            return await coroutine

    @for_callers
    def document(self) -> dict[str, Json]:
        """The document, as YAML would hold it. Raises Rejected with everything that is wrong with the function."""
        return deepcopy(self._build()[0])

    def document_with(self, versions: Mapping[str, str]) -> dict[str, Json]:
        """The document, in which children of these names are started in these versions (`name@3`)."""
        document = self.document()
        for node in document["nodes"]:
            config = node.get("config")
            if node["type"] == CHILD_TYPE and isinstance(config, dict) and config.get("workflow") in versions:
                node["config"] = {**config, "workflow": versions[config["workflow"]]}
        return document

    def located(self, problems: Iterable[Problem]) -> list[Problem]:
        """Problems of its document, with the lines of the function that they come from."""
        document, builder = self._build()
        return builder.located(problems, document["nodes"])

    def place_of(self, node: str) -> str:
        """File and line of the call that made a node; empty if no call did."""
        step = self._build()[1].steps.get(node)
        return "" if step is None else step.written_at

    @property
    def functions(self) -> dict[str, Callable[..., Any]]:
        """The functions that its nodes call, and those of the workflows that it starts, by name."""
        found: dict[str, Callable[..., Any]] = {}
        for each in self.family():
            add_functions(found, each._build()[1].functions)
        return found

    def family(self) -> list[Workflow[..., Any]]:
        """Every workflow that it starts, and that those start, before the one that starts it, and last itself.

        Each has a name of its own.
        """
        found: dict[int, Workflow[..., Any]] = {}
        self._add_family(found, set())
        named: dict[str, Workflow[..., Any]] = {}
        for each in found.values():
            known = named.setdefault(each.name, each).function
            if not is_same(known, each.function):
                message = f"two workflows are called {each.name}: {home_of(known)} and {home_of(each.function)}"
                raise rejected("workflow_name_taken", message, hint='name one of them: @tidemill.workflow(name="…")')
        return list(found.values())

    def _add_family(self, found: dict[int, Workflow[..., Any]], begun: set[int]) -> None:
        begun.add(id(self.function))
        for child in self._build()[1].children.values():
            if id(child.function) not in begun:
                child._add_family(found, begun)
        found[id(self.function)] = self

    def refuse_options(self, verb: str, options: Mapping[str, Any], arguments: Mapping[str, Any]) -> None:
        """Refuse an option that is given beside inputs by name, and is the name of an input: it may be meant as one."""
        refuse_input_names(self, verb, options, arguments)

    def run_inputs(self, inputs: Any = None, arguments: Mapping[str, Any] | None = None) -> Json:
        """The inputs of a run as JSON: a mapping, or arguments by name."""
        if arguments and inputs is not None:
            raise rejected("inputs_invalid", "inputs are given as a mapping and by name", hint="use one of the two")
        known = self._build()[0].get("inputs") if inputs is not None else None
        names = list(known.get("properties", ())) if isinstance(known, dict) else []
        if names and isinstance(inputs, (str, int, float, list, tuple)):
            message, hint = f"the inputs of {self.name} are given by name", f"write {names[0]}={inputs!r:.60}"
            raise rejected("inputs_invalid", message, path="/inputs", hint=hint)
        try:
            return to_json(dict(arguments) if arguments else inputs)
        except ConversionError as error:
            raise rejected("inputs_invalid", f"the inputs cannot be written as JSON: {error}") from None

    def _record(self, builder: DocumentBuilder, arguments: dict[str, Any], over: Any = MISSING) -> Reference:
        builder.children[id(self.function)] = self
        for option in ("isolation", "limits"):
            if getattr(self._options, option) is not None:
                message = f"`{option}` is an option of tasks, and {self.name} is a workflow"
                hint = f"give it to the tasks of {self.name}: @tidemill.task({option}=…)"
                builder.problem("option_invalid", message, hint)
        config = {"workflow": self.name, **({"inputs": arguments} if arguments else {})}
        return self._add(builder, self.name.replace("-", "_"), CHILD_TYPE, config, arguments, over)

    def builds(self) -> list[object]:
        """What its document and those of the workflows that it starts were made by; others after a change of a task."""
        return [each._build()[1] for each in self.family()]

    def _build(self) -> tuple[dict[str, Json], DocumentBuilder]:
        """The document; it is built again when a task or workflow that the function names was defined again."""
        if self._built is None or not self._built[1].is_current():
            code = getattr(inspect.unwrap(self.function), "__code__", None)
            builder = DocumentBuilder(self.name, place_of_line(code, code.co_firstlineno) if code else "")
            with builder.building():
                head = {**self._described(), **self._inputs(), **self._head}
                head = {key: value for key, value in head.items() if value is not None}
                returned = builder.call(self.function, self._given(builder))
                document = builder.finish(returned, head, self._refused_result(returned))
            builder.named = named_values(self.function, Recordable)
            self._built = document, builder
        return self._built

    def _given(self, builder: DocumentBuilder) -> dict[str, Reference]:
        """References to the inputs, by parameter, whose hints are checked with that of the result."""
        given = {
            name: Reference(builder, Place(None, (name,)), self.hints.get(name, Any))
            for name in self.signature.parameters
        }
        builder.is_called = False
        for name, reference in given.items():
            self._check(builder, name, reference)
        self._check_result(builder)
        builder.is_called = True
        return given

    def _refused_result(self, returned: Any) -> str:
        """Why what the function returns cannot have the type of its hint; empty if it can."""
        problem = misfit(hint := self.result_hint, returned, converter(hint))
        return f"{self.name} returns {shown(hint)}, and {problem}" if problem else ""

    def _described(self) -> dict[str, Json]:
        text = inspect.getdoc(self.function) if self.function.__doc__ else None
        return {"description": text} if text else {}

    def _inputs(self) -> dict[str, Json]:
        """The schema of the inputs: the parameters, by their type hints and defaults."""
        parameters = list(self.signature.parameters.values())
        for each in parameters:
            if each.kind not in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY):
                message = f"`{each}` of the workflow {self.name} cannot be passed by name"
                raise rejected("parameter_unnamed", message, hint="inputs have names: take a list or a mapping")
        return {} if "inputs" in self._head else {"inputs": parameters_schema(parameters, self.hints)}


@overload
def task(function: Callable[P, R], /) -> Task[P, R]: ...
@overload
def task(
    *,
    name: str | None = None,
    retries: int | None = None,
    retry_delay: Seconds | None = None,
    retry: Mapping[str, Json] | int | None = None,
    timeout: Seconds | None = None,
    on_error: Literal["fail", "continue"] | None = None,
    compensate: Task[..., Any] | None = None,
    at_most_once: bool = False,
    queue: str | None = None,
    priority: int | None = None,
    isolation: Literal["inline", "thread", "process"] | None = None,
    limits: Mapping[str, Json] | None = None,
    max_parallel: int | None = None,
    tolerate: int | None = None,
) -> Callable[[Callable[P, R]], Task[P, R]]: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Make a function a step of workflows: `@tidemill.task`, or with options `@tidemill.task(retries=3, timeout=30)`.

    `retries` follow the first attempt, `retry_delay` seconds apart and longer each time; `timeout` bounds an attempt.
    `retry` is that of a document: the number of all attempts, or a mapping.
    `compensate` is a task that undoes this one. The other options are keys of a node.
    """
    given = Options.given(options)
    return _decorated(function, "task", lambda found: Task(found, given))


@overload
def workflow(function: Callable[P, R], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    description: str | None = None,
    inputs: Json = None,
    defaults: Mapping[str, Json] | None = None,
    limits: Mapping[str, Json] | None = None,
    compensate: bool = False,
    retention: Mapping[str, Json] | None = None,
) -> Callable[[Callable[P, R]], Workflow[P, R]]: ...
@for_callers
def workflow(
    function: Any = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    inputs: Json = MISSING,
    defaults: Mapping[str, Json] | None = None,
    limits: Mapping[str, Json] | None = None,
    compensate: bool = False,
    retention: Mapping[str, Json] | None = None,
) -> Any:
    """Make a function a workflow: `@tidemill.workflow`, or with arguments.

    Its parameters are the inputs, what it returns are the outputs, and the tasks it calls are the nodes. With
    `compensate` a failed run is rolled back. `inputs` is a JSON Schema instead of the one that the parameters give,
    None for any; `defaults`, `limits` and `retention` are those of a document.
    """
    head = {
        "description": description,
        "inputs": inputs,
        "defaults": defaults,
        "limits": limits,
        "on_failure": {"compensate": "automatic"} if compensate else None,
        "retention": retention,
    }
    given = {key: value for key, value in head.items() if value is not None and value is not MISSING}
    given |= {"inputs": None} if inputs is None else {}
    return _decorated(function, "workflow", lambda found: Workflow(found, Options(), given, name))


def _decorated(function: Any, what: str, make: Callable[[Any], Any]) -> Any:
    def decorate(found: Any) -> Any:
        if isinstance(found, Recordable):
            hint = "leave out one of the two decorators; a workflow is called in another one as a task is"
            raise TypeError(f"tidemill.{what} decorates functions, and {found!r} is decorated already: {hint}")
        if not inspect.isroutine(found):
            raise TypeError(f"tidemill.{what} decorates functions, and {found!r} is not one: wrap it in a `def`")
        parameters = list(inspect.signature(found).parameters) if inspect.isfunction(found) else []
        owner = getattr(found, "__qualname__", "").rpartition(".")[0].rpartition(".")[2]
        if parameters[:1] in (["self"], ["cls"]) and owner not in ("", "<locals>"):
            hint = f"make it a function, or write @staticmethod above @tidemill.{what} and leave out `{parameters[0]}`"
            raise TypeError(f"{found.__qualname__} is a method, and a run has no object to call it on: {hint}")
        return make(resolve_locals(found))

    return decorate if function is None else decorate(function)


def authored(given: object) -> Workflow[..., Any] | None:
    """The workflow that a caller gave, if it is one; a task or a plain function is refused."""
    if isinstance(given, Workflow):
        return given
    if isinstance(given, Task):
        hint = "call it in a function decorated with @tidemill.workflow"
    elif inspect.isfunction(given):
        hint = "decorate it with @tidemill.workflow"
    elif isinstance(given, (str, bytes, Mapping, PathLike)):
        return None
    else:
        hint = "pass the workflow, a document, a path or a name; a workflow itself, not its result: run(flow, n=1)"
    raise rejected("workflow_invalid", f"{short(given)} is not a workflow", hint=hint)
