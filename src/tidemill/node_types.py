"""The node types of a process: built-in ones, those of installed distributions, and those that are given.

`built_in_handlers` is the list of built-in node types: a new one is a module in `handlers` and a line there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tidemill.agents.builtin import built_in_tools, lanes_text
from tidemill.agents.delegation import delegate_source
from tidemill.agents.interpreter import CodeInterpreter
from tidemill.agents.mcp.mcp_client import McpServers, mcp_source
from tidemill.agents.node import agent_handler
from tidemill.expressions.sandbox.pool import NoSandbox, SandboxExecutor
from tidemill.handlers.contract import Handler, NodeClass, handler_of
from tidemill.handlers.control import BORDERS, PLAIN, WAITING
from tidemill.handlers.data.pipeline import pipeline_handler
from tidemill.handlers.data.search import SEARCHING
from tidemill.handlers.data.transform import transform_handler
from tidemill.handlers.discovery import NodeTypeSource, UnusableNodeType, collect_node_types, installed
from tidemill.handlers.email import email_handler
from tidemill.handlers.http.node import http_handler
from tidemill.handlers.http.webhook import webhook_handler
from tidemill.handlers.llm.anthropic import anthropic_provider
from tidemill.handlers.llm.classify import classify_handler
from tidemill.handlers.llm.node import llm_handler
from tidemill.handlers.llm.openai import openai_provider
from tidemill.handlers.llm.openai_responses import openai_responses_provider
from tidemill.handlers.llm.provider import Providers, scripted
from tidemill.handlers.python.node import python_handler
from tidemill.handlers.shell import shell_handler
from tidemill.handlers.sql import Database, LateDatabase, sql_handler
from tidemill.kernel.model import NodeType
from tidemill.net.egress import TcpConnector
from tidemill.net.http_client import Fetcher
from tidemill.security.secrets import ChainedSecrets, EnvironmentSecrets, FolderSecrets
from tidemill.settings import Settings, read_settings
from tidemill.storage_urls import as_sqlite, file_of

if TYPE_CHECKING:
    from tidemill.stores.contract import Store
    from tidemill.stores.optional import TransactionalStatements
    from tidemill.stores.statements import Dialect

BUILT_IN = "Tidemill"
GIVEN = "`handlers`"
"""Where node types come from that no distribution offers."""
LOG = logging.getLogger(__name__)


def built_in_handlers(
    functions: Mapping[str, Callable[..., Any]] | None = None,
    carrier: SandboxExecutor | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
) -> tuple[Handler, ...]:
    """The node types that come with Tidemill; `carrier` does in other processes what is too much for this one."""
    settings = settings or read_settings()
    fetcher, carrier = Fetcher(settings.egress), carrier or NoSandbox()
    http = http_handler(fetcher, carrier)
    models, named = model_providers(fetcher), {} if functions is None else functions
    python = python_handler(named, settings.imports, granted=settings.functions)
    pipeline = pipeline_handler(http, carrier)
    interpreter = CodeInterpreter(carrier, settings.interpreter_packages)
    delegate = delegate_source(fetcher, interpreter)
    servers = McpServers(settings.mcp, settings.egress, secret_sources(settings))
    tools = built_in_tools(http=http, pipeline=pipeline, python=python, functions=named, delegate=delegate)
    tools.add(mcp_source(servers))

    async def close_agents() -> None:
        # Tools call functions also where no `python` node does.
        if python.close is not None and (closing := python.close()) is not None:
            await closing
        await interpreter.close()
        await servers.close()
        await fetcher.close()

    return (
        *PLAIN,
        *WAITING,
        *BORDERS,
        *SEARCHING,
        python,
        http,
        webhook_handler(fetcher),
        llm_handler(models, fetcher.close),
        classify_handler(models, fetcher.close),
        agent_handler(models, tools, lanes_text, close=close_agents),
        pipeline,
        transform_handler(carrier),
        shell_handler(enabled=settings.shell),
        email_handler(TcpConnector(fetcher.egress), settings.smtp),
        _sql_handler(store, settings),
    )


def model_providers(fetcher: Fetcher) -> Providers:
    """The providers of language models, by the names that configs use."""
    return {
        "openai": openai_provider(fetcher),
        "openai_responses": openai_responses_provider(fetcher),
        "anthropic": anthropic_provider(fetcher),
        "scripted": scripted,
    }


def _sql_handler(store: Store | None, settings: Settings) -> Handler:
    """Statements on the store itself need one that takes them; a process without a store does not know."""
    own: TransactionalStatements | None = as_sqlite(store)
    dialect: Dialect = "sqlite"
    if store is not None and own is None and "tidemill.stores.postgres.store" in sys.modules:
        from tidemill.stores.postgres.store import PostgresStore

        if isinstance(store, PostgresStore):
            own, dialect = store, "postgresql"
    has_own = store is None or own is not None
    return sql_handler(databases(settings), own, settings.sql, has_own=has_own, dialect=dialect)


def databases(settings: Settings) -> dict[str, Database]:
    return {name: _database_at(url) for name, (url, _) in settings.databases.items()}


def _database_at(url: str) -> Database:
    """The database behind a URL that the settings have checked."""
    if url.startswith("sqlite:///"):
        from tidemill.handlers.sql import SqliteDatabase

        return SqliteDatabase(file_of(url))

    def postgres() -> Database:
        from tidemill.handlers.sql_postgres import PostgresDatabase

        return PostgresDatabase(url)

    return LateDatabase("postgresql", postgres)


class NodeTypes(NamedTuple):
    """The node types that there are, with their origins, and those that cannot be used."""

    offers: tuple[NodeTypeSource, ...]
    broken: tuple[UnusableNodeType, ...] = ()

    @property
    def handlers(self) -> tuple[Handler, ...]:
        return tuple(offer.handler for offer in self.offers)

    @property
    def unusable_types(self) -> tuple[str, ...]:
        """What to say of a type that is not there: it may be one of those that cannot be used."""
        return tuple(map(str, self.broken))

    @property
    def not_built_in(self) -> tuple[NodeType, ...]:
        """Those that a process may lack."""
        return tuple(offer.handler.type for offer in self.offers if offer.origin != BUILT_IN)

    def log_broken(self) -> None:
        for broken in self.broken:
            LOG.warning("%s", broken)

    @property
    def by_name(self) -> dict[str, Sequence[NodeType]]:
        """What the compiler knows of them."""
        types: dict[str, list[NodeType]] = {}
        for handler in self.handlers:
            types.setdefault(handler.type.name, []).append(handler.type)
        return {**types}


def node_types(
    functions: Mapping[str, Callable[..., Any]] | None = None,
    handlers: Sequence[Handler | NodeClass] = (),
    carrier: SandboxExecutor | None = None,
    store: Store | None = None,
    settings: Settings | None = None,
) -> NodeTypes:
    """Those that come with Tidemill, those that installed distributions offer, and those that are given."""
    own = [NodeTypeSource(handler, BUILT_IN) for handler in built_in_handlers(functions, carrier, store, settings)]
    given = [NodeTypeSource(handler_of(handler), GIVEN) for handler in handlers]
    return NodeTypes(*collect_node_types(own, installed(), given))


def built_in_types() -> dict[str, Sequence[NodeType]]:
    return NodeTypes(tuple(NodeTypeSource(handler, BUILT_IN) for handler in built_in_handlers())).by_name


def secret_sources(settings: Settings) -> ChainedSecrets:
    return ChainedSecrets(EnvironmentSecrets(), *map(FolderSecrets, filter(None, [settings.secrets_folder])))
