"""The house rules as functions: text or syntax tree in, complaints out.

No rule reads a file here; `test_house` applies them to the repository, `test_rules` shows that each one bites.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import PurePosixPath

FILE_LINES_MAX = 600
LARGE_LINES_MAX = 800
LARGE = re.compile(r"src/tidemill/(stores/.*|blobs/.*|kernel/events)\.py")
"""Back-ends, the reference store and the closed union of events may be longer."""
MODULES_PER_FOLDER_MAX = 15
SMALL_LINES_MAX = 60
BANNED_STEMS = frozenset(
    [
        "acting",
        "acts",
        "aside",
        "attic",
        "ballots",
        "bearing",
        "bells",
        "binaries",
        "books",
        "borders",
        "borrowing",
        "bulletins",
        "chores",
        "claiming",
        "crew",
        "desk",
        "errands",
        "failings",
        "faults",
        "fitting",
        "forks",
        "gaps",
        "gutter",
        "hands",
        "helping",
        "inbox",
        "journals",
        "keeper",
        "keeping",
        "lacks",
        "laws",
        "leaf",
        "letters",
        "library",
        "lodging",
        "lookout",
        "mending",
        "moments",
        "offspring",
        "overhearing",
        "overriding",
        "pacing",
        "paint",
        "patching",
        "pen",
        "phrases",
        "pieces",
        "places",
        "portrait",
        "raised",
        "readings",
        "reasons",
        "relay",
        "reopening",
        "retiring",
        "returns",
        "rosters",
        "sampling",
        "sayings",
        "seals",
        "sifting",
        "sight",
        "sketch",
        "slips",
        "soundness",
        "specimens",
        "stage",
        "standing",
        "stocks",
        "strays",
        "sweeping",
        "taking",
        "undoing",
        "unfounded",
        "unread",
        "unstarted",
        "upkeep",
        "utterances",
        "vault",
        "verdicts",
        "voices",
        "warden",
        "wards",
        "wire",
        "wording",
    ]
)
BANNED_CLASSES = frozenset(
    [
        "Air",
        "Aside",
        "Attic",
        "Bell",
        "Bells",
        "Books",
        "Borne",
        "Brood",
        "Cell",
        "Chore",
        "Claiming",
        "Crew",
        "Desk",
        "Dialer",
        "Ear",
        "Ears",
        "Elsewhere",
        "Errand",
        "Errands",
        "Evidence",
        "Hand",
        "Heart",
        "Inbox",
        "Journal",
        "Keeper",
        "Keeping",
        "Lack",
        "Lacks",
        "Lacking",
        "Layer",
        "Letter",
        "Letters",
        "Library",
        "Lodging",
        "Lookout",
        "Means",
        "Member",
        "Misfit",
        "Mouth",
        "Mute",
        "Nowhere",
        "Offspring",
        "Operators",
        "Overhearing",
        "Paint",
        "Peer",
        "Pen",
        "Pump",
        "Retirer",
        "Roster",
        "Scene",
        "Shelf",
        "Sift",
        "Sitting",
        "Speaker",
        "Specimen",
        "Stage",
        "Stay",
        "Surroundings",
        "Sweeper",
        "TakingTurns",
        "Taker",
        "Upkeep",
        "Vault",
        "Voice",
        "Ward",
    ]
)
SHARED_STEMS = frozenset(
    [
        # Every store is laid out alike.
        *("database", "followers", "rows", "store", "streams", "transactional", "writer"),
        "access",
        "app",
        "approvals",
        "archive",
        "attempts",
        "blobs",
        "child",
        "conditions",
        "contract",
        "evaluate",
        "tables",
        "dead_letters",
        "documents",
        "errors",
        "events",
        "graph",
        "jobs",
        "limits",
        "maintenance",
        "memory",
        "node",
        "operations",
        "pool",
        "problems",
        "protocol",
        "run_actions",
        "runs",
        "schedules",
        "tools",
        "transcript",
        "worker",
        "workflows",
    ]
)
"""Stems that name the same thing in more than one room."""
FUNCTION_LINES_MAX = 70
VAGUE_NAMES = {"utils", "helpers", "common", "base", "manager", "misc", "core"}
VAGUE = re.compile(
    r"(?i)\b(?:who(?:m)?ever|somebody|nobody|anybody|everybody|of late|as it must be|comes to|came to)\b|\banew\b(?!:)"
)
"""Words that hide who acts, or what happens; `anew` is also a stored field."""
VAGUE_FOR_USERS = re.compile(
    VAGUE.pattern + r"|\b(?:go|goes|went) on\b|\btold\b|\bso many\b|\bhere and now\b|\bby hand\b"
)
"""Also phrases for continues, reported, this many, now and manually."""
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
SKIPPING = re.compile(r"(?:.*\.)?(?:(?:pytest|mark|unittest)\.(?:skip\w*|xfail|expectedFailure)|importorskip|skipTest)")
ADDRESS = re.compile(
    r"(?<![\w.])/(?:work|opt/pypi[\w-]*|opt/wheels)/"
    r"|file:/{3}opt"
    r"|pypi\.org/simple"
    r"|files\.pythonhosted"
    r"|registry\.npmjs"
)
CLIENTS = re.compile(
    r"(?:httpx2?|httpcore2?|requests|aiohttp|urllib3|http\.client|urllib\.request|ftplib|smtplib|telnetlib)(?:\..*)?"
    r"|(?:socket\.create_connection|asyncio\.open_connection)"
)
FETCHER = (
    "src/tidemill/net/egress.py",
    "src/tidemill/net/http_client.py",
    "src/tidemill/net/origin_client.py",
    "src/tidemill/net/transport.py",
    # The client of our own server: the person who runs it names the address.
    "src/tidemill/remote/connection.py",
)
ENTRIES = frozenset(
    [
        "src/tidemill/cli/commands/access.py",
        "src/tidemill/cli/commands/approvals.py",
        "src/tidemill/cli/commands/dead_letters.py",
        "src/tidemill/cli/commands/project.py",
        "src/tidemill/cli/commands/runs.py",
        "src/tidemill/cli/commands/schedules.py",
        "src/tidemill/handlers/python/child.py",
        "src/tidemill/testing/plugin.py",
    ]
)
"""Modules that are loaded by name: groups of commands, the program of a child process, the pytest plugin."""
ASSERTING = re.compile(r"raises|warns|fail|assert\w*")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    for node in ast.walk(tree):
        if isinstance(node, Function):
            yield node


def too_long(path: str, text: str) -> list[str]:
    """A file that outgrows the limit hides two things."""
    lines_max = LARGE_LINES_MAX if LARGE.fullmatch(path) else FILE_LINES_MAX
    lines = len(text.splitlines())
    return [f"{path}: {lines} lines, at most {lines_max}"] if lines > lines_max else []


def long_functions(path: str, tree: ast.AST) -> list[str]:
    sizes = ((node, (node.end_lineno or node.lineno) - node.lineno + 1) for node in functions(tree))
    return [f"{path}:{node.lineno} {node.name}: {size} lines" for node, size in sizes if size > FUNCTION_LINES_MAX]


def vague_names(path: str) -> list[str]:
    stems = {PurePosixPath(part).stem.strip("_") for part in PurePosixPath(path).parts}
    return [f"{path}: {name} says nothing about what lives there" for name in sorted(stems & VAGUE_NAMES)]


def crowded_folders(paths: Iterable[str]) -> list[str]:
    counts = Counter(str(PurePosixPath(path).parent) for path in paths if not path.endswith("__init__.py"))
    return [
        f"{folder}: {n} modules, at most {MODULES_PER_FOLDER_MAX}"
        for folder, n in counts.items()
        if n > MODULES_PER_FOLDER_MAX
    ]


def banned_stems(path: str) -> list[str]:
    """Metaphors and half-things: the field has a word for what lives there."""
    return [f"{path}: call it what the field calls it"] if PurePosixPath(path).stem in BANNED_STEMS else []


def banned_classes(path: str, tree: ast.AST) -> list[str]:
    names = [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    return [f"{path}: class {name} is a riddle" for name in names if name.lstrip("_") in BANNED_CLASSES]


def doubled_stems(paths: Iterable[str]) -> list[str]:
    """The same stem in two rooms has to mean the same thing, and to be on the list."""
    counts = Counter(PurePosixPath(path).stem for path in paths)
    return [f"{stem}: {n} modules" for stem, n in counts.items() if n > 1 and stem not in SHARED_STEMS | {"__init__"}]


def lonely_files(sources: Mapping[str, str], trees: Mapping[str, ast.AST]) -> list[str]:
    """A small file with one importer hides nothing: it belongs into its importer. One without importers is dead."""
    modules = {path.removeprefix("src/").removesuffix(".py").replace("/", "."): path for path in sources}
    importers: dict[str, set[str]] = {path: set() for path in sources}
    for path, tree in trees.items():
        for node in ast.walk(tree):
            for name in reached(node) if isinstance(node, ast.Import | ast.ImportFrom) else ():
                if name in modules:
                    importers[modules[name]].add(path)
    inside = {path: found for path, found in importers.items() if not path.endswith("__init__.py")}
    small = [
        f"{path}: {len(sources[path].splitlines())} lines and one importer"
        for path, found in inside.items()
        if len(found) == 1 and len(sources[path].splitlines()) < SMALL_LINES_MAX
    ]
    return small + [f"{path}: no importer" for path, found in inside.items() if not found and path not in ENTRIES]


def missing_docstring(path: str, tree: ast.Module) -> list[str]:
    return [f"{path}: no module docstring"] if tree.body and not ast.get_docstring(tree) else []


def vague_words(path: str, text: str) -> list[str]:
    """Texts and comments name the actor (worker, caller, store, person) and the act."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    found = [each for each in tokens if each.type in (tokenize.STRING, tokenize.COMMENT) and VAGUE.search(each.string)]
    return [f"{path}:{each.start[0]} {each.string.strip()[:100]}" for each in found]


