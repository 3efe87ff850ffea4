"""The lists of `docs/reference/python-api.md`, made from signatures and docstrings.

`python -m tests.docs.python_api` writes them into the page, between its two marks; `make docs` does so first.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import tidemill
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "python-api.md"
BEGIN = "<!-- Made by `make docs` from signatures and docstrings. -->"
END = "<!-- The end of what is made. -->"

VERBS = {
    "Publish, start, find": "publish start start_many run result find runs count resolve show register bulk close",
    "Look back": "events follow transcript logs follow_logs path tokens why why_node compare",
    "People and signals": "approvals approval decide delegate signal",
    "Repair": "pause resume cancel retry rewind override document patch fork rollback relabel",
    "Dead letters": "dead_letters dead_letter discard reprocess",
    "Workflows": "workflows workflow workflow_document patch_workflow versions diff delete_workflow "
    "tag untag tags tag_history rollback_tag",
    "Schedules": "create_schedule update_schedule schedules schedule schedule_times pause_schedule resume_schedule "
    "delete_schedule trigger_schedule",
    "Measure": "summary facets histogram failure_groups queues usage",
    "Files": "put_blob save_blob blob blobs collect_blobs",
    "Upkeep": "diagnose verify_log reindex archive_sweep archive_list archive_show archive_restore "
    "workers node_types concurrency_limits limit_concurrency unlimit_concurrency",
    "Tools of agents": "tools tool rename_tool pin_tool retire_tool",
    "Access": "create_key keys revoke_key create_tenant tenants disable_tenant enable_tenant audit verify_audit",
}
"""The headings, and the verbs below each; a verb that is under none of them is under `More verbs`."""
HIDDEN = {"self", "timeout_s", "reason=''", "actor=''", "command_id=None", "visit=None", "index=None", "terms=()"}
HIDDEN |= {"author=''", "message=''", "comments=''", "after=None", "limit=50", "on_progress=None", "on_finding=None"}
HIDDEN |= {"submitted_by=''", "correlation_id=''"}
"""Parameters that callers do not pass, that have another spelling, or that the page explains once for all verbs."""
LIKE_ANOTHER = {"aopen", "count", "runs", "update_schedule"}
"""Functions that take the arguments of `open`, `find` and `create_schedule`."""
FIELDS_SHOWN = {"Approval", "ApprovalRequest", "ChildRun", "Done", "LogLine", "Problem", "Published"}
FIELDS_SHOWN |= {"RunPage", "RunRow", "Skip", "Wait"}
"""Types that callers make or take apart in most programs; of the others the editor knows the fields."""
SHOWN_DEFAULT_MAX = 20
SHOWN_WORDS_MIN = 5


class _Default:
    """A default as a signature shows it."""

    def __init__(self, value: object) -> None:
        text = repr(value)
        self.text = "…" if text.startswith("<") or len(text) > SHOWN_DEFAULT_MAX else text

    def __repr__(self) -> str:
        return self.text


def public_verbs() -> list[str]:
    return [name for name, each in vars(tidemill.Tidemill).items() if callable(each) and not name.startswith("_")]


def _signature(function: Callable[..., Any]) -> str:
    empty = inspect.Parameter.empty
    given = [
        each.replace(annotation=empty, default=empty if each.default is empty else _Default(each.default))
        for each in inspect.signature(function).parameters.values()
    ]
    return str(inspect.Signature([each for each in given if each.name not in HIDDEN and str(each) not in HIDDEN]))


def summary(thing: Any) -> str:
    """The first line of a docstring."""
    return (thing.__doc__ or "").strip().partition("\n")[0]


def _short(thing: Any) -> str:
    """The first clause of a docstring, unless it is short."""
    clause = re.split(r"(?<=\w)[.;] ", summary(thing))[0].rstrip(".")
    return clause if len(clause.split()) >= SHOWN_WORDS_MIN else summary(thing).rstrip(".")


def _calls(owner: Any, names: list[str]) -> Iterator[str]:
    for name in names:
        function = getattr(owner, name)
        yield f"- `{name}{'(…)' if name in LIKE_ANOTHER else _signature(function)}`: {_short(function)}"


def _signatures(names: list[str]) -> Iterator[str]:
    """Functions that a page explains with examples."""
    yield "[Write workflows in Python](../how-to/write-workflows-in-python.md) explains them.\n"
    for name in names:
        yield f"- `{name}{_signature(getattr(tidemill, name))}`"


def _types(names: list[str]) -> Iterator[str]:
    """Each type with its fields, or else the first clause of its docstring."""
    for name in names:
        kind = getattr(tidemill, name)
        fields = [f"`{each}`" for each in _fields(kind) if each != "v"] if name in FIELDS_SHOWN else []
        if fields or not _fields(kind):
            yield f"- `{name}`: {', '.join(fields) or _short(kind)}"
    if any(_fields(getattr(tidemill, name)) for name in names):
        yield "- All others are rows, views and reports that methods return; editors know their fields."


def _fields(kind: type) -> tuple[str, ...]:
    found = [getattr(kind, name, ()) for name in ("__struct_fields__", "_fields", "__dataclass_fields__")]
    return next((tuple(each) for each in found if each), ())


def lists() -> str:
    """Everything between the marks."""
    verbs = {heading: names.split() for heading, names in VERBS.items()}
    named = {name for names in verbs.values() for name in names}
    verbs["More verbs"] = [name for name in public_verbs() if name not in named]
    parts = [(heading, _calls(tidemill.Tidemill, names)) for heading, names in verbs.items() if names]
    public = {name: getattr(tidemill, name) for name in sorted([*tidemill.__all__, "open"]) if name != "__version__"}
    functions = [name for name, each in public.items() if inspect.isfunction(each)]
    authoring = [name for name in functions if public[name].__module__.startswith("tidemill.authoring")]
    kinds = [name for name, each in public.items() if inspect.isclass(each)]
    errors = [name for name in kinds if issubclass(public[name], BaseException)]
    parts += [
        ("Functions", _calls(tidemill, [name for name in functions if name not in authoring])),
        ("Workflow functions", _signatures(authoring)),
        ("Exceptions", _types(errors)),
        ("Types", _types([name for name in kinds if name not in errors])),
    ]
    return "\n\n".join("\n".join([f"## {heading}\n", *lines]) for heading, lines in parts)


def with_lists(text: str) -> str:
    """The page with its lists made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{lists()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_lists(PAGE.read_text()))
