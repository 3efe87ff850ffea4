"""Rewrite Jinja's syntax tree into one that is safe to run, and collect what it refers to.

Static paths become calls of `lookup`, loops and concatenations are charged to the budget, and method calls are
separated from keys (a call always means the method, everything else the key). Tags that need other templates are
refused. Nothing is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import takewhile
from math import isfinite
from typing import cast

from jinja2 import nodes
from jinja2.meta import TrackingCodeGenerator
from jinja2.visitor import NodeTransformer

from tidemill.expressions.errors import kind_of, listing, meant
from tidemill.expressions.scope import NODE_MAPS, References, merged
from tidemill.expressions.templates.environment import (
    COMPARED,
    CONCAT,
    KEY,
    LOOP,
    METHOD,
    NODE,
    PART,
    PATH,
    TemplateEnvironment,
)
from tidemill.expressions.templates.lookup import FUNCTIONS, READERS, Fault, Key, Path, build
from tidemill.expressions.templates.regex import check_arguments

_REFUSED_TAGS = {
    nodes.Include: "include",
    nodes.Import: "import",
    nodes.FromImport: "from",
    nodes.Extends: "extends",
    nodes.Block: "block",
    # It would change the evaluation context, which all renderings share.
    nodes.ScopedEvalContextModifier: "autoescape",
}
_INSTEAD = {
    "attr": "a key is read as x.key or x[name]",
    "base64": "text becomes base64 with `b64`, and is read with `b64decode`",
    "pprint": "a value is laid out over lines with `json(indent=2)`",
    "random": "templates have no randomness, so that they can be rendered again",
    "to_json": "a value is written with `json`",
    "urlize": "links are written out: <a href=…>",
}
_MACRO_NAMES = frozenset({"caller", "varargs", "kwargs"})


class TemplateRewriter(NodeTransformer):
    """One pass over one tree; afterwards `faults`, `paths`, `strict` and `references` say what was found."""

    def __init__(self, environment: TemplateEnvironment, tree: nodes.Template) -> None:
        self.environment = environment
        self.faults: list[Fault] = []
        self.paths: list[Path] = []
        self._found: list[References] = []
        self._strict: list[Path] = []
        self._lenient, self._tested = _lenient_uses(tree)
        self._local = _variables(tree)
        self._tree = tree

        self._visitors: Mapping[type[nodes.Node], Callable[..., nodes.Node]] = {
            nodes.Name: self._name,
            nodes.Const: self._const,
            nodes.Getattr: self._getattr,
            nodes.Getitem: self._getitem,
            nodes.Call: self._call,
            nodes.Concat: self._concat,
            nodes.Compare: self._compare,
            nodes.Pair: self._pair,
            nodes.Filter: self._filter_or_test,
            nodes.Test: self._filter_or_test,
            nodes.For: self._for,
        }

    def get_visitor(self, node: nodes.Node) -> Callable[..., nodes.Node] | None:
        """Choose the rule for a kind of node; where there is none, only its parts are rewritten."""
        return self._visitors.get(type(node))

    def run(self) -> nodes.Template:
        for name in sorted(self._read_from_outside()) if self._local else ():
            if name in READERS and name != "secrets":
                self._found.append(References(roots=frozenset({name})))
            else:
                # Refuse a name that may mean the variable or the node; a reference must be certain.
                reads = [each for each in self._tree.find_all(nodes.Name) if each.name == name and each.ctx == "load"]
                hint = f'set it first, {{% set {name} = none %}}; a node of that name is nodes["{name}"]'
                self._fault(reads[0] if reads else self._tree, f'"{name}" may be read before it is set', hint)
        tree: nodes.Template = self.visit(self._tree)
        return tree

    @property
    def references(self) -> References:
        """What the tree refers to; complete after `run`."""
        return merged([*self._found, *(path.references for path in self.paths)])

    @property
    def strict(self) -> tuple[Path, ...]:
        """The paths that fail where nothing is found, and whose keys the template does not test."""
        tested = [build(name, keys) for name, keys in self._tested if name not in self._local]
        return tuple(
            path
            for path in self._strict
            if not any(
                (each.base, each.keys) == (path.base, path.keys[: len(each.keys)]) for each in tested if each.keys
            )
        )

    def _read_from_outside(self) -> frozenset[str]:
        """Find names that are set here but may also be read before they are set."""
        unknown_filters = any(each.name not in self.environment.filters for each in self._tree.find_all(nodes.Filter))
        unknown_tests = any(each.name not in self.environment.tests for each in self._tree.find_all(nodes.Test))
        if unknown_filters or unknown_tests:
            # Jinja would stop at them; they are reported in the course of the rewriting.
            return frozenset()
        tracking = TrackingCodeGenerator(self.environment)
        # Jinja's own use of it evaluates constants on the way; compiling evaluates nothing here.
        tracking.optimizer = None
        tracking.visit(self._tree)
        return frozenset(tracking.undeclared_identifiers & self._local) - FUNCTIONS.keys()

    def _name(self, node: nodes.Name) -> nodes.Node:
        """Replace a name that stands for a value of the scope."""
        if node.name in ("self", "super"):
            self._fault(node, f'"{node.name}" is not defined here', f'a node of that name is nodes["{node.name}"]')
        return self._static(node) or node

    def _const(self, node: nodes.Const) -> nodes.Node:
        if isinstance(node.value, float) and not isfinite(node.value):
            self._fault(node, "a number is too large", "")
        return node

    def _getattr(self, node: nodes.Getattr) -> nodes.Node:
        """Replace a static path; of anything else only the parts."""
        if node.attr.startswith("_"):
            hint = f'a key of that name is read as ["{node.attr}"]'
            self._fault(node, f'names that start with _ are not visible: "{node.attr}"', hint)
            return node
        return self._static(node) or self._chosen(node, nodes.Const(node.attr)) or self._parts(node)

    def _getitem(self, node: nodes.Getitem) -> nodes.Node:
        """Replace a static path or a computed node; of anything else only the parts."""
        found = self._static(node)
        if found is not None:
            return found
        if self._is_node_map(node.node) and not isinstance(node.arg, nodes.Slice):
            return self._computed(node)
        if isinstance(node.arg, nodes.Slice):
            if isinstance(node.node, nodes.Const) and not isinstance(node.node.value, str):
                # Python would write a warning to the terminal of the worker.
                self._fault(node, f"{kind_of(node.node.value)} has no parts", "")
            # Python cuts it out by itself, so it is paid for afterwards.
            return self._filter(cast(nodes.Expr, self._parts(node)), PART, [], node.lineno)
        return self._chosen(node, node.arg) or self._parts(node)

    def _call(self, node: nodes.Call) -> nodes.Node:
        """Let a call mean the method, even where a key has the same name."""
        callee = node.node
        if isinstance(callee, nodes.Name) and callee.name in FUNCTIONS:
            node.node = nodes.Const(None)
            self._parts(node)
            node.node = callee
            return node
        if isinstance(callee, nodes.Getattr) and not callee.attr.startswith("_"):
            node.node = self._filter(callee.node, METHOD, [nodes.Const(callee.attr)], node.lineno)
        return self._parts(node)

    def _concat(self, node: nodes.Concat) -> nodes.Node:
        """Bound the `~` operator, which Jinja's sandbox does not let us intercept."""
        return self._parts(self._filter(nodes.List(node.nodes, lineno=node.lineno), CONCAT, [], node.lineno))

    def _compare(self, node: nodes.Compare) -> nodes.Node:
        """Meter comparisons: both sides may be large, whether they come from the scope or were made here."""
        self._parts(node)
        node.expr = self._metered_operand(node.expr)
        for operand in node.ops:
            operand.expr = self._metered_operand(operand.expr)
        return node

    def _metered_operand(self, node: nodes.Expr) -> nodes.Expr:
        if isinstance(node, nodes.Const):
            return node
        return self._filter(node, COMPARED, [], node.lineno)

    def _pair(self, node: nodes.Pair) -> nodes.Node:
        """Let only strings be keys: JSON has no others, and hashing a tuple can take forever."""
        self._parts(node)
        node.key = self._filter(node.key, KEY, [], node.lineno)
        return node

    def _filter_or_test(self, node: nodes.Filter | nodes.Test) -> nodes.Node:
        """Refuse an unknown name, and a regular expression that is written out and cannot be used."""
        constants = takewhile(lambda each: isinstance(each, nodes.Const), node.args)
        written = [cast(nodes.Const, each).value for each in constants]
        failure = check_arguments(node.name, written) if written else None
        if failure is not None:
            self._fault(node, failure.message, failure.hint)
        kind = "filter" if isinstance(node, nodes.Filter) else "test"
        known = self.environment.filters if kind == "filter" else self.environment.tests
        if node.name not in known:
            names = sorted(each for each in known if " " not in each)
            hint = _INSTEAD.get(node.name) or meant(node.name, names) or f"known: {listing(names)}"
            self._fault(node, f'there is no {kind} called "{node.name}"', hint)
        return self._parts(node)

    def _for(self, node: nodes.For) -> nodes.Node:
        """Meter the loop: a pass costs a step, and more if its body prints much fixed text."""
        size = sum(len(data.data) for each in node.body for data in each.find_all(nodes.TemplateData))
        node.iter = self._filter(cast(nodes.Expr, node.iter), LOOP, [nodes.Const(size)], node.lineno)
        return self._parts(node)

    def generic_visit(self, node: nodes.Node, *args: object, **kwargs: object) -> nodes.Node:
        """Refuse tags that need other templates; rewrite the parts of everything else."""
        tag = _REFUSED_TAGS.get(type(node))  # type: ignore[arg-type]
        if tag is not None:
            self._fault(node, f"the tag {{% {tag} %}} is not available", "a template stands alone")
            return node
        return super().generic_visit(node)

    def _parts(self, node: nodes.Node) -> nodes.Node:
        return super().generic_visit(node)

    def _static(self, node: nodes.Expr) -> nodes.Node | None:
        found = _constant_path(node)
        if found is None:
            return None
        base, keys = found
        name = base.name
        if base.ctx != "load" or name in self._local or name in FUNCTIONS or name in ("self", "super"):
            return None
        if keys and name in NODE_MAPS and not isinstance(keys[0], str):
            return None
        path = build(name, keys)
        self.paths.append(path)
        if id(node) not in self._lenient:
            self._strict.append(path)
        return self._filter(nodes.Const(len(self.paths) - 1), PATH, [], node.lineno)

    def _is_node_map(self, node: nodes.Node) -> bool:
        return isinstance(node, nodes.Name) and node.name in NODE_MAPS and node.name not in self._local

    def _computed(self, node: nodes.Getitem, key: nodes.Expr | None = None) -> nodes.Node:
        """Replace `nodes[name]`, and the key read from it if there is one."""
        root = node.node.name  # type: ignore[attr-defined]
        self._found.append(References(roots=frozenset({root}), dynamic=True))
        return self._parts(self._filter(node.arg, NODE, [key] if key is not None else [], node.lineno))

    def _chosen(self, node: nodes.Getattr | nodes.Getitem, key: nodes.Expr) -> nodes.Node | None:
        below = node.node
        if (
            isinstance(below, nodes.Getitem)
            and self._is_node_map(below.node)
            and not isinstance(below.arg, nodes.Slice)
        ):
            return self._computed(below, key)
        return None

    def _filter(self, value: nodes.Expr, name: str, args: list[nodes.Expr], line: int) -> nodes.Filter:
        made = nodes.Filter(value, name, args, [], None, None, lineno=line)
        made.set_environment(self.environment)
        return made

    def _fault(self, node: nodes.Node, message: str, hint: str) -> None:
        self.faults.append(Fault(message, node.lineno, hint))


