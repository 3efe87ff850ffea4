"""Figures of others, for scale. They were measured elsewhere, on a machine of the same kind (two cores, a local disk
with quick syncs), and no command here measures them again. The last ones are targets from papers."""

from __future__ import annotations

from benches.figures import Note

MANY_RUNS = (
    Note("for scale, W3 elsewhere on such a machine, in nodes/s:"),
    Note("  DBOS 170–230 · Celery canvas 313 · Restate 352 · LangGraph with checkpoints 464"),
)
HOP = (Note("for scale, elsewhere on such a machine: the best durable hop of a peer is 2.0 ms"),)


def beside_paper(runs_per_minute: float, hop_ms: float) -> Note:
    """Our figures beside those that were on paper before there was any code."""
    return Note(
        f"on paper 60–100 thousand runs/min and 5–10 ms per hop;"
        f" measured {runs_per_minute / 1000:,.0f} thousand runs/min (W3) and {hop_ms:.2f} ms per hop (W1)"
    )
