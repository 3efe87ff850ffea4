"""Which forms of a secret are found, and what is left of a text or a value."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import MASKED

SECRET = 'tøken "quoted"/with+signs&äll\\sorts\n of=things'
PLAIN = "s3cr3t-Canary-0042"
PEM = "-----BEGIN KEY-----\nMIIBVgIBADANBgkqhkiG\n9w0BAQEFAASCAT8wggE7\n-----END KEY-----"


def in_base64(text: str, before: str = "", after: str = "") -> str:
    return base64.b64encode(f"{before}{text}{after}".encode()).decode()


@pytest.mark.parametrize("secret", [PLAIN, SECRET])
@pytest.mark.parametrize(
    "form",
    [
        str,
        lambda text: json.dumps(text)[1:-1],
        lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
        lambda text: repr(text)[1:-1],
        lambda text: quote(text, safe=""),
        quote,
        quote_plus,
        in_base64,
        lambda text: in_base64(text).rstrip("="),
        lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
        lambda text: text.encode().hex(),
        lambda text: text.encode().hex().upper(),
    ],
)
def test_every_form_is_found(secret: str, form: Any) -> None:
    masked = Mask([secret]).text(f"before {form(secret)} after")
    assert masked == f"before {MASKED} after"


@pytest.mark.parametrize("before", ["", "u", "us", "user:", "a longer name:"])
@pytest.mark.parametrize("after", ["", "!", "!!", " and more"])
def test_base64_of_something_longer_gives_nothing_away(before: str, after: str) -> None:
    """As in the header of basic authentication."""
    whole = in_base64(PLAIN, before, after)
    left = Mask([PLAIN]).text(whole)
    assert MASKED in left
    # At most one character at either end is shared with what stands beside the value.
    assert len(left.replace(MASKED, "").rstrip("=")) <= len(in_base64(before)) + len(in_base64(after)) + 2


def test_lines_of_a_long_secret_are_found_one_by_one() -> None:
    mask = Mask([PEM])
    for line in PEM.splitlines():
        assert mask.text(f"printed: {line}") == f"printed: {MASKED}"


def test_the_longer_secret_wins() -> None:
    assert Mask(["token", "token-and-more"]).text("a token-and-more b token") == f"a {MASKED} b {MASKED}"


def test_short_values_are_left_alone() -> None:
    """They stand everywhere; nobody is given one."""
    assert Mask(["abc", ""]).text("abc is in abcdef") == "abc is in abcdef"
    assert not Mask(["abc"])


def test_values_are_masked_with_keys_and_numbers() -> None:
    mask = Mask([PLAIN, "12345678"])
    value = {PLAIN: [f"x{PLAIN}y", 12345678, 1.5, True, None], "kept": {"n": 12}, "pair": (PLAIN,)}
    assert mask.value(value) == {
        MASKED: [f"x{MASKED}y", MASKED, 1.5, True, None],
        "kept": {"n": 12},
        "pair": [MASKED],
    }


def test_json_texts_are_searched_as_they_are() -> None:
    mask = Mask([SECRET])
    assert mask.is_in(json.dumps({"a": SECRET}).encode())
    assert not mask.is_in(b'{"a": "harmless"}')


def test_a_file_keeps_its_size_and_everything_else() -> None:
    mask = Mask([PLAIN, "overlap", "lapping"])
    stars = "*" * len(PLAIN)
    whole = b"\x89PNG\x00\xff" + PLAIN.encode() + b"\x00" + in_base64(PLAIN).encode() + b"\xfe overlapping aaaaa"
    masked = mask.content(whole)
    assert masked.startswith(b"\x89PNG\x00\xff" + stars.encode() + b"\x00" + b"*" * len(in_base64(PLAIN).rstrip("=")))
    assert masked.endswith(b"\xfe " + b"*" * len("overlapping") + b" aaaaa")
    assert len(masked) == len(whole)
    assert Mask(["abab"]).content(b"xabababx") == b"x******x"


async def test_a_file_that_comes_bit_by_bit_is_masked_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is cut, and however little is looked through at once."""
    mask, chance = Mask([PLAIN, PEM, "abab"]), random.Random(7)
    parts = [PLAIN, PEM, "abab", "ab", "harmless ", PLAIN[:9], in_base64(PLAIN)]
    for window in (1, 16, 200):
        monkeypatch.setattr("tidemill.security.masking.WINDOW_BYTES", window)
        whole = "".join(chance.choices(parts, k=60)).encode()

        async def cut(whole: bytes = whole) -> AsyncIterator[bytes]:
            while whole:
                size = chance.randrange(90)
                yield whole[:size]
                whole = whole[size:]

        assert b"".join([chunk async for chunk in mask.chunks(cut())]) == mask.content(whole)
        assert PLAIN.encode() not in mask.content(whole)


