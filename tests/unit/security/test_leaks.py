"""A secret that its handler repeats wherever it can: it is nowhere in what is left behind."""

from __future__ import annotations

import asyncio
import base64
import io
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.fixtures.command_line import InProcessCli
from tests.fixtures.grants import give_secrets
from tests.fixtures.kernel.authoring import document, node
from tidemill.bootstrap import engine_at
from tidemill.engine.engine import Engine
from tidemill.handlers.contract import (
    ApprovalRequest,
    Blob,
    ChildRun,
    Done,
    Fail,
    Handler,
    HandlerOutcome,
    NodeContext,
    Skip,
    Wait,
)
from tidemill.kernel.model import NodeType
from tidemill.security.secrets import MASKED

CANARY = 'canary/4f9c+Zq "quoted" ümlaut'
TOKEN = "tok-77a1b2c3d4e5f6"
SECRETS = {"CANARY": CANARY, "TOKEN": TOKEN}
LARGE = 200_000


def spellings(secret: str) -> set[bytes]:
    raw = secret.encode()
    return {
        raw,
        base64.b64encode(raw),
        base64.b64encode(b"user:" + raw)[8:-4],
        quote(secret, safe="").encode(),
        raw.hex().encode(),
    }


@dataclass
class Boxed:
    inside: str


class Reason(Exception):
    pass


async def echo(context: NodeContext) -> HandlerOutcome:
    """Say it in every way there is, then end as the config asks."""
    secret, token = context.config["token"], context.secrets["TOKEN"]
    for value in (secret, token):
        print("printed", value)
        sys.stderr.write(value[:9])
        sys.stderr.write(value[9:] + "\n")
        context.log.warning("logged %s", value)
        logging.getLogger("library").error("headers: %r", {"Authorization": f"Bearer {value}"})
        context.progress(0.5, f"with {value}")
        context.stream({"part": value, value: 1})
        if context.checkpoint is not None:
            await context.checkpoint({"at": value, "pair": (value,)})
    await asyncio.sleep(0.05)
    basic = base64.b64encode(f"user:{secret}".encode()).decode()
    match context.config["how"]:
        case "value":
            return Done({"said": secret, token: [basic, (token,), Boxed(secret)], "url": quote(secret, safe="")})
        case "large":
            return Done({"padding": "x" * LARGE, "said": [secret, token]})
        case "blob":
            files = [Blob(f"said {each}".encode(), "text/plain") for each in (secret, token)]
            bits = Blob(iter([b"\x00" * LARGE, *(bytes([byte]) for byte in token.encode())]))
            return Done({"file": Blob(b"harmless", name=f"{token}.txt"), "said": token, "files": [*files, bits]})
        case "fail":
            try:
                raise Reason(f"cause {secret}")
            except Reason as cause:
                raise Fail("refused", f"said {secret} and {token}", hint=f"not {token}") from cause
        case "raise":
            raise Reason(f"{secret!r} {token!r}")
        case "skip":
            return Skip(f"because of {secret} and {token}")
        case "ask":
            return Wait(
                "human",
                approval=ApprovalRequest(title=f"{token}?", description=secret, timeout_ms=50, on_timeout="approve"),
            )
        case "signal":
            return Wait("signal", name=f"for-{token}", for_ms=50)
        case "child":
            return Wait("child", child=ChildRun(workflow="nobody", inputs={"given": secret}, labels={"by": token}))
        case _:
            raise AssertionError(context.config)


ECHO = Handler(NodeType(name="echo", secret_fields=("token",)), echo)
WAYS = ("value", "large", "blob", "fail", "raise", "skip", "ask", "signal", "child")


def flow() -> dict[str, Any]:
    nodes = [
        node(
            way,
            type="echo",
            config={"token": "{{ secrets.CANARY }}", "how": way},
            retry={"max_attempts": 1},
            on_error="continue",
        )
        for way in WAYS
    ]
    undo = {"type": "echo", "config": {"token": "{{ secrets.CANARY }}", "how": "value"}}
    return document(*nodes, node("done", compensator=undo), name="leaky")


async def tell(url: str) -> tuple[str, list[dict[str, Any]]]:
    """Run it, and follow it live."""
    async with engine_at(url, handlers=[ECHO]) as engine:
        published = await engine.publish(flow())
        run_id = await engine.start(f"{published.name}@{published.version}")
        async with asyncio.timeout(40):
            seen = [event async for event in engine.follow(run_id, live=True)]
            await engine.rollback(run_id)
            await engine.result(run_id)
        await written(engine, run_id, seen)
    return run_id, seen


async def written(engine: Engine, run_id: str, seen: list[dict[str, Any]]) -> None:
    """The fault has fired: everything was said, and what is left of it says so."""
    view = await engine.show(run_id)
    assert view.nodes["value"]["output"]["said"] == MASKED
    assert view.nodes["value"]["output"][MASKED][1:] == [[MASKED], {"inside": MASKED}]
    stars = b"*" * len(TOKEN)
    for number, before in ((1, b"said "), (2, b"\x00" * LARGE)):
        file = io.BytesIO()
        await engine.save_blob(view.nodes["blob"]["output"]["files"][number]["$blob"], file)
        assert file.getvalue() == before + stars
    assert view.nodes["fail"]["error"]["message"] == f"said {MASKED} and {MASKED}"
    assert {event["node"] for event in seen if event["type"] == "NodeStreamed"} == set(WAYS)
    lines = [line.text for line in await engine.logs(run_id, "value", attempt=1)]
    assert f"printed {MASKED}" in lines and f"logged {MASKED}" in lines


def hits(found: Mapping[str, bytes]) -> list[str]:
    wanted = {spelling for secret in SECRETS.values() for spelling in spellings(secret)}
    return [f"{place}: {spelling!r}" for place, raw in found.items() for spelling in wanted if spelling in raw]


def test_a_secret_is_nowhere_in_what_is_left(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    give_secrets(monkeypatch, **SECRETS)
    file = tmp_path / "mill.db"
    url = f"sqlite:///{file}"
    run_id, seen = asyncio.run(tell(url))
    out, _ = capsys.readouterr()
    assert f"printed {MASKED}" in out
    assert caplog.messages.count(f"logged {MASKED}") >= 2 * len(WAYS)
    left = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert b"leaky" in left["mill.db"]
    left |= {"frames": repr(seen).encode(), "standard output": out.encode(), "log": caplog.text.encode()}
    command = InProcessCli(capsys)
    for words in (["show"], ["events"], ["logs"], ["why"], ["path"]):
        for more in ([], ["--json"]):
            said = command("runs", *words, run_id, "--store", url, *more)
            assert said.out, words
            left[" ".join((*words, *more))] = (said.out + said.err).encode()
    assert len(left) >= 12
    assert hits(left) == []


def test_the_search_would_find_one() -> None:
    for secret in SECRETS.values():
        for spelling in spellings(secret):
            assert hits({"here": b"before " + spelling + b" after"})
