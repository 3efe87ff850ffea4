"""`tidemill serve`: the HTTP API of a store, with one worker in the same process or several beside it.

The first SIGTERM or SIGINT closes the socket for new connections, ends open streams with the place to resume from, and
drains the worker; the second one ends the wait. Worker processes that die are started again, and drain when the server
is killed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import logging
import os
import signal
import sys
from contextlib import AsyncExitStack, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import msgspec

from tidemill.bootstrap import engine_at
from tidemill.cli import main
from tidemill.cli.commands.worker import StatusLines, import_before_work, in_loop, opened, status_output
from tidemill.cli.options import STORE_VARIABLE, is_server
from tidemill.cli.render.terminal import GREEN, Styler, counted, sanitize
from tidemill.cli.session import StoreSession
from tidemill.cli.user_code import load_apps, warn_of_ignored_config
from tidemill.demo import sample_runs as demo
from tidemill.engine.engine import Engine
from tidemill.errors import Rejected, rejected
from tidemill.kernel.model import RETENTION_BY_STORE
from tidemill.observability.metrics import read_address
from tidemill.remote.remote_engine import RemoteEngine, remote_engine
from tidemill.security.grants import ImportGrants
from tidemill.security.identity import JwtVerifier, Sessions
from tidemill.security.roles import check_roles_of_key, permissions_of
from tidemill.settings import Settings, read_settings
from tidemill.storage_urls import require_store_exists, without_password

if TYPE_CHECKING:
    import uvicorn
    from fastapi import FastAPI
    from starlette.requests import Request
    from starlette.types import ASGIApp

    from tidemill.api.auth import Access
    from tidemill.mcp_server import Offer, WorkflowTools

WORKER_PROGRAM = """
import signal, sys
from tidemill.processes.supervisor import end_with_parent
end_with_parent(signal.SIGTERM)
from tidemill.cli.main import main
sys.exit(main())
"""
RESTART_SECONDS = 1.0
WORKER_NAME = "server"
"""The name of workers of a server: every tenant sees it, and it says nothing of the machine."""
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
KILL_SECONDS = 5.0
"""How long a worker process may take to end beyond its grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    store: str
    host: str
    port: int
    workers: int | None
    """Worker processes beside the server; None is one worker inside it."""
    concurrency: int
    grace_s: float
    apps: tuple[str, ...]
    imports: tuple[str, ...]
    archive: str | None
    retention_days: float | None
    without_authentication: bool
    root_path: str = ""
    log_level: str = "info"
    log_format: str = "text"
    demo: bool = False
    """Use a temporary store with sample workflows; `store` is then that store."""

    @property
    def in_json(self) -> bool:
        return self.log_format == "json"


def serve(options: ServeOptions) -> int:
    if options.demo:
        with TemporaryDirectory(prefix="tidemill-demo-", ignore_cleanup_errors=True) as folder:
            store = f"sqlite:///{Path(folder).absolute()}/demo.db"
            # Its runs fail on purpose; only troubles of the server itself are worth a line.
            return _serve_store(dataclasses.replace(options, store=store, archive=None, log_level="error"))
    return _serve_store(options)


def _serve_store(options: ServeOptions) -> int:
    try:
        # The demo uses nothing of the operator's.
        settings = Settings() if options.demo else read_settings(imports=options.imports)
        if settings.imports is None:
            settings = msgspec.structs.replace(settings, imports=ImportGrants())
        _require_extra()
        import_before_work()
        # It takes as long as all the rest, and would block the loop of the worker.
        import_module("tidemill.api.app")
        with status_output(options, importing=settings.may_import) as status_lines:
            engine = _engine(options, settings)
            main.start_collector()
            main.prepare_long_life()
            in_loop(_serve(engine, options, settings, status_lines))
    except Rejected as refusal:
        return StoreSession(options.store, options.in_json).refused(refusal)
    return main.OK


def _require_extra() -> None:
    """Import the server, before there is a loop that importing would block."""
    try:
        import uvicorn  # noqa: F401

        import tidemill.api.app  # noqa: F401
    except ImportError as error:
        message = f"the server needs {error.name}, which is not installed"
        raise rejected("extra_missing", message, hint='pip install "tidemill[server]"') from None


