"""`/livez`, `/readyz` and `/metrics`: whether the process lives, whether it can take requests, and what it counts."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tidemill.api.auth import Router
from tidemill.api.schemas import answer
from tidemill.engine.engine import Engine
from tidemill.errors import rejected
from tidemill.observability.metrics import CONTENT_TYPE

router = APIRouter(tags=["health"])
metrics_router = Router(tags=["health"])


@router.get("/livez", summary="Whether the process answers")
async def livez() -> Response:
    return answer({"status": "ok"})


@router.get("/readyz", summary="Whether the store answers")
async def readyz(request: Request) -> Response:
    await request.app.state.engine.context.store.backlog()
    return answer({"status": "ok"})


@metrics_router.on(
    "GET",
    "/metrics",
    may="metrics:read",
    answers=None,
    media_type="text/plain",
    summary="Counters, histograms and gauges, as Prometheus reads them",
)
async def metrics(request: Request) -> Response:
    engine: Engine = request.app.state.engine
    if engine.metrics is None:
        hint = "`tidemill serve` does; for a mounted engine, say `engine_at(url, metrics=True)`"
        raise rejected("metrics_off", "this engine keeps no metrics", hint=hint)
    return Response(await engine.metrics.text(), media_type=CONTENT_TYPE)
