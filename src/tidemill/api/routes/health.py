"""`/livez` and `/readyz`: whether the process lives, and whether it can take requests."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from tidemill.api.schemas import answer

router = APIRouter(tags=["health"])


@router.get("/livez", summary="Whether the process answers")
async def livez() -> Response:
    return answer({"status": "ok"})


@router.get("/readyz", summary="Whether the store answers")
async def readyz(request: Request) -> Response:
    await request.app.state.engine.context.store.backlog()
    return answer({"status": "ok"})
