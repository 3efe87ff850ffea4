"""Values of Python types to JSON and back, by the type hints of functions.

A parameter whose hint is a dataclass, a msgspec struct, a Pydantic or attrs model, a named tuple, an enum, a date, a
path or another type that JSON lacks receives a value of that type; where it means plain JSON, the value is checked.
Where its type cannot be made of JSON, the value is passed on as it is. Of a union whose members JSON does not tell
apart, the first member that fits is made. Pydantic is recognised by its methods and never imported.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import decimal
import enum
import importlib
import inspect
import re
import types
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePath
from typing import Any, TypeVar, cast

import msgspec

from tidemill.blobs.payloads import as_builtin

Converter = Callable[[Any], Any]
ConversionError = (msgspec.MsgspecError, TypeError, ValueError, NotImplementedError)
"""What `convert` raises for a value that does not fit."""

PLAIN, CONVERTED, OPAQUE = range(3)
"""What a hint asks for: JSON as it is, a conversion, or a type that Tidemill cannot make of JSON."""

VALUE_SHOWN_MAX = 80
CLASSES_MAX = 10_000
SECRET_HINT = 'read it where it is used: context.secrets["NAME"]'

_EXACT = (type(None), str, int, float, bool, list, dict)
"""Types whose own values need no conversion."""
_MODULES = re.compile(r"\b(?:[A-Za-z_]\w*\.(?:<locals>\.)?)+")
DAY = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
HOUR = r"([01]\d|2[0-3]):[0-5]\d"
ZONE = r"([Zz]|[+-]\d\d:?\d\d)?"
DATETIME_WORDS = "a datetime such as 2030-01-31T12:00:00Z"
DATETIME = msgspec.Meta(
    extra_json_schema={"pattern": rf"^{DAY}[Tt ]{HOUR}:[0-5]\d(\.\d+)?{ZONE}$", "description": DATETIME_WORDS}
)
"""What msgspec takes for a datetime: the format `date-time` of JSON Schema asks for a zone."""
_NUMBER = r"\d+(\.\d+)?"
DURATION = rf"({_NUMBER}D|(\d+D)?T({_NUMBER}H|(\d+H)?{_NUMBER}M|(\d+H)?(\d+M)?{_NUMBER}S))"
"""What msgspec takes for a timedelta after the `P`: the format `duration` allows neither fractions nor signs."""
DURATION_WORDS = "a duration such as PT1M30S, PT0.5S or P2D"
_ANYTHING = (Any, object)
_SCALARS = (*_ANYTHING, None, type(None), str, int, float, bool)
_STRINGS = (
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
    *(uuid.UUID, decimal.Decimal, bytes, bytearray),
)
"""Types that JSON writes as strings; paths are others."""
_VARIED = (
    *(datetime.datetime, datetime.time, datetime.timedelta, decimal.Decimal),
    *(uuid.UUID, bytes, bytearray, PurePath, set, frozenset),
)
"""Types whose values JSON does not order as Python does, or writes in several ways, such as 2.2 and 2.20."""
_LISTS = (list, collections.abc.Sequence, collections.abc.MutableSequence, collections.abc.Collection)
_MAPPINGS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_OTHER_ARRAYS = (tuple, set, frozenset, collections.abc.Set, collections.abc.MutableSet)


class _Annotated:
    """Carries one annotation, so that a hint that cannot be resolved does not hide the others."""

    def __init__(self, name: str, annotation: Any) -> None:
        self.__annotations__ = {name: annotation}


def hints_of(function: Any) -> dict[str, Any]:
    """The type hints of a function by parameter, `return` included; those that cannot be resolved are left out.

    A parameter that is None by default may be None.
    """
    found: dict[str, Any] = {}
    names = getattr(inspect.unwrap(function), "__globals__", {})
    for name, annotation in getattr(function, "__annotations__", {}).items():
        try:
            found |= typing.get_type_hints(_Annotated(name, annotation), names, include_extras=True)
        except Exception:
            continue
    with suppress(TypeError, ValueError):  # Python cannot inspect it, or a hint cannot be part of a union.
        for name, each in inspect.signature(function).parameters.items():
            if each.default is None and name in found:
                found[name] = found[name] | None
    return found


def converter(hint: Any) -> Converter | None:
    """What checks a JSON value and makes one of the hint's type of it; None where any value will do."""
    kind, hint = conversion_of(hint), with_stand_ins(hint)
    if kind == OPAQUE or any(unwrapped(hint) is each for each in _ANYTHING) or isinstance(hint, TypeVar):
        return None
    try:
        box = _prepared(hint)
    except (TypeError, NotImplementedError, NameError):
        return _first_fit(hint) if members_of(hint) and not ambiguity(hint) else None
    exact, checked_only = _exact_types(hint), kind == PLAIN and _has_typed_dict(hint)

    def converted(value: Any) -> Any:
        if type(value) in exact:
            return value
        try:
            found = msgspec.convert({"value": value}, box, str_keys=True, dec_hook=_decode).value
        except ConversionError:
            return convert(hint, value)  # Raises again, with the place in the value itself.
        # msgspec leaves out the keys that a TypedDict does not list.
        return value if checked_only else found if kind == PLAIN else _completed(found)

    return converted


