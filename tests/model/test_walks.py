"""Random walks: the reference's own laws hold at every step, and order does not matter where it must not."""

from __future__ import annotations

import random

import pytest

from tests.model.documents import Shape, random_document, random_ir, translate
from tests.model.reference import Activation, Done, Reference
from tests.model.walks import Script, play
from tidemill.kernel.model import Workflow, decode_workflow, encode_workflow

SEEDS = range(40)
BATCH = 25
TROUBLE = (0.0, 0.03, 0.08)


def flows(batch: int) -> list[tuple[int, Workflow]]:
    found = []
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        rng = random.Random(seed)
        found.append((seed, random_ir(rng, rng.randint(1, 18))))
    return found


def final(run: Reference) -> dict[str, tuple[str, int, int]]:
    """The final state; how far the items of a failed map came depends on the order, so their attempts do not count."""
    return {
        at: (status, visits, 0 if status == "FAILED" and at in run.maps else attempts)
        for at, (status, visits, attempts) in run.nodes().items()
    }


def order_matters(workflow: Workflow) -> bool:
    """The hop of an `any` or quorum join is that of who came first, so `max_hops` depends on the order."""
    return workflow.limits.max_hops is not None and any(node.join in ("any", "quorum") for node in workflow.nodes)


@pytest.mark.parametrize("batch", SEEDS)
def test_the_end_does_not_depend_on_the_order(batch: int) -> None:
    for seed, workflow in flows(batch):
        trouble = TROUBLE[seed % 3]
        runs = [play(workflow, Script(workflow, seed, trouble), random.Random(order)) for order in range(4)]
        if order_matters(workflow):
            continue
        assert len({run.status for run in runs}) == 1, seed
        for run in runs[1:]:
            same_visits(seed, runs[0], run)
            if run.status == "COMPLETED":
                assert (final(run), run.edges()) == (final(runs[0]), runs[0].edges()), seed


def same_visits(seed: int, one: Reference, other: Reference) -> None:
    """A visit that ended by itself ended the same way in both orders."""
    first, second = one.outcomes(), other.outcomes()
    assert {key: first[key] for key in first if key in second} == {key: second[key] for key in second if key in first}


@pytest.mark.parametrize("batch", SEEDS)
def test_acts_at_any_moment(batch: int) -> None:
    """Pauses do not change the end; a cancel or a deadline ends everything at once."""
    for seed, workflow in flows(batch):
        rng = random.Random(seed)
        run, script = Reference(workflow), Script(workflow, seed, 0.03)
        run.start()
        while run.status in ("RUNNING", "PAUSED"):
            act_once(run, rng, script)
        paused_end = run.status, final(run)
        straight = play(workflow, Script(workflow, seed, 0.03), random.Random(seed))
        if run.error_code not in (None, "deadline_exceeded") or order_matters(workflow):
            continue
        if run.status == "COMPLETED":
            assert paused_end == (straight.status, final(straight)), seed


def act_once(run: Reference, rng: random.Random, script: Script) -> None:
    flying: list[Activation] = run.in_flight()
    dice = rng.random()
    if run.status == "PAUSED" and (not flying or dice < 0.2):
        run.resume()
    elif dice < 0.03:
        run.pause()
    elif dice < 0.034:
        run.cancel()
    elif dice < 0.038:
        run.deadline()
    elif flying:
        act = rng.choice(flying)
        run.finish(act, script.outcome(act))


def test_references_can_be_asked_at_any_time() -> None:
    for seed, workflow in flows(0):
        run, script, rng = Reference(workflow), Script(workflow, seed), random.Random(seed)
        run.start()
        while flying := run.in_flight():
            for reader in (*workflow.by_id, ""):
                for target in workflow.by_id:
                    assert run.visible(reader, target).startswith(("value:", "absent")), seed
            act = rng.choice(flying)
            run.finish(act, script.outcome(act))


def test_documents_are_well_formed_and_reproducible() -> None:
    for seed in range(300):
        document = random_document(random.Random(seed), 1 + seed % 25)
        assert document == random_document(random.Random(seed), 1 + seed % 25)
        workflow = translate(document)
        assert decode_workflow(encode_workflow(workflow)) == workflow
        assert workflow.entries and workflow.terminals
        assert shape_of(workflow).well_formed(), seed


def shape_of(workflow: Workflow) -> Shape:
    shape = Shape(random.Random(0))
    shape.nodes = list(workflow.by_id)
    shape.edges = [(node.id, to) for node in workflow.nodes for to in node.outbound]
    shape.loops = {node.id: node.loop.back_to for node in workflow.nodes if node.loop is not None}
    shape.errors = {(node.id, to) for node in workflow.nodes for to in node.error_path if to not in ordinary(node)}
    return shape


def ordinary(node: object) -> set[str]:
    """Targets that something other than the error path names."""
    branch, loop = getattr(node, "branch", None), getattr(node, "loop", None)
    found: set[str] = set(getattr(node, "plain", ()))
    if branch is not None:
        found |= {to for rule in branch.rules for to in rule.next_nodes} | {*branch.available, *branch.default}
    if loop is not None:
        found |= {*loop.break_path, *loop.timeout_path}
    return found


def test_max_hops_may_depend_on_the_order() -> None:
    """The one known exception to the law that the status of a run does not."""
    ends = []
    for order in (("s", "t", "u", "c"), ("t", "u", "s", "c")):
        run = Reference(translate({"name": "t", "nodes": LONG_AND_SHORT, "limits": {"max_hops": 2}}))
        run.start()
        for at in order:
            run.finish(Activation(at, 1, -1, "call"), Done())
        ends.append(run.status)
    assert ends == ["COMPLETED", "FAILED"]


LONG_AND_SHORT = [
    {"id": "s", "type": "value", "config": None},
    {"id": "t", "type": "value", "config": None},
    {"id": "u", "type": "value", "config": None, "dependencies": ["t"]},
    {"id": "c", "type": "value", "config": None, "dependencies": ["s", "u"], "join": "any"},
]
