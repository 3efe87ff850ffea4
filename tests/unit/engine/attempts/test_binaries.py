"""Bytes that handlers return: stored by content, described in the log, read by whoever comes after."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import tidemill
from tests.fixtures.cluster import TENANT, Cluster, simulated
from tests.fixtures.operator import operator, pass_days
from tidemill.blobs.contract import BlobMissing, digest_of
from tidemill.blobs.memory import MemoryBlobs
from tidemill.bootstrap import engine_at
from tidemill.engine.attempts import results
from tidemill.engine.attempts.results import unknown_file
from tidemill.handlers.contract import Blob, Done, Handler, NodeContext
from tidemill.kernel.events import NodeCompleted
from tidemill.kernel.model import NodeType

PIXELS = bytes(range(256)) * 10


def python(name: str, function: str, *parents: str, **more: Any) -> dict[str, Any]:
    fields = {"type": "python", "config": {"function": function}, "retry": {"backoff_seconds": 0}, **more}
    return {"id": name, "dependencies": list(parents), **fields}


def flow(*nodes: dict[str, Any]) -> dict[str, Any]:
    return {"name": "flow", "nodes": list(nodes)}


def described(body: bytes, media_type: str = "application/octet-stream", name: str = "") -> dict[str, Any]:
    return {"$blob": digest_of(body), "size": len(body), "media_type": media_type, "name": name}


def run(functions: dict[str, Callable[..., Any]], *nodes: dict[str, Any]) -> tidemill.RunView:
    with tidemill.open("memory://", functions=functions) as mill:
        return mill.run(flow(*nodes), timeout_s=20)


async def slowly() -> AsyncIterator[bytes]:
    yield PIXELS[:1000]
    await asyncio.sleep(0)
    yield PIXELS[1000:]


@dataclass
class Report:
    title: str
    picture: Any


@pytest.mark.parametrize(
    "data",
    [
        lambda: PIXELS,
        lambda: bytearray(PIXELS),
        lambda: memoryview(PIXELS),
        lambda: [PIXELS[:7], PIXELS[7:]],
        lambda: io.BytesIO(PIXELS),
        slowly,
    ],
    ids=["bytes", "bytearray", "memoryview", "list", "file", "stream"],
)
def test_a_function_returns_bytes(data: Callable[[], Any]) -> None:
    view = run({"draw": lambda: Blob(data(), "image/png", "p.png")}, python("draw", "draw"))
    assert (view.status, view.outputs) == ("COMPLETED", {"draw": described(PIXELS, "image/png", "p.png")})


def test_a_file_is_stored_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(PIXELS * 1000)
    view = run({"draw": lambda: Blob(tmp_path / "big.bin")}, python("draw", "draw"))
    assert view.outputs == {"draw": described(PIXELS * 1000, name="big.bin")}


def test_blobs_may_stand_anywhere_in_a_value() -> None:
    same = Blob(b"same")

    def report() -> Any:
        return {"list": [1, same, None, (same, 1 << 70)], "report": Report("Q3", Blob(PIXELS, "image/png", "q3.png"))}

    view = run({"report": report}, python("report", "report"))
    told = described(b"same")
    assert view.outputs == {
        "report": {
            "list": [1, told, None, [told, 1 << 70]],
            "report": {"title": "Q3", "picture": described(PIXELS, "image/png", "q3.png")},
        }
    }


def test_templates_and_branches_read_the_description() -> None:
    rules = [{"condition": "output.size > 1000", "next_nodes": ["large"]}]
    branch = {"type": "conditional", "rules": rules, "default": ["small"]}
    view = run(
        {"draw": lambda: Blob(PIXELS, "image/png", "p.png")},
        python("draw", "draw", branch=branch),
        {"id": "large", "type": "value", "dependencies": ["draw"], "config": "{{ draw.output.name }}"},
        {"id": "small", "type": "value", "dependencies": ["draw"], "config": "no"},
    )
    assert view.outputs == {"large": "p.png"}


def test_a_later_node_reads_the_bytes() -> None:
    async def shrink(context: NodeContext) -> Any:
        assert context.read is not None
        whole = await context.read(context.upstream["draw"])
        assert await context.read(context.upstream["draw"]["$blob"]) == whole
        return Blob(whole[:10])

    view = run(
        {"draw": lambda: Blob(PIXELS), "shrink": shrink}, python("draw", "draw"), python("shrink", "shrink", "draw")
    )
    assert view.outputs == {"shrink": described(PIXELS[:10])}


def failure(view: tidemill.RunView, node: str = "draw") -> Any:
    assert view.status == "FAILED"
    return view.nodes[node]["error"]


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        (Path("/does/not/exist.png"), "blob_file_unreadable", "No such file"),
        (Path("/"), "blob_file_unreadable", "Is a directory"),
        ("text", "blob_invalid", "not str"),
        (["text"], "blob_invalid", "not str"),
        (7, "blob_invalid", "not int"),
        (None, "blob_invalid", "not NoneType"),
        ([b"begun", None, b"lost"], "blob_invalid", "not NoneType"),
    ],
)
def test_bytes_that_are_none_fail_the_attempt(data: Any, code: str, words: str) -> None:
    error = failure(run({"draw": lambda: Blob(data)}, python("draw", "draw")))
    assert error["code"] == code
    assert words in error["message"]
    assert error["hint"]


@pytest.mark.parametrize("fields", [{"media_type": 7}, {"name": None}])
def test_a_description_is_made_of_texts(fields: dict[str, Any]) -> None:
    error = failure(run({"draw": lambda: Blob(b"", **fields)}, python("draw", "draw")))
    assert error["code"] == "blob_invalid"


@pytest.mark.parametrize(
    "fields",
    [
        {"media_type": "not a media type"},
        {"media_type": "text/plain\r\nX: y"},
        {"media_type": "text/" + "x" * 300},
        {"media_type": ""},
        {"name": "../../etc/passwd"},
        {"name": "a\\b"},
        {"name": "a\nb"},
        {"name": "x" * 300},
        {"name": ".."},
    ],
    ids=["words", "header", "long type", "no type", "path", "other path", "lines", "long name", "above"],
)
def test_a_description_leads_nobody_astray(fields: dict[str, Any]) -> None:
    error = failure(run({"draw": lambda: Blob(b"", **fields)}, python("draw", "draw")))
    assert (error["code"], bool(error["hint"])) == ("blob_invalid", True)


@pytest.mark.parametrize("media_type", ["image/png", "text/csv; charset=utf-8", 'multipart/mixed; boundary="a b"'])
def test_media_types_with_parameters(media_type: str) -> None:
    view = run({"draw": lambda: Blob(b"x", media_type, "Entwurf 3 (neu).csv")}, python("draw", "draw"))
    assert view.outputs == {"draw": described(b"x", media_type, "Entwurf 3 (neu).csv")}


MADE_UP: dict[str, Any] = {"$blob": "sha256:" + "0" * 64, "size": 3}


def code_and_path(refusal: pytest.ExceptionInfo[tidemill.Rejected]) -> tuple[str, str]:
    (problem,) = refusal.value.problems
    return problem.code, problem.path


def test_a_file_that_nobody_stored_does_not_get_in() -> None:
    """No fact may point to a missing blob, whoever says that it is there."""
    form = {"id": "ask", "type": "human", "config": {"title": "Which?", "form": {"type": "object"}}}
    with tidemill.open("memory://") as mill:
        mill.publish(flow(form, {"id": "go", "type": "signal"}))
        with pytest.raises(tidemill.Rejected) as refusal:
            mill.start("flow", {"files": [1, MADE_UP]}, key="r")
        assert code_and_path(refusal) == ("blob_unknown", "/inputs/files/1")
        stored = mill.put_blob(PIXELS)
        mill.start("flow", {"files": [1, stored], "text": '"$blob": no file'}, key="r")
        with pytest.raises(tidemill.Rejected) as refusal:
            mill.signal("r", "go", MADE_UP)
        assert code_and_path(refusal) == ("blob_unknown", "/payload")
        mill.signal("r", "go", stored)
        while mill.show("r").nodes["ask"]["status"] != "WAITING":
            time.sleep(0.01)
        with pytest.raises(tidemill.Rejected) as refusal:
            mill.decide("r", "ask", "approve", actor="ann", form={"file": MADE_UP})
        assert code_and_path(refusal) == ("blob_unknown", "/form/file")
        mill.decide("r", "ask", "approve", actor="ann", form={"file": stored})
        assert mill.result("r", timeout_s=20).status == "COMPLETED"
        assert mill.verify_log().clean


@pytest.mark.parametrize(
    "node",
    [
        python("draw", "made_up"),
        {"id": "draw", "type": "workflow", "config": {"workflow": "flow", "inputs": {"file": MADE_UP}}},
        {"id": "draw", "type": "value", "config": "{{ item }}", "map": {"over": [MADE_UP]}},
    ],
    ids=["result", "child", "items"],
)
def test_a_handler_cannot_make_up_a_file(node: dict[str, Any]) -> None:
    asked: list[int] = []

    def made_up() -> Any:
        asked.append(1)
        return {"file": MADE_UP}

    with tidemill.open("memory://", functions={"made_up": made_up}) as mill:
        view = mill.run(flow(node), timeout_s=20)
        assert (failure(view)["code"], len(asked) <= 1) == ("blob_unknown", True), "it is not tried again"
        assert mill.verify_log().clean


def test_outputs_cannot_make_up_a_file() -> None:
    with tidemill.open("memory://") as mill:
        view = mill.run({**flow({"id": "a", "type": "value"}), "outputs": {"file": MADE_UP}}, timeout_s=20)
    assert view.error is not None
    assert (view.status, "blob_unknown" in str(view.error)) == ("FAILED", True)


@simulated
async def test_values_with_many_files_are_looked_through_once(mill: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not once for each file, nor for each item that passes one on."""
    process = await mill.process()
    files = [await process.engine.put_blob(b"%d" % number) for number in range(600)]
    looked: Counter[bytes] = Counter()
    found = results.files_in
    monkeypatch.setattr(results, "files_in", lambda text: looked.update([text]) or found(text))
    reads, get = Counter[str](), mill.blobs.get

    async def counted(tenant: str, digest: str) -> bytes:
        reads[digest] += 1
        return await get(tenant, digest)

    monkeypatch.setattr(mill.blobs, "get", counted)
    passed = {"id": "all", "type": "value", "config": "{{ inputs.files }}"}
    items = {"id": "each", "type": "value", "config": "{{ item }}", "map": {"over": "{{ inputs.files }}"}}
    view = await process.end(await process.start(flow(passed, items), {"files": files}))
    assert view.outputs == {"all": files, "each": files}
    assert max(looked.values()) <= 4 and max(reads.values()) <= 4, (looked.most_common(1), reads.most_common(1))


