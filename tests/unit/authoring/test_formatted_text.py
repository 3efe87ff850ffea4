"""Text of results may be joined with text; whatever Python computes with it is refused, and gets into no document."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import html
import json
import shlex
import string
import textwrap
import urllib.parse
from collections.abc import Callable
from typing import Any

import pydantic
import pytest

import tidemill


@tidemill.task
def word(s: str) -> str:
    return s


@tidemill.task
def take(x: Any) -> Any:
    return x


@dataclasses.dataclass
class Note:
    text: str


class Card(pydantic.BaseModel):
    text: str


def document(returned: Callable[[Any], Any]) -> dict[str, Any]:
    def flow(s: str) -> Any:
        return returned(s)

    return tidemill.workflow(flow).document()


COMPUTED: dict[str, Callable[[Any], Any]] = {
    "compared": lambda s: take("A" if str(word(s)) == "yes" else "B"),
    "compared from the right": lambda s: take("A" if f"{word(s)}" != "yes" else "B"),
    "compared in longer text": lambda s: take("A" if f"{word(s)}!" == "yes!" else "B"),
    "true": lambda s: take(str(s) or "x"),
    "a method": lambda s: take(str(s).startswith("y")),
    "a slice": lambda s: take(f"{word(s)}, hello"[:5]),
    "a slice beside it": lambda s: take(f"{word(s)}, hello"[-5:]),
    "lower": lambda s: take(f"{word(s)} Xy".lower()),
    "upper": lambda s: take(f"a {word(s)}".upper()),
    "title": lambda s: take(f"a {word(s)}".title()),
    "replaced": lambda s: take(f"a {word(s)}".replace(" ", "-")),
    "the name replaced": lambda s: take(f"a {word(s)}".replace("word", "x")),
    "split": lambda s: take(f"{s} x".split()),
    "split at a comma": lambda s: take(f"{s}, x".split(",")),
    "its length": lambda s: take(len(str(s))),
    "the length of longer text": lambda s: take(len(f"a {s}")),
    "its letters": lambda s: take(",".join(str(s))),
    "contained": lambda s: take("a" in str(s)),
    "a number": lambda s: take(int(str(s))),
    "a number of longer text": lambda s: take(int(f"{s}0")),
    "a file": lambda s: take(open(f"{s}x")),  # noqa: SIM115 - it is not there
    "JSON": lambda s: take(json.dumps({"q": f"{s}"})),
    "JSON with marks": lambda s: take(json.dumps({"q": f"{s} x"}, ensure_ascii=False)),
    "quoted": lambda s: take("http://x/?q=" + urllib.parse.quote(f"{s}")),
    "quoted longer text": lambda s: take("http://x/?q=" + urllib.parse.quote(f"{s} x")),
    "a query": lambda s: take(urllib.parse.urlencode({"q": f"{s} x"})),
    "HTML": lambda s: take(html.escape(f"a {s}")),
    "a shell argument": lambda s: take(shlex.quote(f"a {s}")),
    "a hash": lambda s: take(hashlib.sha1(f"{s}".encode()).hexdigest()),
    "a hash of longer text": lambda s: take(hashlib.sha1(f"a{s}".encode()).hexdigest()),
    "base64": lambda s: take(base64.b64encode(f"a{s}".encode()).decode()),
    "a width": lambda s: take(f"{s!s:>8}|"),
    "a width in a format": lambda s: take("{:>8}|".format(s)),  # noqa: UP032
    "shown": lambda s: take(f"{str(s)!r}"),
    "a key": lambda s: take({f"{s}": 1}),
    "part of a key": lambda s: take([{"b": {f"a{s}".upper(): 1}}]),
    "printed": lambda s: (print(f"got {word(s)}"), take(s))[1],
    "an output": lambda s: [take(s), {"a": f"{s} X".lower()}],
    "an id": lambda s: take.options(id=f"a{s}")(1),
    "a queue": lambda s: take.options(queue=f"a{s}")(1),
    "a config": lambda s: tidemill.node("value", {"a": [f"{s} X".upper()]}),
    "a key of a node": lambda s: tidemill.node("value", 1, description=f"{s} X".upper()),
    "a default": lambda s: tidemill.default(take(s), f"{s} X".upper()),
    "inside of a default": lambda s: tidemill.default(take(s), [f"{s} X"]),
    "a condition": lambda s: take(tidemill.when(str(word(s)) == "True")),
    "a condition in CEL": lambda s: tidemill.when(f"{word(s)} == 'x'").__enter__(),
}


@pytest.mark.parametrize("computed", COMPUTED.values(), ids=COMPUTED)
def test_what_python_computes_with_text_of_results_is_refused(computed: Callable[[Any], Any]) -> None:
    with pytest.raises(tidemill.Rejected) as refusal:
        document(computed)
    assert {each.code for each in refusal.value.problems} == {"value_not_known"}
    assert {each.path.partition(":")[0] for each in refusal.value.problems} == {"test_formatted_text.py"}
    assert not any(mark in str(refusal.value) for mark in ("\ue000", "\ue001", "\ue002", "\\ue00", "abcdefgh"))


JOINED: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "+": (lambda s: "a" + str(s) + "b", "a{{ inputs.s }}b"),
    "join": (lambda s: "".join([str(s), "b"]), "{{ inputs.s }}b"),
    "%": (lambda s: "%s and %s" % (s, str(s)), "{{ inputs.s }} and {{ inputs.s }}"),  # noqa: UP031
    "format": (lambda s: f"{s} {s!s}", "{{ inputs.s }} {{ inputs.s }}"),
    "alone": (lambda s: f"{s!s}", "{{ inputs.s }}"),
    "nested": (lambda s: f"{str(s)!s} {f'{s} a'}", "{{ inputs.s }} {{ inputs.s }} a"),
    "dedent": (lambda s: textwrap.dedent(f"\n  hi {s}\n    x\n").strip(), "hi {{ inputs.s }}\n  x"),
    "string.Template": (lambda s: string.Template("a $x").substitute(x=s), "a {{ inputs.s }}"),
    "a dataclass": (lambda s: Note(f"{s}"), {"text": "{{ inputs.s }}"}),
    "asdict": (lambda s: dataclasses.asdict(Note(f"{s}")), {"text": "{{ inputs.s }}"}),
    "a model": (lambda s: Card(text=f"{s} x"), {"text": "{{ inputs.s }} x"}),
    "a model of text alone": (lambda s: Card(text=f"{s}"), {"text": "{{ inputs.s }}"}),
}


@pytest.mark.parametrize(("joined", "written"), JOINED.values(), ids=JOINED)
def test_text_of_results_is_joined_with_text(joined: Callable[[Any], Any], written: Any) -> None:
    assert document(lambda s: take(joined(s)))["nodes"][-1]["config"]["args"] == {"x": written}


def test_titles_signals_and_defaults_take_text_of_results() -> None:
    def all_of_them(s: Any) -> Any:
        tidemill.approve(f"{s}", description=f"x {s}")
        tidemill.signal(f"paid-{s}")
        return tidemill.default(take(s), f"{s}")

    nodes = {each["id"]: each["config"] for each in document(all_of_them)["nodes"]}
    assert nodes["approve"] == {"title": "{{ inputs.s }}", "description": "x {{ inputs.s }}"}
    assert nodes["paid-____inputs_s____"] == {"name": "paid-{{ inputs.s }}"}


def test_text_of_another_workflow_stays_foreign() -> None:
    kept: list[str] = []
    document(lambda s: (kept.append(f"{s} x"), take(kept[0]))[1])
    with pytest.raises(tidemill.Rejected) as refusal:
        document(lambda s: take(kept[0]))
    assert refusal.value.code == "reference_foreign" and "{{ inputs.s }}" in str(refusal.value)


def test_a_comparison_of_text_says_to_compare_the_result() -> None:
    with pytest.raises(tidemill.Rejected) as refusal:
        document(lambda s: take(tidemill.when(str(word(s)) == "True")))
    assert "compare the result itself, as in `tidemill.when(word == …)`" in refusal.value.problems[0].hint