def vague_prose(path: str, text: str) -> list[str]:
    """Pages for users say who acts, in the words of the field."""
    return matching_lines(path, text, VAGUE_FOR_USERS)


def leftovers(path: str, text: str) -> list[str]:
    return matching_lines(path, text, LEFTOVER)


def addresses(path: str, text: str) -> list[str]:
    """Paths of one machine and addresses of package indexes mean nothing to the next reader."""
    return matching_lines(path, text, ADDRESS)


def matching_lines(path: str, text: str, pattern: re.Pattern[str]) -> list[str]:
    lines = enumerate(text.splitlines(), 1)
    return [f"{path}:{number} {line.strip()[:100]}" for number, line in lines if pattern.search(line)]


INTERPRETER = "src/tidemill/agents/interpreter.py"
"""Runs the code of a model, in a process of its own."""


def dynamic_code(path: str, tree: ast.AST) -> list[str]:
    """Text never becomes code; a method that happens to be called `eval` is another matter."""
    if path == INTERPRETER:
        return []
    return [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id in {"eval", "exec"})
        or (isinstance(node, ast.Attribute) and ast.unparse(node) in {"builtins.eval", "builtins.exec"})
    ]


def http_clients(path: str, tree: ast.AST) -> list[str]:
    """HTTP requests go through the fetcher, which enforces the egress policy."""
    found = [name for node in ast.walk(tree) for name in reached(node)]
    return [f"{path}: {name}" for name in found if path not in FETCHER and CLIENTS.fullmatch(name)]


