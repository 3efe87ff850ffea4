"""The egress policy: which hosts, ports and addresses this process may call, and how much of a response it reads.

Only the public internet on ports 80 and 443 is reachable; the operator's allow-list opens names, addresses or networks,
each with a port if need be. `transport.py` applies the policy to connections, `http_client.py` to requests; a refusal
is a `CallFailed`. The closed networks are listed here, because the answers of `ipaddress.is_global` differ between
versions of Python. Of IPv6 only 2000::/3 is open, which closes every form that embeds another address.
`TcpConnector` opens connections for protocols other than HTTP under the same policy.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from functools import cached_property
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import TidemillError, read_each, rejected

if TYPE_CHECKING:
    from tidemill.net.transport import Resolver


# Address classes and host names.

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_OPEN_V6 = IPv6Network("2000::/3")
_CLOSED: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), word)
    for word, networks in {
        "metadata": ("168.63.129.16/32", "100.100.100.200/32", "192.0.0.192/32", "fd00:ec2::/32"),
        "this network": ("0.0.0.0/8",),
        "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
        "shared": ("100.64.0.0/10",),
        "loopback": ("127.0.0.0/8", "::1/128"),
        "link-local": ("169.254.0.0/16", "fe80::/10"),
        "documentation": ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32", "3fff::/20"),
        "benchmark": ("198.18.0.0/15", "2001:2::/48"),
        "6to4": ("192.88.99.0/24", "2002::/16"),
        "Teredo": ("2001::/32",),
        "NAT64": ("64:ff9b::/96", "64:ff9b:1::/48"),
        "IPv4-mapped": ("::ffff:0:0/96",),
        "IPv4-compatible": ("::/96",),
        "multicast": ("224.0.0.0/4", "ff00::/8"),
        "reserved": (
            *("192.0.0.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.175.48.0/24", "240.0.0.0/4"),
            *("2001::/23", "2620:4f:8000::/48"),
        ),
    }.items()
    for network in networks
)
_NAMES = frozenset(
    {
        *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"),
        *("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"),
    }
)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\.?")


def is_private(address: Address) -> str:
    """The class of a closed address; empty for one of the public internet."""
    for network, word in _CLOSED:
        if address in network:
            return word
    return "" if address.version == 4 or address in _OPEN_V6 else "reserved"


def is_metadata(address: Address) -> bool:
    """Whether a cloud may serve credentials there; no allowed name opens such an address."""
    return is_private(address) in ("metadata", "link-local")


def literal(host: str) -> Address | None:
    """The address, if the host is one; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def plain_name(host: str) -> str:
    """Normalise a name: lower case, without a final dot."""
    return host.lower().removesuffix(".")


def is_local_name(name: str) -> bool:
    """Whether a name means this machine or cloud metadata, whatever it resolves to."""
    return name in _NAMES or name.endswith(".localhost")


def invalid_host(host: str) -> str:
    """What is wrong with a host; empty if nothing. Resolvers read names that end in a number as addresses."""
    if not host:
        return "there is no host"
    address = literal(host)
    if address is not None:
        return "an address must not name a zone" if "%" in host else ""
    if len(host) > 253 or not _NAME.fullmatch(host):
        return "the host is neither an address nor a name"
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return "the host is an address in an unusual spelling"
    return ""


# Policy.

PORTS = frozenset({80, 443})
SCHEMES = {"http": 80, "https": 443}
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.+))?")
_PLAIN = re.compile(r"([^:\[\]]+)(?::(.+))?")
TOO_SLOW = "give it more time with `timeout_seconds`, or let `retry` try again"