@simulated
async def test_a_file_on_its_way_out_that_is_given_again_comes_back(mill: Cluster) -> None:
    process = await mill.process()
    stored = await process.engine.put_blob(PIXELS)
    await mill.blobs.quarantine(TENANT, stored["$blob"])
    await process.end(await process.start(flow({"id": "a", "type": "value"}), {"file": stored}))
    info = await mill.blobs.stat(TENANT, stored["$blob"])
    assert info is not None and info.state == "active"


async def test_a_file_that_is_collected_while_it_is_brought_back_does_not_get_in() -> None:
    class Beaten(MemoryBlobs):
        async def restore(self, tenant: str, digest: str) -> bool:
            assert await self.delete(tenant, digest, before_ms=2**50)
            return await super().restore(tenant, digest)

    blobs = Beaten()
    digest = await blobs.put(TENANT, PIXELS)
    await blobs.quarantine(TENANT, digest)
    problem = await unknown_file(blobs, TENANT, b'{"$blob":"%s"}' % digest.encode())
    assert problem is not None and problem.code == "blob_unknown"


@pytest.mark.parametrize("more", [object(), float("nan"), threading.Lock()], ids=["object", "nan", "lock"])
def test_what_is_not_json_beside_a_blob_is_refused(more: Any) -> None:
    error = failure(run({"draw": lambda: [Blob(b"x"), None, more]}, python("draw", "draw")))
    assert error["code"] == "output_not_json"


