"""Spellings of addresses that must not be reached: every one of them is a way that somebody once got in.

`{port}` is where the canary listens.
"""

from __future__ import annotations

LOOPBACK = (
    "127.0.0.1", "127.0.0.2", "127.1.2.3", "127.255.255.254", "127.0.0.1.", "127.1", "127.0.1", "127.0.1.",
    "2130706433", "2130706433.", "02130706433", "017700000001", "0x7f000001", "0X7F000001", "0x7f.0.0.1",
    "0x7f.1", "0177.0.0.1", "0177.0.0.01", "0177.1", "00000177.0.0.1", "127.0x0.0.1", "127.0.0.0x1",
    "127.0.0.01",
    "127.00.00.01", "127.000.000.001", "0x7f.0x0.0x0.0x1", "0177.0x0.0.1", "127.0.0.1.0x", "0x",
    "0x.0x.0x.0x",
    "0", "0.0.0.0", "0.0.0.1", "00.00.00.00", "0x0", "000.000.000.000", "4294967296",
    "340282366920938463463374607431768211457",
    "localhost", "LOCALHOST", "LocalHost", "localhost.", "a.localhost", "127.0.0.1.localhost",
    "localhost.localdomain",
    "ip6-localhost", "ip6-loopback",
)  # fmt: skip

IPV6 = (
    "[::1]", "[::]", "[0:0:0:0:0:0:0:1]", "[0000:0000:0000:0000:0000:0000:0000:0001]", "[::0001]", "[0::1]",
    "[::ffff:127.0.0.1]", "[::FFFF:127.0.0.1]", "[::ffff:7f00:1]", "[::ffff:7f00:0001]",
    "[0:0:0:0:0:ffff:7f00:1]",
    "[::ffff:0:127.0.0.1]", "[::127.0.0.1]", "[::7f00:1]", "[::ffff:0.0.0.0]", "[::ffff:10.0.0.1]",
    "[::ffff:169.254.169.254]", "[::ffff:a9fe:a9fe]", "[64:ff9b::127.0.0.1]", "[64:ff9b::7f00:1]",
    "[64:ff9b::a9fe:a9fe]", "[64:ff9b:1::7f00:1]", "[2002:7f00:1::]", "[2002:7f00:0001::1]",
    "[2002:a9fe:a9fe::]",
    "[2002:a00:1::1]", "[2001:0:7f00:1::1]", "[2001:0000:4136:e378:8000:63bf:80ff:fffe]", "[fe80::1]",
    "[fe80::1%lo]",
    "[fe80::1%25lo]", "[::1%25lo]", "[::1%lo]", "[fe80::1%eth0]", "[fec0::1]", "[fc00::1]", "[fd00::1]",
    "[fd00:ec2::254]", "[fd12:3456:789a::1]", "[ff02::1]", "[ff01::1]", "[100::1]", "[2001:db8::1]",
    "[3fff::1]",
    "[5f00::1]", "[4000::1]", "[::ffff:127.1]", "[::1]]", "[[::1]]", "[::1", "::1", "[v1.::1]",
    "[1::1::1]", "[]",
    "[127.0.0.1]", "[localhost]",
)  # fmt: skip

OTHER_RANGES = (
    "10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.255.254", "192.168.0.1", "192.168.255.255",
    "169.254.169.254",
    "169.254.170.2", "169.254.0.1", "100.64.0.1", "100.127.255.254", "100.100.100.200", "168.63.129.16",
    "192.0.0.1",
    "192.0.0.192", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.19.255.254", "198.51.100.7", "203.0.113.7",
    "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255", "0.1.2.3", "2852039166", "0xa9fea9fe",
    "0xA9.0xFE.0xA9.0xFE", "0251.0376.0251.0376", "169.254.43518", "169.16689662", "012.0.0.1",
    "0xc0.0xa8.0.1", "3232235521",
)  # fmt: skip

METADATA = (
    "metadata", "metadata.google.internal", "METADATA.GOOGLE.INTERNAL", "metadata.google.internal.",
    "metadata.goog",
    "instance-data", "instance-data.ec2.internal",
)  # fmt: skip

