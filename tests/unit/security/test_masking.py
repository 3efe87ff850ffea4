"""Which forms of a secret are found, and what is left of a text or a value."""

from __future__ import annotations

import base64
import json
import random
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

import tidemill
from tests.fixtures import canaries
from tests.fixtures.canaries import CANARIES
from tests.fixtures.grants import enable_sql, give_secrets, grant_secrets
from tests.fixtures.kernel.authoring import document, node
from tidemill.engine.attempts.results import TransactionalStatement
from tidemill.engine.pending_commands import PendingCommand, still_valid
from tidemill.errors import Rejected
from tidemill.handlers.contract import Fail, ending, truncate
from tidemill.handlers.http.exchange import check_status
from tidemill.handlers.llm.endpoint import refusal
from tidemill.handlers.shell import StreamEnd
from tidemill.kernel.commands import Done, Failed, Result
from tidemill.net.http_client import Answer
from tidemill.security.masking import NO_MASK, Mask
from tidemill.security.secrets import MASKED, PREFIX
from tidemill.stores.contract import Statement, StatementRefused

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


# Secrets where texts are cut: whoever cuts does not know them, and nothing of them is left


HERE = "tests.fixtures.canaries"


def flow(isolation: str) -> dict[str, Any]:
    def python(function: str, **inputs: str) -> dict[str, Any]:
        return {"function": f"{HERE}:{function}", "isolation": isolation, "args": inputs}

    nodes = [
        node(f"{function}-{number}", type="python", config=python(function, name=name), retry={"max_attempts": 1})
        | {"on_error": "continue"}
        for function in ("say", "fail", "strange")
        for number, name in enumerate(CANARIES)
    ]
    return document(*nodes, name="canaries")


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_nothing_of_a_secret_is_left_where_a_text_is_cut(
    isolation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(CANARIES) == 20
    give_secrets(monkeypatch, **CANARIES)
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        view = mill.run(flow(isolation))
        lines = [line.text for line in mill.logs(view.run_id)]
    for number in range(len(CANARIES)):
        assert view.nodes[f"say-{number}"]["output"] == 1
        error = view.nodes[f"fail-{number}"]["error"]
        # A secret that is longer than the message is masked from its beginning.
        assert error["message"].endswith(f"{MASKED}…") and error["causes"][0].endswith(f"{MASKED}…")
        strange = view.nodes[f"strange-{number}"]["error"]
        assert strange["type"].endswith(f"{MASKED}…")
    assert len([line for line in lines if line.startswith(f"as bytes {MASKED}")]) == len(CANARIES)
    left = {path.name: path.read_bytes().decode("utf-8", "replace") for path in tmp_path.rglob("*") if path.is_file()}
    left |= {"shown": repr(view), "lines": "\n".join(lines), "printed": "".join(capsys.readouterr())}
    assert "canaries" in left["mill.db"]
    # Without the padding it is quickly searched.
    left = {place: re.sub("x{9,}|y{9,}", "", text) for place, text in left.items()}
    assert [(place, piece) for place, text in left.items() for piece in canaries.pieces() if piece in text] == []


def test_a_database_quotes_no_secret_when_it_refuses_a_statement_at_last() -> None:
    """By then the attempt is gone that knows what is secret."""
    secret = CANARIES["CANARY_0"]
    statement = Statement(text="SELECT json_extract('{}', ?)", parameters=f'["{secret}"]'.encode())
    command = Result(node="n", visit=1, index=-1, token=1, outcome=Done(output=b"1", size=1))
    bears = TransactionalStatement(statement, (secret,))
    refused = StatementRefused(statement=statement, message=f"bad JSON path: '{secret}'")
    (ask,) = still_valid([PendingCommand(command, lambda ask, answer: None, statement=bears)], refused)
    assert isinstance(ask.command, Result) and isinstance(ask.command.outcome, Failed)
    error = ask.command.outcome.error
    assert (error.code, error.message) == ("sql_failed", f"bad JSON path: '{MASKED}'")
    assert "manually" in error.hint


def test_no_statement_on_the_store_is_given_a_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither where the document says that it is the store, nor where that shows only when it is rendered."""
    secret = CANARIES["CANARY_0"]
    give_secrets(monkeypatch, CANARY_0=secret)
    enable_sql(monkeypatch)
    config = {"database": "store", "statement": "SELECT upper(?) AS n", "parameters": ["{{ secrets.CANARY_0 }}"]}
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        with pytest.raises(Rejected) as refused:
            mill.run(document(node("n", type="sql", config=config)))
        late = {**config, "database": "{{ inputs.where }}"}
        view = mill.run(document(node("n", type="sql", config=late)), {"where": "store"})
    assert [(each.code, each.path) for each in refused.value.problems] == [
        ("secret_not_allowed", "/nodes/0/config/parameters")
    ]
    assert view.nodes["n"]["error"]["code"] == "secret_not_allowed"
    left = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert secret.encode() not in left and secret.upper().encode() not in left


def _status(text: str) -> str:
    answer = Answer(status=500, reason="", headers=(), body=text.encode(), url="https://h.example/")
    with pytest.raises(Fail) as refused:
        check_status(answer, "GET", None, 0)
    return refused.value.message


@pytest.mark.parametrize(
    ("quoted", "border"),
    [
        (_status, 199),
        (_status, 800),
        (lambda text: refusal(500, {"message": text}, {}, 0).message, 2_000),
        (lambda text: refusal(500, text, {}, 0).message, 2_000),
        (lambda text: StreamEnd(text[-2_000:].encode(), cut=True).text(), 2_000),
        (lambda text: ending(text, 500), 500),
        (lambda text: truncate(text, 500), 500),
    ],
)
@pytest.mark.parametrize("name", CANARIES)
def test_whoever_quotes_marks_where_it_was_cut(quoted: Callable[[str], str], border: int, name: str) -> None:
    secret = CANARIES[name]
    mask = Mask([secret])
    for text in (canaries.across(secret, border), canaries.before(secret, border)):
        shown = mask.text(quoted(text))
        assert "…" in shown and not [piece for piece in canaries.pieces() if piece in shown]


@pytest.mark.parametrize("isolation", ["inline", "thread", "process"])
def test_a_secret_that_is_not_there_is_told_with_what_to_do(isolation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    grant_secrets(monkeypatch, "NOWHERE")
    with tidemill.open("memory://") as mill:
        config = {"function": f"{HERE}:strange", "isolation": isolation, "args": {"name": "NOWHERE"}}
        view = mill.run(document(node("ask", type="python", config=config), name="missing"))
    error = view.nodes["ask"]["error"]
    assert (error["code"], error["message"]) == ("secret_missing", 'there is no secret "NOWHERE"')
    assert f"{PREFIX}NOWHERE" in error["hint"] and not error.get("retryable")


def test_a_secret_that_a_template_misses_has_the_same_code(monkeypatch: pytest.MonkeyPatch) -> None:
    grant_secrets(monkeypatch, "NOWHERE")
    with tidemill.open("memory://") as mill:
        config = {"url": "http://127.0.0.1:9/", "headers": {"authorization": "Bearer {{ secrets.NOWHERE }}"}}
        view = mill.run(document(node("ask", type="http", config=config), name="missing"))
    error = view.nodes["ask"]["error"]
    told = ("secret_missing", '/headers/authorization: there is no secret "NOWHERE"')
    assert (error["code"], error["message"]) == told and f"{PREFIX}NOWHERE" in error["hint"]
