"""Strict JSON and YAML 1.2 parsers that report every fault with line and column; and documents as YAML.

JSON: the standard parser is fast but lenient (duplicate keys, NaN, lone surrogates), so it only detects a fault; a slow
scan, which valid documents never need, finds where. YAML: values are composed from the C parser's events without
recursion. Only `true` and `false` are booleans, nothing is a date, and a number with a leading zero is a string.
Duplicate keys, non-string keys, merge keys and tags without a JSON form are refused.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from itertools import islice
from math import isfinite
from typing import Any

import yaml

from tidemill.errors import Problem, Rejected
from tidemill.kernel.document.problems import PROBLEMS_MAX, ProblemCollector, pointer, shown
from tidemill.kernel.document.values import DEPTH_MAX, check_values, deeper_than, has_lone_surrogate
from tidemill.kernel.model import Json

# JSON

_TOKEN = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[{}\[\],:]|[^\s{}\[\],:"]+', re.DOTALL)
TOKENS_MAX = 5_000_000
"""Tokens that a scan reads; later faults are reported without their place."""
JSON_SHOWN = 200
"""Characters around a fault that are looked at for its hint."""
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(text: str) -> Json:
    """Parse a document, or raise Rejected with every fault of the text."""
    found = ProblemCollector()
    try:
        value, faults = _parse(text)
        if not faults and not _SURROGATE.search(text) and not deeper_than(value, DEPTH_MAX):
            return value
        _Scan(text, found).run()
        if not found.problems:
            found.extend(faults)
        if not found.problems:
            check_values(value, found)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        found.problem(
            "json_syntax", "", f"{where}: {error.msg[:1].lower()}{error.msg[1:]}", _json_hint(text, error.pos)
        )
    except (RecursionError, ValueError):
        # Too deep, or an integer with more digits than Python converts; the scan says which and where.
        _Scan(text, found).run()
        if not found.problems:
            found.problem("too_deep", "", "nested too deep, or a number too long, to be read")
    found.refuse()
    return value


def _json_hint(text: str, at: int) -> str:
    """What to write where the parser stopped: most often it met something that other languages have."""
    rest = text[at : at + JSON_SHOWN].lstrip()
    before = text[max(at - JSON_SHOWN, 0) : at].rstrip()
    if rest.startswith(("//", "/*", "#")):
        return "JSON has no comments: leave it out, or name the file .yaml and write # before it"
    if rest.startswith("'"):
        return 'strings stand in double quotes: "…"'
    if rest.startswith((",", "]", "}")) and (before.endswith(",") or rest[1:].lstrip().startswith(("]", "}"))):
        return "leave out the comma before the bracket"
    word = _CONSTANT.match(rest)
    if word is not None:
        return f"write {'null' if word[0] == 'None' else word[0].lower()}"
    return "" if rest else "the text ends too early: a bracket or a quote is not closed"


_CONSTANT = re.compile(r"(?:None|True|False)\b")


def _parse(text: str) -> tuple[Json, list[Problem]]:
    """The value, and the faults that the parser accepted, without their place."""
    found = ProblemCollector()

    def pairs(items: list[tuple[str, Json]]) -> dict[str, Json]:
        mapping = dict(items)
        if len(mapping) != len(items):
            found.problem("duplicate_key", "", "a mapping gives one key twice", "keep one of them")
        return mapping

    def constant(name: str) -> None:
        found.problem("not_json", "", f"{name} is not a JSON value", "use null, or a string")

    def number(digits: str) -> float:
        value = float(digits)
        if not isfinite(value):
            found.problem("not_json", "", f"the number {shown(digits)} is too large", "write it as a string")
        return value

    value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    return value, found.problems


class _Scan:
    """Walks the tokens of a suspicious text and reports each fault with line and column."""

    def __init__(self, text: str, found: ProblemCollector) -> None:
        self.text, self.found = text, found
        self.keys: list[set[str] | None] = []
        self.steps: list[str | int] = []
        self.line = 1
        self.line_start = 0
        self.counted = 0

    def run(self) -> None:
        expects_key = False
        for match in islice(_TOKEN.finditer(self.text), TOKENS_MAX):
            token, at = match.group(), match.start()
            if token in "{[":
                if len(self.keys) == DEPTH_MAX:
                    self._report("too_deep", at, f"nested more than {DEPTH_MAX} levels deep")
                    return
                self.keys.append(set() if token == "{" else None)
                self.steps.append("" if token == "{" else 0)
                expects_key = token == "{"
            elif token in "}]":
                if self.keys:
                    self.keys.pop()
                    self.steps.pop()
                expects_key = False
            elif token == ",":
                expects_key = bool(self.keys) and self.keys[-1] is not None
                if self.steps and isinstance(step := self.steps[-1], int):
                    self.steps[-1] = step + 1
            elif token != ":":
                self._leaf(token, at, expects_key)
                expects_key = False

    def _leaf(self, token: str, at: int, is_key: bool) -> None:
        if not token.startswith('"'):
            self._number(token, at)
            return
        try:
            text = json.loads(token, strict=False)
        except ValueError:
            return
        if has_lone_surrogate(text):
            self._report("not_json", at, "half of a surrogate pair is not a character", "write the whole character")
        names = self.keys[-1] if self.keys else None
        if is_key and names is not None:
            self.steps[-1] = text
            if text in names:
                self._report("duplicate_key", at, f"the key `{shown(text)}` is given twice", "keep one of them")
            names.add(text)

    def _number(self, token: str, at: int) -> None:
        if token in ("NaN", "Infinity", "-Infinity"):
            self._report("not_json", at, f"{token} is not a JSON value", "use null, or a string")
        elif token[-1].isdigit():
            try:
                number = float(token) if set(token) & set(".eE") else int(token)
            except ValueError:
                self._report("not_json", at, f"a number of {len(token)} digits is too long", "write it as a string")
                return
            if isinstance(number, float) and not isfinite(number):
                self._report("not_json", at, f"the number {shown(token)} is too large", "write it as a string")

    def _report(self, code: str, at: int, message: str, hint: str = "") -> None:
        self.line += self.text.count("\n", self.counted, at)
        self.line_start = max(self.line_start, self.text.rfind("\n", self.counted, at) + 1)
        self.counted = at
        path = ""
        for step in self.steps:
            path = pointer(path, step)
        self.found.problem(code, path, f"line {self.line}, column {at - self.line_start + 1}: {message}", hint)


# YAML

ALIASED_VALUES_MAX = 1_000_000
"""64 characters count as a value."""
_ALIAS_HINT = "write them out; 64 characters count as a value"


def _weight(value: Json) -> int:
    """What the text of a value counts for, its keys included."""
    if isinstance(value, str):
        return len(value) >> 6
    return sum(map(len, value)) >> 6 if isinstance(value, dict) else 0


_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_CORE = "tag:yaml.org,2002:"
_CONSTANTS: dict[str, Json] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+")
_SURELY_WRITABLE = 3_500
"""Characters of an integer in any base that has fewer than 4,300 decimal digits."""
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_MAY_BE_TYPED = frozenset("-+.0123456789~nNtTfF")
"""First characters of plain scalars that may not be strings; most scalars need no further check."""

_NO_KEY = object()


def read_yaml(text: str) -> Json:
    """Parse a document, or raise Rejected with every fault up to the first error of syntax."""
    found = ProblemCollector()
    composer: _Composer | None = None
    try:
        composer = _Composer(_LOADER(text), found)
        return composer.compose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f" {error.context}" if error.context else ""
        hint = _HINTS.get(error.problem or "", "")
        found.problem("yaml_syntax", "", f"{where}{error.problem or 'not YAML'}{context}", hint)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        found.problem("yaml_syntax", "", f"line {line}: {error.reason}", "remove the control character")
    raise Rejected(found.all_problems())


_HINTS = {
    "found character that cannot start any token": "tabs cannot indent; quote values that begin with @, ` or %",
    "mapping values are not allowed in this context": "quote values that contain a colon followed by a space",
    "did not find expected ',' or '}'": 'quote templates: "{{ … }}"',
    "did not find expected ',' or ']'": 'quote templates: "{{ … }}"',
}


class _Composer:
    def __init__(self, loader: Any, found: ProblemCollector) -> None:
        self.loader, self.found = loader, found
        self.stack: list[tuple[Json, Json]] = []
        self.open: Json = None
        self.key: Json = _NO_KEY
        self.anchors: dict[str, Json] = {}
        self.keys: dict[str, str] = {}
        """Interned keys: a large document repeats a few keys very often."""
        self.aliased_left = ALIASED_VALUES_MAX

    def compose(self) -> Json:
        next_event = self.loader.get_event
        value: Json = None
        while True:
            event = next_event()
            kind = type(event)
            if kind is yaml.ScalarEvent:
                value = self._scalar(event)
            elif kind is yaml.MappingStartEvent:
                self._begin({}, event, "map")
                continue
            elif kind is yaml.SequenceStartEvent:
                self._begin([], event, "seq")
                continue
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                value = self.open
                self.open, self.key = self.stack.pop()
            elif kind is yaml.AliasEvent:
                value = self._alias(event)
            elif kind is yaml.DocumentEndEvent:
                following = next_event()
                if type(following) is yaml.DocumentStartEvent:
                    hint = "one file holds one workflow"
                    self._report("yaml_syntax", following, "a second document begins here", hint)
                self.found.refuse()
                return value
            elif kind is yaml.StreamEndEvent:
                return None
            else:
                continue
            parent = self.open
            if type(parent) is list:
                parent.append(value)
            elif self.key is not _NO_KEY:
                parent[self.key] = value
                self.key = _NO_KEY
            elif parent is not None:
                self.key = self.keys.setdefault(value, value) if isinstance(value, str) else _NO_KEY
                if not isinstance(value, str):
                    # Braces in braces are a template, nearly always.
                    is_template = isinstance(value, dict)
                    message = "a template without quotes is a mapping" if is_template else "a key must be a string"
                    self._report("not_json", event, message, 'write "{{ … }}"' if is_template else "quote the key")
                    self.key = ""
                elif value in self.open:
                    self._report("duplicate_key", event, f"the key `{shown(value)}` is given twice", "keep one of them")
                elif value == "<<" and type(event) is yaml.ScalarEvent and event.implicit[0]:
                    hint = "write the keys out, or use `defaults`"
                    self._report("not_json", event, "merge keys are not supported", hint)

    def _begin(self, container: Json, event: Any, core: str) -> None:
        if len(self.stack) >= DEPTH_MAX:
            self._report("too_deep", event, f"nested more than {DEPTH_MAX} levels deep")
            self.found.refuse()
        if event.tag is not None and event.tag not in (_CORE + core, "!"):
            self._refuse_tag(event)
        if event.anchor is not None:
            self.anchors[event.anchor] = container
        self.stack.append((self.open, self.key))
        self.open, self.key = container, _NO_KEY

    def _scalar(self, event: Any) -> Json:
        text: str = event.value
        plain, quoted = event.implicit
        if plain:
            value = text if text and text[0] not in _MAY_BE_TYPED else self._plain(text, event)
        elif quoted or event.tag == "!":
            value = text
        else:
            value = self._tagged(text, event)
        if event.anchor is not None:
            self.anchors[event.anchor] = value
        return value

    def _plain(self, text: str, event: Any) -> Json:
        if event.tag == "!":
            return text
        if text in _CONSTANTS:
            return _CONSTANTS[text]
        if _INTEGER.fullmatch(text):
            try:
                whole = int(text, 0)
                if len(text) > _SURELY_WRITABLE:
                    str(whole)  # Python reads a longer one in these bases than it writes.
                return whole
            except ValueError:
                self._report("not_json", event, f"a number of {len(text)} digits is too long", "quote it")
                return None
        if _FLOAT.fullmatch(text):
            number = float(text)
            if isfinite(number):
                return number
        elif not _NOT_FINITE.fullmatch(text):
            return text
        self._report("not_json", event, f"{shown(text)} is not a JSON number", "use null, or quote it")
        return None

    def _tagged(self, text: str, event: Any) -> Json:
        name = event.tag.removeprefix(_CORE)
        if name == "str":
            return text
        value = self._plain(text, event)
        wanted = {"int": int, "float": float, "bool": bool, "null": type(None)}.get(name)
        if wanted is None:
            return self._refuse_tag(event)
        if name == "float" and type(value) is int:
            return float(value)
        if type(value) is not wanted:
            self._report("not_json", event, f"`{shown(text)}` is not a {name}")
        return value

    def _refuse_tag(self, event: Any) -> None:
        hint = "remove the tag, or use a string"
        self._report("not_json", event, f"the tag {shown(event.tag)} has no JSON form", hint)

    def _alias(self, event: Any) -> Json:
        name = event.anchor
        if name not in self.anchors:
            hint = "define it before it is used"
            self._report("yaml_alias", event, f"there is no anchor `&{shown(name)}` above", hint)
            return None
        value = self.anchors[name]
        unfinished = [self.open, *(container for container, _ in self.stack)]
        if isinstance(value, dict | list) and any(value is container for container in unfinished):
            self._report("yaml_alias", event, f"`*{shown(name)}` is inside the value it repeats")
            return None
        return self._copy(value, len(self.stack), event)

    def _copy(self, value: Json, depth: int, event: Any) -> Json:
        """Copy, so that the result shares nothing; the budget stops alias bombs."""
        self.aliased_left -= 1 + _weight(value)
        if self.aliased_left < 0:
            self._report("alias_bomb", event, f"aliases repeat more than {ALIASED_VALUES_MAX} values", _ALIAS_HINT)
            self.found.refuse()
        if not isinstance(value, dict | list):
            return value
        if depth >= DEPTH_MAX:
            self._report("too_deep", event, f"nested more than {DEPTH_MAX} levels deep")
            self.found.refuse()
        if isinstance(value, dict):
            return {key: self._copy(child, depth + 1, event) for key, child in value.items()}
        return [self._copy(child, depth + 1, event) for child in value]

    def _report(self, code: str, event: Any, message: str, hint: str = "") -> None:
        mark = event.start_mark
        path = ""
        for container, key in [*self.stack[1:], (self.open, self.key)]:
            if container is not None and key is not _NO_KEY:
                path = pointer(path, str(key))
            elif isinstance(container, list):
                path = pointer(path, len(container))
        self.found.problem(code, path, f"line {mark.line + 1}, column {mark.column + 1}: {message}", hint)
        if self.found.dropped > PROBLEMS_MAX:
            self.found.refuse()


# Places

LOCATED_LENGTH_MAX = 2_000_000
"""Characters of a text in which places are looked up: that takes longer than reading it."""


def find_places(text: str, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Line and column of JSON pointers in a text that was read before; for what is not there, of what it lacks in."""
    if len(text) > LOCATED_LENGTH_MAX:
        return {}
    # JSON is YAML, except for the tabs between its tokens; a space is as wide.
    text = text.replace("\t", " ")
    try:
        if _is_deep(text):
            return {}
        root = yaml.compose(text, Loader=_LOADER)
    except yaml.YAMLError:
        return {}
    # The entries of every mapping that was met, by key: a mapping may have a problem in each of a thousand entries.
    keys: dict[int, dict[Any, tuple[Any, Any]]] = {}
    found: dict[str, tuple[int, int]] = {}
    for path in paths:
        node: Any = root
        mark: Any = None
        for step in path.split("/")[1:]:
            if isinstance(node, yaml.MappingNode):
                entries = keys.get(id(node))
                if entries is None:
                    scalars = ((key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode))
                    entries = keys[id(node)] = {key.value: (key, value) for key, value in scalars}
                key, node = entries.get(step.replace("~1", "/").replace("~0", "~"), (None, None))
                mark = mark if key is None else key.start_mark
            elif isinstance(node, yaml.SequenceNode) and step.isdecimal() and int(step) < len(node.value):
                node = node.value[int(step)]
                mark = node.start_mark
            else:
                break
        if mark is not None:
            found[path] = (mark.line + 1, mark.column + 1)
    return found


