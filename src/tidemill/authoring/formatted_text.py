"""The text of a reference: an f-string of a result is text in which a mark stands for the value.

Python may join such a text with others, and do nothing else with it, because it would compute with the mark. The text
of a reference alone refuses everything else. In longer text a seal in the mark breaks with what Python changes, and a
text that gets into no document was computed with.
"""

from __future__ import annotations

import itertools
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from tidemill.authoring.function_source import IN_A_TASK, is_of_tidemill, place_in_code
from tidemill.errors import Problem, Rejected, rejected
from tidemill.handlers.python.conversion import VALUE_SHOWN_MAX, plain

BEGIN, SEAL, END = "\ue000", "\ue002", "\ue001"
"""Private characters around the template of a reference that was formatted into a string, and before its seal."""
FORMATTED = re.compile(f"{BEGIN}(.*?){END}", re.DOTALL)
MARKS = re.compile(
    rf"[{BEGIN}{SEAL}{END}]|(?:\\ue000|\\U0000e000|\\xee\\x80\\x80|%EE%80%80|&#57344;|&#xe000;)(?=\{{\{{|%7B%7B)",
    re.IGNORECASE,
)
"""What betrays a formatted reference in a text, also if the text was escaped."""
_SEALED = re.compile(rf"{SEAL}[^{END}]*|\\ue002.*?(?=\\ue001|$)", re.DOTALL)
_SEAL_TEXT = "".join(map(chr, range(32, 127)))
"""Every character that a text may be split at, or that is replaced in it."""
_NUMBERS = itertools.count(1)

_DEBUGGERS = {"_pytest", "IPython", "ipykernel", "debugpy", "pydevd", "_pydevd_bundle"}
_MAY_SHOW = {*sys.stdlib_module_names, *_DEBUGGERS, "tidemill"} - {"__main__"}
"""Packages that look at references to show them to people: in messages, logs and debuggers."""
SHOWN = "leave out `!r` or `=`, or make the text inside a task"
UNKNOWN = "and the value is known only when the workflow runs"
DECIDED = "write `with tidemill.when(…):` around the tasks, or decide inside a task"


REFUSALS: ContextVar[list[tuple[Rejected, str]] | None] = ContextVar("tidemill_refusals", default=None)
"""What was refused while a workflow function is called, and where: the function may catch it."""


def not_known(what: str, hint: str) -> Rejected:
    refusal, refusals = rejected("value_not_known", f"{what}, {UNKNOWN}", hint=hint), REFUSALS.get()
    if refusals is not None:
        refusals.append((refusal, place_in_code()))
    return refusal


class FormattedText(str):
    """The text of one reference, alone. Python may join it with other text, and do nothing else with it."""

    __slots__ = ("__is_called", "__name")

    def __new__(cls, text: str, name: str, is_called: Callable[[], bool]) -> FormattedText:
        """`name` is that of the reference, `is_called` whether the workflow function is being called."""
        found = super().__new__(cls, text)
        found.__name, found.__is_called = name, is_called  # type: ignore[attr-defined]
        return found

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and hasattr(str, name):
            self.__refuse(f"calls `.{name}(…)` of")
        return super().__getattribute__(name)

    def __refuse(self, verb: str, hint: str = "") -> NoReturn:
        raise not_known(f"Python {verb} the text of {self.__name}", hint or IN_A_TASK)

    def __str__(self) -> FormattedText:
        return self

    __copy__ = __str__

    def __deepcopy__(self, _: object) -> FormattedText:
        return self

    def __format__(self, spec: str) -> str:
        if spec:
            self.__refuse(f"formats with {spec!r}", "format it inside a task")
        return self

    def __repr__(self) -> str:
        if self.__is_called() and not may_show(sys._getframe(1)):
            self.__refuse("shows", SHOWN)
        return f"'{readable(self)}'"

    def __compare(self, _: object) -> NoReturn:
        name = self.__name
        self.__refuse("compares", f"compare the result itself, as in `tidemill.when({name} == …)`, or {IN_A_TASK}")

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __compare

    def __hash__(self) -> int:  # noqa: PLE0309
        self.__refuse("looks up", "keys must be known when the workflow is built; look it up inside a task")

    def __bool__(self) -> NoReturn:  # noqa: PLE0304
        self.__refuse("asks whether there is anything in", DECIDED)

    def __compute(self, *_: object) -> NoReturn:
        self.__refuse("computes with")

    __len__ = __iter__ = __contains__ = __getitem__ = __mod__ = __compute
    __int__ = __float__ = __complex__ = __index__ = __compute


