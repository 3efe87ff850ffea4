"""The collector is paused while a document is read and compiled, and only then."""

from __future__ import annotations

import gc

import pytest

from tests.kernel.authoring import TYPES, chain
from tidemill.errors import Rejected
from tidemill.kernel.compile import compile_document
from tidemill.kernel.document import read_document
from tidemill.kernel.document.collector import paused_collector


def test_the_collector_runs_again_afterwards() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_refusal_does_not_leave_it_paused() -> None:
    for refused in (lambda: read_document("[", format="yaml"), lambda: compile_document({}, TYPES)):
        with pytest.raises(Rejected):
            refused()
        assert gc.isenabled()


def test_who_paused_it_keeps_it_paused() -> None:
    gc.disable()
    try:
        compile_document(chain("a", "b"), TYPES)
        assert not gc.isenabled()
    finally:
        gc.enable()
