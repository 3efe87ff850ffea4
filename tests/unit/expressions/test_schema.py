"""JSON Schema: checking schemas, and values against them."""

from __future__ import annotations

from typing import Any

import pytest

from tidemill.expressions.schema import (
    compile_schema,
)

PERSON = {"type": "object", "properties": {"name": {"type": "string"}}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("alternatives", "value", "path", "message"),
    [
        ([PERSON, {"type": "null"}], {"nmae": "x"}, "/nmae", 'there is no key "nmae" here'),
        ([{"type": "null"}, PERSON], {"name": 1}, "/name", '1 is not of type "string"'),
        ([PERSON, {"type": "string"}], {"nmae": "x"}, "", "it is none of: an object, a string"),
        ([PERSON, {"type": "null"}], 3, "", "it is none of: an object, null"),
    ],
)
def test_what_is_wrong_beside_null_is_told_at_its_place(alternatives: Any, value: Any, path: str, message: str) -> None:
    (problem,) = compile_schema({"anyOf": alternatives}).problems(value)
    assert (problem.path, problem.message) == (path, message)