def constant_key(node: nodes.Node) -> Key | None:
    """Return the key of a subscription or dotted name if it is written out, else None."""
    if isinstance(node, nodes.Getattr):
        return None if node.attr.startswith("_") else node.attr
    if not isinstance(node, nodes.Getitem):
        return None
    arg, sign = (node.arg.node, -1) if isinstance(node.arg, nodes.Neg) else (node.arg, 1)
    if isinstance(arg, nodes.Const):
        if type(arg.value) is int:
            return sign * arg.value
        if type(arg.value) is str and sign == 1:
            return arg.value
    return None


def _constant_path(node: nodes.Node) -> tuple[nodes.Name, list[Key]] | None:
    """The name and the keys of a path whose keys are all written out."""
    keys: list[Key] = []
    while not isinstance(node, nodes.Name):
        key = constant_key(node)
        if key is None:
            return None
        keys.append(key)
        node = node.node  # type: ignore[attr-defined]
    return node, keys[::-1]


_ITEMS: Mapping[type[nodes.Node], tuple[str, ...]] = {
    nodes.Assign: ("node",),
    nodes.List: ("items",),
    nodes.Tuple: ("items",),
    nodes.Pair: ("value",),
    nodes.Call: ("args",),
    nodes.Keyword: ("value",),
    nodes.Filter: ("args",),
    nodes.Getitem: ("arg",),
    nodes.Macro: ("defaults",),
    nodes.With: ("values",),
}
"""Where a missing value is only passed on, by kind of node."""


