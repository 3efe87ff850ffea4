"""Whatever is opened without a URL is a file in the current directory: here one of the test's own."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

import tidemill
from tests.fixtures.command_line import eventually
from tidemill.client import Tidemill
from tidemill.engine.engine import Engine
from tidemill.event_loop import EVENTS_AHEAD_MAX
from tidemill.storage_urls import NamedMemory, open_storage


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# The blocking front: the engine's verbs from ordinary code, and from any thread


HELLO = dedent("""\
    name: hello
    inputs: {type: object, properties: {who: {type: string}}}
    nodes:
      - {id: a, type: value, config: "{{ inputs.who | default('world') }}"}
      - {id: b, type: value, config: "hello {{ a.output }}", dependencies: [a]}
    """)
ASLEEP = "name: asleep\nnodes: [{id: a, type: sleep, config: {seconds: 600}}]\n"
CALL = "name: call\nnodes: [{id: a, type: python, config: {function: f}}]\n"


def test_a_memory_store_is_known_by_its_name() -> None:
    mine, others = NamedMemory(), NamedMemory()
    store = open_storage("memory://one", named_memory=mine).store
    assert open_storage("memory://one", named_memory=mine).store is store
    assert open_storage("memory://two", named_memory=mine).store is not store
    assert open_storage("memory://one", named_memory=others).store is not store
    assert open_storage("memory://one").store is open_storage("memory://one").store


@pytest.fixture
def mill() -> Iterator[Tidemill]:
    with tidemill.open() as opened:
        yield opened


def test_a_document_can_be_a_mapping_text_bytes_or_a_file(mill: Tidemill, tmp_path: Path) -> None:
    mapping = {"name": "m", "nodes": [{"id": "a", "type": "value"}]}
    assert mill.publish(mapping).name == "m"
    assert mill.publish(HELLO).version == 1
    assert mill.publish(HELLO.encode()).version == 1, "the same content is the same version"
    file = tmp_path / "flow.json"
    file.write_text('{"name": "j", "nodes": [{"id": "a", "type": "value"}]}')
    assert mill.publish(file).name == "j"


def test_run_takes_a_name_or_a_document(mill: Tidemill, tmp_path: Path) -> None:
    assert mill.run(HELLO).outputs == {"b": "hello world"}
    assert mill.run("hello", {"who": "Ada"}).outputs == {"b": "hello Ada"}
    assert mill.run("hello@1").status == "COMPLETED"
    assert mill.run('{"name": "j", "nodes": [{"id": "a", "type": "value", "config": 1}]}').outputs == {"a": 1}
    file = tmp_path / "flow.yaml"
    file.write_text(HELLO)
    assert mill.run(file).outputs == {"b": "hello world"}


def test_start_takes_what_run_takes(mill: Tidemill, tmp_path: Path) -> None:
    file = tmp_path / "flow.yaml"
    file.write_text(HELLO)
    for document in (HELLO, {"name": "m", "nodes": [{"id": "b", "type": "value", "config": "hello world"}]}, file):
        assert mill.result(mill.start(document)).outputs == {"b": "hello world"}
        assert [mill.result(each).ok for each in mill.start_many(document, [{}, {}])] == [True, True]


def test_many_runs_of_a_workflow_in_python_are_started(mill: Tidemill) -> None:
    runs = mill.start_many(doubled, [{"n": 1}, {"n": 2}])
    assert [mill.result(each).output for each in runs] == [2, 4]


def test_the_name_of_a_file_is_no_document(mill: Tidemill) -> None:
    with pytest.raises(tidemill.Rejected) as refused:
        mill.publish("flow.yaml")
    assert refused.value.problems[0].hint == 'the document in a file is `Path("flow.yaml")`'


def test_a_run_from_its_start_to_its_end(mill: Tidemill) -> None:
    mill.publish(HELLO)
    run_id = mill.start("hello", {"who": "you"}, labels={"team": "blue"})
    view = mill.result(run_id, timeout_s=10)
    assert (view.status, view.outputs) == ("COMPLETED", {"b": "hello you"})
    assert mill.show(run_id).to_dict() == view.to_dict()
    rows, after = mill.find(["workflow:hello", "label:team=blue"])
    assert ([row.run_id for row in rows], after) == ([run_id], None)
    kinds = [event["type"] for event in mill.follow(run_id)]
    assert kinds[0] == "RunCreated" and kinds[-1] == "RunCompleted"
    assert [event["seq"] for event in mill.follow(run_id, after=3)] == list(range(4, view.events + 1))


@pytest.mark.parametrize(
    ("url", "written"),
    [
        (":memory:", "memory://"),
        ("sqlite://:memory:", "memory://"),
        ("sqlite://x.db", "sqlite:///x.db"),
        ("file:///x.db", "sqlite:////x.db"),
    ],
)
def test_a_misspelt_store_gets_the_right_url_as_its_hint(url: str, written: str) -> None:
    with pytest.raises(tidemill.Rejected) as refused:
        tidemill.open(url)
    assert refused.value.problems[0].hint.partition(", or")[0] == f"write {written}"


def test_errors_are_the_engines_own(mill: Tidemill) -> None:
    with pytest.raises(tidemill.Rejected) as unknown:
        mill.start("nothing")
    assert unknown.value.code == "workflow_unknown"
    with pytest.raises(tidemill.Rejected) as refused:
        mill.publish("name: x\nnodes: [{id: a, type: valeu}, {id: b, type: valeu}]")
    assert [problem.code for problem in refused.value.problems] == ["unknown_node_type"] * 2
    with pytest.raises(tidemill.Rejected, match="run_unknown"):
        list(mill.follow("nowhere"))
    with pytest.raises(FileNotFoundError):
        mill.publish(Path("/nowhere.yaml"))
    with pytest.raises(tidemill.Rejected, match="store_unknown"):
        tidemill.open("nonsense://")


def _files(error: BaseException) -> list[str]:
    return [Path(frame.filename).name for frame in traceback.extract_tb(error.__traceback__)]


@tidemill.task
def twice(n: int) -> int:
    return 2 * n


@tidemill.workflow
def doubled(n: int) -> int:
    return twice(n)


@tidemill.workflow
def broken_flow(n: int) -> int:
    return {1: n}[2]


def test_a_refusal_ends_at_the_callers_line(mill: Tidemill) -> None:
    refused: list[Callable[[], object]] = [
        lambda: tidemill.open("sqlit:///x"),
        lambda: mill.run({"name": "x", "nods": []}),
        lambda: mill.show("no-such-run"),
        lambda: list(mill.follow("no-such-run")),
        lambda: mill.result(mill.start("asleep"), timeout=0.001),
    ]
    mill.publish(ASLEEP)
    for each in refused:
        with pytest.raises((tidemill.Rejected, TimeoutError)) as raised:
            each()
        assert _files(raised.value) == ["test_client.py", "test_client.py"]
        assert raised.value.__cause__ is None
        assert raised.value.__suppress_context__


def test_an_exception_of_a_workflow_function_shows_its_own_line(mill: Tidemill) -> None:
    with pytest.raises(KeyError) as raised:
        mill.run(broken_flow, n=1)
    assert _files(raised.value) == ["test_client.py", "test_client.py"]


def test_a_misspelt_attribute_or_argument_of_a_client_names_the_one_that_is_meant(mill: Tidemill) -> None:
    for client in (mill, tidemill.aopen("memory://")):
        with pytest.raises(AttributeError, match="no attribute 'registr': did you mean `register`"):
            client.registr  # noqa: B018
    with pytest.raises(TypeError, match="did you mean `after`"):
        mill.follow("x", aftr=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="did you mean `node`"):
        mill.follow_logs("x", noed="a")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"known: terms, after"):
        mill.approvals(colour="x")  # type: ignore[call-arg]


def test_a_wrong_call_names_the_verb_and_the_callers_line(mill: Tidemill) -> None:
    with pytest.raises(TypeError) as raised:
        mill.result("x", tiemout=3)  # type: ignore[call-arg]
    assert str(raised.value) == "result() got an unexpected keyword argument 'tiemout': did you mean `timeout`?"
    assert _files(raised.value) == ["test_client.py"]
    with pytest.raises(TypeError, match=r"^retry\(\) takes 2 positional arguments but 3 were given$"):
        mill.retry("x", "y")  # type: ignore[call-arg]


def test_the_frames_that_a_refusal_leaves_out_are_logged(mill: Tidemill, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "tidemill.errors"), pytest.raises(tidemill.Rejected):
        mill.run({"name": "x", "nods": []})
    assert "compiler.py" in caplog.text


def test_waiting_too_long_is_a_timeout_and_the_run_goes_on(mill: Tidemill) -> None:
    mill.publish(ASLEEP)
    run_id = mill.start("asleep")
    with pytest.raises(TimeoutError):
        mill.result(run_id, timeout_s=0.05)
    assert mill.show(run_id).status == "RUNNING"


def test_functions_are_called_by_name_and_plain_ones_may_block() -> None:
    gate = threading.Barrier(20, timeout=20)

    def together(number: int) -> int:
        gate.wait()
        return number

    flow = dedent("""\
        name: flow
        nodes:
          - id: a
            type: python
            config: {function: together, args: {number: "{{ item }}"}}
            map: {over: "{{ range(20) | list }}"}
        """)
    with tidemill.open(functions={"together": together}, concurrency=20) as mill:
        assert mill.run(flow, timeout_s=30).outputs == {"a": list(range(20))}


def test_own_node_types() -> None:
    def twice(context: tidemill.NodeContext) -> tidemill.Done:
        if context.config == 13:
            raise tidemill.Fail("unlucky", "not this one")
        return tidemill.Done(2 * context.config)

    handler = tidemill.Handler(tidemill.NodeType(name="twice", config_schema={"type": "integer"}), twice)
    with tidemill.open(handlers=[handler]) as mill:
        assert mill.run("name: x\nnodes: [{id: a, type: twice, config: 21}]").outputs == {"a": 42}
        failed = mill.run("name: x\nnodes: [{id: a, type: twice, config: 13}]")
    assert failed.error is not None and failed.error["code"] == "unlucky"


def test_without_work_nothing_runs() -> None:
    with tidemill.open(work=False) as mill:
        mill.publish(HELLO)
        run_id = mill.start("hello")
        time.sleep(0.1)
        assert mill.show(run_id).nodes["a"]["status"] == "QUEUED"


def test_following_can_be_given_up(mill: Tidemill) -> None:
    mill.publish(ASLEEP)
    events = mill.follow(mill.start("asleep"))
    assert next(events)["type"] == "RunCreated"
    events.close()  # type: ignore[attr-defined]
    assert [name for name in task_names(mill) if name == "tidemill-follow"] == []


def task_names(mill: Tidemill) -> list[str]:
    async def names() -> list[str]:
        return [task.get_name() for task in asyncio.all_tasks()]

    return mill._wait(names())


def test_a_slow_reader_holds_a_bounded_number_of_events(mill: Tidemill) -> None:
    width = 3 * EVENTS_AHEAD_MAX // 2
    flow = {
        "name": "wide",
        "nodes": [{"id": "a", "type": "value", "map": {"over": f"{{{{ range({width}) | list }}}}"}, "config": 0}],
    }
    view = mill.run(flow, timeout_s=50)
    assert view.status == "COMPLETED"
    events = mill.follow(view.run_id)
    seen = [next(events)["seq"]]
    time.sleep(0.2)
    seen += [event["seq"] for event in events]
    assert seen == list(range(1, view.events + 1))
    assert view.events > 2 * EVENTS_AHEAD_MAX


def test_every_thread_may_call(mill: Tidemill) -> None:
    mill.publish(HELLO)
    found: list[Any] = []

    def caller(number: int) -> None:
        found.append(mill.run("hello", {"who": str(number)}).outputs["b"])

    threads = [threading.Thread(target=caller, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found) == [f"hello {number}" for number in range(8)]


@pytest.mark.parametrize("number", [0, -1, True, "8", 2.0, 10_001])
def test_a_concurrency_that_is_no_number_of_nodes_is_refused(number: Any) -> None:
    with pytest.raises(tidemill.Rejected, match=r"concurrency is .*, and must be a whole number from 1 to 10,000"):
        tidemill.open("memory://", concurrency=number)
    with pytest.raises(tidemill.Rejected, match="option_invalid"):
        tidemill.aopen("memory://", concurrency=number)


def test_a_call_from_inside_the_loop_is_refused_instead_of_hanging() -> None:
    async def calls_back() -> str:
        try:
            mill.find()
        except RuntimeError as error:
            return str(error)
        return "it answered"

    with tidemill.open(functions={"f": calls_back}) as mill:
        assert "inside the engine's own event loop" in mill.run(CALL, timeout_s=10).outputs["a"]


def test_a_plain_function_may_call_back() -> None:
    with tidemill.open(functions={"f": lambda: len(mill.find()[0])}) as mill:
        assert mill.run(CALL, timeout_s=10).outputs == {"a": 1}


def test_an_interrupt_leaves_the_call_and_the_front_stays_usable(mill: Tidemill) -> None:
    mill.publish(ASLEEP)
    run_id = mill.start("asleep")
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.2, signal.pthread_kill, (main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        mill.result(run_id)
    mill.cancel(run_id)
    assert mill.result(run_id).status == "CANCELLED"


def test_closing_is_final_idempotent_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    mill = tidemill.open()
    mill.run(HELLO)
    mill.close()
    mill.close()
    assert set(threading.enumerate()) <= before
    with pytest.raises(RuntimeError, match="closed"):
        mill.find()


def test_closing_does_not_wait_for_ever() -> None:
    release = threading.Event()
    started = threading.Event()

    def stuck() -> None:
        started.set()
        release.wait(30)

    mill = tidemill.open(functions={"f": stuck})
    mill.publish(CALL)
    mill.start("call")
    assert started.wait(10)
    began = time.monotonic()
    mill.close(timeout_s=0.1)
    assert time.monotonic() - began < 25
    release.set()


def test_a_caller_that_waits_learns_that_another_thread_has_closed() -> None:
    mill = tidemill.open("memory://")
    run_id = mill.start({"name": "waits", "nodes": [{"id": "nap", "type": "sleep", "config": {"seconds": 60}}]})
    raised: list[BaseException] = []

    def wait() -> None:
        try:
            mill.result(run_id)
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    eventually(lambda: mill.show(run_id).nodes["nap"]["status"] == "WAITING", "the node waits")
    mill.close()
    thread.join(10)
    assert [type(error) for error in raised] == [tidemill.Unavailable]
    assert "was closed" in str(raised[0])


def test_following_a_run_while_the_front_is_closed_ends() -> None:
    mill = tidemill.open()
    mill.publish(ASLEEP)
    events = mill.follow(mill.start("asleep"))
    next(events)
    mill.close(timeout_s=0.1)
    with pytest.raises(RuntimeError, match="closed"):
        list(events)


@pytest.mark.parametrize("verb", ["start", "result", "show", "find", "cancel", "pause", "resume"])
def test_verbs_have_the_signature_and_words_of_the_engine(verb: str) -> None:
    ours, theirs = getattr(Tidemill, verb), getattr(Engine, verb)
    assert ours.__doc__ == theirs.__doc__
    assert inspect.signature(ours) == inspect.signature(theirs)


def test_a_forked_copy_says_so_instead_of_waiting_for_ever() -> None:
    with tidemill.open("memory://", work=False) as mill:
        child = os.fork()
        if not child:
            try:
                mill.find()
            except RuntimeError as error:
                mill.close()
                os._exit(7 if "fork" in str(error) else 8)
            os._exit(9)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 7
        assert mill.find() == ([], None), "the process that opened it goes on"


# What people guess


FAILING = "name: failing\nnodes: [{id: a, type: fail, config: {kind: broken, message: no <b>luck</b>}}]\n"


def test_a_run_says_whether_it_is_fine(mill: Tidemill) -> None:
    run = mill.run(HELLO, key="fine", labels={"team": "blue"})
    assert run.ok and run.raise_for_status() is run
    assert (run.run_id, run.labels) == ("fine", {"team": "blue"})
    assert (run.status, run.status.lower(), f"{run.status}") == ("COMPLETED", "completed", "COMPLETED")
    assert run.status is tidemill.RunStatus.COMPLETED
    assert run == mill.show("fine") and hash(run) == hash(mill.show("fine"))
    assert run != mill.run(HELLO) and run != "fine"
    assert repr(run) == "RunView('fine', workflow='hello@1', status='COMPLETED', output='hello world')"
    assert mill.run(HELLO, key="fine").run_id == "fine", "the same key is the same run"
    assert repr(mill.find(label="team=blue").rows) == "[RunRow('fine', workflow='hello@1', status='COMPLETED')]"


def test_a_failed_run_raises_when_asked_to(mill: Tidemill) -> None:
    run = mill.run(FAILING, key="bad")
    assert not run.ok and run.output is None
    with pytest.raises(tidemill.RunFailed) as raised:
        run.raise_for_status()
    assert str(raised.value) == "run bad of failing FAILED at node a: no <b>luck</b> [broken]"
    assert isinstance(raised.value, tidemill.TidemillError)
    assert not hasattr(raised.value, "__notes__"), "a failure without an exception has no place"
    assert (raised.value.run_id, raised.value.node, raised.value.code) == ("bad", "a", "broken")
    assert repr(run) == (
        "RunView('bad', workflow='failing@1', status='FAILED', failed_node='a', error='no <b>luck</b> [broken]')"
    )


def test_an_exception_is_named_by_its_class() -> None:
    error = {"code": "exception", "message": "'missing'", "type": "KeyError"}
    failed = tidemill.RunFailed("r", "FAILED", workflow="w", node="t", error=error)
    assert str(failed) == "run r of w FAILED at node t: KeyError: 'missing' [exception]"


@dataclass
class Bill:
    total: Decimal
    due: date


@tidemill.workflow
def bill(cents: int) -> Bill:
    return priced(cents)


@tidemill.task
def priced(cents: int) -> Bill:
    return Bill(Decimal(cents) / 100, date(2026, 1, 31))


def test_an_output_is_read_as_the_type_that_a_workflow_returns(mill: Tidemill) -> None:
    run = mill.run(bill, cents=1250)
    assert run.output == {"total": "12.5", "due": "2026-01-31"}
    expected = Bill(Decimal("12.5"), date(2026, 1, 31))
    assert run.output_as(bill) == run.output_as(Bill) == mill.show(run.run_id).output_as(bill) == expected
    assert run.output_as(dict) == run.output
    with pytest.raises(tidemill.Rejected, match="is not int: Expected `int`") as raised:
        run.output_as(int)
    assert raised.value.code == "output_type"
    with pytest.raises(tidemill.RunFailed, match="FAILED at node a"):
        mill.run(FAILING).output_as(Bill)


@tidemill.task
def halved(cents: int) -> int:
    if cents % 2:
        raise ValueError(f"{cents} is odd")
    return cents // 2


@tidemill.workflow
def half(cents: int, note: str = "none") -> int:
    return halved(cents)


def test_a_run_tells_what_it_was_started_with(mill: Tidemill) -> None:
    run = mill.run(half, cents=4)
    assert run.inputs == mill.show(run).inputs == run.to_dict()["inputs"] == {"cents": 4, "note": "none"}
    assert tidemill.RunView.from_dict(run.to_dict()) == run
    older = {name: value for name, value in run.to_dict().items() if name != "inputs"}
    assert tidemill.RunView.from_dict(older).inputs is None, "from a server that does not send them"


def test_a_comparison_sees_inputs_and_errors(mill: Tidemill) -> None:
    first, second, again = mill.run(half, cents=1), mill.run(half, cents=3), mill.run(half, cents=1)
    found = mill.compare(first, second)
    assert (found.same, found.inputs_same, found.first_divergence) == (False, False, "halved")
    assert found.inputs == ({"cents": 1, "note": "none"}, {"cents": 3, "note": "none"})
    assert mill.compare(first, again).same
    twin = mill.run(half, cents=8)
    found = mill.compare(mill.run(half, cents=8, note="other"), twin)
    assert (found.same, found.inputs_same, found.outputs_same, found.first_divergence) == (False, False, True, None)


def test_a_run_is_given_by_its_id_or_as_what_a_verb_returned(mill: Tidemill) -> None:
    run = mill.run(half, cents=4)
    (row,) = mill.find(label=None).rows
    assert mill.show(run) == mill.show(row) == mill.show(run_id=run) == mill.result(run) == run
    assert mill.why(run) == mill.why(run.run_id) and mill.events(row) == mill.events(run.run_id)
    assert (
        mill.bulk("retry", run_ids=[run], dry_run=True).runs
        == mill.bulk("retry", run_ids=run.run_id, dry_run=True).runs
    )
    for verb in (mill.show, mill.cancel, mill.why, mill.logs, mill.result, mill.retry):
        for wrong in (["a"], None, 7):
            with pytest.raises(tidemill.Rejected, match="a run is given by its id, or as what") as raised:
                verb(wrong)
            assert raised.value.code == "run_id_invalid"


def test_a_timeout_is_checked_before_the_run_starts(mill: Tidemill) -> None:
    with pytest.raises(tidemill.Rejected, match="a number of seconds or a timedelta, not str"):
        mill.run(half, cents=2, timeout="5s")
    assert mill.count() == 0
    assert mill.run(half, cents=2, timeout=timedelta(seconds=30)).ok
    mill.publish(ASLEEP)
    nap = mill.start("asleep", deadline_seconds=timedelta(hours=1))
    with pytest.raises(TimeoutError, match=f"run {nap} has not ended after 0.01 s; it continues"):
        mill.result(nap, timeout=timedelta(milliseconds=10))
    mill.cancel(nap)


def test_a_misspelt_option_is_not_taken_for_an_input(mill: Tidemill) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lables': did you mean labels"):
        mill.run(half, {"cents": 2}, lables={"a": "b"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'cents': give the inputs as one mapping"):
        mill.run(HELLO, cents=2)
    with pytest.raises(tidemill.Rejected, match=r"is text, not list .*run one query for each value"):
        mill.find(status=["failed"])
    with pytest.raises(tidemill.Rejected, match="at least one row"):
        mill.find(limit="a")


def test_a_run_that_goes_on_is_not_fine_yet(mill: Tidemill) -> None:
    mill.publish(ASLEEP)
    run_id = mill.start("asleep", key="nap")
    eventually(lambda: bool(mill.show(run_id).waiting_for), "it does not sleep")
    run = mill.show(run_id)
    with pytest.raises(tidemill.RunFailed, match="run nap of asleep has not ended: it is RUNNING"):
        run.raise_for_status()
    assert repr(run).endswith("status='RUNNING', waiting_for=['timer (a)'])")
    mill.cancel(run_id)
    with pytest.raises(tidemill.RunFailed, match="run nap of asleep CANCELLED"):
        mill.result(run_id).raise_for_status()


@pytest.mark.parametrize(
    ("outputs", "output"),
    [
        ("", {"x": 1}),
        ('outputs: "{{ a.output }}"', {"x": 1}),
        ("outputs: {only: 7}", {"only": 7}),
    ],
)
def test_the_output_is_what_the_workflow_returns(mill: Tidemill, outputs: str, output: Any) -> None:
    run = mill.run(f"name: one\n{outputs}\nnodes: [{{id: a, type: value, config: {{x: 1}}}}]\n")
    assert run.output == output


def test_the_outputs_of_several_last_nodes_stay_together(mill: Tidemill) -> None:
    run = mill.run("name: two\nnodes: [{id: a, type: value, config: 1}, {id: b, type: value, config: 2}]\n")
    assert run.output == run.outputs == {"a": 1, "b": 2}


def test_notebooks_see_the_traceback_what_was_handled_and_no_children(mill: Tidemill) -> None:
    def lookup() -> int:
        return {"a": 1}["missing"]

    mill.register(lookup)
    python: dict[str, Any] = {"type": "python", "retry": 1, "config": {"function": "lookup"}}
    run = mill.run({"name": "lookup", "nodes": [{"id": "a", **python}]})
    assert "error=\"KeyError: 'missing' [exception]\"" in repr(run)
    with pytest.raises(tidemill.RunFailed) as raised:
        run.raise_for_status()
    (note,) = raised.value.__notes__
    assert note.splitlines()[1:3] == ["Where the step raised it:", "Traceback (most recent call last):"]
    assert 'return {"a": 1}["missing"]' in note and "KeyError: 'missing'" in note
    html = run._repr_html_()
    assert "KeyError: &#x27;missing&#x27; [exception]" in html and "<pre>Traceback (most recent call last)" in html
    handled = mill.run({"name": "handled", "nodes": [{"id": "a", "on_error": "continue", **python}]})
    assert "<td>tolerated</td>" in handled._repr_html_()
    assert handled.nodes["a"]["tolerated"] is True and "tolerated" not in run.nodes["a"]
    mill.publish(HELLO)
    mill.run({"name": "parent", "nodes": [{"id": "kid", "type": "workflow", "config": {"workflow": "hello"}}]})
    shown = mill._repr_html_()
    assert "parent@1" in shown and "hello@1" not in shown and "<th>took</th>" in shown


def test_notebooks_see_why_and_the_graph_of_a_workflow(mill: Tidemill) -> None:
    shown = mill.why(mill.run(FAILING))._repr_html_()
    assert shown.startswith("<pre>the run failed at") and "&lt;b&gt;luck&lt;/b&gt;" in shown

    @tidemill.task
    def same(n: int) -> int:
        return n

    @tidemill.workflow
    def fine(n: int) -> int:
        return same(n)

    @tidemill.workflow
    def wrong(n: int) -> int:
        return same("<b>")  # type: ignore[arg-type]

    @tidemill.workflow
    def large(n: int) -> int:
        return [same(n) for _ in range(300)][-1]

    assert "<svg" in fine._repr_html_() and ">same<" in fine._repr_html_()
    assert "&lt;b&gt;" in wrong._repr_html_() and "[arguments_invalid]" in wrong._repr_html_()
    assert large._repr_html_() == "<pre>&lt;workflow large&gt;: 300 nodes</pre>"


def test_the_traceback_of_inputs_for_a_name_ends_at_the_call(mill: Tidemill) -> None:
    for verb in (mill.run, mill.start):
        with pytest.raises(TypeError, match=r"'n': give the inputs as one mapping, \{'n': …\}") as raised:
            verb("hello", n=1)
        assert len(raised.traceback) == 1


def test_notebooks_see_tables_without_markup_of_others(mill: Tidemill) -> None:
    html = mill.run(FAILING, key="<i>bad</i>")._repr_html_()
    assert "no &lt;b&gt;luck&lt;/b&gt; [broken]" in html and "&lt;i&gt;bad&lt;/i&gt;" in html
    assert html.count("<tr>") == 2 and "<b>luck" not in html and "<i>" not in html
    shown = mill._repr_html_()
    assert "&lt;i&gt;bad&lt;/i&gt;" in shown and "failing@1" in shown and "sqlite:///tidemill.db" in shown
    assert repr(mill) == "<Tidemill sqlite:///tidemill.db open>"
    mill.close()
    assert "closed" in mill._repr_html_() and repr(mill) == "<Tidemill sqlite:///tidemill.db closed>"


def test_passwords_are_no_part_of_a_repr() -> None:
    assert "secret" not in repr(tidemill.aopen("memory://user:secret@x"))


def test_timeouts_name_the_run(mill: Tidemill) -> None:
    mill.publish(ASLEEP)
    run_id = mill.start("asleep", key="nap")
    for given in ({"timeout": 0.05}, {"timeout_s": 0.05}):
        with pytest.raises(TimeoutError, match=r"run nap has not ended after 0\.05 s; it continues, and result"):
            mill.result(run_id, **given)
    with pytest.raises(TimeoutError, match="run nap has not"):
        mill.run("asleep", key="nap", timeout=0.05)


def test_no_run_has_an_empty_id(mill: Tidemill) -> None:
    with pytest.raises(tidemill.Rejected, match="the id of a run is empty"):
        mill.resolve("")


def test_the_name_of_a_file_is_no_workflow(mill: Tidemill) -> None:
    with pytest.raises(tidemill.Rejected) as refused:
        mill.run("flow.yaml")
    assert refused.value.code == "workflow_unknown"
    assert 'mill.run(Path("flow.yaml"))' in refused.value.problems[0].hint


def test_functions_are_registered_after_open() -> None:
    with tidemill.open("memory://") as mill:

        @mill.register
        def f() -> str:
            return "first"

        assert mill.run(CALL).output == "first"

        @tidemill.function("f")
        def other() -> str:
            return "second"

        mill.register(other)
        assert mill.run("call").output == "second", "a redefinition in a notebook counts"
        mill.register(f=lambda: "third")
        assert mill.run("call").output == "third"
        with pytest.raises(TypeError, match="not a function"):
            mill.register(3)  # type: ignore[call-overload]
        assert mill.run("call").output == "third"


@pytest.mark.parametrize("functions", [[3, "x"], {"a": 3}, "name", 7])
def test_what_is_no_function_is_refused(functions: Any) -> None:
    with pytest.raises(TypeError, match="functions"):
        tidemill.open("memory://", functions=functions)


def test_runs_are_found_by_a_query_by_names_and_one_by_one(mill: Tidemill) -> None:
    for number in range(5):
        mill.run(HELLO, key=f"r{number}", labels={"even": str(number % 2 == 0)})
    mill.run(FAILING, key="bad")
    assert [row.run_id for row in mill.find("status:failed started>-1h").rows] == ["bad"]
    assert mill.find("status:FAILED") == mill.find(["status:FAILED"]) == mill.find(status="failed")
    named = mill.find(workflow="hello", label={"even": "False"}, since="1h")
    assert sorted(row.run_id for row in named.rows) == ["r1", "r3"]
    assert len(list(mill.runs())) == mill.count() == 6
    assert sorted(row.run_id for row in mill.runs("workflow:hello label.even=True")) == ["r0", "r2", "r4"]
    for text in ("statuss:FAILED", ["statuss:FAILED"]):
        for ask in (mill.find, mill.count, lambda query: list(mill.runs(query))):
            with pytest.raises(tidemill.Rejected, match="query_term_unknown"):
                ask(text)


def fields(record: logging.LogRecord, *names: str) -> tuple[Any, ...]:
    return tuple(vars(record)[name] for name in names)


def test_each_attempt_that_ends_is_logged(mill: Tidemill, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="tidemill.attempts")
    mill.run(HELLO, key="fine")
    mill.run(
        {
            "name": "flaky",
            "nodes": [
                {
                    "id": "a",
                    "type": "fail",
                    "config": {"kind": "flaky", "message": "not yet", "attempts": 1, "retryable": True},
                    "retry": {"backoff_seconds": 0.001},
                    "map": {"over": [1]},
                },
                {"id": "b", "type": "fail", "dependencies": ["a"]},
                {"id": "c", "type": "value", "dependencies": ["b"]},
            ],
        },
        key="flaky",
    )
    mill.close()
    records = [record for record in caplog.records if record.name == "tidemill.attempts"]
    assert {record.levelname for record in records} == {"INFO"}
    facts = [fields(record, "run_id", "node", "item", "attempt", "status") for record in records]
    assert facts == [
        ("fine", "a", None, 1, "COMPLETED"),
        ("fine", "b", None, 1, "COMPLETED"),
        ("flaky", "a", 0, 1, "FAILED"),
        ("flaky", "a", 0, 2, "COMPLETED"),
        ("flaky", "a", None, 2, "COMPLETED"),
        ("flaky", "b", None, 1, "FAILED"),
    ]
    failed = records[2]
    assert fields(failed, "error_code", "will_retry", "workflow") == ("flaky", True, "flaky")
    assert failed.getMessage().startswith("run flaky node a[0] failed, attempt 1, ")
    assert failed.getMessage().endswith(": not yet [flaky]; it will be retried")


def look_up(key: str) -> int:
    return {"present": 1}[key]


def test_lists_and_the_log_name_the_class_of_an_exception(mill: Tidemill, caplog: pytest.LogCaptureFixture) -> None:
    """The text of a KeyError is the key alone."""
    caplog.set_level("INFO", logger="tidemill.attempts")
    looking = {"id": "a", "type": "python", "config": {"function": f"{__name__}:look_up", "args": {"key": "missing"}}}
    mill.run({"name": "looking", "nodes": [looking]}, key="child")
    mill.publish({"name": "looking", "nodes": [looking]})
    parent = mill.run(
        {"name": "parent", "nodes": [{"id": "sub", "type": "workflow", "config": {"workflow": "looking"}}]}
    )
    said = "KeyError: 'missing'"
    assert mill.dead_letters("run:child")[0][0].message == said
    assert mill.find("workflow:looking status:FAILED")[0][0].error_message == said
    assert parent.error is not None and parent.error["message"].endswith(f": {said}")
    mill.close()
    assert any(record.getMessage().endswith(f": {said} [exception]") for record in caplog.records)


def test_a_fork_logs_nothing_of_its_source_again(mill: Tidemill, caplog: pytest.LogCaptureFixture) -> None:
    run = mill.run(HELLO)
    caplog.set_level("INFO", logger="tidemill.attempts")
    mill.result(mill.fork(run.run_id, node="b", key="fork"))
    mill.close()
    records = [record for record in caplog.records if record.name == "tidemill.attempts"]
    assert [fields(record, "run_id", "node") for record in records] == [("fork", "b")]


def test_problems_of_a_text_have_a_line_and_a_column(mill: Tidemill, tmp_path: Path) -> None:
    text = "name: x\nnodes:\n  - id: a\n    type: valeu\n  - {id: b, type: value, retry: {max_attemps: 3}}\n"
    file = tmp_path / "flow.yaml"
    file.write_text(text)
    for document in (text, text.encode(), file):
        with pytest.raises(tidemill.Rejected) as refused:
            mill.publish(document)
        found = {problem.path: (problem.line, problem.column) for problem in refused.value.problems}
        assert found == {"/nodes/0/type": (4, 5), "/nodes/1/retry/max_attemps": (5, 34)}
        assert "/nodes/0/type: line 4, column 5: node `a`" in str(refused.value)


def test_terms_of_other_lists_are_checked_too(mill: Tidemill) -> None:
    mill.run(FAILING, key="bad")
    assert [row.run_id for row in mill.dead_letters("status:open code:broken")[0]] == ["bad"]
    assert mill.approvals("status:pending") == mill.approvals(["status:pending"]) == ([], None)
    for ask, term in (
        (mill.dead_letters, "stats:open"),
        (mill.approvals, "aprover:ada"),
        (mill.workflows, "tags:stable"),
    ):
        with pytest.raises(tidemill.Rejected) as refused:
            ask([term])
        (problem,) = refused.value.problems
        assert (problem.code, problem.path) == ("query_term_unknown", "/terms/0")
        assert problem.hint.startswith("did you mean")


@pytest.mark.parametrize("config", [10**5_000, {10**5_000: 1}, {1: 1}], ids=["integer", "key", "small key"])
def test_a_document_that_is_not_json_is_refused(config: object) -> None:
    with tidemill.open("memory://") as mill, pytest.raises(tidemill.Rejected) as refused:
        mill.publish({"name": "w", "nodes": [{"id": "a", "type": "value", "config": config}]})
    assert refused.value.code == "not_json"


FOREIGN = {"private": "x" * 100_000}


def test_a_digest_gives_no_author_a_value_or_a_file_of_another_workflow(tmp_path: Path) -> None:
    def make() -> dict[str, Any]:
        return {"value": FOREIGN, "file": tidemill.Blob(b"private" * 100, "text/plain", "x.txt")}

    async def read(context: tidemill.NodeContext) -> str:
        return (await context.read(context.upstream["a"])).decode()

    with tidemill.open(f"sqlite:///{tmp_path}/mill.db", functions=[make, read]) as mill:
        made = {"name": "other", "nodes": [{"id": "a", "type": "python", "config": {"function": "make"}}]}
        file = mill.run({**made, "outputs": "{{ a.output.file }}"}).outputs
        (value,) = [each.digest for each in mill.blobs()[0] if each.size > 100_000]
        with pytest.raises(tidemill.Rejected) as refused:
            mill.publish({"name": "w", "nodes": [{"id": "a", "type": "value", "config_ref": value}]})
        assert refused.value.code == "config_ref_unreadable" and "belongs to a run" in str(refused.value)
        nodes = [
            {"id": "a", "type": "value", "config": "{{ inputs.f }}"},
            {"id": "b", "type": "python", "dependencies": ["a"], "config": {"function": "read"}},
        ]
        for schema in ({"default": file}, {"default": {}, "properties": {"$blob": {"default": file["$blob"]}}}):
            with pytest.raises(tidemill.Rejected) as refused:
                mill.run({"name": "w", "nodes": nodes, "inputs": {"properties": {"f": schema}}})
            assert refused.value.code == "blob_unknown"
        # The caller may give it, and the operator may keep one for everybody.
        assert mill.run({"name": "w", "nodes": nodes}, {"f": file}).status == "COMPLETED"
        kept = mill.put_blob(b"for all", keep=True)
        defaults = {"properties": {"f": {"default": kept}}}
        assert mill.run({"name": "w", "nodes": nodes, "inputs": defaults}).outputs == {"b": "for all"}
        stored = mill.put_blob(b'{"x": 1}')["$blob"]
        by_reference = {"name": "v", "nodes": [{"id": "a", "type": "value", "config_ref": stored}]}
        assert mill.run(by_reference).outputs == {"a": {"x": 1}}


def test_a_path_is_that_of_a_sqlite_file(tmp_path: Path) -> None:
    for path in (tmp_path / "a b%?.db", Path("here.db")):
        with tidemill.open(path):
            assert path.is_file()
    with pytest.raises(tidemill.Rejected) as refused:
        tidemill.open(3)
    assert refused.value.code == "store_unknown" and "sqlite:///FILE" in refused.value.problems[0].hint


@pytest.mark.parametrize("url", ["memory://", "sqlite:///freed.db"])
def test_a_closed_mill_is_freed_with_everything_in_it(url: str) -> None:
    """A value that the garbage collector does not track would keep all of it, caches included, if it closed a cycle."""
    signal_node = {"id": "b", "type": "signal", "config": {"name": "go"}, "dependencies": ["a"]}
    nodes = [{"id": "a", "type": "value", "config": 1}, signal_node]
    before = {id(each) for each in gc.get_objects() if isinstance(each, Engine)}
    for _ in range(3):
        with tidemill.open(url) as mill:
            mill.publish({"name": "waits", "nodes": nodes})
            mill.start("waits")
            assert mill.run(HELLO).ok
    del mill
    for _ in range(200):  # A thread that ends may hold its last frame for a moment.
        gc.collect()
        kept = [type(each) for each in gc.get_objects() if isinstance(each, Engine) and id(each) not in before]
        if not kept:
            break
        time.sleep(0.02)
    assert kept == []


def test_a_child_that_was_changed_back_is_the_one_that_the_code_defines(tmp_path: Path) -> None:
    def workflows(step: str) -> tuple[Any, Any]:
        @tidemill.task(name=step)
        def say(n: int) -> str:
            return f"{step}{n}"

        @tidemill.workflow
        def grandchild(n: int) -> str:
            return say(n)

        @tidemill.workflow
        def child(n: int) -> str:
            return grandchild(n)

        @tidemill.workflow
        def parent(n: int) -> list[str]:
            return [child(n), grandchild(n)]

        return parent, child

    for step in ("a", "b", "a", "b"):
        parent, child = workflows(step)
        with tidemill.open(tmp_path / "runs.db") as mill:
            assert mill.run(parent, n=1).output == [f"{step}1", f"{step}1"]
            assert mill.run(child, n=2).output == f"{step}2"
            assert parent.document()["nodes"][0]["config"]["workflow"] == "child"


@pytest.mark.parametrize(
    ("ask", "code", "path"),
    [
        (lambda mill, run: mill.resolve(None), "run_id_invalid", "/run_id"),
        (lambda mill, run: mill.resolve({"run_id": "x"}), "run_id_invalid", "/run_id"),
        (lambda mill, run: mill.resolve(print), "run_id_invalid", "/run_id"),
        (lambda mill, run: mill.bulk("retry", run_ids={"run_id": "x"}), "run_id_invalid", "/run_id"),
        (lambda mill, run: mill.bulk("retry", run_ids=3), "run_id_invalid", "/run_id"),
        (lambda mill, run: mill.rewind(run, None), "node_unknown", "/node"),
        (lambda mill, run: mill.rewind(run_id=run, node={"id": "a"}), "node_unknown", "/node"),
        (lambda mill, run: mill.override(run, 3, value=1), "node_unknown", "/node"),
        (lambda mill, run: mill.decide(run, {}, "approve", actor="ada"), "node_unknown", "/node"),
        (lambda mill, run: mill.approval(run, None), "node_unknown", "/node"),
        (lambda mill, run: mill.fork(run, at="a"), "event_unknown", "/at"),
        (lambda mill, run: mill.approvals(None), "query_invalid", "/terms"),
        (lambda mill, run: mill.tag("typed", "stable", None), "version_unknown", "/version"),
        (lambda mill, run: mill.start_many("typed", 3), "inputs_invalid", "/inputs"),
        (lambda mill, run: mill.start_many("typed", {"a": 1}), "inputs_invalid", "/inputs"),
        (lambda mill, run: mill.start_many("typed", "ab"), "inputs_invalid", "/inputs"),
        (lambda mill, run: mill.start_many("typed", b"ab"), "inputs_invalid", "/inputs"),
    ],
)
def test_an_argument_of_the_wrong_type_is_named(ask: Any, code: str, path: str) -> None:
    with tidemill.open("memory://", work=False) as mill:
        run = mill.start({"name": "typed", "nodes": [{"id": "a", "type": "value"}]})
        with pytest.raises(tidemill.Rejected) as refused:
            ask(mill, run)
        assert mill.resolve(mill.show(run)) == run
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == (code, path)
    assert problem.hint
