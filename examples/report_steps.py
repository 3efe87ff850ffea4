"""The steps of report.yaml."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import pairwise


def primes(below: int) -> Iterator[str]:
    for number in range(2, below):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            yield f"{number} "


def longest_gap(text: str) -> int:
    return max(later - earlier for earlier, later in pairwise(map(int, text.split())))


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
