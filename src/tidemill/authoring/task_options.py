"""The options of tasks and workflows, checked by the readers of the kernel, and the verbs of other libraries.

An option says how the nodes of a call are run; what it may be is what the key of a node may be.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tidemill.authoring.reference import Json
from tidemill.errors import Problem, Rejected, offered, rejected
from tidemill.handlers.python.functions import TASK
from tidemill.kernel.document.fields import NODE, choice, read_table
from tidemill.kernel.document.problems import DocumentPath, ProblemCollector

if TYPE_CHECKING:
    from tidemill.authoring.decorators import Task, Workflow

T = TypeVar("T")
Seconds = float | timedelta

_ISOLATION = choice("inline", "thread", "process")
_OF_KEYS = {
    "/timeout_seconds": "timeout",
    "/retry/backoff_seconds": "retry_delay",
    "/map/max_parallel": "max_parallel",
    "/map/tolerate": "tolerate",
}
"""The options of keys that have another name or place."""
_OF_RETRY = {
    "retries": ("how many attempts there are", "max_attempts"),
    "retry_delay": ("how long it waits", "backoff_seconds"),
}
"""The options that keys of `retry` say, too."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """How the nodes of a task or workflow are run; None leaves it to the defaults."""

    name: str | None = None
    id: str | None = None
    retries: int | None = None
    retry_delay: Seconds | None = None
    retry: Mapping[str, Json] | int | None = None
    timeout: Seconds | None = None
    on_error: Literal["fail", "continue"] | None = None
    compensate: Task[..., Any] | None = None
    at_most_once: bool = False
    queue: str | None = None
    priority: int | None = None
    isolation: Literal["inline", "thread", "process"] | None = None
    limits: Mapping[str, Json] | None = None
    max_parallel: int | None = None
    tolerate: int | None = None
    after: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[str, tuple[type, ...]]] = {
            **dict.fromkeys(("name", "id", "queue", "on_error", "isolation"), ("a text", (str,))),
            **dict.fromkeys(("retries", "priority", "max_parallel", "tolerate"), ("a whole number", (int,))),
            **dict.fromkeys(("retry_delay", "timeout"), ("seconds or a timedelta", (int, float, timedelta))),
            "retry": ("a number of attempts or a mapping as in a document", (int, Mapping)),
            "limits": ("a mapping as in a document", (Mapping,)),
            "at_most_once": ("True or False", (bool,)),
        }
        for option, (words, types) in kinds.items():
            value = getattr(self, option)
            is_wrong_flag = isinstance(value, bool) and bool not in types
            if value is not None and (is_wrong_flag or not isinstance(value, types)):
                raise TypeError(f"`{option}` is {words}, not {value!r}")
        if self.compensate is not None and not hasattr(self.compensate, TASK):
            words = "a task: the function that undoes it, decorated with @tidemill.task"
            raise TypeError(f"`compensate` is {words}, not {self.compensate!r}")
        names = [name for name in ("retries", "retry_delay") if getattr(self, name) is not None]
        for name in (each for each in names if each in self._of_retry()):
            message = f"{name}={getattr(self, name)!r} and retry={self.retry!r} both say {_OF_RETRY[name][0]}"
            raise rejected("option_invalid", message, hint=f"leave out one: `retry` may say it, or `{name}`")
        self._check_values()

    def _of_retry(self) -> set[str]:
        """The options whose values `retry` says, too."""
        keys = ["max_attempts"] if isinstance(self.retry, int) else self.retry or ()
        return {name for name, (_, key) in _OF_RETRY.items() if key in keys}

    def changed(self, given: Mapping[str, Any]) -> Options:
        """The same with other options: `retries` replaces the attempts of a `retry` that was given before."""
        known = {field.name: getattr(self, field.name) for field in fields(self)}
        for name in {"retries", "retry_delay"} & given.keys() if "retry" not in given else ():
            key, retry = _OF_RETRY[name][1], known["retry"]
            if isinstance(retry, Mapping):
                known["retry"] = {each: value for each, value in retry.items() if each != key} or None
            elif name == "retries":
                known["retry"] = None
        if "retry" in given:
            known |= dict.fromkeys(replace(Options(), retry=given["retry"])._of_retry())
        return Options(**{**known, **given})

    def _check_values(self) -> None:
        """Raise Rejected for values that no node may have."""
        found = ProblemCollector()
        place = DocumentPath(found, "")
        keys = self.keys(mapped=True)
        read_table(place, {**keys, "map": {"over": [], **keys["map"]}}, NODE)
        if self.isolation is not None:
            _ISOLATION(place, "isolation", self.isolation)
        if found.problems:
            raise Rejected([self._as_option(each) for each in found.problems])

    def _as_option(self, problem: Problem) -> Problem:
        option = _OF_KEYS.get(problem.path, problem.path.split("/")[1])
        if problem.path == "/retry/max_attempts" and self.retries is not None:
            option = "retries"
        message = f"{option}={getattr(self, option)!r}: {problem.message}"
        return Problem(code="option_invalid", message=message, hint=problem.hint)

    @classmethod
    def given(cls, options: dict[str, Any]) -> Options:
        known = [each for each in cls.__dataclass_fields__ if each not in ("id", "after")]
        for option in options:
            if option not in known:
                meant = {"retry_count": "retries", "max_retries": "retries", "timeout_seconds": "timeout"}.get(option)
                hint = f"did you mean `{meant}`?" if meant else offered(option, known)
                raise TypeError(f"tidemill.task has no option `{option}`: {hint}")
        return cls(**options)

    def retry_keys(self) -> dict[str, Json]:
        retry: dict[str, Json] = {"max_attempts": self.retry} if isinstance(self.retry, int) else dict(self.retry or {})
        if self.retries is not None:
            retry["max_attempts"] = self.retries + 1
        if self.retry_delay is not None:
            retry["backoff_seconds"] = seconds(self.retry_delay)
        timeout = {} if self.timeout is None else {"timeout_seconds": seconds(self.timeout)}
        return {**({"retry": retry} if retry else {}), **timeout}

    def keys(self, *, mapped: bool) -> dict[str, Json]:
        """The keys of a node that they mean."""
        bounds = {"max_parallel": self.max_parallel, "tolerate": self.tolerate}
        given = {"on_error": self.on_error, "queue": self.queue, "priority": self.priority}
        return {
            **self.retry_keys(),
            **{key: value for key, value in given.items() if value is not None},
            **({"delivery": "at_most_once"} if self.at_most_once else {}),
            **({"map": {key: value for key, value in bounds.items() if value is not None}} if mapped else {}),
        }


def refuse_bounds(problem: Callable[[str, str, str], None], name: str, options: Options, declared: Options) -> None:
    """Record bounds of a map that `options` was given for a call that is none; those of a decorator may stay."""
    for option in ("max_parallel", "tolerate"):
        value = getattr(options, option)
        if value is not None and value != getattr(declared, option):
            called = f"{name}.options({option}={value})"
            message = f"{called}(…) is one call, and `{option}` bounds the calls of a map"
            problem("option_invalid", message, f"write {called}.map(items), or leave it out")


def refuse_input_names(
    flow: Workflow[..., Any], verb: str, options: Mapping[str, Any], arguments: Mapping[str, Any]
) -> None:
    given = {name for name, value in options.items() if value not in (None, "")}
    for name in flow.signature.parameters.keys() & given:
        message = f"`{name}` is an input of {flow.name}, and an option of {verb}"
        inputs = ", ".join(f'"{each}": {value!r:.60}' for each, value in {**arguments, name: options[name]}.items())
        hint = f"give the inputs as one mapping: mill.{verb}({flow.__name__}, {{{inputs}}})"
        raise rejected("inputs_invalid", message, path=f"/inputs/{name}", hint=hint)


def seconds(given: Seconds) -> float:
    return given.total_seconds() if isinstance(given, timedelta) else given


class OtherVerb:
    """A verb by which other libraries call a task; refused with what to write here."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, task: Any, owner: type) -> OtherVerb:
        if task is None:
            return self
        called = ".map(items)" if self._name in ("expand", "starmap", "chunks") else "(…)"
        called = f"in a workflow function write {task.__name__}{called}"
        message = f"there is no `{self._name}`: {called}; a run is started by mill.start(workflow, …)"
        raise AttributeError(message, name=self._name, obj=task)


def told_usage(method: Callable[..., T], usage: str) -> Callable[..., T]:
    """A method that says what to write when its arguments are wrong."""
    signature = inspect.signature(method)

    @wraps(method)
    def call(self: Any, /, *args: Any, **kwargs: Any) -> T:
        try:
            signature.bind(self, *args, **kwargs)
        except TypeError as error:
            unknown = next((name for name in kwargs if name not in signature.parameters), "")
            known = [name for name in signature.parameters if name != "self"]
            hint = (
                offered(unknown, known) if unknown and usage.startswith("options") else f"write {self.__name__}.{usage}"
            )
            raise TypeError(f"{self.__name__}.{method.__name__}(…): {error}; {hint}") from None
        return method(self, *args, **kwargs)

    return call