def reached(node: ast.AST) -> list[str]:
    """The names that a statement imports, or an expression looks up, in full."""
    match node:
        case ast.Attribute():
            return [ast.unparse(node)]
        case ast.Import(names=names):
            return [alias.name for alias in names]
        case ast.ImportFrom(module=str(module), names=names):
            return [module, *(f"{module}.{alias.name}" for alias in names)]
    return []


def skipping(path: str, tree: ast.AST) -> list[str]:
    """A test runs or does not exist. The runner counts what skips at run time; this finds what would one day."""
    return [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute | ast.Name) and SKIPPING.fullmatch(ast.unparse(node))
    ]


def last_name(node: ast.expr) -> str:
    match node:
        case ast.Attribute():
            return node.attr
        case ast.Name():
            return node.id
        case _:
            return ""


def idle_tests(trees: Mapping[str, ast.AST]) -> list[str]:
    """Name the tests that can never fail: they assert nothing and call nothing in the tests that does."""
    known = [(path, node) for path, tree in trees.items() for node in functions(tree)]
    asserting: set[str] = set()
    while True:
        found = {node.name for _, node in known if asserts(node, asserting)}
        if found <= asserting:
            break
        asserting |= found
    return [
        f"{path}:{node.lineno} {node.name} asserts nothing"
        for path, node in known
        if node.name.startswith("test") and not asserts(node, asserting)
    ]


def asserts(function: Function, asserting: Iterable[str]) -> bool:
    for node in ast.walk(function):
        match node:
            case ast.Raise():
                return True
            case ast.Assert(test=test) if not isinstance(test, ast.Constant) or not test.value:
                return True
            case ast.Call(func=called) if (name := last_name(called)) in asserting or ASSERTING.fullmatch(name):
                return True
    return False