def _lenient_uses(tree: nodes.Template) -> tuple[set[int], list[tuple[str, list[Key]]]]:
    """Find the expressions (by identity) whose value may be missing, and the paths that are tested for a key."""
    lenient: set[int] = set()
    tested: list[tuple[str, list[Key]]] = []
    for each in tree.find_all(nodes.Node):
        if isinstance(each, nodes.Test) and each.name in ("defined", "undefined"):
            _let_pass(each.node, lenient)
            if found := _constant_path(each.node):
                tested.append((found[0].name, found[1]))
        elif isinstance(each, nodes.Filter) and each.name in ("default", "d") and each.node is not None:
            _let_pass(each.node, lenient)
        elif isinstance(each, nodes.Compare) and isinstance(each.expr, nodes.Const) and type(each.expr.value) is str:
            holders = [_constant_path(operand.expr) for operand in each.ops if operand.op in ("in", "notin")]
            tested += [(found[0].name, [*found[1], each.expr.value]) for found in holders if found]
        for field in _ITEMS.get(type(each), ()):
            values = getattr(each, field)
            for value in values if isinstance(values, list) else [values]:
                _let_pass(value, lenient)
    return lenient, tested


def _let_pass(value: nodes.Node, lenient: set[int]) -> None:
    """Add an expression and those that its value may be."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        lenient.add(id(each))
        match each:
            case nodes.CondExpr():
                waiting += [part for part in (each.expr1, each.expr2) if part is not None]
            case nodes.And() | nodes.Or():
                waiting.append(each.right)
            case nodes.Getattr() | nodes.Getitem():
                waiting.append(each.node)


def _variables(tree: nodes.Template) -> frozenset[str]:
    """Find every name that the template sets somewhere; what it means elsewhere is left to Jinja."""
    names = {node.name for node in tree.find_all(nodes.Name) if node.ctx != "load"}
    if tree.find(nodes.For) is not None:
        names.add("loop")
    for macro in tree.find_all(nodes.Macro):
        names.add(macro.name)
    if tree.find(nodes.Macro) is not None or tree.find(nodes.CallBlock) is not None:
        names |= _MACRO_NAMES
    return frozenset(names)
