"""Tables that repeat the code say what the code says, and nothing else."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from pathlib import PurePosixPath
from types import FunctionType
from typing import get_args

from tests.docs import http_api
from tests.docs.listings import document_keys, error_codes, law_names, modules, setting_keys, setting_variables
from tests.docs.pages import Page, codes_of, read_page, rows_of
from tests.docs.python_api import public_verbs, summary, with_lists
from tests.simulation.faults import FAULTS
from tidemill import Tidemill
from tidemill.expressions.scope import RESERVED
from tidemill.expressions.templates.environment import environment
from tidemill.handlers.contract import NodeContext
from tidemill.kernel.document.fields import TYPE_SPELLINGS
from tidemill.kernel.events import AnyEvent, Ending, Event, NodeEvent
from tidemill.settings import OF_TESTS, PREFIXES, VARIABLES
from tidemill.stores.contract import Commit, Store


def column(page: Page, number: int, heading: str = "") -> list[str]:
    """Everything set as code in one column of the page's tables."""
    rows = rows_of(page.text, heading)
    return [code for row in rows if len(row) > number for code in codes_of(row[number])]


def test_the_architecture_lists_every_module_once() -> None:
    rows = rows_of(read_page("docs/architecture.md").text, "## Rooms")[1:]
    listed = Counter(
        (PurePosixPath(folder) / f"{module}.py").as_posix()
        for row in rows
        for folder in codes_of(row[0])
        for module in codes_of(row[1])
    )
    assert set(listed) == {name for name in modules() if name == "__init__.py" or not name.endswith("__init__.py")}
    assert max(listed.values()) == 1


def test_the_walks_of_the_architecture_name_modules_and_stay_short() -> None:
    walks = read_page("docs/architecture.md").text.partition("## Two walks")[2].partition("\n## ")[0]
    completion, _, patch = walks.partition("**`tidemill runs patch RUN`.**")
    for text, count, most in ((completion, 15, 15), (patch, 24, 24)):
        listed = re.findall(r"`([a-z_/]+)`", text.partition(f"({count}):")[2].partition(". ")[0])
        assert len(listed) == count <= most
        assert {f"{name}.py" for name in listed} <= modules()


def test_the_architecture_lists_every_verb_of_a_store() -> None:
    page = read_page("docs/architecture.md")
    verbs = {name for name, value in vars(Store).items() if inspect.isfunction(value) and not name.startswith("_")}
    text = page.text.partition("## The store contract")[2].partition("A `Commit` is")[0]
    assert {code for row in rows_of(text)[1:] for code in codes_of(row[0])} == verbs


def test_the_architecture_lists_every_field_of_a_commit() -> None:
    text = read_page("docs/architecture.md").text.partition("A `Commit` is")[2].partition("## ")[0]
    assert {code for row in rows_of(text) for code in codes_of(row[1])} == set(Commit.__struct_fields__)


def test_every_error_code_is_listed_once_and_exists() -> None:
    """One line of a list, or one row of a table, for each."""
    text = read_page("docs/reference/errors.md").text
    listed = Counter(re.findall(r"^(?:-|\|) `(\w+)`", text, re.MULTILINE))
    assert set(listed) == error_codes()
    assert max(listed.values()) == 1
    assert len(listed) > 80


def test_every_setting_is_listed_once() -> None:
    """Each key of the operator's file and each variable of the source, and nothing else."""
    page = read_page("docs/reference/configuration.md")
    keys = Counter(code.strip("[]") for code in column(page, 0, "## Keys and variables") if "TIDEMILL" not in code)
    assert keys - Counter(["tidemill.toml"]) == Counter(setting_keys())
    variables = {code for number in (0, 1) for code in column(page, number) if code.startswith("TIDEMILL_")}
    assert variables == setting_variables()
    known = {f"{word}NAME" if word.endswith("_") else word for word in (*VARIABLES, *PREFIXES, *OF_TESTS)}
    assert variables == known, "one that is not known is refused"


def test_every_event_is_listed_with_its_own_fields() -> None:
    page = read_page("docs/concepts/events.md")
    kinds = {kind.__name__: kind for kind in get_args(AnyEvent)}
    titles = ("a run", "a node", "people, signals and children", "operators")
    rows = [row for title in titles for row in rows_of(page.text, f"## Events of {title}")[1:]]
    assert sorted(codes_of(row[0])[0] for row in rows) == sorted(kinds)
    for name, fields, _ in rows:
        kind = kinds[name.strip("`")]
        inherited = next(base for base in (Ending, NodeEvent, Event) if issubclass(kind, base))
        own = [field for field in kind.__struct_fields__ if field not in inherited.__struct_fields__]
        assert codes_of(fields) == own, name


def test_the_fields_of_all_events_are_listed() -> None:
    listed = column(read_page("docs/concepts/events.md"), 0, "## What every event has")
    ending = [field for field in Ending.__struct_fields__ if field not in NodeEvent.__struct_fields__]
    assert listed == [*Event.__struct_fields__, *ending]


def test_every_law_is_listed_once() -> None:
    listed = Counter(column(read_page("docs/concepts/events.md"), 0, "## Laws"))
    assert listed == Counter(law_names())


def test_every_key_of_a_document_is_explained() -> None:
    text = " ".join(" ".join(row) for row in rows_of(read_page("docs/concepts/documents.md").text))
    words = {word for code in codes_of(text) for word in code.replace("{", " ").replace(":", " ").split()}
    assert document_keys() - words == set()
    assert set(TYPE_SPELLINGS) - words == set()
    assert words >= RESERVED


def test_every_filter_is_listed_and_exists() -> None:
    listed = [code.partition("(")[0] for code in column(read_page("docs/reference/templates.md"), 0, "## Filters")]
    assert Counter(listed) == Counter([name for name in environment().filters if " " not in name])


def test_every_fault_of_the_simulator_is_listed() -> None:
    assert Counter(column(read_page("docs/testing.md"), 1, "## Simulation")) == Counter(FAULTS)


def test_the_context_of_a_function_is_listed() -> None:
    rows = rows_of(read_page("docs/nodes/python.md").text, "## The context")
    listed = {code for row in rows if len(row) == 2 for code in codes_of(row[0])}
    members = {name for name, each in vars(NodeContext).items() if isinstance(each, (property, FunctionType))}
    fields = {*NodeContext.__slots__, *members} - {"given", "voice"}
    assert listed == {name for name in fields if not name.startswith("_")}


def test_the_python_reference_is_made_of_docstrings() -> None:
    text = read_page("docs/reference/python-api.md").text
    assert text == with_lists(text), "`make docs` makes its lists"
    assert [name for name in public_verbs() if not summary(getattr(Tidemill, name))] == []


def test_the_http_reference_is_made_from_the_openapi_document() -> None:
    text = http_api.PAGE.read_text()
    assert http_api.with_tables(text) == text, "run `python -m tests.docs.http_api`"
    paths = http_api.document()["paths"]
    assert all(f"{path.removeprefix(http_api.PREFIX)}`" in text for path in paths)
