"""`init`, `watch` and `config`: begin a project, watch a run of another process, look at the settings."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import tidemill
from tests.fixtures.command_line import SECONDS_MAX, Conversation, InProcessCli, environment, on_terminal, process

SLOW = {
    "name": "slow",
    "nodes": [
        {"id": "first", "type": "value", "config": 1},
        {"id": "rest", "type": "signal", "config": {"name": "go"}, "dependencies": ["first"]},
    ],
}


# init


def test_a_new_project_runs_and_its_test_passes(tmp_path: Path) -> None:
    done = process("init", "shop", cwd=tmp_path)
    assert (done.code, done.err) == (0, "") and "tidemill run orders.yaml" in done.out
    shop = tmp_path / "shop"
    run = process("run", "orders.yaml", "--json", cwd=shop)
    assert run.json["outputs"] == {"report": "3 orders, 49 in all"}
    assert 'did you mean "day"?' in process("run", "orders.yaml", "-i", "dya=friday", cwd=shop).err
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py"],
        cwd=shop,
        env=environment(),
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert b"1 passed" in tested.stdout, tested.stdout.decode()


def test_a_large_day_asks_a_person(tmp_path: Path) -> None:
    assert process("init", ".", cwd=tmp_path).code == 0
    talk = Conversation("run", "orders.yaml", "-i", "day=friday", cwd=tmp_path)
    talk.expect("is that right?")
    talk.say("a")
    talk.expect("comment")
    talk.say("")
    code, text = talk.end()
    assert code == 0 and "2 orders, 125 in all" in text


def test_nothing_is_overwritten(inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks.py").write_text("mine")
    refused = inside("init")
    assert refused.code == 2 and "tasks.py" in refused.err and "file_exists" in refused.err
    assert (tmp_path / "tasks.py").read_text() == "mine" and os.listdir(tmp_path) == ["tasks.py"]
    (tmp_path / "file").touch()
    assert inside("init", "file/below").code == 2


def test_a_project_begins_in_a_repository(
    inside: InProcessCli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / ".gitignore").write_text("mine\n")
    begun = inside("init")
    assert (begun.code, "orders.yaml" in begun.out, ".gitignore" in begun.out) == (0, True, False)
    assert (tmp_path / ".gitignore").read_text() == "mine\n"


# watch


def test_a_run_of_another_process_is_watched_to_its_end(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with tidemill.open(url) as mill:
        mill.publish(SLOW)
        run_id = mill.start("slow")
        next(event for event in mill.follow(run_id) if event["type"] == "NodeWaiting")
        talk = Conversation("watch", run_id, "--store", url)
        talk.expect("rest")
        mill.signal(run_id, "go", {"answer": 42})
        code, text = talk.end()
        assert code == 0 and "first" in text and "42" in text
    ended = process("watch", run_id, "--store", url, "--json")
    assert (ended.code, ended.json["status"]) == (0, "COMPLETED")


def test_who_stops_watching_leaves_the_run_alone(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    with tidemill.open(url) as mill:
        mill.publish(SLOW)
        run_id = mill.start("slow")
        talk = Conversation("watch", run_id, "--store", url)
        talk.expect("rest")
        talk.interrupt()
        code, text = talk.end()
        assert code == 130 and f"run {run_id} continues" in text
        assert mill.show(run_id).status == "RUNNING"
        mill.cancel(run_id)
    code, text = on_terminal("watch", run_id, "--store", url)
    assert code == 1 and "cancelled" in text.lower()


def test_past_events_are_told_with_their_own_times_and_a_missing_worker_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    again = {"max_attempts": 2, "backoff_seconds": 0.2}
    failing = {
        "id": "pay",
        "type": "fail",
        "config": {"kind": "down", "message": "no", "retryable": True},
        "retry": again,
    }
    with tidemill.open(url) as mill:
        run_id = mill.run({"name": "payment", "nodes": [failing]}).run_id
    ended = process("watch", run_id, "--store", url)
    assert "attempt 1 failed: no [down] · retry in" in ended.out
    with tidemill.open(url, work=False) as mill:
        mill.retry(run_id)
    talk = Conversation("watch", run_id, "--store", url)
    talk.expect(f"◷ pay is queued: no worker is running · tidemill worker --store {url}")
    talk.interrupt()
    assert talk.end()[0] == 130


def test_a_run_that_is_not_there_cannot_be_watched(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/runs.db"
    tidemill.open(url).close()
    refused = process("watch", "nothing", "--store", url)
    assert refused.code == 2 and "run_unknown" in refused.err


# config


@pytest.fixture
def operator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a configuration file."""
    for name in [each for each in os.environ if each.startswith("TIDEMILL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    path = tmp_path / "tidemill" / "tidemill.toml"
    path.parent.mkdir()
    path.write_text(
        'imports = ["shop.tasks"]\nshell = true\n[databases]\ncrm = "postgresql://bob:hunter2@db/crm"\n'
        '[secrets.TOKEN]\norigins = ["https://crm.example"]\nworkflows = ["billing"]\n'
    )
    return path


def test_the_settings_in_force_are_shown_without_passwords(
    inside: InProcessCli, operator: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMILL_EGRESS_ALLOW", "10.0.0.0/8")
    monkeypatch.setenv("TIDEMILL_SECRET_TOKEN", "swordfish")
    shown = inside("config", "show", "--json").json
    assert (shown["file"], shown["imports"], shown["shell"]) == (str(operator), ["shop.tasks"], True)
    assert shown["egress"] == ["10.0.0.0/8"] and shown["limits.input_bytes"] == 1_048_576
    assert shown["secrets"] == {"TOKEN": {"origins": ["https://crm.example"], "workflows": ["billing"]}}
    assert shown["databases"] == {"crm": "postgresql://bob:***@db/crm"}
    assert shown["grants"] == (
        "imports shop.tasks · secrets TOKEN to https://crm.example · egress 10.0.0.0/8 · databases crm · commands on"
    )
    text = inside("config", "show")
    assert text.code == 0 and "shop.tasks" in text.out and "1,048,576" in text.out
    assert "TOKEN: origins: https://crm.example; workflows: billing" in text.out
    assert "crm: postgresql://bob:***@db/crm" in text.out
    assert not any(word in text.out + text.err for word in ("hunter2", "swordfish"))


def test_settings_are_checked(inside: InProcessCli, operator: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert inside("config", "check").out == f"✓ {operator}: no problems found\n"
    monkeypatch.setenv("TIDEMILL_SHEL", "on")
    checked = inside("config", "check")
    assert checked.code == 2 and "TIDEMILL_SHEL " in checked.err and "`TIDEMILL_SHELL`" in checked.err
    monkeypatch.delenv("TIDEMILL_SHEL")
    wrong = operator.with_name("wrong.toml")
    wrong.write_text("egres = []\nshell = 3\n")
    refused = inside("config", "check", str(wrong), "--json")
    assert refused.code == 2 and len(refused.json["problems"]) == 2
    assert inside("config", "check", "nothing.toml").code == 2
    assert inside("config", "show", "--config", str(wrong)).code == 2
