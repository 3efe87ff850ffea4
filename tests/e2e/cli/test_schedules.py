"""`tidemill schedules`, as people and programs use it."""

from __future__ import annotations

import json
from itertools import pairwise

from tests.fixtures.cli_store import CliStore

EVERY = ("schedules", "create", "often", "plain", "--every", "15m")


def published(cli_store: CliStore) -> CliStore:
    cli_store.mill.publish({"name": "plain", "nodes": [{"id": "a", "type": "value", "config": 1}]})
    return cli_store


def test_a_schedule_from_creation_to_deletion(cli_store: CliStore) -> None:
    cli = published(cli_store)
    made = cli(*EVERY, "-i", "n=1", "-l", "team=a", "--description", "for the board")
    assert made.code == 0
    assert "schedule often is active, due in 15 min" in made.out
    listed = cli("schedules", "list").out
    assert "often" in listed and "every 15m" in listed and "for the board" in listed
    shown = cli("schedules", "show", "often").out
    assert "team=a" in shown and "label.schedule=often" in shown
    assert len(json.loads(cli("schedules", "show", "often", "--json").out)["next_times"]) == 5
    times = json.loads(cli("schedules", "next", "often", "--count", "3", "--json").out)["times_ms"]
    assert [later - earlier for earlier, later in pairwise(times)] == [900_000] * 2
    assert "paused" in cli("schedules", "pause", "often", "--reason", "why not").out
    assert "no next time" in cli("schedules", "next", "often").out
    assert "active, due" in cli("schedules", "resume", "often").out
    run_id = cli("schedules", "trigger", "often").out.strip()
    assert cli_store.mill.show(run_id).labels["schedule"] == "often"
    assert json.loads(cli("schedules", "list", "--json").out)["schedules"][0]["runs"] == 1
    assert "deleted" in cli("schedules", "delete", "often").out
    assert "no schedules" in cli("schedules", "list").out


def test_a_schedule_is_changed_where_something_is_given(cli_store: CliStore) -> None:
    cli = published(cli_store)
    assert cli(*EVERY, "-i", "n=1", "--jitter", "1m", "--description", "for the board").code == 0
    changed = cli("schedules", "update", "often", "--cron", "0 6 * * *", "--tz", "Asia/Tokyo", "--jitter", "none")
    assert changed.code == 0 and "schedule often is active, due" in changed.out
    shown = json.loads(cli("schedules", "show", "often", "--json").out)
    assert (shown["cron"], shown["every_ms"], shown["timezone"], shown["jitter_ms"]) == (
        "0 6 * * *",
        0,
        "Asia/Tokyo",
        0,
    )
    assert (shown["inputs"], shown["description"]) == ({"n": 1}, "for the board")
    refused = cli("schedules", "update", "often", "--cron", "never", "--overlap", "maybe")
    assert refused.code == 2 and "never" in refused.err


def test_local_times_are_shown_beside_utc(cli_store: CliStore) -> None:
    cli = published(cli_store)
    assert cli("schedules", "create", "early", "plain", "--cron", "0 6 * * *", "--tz", "Asia/Tokyo").code == 0
    first = cli("schedules", "next", "early", "--count", "1").out.splitlines()[1]
    assert "T21:00:00Z" in first and "06:00+09:00" in first


def test_bad_input_is_refused_with_every_problem(cli_store: CliStore) -> None:
    cli = published(cli_store)
    refused = cli("schedules", "create", "Bad", "plian", "--cron", "1 2 3", "--tz", "Mars", "--overlap", "no", "--json")
    assert refused.code == 2
    problems = json.loads(refused.out)["problems"]
    assert {each["path"] for each in problems} == {"/name", "/workflow", "/cron", "/timezone", "/overlap"}
    assert all(each["hint"] for each in problems)
    unknown = cli("schedules", "show", "oftn")
    assert unknown.code == 2 and "schedule_unknown" in unknown.err + unknown.out
    assert cli("schedules", "create", "often", "plain").code == 2