def _given() -> Iterator[Any]:
    yield Blob(PIXELS, "image/png", "a.png")
    yield {"page": 2, "file": Blob(PIXELS[:9])}


async def _given_later() -> AsyncIterator[Any]:
    for part in _given():
        yield part


def _shown(context: NodeContext) -> Any:
    for part in _given():
        context.stream(part)
    return context.voice.folded()


@pytest.mark.parametrize("function", [_given, _given_later, _shown], ids=["generator", "async", "stream"])
def test_files_may_be_parts_of_a_result(function: Callable[..., Any]) -> None:
    document = flow(python("draw", "draw"))
    with tidemill.open("memory://", functions={"draw": function}) as mill:
        mill.publish(document)
        run_id = mill.start("flow")
        shown = [event["value"] for event in mill.follow(run_id, live=True) if event["type"] == "NodeStreamed"]
        stored = mill.result(run_id).nodes["draw"]["output"]
        assert stored == [described(PIXELS, "image/png", "a.png"), {"page": 2, "file": described(PIXELS[:9])}]
        assert mill.save_blob(digest_of(PIXELS), io.BytesIO()) == len(PIXELS)
    assert shown[:1] in ([], [{"media_type": "image/png", "name": "a.png"}])


def test_a_stream_that_breaks_fails_the_attempt() -> None:
    def broken() -> Iterator[bytes]:
        yield b"some"
        raise ConnectionError("gone")

    error = failure(run({"draw": lambda: Blob(broken())}, python("draw", "draw")))
    assert (error["code"], error["type"]) == ("exception", "ConnectionError")


