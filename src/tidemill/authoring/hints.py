"""What functions hint and name: whether a value, or those of one hint, can have the type of another, before they run.

A type is refused only if no value of it fits: what is not known fits.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CellType, CodeType, FrameType, ModuleType
from typing import Any

import msgspec

from tidemill.authoring.formatted_text import BEGIN, FormattedText
from tidemill.authoring.function_source import is_of_tidemill
from tidemill.authoring.reference import MISSING, Reference, hint_of, place_of
from tidemill.errors import offered
from tidemill.handlers.python.conversion import (
    ConversionError,
    alternatives_of,
    fields_of,
    is_model,
    item_of,
    json_kinds,
    plain,
    short,
    shown,
    to_json,
)


class ToleratedFailure(typing.TypedDict):
    """What stands in the place of a failed item in the results of a map."""

    error: dict[str, Any]


def misfit(hint: Any, value: Any, convert: Callable[[Any], Any] | None) -> str:
    """Why a value cannot have the type of a hint; empty if it can, or if that is not known yet."""
    if isinstance(value, Reference):
        # What stands in for it may have another type.
        has = hint_of(value) if place_of(value).default is MISSING else Any
        kinds, wanted = json_kinds(has), json_kinds(hint)
        if kinds is not None and wanted is not None and not kinds & wanted:
            return f"{value!r} is {shown(has)}"
        reason = misfit_of(has, hint)
        return f"{value!r}, which is {shown(has)}, {reason}" if reason else ""
    if convert is None:
        return ""
    try:
        found = to_json(value, _no_reference)
        if BEGIN.encode() not in msgspec.json.encode(found):
            convert(found)
    except msgspec.ValidationError as error:
        return f"{short(value)} is not: {error}"
    except (_HasReference, *ConversionError):
        pass  # Not known yet, or not JSON, which is reported where it is written.
    return ""


class _HasReference(Exception):
    """A value holds a reference, so its type is not known yet."""


def _no_reference(value: Any) -> Any:
    if isinstance(value, (Reference, FormattedText)):
        raise _HasReference
    return plain(value)


def misfit_of(has: Any, wants: Any) -> str:
    """Why values of one hint cannot all have the type of another, as the end of a sentence; empty if they may."""
    sources, targets = alternatives_of(has), alternatives_of(wants)
    if ToleratedFailure in sources and not any(_may_be(ToleratedFailure, each) for each in targets):
        return 'may be a tolerated failure, {"error": …}'
    if not any(_may_be(source, target) for source in sources for target in targets):
        fields = fields_of(sources[0]) or {}
        missing = [name for each in targets for name in sorted(_required(each) or ()) if name not in fields]
        return f"has no field {missing[0]!r}" if fields and missing else "is of another type"
    if {json_kinds(has), json_kinds(wants)} == {frozenset(["array"])}:
        reason = misfit_of(item_of(has), item_of(wants))
        return reason and f"has items, of which one {reason}"
    return ""


def _may_be(has: Any, wants: Any) -> bool:
    """Whether some value of one type may have the other; not if a required field is certainly missing."""
    kinds, wanted = json_kinds(has), json_kinds(wants)
    if kinds is not None and wanted is not None and not kinds & wanted:
        return False
    fields, required = fields_of(has), _required(wants)
    if fields is None or required is None or required <= fields.keys():
        return True
    own, other = (typing.get_origin(each) or each for each in (has, wants))
    is_open = typing.is_typeddict(own) and own is not ToleratedFailure
    return is_open or _is_free(own) or own in getattr(other, "__mro__", ())


def _required(hint: Any) -> set[str] | None:
    """The keys that an object of a type must have; None where they are not known."""
    kind = typing.get_origin(hint) or hint
    if not isinstance(kind, type) or _is_free(kind):
        return None
    if dataclasses.is_dataclass(kind):
        missing = dataclasses.MISSING
        given = [each for each in dataclasses.fields(kind) if each.default is missing]
        return {each.name for each in given if each.init and each.default_factory is missing}
    if issubclass(kind, msgspec.Struct):
        return {each.encode_name for each in msgspec.structs.fields(kind) if each.required}
    if typing.is_typeddict(kind):
        return set(getattr(kind, "__required_keys__", ()))
    fields = getattr(kind, "model_fields", {}).items() if is_model(kind) else ()
    names = {each.validation_alias or name for name, each in fields if each.is_required()}
    return names if fields and all(isinstance(each, str) for each in names) else None


def _is_free(kind: Any) -> bool:
    """Whether a model of Pydantic takes or writes other keys than those of its fields."""
    if not is_model(kind):
        return False
    config, made = getattr(kind, "model_config", {}), getattr(kind, "__pydantic_decorators__", None)
    ways = ("model_validators", "model_serializers", "computed_fields")
    names = any(config.get(key) for key in ("populate_by_name", "validate_by_name"))
    is_root = "root" in getattr(kind, "model_fields", {})
    return config.get("extra") == "allow" or names or is_root or any(getattr(made, way, None) for way in ways)


# Hints that are written as text.


def resolve_locals(function: Any) -> Any:
    """The function, with its hints resolved that name what the function around it has defined, as Python does not."""
    names, hints = getattr(function, "__globals__", {}), getattr(function, "__annotations__", {})
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_of_tidemill(frame):
        frame = frame.f_back
    if frame is None or frame.f_locals is frame.f_globals:
        return function
    for name, hint in hints.items():
        if isinstance(hint, str) and _missing_name(hint, names):
            with suppress(Exception):
                kind = type("Hinted", (), {"__annotations__": {name: hint}})
                hints[name] = typing.get_type_hints(kind, names, dict(frame.f_locals), include_extras=True)[name]
    return function


def check_names(function: Any, problem: Callable[[str, str, str], None]) -> None:
    """Record the hints of a function that name nothing; those of imports for type checkers may."""
    function = inspect.unwrap(function)
    names = getattr(function, "__globals__", {})
    for name, hint in getattr(function, "__annotations__", {}).items():
        missing = _missing_name(hint, names) if isinstance(hint, str) else ""
        if missing and missing not in _for_type_checkers(function):
            meant = offered(missing, [*(each for each in names if each[0] != "_"), *vars(builtins)])
            hint_of_problem = meant if meant.startswith("did") else "define or import it above the function"
            message = f"{function.__name__}(…): `{name}` is hinted {hint}, and there is no {missing}"
            problem("hint_unknown", message, hint_of_problem)


def _missing_name(hint: str, names: dict[str, Any]) -> str:
    try:
        typing.get_type_hints(type("Hinted", (), {"__annotations__": {"hint": hint}}), names)
    except NameError as error:
        return error.name or str(error).partition("'")[2].partition("'")[0]
    except Exception:
        return ""
    return ""


def _for_type_checkers(function: Any) -> set[str]:
    """The names that a module imports or defines for type checkers only."""
    try:
        tree = ast.parse(Path(function.__code__.co_filename).read_text("utf-8"))
    except (OSError, ValueError, SyntaxError, AttributeError):
        return set()
    found: set[str] = set()
    for each in ast.walk(tree):
        if isinstance(each, ast.If) and "TYPE_CHECKING" in ast.unparse(each.test):
            for inner in ast.walk(each):
                if isinstance(inner, ast.alias):
                    found.add((inner.asname or inner.name).partition(".")[0])
                elif isinstance(inner, (ast.ClassDef, ast.FunctionDef)):
                    found.add(inner.name)
                elif isinstance(inner, ast.Name):
                    found.add(inner.id)
    return found


# What a function names.


Named = tuple[dict[str, Any] | CellType, str, object]
"""Global names or a cell of a closure, a name, and what it stands for."""


def value_of(where: dict[str, Any] | CellType, name: str) -> object:
    return where.get(name) if isinstance(where, dict) else where.cell_contents


def named_values(function: Any, kind: type) -> list[Named]:
    """The values of a kind that a function names, itself, in modules, or by way of other functions of its module."""
    found: list[Named] = []
    waiting = [each for each in [inspect.unwrap(function)] if inspect.isfunction(each)]
    for each in waiting:
        names, own = _names(each.__code__), each.__globals__
        cells = zip(each.__closure__ or (), each.__code__.co_freevars, strict=False)
        places: list[tuple[dict[str, Any] | CellType, str]] = [place for place in cells if place[0] != CellType()]
        places += [(own, name) for name in names if name in own]
        modules: list[ModuleType] = []
        for where, name in places:
            value: Any = value_of(where, name)
            is_near = inspect.isfunction(value) and value.__globals__ is own
            if is_near or isinstance(value, kind):
                found.append((where, name, value))
            if is_near and value not in waiting:
                waiting.append(value)
            if isinstance(value, ModuleType) and value not in modules:
                modules.append(value)
                places += [(vars(value), inner) for inner in names if inner in vars(value)]
    return found


def _names(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names(each) for each in code.co_consts if isinstance(each, CodeType)))
