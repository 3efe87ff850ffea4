"""How acts on runs are carried out and told: what was done, and how the run stands afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tidemill.cli.asking import Asking
from tidemill.cli.verdicts import say
from tidemill.front import Tidemill


def act(asking: Asking, run_id: str, done: str, do: Callable[[Tidemill], object]) -> int:
    """Carry out an act on a run, and tell how it stands now."""

    def ask(mill: Tidemill) -> dict[str, Any]:
        do(mill)
        view = mill.show(run_id)
        return {"run_id": run_id, "done": done, "status": view.status, "events": view.events}

    return asking.answer(ask, lambda after: say(f"{done}; run {run_id} is {after['status']}"))
