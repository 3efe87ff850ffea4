"""The node types that touch nothing, and what the compiler knows of them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.handlers.kit import called, context
from tidemill.errors import Rejected
from tidemill.handlers.contract import Fail, Pause, Return
from tidemill.handlers.control import FAIL, PLAIN, SLEEP, VALUE
from tidemill.kernel.compile.compiler import compile_document

HANDLERS = {handler.type.name: handler for handler in PLAIN}
TYPES = {handler.type.name: [handler.type] for handler in PLAIN}


@pytest.mark.parametrize("config", [None, 0, "text", [1, {"a": None}], {"x": {"y": 2.5}}])
async def test_value_returns_its_config(config: Any) -> None:
    assert await called(HANDLERS["value"], config) == Return(config)


async def test_fail_fails_with_its_kind() -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS["fail"], {"kind": "no_stock", "message": "sold out", "retryable": True})
    assert (failed.value.code, failed.value.message, failed.value.retryable) == ("no_stock", "sold out", True)


@pytest.mark.parametrize("config", [None, {}])
async def test_fail_has_defaults_and_is_not_retryable(config: Any) -> None:
    with pytest.raises(Fail) as failed:
        await called(HANDLERS["fail"], config)
    assert (failed.value.code, failed.value.retryable) == ("failed", False)
    assert failed.value.message


@pytest.mark.parametrize(("attempts", "fails"), [(0, 0), (1, 1), (3, 3)])
async def test_fail_may_stop_failing(attempts: int, fails: int) -> None:
    outcomes: list[Any] = []
    for attempt in range(1, 6):
        try:
            outcomes.append(await called(HANDLERS["fail"], {"attempts": attempts, "value": "v"}, attempt=attempt))
        except Fail:
            outcomes.append(None)
    assert outcomes == [None] * fails + [Return("v")] * (5 - fails)


@pytest.mark.parametrize(
    ("config", "ms"),
    [({"seconds": 5}, 5_000), ({"ms": 7}, 7), ({"seconds": 0.25}, 250), ({"seconds": 0}, 0), ({"ms": 0}, 0)],
)
async def test_sleep_asks_for_a_timer(config: Any, ms: int) -> None:
    assert await called(HANDLERS["sleep"], config) == Pause(on="timer", for_ms=ms)


BAD_CONFIGS = [
    ("sleep", {}),
    ("sleep", None),
    ("sleep", {"seconds": -1}),
    ("sleep", {"seconds": "5"}),
    ("sleep", {"seconds": 1, "ms": 1}),
    ("sleep", {"ms": 1.5}),
    ("sleep", {"ms": 10**15}),
    ("sleep", {"minutes": 1}),
    ("fail", {"kind": "Bad Kind"}),
    ("fail", {"kind": ""}),
    ("fail", {"kind": "x" * 65}),
    ("fail", {"attempts": -1}),
    ("fail", {"retryable": "yes"}),
    ("fail", {"surprise": 1}),
    ("fail", [1]),
]


@pytest.mark.parametrize(("name", "config"), BAD_CONFIGS)
def test_a_config_that_cannot_work_is_refused_when_published(name: str, config: Any) -> None:
    with pytest.raises(Rejected) as refused:
        compile_document({"name": "t", "nodes": [{"id": "a", "type": name, "config": config}]}, TYPES)
    assert {problem.code for problem in refused.value.problems} == {"config_invalid"}


def test_what_is_known_of_the_types() -> None:
    assert [kind.key for kind in (VALUE, FAIL, SLEEP)] == ["value@1", "fail@1", "sleep@1"]
    assert SLEEP.waits and not VALUE.waits and not FAIL.waits
    assert all(kind.description for kind in (VALUE, FAIL, SLEEP))


def test_the_effect_key_names_run_node_visit_and_item() -> None:
    assert context().effect_key == "r/n/1/-1"
    assert context(attempt=9).effect_key == "r/n/1/-1"
    assert context(visit=2, index=4).effect_key == "r/n/2/4"


def test_fail_is_an_exception_like_any_other() -> None:
    error = Fail("code", "words", retry_after_ms=5, hint="h")
    assert (str(error), error.retry_after_ms, error.hint) == ("words", 5, "h")
