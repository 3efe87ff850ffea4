"""The kernel agrees with the reference model, step by step."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.kernel.lockstep import play_seed

BATCHES = 16
SEEDS_PER_BATCH = 125


@pytest.mark.parametrize("batch", range(BATCHES))
def test_kernel_and_reference_agree(batch: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * SEEDS_PER_BATCH, (batch + 1) * SEEDS_PER_BATCH):
        try:
            pair = play_seed(seed)
        except AssertionError as error:
            raise AssertionError(
                f"seed {seed}: {error} (replay: python -c 'from tests.kernel.lockstep import *; play_seed({seed})')"
            ) from error
        seen.update(type(event).__name__ for event in pair.kernel.events)
    assert {"NodeCompleted", "NodeSkipped", "NodeFailed", "LoopContinued", "NodeExpanded", "NodeWaiting"} <= set(seen)
