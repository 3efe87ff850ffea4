"""A store with a worker in this process, some workflows, and the command line that looks at them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import pytest

import tidemill
from tests.cli.kit import Ended, Inside, eventually
from tidemill.cli import main

PAYMENT: dict[str, Any] = {
    "name": "payment",
    "description": "pays an invoice",
    "nodes": [
        {"id": "receive", "type": "value", "config": {"amount": 42}},
        {
            "id": "transfer",
            "type": "fail",
            "dependencies": ["receive"],
            "config": {"message": "no such account", "kind": "no_account"},
        },
        {"id": "book", "type": "value", "dependencies": ["transfer"], "config": "{{ receive.output.amount }}"},
    ],
}

RELEASE: dict[str, Any] = {
    "name": "release",
    "nodes": [
        {"id": "build", "type": "value", "config": "app:1.4"},
        {
            "id": "review",
            "type": "human",
            "dependencies": ["build"],
            "config": {
                "title": "Release 1.4?",
                "description": "All tests are green.",
                "approvers": ["user:ada", "role:ops"],
                "quorum": 2,
                "timeout_hours": 4,
                "form": {
                    "type": "object",
                    "required": ["window"],
                    "properties": {"window": {"enum": ["day", "night"]}, "count": {"type": "integer"}},
                },
            },
        },
        {"id": "go", "type": "signal", "dependencies": ["review"]},
        {"id": "ship", "type": "value", "dependencies": ["go"], "config": "{{ go.output }}"},
    ],
}

_numbers = count()


class Shop:
    """Commands, all for the same store."""

    def __init__(self, url: str, mill: tidemill.Tidemill, inside: Inside) -> None:
        self.url, self.mill, self._inside = url, mill, inside

    def __call__(self, *arguments: str) -> Ended:
        return self._inside(*arguments)

    def fine(self, *arguments: str) -> str:
        """A command that works; answers what it printed."""
        ended = self(*arguments)
        assert (ended.code, ended.err) == (main.OK, ""), ended
        return ended.out

    def json(self, *arguments: str) -> Any:
        """The same with `--json`."""
        ended = self(*arguments, "--json")
        assert (ended.code, ended.err) == (main.OK, ""), ended
        assert ended.out.count("\n") == 1
        return ended.json

    def refused(self, *arguments: str) -> Any:
        """A command that is refused, told to a program; told to a person it must say the same."""
        told, shown = self(*arguments, "--json"), self(*arguments)
        assert (told.code, told.err) == (main.REFUSED, "")
        assert (shown.code, shown.out) == (main.REFUSED, "")
        for problem in told.json["problems"]:
            assert set(problem) == {"code", "path", "message", "hint"}
            assert f"[{problem['code']}]" in shown.err
            assert problem["hint"] in shown.err
        return told.json["problems"]

    def start(self, document: dict[str, Any], inputs: Any = None, **more: Any) -> str:
        published = self.mill.publish(document)
        return self.mill.start(f"{published.name}@{published.version}", inputs, **more)

    def until(self, run_id: str, happened: Callable[[tidemill.RunView], bool]) -> None:
        eventually(lambda: happened(self.mill.show(run_id)), f"{self.mill.show(run_id).to_dict()}")

    def failed(self, **more: Any) -> str:
        """A payment that has failed."""
        run_id = self.start(PAYMENT, **more)
        self.until(run_id, lambda view: view.status == "FAILED")
        return run_id

    def asking(self, **more: Any) -> str:
        """A release that waits for its review."""
        run_id = self.start(RELEASE, **more)
        self.until(run_id, lambda view: view.nodes["review"]["status"] == "WAITING")
        return run_id

    def agreed(self) -> str:
        """A release that waits for the signal."""
        run_id = self.asking()
        for name in ("ada", "carl"):
            self.mill.decide(run_id, "review", "approve", actor=name, roles=("ops",), form={"window": "day"})
        self.until(run_id, lambda view: view.nodes["go"]["status"] == "WAITING")
        return run_id


@contextmanager
def opened(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    url = f"memory://shop-{next(_numbers)}-{time.monotonic_ns()}"
    monkeypatch.setenv("TIDEMILL_STORE", url)
    with tidemill.open(url) as mill:
        yield Shop(url, mill, inside)
