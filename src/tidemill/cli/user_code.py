"""Imports the user's code: functions and node types for `--app`, and workflows written in Python.

An app is a Python file or module, or an object in it, with `functions` (a mapping from names to functions, or a list of
them, for nodes of type `python`), `handlers` (a list of node types), or both. Functions of a module that are marked
with `@tidemill.function` or `@tidemill.task` count too, those of its workflows, and its node types if it has no
`handlers`. Every fault is a refusal.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_paths
from types import ModuleType
from typing import Any, NamedTuple

import tidemill
from tidemill.authoring.decorators import Workflow
from tidemill.cli.render.terminal import sanitize
from tidemill.errors import Rejected, offered, rejected
from tidemill.handlers.contract import Handler, NodeClass
from tidemill.handlers.discovery import handlers_in
from tidemill.handlers.python.functions import add_functions, decorated_functions, function_registry
from tidemill.settings import ignored_config

HOW = "write module:attribute or path.py, with `functions` (a mapping) or `handlers` (a list) in it"

OWN_FOLDER = os.path.dirname(tidemill.__file__) + os.sep
INSTALLED = tuple({get_paths()[name] + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})


class App(NamedTuple):
    functions: Mapping[str, Callable[..., Any]]
    handlers: Sequence[Handler | NodeClass]


@contextmanager
def importable(folder: Path | None = None) -> Iterator[None]:
    """Let functions be imported from a folder and the current one, after everything that is installed."""
    places = [str(place) for place in (folder, Path.cwd()) if place is not None]
    before = list(sys.path)
    sys.path += [place for place in dict.fromkeys(places) if place not in before]
    try:
        yield
    finally:
        sys.path[:] = before


def warn_of_ignored_config(*folders: Path | None) -> None:
    """Say that a configuration file of the current folder or the document's grants nothing."""
    found = ignored_config(*(folder for folder in (Path.cwd(), *folders) if folder is not None))
    if found is not None:
        print(
            f"tidemill: {sanitize(str(found.resolve()))} is ignored: name it with --config to use it", file=sys.stderr
        )


def load_apps(names: Sequence[str]) -> App:
    """Import what `--app` names. Raises Rejected, also for two functions of one name."""
    functions: dict[str, Callable[..., Any]] = {}
    handlers: list[Handler | NodeClass] = []
    for name in names:
        found = _offered(name, _target(name, f"--app {name}"))
        add_functions(functions, found.functions)
        handlers += found.handlers
    return App(functions, handlers)


def workflow_at(name: str) -> Workflow[..., Any]:
    """The workflow that `path.py`, `path.py:workflow` or `module:workflow` names. Raises Rejected."""
    with importable():
        target = _target(name, name, "write path.py:workflow or module:workflow")
    if isinstance(target, Workflow):
        _build(target, name)
        return target
    members = vars(target).items() if isinstance(target, ModuleType) else ()
    found = {key: each for key, each in members if isinstance(each, Workflow) and each.__module__ == target.__name__}
    for each in found.values():
        _build(each, name)
    started = {id(other.function) for each in found.values() for other in each.family() if other is not each}
    roots = [each for each in found.values() if id(each.function) not in started]
    if len(roots) == 1:
        return roots[0]
    if not found:
        message = f"{name} holds no workflow"
        raise rejected("workflow_invalid", message, hint="decorate a function with @tidemill.workflow")
    place = name.partition(":")[0]
    hint = f"name one: {', '.join(f'{place}:{key}' for key in found)}"
    raise rejected("workflow_invalid", f"{name} holds several workflows", hint=hint)


def _build(flow: Workflow[..., Any], said: str) -> None:
    """Build a workflow; what its function raises is the user's fault."""
    try:
        flow.family()
    except Rejected:
        raise
    except Exception as error:
        message = f"{said}: the function of workflow {flow.name} raised {type(error).__name__}: {error}"
        raise rejected("workflow_invalid", message, hint=_place_of(error)) from error


