"""Publishing and addressing workflows: by content, by name, by version."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.engine.door import after_s, following, lose_reply
from tests.engine.kit import TENANT, Mill, simulated
from tests.kernel.authoring import chain, document, node
from tidemill.blobs.memory import MemoryBlobs
from tidemill.engine.catalog import Catalog
from tidemill.errors import Rejected, Unavailable
from tidemill.stores.contract import Stream


@simulated
async def test_equal_content_is_the_same_version(mill: Mill) -> None:
    client = await mill.process(work=False)
    first = await client.engine.publish(chain("a", "b"))
    again = await client.engine.publish(chain("a", "b"))
    text = await client.engine.publish(
        "name: test\nnodes:\n  - {id: a, type: value}\n  - {id: b, type: value, dependencies: [a]}\n"
    )
    assert (first.version, first.created) == (1, True)
    assert [(other.version, other.created, other.digest) for other in (again, text)] == [(1, False, first.digest)] * 2
    assert len(await client.engine.catalog.versions(TENANT, "test")) == 1


@simulated
async def test_new_content_is_a_new_version_and_older_content_keeps_its_own(mill: Mill) -> None:
    client = await mill.process(work=False)
    versions = [(await client.engine.publish(chain(*names))).version for names in ("a", "ab", "abc", "ab", "a")]
    assert versions == [1, 2, 3, 2, 1]


@simulated
async def test_a_name_is_the_newest_version_and_a_number_that_one(mill: Mill) -> None:
    worker = await mill.process()
    await worker.publish(document(node("a", config=1)))
    await worker.publish(document(node("a", config=2)))
    for reference, expected in (("test", 2), ("test@1", 1), ("test@2", 2)):
        run = await worker.run(reference)
        assert (run.outputs, run.version) == ({"a": expected}, expected)
        assert (await mill.row(run.run_id)).tag_used == reference


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("nobody", "workflow_unknown"),
        ("", "workflow_unknown"),
        ("nobody@1", "workflow_unknown"),
        ("test@0", "version_unknown"),
        ("test@2", "version_unknown"),
        ("test@", "version_unknown"),
        ("test@-1", "version_unknown"),
        ("test@one", "version_unknown"),
        ("test@1@1", "version_unknown"),
        ("test@" + "9" * 5_000, "version_unknown"),
        ("test@٣", "version_unknown"),
        ("\ud800", "workflow_unknown"),
        ({"name": "test", "nodes": []}, "reference_invalid"),
    ],
)
@simulated
async def test_what_does_not_exist_is_refused(mill: Mill, reference: Any, code: str) -> None:
    client = await mill.process(work=False)
    await client.publish(chain("a"))
    with pytest.raises(Rejected) as refused:
        await client.engine.start(reference)
    assert refused.value.code == code
    assert len(str(refused.value)) < 8_000
    assert await mill.rows() == []


@simulated
async def test_a_document_with_problems_is_refused_whole(mill: Mill) -> None:
    client = await mill.process(work=False)
    broken: Any = document(node("a", "zzz"), node("b", type="nonsense"), node("c", config="{{ a.output"), surprise=1)
    with pytest.raises(Rejected) as refused:
        await client.engine.publish(broken)
    assert len(refused.value.problems) >= 4
    assert all(problem.code and problem.path and problem.message for problem in refused.value.problems)
    assert await client.engine.catalog.versions(TENANT, "test") == []
    assert mill.blobs._held == {}


@simulated
async def test_two_who_publish_at_once_get_two_versions_or_share_one(mill: Mill) -> None:
    first = await mill.process("c1", work=False)
    second = await mill.process("c2", work=False)
    first.door.next("commit", following(lambda: second.engine.publish(chain("x"))))
    published = await first.engine.publish(chain("y"))
    assert (published.version, published.created) == (2, True)
    first.door.next("commit", following(lambda: second.engine.publish(chain("z"))))
    shared = await first.engine.publish(chain("z"))
    assert (shared.version, shared.created) == (3, False)
    assert first.door.fired["commit"] == 2


@simulated
async def test_publishing_again_after_a_lost_reply_answers_the_same_version(mill: Mill) -> None:
    client = await mill.process(work=False)
    client.door.next("commit", lose_reply)
    results = await asyncio.gather(client.engine.publish(chain("a")), return_exceptions=True)
    assert client.door.fired["commit"] == 1
    again = await client.engine.publish(chain("a"))
    assert again.version == 1
    assert len(await client.engine.catalog.versions(TENANT, "test")) == 1
    assert len(results) == 1


@simulated
async def test_a_version_keeps_its_document_in_the_normal_form(mill: Mill) -> None:
    client = await mill.process(work=False)
    await client.engine.publish(
        {"name": "seeds", "nodes": [{"node_id": "a", "handler": "decision", "config": 1}]},
        author="ada",
        message="first",
    )
    (version,) = await client.engine.catalog.versions(TENANT, "seeds")
    assert (version.author, version.message, version.at_ms) == ("ada", "first", 1_000_000)
    normal = await client.engine.catalog.document(TENANT, version)
    assert normal["nodes"][0]["id"] == "a" and normal["nodes"][0]["type"].startswith("value")


@simulated
async def test_another_process_runs_what_one_has_published(mill: Mill) -> None:
    """The compiled form is read by its digest; it is never compiled a second time."""
    client = await mill.process("client", work=False)
    reference = await client.publish(document(node("a", config="{{ inputs.x + 1 }}")))
    worker = await mill.process("w1")
    run = await worker.run(reference, {"x": 4})
    assert run.outputs == {"a": 5}
    digest = (await mill.row(run.run_id)).digest
    assert (await worker.engine.catalog.flow(TENANT, digest)) is (await worker.engine.catalog.flow(TENANT, digest))


@simulated
async def test_a_running_run_stays_with_the_version_it_started_with(mill: Mill) -> None:
    client = await mill.process("client", work=False)
    old = await client.start(document(node("a", config="old")))
    new = await client.start(document(node("a", config="new")))
    worker = await mill.process("w1")
    assert (await worker.end(old)).outputs == {"a": "old"}
    assert (await worker.end(new)).outputs == {"a": "new"}


@simulated
async def test_workflows_are_listed_by_rows(mill: Mill) -> None:
    client = await mill.process(work=False)
    for name in ("one", "two"):
        await client.publish(chain("a", name=name))
        await client.publish(chain("b", name=name))
    page = await mill.store.find(TENANT, "workflow", ["workflow"])
    assert sorted(row.key for row in page.rows) == ["one", "two"]
    (tail,) = await mill.store.load({Stream(TENANT, "workflow", "one"): 0})
    assert tail.version == 2


@simulated
async def test_of_two_publishers_each_gets_its_own_version(mill: Mill) -> None:
    first, second = await mill.process("c1", work=False), await mill.process("c2", work=False)
    for process in (first, second):
        process.door.next("commit", after_s(0.01))
    answers = await asyncio.gather(first.engine.publish(chain("a")), second.engine.publish(chain("a", "b")))
    assert sorted(answer.version for answer in answers) == [1, 2]
    for answer in answers:
        version = await first.engine.catalog.resolve("default", f"{answer.name}@{answer.version}")
        assert version.digest == answer.digest


class Lying(MemoryBlobs):
    """A blob store that does not verify what it reads."""

    async def get(self, tenant: str, digest: str) -> bytes:
        body = await super().get(tenant, digest)
        return body.replace(b"value@1", b"value@2")


@simulated
async def test_a_damaged_workflow_is_not_run(mill: Mill) -> None:
    client = await mill.process("c", work=False)
    published = await client.engine.publish(chain("a"))
    blobs = Lying()
    blobs._held = mill.blobs._held
    catalog = Catalog(mill.store, blobs, client.ambient, client.engine.types)
    with pytest.raises(Unavailable, match="damaged"):
        await catalog.flow("default", published.digest)
