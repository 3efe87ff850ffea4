"""Node types that touch nothing: `value` returns its config, `fail` fails, `sleep` waits on a durable timer."""

from __future__ import annotations

from typing import Any

from tidemill.handlers.contract import Ended, Fail, Handler, NodeContext, Pause, Return
from tidemill.kernel.model import NodeType

VALUE = NodeType(name="value", description="Returns its rendered config.")

FAIL = NodeType(
    name="fail",
    description="Fails, or fails the first attempts and then returns a value.",
    config_schema={
        "type": ["object", "null"],
        "properties": {
            "message": {"type": "string"},
            "kind": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$", "maxLength": 64, "default": "failed"},
            "retryable": {"type": "boolean", "default": False},
            "attempts": {"type": "integer", "minimum": 0},
            "value": True,
        },
        "additionalProperties": False,
    },
)

SLEEP = NodeType(
    name="sleep",
    waits=True,
    description="Waits on a durable timer; outputs null.",
    config_schema={
        "type": "object",
        "properties": {
            "seconds": {"type": "number", "minimum": 0, "maximum": 3_155_760_000},
            "ms": {"type": "integer", "minimum": 0, "maximum": 3_155_760_000_000},
        },
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    },
)


def value(context: NodeContext) -> Ended:
    """Return the rendered config."""
    return Return(context.config)


def fail(context: NodeContext) -> Ended:
    """Fail with the configured kind; after `attempts` failures of this visit or item, return `value`."""
    config: dict[str, Any] = context.config or {}
    failing = config.get("attempts")
    if failing is not None and context.attempt > failing:
        return Return(config.get("value"))
    raise Fail(
        config.get("kind", "failed"),
        config.get("message", "the node is told to fail"),
        retryable=config.get("retryable", False),
    )


def sleep(context: NodeContext) -> Ended:
    """Ask for a timer."""
    config: dict[str, Any] = context.config
    ms = config["ms"] if "ms" in config else round(config["seconds"] * 1000)
    return Pause(on="timer", for_ms=ms)


PLAIN = (Handler(VALUE, value), Handler(FAIL, fail), Handler(SLEEP, sleep))
