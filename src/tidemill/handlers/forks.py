"""What becomes of a copy of this process that foreign code makes with `os.fork` and lets run on: it ends.

A copy has the loop, the store's files and the sockets of the process it was made of, and would do all of its work a
second time. Code that forks and looks after its copy itself, as `multiprocessing` does, is not touched: the copy is
ended where it comes back from the foreign code.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Generator
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")

FORKED_STATUS = 70
"""How a copy ends."""


def end_copy(home: int) -> None:
    """End this process at once, unless it is the one with the number `home`."""
    if os.getpid() != home:
        os._exit(FORKED_STATUS)


@coroutine
def at_home(pending: Awaitable[T]) -> Generator[Any, None, T]:
    """Await something step by step, and look after each step whether this is still the same process."""
    home, steps = os.getpid(), pending.__await__()
    thrown: BaseException | None = None
    while True:
        try:
            step = next(steps) if thrown is None else steps.throw(thrown)
        except StopIteration as end:
            value: T = end.value
            return value
        finally:
            end_copy(home)
        try:
            thrown = None
            yield step
        except BaseException as error:
            thrown = error
