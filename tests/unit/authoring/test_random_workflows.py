"""Random workflow functions do what the same program does in plain Python: blocks, loops, handled errors, defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Any

import pytest

import tidemill

PROGRAMS = 60
DEPTH_MAX = 3
MISSING = "missing"


@tidemill.task
def add(values: list[int], more: int) -> int:
    return sum(values) + more


@tidemill.task(retries=0)
def risky(values: list[int], more: int) -> int:
    result = sum(values) + more
    if result % 3 == 0:
        raise tidemill.Fail("three", f"{result} is divisible by three")
    return result


@dataclass
class Call:
    name: str
    fails: bool
    uses: list[tuple[str, bool]]
    """Values, and whether each has a default."""
    more: int
    handler: list[Statement] = field(default_factory=list)


@dataclass
class When:
    value: str
    least: int
    body: list[Statement]
    otherwise: list[Statement]


@dataclass
class Repeat:
    passes: int
    body: list[Statement]


Statement = Call | When | Repeat


class Generator:
    """Writes programs; `known` are the values so far with the blocks that they are in."""

    def __init__(self, random: Random) -> None:
        self.random, self.count = random, 0
        self.known: list[tuple[str, tuple[int, ...]]] = []

    def number(self) -> int:
        self.count += 1
        return self.count

    def block(self, depth: int, place: tuple[int, ...], failed: tuple[str, ...] = ()) -> list[Statement]:
        return [self.statement(depth, place, failed) for _ in range(self.random.randint(1, 4))]

    def statement(self, depth: int, place: tuple[int, ...], failed: tuple[str, ...]) -> Statement:
        kind = self.random.random()
        sure = [name for name, at in self.known if place[: len(at)] == at and name not in failed]
        if depth < DEPTH_MAX and kind < 0.3 and sure:
            value, least = self.random.choice(sure), self.random.randint(0, 12)
            body = self.block(depth + 1, (*place, self.number()), failed)
            other = self.block(depth + 1, (*place, self.number()), failed) if self.random.random() < 0.6 else []
            return When(value, least, body, other)
        if depth < DEPTH_MAX and 0.3 <= kind < 0.42:
            return Repeat(self.random.randint(0, 2), self.block(depth + 1, place, failed))
        chosen = self.random.sample(self.known, min(len(self.known), self.random.randint(0, 3)))
        uses = [(name, name not in sure or self.random.random() < 0.2) for name, _ in chosen]
        call = Call(f"v{self.number()}", kind > 0.85, uses, self.random.randint(0, 5))
        self.known.append((call.name, place))
        if call.fails:
            call.handler = self.block(max(depth + 1, 2), (*place, self.number()), (*failed, call.name))
        return call


def build(program: list[Statement], values: dict[str, Any]) -> None:
    """Call tasks in a workflow function."""
    for each in program:
        match each:
            case When(value, least, body, other):
                with tidemill.when(values[value] > least):
                    build(body, values)
                if other:
                    with tidemill.otherwise():
                        build(other, values)
            case Repeat(passes, body):
                with tidemill.loop(max_iterations=5) as again:
                    build(body, values)
                    again.repeat_while(f"iteration < {passes}")
            case Call(name, fails, uses, more, handler):
                given = [tidemill.default(values[used], 0) if has else values[used] for used, has in uses]
                values[name] = (risky if fails else add)(given, more)
                if handler:
                    with tidemill.on_error(values[name]):
                        build(handler, values)


def expect(program: list[Statement], values: dict[str, Any], alive: bool = True) -> None:
    """The same in plain Python; a value is missing where its task does not run, or fails."""
    for each in program:
        match each:
            case When(value, least, body, other):
                runs = alive and values[value] != MISSING
                expect(body, values, runs and values[value] > least)
                expect(other, values, runs and values[value] <= least)
            case Repeat(_, body):
                expect(body, values, alive)
            case Call(name, fails, uses, more, handler):
                runs = alive and all(has or values[used] != MISSING for used, has in uses)
                result = sum(0 if values[used] == MISSING else values[used] for used, _ in uses) + more if runs else 0
                failed = runs and fails and result % 3 == 0
                values[name] = result if runs and not failed else MISSING
                expect(handler, values, failed)


def names(program: list[Statement]) -> Iterator[str]:
    for each in program:
        match each:
            case When(_, _, body, other):
                yield from (*names(body), *names(other))
            case Repeat(_, body):
                yield from names(body)
            case Call(name, _, _, _, handler):
                yield from (name, *names(handler))


@pytest.mark.parametrize("part", range(4))
def test_programs_do_what_plain_python_does(part: int) -> None:
    with tidemill.open("memory://") as mill:
        for seed in range(part, PROGRAMS, 4):
            program = Generator(Random(seed)).block(0, ())

            def described() -> Any:
                values: dict[str, Any] = {}
                build(program, values)  # noqa: B023 - built before the next one
                return {name: tidemill.default(values[name], MISSING) for name in names(program)}  # noqa: B023

            run = mill.run(tidemill.workflow(name=f"random-{seed}")(described))
            expected: dict[str, Any] = {}
            expect(program, expected)
            assert run.error is None, (seed, run.error)
            assert run.outputs == expected, seed