ODD_LETTERS = (
    "１２７.０.０.１", "127。0。0。1", "127．0．0．1", "127｡0｡0｡1", "①②⑦.⓪.⓪.①", "①②⑦。⓪。⓪。①", "𝟏𝟐𝟕.𝟎.𝟎.𝟏",
    "१२७.०.०.१", "١٢٧.٠.٠.١", "ⓛⓞⓒⓐⓛⓗⓞⓢⓣ", "ｌｏｃａｌｈｏｓｔ", "localhost。", "lоcalhost\u200b",
    "127.0.0.1\u00ad", "𝓁ocalhost", "loc\u0430lhost.localhost",
    "127.0.0.%31", "%31%32%37.0.0.1", "127%2e0%2e0%2e1", "%6c%6f%63%61%6c%68%6f%73%74", "localhost%00",
    "localhost%20",
    "127.0.0.1%00.example.com", "127.0.0.1%23.example.com", "127.0.0.1%2f", "localhost%09", "127.0.0.1%0d%0a",
)  # fmt: skip

WHOLE = (
    "http://example.com@127.0.0.1:{port}/", "http://example.com:80@127.0.0.1:{port}/",
    "http://user:pass@localhost:{port}/",
    "http://127.0.0.1:{port}@127.0.0.1:{port}/", "http://@127.0.0.1:{port}/", "http://:@127.0.0.1:{port}/",
    "http://example.com%40127.0.0.1:{port}/", "http://example.com\\@127.0.0.1:{port}/",
    "http://example.com\\.127.0.0.1:{port}/",
    "http://127.0.0.1:{port}\\@example.com/", "http:\\\\127.0.0.1:{port}\\", "http:/\\127.0.0.1:{port}/",
    "\\\\127.0.0.1:{port}\\", "http:127.0.0.1:{port}/", "http:/127.0.0.1:{port}/",
    "http:///127.0.0.1:{port}/",
    "http:////127.0.0.1:{port}/", "//127.0.0.1:{port}/", "127.0.0.1:{port}", "http://127.0.0.1 :{port}/",
    " http://127.0.0.1:{port}/", "http://127.0.0.1:{port}/ ", "http://127.0.0.1\t:{port}/",
    "ht\ntp://127.0.0.1:{port}/",
    "http://127.0.0.1\r\n:{port}/", "http://127.0.0.1:{port}#@example.com/",
    "http://127.0.0.1:{port}?@example.com/",
    "http://127.0.0.1:0{port}/", "http://127.0.0.1:{port}:80/", "http://127.0.0.1:+{port}/",
    "http://127.0.0.1:{port}.0/",
    "http://example.com:{port}:127.0.0.1/", "HTTP://127.0.0.1:{port}/", "hTTp://127.0.0.1:{port}/",
    "ws://127.0.0.1:{port}/", "wss://127.0.0.1:{port}/", "ftp://127.0.0.1:{port}/", "file:///etc/passwd",
    "file://127.0.0.1:{port}/", "gopher://127.0.0.1:{port}/_x", "dict://127.0.0.1:{port}/x",
    "ldap://127.0.0.1:{port}/",
    "data:text/plain,x", "javascript:alert(1)", "jar:http://127.0.0.1:{port}/!/", "unix:/run/docker.sock",
    "http+unix://%2Frun%2Fdocker.sock/", "http://unix:/run/docker.sock:/", "netdoc:///etc/passwd",
    "url:http://127.0.0.1:{port}/",
    "http://", "http://:{port}/", "http://.:{port}/", "http://..:{port}/", "http://-:{port}/", "",
)  # fmt: skip

RESOLVED = {
    "intranet.example": ["10.1.2.3"],
    "loop.example": ["127.0.0.1"],
    "loop6.example": ["::1"],
    "mapped.example": ["::ffff:127.0.0.1"],
    "zoned.example": ["fe80::1%lo"],
    "meta.example": ["169.254.169.254"],
    "mixed.example": ["93.184.215.14", "127.0.0.1"],
    "mixed6.example": ["2606:2800:21f::1", "::1"],
    "nat64.example": ["64:ff9b::7f00:1"],
    "zero.example": ["0.0.0.0"],
    "odd.example": ["0x7f.1"],
    "none.example": [],
    "127.0.0.1.nip.example": ["127.0.0.1"],
}
"""Names whose owner lets them point to where they should not."""


def spellings(port: int) -> list[str]:
    """All of them as URLs, at the port of the canary."""
    hosts = (*LOOPBACK, *IPV6, *OTHER_RANGES, *METADATA, *ODD_LETTERS)
    urls = [f"{scheme}://{host}:{port}/" for host in hosts for scheme in ("http", "https")]
    return urls + [text.replace("{port}", str(port)) for text in WHOLE] + [f"http://{n}:{port}/" for n in RESOLVED]