def serve_mcp(
    session: StoreSession, *, read_only: bool, roles: tuple[str, ...], workflows: tuple[str, ...], http: str | None
) -> int:
    """`tidemill mcp`: the tools of an MCP server over a store, or over a server with its key."""
    try:
        try:
            from tidemill.mcp_server import Offer, serve_on_streams
        except ImportError as error:
            message = f"MCP needs {error.name}, which is not installed"
            raise rejected("extra_missing", message, hint="pip install 'tidemill[mcp]'") from None
        if not is_server(session.store):
            require_store_exists(session.store)
        offer = Offer(read_only, workflows, permissions_of(check_roles_of_key(roles)) if roles else None)
        if http is not None:
            host, port = read_address(http)
            _require_extra()
            in_loop(_serve_mcp_over_http(session.store, offer, host, port))
        elif is_server(session.store):
            remote = remote_engine(session.store, None)
            asyncio.run(serve_on_streams(remote, offer, remote.permissions))
        else:
            asyncio.run(serve_on_streams(engine_at(session.store, work=False), offer))
    except Rejected as refusal:
        return session.refused(refusal)
    return main.OK


async def _serve_mcp_over_http(store: str, offer: Offer, host: str, port: int) -> None:
    """Every request has a credential of its own, as those to `tidemill serve`, and sees the tools that it permits."""
    from tidemill.mcp_server import KeysOfServer, WorkflowTools, http_app

    async with AsyncExitStack() as opened_parts:
        if is_server(store):
            keys = KeysOfServer(partial(RemoteEngine, store), offer, anonymous=is_loopback(host))
            opened_parts.push_async_callback(keys.close)
            tools_of = keys.tools_of
        else:
            settings = read_settings()
            engine = await opened_parts.enter_async_context(engine_at(store, work=False, settings=settings))
            # A workflow that does not exist is refused before a client connects.
            await WorkflowTools(engine, offer).tools()
            access = await _access(engine, settings, host)

            async def tools_of(request: Request) -> WorkflowTools:
                caller = await access.caller(request)
                who = caller.principal
                return WorkflowTools(
                    caller.services, offer, permissions=who.permissions, actor=who.name, roles=who.roles
                )

        server = _server(http_app(tools_of, host), host, port, lifespan="on")

        def on_signal() -> None:
            server.force_exit, server.should_exit = server.should_exit, True

        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, on_signal)
        serving = asyncio.create_task(server.serve())
        await _started(server, serving)
        words = f"MCP at {_address(server)}/mcp · {without_password(store)}"
        print(f"{Styler()('✓', GREEN)} {sanitize(words)}", flush=True)
        await serving


def _engine(options: ServeOptions, settings: Settings) -> Engine:
    app = load_apps(options.apps)
    functions = app.functions
    if options.demo:
        from tidemill.demo.demo_steps import Steps

        functions = {**Steps().functions, **functions}
    else:
        warn_of_ignored_config()
    return engine_at(
        options.store,
        functions=functions,
        handlers=app.handlers,
        work=options.workers is None,
        name=WORKER_NAME,
        concurrency=options.concurrency,
        standing=True,
        archive=options.archive,
        retention_days=options.retention_days,
        grace_ms=round(options.grace_s * 1000),
        settings=settings,
        metrics=True,
    )


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


async def _serve(engine: Engine, options: ServeOptions, settings: Settings, status_lines: StatusLines) -> None:
    stop = asyncio.Event()
    worker = engine.worker
    engine.turns.listener = None if options.demo else status_lines.ended
    if worker is not None:
        assert engine.registry is not None
        engine.registry.on_reach = status_lines.reach
    if not await opened(engine, stop, status_lines):
        return
    playing: asyncio.Task[None] | None = None
    try:
        app = await _app(engine, options, settings)
        server = _server(app, options.host, options.port, grace_s=options.grace_s)
        if options.demo:
            await demo.fill(engine)
            playing = asyncio.create_task(demo.keep_going(engine))
        processes = [asyncio.create_task(_keep_worker(options, stop)) for _ in range(options.workers or 0)]

        def on_signal() -> None:
            if stop.is_set():
                server.force_exit = True
                if worker is not None:
                    worker.stop_now()
                return
            stop.set()
            app.state.closing.set()
            server.should_exit = True
            engine.drain()

        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, on_signal)
        serving = asyncio.create_task(server.serve())
        await _started(server, serving)
        _say_ready(server, options)
        await serving
        stop.set()
        await asyncio.gather(*processes)
    finally:
        if playing is not None:
            playing.cancel()
        await engine.close()
    print(f"{Styler()('✓', GREEN)} stopped", flush=True)


async def _access(
    engine: Engine,
    settings: Settings,
    host: str,
    *,
    roles: tuple[str, ...] = ("admin",),
    without: bool = False,
    hint: str = "create a key with `tidemill keys create`",
) -> Access:
    """Who may call: without credentials everyone on this machine, and `without` authentication everyone."""
    # Imported here, because FastAPI is an extra and large.
    from tidemill.api.auth import Access

    server = settings.server
    access = Access(engine, jwt=_verifier(settings), sessions=Sessions(server.secret, server.session_hours))
    if await access.is_configured():
        return access
    if not is_loopback(host) and not without:
        message = f"{host} is not a loopback address, and no authentication is configured"
        raise rejected("authentication_missing", message, hint=hint)
    return Access.open(engine, hosts=_hosts(host, server.public_url), sessions=access.sessions, roles=roles)


