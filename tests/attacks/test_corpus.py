"""Every attack ends as it must: no escape, no hang, no lost process, and nothing of the bait in what is said."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.attacks.attack import Attack, Failed, Gives
from tests.attacks.attack_runner import PATIENCE_MS, Report
from tests.attacks.corpora import CORPORA
from tests.attacks.scene import SCENE

ATTACKS_MIN = 300
WHOLE_SECONDS_MAX = 250
TEMPLATE_MS_MAX = 6000
CONDITION_MS_MAX = PATIENCE_MS + 5000
BLOCKED_MS_MAX = 3000
"""For a condition. A template may take a second by its own rules, and is looked at only between its steps."""

GROWTH_MB_MAX = 100
VARIABLE = "TIDEMILL_SECRET_BAIT"


@dataclass
class Canary:
    """What the attacks are after."""

    file: Path
    url: str
    secrets: tuple[str, ...]
    hits: list[str] = field(default_factory=list)


@pytest.fixture
def bait(tmp_path: Path) -> Iterator[Canary]:
    file = tmp_path / "secret.json"
    file.write_text('"canary-in-a-file"')
    hits: list[str] = []

    class Recorder(BaseHTTPRequestHandler):
        def handle(self) -> None:
            hits.append(str(self.client_address))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    secrets = ("canary-in-a-file", "canary-in-the-environment", *SCENE.secrets.values())
    yield Canary(file, f"http://127.0.0.1:{server.server_port}/schema.json", secrets, hits)
    server.shutdown()
    server.server_close()


@dataclass
class AttackReport:
    """What came of a volley of attacks."""

    reports: dict[str, Report]
    unfinished: str | None
    status: int
    said: str


def carried_out(volley: str, bait: Canary) -> AttackReport:
    command = [sys.executable, "-m", "tests.attacks.attack_runner", volley, str(bait.file), VARIABLE, bait.url]
    environment = {**os.environ, VARIABLE: "canary-in-the-environment"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
    )
    try:
        out, said = process.communicate(timeout=WHOLE_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, said = process.communicate()
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
    lines = [json.loads(line) for line in out.splitlines()]
    reports = {line["name"]: Report(**line) for line in lines if "name" in line}
    begun = [line["began"] for line in lines if "began" in line]
    return AttackReport(reports, next((name for name in begun if name not in reports), None), process.returncode, said)


def complaints(attack: Attack, report: Report, bait: Canary, is_template: bool) -> Iterator[str]:
    """Say what is wrong with the end of an attack."""
    wanted = type(attack.ending).__name__.lower()
    if report.ending == "gives" and isinstance(attack.ending, Failed) and attack.ending.unless_quick:
        pass
    elif report.ending != wanted:
        yield f"ended as {report.ending!r} instead of {wanted!r}: {report.told or report.value}"
    elif isinstance(attack.ending, Gives):
        if json.dumps(report.value) != json.dumps(attack.ending.value):
            yield f"gave {report.value!r} instead of {attack.ending.value!r}"
    elif report.code != attack.ending.code or attack.ending.words not in "".join(report.told):
        yield f"failed in other words: {report.told}"
    said = json.dumps([report.told, report.value])
    yield from (f"revealed {secret}" for secret in bait.secrets if secret in said)
    if report.ms > (TEMPLATE_MS_MAX if is_template else CONDITION_MS_MAX):
        yield f"took {report.ms:.0f} ms"
    if not is_template and report.blocked_ms > BLOCKED_MS_MAX:
        yield f"held the process up for {report.blocked_ms:.0f} ms"


def test_there_are_enough_of_them() -> None:
    assert sum(map(len, CORPORA.values())) >= ATTACKS_MIN
    for attacks in CORPORA.values():
        assert len({attack.name for attack in attacks}) == len(attacks)


@pytest.mark.parametrize("volley", CORPORA)
def test_no_attack_succeeds(volley: str, bait: Canary) -> None:
    outcome = carried_out(volley, bait)
    assert outcome.unfinished is None, f"{outcome.unfinished} never ended: {outcome.status} {outcome.said[-2000:]}"
    assert (outcome.status, outcome.said) == (0, "")
    wrong = [
        f"{attack.name}: {complaint}\n    {ascii(attack.source)[:300]}"
        for attack in CORPORA[volley]
        for complaint in complaints(attack, outcome.reports[attack.name], bait, volley.startswith("template"))
    ]
    assert not wrong, "\n".join(wrong)
    assert bait.hits == []
    assert sorted(bait.file.parent.iterdir()) == [bait.file]
    sizes_mb = [report.resident_mb for report in outcome.reports.values()]
    assert max(sizes_mb) - sizes_mb[0] < GROWTH_MB_MAX
