"""Signatures of webhooks: what the specification says, and everything that is not a valid one."""

from __future__ import annotations

import base64

import pytest

from tidemill.errors import Rejected
from tidemill.security.signing import WINDOW_MS, DecisionLink, DecisionLinks, read_key, signed_headers, verify

KEY = "whsec_" + base64.b64encode(b"k" * 32).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 32).decode()
NOW_MS = 1_700_000_000_000
BODY = b'{"type":"paid"}'


def code(*keys: str, headers: dict[str, str], body: bytes = BODY, now_ms: int = NOW_MS) -> str:
    """Why a message is refused; its id if it is not."""
    try:
        return verify(keys, headers, body, now_ms)
    except Rejected as refused:
        return refused.code


def test_the_example_of_the_specification() -> None:
    headers = signed_headers(
        ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"],
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330_000,
        b'{"test": 2432232314}',
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


def test_what_is_signed_is_verified() -> None:
    assert code(KEY, headers=signed_headers([KEY], "msg_1", NOW_MS, BODY)) == "msg_1"


def test_two_keys_are_good_while_one_replaces_the_other() -> None:
    both = signed_headers([KEY, OTHER], "msg_1", NOW_MS, BODY)
    assert both["webhook-signature"].count("v1,") == 2
    assert code(KEY, headers=both) == code(OTHER, headers=both) == "msg_1"
    old = signed_headers([OTHER], "msg_1", NOW_MS, BODY)
    assert code(KEY, OTHER, headers=old) == "msg_1"
    assert code(KEY, headers=old) == "signature_invalid"


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ({"webhook-id": "msg_2"}, BODY),
        ({"webhook-id": ""}, BODY),
        ({"webhook-timestamp": str(NOW_MS // 1_000 + 1)}, BODY),
        ({"webhook-timestamp": ""}, BODY),
        ({"webhook-timestamp": "-1"}, BODY),
        ({"webhook-timestamp": "١٧"}, BODY),
        ({"webhook-timestamp": "9" * 5_000}, BODY),
        ({"webhook-signature": ""}, BODY),
        ({"webhook-signature": "v1,"}, BODY),
        ({"webhook-signature": "v1a,x v2,y"}, BODY),
        ({"webhook-signature": "v1,ü"}, BODY),
        ({}, BODY + b" "),
        ({}, b""),
    ],
)
def test_anything_else_is_refused(headers: dict[str, str], body: bytes) -> None:
    signed = signed_headers([KEY], "msg_1", NOW_MS, BODY)
    assert code(KEY, headers=signed | headers, body=body) == "signature_invalid"


def test_a_version_that_is_not_known_is_not_accepted() -> None:
    signed = signed_headers([KEY], "msg_1", NOW_MS, BODY)
    renamed = signed | {"webhook-signature": signed["webhook-signature"].replace("v1,", "v2,")}
    assert code(KEY, headers=renamed) == "signature_invalid"


@pytest.mark.parametrize(("away_ms", "good"), [(WINDOW_MS, True), (WINDOW_MS + 1, False), (-WINDOW_MS - 1, False)])
def test_a_message_is_good_for_five_minutes(away_ms: int, good: bool) -> None:
    signed = signed_headers([KEY], "msg_1", NOW_MS, BODY)
    assert (code(KEY, headers=signed, now_ms=NOW_MS + away_ms) == "msg_1") is good


@pytest.mark.parametrize(
    "key", ["", "whsec_", "sesame", "whsec_" + "A" * 28, "whsec_" + "A" * 200, "whsec_ü", "whsec_A B"]
)
def test_a_key_that_is_none_is_refused_and_not_told(key: str) -> None:
    with pytest.raises(Rejected) as refused:
        read_key(key)
    assert refused.value.code == "signing_key_invalid"
    assert "sesame" not in str(refused.value)


LINK = DecisionLink("acme", "run/1", "ask", 2, -1, 1_000, "user:alice", ("clerk",), NOW_MS)
SECRET = "a secret of the server, long enough"


def refusal(links: DecisionLinks, token: str, now_ms: int = 0) -> str:
    with pytest.raises(Rejected) as refused:
        links.read(token, now_ms)
    return refused.value.code


def test_a_link_comes_back_as_it_was_issued_by_any_process_with_the_secret() -> None:
    token = DecisionLinks(SECRET).issue(LINK)
    assert DecisionLinks(SECRET).read(token, NOW_MS - 1) == LINK
    assert refusal(DecisionLinks(SECRET), token, NOW_MS) == "link_expired"
    assert (DecisionLinks(SECRET).lasting, DecisionLinks().lasting) == (True, False)


def test_a_link_with_another_signature_is_none() -> None:
    links = DecisionLinks(SECRET)
    text, _, signature = links.issue(LINK).partition(".")
    other = links.issue(DecisionLink("other", "run/1", "ask", 2, -1, 1_000, "user:alice", (), NOW_MS)).partition(".")[0]
    for token in (
        *("", ".", text, f"{text}.", f".{signature}", f"{text}.{signature}=", f"{other}.{signature}"),
        *(f"{text}.{signature}.x", f"{text[:-1]}.{signature}", f"{text}.ü", "x" * 10_000),
    ):
        assert refusal(links, token) == "link_invalid"
    assert refusal(DecisionLinks(SECRET + "x"), f"{text}.{signature}") == "link_invalid"
    assert refusal(DecisionLinks(), f"{text}.{signature}") == "link_invalid"
