"""Twenty secrets of many shapes, and functions that say them where texts are cut."""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator

from tidemill.handlers.contract import NodeContext

CORE = 24
_SHAPES = (
    "{}",
    "two words {} more",
    'with "quotes" {}',
    "it's {}\\n",
    "ümlaut-{}-€",
    "first line\n{}\nlast line",
    "https://hooks.example/services/{}",
    "https://hooks.example/a/../b?key={}&more=1",
    "postgresql://user:{}@db.example/orders",
    "c2Vj/+{}==",
    "100%25{}",
    "{}\n",
    '{{"token": "{}"}}',
    "x" * 3_000 + "{}",
    "<b>{}</b>&amp;",
    "\t{}\t",
    " {} ",
    "--{}",
    "🔑{}",
    "{}" + "?" * 40,
)


def _core(number: int) -> str:
    return "".join(random.Random(number).choices("abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789", k=CORE))


CANARIES = {f"CANARY_{number}": shape.format(_core(number)) for number, shape in enumerate(_SHAPES)}


def pieces() -> Iterator[str]:
    """What must be nowhere: some eight characters of what is secret about one, of which half of it has one at least."""
    for number in range(len(_SHAPES)):
        core = _core(number)
        yield from (core[start : start + 8] for start in range(0, CORE - 7, 4))


def _middle(secret: str) -> int:
    core = next(core for core in map(_core, range(len(_SHAPES))) if core in secret)
    return secret.index(core) + CORE // 2


def across(secret: str, border: int) -> str:
    """A text of which the first characters are kept: the last of them is in the middle of the secret."""
    return "x" * (border - _middle(secret)) + secret + "y" * 4_000


def before(secret: str, border: int) -> str:
    """A text of which the last characters are kept."""
    return "x" * 4_000 + secret + "y" * (border - len(secret) + _middle(secret))


def say(context: NodeContext, name: str) -> int:
    """Say one of them in every way, where it is cut, or in two pieces."""
    secret = context.secrets[name]
    print(across(secret, 65_536))
    print(secret[: _middle(secret)], end="")
    print(secret[_middle(secret) :])
    sys.stdout.buffer.write(f"as bytes {secret}\n".encode())
    logging.getLogger("library").error(across(secret, 65_536))
    context.progress(0.5, across(secret, 1_000))
    context.stream(secret)
    return 1


def fail(context: NodeContext, name: str) -> None:
    """Raise what holds one of them where messages of errors and of their causes are cut."""
    secret = context.secrets[name]
    try:
        raise ValueError(across(secret, 500 - len("ValueError: ")))
    except ValueError as error:
        raise ValueError(across(secret, 2_000)) from error


def strange(context: NodeContext, name: str) -> None:
    """The same of the names of classes, and of tracebacks, of which the end is kept."""
    secret = context.secrets[name]
    raise type(across(secret, 100), (Exception,), {})(before(secret, 8_000))
