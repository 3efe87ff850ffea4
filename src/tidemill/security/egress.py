"""The rules for every call that leaves this process: which hosts, ports and addresses, and how much of an answer.

Pure policy; `wire` applies it to each connection, `fetcher` to each request. Only the open internet on the ports 80
and 443 is reachable. An operator opens more with entries of an allow-list: a name, an address or a network, each
with a port if need be. What is refused here is a `CallFailed`, like everything else that can go wrong with a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from ipaddress import ip_network
from urllib.parse import urlsplit

import msgspec

from tidemill.errors import TidemillError, rejected
from tidemill.security import addresses
from tidemill.security.addresses import Address, Network

PORTS = frozenset({80, 443})
SCHEMES = {"http": 80, "https": 443}
_BRACKETED = re.compile(r"\[([^\[\]]*:[^\[\]]*)\](?::(.+))?")
_PLAIN = re.compile(r"([^:\[\]]+)(?::(.+))?")
_GRAMMAR = "write HOST, HOST:PORT, HOST:* for all ports, ADDRESS, NETWORK/BITS or http://HOST:PORT"


TOO_SLOW = "give it more time with `timeout_seconds`, or let `retry` try again"


class CallFailed(TidemillError):
    """A call to the outside did not come to an answer, or not to one that can be used.

    The message names hosts and paths, never credentials or the values of a query.
    """

    def __init__(
        self, code: str, message: str, *, retryable: bool = False, hint: str = "", unsent: bool = False
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.retryable, self.hint = code, message, retryable, hint
        self.unsent = unsent
        """There was no connection, so nobody has heard anything."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How long a call may take, and how much it may bring."""

    connect_ms: int = 5_000
    total_ms: int = 30_000
    bytes_max: int = 10_000_000
    """Of an answer, after decompression."""
    ratio_max: int = 100
    """By how much a body may grow when it is decompressed."""
    header_bytes_max: int = 65_536
    redirects_max: int = 3


class Entry(msgspec.Struct, frozen=True):
    """One line of an allow-list: a name or a network, on some ports; None is all of them."""

    name: str
    network: Network | None
    ports: frozenset[int] | None

    def opens(self, name: str, address: Address, port: int) -> bool:
        """Whether it lets a connection through. No name opens an address where clouds keep credentials."""
        if self.ports is not None and port not in self.ports:
            return False
        if self.network is not None:
            return address in self.network
        return self.name == name and not addresses.is_metadata(address)


class Egress(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """What may leave this process."""

    allow: tuple[str, ...] = ()
    limits: Limits = Limits()

    def __post_init__(self) -> None:
        _ = self.entries  # An allow-list that cannot be read is refused here, before anything is called.

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        """The allow-list, read."""
        return tuple(read_entry(text) for text in self.allow)

    def check_origin(self, scheme: str, host: str, port: int | None = None) -> None:
        """Refuse a host that must not be called, whatever it resolves to."""
        if scheme not in SCHEMES:
            message = f"only http and https are called, not {scheme}:" if scheme else "the URL names no scheme"
            raise CallFailed("egress_refused", message, hint="begin with https://")
        self.check_host(host, port or SCHEMES[scheme])

    def check_host(self, host: str, port: int) -> None:
        """The same for a host that is called in another way than over HTTP; a refusal names the port to open."""
        fault = addresses.misspelled(host)
        if fault:
            raise CallFailed("url_invalid", f"{fault}: {host!r}", hint="write a name, or an address such as 192.0.2.7")
        name = addresses.plain_name(host)
        if addresses.is_local_name(name) and all(entry.name != name for entry in self.entries):
            raise _refused(f"{name} is not part of the open internet", _entry(name, port))

    def opening(self, host: str, port: int) -> Egress:
        """The same rules with one more entry: the operator has named this host."""
        return Egress(allow=(*self.allow, _entry(host, port)), limits=self.limits)

    def check_addresses(self, host: str, port: int, found: Sequence[Address]) -> None:
        """Refuse a connection unless every address that the host has is open, or opened by an entry."""
        name = addresses.plain_name(host)
        for address in found:
            if any(entry.opens(name, address, port) for entry in self.entries):
                continue
            kind = addresses.closed(address)
            if kind:
                where = f"{name} is {address}, which" if name != str(address) else name
                opening = str(address) if addresses.is_metadata(address) else name
                raise _refused(f"{where} is a {kind} address", _entry(opening, port))
            if port not in PORTS:
                raise _refused(f"port {port} of {name} is not open", _entry(name, port))


def _entry(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _refused(message: str, entry: str) -> CallFailed:
    hint = f"an operator can allow it: TIDEMILL_EGRESS_ALLOW={entry}"
    return CallFailed("egress_refused", message, hint=hint)


def read_allow_list(text: str) -> tuple[str, ...]:
    """The entries of an environment variable: between commas or spaces."""
    return tuple(text.replace(",", " ").split())


def read_entry(text: str) -> Entry:
    """One entry of an allow-list. A scheme stands for its port; without a scheme and a port it means 80 and 443."""
    scheme, separator, rest = text.strip().lower().rpartition("://")
    if separator and scheme not in SCHEMES:
        raise _unreadable(text)
    host, port = _parted(rest.removesuffix("/"))
    ports = PORTS if not separator else frozenset({SCHEMES[scheme]})
    if port == "*":
        return Entry(*_named(host, text), None)
    if port:
        if not port.isdecimal() or not port.isascii() or not 0 < int(port) < 65_536:
            raise _unreadable(text)
        ports = frozenset({int(port)})
    return Entry(*_named(host, text), ports)


def _parted(text: str) -> tuple[str, str]:
    """Host and port of an entry, both empty if it has neither; an IPv6 address with a port stands in brackets."""
    if text.count(":") > 1 and not text.startswith("["):
        return text, ""
    found = _BRACKETED.fullmatch(text) or _PLAIN.fullmatch(text)
    return (found[1], found[2] or "") if found else ("", "")


def _named(host: str, text: str) -> tuple[str, Network | None]:
    try:
        return "", ip_network(host, strict=False)
    except ValueError:
        if addresses.misspelled(host):
            raise _unreadable(text) from None
        return addresses.plain_name(host), None


def _unreadable(text: str) -> TidemillError:
    return rejected("egress_entry_invalid", f"{text!r} is no entry of an allow-list", hint=_GRAMMAR)


def shown(url: str) -> str:
    """A URL as it may be told to anybody: without credentials, and without the values of its query."""
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
