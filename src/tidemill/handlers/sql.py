"""Node type `sql`: one parameterised statement, on the store that holds the run or on a database of the operator's.

On the run's own store the statement is done in the transaction that records the node's result, so it happens exactly
once: it is rehearsed here to learn its answer, and the commit does it for good. Elsewhere it is done like any other
effect, at least once; a statement that is handed `:effect_key` can tell repetitions apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tidemill.errors import Rejected, Unavailable
from tidemill.expressions.templates import is_template
from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Return
from tidemill.handlers.sql_databases import SQL_HINT, Database, Parameters
from tidemill.handlers.sql_text import is_nothing, is_several
from tidemill.kernel.model import Flaw, Json, NodeType
from tidemill.stores.contract import Rehearsing, Statement

STORE = "store"
"""The name of the run's own store."""
EFFECT_KEY = "effect_key"
NOTHING = "there is no statement, only a comment or nothing"


def sql_handler(databases: Mapping[str, Database], own: Rehearsing | None = None, *, has_own: bool = True) -> Handler:
    """The node type over the databases that an operator has named; `own` is the store, if it takes statements.

    Whoever only checks documents has no store, and says whether there would be one (`has_own`).
    """

    async def call(context: NodeContext) -> Ended:
        config: dict[str, Any] = context.config
        name, text = config.get("database", STORE), config["statement"]
        parameters = _parameters(config, context)
        if is_nothing(text, databases[name].dialect if name in databases else "sqlite"):
            raise Fail("sql_failed", NOTHING, hint="write one statement")
        if name == STORE:
            return await _rehearsed(own, Statement(text=text, parameters=msgspec.json.encode(parameters)))
        database = databases.get(name)
        if database is None:
            raise Fail("database_unknown", f"there is no database {name}", hint=_hint(databases))
        return Return(await database.run(text, parameters))

    async def close() -> None:
        for database in databases.values():
            await database.close()

    def flaws(config: Json) -> Iterator[Flaw]:
        name, text = config.get("database", STORE), config["statement"]
        if is_template(name):
            return
        if name == STORE and not has_own:
            yield Flaw("/database", "this store takes no statements", "name a database, or use a store with SQL")
        elif name != STORE and name not in databases:
            yield Flaw("/database", f'there is no database "{name}"', _hint(databases))
        elif not is_template(text):
            dialect = databases[name].dialect if name in databases else "sqlite"
            if is_several(text, dialect):
                yield Flaw("/statement", "there is more than one statement", "give each of them a node of its own")
            if is_nothing(text, dialect):
                yield Flaw("/statement", NOTHING, "write one statement")

    return Handler(msgspec.structs.replace(SQL, check=flaws), call, close=close)


SQL = NodeType(
    name="sql",
    title="SQL statement",
    icon="database",
    description="Does one parameterised statement; on the run's own store exactly once.",
    secret_fields=("parameters",),
    config_schema={
        "type": "object",
        "properties": {
            "database": {"type": "string", "minLength": 1, "default": STORE},
            "statement": {"type": "string", "minLength": 1, "maxLength": 65_536},
            "parameters": {"anyOf": [{"type": "array"}, {"type": "object"}]},
        },
        "required": ["statement"],
        "additionalProperties": False,
    },
    output_schema={
        "type": "object",
        "properties": {"rows": {"type": "array"}, "count": {"type": "integer"}, "changed": {"type": "integer"}},
        "required": ["rows", "count", "changed"],
    },
)


async def _rehearsed(own: Rehearsing | None, statement: Statement) -> Return:
    if own is None:
        raise Fail("database_unknown", "this store takes no statements", hint="name a database")
    try:
        answer = await own.rehearse(statement)
    except Rejected as refused:
        raise Fail("sql_failed", refused.problems[0].message, hint=refused.problems[0].hint or SQL_HINT) from refused
    except Unavailable as error:
        raise Fail("database_unavailable", str(error), retryable=True) from error
    return Return(msgspec.json.decode(answer), statement=msgspec.structs.replace(statement, answer=answer))


def _parameters(config: Mapping[str, Any], context: NodeContext) -> Parameters:
    """What is bound: a list by position, or an object by name, which then also has the effect key."""
    given = config.get("parameters")
    if isinstance(given, list):
        return given
    named = dict(given or {})
    return named | {EFFECT_KEY: context.effect_key} if f":{EFFECT_KEY}" in config["statement"] else named


def _hint(databases: Mapping[str, Database]) -> str:
    known = ", ".join(sorted([STORE, *databases]))
    return f"known: {known}; an operator names one with TIDEMILL_DATABASE_NAME=sqlite:///file or postgresql://…"
