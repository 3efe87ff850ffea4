"""Secrets where texts are cut: whoever cuts does not know them, and nothing of them is left."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tidemill
from tests.kernel.authoring import document, node
from tests.security import canaries
from tests.security.canaries import CANARIES
from tidemill.engine.attempts.results import transactional
from tidemill.engine.turn import PendingCommand, TurnLoop, still_valid
from tidemill.handlers.contract import Fail, ending, truncate
from tidemill.handlers.http.exchange import check_status
from tidemill.handlers.llm.openai import refusal
from tidemill.handlers.shell import StreamEnd
from tidemill.kernel.commands import Done, Failed, Result
from tidemill.net.http_client import Answer
from tidemill.security.masking import Mask
from tidemill.security.secrets import MASKED, PREFIX
from tidemill.stores.contract import Statement, StatementRefused, Stream

HERE = "tests.security.canaries"


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
    for name, value in CANARIES.items():
        monkeypatch.setenv(PREFIX + name, value)
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
    bears = transactional(statement, {"CANARY_0": secret})
    refused = StatementRefused(statement=statement, message=f"bad JSON path: '{secret}'")
    (ask,) = still_valid([PendingCommand(command, lambda ask, answer: None, statement=bears)], refused)
    assert isinstance(ask.command, Result) and isinstance(ask.command.outcome, Failed)
    error = ask.command.outcome.error
    assert (error.code, error.message) == ("sql_failed", f"bad JSON path: '{MASKED}'")
    assert "by hand" in error.hint


def test_no_command_carries_a_secret_of_its_statement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret, asked, ask = CANARIES["CANARY_0"], list[PendingCommand](), TurnLoop.ask
    monkeypatch.setenv(f"{PREFIX}CANARY_0", secret)

    def noted(self: TurnLoop, stream: Stream, asks: PendingCommand) -> None:
        asked.append(asks)
        ask(self, stream, asks)

    monkeypatch.setattr(TurnLoop, "ask", noted)
    config = {"database": "store", "statement": "SELECT length(?) AS n", "parameters": ["{{ secrets.CANARY_0 }}"]}
    with tidemill.open(f"sqlite:///{tmp_path}/mill.db") as mill:
        view = mill.run(document(node("n", type="sql", config=config)))
    assert view.outputs["n"]["rows"] == [{"n": len(secret)}], view.error
    (bearing,) = [each for each in asked if each.statement is not None]
    assert bearing.statement is not None and secret in bearing.statement.statement.parameters.decode()
    shown = [repr(each) for each in asked] + [repr(msgspec.msgpack.encode(each.command)) for each in asked]
    assert [text for text in shown if secret in text] == []


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
def test_a_secret_that_is_not_there_is_told_with_what_to_do(isolation: str) -> None:
    with tidemill.open("memory://") as mill:
        config = {"function": f"{HERE}:strange", "isolation": isolation, "args": {"name": "NOWHERE"}}
        view = mill.run(document(node("ask", type="python", config=config), name="missing"))
    error = view.nodes["ask"]["error"]
    assert (error["code"], error["message"]) == ("secret_missing", 'there is no secret "NOWHERE"')
    assert f"{PREFIX}NOWHERE" in error["hint"] and not error.get("retryable")
