"""`create_app`: the HTTP API of an engine and its web page as a FastAPI application, to serve or to mount."""

from __future__ import annotations

import asyncio
from typing import Any

from tidemill.errors import rejected

try:
    from fastapi import APIRouter, FastAPI
    from fastapi.routing import APIRoute

    from tidemill.api.auth import Access, Declared, Router
except ModuleNotFoundError as error:
    message = f"the server needs {error.name}, which is not installed"
    raise rejected("extra_missing", message, hint='pip install "tidemill[server]"') from None

from tidemill.api.problems import MEDIA_TYPE, add_problem_handlers
from tidemill.api.protection import LoadGuard, Protection
from tidemill.api.routes import access as access_routes
from tidemill.api.routes import (
    approvals,
    blobs,
    dead_letters,
    fleet,
    health,
    run_actions,
    run_nodes,
    run_pictures,
    run_summaries,
    runs,
    schedules,
    tools,
    workflows,
)
from tidemill.api.schemas import JSON, PROBLEM, AnswerSchemas
from tidemill.api.server_settings import ServerLimits
from tidemill.api.streams import LiveStreams
from tidemill.api.web_files import add_web_files
from tidemill.engine.engine import Engine
from tidemill.security.identity import SESSION_COOKIE
from tidemill.security.signing import LINK_HOURS, DecisionLinks
from tidemill.version import __version__

PREFIX = "/api/v1"
ROUTERS: tuple[tuple[str, Router], ...] = (
    ("runs", run_summaries.router),
    ("runs", runs.router),
    ("runs", run_nodes.router),
    ("runs", run_pictures.router),
    ("runs", run_actions.router),
    ("workflows", workflows.router),
    ("approvals", approvals.router),
    ("dead-letters", dead_letters.router),
    ("blobs", blobs.router),
    ("fleet", fleet.router),
    ("tools", tools.router),
    ("schedules", schedules.router),
    ("access", access_routes.router),
)
"""The name of each resource, and its routes."""


def create_app(
    engine: Engine,
    *,
    access: Access | None = None,
    root_path: str = "",
    limits: ServerLimits | None = None,
    secret: str = "",
    public_url: str = "",
    link_hours: float = LINK_HOURS,
) -> FastAPI:
    """The API of an engine that its caller opens and closes.

    Without `access` everyone who reaches it is an administrator of the engine's tenant: mount it behind a login of your
    own, or serve it on the loopback address. `secret` signs decision links, and `public_url` is what
    those links begin with; by default a link ends with the process, and begins with the address that the server
    listens on. No link holds for longer than `link_hours`.
    """
    app = FastAPI(
        title="Tidemill",
        version=__version__,
        openapi_url=f"{PREFIX}/openapi.json",
        docs_url=None,
        redoc_url=None,
    )
    app.root_path = root_path
    app.state.engine, app.state.access = engine, access or Access.open(engine)
    app.state.closing = asyncio.Event()
    """Set when the server stops: open streams end with the place to resume from."""
    limits = limits or ServerLimits()
    app.state.load_guard, app.state.decision_links = LoadGuard(engine, limits), DecisionLinks(secret, link_hours)
    app.state.public_url = public_url.rstrip("/")
    app.state.durability = health.Durability(engine.context.store)
    documents = frozenset({f"{PREFIX}/workflows", f"{PREFIX}/workflows/validate"})
    app.add_middleware(Protection, limits=limits, documents=documents, blobs=f"{PREFIX}/blobs")
    app.state.streams = LiveStreams(app.state.closing, limits.key_streams)
    add_problem_handlers(app)
    app.include_router(health.router)
    app.include_router(health.metrics_router)
    for name, router in ROUTERS:
        app.include_router(router, prefix=PREFIX, tags=[name])
    add_web_files(app)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document, with the schemas of the answers and of problems."""
    if app.openapi_schema is None:
        document, schemas = FastAPI.openapi(app), AnswerSchemas()
        problem = {"description": "A problem", "content": {MEDIA_TYPE: {"schema": PROBLEM}}}
        # The application itself does not list the routes of its routers.
        routers: list[tuple[str, APIRouter]] = [("", health.router), ("", health.metrics_router)]
        routers += [(PREFIX, router) for _, router in ROUTERS]
        for prefix, route in [(prefix, route) for prefix, router in routers for route in router.routes]:
            if not isinstance(route, APIRoute) or not route.include_in_schema:
                continue
            for method in route.methods or ():
                operation = document["paths"][prefix + route.path_format][method.lower()]
                declared: Declared | None = getattr(route.endpoint, "declared", None)
                if declared is not None and declared.answers is not None:
                    content = {declared.media_type: {"schema": schemas.schema(declared.answers)}}
                    success = operation["responses"][str(declared.status)]
                    others = {kind: each for kind, each in success.get("content", {}).items() if kind != JSON}
                    success["content"] = {**others, **content}
                elif declared is not None and declared.media_type != JSON:
                    operation["responses"][str(declared.status)]["content"] = {declared.media_type: {}}
                operation["responses"].pop("422", None)
                if declared is None or not declared.permission:
                    operation["security"] = []
                operation["responses"]["default"] = problem
        components = document.setdefault("components", {})
        components.setdefault("schemas", {}).update(schemas.components)
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer", "description": "An API key, or a JSON Web Token."},
            "session": {"type": "apiKey", "in": "cookie", "name": SESSION_COOKIE, "description": "Of `POST /session`."},
        }
        document["security"] = [{"bearer": []}, {"session": []}]
        app.openapi_schema = document
    return app.openapi_schema