class CallFailed(TidemillError):
    """An outgoing call got no usable response. The message names hosts and paths, never credentials or query values."""

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, hint: str = "", unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable, self.hint = code, message, retryable, hint
        self.unsent = unsent
        """There was no connection, so the server has received nothing."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    connect_ms: int = 5_000
    total_ms: int = 30_000
    bytes_max: int = 10_000_000
    """Size of a response body after decompression."""
    ratio_max: int = 100
    """Largest factor by which decompression may expand a body."""
    header_bytes_max: int = 65_536
    redirects_max: int = 3


class AllowRule(msgspec.Struct, frozen=True):
    """One entry of an allow-list: a name or a network, on some ports; None is all of them."""

    name: str
    network: Network | None
    ports: frozenset[int] | None

    def allows(self, name: str, address: Address, port: int) -> bool:
        """Whether the rule allows a connection. No name opens an address of cloud metadata."""
        if self.ports is not None and port not in self.ports:
            return False
        if self.network is not None:
            return address in self.network
        return self.name == name and not is_metadata(address)


class Egress(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    allow: tuple[str, ...] = ()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        _ = self.entries  # Refuses an invalid allow-list before the first call.

    @cached_property
    def entries(self) -> tuple[AllowRule, ...]:
        return read_each(read_entry, self.allow)

    def check_origin(self, scheme: str, host: str, port: int | None = None) -> None:
        """Refuse an origin that must not be called, whatever its host resolves to."""
        if scheme not in SCHEMES:
            message = f"only http and https are called, not {scheme}:" if scheme else "the URL names no scheme"
            raise CallFailed("egress_refused", message, hint="begin with https://")
        self.check_host(host, port or SCHEMES[scheme])

    def check_host(self, host: str, port: int) -> None:
        """The same for any protocol."""
        problem = invalid_host(host)
        if problem:
            hint = "write a name, or an address such as 192.0.2.7"
            raise CallFailed("url_invalid", f"{problem}: {host!r}", hint=hint)
        name = plain_name(host)
        if is_local_name(name) and all(entry.name != name for entry in self.entries):
            raise _refused(f"{name} is not on the public internet", _entry(name, port))

    def opening(self, host: str, port: int) -> Egress:
        """The policy with one more entry, for a host that the operator has configured."""
        return Egress(allow=(*self.allow, _entry(host, port)), limits=self.limits)

    def check_addresses(self, host: str, port: int, found: Sequence[Address]) -> None:
        """Refuse a connection unless every address of the host is public or allowed."""
        name = plain_name(host)
        for address in found:
            if any(entry.allows(name, address, port) for entry in self.entries):
                continue
            kind = is_private(address)
            if kind:
                where = f"{name} is {address}, which" if name != str(address) else name
                opening = str(address) if is_metadata(address) else name
                raise _refused(f"{where} is a {kind} address", _entry(opening, port))
            if port not in PORTS:
                raise _refused(f"port {port} of {name} is not allowed", _entry(name, port))


def _entry(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refused(message: str, entry: str) -> CallFailed:
    hint = f'the operator adds "{entry}" to `egress` in tidemill.toml, or to TIDEMILL_EGRESS_ALLOW'
    return CallFailed("egress_refused", message, hint=hint)


def read_allow_list(text: str) -> tuple[str, ...]:
    """Split the value of an environment variable at commas and spaces."""
    return tuple(text.replace(",", " ").split())


def read_entry(text: str) -> AllowRule:
    """Parse an entry of an allow-list. A scheme implies its port; the default is 80 and 443."""
    scheme, separator, rest = text.strip().lower().rpartition("://")
    if separator and scheme not in SCHEMES:
        raise _invalid_entry(text)
    host, port = _split_port(rest.removesuffix("/"))
    ports: frozenset[int] | None = PORTS if not separator else frozenset({SCHEMES[scheme]})
    if port == "*":
        ports = None
    elif port:
        if not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65_536:
            raise _invalid_entry(text)
        ports = frozenset({int(port)})
    try:
        return AllowRule("", ip_network(host, strict=False), ports)
    except ValueError:
        if invalid_host(host):
            raise _invalid_entry(text) from None
        return AllowRule(plain_name(host), None, ports)


def _split_port(text: str) -> tuple[str, str]:
    """Host and port of an entry, empty if missing; an IPv6 address with a port is in brackets."""
    if text.count(":") > 1 and not text.startswith("["):
        return text, ""
    found = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    return (found[1], found[2] or "") if found else ("", "")


def _invalid_entry(text: str) -> TidemillError:
    hint = "write HOST, HOST:PORT, HOST:* for all ports, ADDRESS, NETWORK/BITS or http://HOST:PORT"
    return rejected("egress_entry_invalid", f"{text!r} is not an entry of an allow-list", hint=hint)


def shown(url: str) -> str:
    """A URL for messages: without credentials and query values."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    if not parts.netloc:
        return "the URL"
    host = parts.netloc.rpartition("@")[2]
    names = [piece.partition("=")[0] + "=***" if "=" in piece else "***" for piece in parts.query.split("&") if piece]
    query = "?" + "&".join(names) if names else ""
    return f"{parts.scheme}://{host}{parts.path}{query}"


# Connections for other protocols than HTTP.


class TcpConnector:
    """Opens sockets, under the policy."""

    def __init__(
        self, egress: Egress, *, resolver: Resolver | None = None, trust: ssl.SSLContext | None = None
    ) -> None:
        self.egress, self._resolver, self._trust = egress, resolver, trust

    @cached_property
    def trust(self) -> ssl.SSLContext:
        """The trusted certificates; by default those of this machine."""
        return self._trust or ssl.create_default_context()

    def opening(self, host: str, port: int) -> TcpConnector:
        """A dialer that may also call a host that the operator has configured."""
        return TcpConnector(self.egress.opening(host, port), resolver=self._resolver, trust=self._trust)

    async def dial(self, host: str, port: int) -> socket.socket:
        # Imported here because loading the HTTP library takes a tenth of a second.
        from tidemill.net import transport

        self.egress.check_host(host, port)
        connector = transport.Connector(self.egress, self._resolver or transport.resolve)
        with transport.translate_errors(host):
            return await connector.dial(host, port)
