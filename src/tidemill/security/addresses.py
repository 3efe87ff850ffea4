"""Which addresses belong to the open internet, and how the host of a URL may be spelled.

Pure: text and addresses in, words out. The networks are written down here, not asked of `ipaddress.is_global`, whose
answers differ between versions of Python. Of IPv6 only 2000::/3 is open at all, so every form that hides another
address (mapped, compatible, translated) is closed without being taken apart.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

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
_METADATA = frozenset({"metadata", "link-local"})
_NAMES = frozenset(
    {
        *("localhost", "localhost.localdomain", "ip6-localhost", "ip6-loopback"),
        *("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"),
    }
)
_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NUMBER = re.compile(r"(?:[0-9]+|0x[0-9a-f]*)\.?")
_NAME_MAX = 253


def closed(address: Address) -> str:
    """What kind of closed address this is, in a word; empty for one of the open internet."""
    for network, word in _CLOSED:
        if address in network:
            return word
    return "" if address.version == 4 or address in _OPEN_V6 else "reserved"


def is_metadata(address: Address) -> bool:
    """Whether a cloud may hand out credentials there; no name can open such an address."""
    return closed(address) in _METADATA


def literal(host: str) -> Address | None:
    """The address that a host is written as; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


def plain_name(host: str) -> str:
    """A name as it is compared: in small letters, without the dot at its end."""
    return host.lower().removesuffix(".")


def is_local_name(name: str) -> bool:
    """Whether a name means this machine, or the metadata of a cloud, whatever it resolves to."""
    return name in _NAMES or name.endswith(".localhost")


def misspelled(host: str) -> str:
    """What is wrong with a host as it stands in a URL; empty for an address or a name in its usual spelling.

    Resolvers read `2130706433`, `0x7f.1` and `127.0.0.1.` as addresses. Nobody needs these, so a name never ends
    in a number here. A zone belongs to one machine, and is refused too.
    """
    if not host:
        return "there is no host"
    address = literal(host)
    if address is not None:
        return "an address must not name a zone" if "%" in host else ""
    if len(host) > _NAME_MAX or not _NAME.fullmatch(host):
        return "the host is neither an address nor a name"
    if _NUMBER.fullmatch(host.removesuffix(".").rpartition(".")[2]):
        return "the host is an address in an unusual spelling"
    return ""
