"""`/livez` and `/readyz`: whether the process lives, and whether it can take requests; what errors mean; `/metrics`.

What is read of the store is kept for a moment, so that many questions cost no more than one.
"""

from __future__ import annotations

import asyncio
import re
import time
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from tidemill.api.auth import Router
from tidemill.api.problems import ERRORS, problem_answer
from tidemill.api.protection import LoadGuard
from tidemill.api.schemas import answer
from tidemill.engine.engine import Engine
from tidemill.errors import Problem, rejected
from tidemill.observability.metrics import CONTENT_TYPE
from tidemill.stores.contract import Store
from tidemill.stores.optional import SelfDiagnosis

router = APIRouter(tags=["health"])
metrics_router = Router(tags=["health"])

DURABILITY_CHECKS = frozenset(
    {
        *("durability", "fsync", "synchronous_commit", "full_page_writes"),
        *("appendonly", "appendfsync", "maxmemory_policy"),
    }
)
"""Findings of a store about what survives a crash or a power cut."""
ERRORS_PAGE = Path(__file__).parents[4] / "docs/reference/errors.md"
PACKED_ERRORS = Path(__file__).parents[1] / "errors.md"
"""Where a released package has the page."""
KNOWN_SECONDS = 60.0
READY_SECONDS = 10.0
_OK = {"type": "object", "properties": {"status": {"type": "string"}}, "required": ["status"]}
_MEANING = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("code", "means", "do")},
    "required": ["code", "means", "do"],
}
_READY = {
    "type": "object",
    "properties": {
        "status": {"type": "string"},
        "durability": {
            "enum": ["full", "reduced", "none", "unknown"],
            "description": "`full`: what was answered survives a power cut. `none`: it ends with the process.",
        },
        "findings": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["status", "durability", "findings"],
}


class Durability:
    """What a store says of its durability, asked once a minute."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._asked_at = float("-inf")
        self._known: dict[str, Any] = {"durability": "unknown", "findings": []}
        self._asking = asyncio.Lock()

    async def known(self) -> dict[str, Any]:
        async with self._asking:
            if time.monotonic() - self._asked_at >= KNOWN_SECONDS and isinstance(self._store, SelfDiagnosis):
                found = [each for each in await self._store.diagnose() if each.code in DURABILITY_CHECKS]
                severities = {each.severity for each in found}
                level = "unknown" if not found else "full" if severities == {"ok"} else "reduced"
                level = "none" if "info" in severities else level
                findings = [{"code": e.code, "severity": e.severity, "message": e.message} for e in found]
                self._known = {"durability": level, "findings": findings}
                self._asked_at = time.monotonic()
            return self._known


@router.get(
    "/livez",
    summary="Whether the process answers",
    operation_id="live",
    responses={200: {"content": {"application/json": {"schema": _OK}}}},
)
async def livez() -> Response:
    return answer({"status": "ok"})


@router.get(
    "/readyz",
    summary="Whether the store answers, and which durability holds",
    operation_id="ready",
    responses={200: {"content": {"application/json": {"schema": _READY}}}},
)
async def readyz(request: Request) -> Response:
    """503 while the store does not answer, and once the server is shutting down."""
    state = request.app.state
    if state.closing.is_set():
        problem = Problem(code="closing", message="the server is shutting down", hint="ask another one")
        return problem_answer(request, [problem], status=503)
    guard: LoadGuard = state.load_guard
    async with asyncio.timeout(READY_SECONDS):
        await guard.backlog()
        known = await state.durability.known()
    return answer({"status": "ok", **known})


@router.get(
    f"{ERRORS}/{{code}}",
    summary="What an error means: where `type` of a problem points",
    operation_id="explainError",
    responses={200: {"content": {"application/json": {"schema": _MEANING}}}},
)
async def explain_error(code: str) -> Response:
    known = await asyncio.to_thread(_meanings)
    if code not in known:
        hint = "codes are lower case, as `run_unknown`"
        raise rejected("path_unknown", f"there is no error {code[:80]!r}", hint=hint)
    return answer(known[code])


@cache
def _meanings() -> dict[str, dict[str, str]]:
    page = PACKED_ERRORS if PACKED_ERRORS.is_file() else ERRORS_PAGE
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|(?: (.*?))? \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {code: {"code": code, "means": means, "do": todo} for code, means, todo in rows}


@metrics_router.on("GET", "/metrics", may="metrics:read", answers=None, media_type="text/plain")
async def metrics(request: Request) -> Response:
    """Counters, histograms and gauges, as Prometheus reads them."""
    engine: Engine = request.app.state.engine
    if engine.metrics is None:
        hint = "`tidemill serve` does; for a mounted engine, say `engine_at(url, metrics=True)`"
        raise rejected("metrics_off", "this engine keeps no metrics", hint=hint)
    return Response(await engine.metrics.text(), media_type=CONTENT_TYPE)