def _is_deep(text: str) -> bool:
    """Whether a text is nested too deeply to be composed: the library recurses in C, and the process would die."""
    depth, loader = 0, _LOADER(text)
    while type(event := loader.get_event()) is not yaml.StreamEndEvent:
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH_MAX:
            return True
    return False


# Writing

_LIKE_A_NUMBER = tuple("-+.0123456789~")


def as_yaml(document: Any) -> str:
    """A JSON value as YAML that reads back as the same value."""
    return str(yaml.dump(_ordered(document), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=100))


def _ordered(document: Any) -> Any:
    """The same document with its keys in the order in which people write them."""
    if not isinstance(document, dict):
        return document
    nodes = document.get("nodes")
    ordered = _sorted(document, first=("name", "description"), last=("nodes", "edges", "outputs"))
    if isinstance(nodes, list):
        ordered["nodes"] = [
            _sorted(node, first=("id", "type"), last=("config",)) if isinstance(node, dict) else node for node in nodes
        ]
    return ordered


def _sorted(mapping: dict[str, Any], *, first: tuple[str, ...], last: tuple[str, ...]) -> dict[str, Any]:
    between = [key for key in mapping if key not in first + last]
    return {key: mapping[key] for key in (*first, *between, *last) if key in mapping}


def _dumper() -> Any:
    """A writer that repeats a value instead of referring back to it, since people edit what they see."""
    written: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Plain(written):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Plain.add_representer(str, _text)
    return Plain


def _text(dumper: Any, text: str) -> Any:
    """A string; quoted when another reader than the library's own would take it for a number."""
    style = "|" if "\n" in text else "'" if text.startswith(_LIKE_A_NUMBER) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
