"""Documents as people write them: in few words, and as Python that builds the same document.

The Python form of a node is `tidemill.node(…)` with the keys of the document. A template that reads a dependency or an
input and nothing else becomes a variable; any other stays text. Compiled, each form has the digest of the original.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Mapping
from copy import deepcopy

from tidemill.authoring.reference import Json, Place, template_of
from tidemill.errors import Problem, Rejected
from tidemill.expressions.scope import has_syntax
from tidemill.kernel.document.normalize import clauses_of

WIDTH = 110
_READ = re.compile(r"\{\{ (?:(inputs)|([A-Za-z]\w*)\.output|nodes\[(\"[^\"]+\")\]\.output)(.*) \}\}")
_STEP = re.compile(r"\.([A-Za-z]\w*)|\[(-?\d+)\]|\[(\"(?:[^\"\\]|\\.)*\")\]")


def readable(normal: Mapping[str, Json]) -> dict[str, Json]:
    """A document in its normal form, with edges as dependencies and CEL as text."""
    sources: dict[str, list[str]] = {}
    for edge in normal.get("edges", ()):
        sources.setdefault(edge["to"], []).append(edge["from"])
    nodes = []
    for node in normal["nodes"]:
        copy = deepcopy(node)
        for clause in clauses_of(copy):
            clause.holder[clause.field] = _brief(clause.holder[clause.field])
        needs = {"dependencies": sources[node["id"]]} if node["id"] in sources else {}
        head = {key: copy.pop(key) for key in ("id", "type") if key in copy}
        nodes.append({**head, **needs, **copy})
    kept = {key: value for key, value in normal.items() if key not in ("nodes", "edges", "outputs")}
    outputs = {"outputs": normal["outputs"]} if "outputs" in normal else {}
    return {**kept, "nodes": nodes, **outputs}


def _brief(condition: Json) -> Json:
    if not isinstance(condition, dict):
        return condition
    if condition.keys() == {"type", "expression"} and condition["type"] == "cel":
        return condition["expression"]
    if "conditions" in condition:
        return {**condition, "conditions": [_brief(each) for each in condition["conditions"]]}
    return condition


def python_source(normal: Mapping[str, Json]) -> str:
    """A workflow in Python with the digest of this document. Raises Rejected for what has no form in Python."""
    document = readable(normal)
    problems = [
        Problem(
            code="no_python_form",
            message=f"`config_ref` of node `{node['id']}` has no form in Python",
            path=f"/nodes/{number}/config_ref",
            hint="write its content as `config`, or export YAML or JSON",
        )
        for number, node in enumerate(document["nodes"])
        if "config_ref" in node
    ]
    if problems:
        raise Rejected(problems)
    return _Writer(document).text()


class _Writer:
    def __init__(self, document: Mapping[str, Json]) -> None:
        self._document = document
        properties = (
            (document.get("inputs") or {}).get("properties") if isinstance(document.get("inputs"), dict) else {}
        )
        named = [name for name in properties or {} if _is_name(name) and name != "tidemill"]
        self._parameters = {name: name for name in named}
        self._variables: dict[str, str] = {}
        """Python names of the nodes that are written already."""
        self._taken = {*named, "tidemill"}

    def text(self) -> str:
        document = self._document
        head = {"name": document["name"], **({} if "inputs" in document else {"inputs": None})}
        head |= {key: document[key] for key in ("description", "inputs", "defaults", "limits") if key in document}
        if (document.get("on_failure") or {}).get("compensate") == "automatic":
            head["compensate"] = True
        if "retention" in document:
            head["retention"] = document["retention"]
        function = self._new_name(document["name"])
        body = [self._node(node) for node in document["nodes"]]
        if "outputs" in document:
            body.append("    return " + self._written(document["outputs"], 4, outputs=True))
        functions = _named(document["nodes"], "python", "function")
        called = ", ".join(sorted(name for name in functions if ":" not in name))
        lines = [
            "import tidemill",
            "",
            *([f"# It calls registered functions: {called}.", ""] if called else []),
            "",
            f"@tidemill.workflow({self._arguments(head, 0)})",
            f"def {function}({', '.join(self._parameters)}):",
            *body,
        ]
        return "\n".join(lines) + "\n"

    def _node(self, node: Mapping[str, Json]) -> str:
        used: set[str] = set()
        needs = node.get("dependencies", [])
        reach = {name for name in needs if name in self._variables}
        positional = [json.dumps(node["type"])]
        if "config" in node:
            positional.append(self._written(node["config"], 4, reach=reach, used=used))
        keys = {key: value for key, value in node.items() if key not in ("id", "type", "config", "dependencies")}
        named = {key: self._written(value, 4, reach=reach, used=used) for key, value in keys.items()}
        left = [self._variables.get(name) or _text(name) for name in needs if name not in used]
        after = {"after": "[" + ", ".join(left) + "]"} if left else {}
        given = {"id": _text(node["id"]), **after, **named}
        variable = self._new_name(node["id"])
        self._variables[node["id"]] = variable
        arguments = [*positional, *(f"{key}={value}" for key, value in given.items())]
        flat = f"    {variable} = tidemill.node({', '.join(arguments)})"
        if len(flat) <= WIDTH and "\n" not in flat:
            return flat
        return (
            f"    {variable} = tidemill.node(\n"
            + "".join(f"        {each},\n" for each in map(_indented, arguments))
            + "    )"
        )

    def _arguments(self, given: Mapping[str, Json], indent: int) -> str:
        written = [f"{key}={self._written(value, indent)}" for key, value in given.items()]
        flat = ", ".join(written)
        if len(flat) + indent <= WIDTH - 20 and "\n" not in flat:
            return flat
        return "\n" + "".join(f"    {each},\n" for each in map(_indented, written))

    def _written(
        self,
        value: Json,
        indent: int,
        *,
        reach: set[str] | None = None,
        used: set[str] | None = None,
        outputs: bool = False,
    ) -> str:
        """A JSON value in Python; strings that are references become expressions."""

        def write(value: Json, indent: int) -> str:
            if isinstance(value, str):
                return self._string(value, reach, used, outputs)
            if isinstance(value, (list, dict)) and value:
                brackets = "[]" if isinstance(value, list) else "{}"
                for deeper in (0, indent + 4):
                    parts = (
                        [write(each, deeper) for each in value]
                        if isinstance(value, list)
                        else [f"{_text(key)}: {write(each, deeper)}" for key, each in value.items()]
                    )
                    flat = brackets[0] + ", ".join(parts) + brackets[1]
                    if not deeper and len(flat) + indent <= WIDTH - 20 and "\n" not in flat:
                        return flat
                pad = " " * indent
                return brackets[0] + "\n" + "".join(f"{pad}    {part},\n" for part in parts) + pad + brackets[1]
            return {None: "None", True: "True", False: "False"}[value] if _is_word(value) else json.dumps(value)

        return write(value, indent)

    def _string(self, text: str, reach: set[str] | None, used: set[str] | None, outputs: bool) -> str:
        found = _READ.fullmatch(text)
        if found is not None and (reach is not None or outputs):
            node = None if found[1] else found[2] or json.loads(found[3])
            path = _path(found[4])
            if path is not None and template_of(Place(node, path)) == text:
                root = self._parameters.get(str(path[0])) if node is None and path else self._variables.get(str(node))
                in_reach = node is None or outputs or node in (reach or ())
                if root is not None and in_reach:
                    if used is not None and node is not None:
                        used.add(node)
                    return root + "".join(map(_access, path[1:] if node is None else path))
        if outputs and has_syntax(text):
            return f"tidemill.template({_text(text)})"
        return _text(text)

    def _new_name(self, name: str) -> str:
        base = re.sub(r"\W", "_", name, flags=re.ASCII)
        base = f"_{base}" if not _is_name(base) else base
        found, number = base, 1
        while found in self._taken:
            number += 1
            found = f"{base}_{number}"
        self._taken.add(found)
        return found


def _named(nodes: list[Json], type_: str, field: str) -> set[str]:
    """What nodes and compensators of a type name in this field of their config."""
    configs = [
        each["config"]
        for node in nodes
        for each in (node, node.get("compensator") or {})
        if str(each.get("type")).partition("@")[0] == type_ and isinstance(each.get("config"), dict)
    ]
    return {config[field] for config in configs if isinstance(config.get(field), str)}


def started_workflows(document: Mapping[str, Json]) -> list[str]:
    """The other workflows that a document starts as children, as far as no template computes their names."""
    names = _named(document["nodes"], "workflow", "workflow")
    return sorted(name for name in names if not has_syntax(name) and name != document["name"])


def _path(text: str) -> tuple[str | int, ...] | None:
    steps: list[str | int] = []
    at = 0
    while at < len(text):
        found = _STEP.match(text, at)
        if found is None:
            return None
        steps.append(found[1] or (int(found[2]) if found[2] else str(json.loads(found[3]))))
        at = found.end()
    return tuple(steps)


def _access(step: str | int) -> str:
    return f".{step}" if isinstance(step, str) and _is_name(step) and not step.startswith("_") else f"[{_text(step)}]"


def _is_name(name: str) -> bool:
    return name.isascii() and name.isidentifier() and not keyword.iskeyword(name)


def _is_word(value: Json) -> bool:
    return value is None or isinstance(value, bool)


def _text(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _indented(text: str) -> str:
    return text.replace("\n", "\n    ")
