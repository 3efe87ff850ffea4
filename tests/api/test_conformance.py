"""What schemathesis makes of the OpenAPI document is answered as the document says; the long suite asks much more."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.api.conformance import conformance
from tests.fixtures.api_world import furnished


def test_no_request_ends_in_a_server_error_and_answers_are_as_declared(tmp_path: Path) -> None:
    worlds = asyncio.run(furnished(tmp_path, "default", "acme"))
    with conformance(tmp_path, worlds["default"], examples=2) as checked:
        checked.check()
    assert not checked.wrong, "\n\n".join(checked.wrong)
    assert len(checked.statuses) > 80, "operations were left out"