def test_a_stream_without_end_meets_the_time_out() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            await asyncio.sleep(0.01)
            yield b"x"

    error = failure(run({"draw": lambda: Blob(endless())}, python("draw", "draw", timeout_seconds=0.2)))
    assert error["code"] == "timeout"


@pytest.mark.parametrize("asked", [None, {}, {"$blob": "x"}, "sha256:12", 7])
def test_reading_what_describes_nothing_is_refused(asked: Any) -> None:
    async def read(context: NodeContext) -> Any:
        assert context.read is not None
        return len(await context.read(asked))

    assert failure(run({"read": read}, python("read", "read")), "read")["code"] == "blob_invalid"


def test_reading_a_missing_blob_fails_in_one_line() -> None:
    async def read(context: NodeContext) -> Any:
        assert context.read is not None
        return len(await context.read(digest_of(b"never put")))

    error = failure(run({"read": read}, python("read", "read")), "read")
    assert error["code"] == "blob_unknown"
    assert error["message"] == f"there is no blob {digest_of(b'never put')}"


SECRET = b"the books of another workflow"
LITERAL = described(SECRET)


async def length(file: Any, context: NodeContext) -> Any:
    assert context.read is not None
    return len(await context.read(file))


def reading(file: Any, *parents: str) -> dict[str, Any]:
    config = {"function": "length", "args": {"file": file}, "isolation": "inline"}
    return python("read", "length", *parents, config=config)


def value(config: Any, **more: Any) -> dict[str, Any]:
    return {"id": "v", "type": "value", "config": config, **more}


