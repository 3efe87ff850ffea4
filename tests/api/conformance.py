"""Requests that schemathesis makes of the OpenAPI document, sent to a real server with ids that exist and that do not.

No answer is a 5xx, and each is what the document declares: its status, its content type, its headers and its body.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fixtures.api_server import api_thread, sqlite_url
from tests.fixtures.api_world import OPTIONS, World

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
ENDLESS = ("/api/v1/stream",)
"""Streams that do not end by themselves; they have tests of their own."""


def values_of(world: World, path: str) -> dict[str, list[str]]:
    """What can stand in a path, by the name of its parameter."""
    ids, names = world.ids, world.names
    kinds = {"schedules": "nightly", "node-types": "http", "concurrency": "queue:gpu", "tenants": "acme"}
    name = kinds.get(path.split("/")[3]) if path.startswith("/api/v1/") else None
    ended = [ids["run"][2]]
    return {
        "run_id": ended if path.endswith("/stream") else [*ids["run"], *names["run"]],
        "other_id": [*ids["run"], *names["run"]],
        "text": ids["run"],
        "approval_id": ids["approval"],
        "dead_letter_id": ids["dead letter"],
        "token": ids["link"],
        "digest": [*ids["blob"], *names["blob"]],
        "key_id": ids["key"],
        "reference": ["done", "done@1", "done:stable", *names["workflow"]],
        "name": names["workflow"] if name is None else [name],
        "tag": names["tag"],
        "node": names["node"],
    }


class Conformance:
    def __init__(self, url: str, world: World, examples: int) -> None:
        self._url, self._headers, self._world, self._examples = url, world.headers, world, examples
        self.schema = schemathesis.openapi.from_url(f"{url}/api/v1/openapi.json")
        self.wrong: list[str] = []
        self.statuses: dict[str, set[int]] = {}

    def check(self) -> None:
        operations = [cast(Any, result).ok() for result in self.schema.get_all_operations()]
        # What was removed or has ended cannot be asked about any more.
        order = ("get", "put", "post", "patch", "delete")
        for operation in sorted(operations, key=lambda each: order.index(each.method)):
            if operation.path not in ENDLESS:
                for strategy in operation.get_strategies_from_examples():
                    self._check(operation, strategy, 1)
                self._check(operation, operation.as_strategy(GenerationMode.POSITIVE), self._examples)
                if operation.query or operation.body:
                    self._check(operation, operation.as_strategy(GenerationMode.NEGATIVE), self._examples)

    def _check(self, operation: Any, strategy: st.SearchStrategy[Any], examples: int) -> None:
        pools = {
            name: pool
            for name, pool in values_of(self._world, operation.path).items()
            if f"{{{name}}}" in operation.path
        }
        quick = settings(
            max_examples=examples,
            phases=[Phase.explicit, Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )

        @quick
        @given(case=strategy, data=st.data())
        def ask(case: Any, data: st.DataObject) -> None:
            for name, pool in pools.items():
                real = data.draw(st.sampled_from([*pool, None]))
                if real is not None:
                    case.path_parameters[name] = real
            if operation.path.endswith("/result"):
                case.query["timeout"] = 0
            self._ask(case)

        # Of some parameters no value is wrong.
        with suppress(Failure, FailureGroup, Unsatisfiable):
            ask()

    def _ask(self, case: Any) -> None:
        label = f"{case.method} {case.path}"
        answer = case.call(base_url=self._url, headers=self._headers, timeout=30)
        self.statuses.setdefault(label, set()).add(answer.status_code)
        declared = case.operation.definition.raw["responses"]
        said = []
        if answer.status_code < 400 and str(answer.status_code) not in declared:
            said.append(f"{answer.status_code} is not declared")
        if answer.status_code >= 400 and answer.headers["content-type"] != ["application/problem+json"]:
            said.append(f"{answer.status_code} is no problem: {answer.headers['content-type']}")
        try:
            case.validate_response(answer, checks=CHECKS)
        except FailureGroup as group:
            said += [str(failure) for failure in group.exceptions]
        except Failure as failure:
            said.append(str(failure))
        if said:
            self.wrong.append(f"{label}\n{case.as_curl_command()}\n" + "\n".join(said))
            raise Failure(operation=label, title=label, message="stop here")


@contextmanager
def conformance(folder: Path, world: World, examples: int) -> Iterator[Conformance]:
    with api_thread(sqlite_url(folder), work=False, **OPTIONS) as url:
        yield Conformance(url, world, examples)
