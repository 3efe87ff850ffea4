"""The lists of `docs/reference/python-api.md`, made from signatures and docstrings.

`python -m tests.docs.python_api` writes them into the page, between its two marks; `make docs` does so first.
"""

from __future__ import annotations

import inspect
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
    "Workflows": "workflows workflow workflow_document patch_workflow versions diff tag untag tags tag_history",
    "Files": "put_blob save_blob blob blobs collect_blobs",
    "Upkeep": "diagnose verify_log reindex archive_sweep archive_list archive_show archive_restore "
    "workers node_types concurrency_limits limit_concurrency unlimit_concurrency",
    "Tools of agents": "tools tool rename_tool pin_tool retire_tool",
    "Access": "create_key keys revoke_key create_tenant tenants disable_tenant enable_tenant audit verify_audit",
}
"""The headings, and the verbs below each; a verb that is under none of them is under `More verbs`."""
HIDDEN = {"self", "timeout_s", "reason=''", "actor=''", "command_id=None", "visit=None", "index=None", "terms=()"}
"""Parameters that callers do not pass, that have another spelling, or that the page explains once for all verbs."""
DESCRIBED = {"Capabilities", "Handler", "NodeContext", "NodeType", "Settings"}
"""Types whose fields have a page of their own."""
SHOWN_DEFAULT_MAX = 20


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


def _calls(owner: Any, names: list[str]) -> Iterator[str]:
    for name in names:
        function = getattr(owner, name)
        yield f"- `{name}{_signature(function)}`: {summary(function)}"


def _types(names: list[str]) -> Iterator[str]:
    """Each type with its fields, or else the first line of its docstring."""
    for name in names:
        kind = getattr(tidemill, name)
        fields = [] if name in DESCRIBED else [f"`{each}`" for each in _fields(kind) if each != "v"]
        yield f"- `{name}`: {', '.join(fields) or summary(kind)}"


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
        ("Workflow functions", _calls(tidemill, authoring)),
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
