"""Conditions in Python, for logic that no expression can say: a function `evaluate(output, context)`.

The code is only read here, never run. It runs in an interpreter of its own, in a process of its own, without
files, network, clock or chance (see `interpreter`), so what it decides depends on what it is given and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec

from tidemill.errors import Problem
from tidemill.expressions.failure import NO_OUTPUT, condition_failed
from tidemill.expressions.references import References
from tidemill.expressions.sandbox_code import read
from tidemill.expressions.scope import Json, Scope, Seen
from tidemill.expressions.shapes import Raw, no_other_keys, shape
from tidemill.expressions.wording import kind_of

TIMEOUT_MS = 1000
TIMEOUT_MS_MAX = 60_000
MEMORY_MB = 50
MEMORY_MB_MAX = 1024

START_MS = 2000
"""Beyond its own time, what the interpreter may take to start and to take over the values."""

_KEYS = ("type", "code", "code_ref", "timeout_ms", "max_memory_mb")
_EXAMPLE = '{"type": "python_sandbox", "code": "def evaluate(output, context): return output[\'n\'] > 3"}'


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Code that decides, and what it may take to do so."""

    code: str
    timeout_ms: int
    max_memory_mb: int
    references: References

    @property
    def light(self) -> bool:
        """No code of an author runs in this process."""
        return False

    @property
    def deadline_ms(self) -> int:
        """How long it may take as an errand: the interpreter stops it earlier, unless it hangs itself."""
        return self.timeout_ms + START_MS

    def normal(self) -> Json:
        """Write it in the one form in which it is stored."""
        limits = {"timeout_ms": self.timeout_ms, "max_memory_mb": self.max_memory_mb}
        return {"type": "python_sandbox", "code": self.code, **limits}

    def bind(self, scope: Scope) -> dict[str, Json]:
        """Give the two arguments: the output, and of each node that is looked at and has one, output and meta."""
        if "output" in self.references.roots and not scope.has_output:
            raise condition_failed("output is not available here", NO_OUTPUT)
        wanted = scope.nodes if self.references.dynamic else sorted(self.references.nodes)
        entries = ((node, scope.nodes.get(node)) for node in wanted)
        context = {node: _entry(seen) for node, seen in entries if isinstance(seen, Seen)}
        return {"output": scope.output, "context": context}

    def holds(self, data: Json, scope: Scope) -> bool:
        """Refuse: whoever asks has forgotten that this is an errand."""
        raise AssertionError("code of an author is decided by the interpreter only")

    def told(self) -> str:
        """Name it in a sentence."""
        return "evaluate(output, context)"


def _entry(seen: Seen) -> dict[str, Json]:
    return {"output": seen.output, "meta": dict(seen.meta)} if seen.meta else {"output": seen.output}


def parse_sandbox(raw: Raw, path: str, problems: list[Problem]) -> Sandbox | None:
    """Read a condition in Python, or report every problem with it; nothing is run."""
    found = len(problems)
    no_other_keys(raw, _KEYS, path, problems)
    if find_spec("pydantic_monty") is None:
        message = "python_sandbox needs an interpreter that is not installed"
        hint = 'pip install "tidemill[sandbox]"'
        problems.append(Problem(code="sandbox_missing", message=message, path=path, hint=hint))
    timeout_ms = _whole(raw, "timeout_ms", TIMEOUT_MS, TIMEOUT_MS_MAX, path, problems)
    max_memory_mb = _whole(raw, "max_memory_mb", MEMORY_MB, MEMORY_MB_MAX, path, problems)
    code = _code(raw, path, problems)
    if code is None:
        return None
    references, faults = read(code, f"{path}/code")
    problems += faults
    return Sandbox(code, timeout_ms, max_memory_mb, references) if len(problems) == found else None


def _code(raw: Raw, path: str, problems: list[Problem]) -> str | None:
    if "code" in raw and "code_ref" in raw:
        problems.append(shape("code and code_ref exclude each other", f"{path}/code_ref", "leave one of them out"))
    elif "code_ref" in raw:
        hint = "publish the workflow where the code is stored, or write it as code"
        problems.append(shape("the code that code_ref names is not here", f"{path}/code_ref", hint))
        return None
    code = raw.get("code")
    if isinstance(code, str):
        return code
    if "code" in raw:
        problems.append(shape(f"code is a string, not {kind_of(code)}", f"{path}/code", _EXAMPLE))
    else:
        problems.append(shape("a python_sandbox condition needs code", path, _EXAMPLE))
    return None


def _whole(raw: Raw, key: str, default: int, most: int, path: str, problems: list[Problem]) -> int:
    value = raw.get(key, default)
    if type(value) is int and 1 <= value <= most:
        return value
    problems.append(shape(f"{key} is a whole number from 1 to {most}", f"{path}/{key}", f"left out, it is {default}"))
    return default
