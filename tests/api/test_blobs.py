"""Blobs over HTTP: stored and read by digest, in ranges, by their own tenant only, never run by a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.api_server import ApiServer, api_server, sqlite_url
from tests.fixtures.callers import TestAccess, as_caller
from tidemill.api.server_settings import ServerLimits

ANN, TOM = as_caller("ann", "operator"), as_caller("tom", "operator", tenant="other")
LARGE = bytes(range(256)) * 20_000
LIMITS = ServerLimits(blob_bytes=8 << 20, body_bytes=1_000)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[ApiServer]:
    async with api_server(sqlite_url(tmp_path), work=False, access=TestAccess, limits=LIMITS) as running:
        yield running


async def stored(server: ApiServer, data: bytes, **params: str) -> str:
    answer = await server.http.post("/blobs", content=data, params=params, headers=ANN | {"content-type": "image/png"})
    assert answer.status_code == 201, answer.text
    digest: str = answer.json()["$blob"]
    return digest


async def test_bytes_come_back_by_their_digest(server: ApiServer) -> None:
    answer = await server.http.post(
        "/blobs", content=LARGE, params={"name": "ü.png"}, headers=ANN | {"content-type": "image/png"}
    )
    described = answer.json()
    assert (described["size"], described["media_type"], described["name"]) == (len(LARGE), "image/png", "ü.png")
    path = f"/blobs/{described['$blob']}"
    whole = await server.http.get(path, params={"media_type": "image/png", "name": "ü.png"}, headers=ANN)
    assert whole.content == LARGE
    assert whole.headers["content-type"] == "image/png"
    assert whole.headers["content-disposition"] == "attachment; filename*=UTF-8''%C3%BC.png"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in whole.headers["content-security-policy"]
    assert (await server.http.get(f"{path}/info", headers=ANN)).json()["size"] == len(LARGE)
    listed = (await server.http.get("/blobs", headers=ANN)).json()["items"]
    assert [each["digest"] for each in listed] == [described["$blob"]]


@pytest.mark.parametrize(
    ("asked", "begin", "end"),
    [
        ("bytes=0-0", 0, 1),
        ("bytes=1000000-1000009", 1_000_000, 1_000_010),
        ("bytes=5119990-", 5_119_990, 5_120_000),
        ("bytes=-3", 5_119_997, 5_120_000),
        ("bytes=0-99999999", 0, 5_120_000),
    ],
)
async def test_a_range_of_the_bytes(server: ApiServer, asked: str, begin: int, end: int) -> None:
    digest = await stored(server, LARGE)
    part = await server.http.get(f"/blobs/{digest}", headers=ANN | {"range": asked})
    assert (part.status_code, part.content) == (206, LARGE[begin:end])
    assert part.headers["content-range"] == f"bytes {begin}-{end - 1}/{len(LARGE)}"


async def test_conditions_and_ranges_that_cannot_be_met(server: ApiServer) -> None:
    digest = await stored(server, b"short")
    path, etag = f"/blobs/{digest}", f'"{digest}"'
    beyond = await server.http.get(path, headers=ANN | {"range": "bytes=5-"})
    assert (beyond.status_code, beyond.json()["code"]) == (416, "range_invalid")
    for other in ("bytes=0-1,3-4", "lines=1-2", "bytes=-", "bytes=x"):
        assert (await server.http.get(path, headers=ANN | {"range": other})).content == b"short"
    same = await server.http.get(path, headers=ANN | {"if-none-match": etag})
    assert (same.status_code, same.content) == (304, b"")
    changed = await server.http.get(path, headers=ANN | {"range": "bytes=0-1", "if-range": '"other"'})
    assert (changed.status_code, changed.content) == (200, b"short")


async def test_a_blob_of_another_tenant_is_as_unknown_as_none(server: ApiServer) -> None:
    digest = await stored(server, b"ours")
    absent = f"sha256:{'0' * 64}"
    for path in ("", "/info"):
        foreign = await server.http.get(f"/blobs/{digest}{path}", headers=TOM)
        nothing = await server.http.get(f"/blobs/{absent}{path}", headers=TOM)
        assert (foreign.status_code, foreign.json()["code"]) == (404, "blob_unknown")
        assert foreign.text.replace(digest, absent) == nothing.text
    assert (await server.http.get("/blobs", headers=TOM)).json()["items"] == []


async def test_too_many_bytes_are_refused_whether_or_not_their_number_is_told(server: ApiServer) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(9):
            yield bytes(1 << 20)

    told = await server.http.post("/blobs", content=bytes((8 << 20) + 1), headers=ANN)
    assert (told.status_code, told.json()["code"]) == (413, "body_too_large")
    untold = await server.http.post("/blobs", content=endless(), headers=ANN)
    assert (untold.status_code, untold.json()["code"]) == (413, "body_too_large")
    assert (await server.http.get("/blobs", headers=ANN)).json()["items"] == []


async def test_a_media_type_that_is_none_is_refused(server: ApiServer) -> None:
    digest = await stored(server, b"x")
    answer = await server.http.get(f"/blobs/{digest}", params={"media_type": "text/html\r\nx: y"}, headers=ANN)
    assert (answer.status_code, answer.json()["code"]) == (422, "blob_invalid")
    answer = await server.http.post("/blobs", content=b"x", headers=ANN | {"content-type": "nonsense"})
    assert (answer.status_code, answer.json()["code"]) == (422, "blob_invalid")
