"""Node type `email`: sends a message over SMTP, through the operator's server or one that the node names.

SMTP does not confirm delivery reliably, so a message is sent at least once, and all attempts of a visit use the same
Message-ID. A node that must not repeat itself sets `delivery: at_most_once`. The operator's credentials are never sent
to a server that a document names. Message format and SMTP session are in `smtp.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemill.ambient import wall_clock_ms
from tidemill.errors import Rejected, rejected
from tidemill.expressions.scope import is_template
from tidemill.handlers import smtp
from tidemill.handlers.contract import (
    CapabilityMissing,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    object_schema,
)
from tidemill.handlers.http.exchange import HEADERS_SCHEMA, TIMEOUT_SCHEMA, check_not_literal, time_ms
from tidemill.kernel.model import ConfigProblem, Json, NodeType
from tidemill.net.egress import CallFailed, TcpConnector, invalid_host
from tidemill.net.http_client import check_secrets

_UNENCRYPTED = "credentials are not sent over an unencrypted connection"
HINT = (
    'name one under `server`, or the operator writes `smtp = "smtp://user:password@host:587"` in tidemill.toml, '
    "or sets TIDEMILL_SMTP_URL"
)
_TEXT = {"type": "string"}
_ADDRESS = {"type": "string", "minLength": 3, "maxLength": 1_000}
_ADDRESSES = {"anyOf": [_ADDRESS, {"type": "array", "items": _ADDRESS, "maxItems": smtp.RECIPIENTS_MAX}]}
_SERVER = object_schema(
    ("host",),
    host={"type": "string", "minLength": 1},
    port={"type": "integer", "minimum": 1, "maximum": 65_535},
    tls={"enum": list(smtp.PORTS)},
    username=_TEXT,
    password=_TEXT,
    access_token=_TEXT,
)
_ATTACHMENT = object_schema(
    ("content",),
    name={"type": "string", "minLength": 1, "maxLength": 255},
    media_type={"type": "string", "maxLength": 255},
    content={"anyOf": [_TEXT, {"type": "object", "required": ["$blob"]}]},
)


def _check(config: Json) -> Iterator[ConfigProblem]:
    server = config.get("server")
    if isinstance(server, dict):
        yield from _check_server(server)
    for key in ("from", "to", "cc", "bcc", "reply_to"):
        given = config.get(key)
        many = enumerate(given) if isinstance(given, list) else ()
        for path, text in [(f"/{key}", given), *((f"/{key}/{number}", each) for number, each in many)]:
            yield from _try(smtp.mailbox, text, path)
    for path, name, value in smtp.headers_of(config):
        if smtp.is_own(name):
            yield ConfigProblem(path, f"{name} cannot be set", "leave it out, or use the other fields")
        else:
            yield from _try(smtp.require_one_line, value, path, "leave it out")
    yield from _try(smtp.require_one_line, config.get("subject"), "/subject", "leave it out")


def _check_server(server: Mapping[str, Any]) -> Iterator[ConfigProblem]:
    host = server.get("host")
    if isinstance(host, str) and not is_template(host) and invalid_host(host):
        yield ConfigProblem("/server/host", invalid_host(host), "for example smtp.example.com")
    yield from check_not_literal(server.get("password"), "/server/password", "password")
    yield from check_not_literal(server.get("access_token"), "/server/access_token", "token")
    if "access_token" in server and ("password" in server or "username" not in server):
        message = "an access token needs a username and replaces the password"
        yield ConfigProblem("/server/access_token", message, "see XOAUTH2")
    if server.get("username") and server.get("tls") == "none":
        yield ConfigProblem("/server/tls", _UNENCRYPTED, "set tls to starttls or tls")


def _try(check: Callable[[str, str], object], text: Any, path: str, hint: str = "") -> Iterator[ConfigProblem]:
    """Report the `Fail` that a check of a text raises, unless the text is a template."""
    if isinstance(text, str) and not is_template(text):
        try:
            check(text, path)
        except Fail as fail:
            yield ConfigProblem(path, fail.message.removeprefix(f"{path}: "), hint or fail.hint)


EMAIL = NodeType(
    name="email",
    title="Email",
    icon="mail",
    description="Sends a message over SMTP.",
    secret_fields=("server.username", "server.password", "server.access_token"),
    check=_check,
    config_schema=object_schema(
        ("from",),
        **dict.fromkeys(("to", "cc", "bcc", "reply_to"), _ADDRESSES) | {"from": _ADDRESS},
        subject={"type": "string", "maxLength": 1_000},
        text=_TEXT,
        html=_TEXT,
        attachments={"type": "array", "items": _ATTACHMENT, "maxItems": 50},
        headers=HEADERS_SCHEMA | {"propertyNames": {"pattern": "^[A-Za-z0-9-]+$"}},
        server=_SERVER,
        timeout_seconds=TIMEOUT_SCHEMA,
    )
    | {
        "allOf": [
            {"anyOf": [{"required": ["text"]}, {"required": ["html"]}]},
            {"anyOf": [{"required": ["to"]}, {"required": ["cc"]}, {"required": ["bcc"]}]},
        ]
    },
    output_schema=object_schema(
        ("message_id", "recipients", "reply"),
        message_id=_TEXT,
        recipients={"type": "array", "items": _TEXT},
        reply=_TEXT,
    ),
)


def email_handler(
    dialer: TcpConnector, operators: smtp.Server | None = None, now_ms: Callable[[], int] = wall_clock_ms
) -> Handler:
    """The node type; `operators` is the server for nodes that name none, and is exempt from the egress policy."""

    async def work(context: NodeContext) -> HandlerOutcome:
        named = context.config.get("server")
        server = operators if named is None else _configured_server(named)
        if server is None:
            raise CapabilityMissing("smtp_server_missing", "no mail server is named", hint=HINT)
        allowed = dialer if named is not None else dialer.opening(server.host, server.port)
        message = await smtp.message_of(context, now_ms())
        total_ms = time_ms(context.config) or dialer.egress.limits.total_ms
        try:
            if context.forbidden_at is not None:
                scheme = "smtps" if server.tls == "tls" else "smtp"
                check_secrets(context.forbidden_at, f"{scheme}://{server.host}:{server.port}")
            reply = await smtp.deliver(message, server, allowed, total_ms)
        except CallFailed as error:
            raise Fail(error.code, error.message, retryable=error.retryable, hint=error.hint) from error
        return Done({"message_id": message.message_id, "recipients": list(message.recipients), "reply": reply})

    return Handler(EMAIL, work)


def _configured_server(server: Mapping[str, Any]) -> smtp.Server:
    tls: smtp.Tls = server.get("tls", _tls_at(server.get("port")))
    if server.get("username") and tls == "none":
        raise Fail("config_invalid", f"/server/tls: {_UNENCRYPTED}", hint="set tls to starttls or tls")
    return smtp.Server(**{"tls": tls, "port": smtp.PORTS[tls], **server})


def _tls_at(port: int | None) -> smtp.Tls:
    return "tls" if port == smtp.PORTS["tls"] else "starttls"


def server_at(url: str) -> smtp.Server:
    """Parse `smtp://user:password@host:587?tls=starttls` or `smtps://…`. Errors never quote the URL."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, strict_parsing=bool(parts.query)))
        tls: Any = options.pop("tls", "tls" if parts.scheme == "smtps" else _tls_at(parts.port))
        host, port = parts.hostname or "", parts.port
    except ValueError:
        raise _invalid_url("it is not a URL") from None
    foreign = parts.scheme not in ("smtp", "smtps") or parts.path not in ("", "/") or parts.fragment
    problems = {
        "it is not an smtp:// URL": foreign or invalid_host(host),
        "there is no port 0": port == 0,
        "it has a password and no user": parts.password and not parts.username,
        "smtps:// is tls=tls": parts.scheme == "smtps" and tls != "tls",
        "its only option is tls: starttls, tls or none": options or tls not in smtp.PORTS,
        _UNENCRYPTED: parts.username and tls == "none",
    }
    for why, applies in problems.items():
        if applies:
            raise _invalid_url(why)
    username, password = unquote(parts.username or ""), unquote(parts.password or "")
    return smtp.Server(host=host, port=port or smtp.PORTS[tls], tls=tls, username=username, password=password)


def _invalid_url(why: str) -> Rejected:
    hint = "write smtp://user:password@host:587?tls=starttls, with %40 for an @ in a password"
    return rejected("smtp_url_invalid", f"the URL of the mail server cannot be used: {why}", hint=hint)
