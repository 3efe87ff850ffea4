"""One prepared folder for transcripts: a store with runs in every state, documents, and a clock that stands still."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tidemill
from tests.fixtures.cli_store import PAYMENT, RELEASE
from tests.fixtures.command_line import EXAMPLES, eventually
from tidemill.engine.index_rows import DAY_MS

BEGAN_MS = 1_790_000_000_000
LATER_MS = 10 * 60_000
"""Commands are given so long after the store was prepared."""

UNDOABLE: dict[str, Any] = {
    "name": "undoable",
    "nodes": [
        {"id": "a", "type": "value", "config": 1, "compensator": {"type": "value", "config": "undone"}},
        {"id": "b", "type": "value", "config": 2, "dependencies": ["a"]},
    ],
}
BATCH: dict[str, Any] = {
    "name": "batch",
    "nodes": [{"id": "each", "type": "value", "config": "{{ item }}", "map": {"over": [1, 2, 3]}}],
}
TALKATIVE: dict[str, Any] = {
    "name": "talkative",
    "nodes": [{"id": "talk", "type": "python", "config": {"function": "world_steps:talk", "args": {"n": 2}}}],
}
STEPS = """
import tidemill

def talk(n=1):
    for number in range(n):
        print("line", number)
    return n

@tidemill.function("shout")
def shout(text):
    return text.upper()
"""
FILES = {
    "world_steps.py": STEPS,
    "empty_app.py": "nothing = 1\n",
    "broken_app.py": "raise ValueError('no good')\n",
    "bad.yaml": "name: bad\nnodes:\n  - {id: a, type: vlaue}\n  - {id: b, type: value, dependencies: [c]}\nnope: 1\n",
    "broken.yaml": "a: [1, 2",
    "broken.json": '{"a": ',
    "list.yaml": "[1, 2]\n",
    "empty.yaml": "",
    "warned.yaml": "name: warned\nnodes:\n  - {id: a, type: value, dependents: [b, b]}\n  - {id: b, type: value}\n",
    "shouting.yaml": "name: shouting\nnodes: [{id: a, type: python, config: {function: shout, args: {text: hi}}}]\n",
    "failing.yaml": "name: failing\nnodes: [{id: a, type: fail, config: {message: no, kind: broken}}]\n",
    "asking.yaml": "name: asking\ninputs: {type: object, required: [n], properties: {n: {type: integer}}}\n"
    "nodes: [{id: a, type: value, config: '{{ inputs.n }}'}]\n",
    "patch.json": '[{"op": "add", "path": "/nodes/transfer/config/attempts", "value": 0}]\n',
    "repair.json": '[{"op": "replace", "path": "/nodes/transfer/type", "value": "value"}]\n',
    "bad-patch.json": '[{"op": "frobnicate", "path": "/nodes"}]\n',
    "condition.json": '{"type": "expression", "expression": "output.n > 1"}\n',
    "scope.json": '{"inputs": {"name": "Ada"}, "fetch": {"status": 200}}\n',
    "template.yaml": "greeting: 'Hello, {{ inputs.name }}!'\n",
    "note.txt": "A small note.\n",
}


class Clock:
    """Stands in for the machine's clock, and moves only when told."""

    def __init__(self) -> None:
        self.ms = BEGAN_MS

    def __call__(self) -> int:
        return self.ms * 1_000_000

    @contextmanager
    def later(self, days: int) -> Iterator[None]:
        self.ms += days * DAY_MS
        try:
            yield
        finally:
            self.ms -= days * DAY_MS


def prepare(folder: Path, clock: Clock) -> None:
    """Fill a folder with documents and with a store in which something of every kind has happened."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    for example in ("hello", "loops", "showcase", "branches", "map"):
        shutil.copy(EXAMPLES / f"{example}.yaml", folder)
    shutil.copy(EXAMPLES / "showcase_steps.py", folder)
    shutil.copytree(Path(__file__).parent / "documents", folder, dirs_exist_ok=True)
    here = Path.cwd()
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    try:
        with tidemill.open("sqlite:///tidemill.db") as mill:
            _fill(mill, clock)
        # The reconciler of a store that is still open would see runs that have been quiet for long.
        clock.ms += LATER_MS
    finally:
        sys.path.remove(str(folder))
        os.chdir(here)
        forget(folder)


def forget(folder: Path) -> None:
    """Let modules of a folder be imported anew from another."""
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]


def _fill(mill: tidemill.Tidemill, clock: Clock) -> None:
    def begin(name: str, key: str, inputs: Any = None, **more: Any) -> None:
        clock.ms += 1000
        mill.start(name, inputs, key=key, submitted_by="ada", **more)

    def until(key: str, happened: Callable[[tidemill.RunView], bool]) -> None:
        eventually(lambda: happened(mill.show(key)), f"{key}: {mill.show(key).to_dict()}")

    def ended(key: str) -> None:
        until(key, lambda view: view.status not in ("RUNNING", "PAUSED"))

    for document in (PAYMENT, RELEASE, UNDOABLE, BATCH, TALKATIVE):
        mill.publish(document, author="ada", message="the first version")
    mill.publish(Path("hello.yaml"), author="ada")
    clock.ms += 1000
    mill.publish({**PAYMENT, "description": "pays an invoice, later"}, author="ben", message="in words")
    mill.tag("payment", "stable", 1, actor="ada", message="known to work")
    mill.tag("payment", "stable", 2, actor="ben")
    begin("hello", "hi-1", {"name": "Ada"}, labels={"team": "ops"})
    ended("hi-1")
    begin("hello", "hi-2", {"name": "Ben"}, labels={"team": "dev"}, correlation_id="order-7")
    ended("hi-2")
    begin("payment@1", "pay-1", labels={"team": "ops"})
    ended("pay-1")
    begin("payment@2", "pay-2")
    ended("pay-2")
    begin("undoable", "undo-1")
    ended("undo-1")
    begin("batch", "batch-1")
    ended("batch-1")
    begin("talkative", "talk-1")
    ended("talk-1")
    for key in ("rel-1", "rel-2", "rel-3", "rel-4"):
        begin("release", key)
        until(key, lambda view: view.nodes["review"]["status"] == "WAITING")
    mill.decide("rel-1", "review", "approve", actor="carl", roles=("ops",), form={"window": "day"})
    for name in ("ada", "carl"):
        clock.ms += 1000
        mill.decide("rel-2", "review", "approve", actor=name, roles=("ops",), form={"window": "day"}, comments="fine")
    until("rel-2", lambda view: view.nodes["go"]["status"] == "WAITING")
    mill.pause("rel-3", reason="lunch", actor="ada")
    mill.cancel("rel-4", reason="too late", actor="ada")
