"""The native CEL library, typed: the little of it that is used, and nothing else imports it.

Its errors are values: a failed evaluation answers a value of type ERROR whose content is a non-empty string,
which Python takes for true. Callers must accept nothing but the two booleans themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol, cast


class NativeType(Protocol):
    """A CEL type."""

    def name(self) -> str: ...


class NativeValue(Protocol):
    """The result of an evaluation, errors included."""

    def value(self) -> Any: ...

    def type(self) -> NativeType: ...


class NativeExpression(Protocol):
    """A compiled expression."""

    def eval(self, *, data: Mapping[str, Any]) -> NativeValue: ...

    def return_type(self) -> NativeType: ...

    def serialize(self) -> bytes: ...


class NativeEnv(Protocol):
    """A set of declared variables and functions."""

    def compile(self, expression: str, disable_check: bool = False) -> NativeExpression: ...

    def deserialize(self, serialized: bytes) -> NativeExpression: ...


@lru_cache(maxsize=4)
def native_env(variables: tuple[str, ...]) -> NativeEnv:
    """Make an environment in which the named variables may hold anything; `ctx` maps names to anything."""
    from cel_expr_python import cel  # type: ignore[import-untyped]
    from cel_expr_python.ext import ext_math, ext_optional, ext_strings  # type: ignore[import-untyped]

    anything = cel.Type.DYN
    declared = dict.fromkeys(variables, anything) | {"ctx": cel.Type.Map(cel.Type.STRING, anything)}
    extensions = [ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_math.ExtMath()]
    return cast(NativeEnv, cel.NewEnv(variables=declared, extensions=extensions))