def _target(name: str, said: str, how: str = HOW) -> Any:
    place, _, attribute = name.partition(":")
    if attribute and not place.endswith(".py") and Path(place).is_file():
        raise rejected("app_invalid", f"{said}: {place} is no Python file", hint=f"a document is named alone: {place}")
    try:
        target: Any = _of_file(Path(place), said) if place.endswith(".py") else importlib.import_module(place)
    except Rejected:
        raise
    except (Exception, SystemExit) as error:
        raise _unimportable(said, place, error) from error
    for part in filter(None, attribute.split(".")):
        if not hasattr(target, part):
            flows = [key for key, each in getattr(target, "__dict__", {}).items() if isinstance(each, Workflow)]
            message = f"{said}: {place} has no attribute {attribute}"
            raise rejected("app_unknown", message, hint=how if how is HOW or not flows else offered(attribute, flows))
        target = getattr(target, part)
    return target


def _of_file(path: Path, said: str) -> ModuleType:
    """Import a file under its own name, so that `module:function` finds the same functions."""
    path = path.absolute()
    if not path.is_file():
        raise rejected("app_unknown", f"{said}: there is no file {path}", hint=HOW)
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise rejected("app_invalid", f"{said}: another module is also called {path.stem}", hint="rename the file")
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "the name must end in .py"
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _unimportable(said: str, place: str, error: BaseException) -> Rejected:
    if not place or (isinstance(error, ModuleNotFoundError) and error.name == place):
        return rejected("app_unknown", f"{said}: there is no module {place!r}", hint=HOW)
    where = _place_of(error)
    words = str(error).splitlines()[:1]
    message = f"{said} cannot be imported: {': '.join((type(error).__name__, *words))}"
    return rejected("app_invalid", message, hint=where)


def _place_of(error: BaseException) -> str:
    """Where the user's own code went wrong: the innermost line that is neither ours nor of an installed package."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"see {error.filename}, line {error.lineno}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith("<frozen ")]
    frames = [each for each in frames if not each.filename.startswith(OWN_FOLDER)]
    own = [each for each in frames if not each.filename.startswith(INSTALLED)] or frames
    return f"see {own[-1].filename}, line {own[-1].lineno}" if own else HOW


def _functions(target: Any) -> Any:
    """The functions that an app lists, and those of a module that are marked with a name."""
    listed = getattr(target, "functions", None)
    if isinstance(listed, (list, tuple)) and all(map(callable, listed)):
        listed = function_registry(listed)
    marked = _marked(target) if isinstance(target, ModuleType) else {}
    if not marked or not isinstance(listed, (Mapping, type(None))):
        return listed
    add_functions(marked, listed or {})
    return marked


def _marked(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """Functions and tasks of a module, and those that its workflows call."""
    flows = [each for each in vars(module).values() if isinstance(each, Workflow)]
    for each in flows:
        _build(each, module.__name__)
    found = decorated_functions(module)
    for flow in flows:
        add_functions(found, flow.functions)
    return found


def _handlers(target: Any) -> Any:
    """The node types that an app lists; where a module has no list, those that it has by name."""
    listed = getattr(target, "handlers", None)
    if listed is not None or not isinstance(target, ModuleType):
        return listed
    return list({id(each): each for each in vars(target).values() if isinstance(each, Handler)}.values()) or None


def _offered(name: str, target: Any) -> App:
    functions, handlers = _functions(target), _handlers(target)
    if functions is None and handlers is None:
        raise rejected("app_invalid", f"--app {name} offers neither functions nor handlers", hint=HOW)
    functions, handlers = functions or {}, handlers or ()
    if not isinstance(functions, Mapping) or not all(map(callable, functions.values())):
        raise rejected("app_invalid", f"--app {name}: functions is not a mapping of functions", hint=HOW)
    try:
        return App(functions, handlers_in(handlers))
    except TypeError:
        message = f"--app {name}: handlers is not a list of tidemill.Handler, nor of objects that describe node types"
        raise rejected("app_invalid", message, hint=HOW) from None
