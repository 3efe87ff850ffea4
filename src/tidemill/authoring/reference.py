"""References to values that a run will have, and conditions over them.

While a workflow function is called to build its graph, tasks and parameters are `Reference`s: fields and items of them
are references too, and a comparison is a `Condition`. Both can be written as a template and as CEL. Everything that
would need the value itself is refused with what to write instead.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Generator, Iterator
from enum import Enum
from typing import Any, NamedTuple, NoReturn, Protocol, get_origin

from tidemill.authoring.formatted_text import (
    FORMATTED,
    MARKS,
    REFUSALS,
    SHOWN,
    FormattedText,
    Marks,
    may_show,
    not_known,
    readable,
)
from tidemill.authoring.function_source import IN_A_TASK
from tidemill.errors import Rejected, rejected
from tidemill.expressions.conditions import parse_condition
from tidemill.handlers.python.conversion import (
    ConversionError,
    alternatives_of,
    fields_of,
    fields_of_tuple,
    json_kinds,
    key_of,
    part_of,
    short,
    shown,
    to_json,
    unwrapped,
    varied_in,
)

Json = Any

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TEMPLATE_WORDS = frozenset(
    (
        *("and", "caller", "cycler", "dict", "else", "false", "if", "in", "is", "joiner", "kwargs", "lipsum", "loop"),
        *("namespace", "none", "not", "or", "range", "self", "super", "true", "varargs", "False", "None", "True"),
    )
)
"""Names that mean something else to a template than a node."""
_CEL_WORDS = frozenset(
    (
        *("as", "break", "const", "continue", "else", "false", "for", "function", "if", "import", "in", "let", "loop"),
        *("namespace", "null", "package", "return", "true", "var", "void", "while"),
    )
)


class Recorder(Protocol):
    """What the document builder reads from a reference."""

    is_called: bool
    """Whether the workflow function is being called."""

    def formatted(self, reference: Reference) -> FormattedText: ...

    def template(self, text: str, places: tuple[Place, ...]) -> str: ...

    def problem(self, code: str, message: str, hint: str) -> None: ...


class _Missing:
    """Stands for "no default was given"."""


MISSING = _Missing()
ITEM = "item"
"""The name under which the configuration of a mapped node finds its item."""
ITERATION = "iteration"
"""The name under which the nodes of a loop find the number of the pass."""


class Place(NamedTuple):
    """Where a value will be found: the output of a node or the inputs of the run, and the way to it."""

    node: str | None
    """None for the inputs."""
    path: tuple[str | int, ...] = ()
    default: Any = MISSING
    """What stands in for it if it is missing: a JSON value, another `Place`, or a `Text`."""
    handled: bool = False
    """Its node may fail and continue on an error path; then its output is an error, and counts as missing too."""

    def read(self) -> Iterator[Place]:
        """Itself, and the places that its default reads, which may be missing too."""
        yield self
        inner = self.default.parts if isinstance(self.default, Text) else (self.default,)
        for each in inner:
            if isinstance(each, Place):
                yield from (each if each.default is not MISSING else each._replace(default=None)).read()


class Text(NamedTuple):
    """Text with places in it."""

    parts: tuple[Place | str, ...]


class Reference:
    """A value that is known only when the workflow runs. Type checkers see the type that it will have."""

    __slots__ = ("__hint", "__place", "__recorder")

    def __init__(self, recorder: Recorder, place: Place, hint: Any = Any) -> None:
        object.__setattr__(self, "_Reference__recorder", recorder)
        object.__setattr__(self, "_Reference__place", place)
        object.__setattr__(self, "_Reference__hint", hint)

    def __getattr__(self, name: str) -> Reference:
        if name.startswith("_"):
            raise AttributeError(f"{self!r} has no field {name!r}; a key that begins with _ is written [{name!r}]")
        if named := fields_of_tuple(hint_of(self)):
            if name not in named:
                message = f"{self!r} has no field {name!r}: it is a named tuple"
                recorder_of(self).problem("field_unknown", message, f"its fields: {', '.join(named)}")
            return self.__getitem__(named.index(name) if name in named else name)
        if place_of(self).default is MISSING and (told := _without_fields(hint_of(self), name)):
            recorder_of(self).problem("field_unknown", f"{self!r} has no field {name!r}: it is {told[0]}", told[1])
        return self.__getitem__(key_of(hint_of(self), name))

    def __getitem__(self, key: Any) -> Reference:
        place, hint, recorder = place_of(self), hint_of(self), recorder_of(self)
        if not isinstance(key, (str, int)):
            raise not_known(f"{self!r}[…] is indexed with {key!r}", "use a name or a number, or choose inside a task")
        if place.default is not MISSING:
            raise not_known(f"a part of {self!r} is asked for", "take the part first, and give a default for that")
        fields = fields_of(hint)
        if isinstance(key, str) and fields is not None and key not in fields:
            known = ", ".join(fields) or "none"
            message = f"{self!r} has no field {key!r}: it is of type {getattr(hint, '__name__', hint)}"
            recorder.problem("field_unknown", message, f"its fields: {known}")
        return Reference(recorder, place._replace(path=(*place.path, key)), part_of(hint, key))

    def __repr__(self) -> str:
        name = name_of(self)
        if recorder_of(self).is_called and not may_show(sys._getframe(1)):
            # An f-string with `!r` or `=`, or one of a list of results: the name would stand in the text.
            raise not_known(f"Python shows {name} in a text", SHOWN)
        return name

    def __str__(self) -> str:
        if sys._getframe(1).f_globals.get("__name__") == "logging":
            return name_of(self)
        return recorder_of(self).formatted(self)

    def __format__(self, spec: str) -> str:
        if spec:
            raise not_known(f"{self!r} is formatted with {spec!r}", "format it inside a task")
        if not (recorder_of(self).is_called or may_show(sys._getframe(1))):
            raise not_known(f"{name_of(self)} is used outside of its workflow function", OUTSIDE)
        return recorder_of(self).formatted(self)

    def __await__(self) -> Generator[Any, None, Reference]:
        """An async workflow may await its tasks: the graph needs no waiting."""
        yield from ()
        return self

    def __eq__(self, other: object) -> Any:
        return Comparison(self, "==", other)

    def __ne__(self, other: object) -> Any:
        return Comparison(self, "!=", other)

    def __lt__(self, other: Any) -> Any:
        return Comparison(self, "<", other)

    def __le__(self, other: Any) -> Any:
        return Comparison(self, "<=", other)

    def __gt__(self, other: Any) -> Any:
        return Comparison(self, ">", other)

    def __ge__(self, other: Any) -> Any:
        return Comparison(self, ">=", other)

    def __and__(self, other: Any) -> Condition:
        return Joined("AND", condition_of(self), condition_of(other))

    def __or__(self, other: Any) -> Condition:
        return Joined("OR", condition_of(self), condition_of(other))

    def __rand__(self, other: Any) -> Condition:
        return condition_of(other) & self

    def __ror__(self, other: Any) -> Condition:
        return condition_of(other) | self

    def __invert__(self) -> Condition:
        return Negation(condition_of(self))

    def __hash__(self) -> int:
        if REFUSALS.get() is not None and not may_show(sys._getframe(1)):
            hint = "keys must be known when the workflow is built; look it up inside a task"
            raise not_known(f"Python looks up {self!r}", hint)
        return object.__hash__(self)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Reference]:
        if REFUSALS.get() is not None and not may_show(sys._getframe(1)):
            hint = "it has its type when the workflow runs; ask inside a task"
            raise not_known(f"Python asks for the type of {self!r}", hint)
        return Reference

    def __copy__(self) -> Reference:
        return self

    def __deepcopy__(self, _: object) -> Reference:
        return self

    def __bool__(self) -> NoReturn:
        raise not_known(f"Python asks whether {self!r} is true", f"{BRANCH}; {JOINED}")

    def __iter__(self) -> NoReturn:
        hint = "write `task.map(items)` to call a task for every item, or loop inside a task"
        kind = unwrapped(hint_of(self))
        if isinstance(kind := get_origin(kind) or kind, type) and issubclass(kind, tuple):
            hint = "write `found = …`, and `found[0]`, `found[1]` where its parts are wanted"
        raise not_known(f"Python asks for the items of {self!r}", hint)

    def __len__(self) -> NoReturn:
        raise not_known(f"Python asks for the length of {self!r}", IN_A_TASK)

    def __contains__(self, item: object) -> NoReturn:
        example = f"'\"x\" in {cel_of(place_of(self))}'"
        hint = f"write a condition in CEL, such as tidemill.when({example}), or ask inside a task"
        raise not_known(f"Python asks what is in {self!r}", hint)

    def __call__(self, *args: object, **kwargs: object) -> NoReturn:
        raise not_known(f"{self!r} is called", "methods are called inside a task")

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise not_known(f"{self!r}.{name} is set", "return the changed value from a task")

    def __setitem__(self, key: object, value: object) -> NoReturn:
        raise not_known(f"{self!r}[{key!r}] is set", "return the changed value from a task")

    def __add__(self, other: object) -> NoReturn:
        hint = "write an f-string, or do it inside a task" if isinstance(other, str) else IN_A_TASK
        raise not_known(f"Python computes with {self!r}", hint)

    def __compute(self, *others: object) -> NoReturn:
        raise not_known(f"Python computes with {self!r}", IN_A_TASK)

    __radd__ = __add__
    __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __compute
    __mod__ = __rmod__ = __pow__ = __rpow__ = __neg__ = __pos__ = __abs__ = __round__ = __compute
    __int__ = __float__ = __complex__ = __compute

    def __index__(self) -> NoReturn:
        hint = (
            "instead of `range`, write `task.map(items)` or loop inside a task; take an item of a list in a task, too"
        )
        raise not_known(f"Python computes with {self!r}", hint)


OF_MODELS = "a dataclass may hold results; or build the model in a task"
OUTSIDE = "give it to the task as an argument"
BRANCH = (
    "write `with tidemill.when(…):` around the tasks, and `with tidemill.otherwise():`; "
    "for a `while`, `with tidemill.loop(max_iterations=…) as again:`; or decide inside a task"
)
JOINED = "conditions are joined with &, | and tidemill.not_(…)"
APART = "put parentheses around each comparison: (a > 1) & (b < 5)"


def place_of(reference: Reference) -> Place:
    place: Place = object.__getattribute__(reference, "_Reference__place")
    return place


def name_of(reference: Reference) -> str:
    place = place_of(reference)
    return "".join([place.node or "inputs", *map(_step_text, place.path)])


def hint_of(reference: Reference) -> Any:
    return object.__getattribute__(reference, "_Reference__hint")


def recorder_of(reference: Reference) -> Recorder:
    recorder: Recorder = object.__getattribute__(reference, "_Reference__recorder")
    return recorder


def _without_fields(hint: Any, name: str) -> tuple[str, str] | None:
    """What the values of a hint are that have no fields in JSON, and what to write; None for methods and others."""
    kinds = [each for each in alternatives_of(hint) if each is not type(None)]
    if any(not isinstance(each, type) or callable(getattr(each, name, None)) for each in kinds):
        return None
    is_enum = bool(kinds) and all(issubclass(each, Enum) for each in kinds)
    if is_enum and (name in ("name", "value") or any(hasattr(each, name) for each in kinds)):
        return f"of the enum {shown(hint)}", f"an enum is passed as it is; read its `{name}` inside a task"
    scalars = json_kinds(hint)
    # A task that continues with its error has that as its result, whatever it is hinted to return.
    is_scalar = scalars is not None and not scalars & {"object", "array"} and name != "error"
    return (f"of type {shown(hint)}", f"read its `{name}` inside a task") if is_scalar else None


def model_of_references(error: Exception) -> str:
    """The model of Pydantic that has refused a reference, or the text of one; empty for other errors."""
    found = error.errors() if isinstance(error, ValueError) and hasattr(error, "errors") else ()
    held = any(isinstance(each.get("input"), (Reference, FormattedText)) for each in found)
    return str(getattr(error, "title", "")) if held else ""


def is_about_reference(error: Exception) -> bool:
    """Whether an error is one of Python or a library that was given a reference, or the text of one."""
    kinds = (Reference, FormattedText)
    named = re.search(rf"\b({'|'.join(each.__name__ for each in kinds)})\b", str(error))
    given = named or any(isinstance(each, kinds) for each in error.args)
    return bool(given and isinstance(error, (TypeError, KeyError))) or MARKS.search(str(error)) is not None


def text_of(text: str, marks: Marks) -> Text | str:
    """A string that references were formatted into, taken apart."""
    parts: list[Place | str] = []
    for number, part in enumerate(FORMATTED.split(text)):
        mark = marks.use(part) if number % 2 else None
        if number % 2 and (mark is None or len(mark.places) != 1):
            raise not_known("a template is part of a default", "make the text inside a task")
        parts += [part if mark is None else mark.places[0]] if part else []
    if not any(isinstance(part, Place) for part in parts):
        return text
    # What is joined with an empty text is text, too.
    return Text(tuple(parts) if len(parts) > 1 else (*parts, ""))


def _step_text(step: str | int) -> str:
    return (
        f".{step}" if isinstance(step, str) and _NAME.fullmatch(step) else f"[{json.dumps(step, ensure_ascii=False)}]"
    )


# As a template.


def template_of(place: Place) -> str:
    return "{{ " + _expression(place) + " }}"


def text_template_of(place: Place) -> str:
    """A template that makes text of a value, also where it stands alone."""
    # A conditional expression reaches to the end of the template.
    return "{{ " + (f"({_expression(place)})" if place.handled else _expression(place)) + ' ~ "" }}'


def _expression(place: Place) -> str:
    if place.node is None or place.node in (ITEM, ITERATION):
        root = place.node or "inputs"
    elif _NAME.fullmatch(place.node) and place.node not in _TEMPLATE_WORDS:
        root = f"{place.node}.output"
    else:
        root = f"nodes[{json.dumps(place.node)}].output"
    text = root + "".join(map(_step_text, place.path))
    if place.default is MISSING:
        return text
    if place.handled:
        return f'{text} if ctx[{json.dumps(place.node)}].meta.status == "COMPLETED" else {_default(place.default)}'
    return f"{text} | default({_default(place.default)})"


def _default(value: Any) -> str:
    if isinstance(value, Place):
        return _expression(value)
    if isinstance(value, Text):
        return " ~ ".join(_expression(part) if isinstance(part, Place) else _literal(part) for part in value.parts)
    return template_literal(value)


def template_literal(value: Json) -> str:
    """A JSON value as a template writes it."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{template_literal(key)}: {template_literal(each)}" for key, each in value.items()) + "}"
        )
    if isinstance(value, list):
        return "[" + ", ".join(map(template_literal, value)) + "]"
    return "none" if value is None else _literal(value)