def marked(template: str) -> str:
    """A template as a text holds it until it is rendered; what Python does to the text breaks the seal."""
    return f"{BEGIN}{template}{SEAL}{_seal(template)}{next(_NUMBERS)}{END}"


def _seal(template: str) -> str:
    return f"{_SEAL_TEXT}{zlib.crc32(template.encode()):x}-"


def template_in(part: str) -> str:
    """The template of what stands between two marks."""
    return part.partition(SEAL)[0]


def is_intact(text: str) -> bool:
    """Whether the marks in a text are as they were made."""
    pieces = FORMATTED.split(text)
    whole = (part.partition(SEAL) for part in pieces[1::2])
    return all(rest.startswith(_seal(template)) for template, _, rest in whole) and not any(
        map(MARKS.search, pieces[::2])
    )


def readable(text: str) -> str:
    """A text with marks, or its repr, as messages show it."""
    return re.sub(rf"[{BEGIN}{END}]|\\ue00[01]|\\(ue?0{{0,2}})?(?=…$)", "", _SEALED.sub("", text))


def shortened(text: str) -> str:
    """The begin of a text with marks, or of its repr, as messages show it."""
    found = readable(text)
    return found if len(found) <= VALUE_SHOWN_MAX else f"{found[:VALUE_SHOWN_MAX]}…"


def may_show(frame: FrameType) -> bool:
    """Whether code shows references to people."""
    return str(frame.f_globals.get("__name__")).partition(".")[0] in _MAY_SHOW


def plain_text(value: Any) -> Any:
    """What a value of a foreign type is in JSON; the text of a reference is text."""
    return str.__str__(value) if isinstance(value, FormattedText) else plain(value)


def texts_in(value: Any) -> Iterator[str]:
    """The texts in a JSON value, those of keys too."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for each in (*value, *value.values()) if isinstance(value, dict) else value:
            yield from texts_in(each)


class Mark(NamedTuple):
    """What a mark in a text stands for."""

    template: str
    """Where it stands alone."""
    among: str
    """Where other text is beside it."""
    places: tuple[Any, ...]
    """What the template reads."""


class Marks:
    """The marks that were made for one workflow."""

    def __init__(self) -> None:
        self._marks: dict[str, Mark] = {}
        """By what stands between begin and end."""
        self._unused: dict[str, Problem] = {}
        """What no text of the document has held yet."""

    def add(self, mark: Mark) -> str:
        """The text that stands for a mark."""
        found = marked(mark.template)
        self._marks[found[1:-1]] = mark
        return found

    def expect(self, text: str, name: str, at: str) -> None:
        """The text of a reference must get into the document, or Python has computed with it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and is_of_tidemill(frame):
            frame = frame.f_back
        if frame is None or may_show(frame):
            return
        message = f"the text of {name} is in no argument and no output: Python computes with it, or nothing uses it"
        hint = f"{IN_A_TASK}; leave out a text that nothing uses, and a `print`"
        self._unused[text[1:-1]] = Problem(code="value_not_known", message=f"{message}, {UNKNOWN}", hint=hint, path=at)

    def use(self, part: str) -> Mark | None:
        """What stands between two marks, in a text of the document; None if it is not of this workflow."""
        self._unused.pop(part, None)
        return self._marks.get(part)

    def use_all(self, text: str) -> None:
        for part in FORMATTED.findall(text):
            self.use(part)

    def unused(self) -> list[Problem]:
        return list({problem.path: problem for problem in self._unused.values()}.values())