@pytest.mark.parametrize(
    "document",
    [
        flow(reading(LITERAL)),
        flow(reading(LITERAL["$blob"])),
        flow(value(LITERAL), reading("{{ v.output }}", "v")),
        flow(value({"a": [{"deep": LITERAL, "text": "x" * 100_000}]}), reading("{{ v.output.a[0].deep }}", "v")),
        flow(value("{{ item }}", map={"over": [LITERAL]}), reading("{{ v.output[0] }}", "v")),
        {**flow(value(1)), "outputs": {"file": LITERAL}},
        flow({"id": "c", "type": "workflow", "config": {"workflow": "reader", "inputs": {"file": LITERAL}}}),
        flow({"id": "c", "type": "workflow", "config": {"workflow": "giver"}}),
    ],
    ids=["literal", "digest", "value", "large", "map", "outputs", "child", "from a child"],
)
def test_a_digest_in_a_document_opens_no_file_of_another_run(document: dict[str, Any]) -> None:
    reader = {"name": "reader", "nodes": [reading("{{ inputs.file }}")]}
    giver = {"name": "giver", "nodes": [value(1)], "outputs": {"file": LITERAL}}
    with tidemill.open("memory://", functions={"length": length, "keep_books": lambda: Blob(SECRET)}) as mill:
        mill.run({"name": "books", "nodes": [python("b", "keep_books")]})
        assert mill.put_blob(SECRET) == LITERAL, "it is there"
        mill.publish(reader)
        mill.publish(giver)
        refused = mill.run(document, timeout_s=20)
    assert refused.status == "FAILED" and refused.error is not None
    assert "blob_unknown" in str(refused.error) or "child" in refused.error["code"], refused.error


def test_a_run_reads_the_files_that_it_was_given_and_those_that_are_kept() -> None:
    functions = {
        "length": length,
        "draw": lambda: [Blob(PIXELS)],
        "large": lambda: {"t": "x" * 99_999, "f": Blob(PIXELS)},
    }
    with tidemill.open("memory://", functions=functions) as mill:
        given = mill.put_blob(SECRET)
        assert mill.run(flow(reading("{{ inputs.file }}")), {"file": given}).outputs == {"read": len(SECRET)}
        kept = mill.put_blob(b"logo", keep=True)
        assert mill.run(flow(reading(kept))).outputs == {"read": 4}
        drawn = flow(python("draw", "draw"), reading("{{ draw.output[0] }}", "draw"))
        assert mill.run(drawn).outputs == {"read": len(PIXELS)}
        large = flow(python("large", "large"), reading("{{ large.output.f['$blob'] }}", "large"))
        assert mill.run(large).outputs == {"read": len(PIXELS)}


@simulated
async def test_the_bytes_are_stored_before_the_fact(mill: Cluster) -> None:
    seen: list[str] = []
    worker = await mill.process(functions={"draw": lambda: Blob(PIXELS)})
    put, commit = mill.blobs.put, mill.store.commit

    async def noted_put(*args: Any, **options: Any) -> str:
        seen.append("put")
        return await put(*args, **options)

    async def noted_commit(commits: Any) -> Any:
        if any(digest_of(PIXELS).encode() in record for each in commits for record in each.records):
            seen.append("fact")
        return await commit(commits)

    mill.blobs.put, mill.store.commit = noted_put, noted_commit  # type: ignore[method-assign]
    run_id = await worker.start(flow({**python("draw", "draw"), "config": {"function": "draw", "isolation": "inline"}}))
    await worker.end(run_id)
    assert seen[-2:] == ["put", "fact"]
    (completed,) = await mill.of(run_id, NodeCompleted)
    assert isinstance(completed.output, bytes)
    assert digest_of(PIXELS).encode() in completed.output
    assert await mill.blobs.get(TENANT, digest_of(PIXELS)) == PIXELS


@simulated
async def test_a_checkpoint_may_hold_bytes(mill: Cluster) -> None:
    async def work(context: NodeContext) -> Done:
        if context.last_checkpoint is None:
            assert context.checkpoint is not None
            await context.checkpoint({"page": 1, "seen": Blob(PIXELS)})
            raise RuntimeError("half way")
        assert context.read is not None
        return Done(len(await context.read(context.last_checkpoint["seen"])))

    kind = NodeType(name="work", config_schema={})
    worker = await mill.process(more=[Handler(kind, work)])
    view = await worker.run(flow({"id": "a", "type": "work", "retry": {"backoff_seconds": 0.1}}))
    assert view.outputs == {"a": len(PIXELS)}