async def _app(engine: Engine, options: ServeOptions, settings: Settings) -> FastAPI:
    from tidemill.api.app import create_app

    server = settings.server
    access = await _access(
        engine,
        settings,
        options.host,
        roles=demo.ROLES if options.demo else ("admin",),
        without=options.without_authentication,
        hint="create a key with `tidemill keys create`, or pass --without-authentication",
    )
    return create_app(
        engine,
        access=access,
        root_path=options.root_path,
        limits=server.limits,
        secret=server.secret,
        public_url=server.public_url,
        link_hours=server.link_hours,
    )


def _hosts(host: str, public_url: str) -> frozenset[str]:
    """The names under which a server without authentication answers; none stands for any, beyond this machine."""
    if not is_loopback(host):
        return frozenset()
    own = f"[{host}]" if ":" in host else host
    return frozenset({*LOOPBACK_NAMES, own.lower(), (urlsplit(public_url).hostname or "localhost").lower()})


def _verifier(settings: Settings) -> JwtVerifier | None:
    rules, key_set = settings.server.jwt, settings.server.jwks
    return None if rules is None else JwtVerifier(rules, None if key_set is None else key_set.read_bytes)


def _server(
    app: ASGIApp, host: str, port: int, *, grace_s: float = 0, lifespan: Literal["on", "off"] = "off"
) -> uvicorn.Server:
    import uvicorn

    from tidemill.api.connections import BoundedConnection

    class Server(uvicorn.Server):
        def capture_signals(self) -> nullcontext[None]:  # type: ignore[override]
            """The command handles signals itself: it drains the worker, too."""
            return nullcontext()

    # uvicorn says how many requests it cancels at the end, and then shows each of them as an error of the application.
    logging.getLogger("uvicorn.error").addFilter(_is_no_cancellation)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        lifespan=lifespan,
        http=BoundedConnection,
        timeout_graceful_shutdown=round(grace_s) + 1,
    )
    return Server(config)


def _is_no_cancellation(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


async def _started(server: uvicorn.Server, serving: asyncio.Task[None]) -> None:
    while not server.started:
        if serving.done():
            # uvicorn has logged why, and raises SystemExit for an address in use.
            with suppress(SystemExit):
                serving.result()
            message = f"cannot listen on {server.config.host}:{server.config.port}"
            raise rejected("address_in_use", message, hint="choose another --port, or 0 for any")
        await asyncio.sleep(0.01)


def _address(server: uvicorn.Server) -> str:
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _say_ready(server: uvicorn.Server, options: ServeOptions) -> None:
    if options.workers is None:
        work = "one worker in this process"
    else:
        work = f"{counted(options.workers, 'worker')} outside this process" if options.workers else "no worker"
    store = "a demo in a temporary folder" if options.demo else without_password(options.store)
    words = f"listening on {_address(server)} · {store} · {work}"
    print(f"{Styler()('✓', GREEN)} {sanitize(words)}", flush=True)


def worker_arguments(options: ServeOptions) -> list[str]:
    """The command of a worker that does what the one inside of a server would do."""
    arguments = ["worker", "--name", WORKER_NAME, "--concurrency", str(options.concurrency)]
    arguments += ["--grace", f"{options.grace_s:g}", "--log-level", options.log_level]
    arguments += ["--log-format", options.log_format]
    for app in options.apps:
        arguments += ["--app", app]
    for pattern in options.imports:
        arguments += ["--allow-import", pattern]
    if options.archive is not None:
        arguments += ["--archive", options.archive]
    if options.retention_days is None:
        arguments.append("--keep-runs")
    elif options.retention_days != RETENTION_BY_STORE:
        arguments += ["--retention-days", f"{options.retention_days:g}"]
    return arguments


async def _keep_worker(options: ServeOptions, stop: asyncio.Event) -> None:
    """Keep one worker process running until the server stops."""
    stopped = asyncio.create_task(stop.wait())
    # The store's URL may hold a password, which must not stand in a list of processes.
    environment = {**os.environ, STORE_VARIABLE: options.store}
    while not stop.is_set():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", WORKER_PROGRAM, *worker_arguments(options), env=environment, start_new_session=True
        )
        ended = asyncio.create_task(process.wait())
        await asyncio.wait([ended, stopped], return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set() and not ended.done():
            process.terminate()
            try:
                await asyncio.wait_for(ended, options.grace_s + KILL_SECONDS)
            except TimeoutError:
                process.kill()
                await process.wait()
        elif not stop.is_set():
            await asyncio.wait([stopped], timeout=RESTART_SECONDS)
