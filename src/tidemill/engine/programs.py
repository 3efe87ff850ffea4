"""A workflow with its expressions compiled: what a worker keeps per digest, for as long as it is in use."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.blobs.payloads import encode_value
from tidemill.expressions.conditions import Condition, compiled
from tidemill.expressions.templates import Template, compile_template
from tidemill.kernel.model import Node, Workflow


@dataclass(frozen=True, slots=True)
class Program:
    """The expressions of one node."""

    config: Template
    constant: bytes | None
    """The config's text when it has no templates: each attempt gets its own copy of it."""
    when: Condition | None
    over: Template | None
    again: Condition | None
    rules: tuple[Condition, ...]


class Flow:
    """A workflow and its programs, each compiled the first time it is needed."""

    __slots__ = ("_outputs", "_programs", "_undoing", "workflow")

    def __init__(self, workflow: Workflow) -> None:
        self.workflow = workflow
        self._programs: dict[str, Program] = {}
        self._outputs: Template | None = None
        self._undoing: dict[str, Template] = {}

    def undoing(self, node: Node) -> Template:
        """The config of the node's compensator."""
        known = self._undoing.get(node.id)
        if known is None:
            assert node.compensator is not None
            known = self._undoing[node.id] = compile_template(node.compensator.config)
        return known

    def program(self, node: Node) -> Program:
        """The node's expressions."""
        known = self._programs.get(node.id)
        if known is None:
            known = self._programs[node.id] = _compile(node)
        return known

    @property
    def outputs(self) -> Template:
        """The run's outputs."""
        if self._outputs is None:
            self._outputs = compile_template(self.workflow.outputs)
        return self._outputs


def _compile(node: Node) -> Program:
    config = compile_template(node.config)
    return Program(
        config=config,
        constant=encode_value(node.config) if config.is_constant else None,
        when=None if node.when is None else compiled(node.when),
        over=None if node.map is None else compile_template(node.map.over),
        again=None if node.loop is None else compiled(node.loop.condition),
        rules=() if node.branch is None else tuple(compiled(rule.condition) for rule in node.branch.rules),
    )