class _StandIn(type):
    """The class of what msgspec is given for a type that it cannot make; it has the methods of a model."""

    def __instancecheck__(cls, value: Any) -> bool:
        return isinstance(value, cls.members)  # type: ignore[attr-defined]


def _stand_in(name: str, members: tuple[Any, ...], make: Converter, schema: Any = lambda **_: {}) -> type:
    methods = {"model_validate": make, "model_json_schema": schema, "model_dump": None, "members": members}
    return _StandIn(name, (), methods)


def with_stand_ins(hint: Any, *, dates: bool = False, begun: tuple[Any, ...] = ()) -> Any:
    """A hint in which what msgspec cannot make is one type, also inside of lists, mappings, dataclasses and structs.

    It is a union with a discriminator of Pydantic, or an enum whose values are neither texts nor whole numbers. For a
    schema, datetimes have their pattern, and flags stand for all their sums.
    """
    if dates and hint is datetime.datetime:
        return typing.Annotated[hint, DATETIME]
    if isinstance(hint, type) and _holds_odd_enum(hint, dates, set()):
        if hint in begun:  # It refers to itself.
            made = _stand_in(hint.__name__, (hint,), lambda value: cast(Converter, converter(hint))(value))
            return Any if dates else made
        if issubclass(hint, enum.Enum):
            return _stand_in(hint.__name__, (hint,), _enum_converter(hint), lambda **_: _enum_schema(hint))
        return _class_stand_in(hint, dates, (*begun, hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        inner, *details = arguments
        marks = [each for each in details if getattr(each, "discriminator", None)]
        members = tuple(filter(is_model, members_of(inner)))
        if not marks or not members:
            return hint
        adapter: Any = importlib.import_module(type(marks[0]).__module__.partition(".")[0]).TypeAdapter(hint)
        return _stand_in(shown(inner), members, adapter.validate_python, adapter.json_schema)
    keys = arguments[:1] if origin in _MAPPINGS else ()
    changed = keys + tuple(with_stand_ins(each, dates=dates, begun=begun) for each in arguments[len(keys) :])
    if changed == arguments or origin is typing.Literal:
        return hint
    return typing.Union[changed] if origin in (typing.Union, types.UnionType) else origin[changed]  # noqa: UP007


def _holds_odd_enum(hint: Any, dates: bool, seen: set[str]) -> bool:
    """Whether there is an enum in a hint that msgspec cannot make, or whose schema it does not know."""
    hint = unwrapped(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return (dates and issubclass(hint, enum.Flag)) or _is_odd(hint)
    if (key := f"{id(typing.get_origin(hint) or hint)} {hint}") in seen or len(seen) > CLASSES_MAX:
        return False
    seen.add(key)  # Classes may refer to one another in many ways.
    is_made = isinstance(hint, type) and (dataclasses.is_dataclass(hint) or issubclass(hint, msgspec.Struct))
    inner = (*typing.get_args(hint), *((fields_of(hint) or {}).values() if is_made else ()))
    return any(_holds_odd_enum(each, dates, seen) for each in inner)


@lru_cache
def _is_odd(kind: type[enum.Enum]) -> bool:
    try:
        msgspec.json.Decoder(kind)
    except TypeError:
        return True
    return False


def _enum_values(kind: type[enum.Enum]) -> dict[bytes, enum.Enum]:
    """The members of an enum by the JSON of their values; the first of several with the same, none without any."""
    found: dict[bytes, enum.Enum] = {}
    for member in kind:
        with suppress(*ConversionError):
            found.setdefault(msgspec.json.encode(member, enc_hook=plain), member)
    return found


def _enum_schema(kind: type[enum.Enum]) -> dict[str, Any]:
    values = _enum_values(kind)
    if issubclass(kind, enum.Flag):
        words = ", ".join(f"{member.value} ({member.name})" for member in values.values())
        return {"title": kind.__name__, "type": "integer", "description": f"a sum of {words}"}
    return {"title": kind.__name__, "enum": [msgspec.json.decode(each) for each in values]}


def _enum_converter(kind: type[enum.Enum]) -> Converter:
    """What finds the member of an enum whose value has this JSON."""
    members = _enum_values(kind)
    values = [] if issubclass(kind, enum.Flag) else [(msgspec.json.decode(each), members[each]) for each in members]

    def converted(value: Any) -> Any:
        # Another program may write 6000000 for 6000000.0.
        near = (member for each, member in values if each == value and not isinstance(value, bool))
        return members.get(msgspec.json.encode(value)) or next(near, None) or kind(value)

    return converted


def _class_stand_in(kind: Any, dates: bool, begun: tuple[Any, ...]) -> Any:
    """What makes a dataclass or struct that has such fields; for a schema, a class with the same fields."""
    hints = {name: with_stand_ins(each, dates=dates, begun=begun) for name, each in hints_of_class(kind).items()}
    is_struct = issubclass(kind, msgspec.Struct)
    known: Any = msgspec.structs.fields(kind) if is_struct else [each for each in dataclasses.fields(kind) if each.init]
    given = {each.name: {"default": each.default, "default_factory": each.default_factory} for each in known}
    if is_struct:
        own = {each.name: msgspec.field(name=each.encode_name, **given[each.name]) for each in known}
        specs = [(name, hints[name], field) for name, field in own.items()]
        words = ("tag", "tag_field", "forbid_unknown_fields", "array_like")
        options = {word: getattr(kind.__struct_config__, word) for word in words}
        other: Any = msgspec.defstruct(kind.__name__, specs, kw_only=True, **options)
    else:
        fields = [(name, hints.get(name, Any), dataclasses.field(**each)) for name, each in given.items()]
        other = dataclasses.make_dataclass(kind.__name__, fields, kw_only=True)
    make = None if dates else converter(other)

    def converted(value: Any) -> Any:
        found = cast(Converter, make)(value)
        return kind(**{name: getattr(found, name) for name in given})

    return other if dates else kind if make is None else _stand_in(kind.__name__, (kind,), converted)


def _prepared(hint: Any) -> Any:
    """A struct with one field: msgspec prepares the type of a field once, and any other type at every call."""
    box = msgspec.defstruct("Value", [("value", hint)])
    msgspec.json.Decoder(box, dec_hook=_decode)
    return box


def members_of(hint: Any) -> tuple[Any, ...]:
    """The members of a union; none for another hint."""
    hint = unwrapped(hint)
    return typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else ()


def alternatives_of(hint: Any) -> list[Any]:
    """The types that values of a hint may have: the members of a union, or the one."""
    return [unwrapped(each) for each in members_of(hint) or (hint,)]


def ambiguity(hint: Any) -> str:
    """The union inside of a hint whose members JSON does not tell apart; the hint may itself be such a union."""
    if conversion_of(hint) == OPAQUE:
        return ""
    hint = with_stand_ins(hint)
    for each in members_of(hint) or (hint,):
        try:
            _prepared(each)
        except TypeError as error:
            union = re.search(r"^Type unions .* - type `(.*)` is not supported$", str(error), re.DOTALL)
            if union is not None:
                return _MODULES.sub("", union[1])
        except (NotImplementedError, NameError):
            continue  # A name that is imported for type checkers only, for example: the value is not checked.
    return ""


def _first_fit(union: Any) -> Converter:
    """What makes the first member of a union that fits; a member that knows all keys of an object comes before others.

    Numbers, true, false and null that are members stay what they are.
    """
    exact = _exact_types(union) - {str, list, dict}
    members = [(each, fields_of(each), converter(each)) for each in members_of(union)]

    def converted(value: Any) -> Any:
        if type(value) in exact:
            return value
        keys = value.keys() if isinstance(value, dict) else set()
        problems = []
        for member, _, convert_ in sorted(members, key=lambda each: each[1] is not None and not keys <= each[1].keys()):
            try:
                return value if convert_ is None else convert_(value)
            except ConversionError as error:
                problems.append(f"{shown(member)}: {error}")
        raise msgspec.ValidationError("; ".join(problems))

    return converted


def _exact_types(hint: Any) -> frozenset[type]:
    """The types whose values fit the hint whatever is in them."""
    if any(isinstance(each, msgspec.Meta) for each in getattr(hint, "__metadata__", ())):
        return frozenset()
    hint = unwrapped(hint)
    members = members_of(hint) or (hint,)
    free = {list[Any]: list, dict[str, Any]: dict}
    return frozenset(free.get(each, each) for each in members if each in _EXACT or each in free)


def _has_typed_dict(hint: Any) -> bool:
    hint = unwrapped(hint)
    return typing.is_typeddict(hint) or any(map(_has_typed_dict, typing.get_args(hint)))


def result_check(hint: Any) -> Converter | None:
    """What raises one of `ConversionError` for a result that does not fit; None where any will do.

    Items of a list or mapping whose type JSON lacks are not looked at.
    """
    if conversion_of(hint) == CONVERTED:
        hint = unwrapped(hint)
        origin = typing.get_origin(hint)
        hint = list if origin in _LISTS else dict if origin in _MAPPINGS else hint
    convert_ = converter(hint)
    if convert_ is None:
        return None
    is_class = isinstance(hint, type) and not typing.get_origin(hint) and not typing.is_typeddict(hint)
    kind = hint if is_class and conversion_of(hint) == CONVERTED else ()

    def check(value: Any) -> None:
        # A condition compares dates as text, and a datetime is a date to Python.
        if not isinstance(value, kind) or (kind is datetime.date and isinstance(value, datetime.datetime)):
            convert_(value)

    return check


def convert(hint: Any, value: Any) -> Any:
    """Make a value of the hint's type of a JSON value; raises one of `ConversionError`."""
    return _completed(msgspec.convert(value, hint, str_keys=True, dec_hook=_decode))


def _completed(value: Any) -> Any:
    """Give dataclasses their defaults as attributes of their own: msgspec leaves them to the class, and writes none."""
    if isinstance(value, list):
        for each in value:
            _completed(each)
    elif isinstance(value, dict):
        for each in value.values():
            _completed(each)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        for field in dataclasses.fields(value):
            value.__dict__.setdefault(field.name, getattr(value, field.name))
            _completed(value.__dict__[field.name])
    return value


def shown(hint: Any) -> str:
    """A hint as its author writes it."""
    if isinstance(hint, type) and not hasattr(hint, "__origin__"):
        return hint.__name__
    return _MODULES.sub("", str(with_stand_ins(hint)))


def failure_in(value: Any) -> str:
    """Where a value holds the failure that its node continued with; empty if it holds none."""
    items = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
    for number, each in items:
        error = each.get("error") if isinstance(each, dict) and len(each) == 1 else None
        if isinstance(error, dict) and {"code", "message"} <= error.keys():
            return f"item {number} is a tolerated failure" if number is not None else "it is a tolerated failure"
    return ""


def short(value: Any) -> str:
    """A value as messages show it."""
    text = repr(value)
    return text if len(text) <= VALUE_SHOWN_MAX else f"{text[:VALUE_SHOWN_MAX]}…"


def _decode(kind: type, value: Any) -> Any:
    if is_model(kind):
        return kind.model_validate(value)  # type: ignore[attr-defined]
    if isinstance(value, kind):
        return value
    if issubclass(kind, PurePath):
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{type(value).__name__}`")
        return kind(value)
    raise NotImplementedError(f"{kind.__name__} cannot be made of JSON")


def is_model(kind: Any) -> bool:
    return isinstance(kind, type) and hasattr(kind, "model_validate") and hasattr(kind, "model_dump")


def key_of(hint: Any, attribute: str) -> str:
    """The key that an attribute of a value has in JSON, where it has another name there."""
    kind = unwrapped(hint)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_fields__, kind.__struct_encode_fields__, strict=True)).get(attribute, attribute)
    field = _model_fields(kind).get(attribute)
    return getattr(field, "serialization_alias", None) or attribute


def _model_fields(kind: Any) -> Mapping[str, Any]:
    fields = getattr(kind, "model_fields", None) if is_model(kind) else None
    return fields if isinstance(fields, dict) else {}


def fields_of(hint: Any) -> Mapping[str, Any] | None:
    """The fields of a type that is an object in JSON, by key, with their hints; None where they are not known."""
    kind = unwrapped(hint)
    origin = typing.get_origin(kind)
    if origin is not None and isinstance(parameters := getattr(origin, "__parameters__", None), tuple):
        given = dict(zip(parameters, typing.get_args(kind), strict=False))
        found = fields_of(origin)
        return found and {name: _filled(each, given) for name, each in found.items()}
    if not isinstance(kind, type):
        return None
    if issubclass(kind, msgspec.Struct):
        hints = hints_of_class(kind)
        return {key_of(kind, name): hints.get(name, Any) for name in kind.__struct_fields__}
    if dataclasses.is_dataclass(kind):
        hints = hints_of_class(kind)
        return {field.name: hints.get(field.name, Any) for field in dataclasses.fields(kind)}
    if fields := _model_fields(kind):
        return {key_of(kind, name): getattr(each, "annotation", Any) for name, each in fields.items()}
    if typing.is_typeddict(kind):
        return hints_of_class(kind)
    return None


def _filled(hint: Any, given: Mapping[Any, Any]) -> Any:
    """A hint with the types that were given for its type variables."""
    if isinstance(hint, TypeVar):
        return given.get(hint, Any)
    open_ = getattr(hint, "__parameters__", ())
    return hint[tuple(given.get(each, Any) for each in open_)] if open_ and typing.get_origin(hint) else hint


def fields_of_tuple(hint: Any) -> tuple[str, ...]:
    """The fields of a named tuple, which is a list in JSON; empty for other types."""
    kind = unwrapped(hint)
    return getattr(kind, "_fields", ()) if isinstance(kind, type) and issubclass(kind, tuple) else ()


def part_of(hint: Any, key: str | int) -> Any:
    """The hint of a field or item of a value; Any where it is not known."""
    hint = unwrapped(hint)
    if isinstance(key, int) and (named := fields_of_tuple(hint)):
        return hints_of_class(hint).get(named[key], Any) if -len(named) <= key < len(named) else Any
    if members := [each for each in members_of(hint) if each is not type(None)]:
        return typing.Union[tuple(part_of(each, key) for each in members)]  # noqa: UP007 - of a list
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _MAPPINGS and len(arguments) == 2:
        return arguments[1]
    if isinstance(key, str):
        return (fields_of(hint) or {}).get(key, Any)
    if origin is tuple and ... not in arguments and -len(arguments) <= key < len(arguments):
        return arguments[key]
    return item_of(hint)


def kinds_in(hint: Any, field: str = "", seen: set[str] | None = None) -> Iterator[tuple[str, type]]:
    """The types in a hint, each with the field that holds it (`Order.amount`); none for what an enum or literal is."""
    hint = unwrapped(hint)
    kind, seen = typing.get_origin(hint) or hint, set() if seen is None else seen
    if kind is typing.Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return
    for each in typing.get_args(hint):
        yield from kinds_in(each, field, seen)
    if isinstance(kind, type):
        yield field, kind
        if (key := f"{id(kind)} {hint}") in seen or len(seen) > CLASSES_MAX:
            return
        seen.add(key)  # Classes may refer to one another in many ways.
        has_hints = hasattr(kind, "_fields") or hasattr(kind, "__attrs_attrs__")
        for name, each in ((hints_of_class(kind) if has_hints else fields_of(hint)) or {}).items():
            yield from kinds_in(each, f"{shown(hint)}.{name}", seen)


def varied_in(hint: Any) -> type | None:
    """The first type in a hint that JSON does not compare as Python does."""
    # Pydantic has its own, such as AwareDatetime.
    return next(
        (
            kind
            for _, kind in kinds_in(hint)
            if issubclass(kind, _VARIED) or kind in _OTHER_ARRAYS[1:] or kind.__name__.endswith("Datetime")
        ),
        None,
    )


def secret_in(hint: Any) -> str:
    """What a hint holds that writes itself as asterisks, such as Pydantic's SecretStr; empty if it holds nothing."""
    found = ((field, kind) for field, kind in kinds_in(hint) if hasattr(kind, "get_secret_value"))
    return next((f"{field or 'it'} is a {kind.__name__}, which JSON shows as asterisks" for field, kind in found), "")


secret_of_class: Callable[[Any], str] = lru_cache(secret_in)


def plain(value: Any) -> Any:
    """What a value of a foreign type is in JSON. Raises TypeError for others, and for those that hold secrets."""
    if secret := secret_of_class(type(value)):
        raise TypeError(f"{secret}; {SECRET_HINT}")
    return as_builtin(value)


def to_json(value: Any, hook: Callable[[Any], Any] = plain) -> Any:
    """Any value as JSON; `hook` is asked for those of foreign types. Raises one of `ConversionError`."""
    found = msgspec.to_builtins(value, str_keys=True, enc_hook=hook)
    return msgspec.to_builtins(found, str_keys=True, enc_hook=hook)  # The value of an enum was left as it is.


def hints_of_class(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception:
        return dict.fromkeys(getattr(kind, "__annotations__", {}), Any)


def unwrapped(hint: Any) -> Any:
    """The hint without `Annotated`, `NewType` and names of types."""
    while True:
        if typing.get_origin(hint) is typing.Annotated:
            hint = typing.get_args(hint)[0]
        elif hasattr(hint, "__supertype__"):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def conversion_of(hint: Any, seen: tuple[Any, ...] = ()) -> int:
    """Whether values of the hint's type are plain JSON, can be made of JSON, or neither."""
    if any(isinstance(each, msgspec.Meta) for each in getattr(hint, "__metadata__", ())):
        return CONVERTED
    hint = unwrapped(hint)
    if any(hint is each for each in (*_SCALARS, *_LISTS, *_MAPPINGS)) or isinstance(hint, TypeVar):
        return PLAIN
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return PLAIN
    inner = max((conversion_of(each, seen) for each in arguments if each is not ...), default=PLAIN)
    if origin in (typing.Union, types.UnionType, *_LISTS):
        return inner
    if origin in _MAPPINGS:
        return inner if not arguments or arguments[0] is str else max(CONVERTED, inner)
    if origin in _OTHER_ARRAYS:
        return max(CONVERTED, inner)
    kind = origin or hint
    if not isinstance(kind, type) or kind in seen:
        return PLAIN if kind in seen else OPAQUE
    if typing.is_typeddict(kind):
        return max((conversion_of(each, (*seen, kind)) for each in hints_of_class(kind).values()), default=PLAIN)
    known = issubclass(kind, (msgspec.Struct, enum.Enum, PurePath)) or dataclasses.is_dataclass(kind) or is_model(kind)
    named_tuple = issubclass(kind, tuple) and hasattr(kind, "_fields")
    if known or named_tuple or hasattr(kind, "__attrs_attrs__") or kind in (*_STRINGS, *_OTHER_ARRAYS):
        return CONVERTED
    return OPAQUE


def json_kinds(hint: Any) -> frozenset[str] | None:
    """The JSON types that values of the hint's type have; None where any is possible."""
    hint = unwrapped(hint)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        kinds = [json_kinds(each) for each in typing.get_args(hint)]
        return None if None in kinds else frozenset().union(*(each for each in kinds if each is not None))
    kind = origin or hint
    if kind is None or kind is type(None):
        return frozenset(["null"])
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return frozenset(["string"])
    for known, name in (((str, *_STRINGS), "string"), ((bool,), "boolean"), ((int, float), "number")):
        if kind in known:
            return frozenset([name])
    if kind in (*_LISTS, *_OTHER_ARRAYS) or (isinstance(kind, type) and issubclass(kind, tuple)):
        return frozenset(["array"])
    if kind in _MAPPINGS or is_model(kind) or fields_of(kind) is not None:
        return frozenset(["object"])
    return None


def item_of(hint: Any) -> Any:
    """The hint of the items of a list; Any where it is not known."""
    arguments = typing.get_args(hint := unwrapped(hint))
    of_one = typing.get_origin(hint) in (*_LISTS, *_OTHER_ARRAYS) and len({*map(str, arguments)} - {"Ellipsis"}) == 1
    return arguments[0] if of_one else Any