def test_no_mask_changes_nothing() -> None:
    value = {"a": [PLAIN]}
    assert NO_MASK.value(value) is value
    assert NO_MASK.text(PLAIN) == PLAIN
    assert not NO_MASK.is_in(PLAIN.encode())


@pytest.mark.parametrize("size", range(4, len(PLAIN)))
def test_what_a_cut_has_left_of_a_value_is_hidden_on_either_side(size: int) -> None:
    mask = Mask([PLAIN, "another-value"])
    assert mask.text(f"before {PLAIN[:size]}…") == f"before {MASKED}…"
    assert mask.text(f"…{PLAIN[-size:]} after") == f"…{MASKED} after"
    assert mask.text(f"{PLAIN[:size]} … {PLAIN[-size:]}") == f"{MASKED} … {MASKED}"
    assert mask.text(f"said '{PLAIN[:size]}\ufffd…' twice…") == f"said '{MASKED}\ufffd…' twice…"
    assert mask.is_in(json.dumps(f"{PLAIN[:size]}…", ensure_ascii=False).encode())


def test_a_whole_value_beside_a_cut_is_hidden_whole() -> None:
    """Also one that ends as it begins."""
    assert Mask(["abcd-abcd"]).text("abcd-abcd… …abcd-abcd") == f"{MASKED}… …{MASKED}"
    assert Mask(["abcd…efgh"]).text("abcd…efgh") in (MASKED, f"{MASKED}…{MASKED}")
    assert Mask([PLAIN]).text("nothing of it…") == "nothing of it…"


def test_how_much_of_a_value_has_begun() -> None:
    mask = Mask([PLAIN])
    for size in range(1, len(PLAIN)):
        assert mask.partial_match(f"printed: {PLAIN[:size]}") == size
    assert mask.partial_match("nothing!") == 0
    assert NO_MASK.partial_match(PLAIN[:4]) == 0


@pytest.mark.parametrize(
    ("secret", "shows"),
    [
        ("https://hooks.example/services/T0/x7Fq?key=Zk3", "GET https://hooks.example/services/T0/x7Fq?key=*** failed"),
        ("https://hooks.example/echo/../x7Fq", "https://hooks.example/x7Fq?a=1"),
        ("https://hooks.example/a b/x7Fq", "https://hooks.example/a%20b/x7Fq"),
        ("https://hooks.example/./deep/x7Fq", "the server knows no /deep/x7Fq"),
        ("postgresql://user:x7Fq@db/orders", "password x7Fq is wrong"),
        ("first/x7Fq-and?key=more", "https://host/first/x7Fq-and?key=***"),
    ],
)
def test_a_url_is_hidden_when_it_is_tidied_or_shown_without_its_query(secret: str, shows: str) -> None:
    assert "x7Fq" not in Mask([secret]).text(shows)


def test_masked_keys_do_not_swallow_each_other() -> None:
    value = {f"{PLAIN}a": 1, f"{PLAIN}b": 2, PLAIN: 3, "***": 4, PLAIN.encode().hex(): 5}
    assert Mask([PLAIN]).value(value) == {"***a": 1, "***b": 2, "*** (2)": 3, "***": 4, "*** (3)": 5}
