"""`retention` in a document: read, refused, kept in the compiled form, and part of what a version is."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernel.authoring import TYPES, document, node
from tidemill.errors import Rejected
from tidemill.kernel.compile import compile_document
from tidemill.kernel.document import normalise
from tidemill.kernel.document.diff import diff_documents
from tidemill.kernel.document.patch import apply_patch
from tidemill.kernel.model import Retention, Workflow, decode_workflow, encode_workflow

REFUSED = [
    ("wrong_type", "/retention", 30),
    ("wrong_type", "/retention/days", {"days": "30"}),
    ("wrong_type", "/retention/days", {"days": True}),
    ("wrong_type", "/retention/keep", {"keep": 1}),
    ("out_of_range", "/retention/days", {"days": -1}),
    ("out_of_range", "/retention/days", {"days": 36_501}),
    ("unknown_key", "/retention/day", {"day": 3}),
    ("conflicting_keys", "/retention/days", {"days": 3, "keep": True}),
]


def compiled(**more: Any) -> Workflow:
    return compile_document(document(node("a"), **more), TYPES).workflow


@pytest.mark.parametrize(("code", "path", "given"), REFUSED)
def test_what_is_refused(code: str, path: str, given: Any) -> None:
    with pytest.raises(Rejected) as refused:
        compiled(retention=given)
    assert [(problem.code, problem.path) for problem in refused.value.problems] == [(code, path)]


def test_what_is_read() -> None:
    assert compiled().retention == Retention()
    assert compiled(retention={"days": 7}).retention == Retention(days=7.0)
    assert compiled(retention={"days": 0}).retention == Retention(days=0.0)
    assert compiled(retention={"keep": True}).retention == Retention(keep=True)


def test_saying_nothing_is_the_same_as_not_saying_it() -> None:
    plain = compiled()
    assert b"retention" not in encode_workflow(plain)
    for nothing in ({}, {"keep": False}, {"days": None}, None):
        assert compiled(retention=nothing).digest == plain.digest
        assert "retention" not in normalise(document(node("a"), retention=nothing))[0]


def test_a_compiled_form_is_read_back_with_its_digest() -> None:
    for given in ({"days": 30}, {"days": 0.5}, {"keep": True}):
        workflow = compiled(retention=given)
        again = decode_workflow(encode_workflow(workflow))
        assert (again, again.digest) == (workflow, workflow.digest)
        assert workflow.digest != compiled().digest


def test_patches_and_differences_know_it() -> None:
    old, _ = normalise(document(node("a")))
    new, _ = normalise(document(node("a"), retention={"days": 90}))
    operations = diff_documents(old, new)
    assert operations == [{"op": "add", "path": "/retention", "value": {"days": 90}}]
    assert normalise(apply_patch(old, operations))[0] == new
