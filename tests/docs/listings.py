"""What the code itself says about things that pages list: modules, codes, laws, keys."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import msgspec

from tests.docs.pages import ROOT
from tidemill.kernel.document import fields, normalize
from tidemill.kernel.document.fields import Table
from tidemill.settings import _ConfigFile

SOURCE = ROOT / "src" / "tidemill"

_GIVING_CODES = re.compile(
    r"problem|warning|problems|rejected|Problem|Error|ExpressionError|Fail|CapabilityMissing|BlobProblem|CallFailed|Fault"
    r"|_say|_report|_problem|_override_problem|_invalid|_shape|error_result|problems_result"
)
_A_CODE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")


def modules() -> set[str]:
    """Every module with something in it, by its path below the package."""
    return {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if path.read_text().strip()}


@cache
def trees() -> dict[str, ast.Module]:
    return {name: ast.parse((SOURCE / name).read_text(), name) for name in sorted(modules())}


def error_codes() -> set[str]:
    """Every literal that is given as the code of a problem, a refusal or a failure, except in the demo."""
    found: set[str] = set()
    constants = {name: text for tree in trees().values() for name, text in _constants(tree)}
    for name, tree in trees().items():
        for node in () if name.startswith("demo/") else ast.walk(tree):
            if isinstance(node, ast.Call):
                found.update(_codes_of_call(node, constants))
            elif isinstance(node, ast.FunctionDef):
                found.update(_default_codes(node))
            elif isinstance(node, ast.Assign):
                found.update(_assigned_codes(node.targets[0], node.value))
    return found


def _assigned_codes(target: ast.expr, value: ast.expr) -> Iterator[str]:
    """`code = "a" if … else "b"`, also within `code, verb = ("a", …) if … else ("b", …)`."""
    if isinstance(value, ast.IfExp):
        yield from _assigned_codes(target, value.body)
        yield from _assigned_codes(target, value.orelse)
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for each, part in zip(target.elts, value.elts, strict=False):
            yield from _assigned_codes(each, part)
    elif isinstance(target, ast.Name) and target.id == "code" and isinstance(value, ast.Constant) and value.value:
        yield str(value.value)


def _constants(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield from ((target.id, node.value.value) for target in node.targets if isinstance(target, ast.Name))


def _codes_of_call(call: ast.Call, constants: dict[str, str]) -> Iterator[str]:
    """`problem("code", …)`, `Problem(code="code", …)`, `Error(CODE, …)`, and the default of `get("kind", "code")`."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    given = [word.value for word in call.keywords if word.arg == "code"]
    if _GIVING_CODES.fullmatch(called):
        given += call.args[:1]
    if called == "get" and len(call.args) == 2 and _text(call.args[0], {}) == "kind":
        given += call.args[1:]
    for value in given:
        for choice in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            code = _text(choice, constants)
            if _A_CODE.fullmatch(code):
                yield code


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Name):
        return constants.get(node.id, "")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _default_codes(function: ast.FunctionDef) -> Iterator[str]:
    """The default of a parameter called `code`."""
    arguments = function.args
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if argument.arg == "code" and default is not None:
            yield _text(default, {})


def law_names() -> set[str]:
    """The laws that the checker of logs knows by name."""
    texts = [file.read_text() for file in sorted((SOURCE / "kernel" / "invariants").glob("*.py"))]
    return {name for text in texts for name in re.findall(r'\b_check\(\s*"([a-z-]+)"', text)}


DOCUMENT_TABLES: tuple[Table, ...] = (
    normalize.DOCUMENT,
    normalize.LIMITS,
    normalize.RETENTION,
    fields.NODE,
    fields.RETRY,
    fields.BRANCH,
    fields.LOOP,
    fields.MAP,
    fields.COMPENSATOR,
)


def document_keys() -> set[str]:
    """Every key that a document may have, in every spelling."""
    return {key for table in DOCUMENT_TABLES for key in table.entries}


def setting_keys(shape: type[msgspec.Struct] = _ConfigFile, before: str = "") -> list[str]:
    """Every key of `tidemill.toml`; a table that the operator fills with names has one."""
    found = []
    for field in msgspec.structs.fields(shape):
        name = f"{before}{field.name}"
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            found += setting_keys(field.type, f"{name}.")
        else:
            found.append(f"{name}.NAME" if name in ("secrets", "tenants", "mcp") else name)
    return found


def setting_variables() -> set[str]:
    """Every variable that the source reads; one with a name of the operator's in it ends in NAME."""
    words = {word for name in modules() for word in re.findall(r'"(TIDEMILL_[A-Z_]+)"', (SOURCE / name).read_text())}
    return {f"{word}NAME" if word.endswith("_") else word for word in words} - {"TIDEMILL_"}