@simulated
async def test_a_value_with_bytes_and_over_the_limit_is_a_blob_itself(mill: Cluster) -> None:
    def draw() -> Any:
        return {"text": "x" * 100_000, "picture": Blob(PIXELS)}

    worker = await mill.process(functions={"draw": draw})
    node = {**python("draw", "draw"), "config": {"function": "draw", "isolation": "inline"}}
    view = await worker.run(flow(node))
    assert view.outputs["draw"]["picture"] == described(PIXELS)


@simulated
async def test_a_compensator_reads_and_returns_bytes(mill: Cluster) -> None:
    read: list[bytes] = []

    async def undo(context: NodeContext) -> Done:
        assert context.read is not None
        read.append(await context.read(context.config["drawn"]))
        return Done(Blob(b"undone"))

    worker = await mill.process(
        functions={"draw": lambda: Blob(PIXELS)}, more=[Handler(NodeType(name="undo", config_schema={}), undo)]
    )
    compensate = {"type": "undo", "config": {"drawn": "{{ output }}"}}
    node = {**python("draw", "draw"), "config": {"function": "draw", "isolation": "inline"}, "compensator": compensate}
    run_id = await worker.start(flow(node))
    await worker.end(run_id)
    await worker.engine.rollback(run_id)
    await worker.end(run_id)
    assert read == [PIXELS]
    assert await mill.blobs.get(TENANT, digest_of(b"undone")) == b"undone"


@simulated
async def test_bytes_of_another_tenant_are_out_of_reach(mill: Cluster) -> None:
    digest = await mill.blobs.put("rival", b"secret")
    with pytest.raises(BlobMissing):
        await mill.blobs.get(TENANT, digest)

    async def spy(context: NodeContext) -> Done:
        assert context.read is not None
        return Done(len(await context.read(digest)))

    worker = await mill.process(more=[Handler(NodeType(name="spy", config_schema={}), spy)])
    view = await worker.run(flow({"id": "a", "type": "spy"}))
    assert view.nodes["a"]["error"]["code"] == "blob_unknown"


@simulated
async def test_files_go_to_the_archive_with_their_run_and_come_back(mill: Cluster) -> None:
    def draw() -> Any:
        return {"small": Blob(b"small"), "large": {"text": "x" * 100_000, "picture": Blob(PIXELS * 1_000)}}

    worker = await mill.process(functions={"draw": draw, "plain": lambda: Blob(b"alone")})
    inline = {"function": "draw", "isolation": "inline"}
    runs = [
        await worker.run(flow({**python("draw", "draw"), "config": inline})),
        await worker.run(flow({**python("draw", "plain"), "config": {**inline, "function": "plain"}})),
    ]
    await worker.stop()
    keeper = operator(mill)
    before = dict(mill.blobs._held)
    pass_days(mill, 40)
    assert len((await keeper.archive_sweep()).retired) == 2
    for digest in map(digest_of, (b"small", b"alone", PIXELS * 1_000)):
        del mill.blobs._held[TENANT, digest], mill.blobs._states[TENANT, digest]
    for run in runs:
        await keeper.archive_restore(run.run_id)
        assert (await keeper.show(run.run_id)).outputs == run.outputs
    assert mill.blobs._held == before


async def test_a_file_that_is_gone_is_found_by_the_audit() -> None:
    report = Blob(b"%PDF", "application/pdf", "r.pdf")
    async with engine_at("memory://", functions={"report": lambda: report}) as engine:
        await engine.publish(
            {"name": "files", "nodes": [{"id": "a", "type": "python", "config": {"function": "report"}}]}
        )
        run = await engine.result(await engine.start("files"))
        assert not (await engine.verify_log()).findings
        digest = run.outputs["a"]["$blob"]
        held: Any = engine._blobs
        del held._held["default", digest]
        (finding,) = (await engine.verify_log()).findings
        assert (finding.code, digest in finding.message) == ("blob_missing", True)
