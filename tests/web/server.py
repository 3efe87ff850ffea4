"""A real `tidemill serve` for the browser, and its API for tests that prepare runs and look what became of them."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from tests.fixtures.serve_process import ServeProcess
from tidemill.demo import sample_runs

STEPS = Path(__file__).with_name("steps.py")
SECONDS_MAX = 120.0
T = TypeVar("T")


class Server:
    """`key` is sent with requests to the API; the browser has its own credentials, or none."""

    def __init__(self, process: ServeProcess, key: str = "") -> None:
        self.process, self.url, self.key = process, process.url, key

    def call(self, method: str, path: str, body: Any = None) -> Any:
        data = body.encode() if isinstance(body, str) else None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/yaml" if isinstance(body, str) else "application/json"}
        if self.key:
            headers["Authorization"] = f"Bearer {self.key}"
        request = urllib.request.Request(f"{self.url}/api/v1{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read().decode()[:2000]}") from None
        return json.loads(text) if text else None

    def get(self, path: str) -> Any:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None) -> Any:
        return self.call("POST", path, {} if body is None else body)

    def publish(self, *documents: str | dict[str, Any]) -> None:
        for document in documents:
            self.call("POST", "/workflows", document if isinstance(document, str) else {"document": document})

    def publish_demo(self, *names: str) -> None:
        self.publish(*(sample_runs.document(name) for name in names))

    def start(self, workflow: str, inputs: Any = None, **more: Any) -> str:
        return str(self.post("/runs", {"workflow": workflow, "inputs": inputs or {}, **more})["run_id"])

    def run(self, run_id: str) -> Any:
        return self.get(f"/runs/{quote(run_id)}")

    def until(self, run_id: str, status: str) -> Any:
        return wait(lambda: self.run(run_id), lambda run: run["status"] == status, f"{run_id} is not {status}")

    def until_node(self, run_id: str, node: str, status: str, visits: int = 1) -> Any:
        """The run, once a visit of a node has a status."""

        def met(run: Any) -> bool:
            state = run["nodes"].get(node, {})
            return state.get("status") == status and state.get("visits") == visits

        return wait(lambda: self.run(run_id), met, f"{node} of {run_id} is not {status}")

    def approval(self, run_id: str) -> Any:
        """The first pending approval of a run, once there is one."""
        path = f"/approvals?query={quote(f'status:pending run:{run_id}')}"
        return wait(lambda: self.get(path)["items"], bool, f"{run_id} asks nobody")[0]


def wait(ask: Callable[[], T], met: Callable[[T], Any], trouble: str) -> T:
    end = time.monotonic() + SECONDS_MAX
    while not met(answer := ask()):
        assert time.monotonic() < end, f"{trouble}: {answer}"
        time.sleep(0.02)
    return answer


@contextmanager
def served(folder: Path, *arguments: str, key: str = "", name: str = "web") -> Iterator[Server]:
    """A server on a store of its own; with `--demo`, on that of the demo, whose steps take no time here."""
    store = "" if "--demo" in arguments else f"sqlite:///{folder}/{name}.db"
    process = ServeProcess(folder, store, "--app", str(STEPS), "--grace", "1", *arguments)
    try:
        process.start()
        yield Server(process, key)
    finally:
        process.bury()
