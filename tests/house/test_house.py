"""The repository keeps the house rules."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from functools import cache
from itertools import chain
from pathlib import Path

from tests import run
from tests.house import rules

ROOT = Path(__file__).resolve().parents[2]


@cache
def texts() -> dict[str, str]:
    """Every text file git would carry, by its path from the root."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    found = {}
    for name in filter(None, names):
        data = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b"\0"
        if b"\0" not in data:
            found[name] = data.decode()
    return found


def python(folder: str) -> dict[str, str]:
    found = {name: text for name, text in texts().items() if name.startswith(f"{folder}/") and name.endswith(".py")}
    assert found, f"no Python below {folder}"
    return found


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    return {name: ast.parse(text, name) for name, text in python(folder).items()}


def assert_none(complaints: Iterable[list[str]]) -> None:
    found = list(chain.from_iterable(complaints))
    assert not found, "\n" + "\n".join(found)


def test_no_source_file_is_too_long() -> None:
    assert_none(rules.too_long(name, text) for name, text in python("src").items())


def test_no_folder_is_crowded() -> None:
    assert_none([rules.crowded_folders(python("src"))])


def test_files_and_classes_have_names_of_the_field() -> None:
    stems = (rules.banned_stems(name) for name in python("src"))
    assert_none(chain(stems, (rules.banned_classes(name, tree) for name, tree in trees("src").items())))


def test_texts_name_the_actor() -> None:
    assert_none(rules.vague_words(name, text) for name, text in python("src").items())


def test_pages_for_users_name_the_actor() -> None:
    pages = re.compile(r"README\.md|docs/(?!decisions/|testing|reliability).*\.md")
    assert_none(rules.vague_prose(name, text) for name, text in texts().items() if pages.fullmatch(name))


def test_a_stem_in_two_rooms_is_on_the_list() -> None:
    assert_none([rules.doubled_stems(python("src"))])


def test_no_small_file_serves_one_other_alone() -> None:
    assert_none([rules.lonely_files(python("src"), trees("src"))])


def test_the_source_stays_small() -> None:
    """Fewer, deeper modules; what is added is paid for by what it replaces."""
    modules = [name for name in python("src") if not name.endswith("__init__.py")]
    assert len(modules) <= 356


def test_no_function_is_too_long() -> None:
    assert_none(rules.long_functions(name, tree) for name, tree in trees("src").items())


def test_every_file_name_says_something() -> None:
    assert_none(rules.vague_names(name) for name in texts() if name.startswith("src/"))


def test_every_module_explains_itself() -> None:
    assert_none(rules.missing_docstring(name, tree) for name, tree in trees("src").items())


def test_nothing_is_left_for_later() -> None:
    assert_none(rules.leftovers(name, text) for name, text in texts().items() if name.startswith("src/"))


def test_text_never_becomes_code() -> None:
    assert_none(rules.dynamic_code(name, tree) for name, tree in trees("src").items())


def test_one_fetcher_makes_all_calls() -> None:
    assert_none(rules.http_clients(name, tree) for name, tree in trees("src").items())


def test_no_file_knows_this_machine() -> None:
    assert_none(rules.addresses(name, text) for name, text in texts().items())


def test_every_test_can_fail() -> None:
    assert_none([rules.idle_tests(trees("tests"))])


def test_every_test_runs() -> None:
    assert_none(rules.skipping(name, tree) for name, tree in trees("tests").items())


def test_every_test_file_belongs_to_one_suite() -> None:
    paths = [path for suite in run.read_suites(run.BUDGET.read_text()) for path in suite.paths]
    assert_none(
        [f"{name}: {owners} suites"]
        for name in python("tests")
        if re.fullmatch(r"(test_\w+|\w+_test)\.py", Path(name).name)
        and (owners := sum(name == path or name.startswith(f"{path}/") for path in paths)) != 1
    )


def test_every_locked_package_has_a_hash() -> None:
    locked = (ROOT / "requirements" / "dev.txt").read_text()
    entries = re.findall(r"^[a-z].*(?:\n {4}--hash=sha256:[0-9a-f]{64}.*)+", locked, re.MULTILINE)
    assert len(entries) == len(re.findall(r"^[^\s#]", locked, re.MULTILINE)) > 0
    assert all("==" in entry.splitlines()[0] for entry in entries)
