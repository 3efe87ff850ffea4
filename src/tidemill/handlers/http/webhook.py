"""Node type `webhook`: sends a message signed according to Standard Webhooks.

All attempts of a visit carry the same id, so that a receiver can drop repetitions. Redirects are not followed: a signed
message goes only to the URL it was written for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from tidemill.ambient import wall_clock_ms
from tidemill.errors import Rejected
from tidemill.handlers.contract import Done, Fail, Handler, HandlerOutcome, NodeContext, object_schema
from tidemill.handlers.http import exchange
from tidemill.kernel.model import ConfigProblem, NodeType
from tidemill.net.egress import CallFailed
from tidemill.net.http_client import Call, Fetcher
from tidemill.security.signing import KEYS_MAX, signed_headers

_KEY = {"type": "string", "minLength": 1}


def _check(config: Any) -> Iterator[ConfigProblem]:
    yield from exchange.check_url(config.get("url"))
    yield from exchange.check_headers(config.get("headers"))
    for key in _keys(config):
        yield from exchange.check_not_literal(key, "/secret", "key")


WEBHOOK = NodeType(
    name="webhook",
    title="Webhook",
    icon="megaphone",
    description="Sends a signed message to a URL.",
    secret_fields=("url", "headers", "secret"),
    check=_check,
    config_schema=object_schema(
        ("url", "type", "secret"),
        url={"type": "string", "minLength": 1},
        type={"type": "string", "minLength": 1, "maxLength": 200},
        data=True,
        secret={"anyOf": [_KEY, {"type": "array", "items": _KEY, "minItems": 1, "maxItems": KEYS_MAX}]},
        headers=exchange.HEADERS_SCHEMA,
        expect=exchange.EXPECT_SCHEMA | {"default": ["2xx"]},
        timeout_seconds=exchange.TIMEOUT_SCHEMA,
    ),
    output_schema=object_schema((), id={"type": "string"}, status={"type": "integer"}),
)


def webhook_handler(fetcher: Fetcher, now_ms: Callable[[], int] = wall_clock_ms) -> Handler:
    async def work(context: NodeContext) -> HandlerOutcome:
        moment = now_ms()
        message_id = "msg_" + hashlib.sha256(context.effect_key.encode()).hexdigest()[:32]
        try:
            call = _call(context, message_id, moment)
            answer = await fetcher.fetch(call)
        except CallFailed as error:
            raise exchange.failure(error) from error
        exchange.check_status(answer, call.method, context.config.get("expect"), moment)
        return Done({"id": message_id, "status": answer.status})

    return Handler(WEBHOOK, work, close=fetcher.close)


def _keys(config: Any) -> list[Any]:
    keys = config.get("secret")
    return keys if isinstance(keys, list) else [keys]


def _call(context: NodeContext, message_id: str, now_ms: int) -> Call:
    config: dict[str, Any] = context.config
    happened = datetime.fromtimestamp(now_ms / 1_000, UTC).isoformat(timespec="milliseconds")
    body = msgspec.json.encode({"type": config["type"], "timestamp": happened, "data": config.get("data")})
    try:
        signed = signed_headers(_keys(config), message_id, now_ms, body)
    except Rejected as refusal:
        problem = refusal.problems[0]
        raise Fail(problem.code, problem.message, hint=problem.hint) from None
    given = {name.lower(): value for name, value in (config.get("headers") or {}).items()}
    return Call(
        url=config["url"],
        method="POST",
        headers={"content-type": "application/json", **given, **signed},
        body=body,
        repeatable=not context.at_most_once,
        total_ms=exchange.time_ms(config),
        redirects_max=0,
        forbidden_at=context.forbidden_at,
    )
