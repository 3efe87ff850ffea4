"""`create_app`: the HTTP API of an engine as a FastAPI application, to serve or to mount into another one."""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from tidemill.api.auth import Access, Declared, Router
from tidemill.api.problems import MEDIA_TYPE, add_problem_handlers
from tidemill.api.routes import access as access_routes
from tidemill.api.routes import health, run_actions, runs, schedules
from tidemill.api.schemas import PROBLEM, AnswerSchemas
from tidemill.api.streams import LiveStreams
from tidemill.engine.engine import Engine
from tidemill.version import __version__

PREFIX = "/api/v1"
ROUTERS: tuple[tuple[str, Router], ...] = (
    ("access", access_routes.router),
    ("runs", runs.router),
    ("runs", run_actions.router),
    ("schedules", schedules.router),
)
"""The name of each resource, and its routes."""


def create_app(engine: Engine, *, access: Access | None = None, root_path: str = "") -> FastAPI:
    """The API of an engine that its caller opens and closes.

    Without `access` everyone who reaches it is an administrator of the engine's tenant: mount it behind a login of your
    own, or serve it on the loopback address.
    """
    app = FastAPI(
        title="Tidemill",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
        root_path=root_path,
    )
    app.state.engine, app.state.access = engine, access or Access.open(engine)
    app.state.closing = asyncio.Event()
    """Set when the server stops: open streams end with the place to resume from."""
    app.state.streams = LiveStreams(app.state.closing)
    add_problem_handlers(app)
    app.include_router(health.router)
    for name, router in ROUTERS:
        app.include_router(router, prefix=PREFIX, tags=[name])
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the schemas of the answers and of problems."""
    if app.openapi_schema is None:
        document, schemas = FastAPI.openapi(app), AnswerSchemas()
        problem = {"description": "A problem", "content": {MEDIA_TYPE: {"schema": PROBLEM}}}
        # The application itself does not list the routes of its routers.
        routers: list[tuple[str, APIRouter]] = [("", health.router), *((PREFIX, router) for _, router in ROUTERS)]
        for prefix, route in [(prefix, route) for prefix, router in routers for route in router.routes]:
            if not isinstance(route, APIRoute) or not route.include_in_schema:
                continue
            for method in route.methods or ():
                operation = document["paths"][prefix + route.path_format][method.lower()]
                declared: Declared | None = getattr(route.endpoint, "declared", None)
                if declared is not None and declared.answers is not None:
                    content = {declared.media_type: {"schema": schemas.schema(declared.answers)}}
                    operation["responses"][str(declared.status)]["content"] = content
                operation["responses"].pop("422", None)
                operation["responses"]["default"] = problem
        document.setdefault("components", {}).setdefault("schemas", {}).update(schemas.components)
        app.openapi_schema = document
    return app.openapi_schema
