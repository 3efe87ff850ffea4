"""How slow this machine is right now, so that limits on processor time hold on a loaded or an old one."""

from __future__ import annotations

import time

IDLE_SECONDS = 0.010
"""Processor time of the work below on an idle machine of 2024."""
MARGIN = 2.0


def allowed(seconds: float) -> float:
    """A limit of an idle machine as one of this machine, measured now: neighbours cost caches and clock rates."""
    began = time.thread_time()
    sum(number * number % 7 for number in range(150_000))
    return seconds * MARGIN * max(1.0, (time.thread_time() - began) / IDLE_SECONDS)
