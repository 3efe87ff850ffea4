"""Workflows with compiled expressions, cached per digest; content that a document refers to by digest is inlined.

Content is inlined before compiling, so the digest of a version covers everything that it runs, and the blobs may be
collected afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from tidemill.blobs.payloads import decode_value, encode_value
from tidemill.errors import Problem, Rejected, Unavailable, rejected
from tidemill.expressions.conditions import Condition, compiled, is_small
from tidemill.expressions.scope import has_syntax
from tidemill.kernel.document.normalize import borrowed_in
from tidemill.kernel.document.reader import normalise
from tidemill.kernel.model import Node, Workflow

if TYPE_CHECKING:
    from tidemill.expressions.templates.template import Template


_T = TypeVar("_T")

LOOP_ITEMS = 200
LOOP_TEXT = 2_000
"""Documents with more values or characters are compiled in a thread; so much takes some milliseconds."""

_COMPILING = ThreadPoolExecutor(2, "tidemill-compile")
"""Few threads, because each competes with the event loop for the interpreter's lock."""


async def off_loop(document: Any, work: Callable[..., _T], *given: Any) -> _T:
    """Do work in proportion to a document: in a thread if the document is large."""
    if is_small(document, LOOP_ITEMS, LOOP_TEXT):
        return work(*given)
    return await asyncio.get_running_loop().run_in_executor(_COMPILING, work, *given)


CONTENT_BYTES_MAX = 8 * 1024 * 1024
"""Limit of content that a document refers to; larger content is data, not schema, code or configuration."""


Content = Callable[[str], Awaitable[bytes]]
"""The content of a document by its digest. Raises `Unavailable` or ValueError."""


async def filled_in(document: Any, content: Content) -> Any:
    """Inline the content that a document refers to; raises Rejected with everything that cannot be read."""
    return await _with_configs(await _with_conditions(document, content), content)


async def _with_conditions(document: Any, content: Content) -> Any:
    if not await off_loop(document, borrowed_in, document):
        return document
    copy, problems = await off_loop(document, _copied, document), []
    for borrowed in borrowed_in(copy):
        if borrowed.digest is None:
            problems.append(borrowed.misspelt())
            continue
        try:
            body = await content(borrowed.digest)
            borrowed.fill(body.decode() if borrowed.field == "code" else decode_value(body))
        except (Unavailable, ValueError) as error:
            message = f"{borrowed.key} refers to something that cannot be read: {error}"
            hint = f"store it first (`tidemill blobs put`), or write it into the document as {borrowed.field}"
            problems.append(Problem(code="condition_ref_unreadable", message=message, path=borrowed.path, hint=hint))
    if problems:
        raise Rejected(tuple(problems))
    return copy


def _copied(document: Any) -> Any:
    try:
        return deepcopy(document)
    except RecursionError:
        raise rejected("too_deep", "the document is nested too deep") from None


async def _with_configs(document: Any, content: Content) -> Any:
    nodes = document.get("nodes") if isinstance(document, dict) else None
    each = nodes.values() if isinstance(nodes, dict) else nodes if isinstance(nodes, list) else ()
    if not any(isinstance(node, dict) and "config_ref" in node for node in each):
        return document
    normal, problems = await off_loop(document, normalise, document)
    if problems:
        return document
    for number, node in enumerate(normal["nodes"]):
        digest = node.pop("config_ref", None)
        if digest is None:
            continue
        try:
            node["config"] = decode_value(await content(digest))
        except (Unavailable, ValueError) as error:
            message = f"node {node['id']} refers to a configuration that cannot be read: {error}"
            hint = "store the blob first, or write the configuration into the document"
            path = f"/nodes/{number}/config_ref"
            raise rejected("config_ref_unreadable", message, path=path, hint=hint) from None
    return normal


@dataclass(frozen=True, slots=True)
class CompiledNode:
    config: Template | None
    """None if it is surely constant."""
    constant: bytes | None
    """The config's text if it has no templates: each attempt decodes its own copy."""
    when: Condition | None
    over: Template | None
    again: Condition | None
    delay: Template | None
    """Of the loop, under its keys, so that an error names them; None if it is no template."""
    rules: tuple[Condition, ...]
    at_once: bytes | None
    """The config's text if the handler can be called without evaluating, rendering or recording anything before."""


class CompiledWorkflow:
    """A workflow and its expressions, each compiled on first use."""

    __slots__ = ("_programs", "_templates", "instant", "workflow")

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self.instant: set[str] = set()
        """Nodes whose last attempt here awaited nothing and took less than half a millisecond."""
        self._programs: dict[str, CompiledNode] = {}
        self._templates: dict[str, Template] = {}
        """Configs of compensators by node, and the outputs under an empty name."""

    def undoing(self, node: Node) -> Template:
        assert node.compensator is not None
        return self._template(node.id, node.compensator.config)

    def _template(self, name: str, source: Any) -> Template:
        known = self._templates.get(name)
        if known is None:
            known = self._templates[name] = _compiled_template(source)
        return known

    def is_ready(self, node: Node) -> bool:
        """Whether a node is compiled, or can be in some milliseconds."""
        return node.id in self._programs or is_small(_expressions(node), LOOP_ITEMS, LOOP_TEXT)

    def known_program(self, node: Node) -> CompiledNode | None:
        """The compiled node, unless it is too large to compile now."""
        known = self._programs.get(node.id)
        return known if known is not None else self.program(node) if self.is_ready(node) else None

    async def compile_apart(self, node: Node) -> CompiledNode:
        """Compile a node in a thread."""
        return await asyncio.get_running_loop().run_in_executor(_COMPILING, self.program, node)

    def program(self, node: Node) -> CompiledNode:
        known = self._programs.get(node.id)
        if known is None:
            known = self._programs[node.id] = _compile(node)
        return known

    @property
    def outputs(self) -> Template:
        return self._template("", self.workflow.outputs)


def _expressions(node: Node) -> list[Any]:
    """What is compiled of a node."""
    found = [node.config, node.when]
    if node.map is not None:
        found.append(node.map.over)
    if node.loop is not None:
        found += [node.loop.condition, node.loop.delay]
    if node.branch is not None:
        found += [rule.condition for rule in node.branch.rules]
    return found


def _compile(node: Node) -> CompiledNode:
    text = encode_value(node.config)
    constant: bytes | None = text
    config = over = delay = None
    if has_syntax(text.decode()):
        config = _compiled_template(node.config)
        if not config.is_constant:
            constant = None
    if node.map is not None:
        over = _compiled_template(node.map.over)
    if node.loop is not None and node.loop.delay:
        delay = _compiled_template({"loop": {"delay_seconds": node.loop.delay}})
    return CompiledNode(
        config=config,
        constant=constant,
        when=None if node.when is None else compiled(node.when),
        over=over,
        again=None if node.loop is None else compiled(node.loop.condition),
        delay=delay,
        rules=() if node.branch is None else tuple(compiled(rule.condition) for rule in node.branch.rules),
        at_once=constant if node.when is None and node.delivery == "at_least_once" else None,
    )


def _compiled_template(source: Any) -> Template:
    # Imported where there are templates: many documents have none, and the template language takes long to load.
    from tidemill.expressions.templates.template import compile_template

    return compile_template(source)
