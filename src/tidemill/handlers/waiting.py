"""Node types that wait for the world: a person, a signal, another workflow, a moment.

None of them holds a worker while it waits. A handler only says what is waited for; who may end the wait, and how,
is decided by the kernel.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

from tidemill.expressions.templates import is_template
from tidemill.handlers.contract import Asked, Child, Ended, Fail, Handler, NodeContext, Pause
from tidemill.kernel.model import Flaw, NodeType

HOURS_MAX = 876_600
"""A hundred years, as for the node type `sleep`."""
MOMENT_MS_MAX = 253_402_300_800_000
"""The end of the year 9999."""
_PRINCIPALS = {"type": "array", "items": {"type": "string", "pattern": "^(user|role):.+"}, "maxItems": 1_000}
_NODE_IDS = {"type": "array", "items": {"type": "string"}}


def _too_few(asked: Iterable[str], quorum: int) -> Flaw | None:
    """Why people who are all known by name can never agree: there are not enough of them."""
    people = set(asked)
    if quorum <= len(people) or not people or not all(name.startswith("user:") for name in people):
        return None
    message = f"{quorum} people have to agree, but only {len(people)} are asked"
    return Flaw("/quorum", message, "lower the quorum, or ask a role")


def _never_agreed(config: Any) -> Iterator[Flaw]:
    quorum = config.get("quorum", 1)
    for asked in (config.get("approvers"), config.get("escalate_to")):
        if isinstance(quorum, int) and isinstance(asked, list) and not any(map(is_template, asked)):
            flaw = _too_few(asked, quorum)
            if flaw is not None:
                yield flaw


def _no_moment(config: Any) -> Iterator[Flaw]:
    """A moment that is written down and is none."""
    at = config.get("at")
    if isinstance(at, str) and not is_template(at):
        try:
            _moment_ms(at)
        except Fail as failure:
            yield Flaw("/at", failure.message, failure.hint)


HUMAN = NodeType(
    name="human",
    waits=True,
    exits=("rejection_path", "changes_path"),
    schemas=("form",),
    check=_never_agreed,
    description="Asks people to approve, reject or request changes.",
    output_schema={
        "type": "object",
        "properties": {
            "decision": {"type": "string"},
            **dict.fromkeys(("comments", "decided_by", "decided_at", "form"), True),
        },
        "additionalProperties": False,
    },
    config_schema={
        "type": ["object", "null"],
        "properties": {
            "title": {"type": "string", "maxLength": 500},
            "description": {"type": "string", "maxLength": 20_000},
            "form": {"type": "object"},
            "approvers": _PRINCIPALS,
            "quorum": {"type": "integer", "minimum": 1, "default": 1},
            "four_eyes": {"type": "boolean", "default": False},
            "timeout_seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": HOURS_MAX * 3_600},
            "timeout_hours": {"type": "number", "exclusiveMinimum": 0, "maximum": HOURS_MAX},
            "on_timeout": {"enum": ["approve", "reject", "escalate", "fail"], "default": "fail"},
            "escalate_to": {**_PRINCIPALS, "minItems": 1},
            "rejection_path": _NODE_IDS,
            "changes_path": _NODE_IDS,
            "approval_url": {"type": "string", "maxLength": 2_000},
        },
        "additionalProperties": False,
        "not": {"required": ["timeout_seconds", "timeout_hours"]},
        "if": {"properties": {"on_timeout": {"const": "escalate"}}, "required": ["on_timeout"]},
        "then": {"required": ["escalate_to"]},
    },
)

SIGNAL = NodeType(
    name="signal",
    waits=True,
    description="Waits for a signal; outputs its payload.",
    config_schema={
        "type": ["object", "null"],
        "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 200}},
        "additionalProperties": False,
    },
)

WORKFLOW = NodeType(
    name="workflow",
    waits=True,
    description="Runs another workflow as a child; outputs what it returns.",
    config_schema={
        "type": "object",
        "properties": {
            "workflow": {"type": "string", "minLength": 1, "maxLength": 300},
            "inputs": True,
            "close": {"enum": ["cancel", "abandon"], "default": "cancel"},
            "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        },
        "required": ["workflow"],
        "additionalProperties": False,
    },
)

WAIT_UNTIL = NodeType(
    name="wait_until",
    waits=True,
    check=_no_moment,
    description="Waits until a moment; outputs null. A moment gone by is no wait at all.",
    config_schema={
        "type": "object",
        "properties": {"at": {"type": "string"}, "at_ms": {"type": "integer", "minimum": 0, "maximum": MOMENT_MS_MAX}},
        "additionalProperties": False,
        "minProperties": 1,
        "maxProperties": 1,
    },
)


def human(context: NodeContext) -> Ended:
    """Ask people."""
    config: dict[str, Any] = context.config or {}
    approvers, quorum = tuple(config.get("approvers", ())), int(config.get("quorum", 1))
    for asked in (approvers, config.get("escalate_to", ())):
        flaw = _too_few(asked, quorum)
        if flaw is not None:
            raise Fail("config_invalid", flaw.message, hint=flaw.hint)
    return Pause(
        on="human",
        approval=Asked(
            title=config.get("title") or context.node,
            description=config.get("description", ""),
            form=config.get("form"),
            approvers=approvers,
            quorum=quorum,
            four_eyes=config.get("four_eyes", False),
            timeout_ms=_timeout_ms(config),
            on_timeout=config.get("on_timeout", "fail"),
            escalate_to=tuple(config.get("escalate_to", ())),
            url=config.get("approval_url", ""),
        ),
    )


def _timeout_ms(config: dict[str, Any]) -> int | None:
    seconds = config["timeout_hours"] * 3_600 if "timeout_hours" in config else config.get("timeout_seconds")
    return None if seconds is None else max(1, round(float(seconds) * 1_000))


def signal(context: NodeContext) -> Ended:
    """Wait for a signal, by default of the node's own name."""
    return Pause(on="signal", name=(context.config or {}).get("name", context.node))


def workflow(context: NodeContext) -> Ended:
    """Ask for a child run."""
    config: dict[str, Any] = context.config
    return Pause(
        on="child",
        child=Child(
            workflow=config["workflow"],
            inputs=config.get("inputs", {}),
            close=config.get("close", "cancel"),
            labels=config.get("labels", {}),
        ),
    )


def wait_until(context: NodeContext) -> Ended:
    """Ask for a timer at a moment."""
    config: dict[str, Any] = context.config
    return Pause(on="timer", until_ms=int(config["at_ms"]) if "at_ms" in config else _moment_ms(config["at"]))


def _moment_ms(text: str) -> int:
    """A moment as ISO 8601 writes it; without an offset it is UTC."""
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(0, round(moment.timestamp() * 1_000))
    except (ValueError, OverflowError):
        hint = "for example 2030-01-31T09:00:00+01:00"
        raise Fail("config_invalid", f"{text!r} is no moment", hint=hint) from None


WAITING = (Handler(HUMAN, human), Handler(SIGNAL, signal), Handler(WORKFLOW, workflow), Handler(WAIT_UNTIL, wait_until))