def _literal(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


# As CEL.


def cel_of(place: Place, own: str | None = None) -> str:
    """A place in CEL; the output of the node `own`, which decides, is called `output`."""
    if place.node is None or place.node == ITERATION:
        root = place.node or "inputs"
    elif place.node == own:
        root = "output"
    else:
        root = f"ctx.{place.node}.output" if _is_cel_name(place.node) else f"ctx[{json.dumps(place.node)}].output"
    text = root + "".join(
        f".{step}" if isinstance(step, str) and _is_cel_name(step) else f"[{_literal(step)}]" for step in place.path
    )
    if place.default is MISSING:
        return text
    other = place.default
    if isinstance(other, Text):
        raise not_known(f"{text} is compared, with a text as its default", IN_A_TASK)
    there = f'ctx[{json.dumps(place.node)}].meta.status == "COMPLETED"' if place.handled else f"has({text})"
    return f"({there} ? {text} : {cel_of(other, own) if isinstance(other, Place) else _literal(other)})"


def _is_cel_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name not in _CEL_WORDS


# Conditions.


class Condition:
    """Something that a run decides: a comparison, or several of them joined with `&`, `|` and `~`."""

    def render(self, own: str | None = None) -> Json:
        raise NotImplementedError

    def places(self) -> Iterator[Place]:
        raise NotImplementedError

    def __and__(self, other: Any) -> Condition:
        return Joined("AND", self, condition_of(other))

    def __or__(self, other: Any) -> Condition:
        return Joined("OR", self, condition_of(other))

    def __rand__(self, other: Any) -> Condition:
        return condition_of(other) & self

    def __ror__(self, other: Any) -> Condition:
        return condition_of(other) | self

    def __invert__(self) -> Condition:
        return Negation(self)

    def __repr__(self) -> str:
        if REFUSALS.get() is not None and not may_show(sys._getframe(1)):
            raise not_known(f"Python shows the condition {self.render()} in a text", IN_A_TASK)
        return str(self.render())

    __str__ = __repr__

    def __bool__(self) -> NoReturn:
        among = "; for `x in [1, 2]` write (x == 1) | (x == 2)" if getattr(self, "_operator", "") == "==" else ""
        raise not_known(f"Python asks whether {self.render()} is true", f"{BRANCH}; {JOINED}{among}")


RESULTS = (Reference, Condition)


class Comparison(Condition):
    def __init__(self, left: Reference, operator: str, right: object) -> None:
        self._left, self._operator = place_of(left), operator
        if isinstance(right, Condition):
            raise rejected("condition_operand", f"{left!r} is compared with the condition {right.render()}", hint=APART)
        varied = None if right is None else varied_in(hint_of(left)) or varied_type_of(right)
        if varied is not None:
            message = (
                f"`{left!r} {operator} {short(right)}`: a condition cannot compare {varied.__name__} as Python does"
            )
            hint = "compare inside a task that returns bool: `with tidemill.when(is_enough(…)):`"
            raise rejected("condition_operand", message, hint=hint)
        if isinstance(right, Reference):
            self._right: Any = place_of(right)
            return
        if isinstance(right, str) and MARKS.search(right):
            raise not_known(f"{left!r} is compared with a text that holds results", IN_A_TASK)
        try:
            self._right = to_json(right)
        except ConversionError:
            raise rejected(
                "condition_operand", f"{left!r} is compared with {right!r}, which is no JSON value", hint=IN_A_TASK
            ) from None

    def render(self, own: str | None = None) -> Json:
        right = cel_of(self._right, own) if isinstance(self._right, Place) else _literal(self._right)
        return f"{cel_of(self._left, own)} {self._operator} {right}"

    def places(self) -> Iterator[Place]:
        yield from self._left.read()
        if isinstance(self._right, Place):
            yield from self._right.read()


def varied_type_of(value: object) -> type | None:
    """The first type in a value, or in the hint of a reference, that JSON does not compare as Python does."""
    if isinstance(value, Reference):
        return varied_in(hint_of(value))
    if isinstance(value, (list, tuple)):
        return next(filter(None, map(varied_type_of, value)), None)
    return varied_type_of(list(value.values())) if isinstance(value, dict) else varied_in(type(value))


class Truth(Condition):
    """A reference to a boolean."""

    def __init__(self, reference: Reference) -> None:
        kinds = json_kinds(hint_of(reference)) if place_of(reference).default is MISSING else None
        if kinds is not None and "boolean" not in kinds:
            message = f"{reference!r} is {shown(hint_of(reference))}, and a condition is true or false"
            raise rejected("condition_shape", message, hint="compare it, as in tidemill.when(found != 0); " + APART)
        self._place = place_of(reference)

    def render(self, own: str | None = None) -> Json:
        return cel_of(self._place, own)

    def places(self) -> Iterator[Place]:
        yield from self._place.read()


class Written(Condition):
    """A condition in CEL, or an object with a `type`, as in a document."""

    def __init__(self, raw: Json) -> None:
        condition, problems = parse_condition(raw)
        if condition is None or problems:
            raise Rejected(problems)
        self._raw, self._nodes = raw, condition.references.nodes

    def render(self, own: str | None = None) -> Json:
        return self._raw

    def places(self) -> Iterator[Place]:
        yield from map(Place, sorted(self._nodes))


class Expression(Condition):
    """CEL that Tidemill itself has written."""

    def __init__(self, text: str) -> None:
        self._text = text

    def render(self, own: str | None = None) -> Json:
        return self._text

    def places(self) -> Iterator[Place]:
        yield from ()


class Joined(Condition):
    def __init__(self, operator: str, *parts: Condition) -> None:
        self._operator, self._parts = operator, parts

    def render(self, own: str | None = None) -> Json:
        parts = [part.render(own) for part in self._parts]
        if all(isinstance(part, str) for part in parts):
            return {"AND": " && ", "OR": " || "}[self._operator].join(f"({part})" for part in parts)
        return {"type": "composite", "operator": self._operator, "conditions": parts}

    def places(self) -> Iterator[Place]:
        for part in self._parts:
            yield from part.places()


class Negation(Condition):
    def __init__(self, part: Condition) -> None:
        self._part = part

    def render(self, own: str | None = None) -> Json:
        part = self._part.render(own)
        return f"!({part})" if isinstance(part, str) else {"type": "composite", "operator": "NOT", "conditions": [part]}

    def places(self) -> Iterator[Place]:
        yield from self._part.places()


def condition_of(given: object) -> Condition:
    """What a caller gave as a condition: a comparison, a reference, CEL text, or an object with a `type`."""
    if isinstance(given, Condition):
        return given
    if isinstance(given, Reference):
        return Truth(given)
    if isinstance(given, str) and MARKS.search(given):
        hint = "compare the result itself, as in tidemill.when(found > 3), or do it inside a task"
        raise not_known(f"a condition is made of a text with results: {readable(given)}", hint)
    if isinstance(given, (str, dict)):
        return Written(given)
    if isinstance(given, bool):
        message = f"the condition is {given} already when the workflow is built"
        raise rejected("condition_constant", message, hint="use a plain `if`, or compare a task's result")
    hint = f"compare a task's result or a parameter, or write CEL text; {APART}"
    raise rejected("condition_shape", f"{given!r} is not a condition", hint=hint)
