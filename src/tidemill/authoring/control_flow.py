"""Steps and blocks of a workflow function, and how they become nodes with guards, edges and joins.

The first steps of a guarded block carry its condition, or are targets of its exit; the others are skipped with what
they need. An edge into the body of a loop leads to its entry, and one out of it begins at its exit. A join is derived:
a step runs when everything that it needs is there, and what it merely accepts may be missing.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from functools import reduce

from tidemill.authoring.reference import MISSING, Condition, Expression, Json, Place, Reference, cel_of, condition_of
from tidemill.errors import Rejected, rejected

APPROVAL_TYPE = "human"
EXHAUSTED = "timeout_path"
"""The exit of a loop that has used up its passes."""


class Block:
    """A part of a workflow function whose steps run under a guard, or in a loop."""

    def __init__(self, outer: Block | None) -> None:
        self.outer = outer
        self.chain: tuple[Block, ...] = () if outer is None else (*outer.chain, outer)
        """The blocks around it, the outermost first."""


class Guarded(Block):
    """Its steps run if a condition holds."""

    def __init__(self, outer: Block | None, condition: Condition) -> None:
        super().__init__(outer)
        self.condition = condition


class Otherwise(Guarded):
    """Its steps run if the condition of the block before did not hold."""


class Exit(Block):
    """Its steps run if a node takes one of its exits, such as `rejection_path`."""

    def __init__(self, outer: Block | None, holder: str, key: str) -> None:
        super().__init__(outer)
        self.holder, self.key = holder, key


class Loop(Block):
    """Its steps are the body of a loop."""

    def __init__(self, outer: Block | None, max_iterations: int | str, delay: float | Reference | None) -> None:
        super().__init__(outer)
        self.max_iterations, self.delay = max_iterations, delay
        self.condition: Condition | None = None
        self.entry: Step | None = None
        self.exit: Step | None = None


class Step:
    """One node of the graph, as the function called it."""

    def __init__(self, name: str, type_: str, block: Block | None, keys: Mapping[str, Json], *, exact: bool) -> None:
        self.id, self.type, self.block = name, type_, block
        self.keys = dict(keys)
        self.exact = exact
        """Written out by the author, so its join is not derived."""
        self.number = 0
        """Its place in the order of calls."""
        self.written_at = ""
        """File and line of the call."""
        self.config: Json = None
        self.needs: dict[str, None] = {}
        """Steps without whose results it is skipped."""
        self.accepts: dict[str, None] = {}
        """Steps whose results may be missing."""
        self.leaves = False
        """There is a block for one of its exits."""
        self.conditions: list[Condition] = []
        """Conditions under which it runs, in the order in which they are evaluated."""
        self.exits: dict[str, list[str]] = {}
        self.inbound: dict[str, bool] = {}
        """The edges that lead to it, by source; whether it needs what comes over it."""
        self.moved: dict[str, None] = {}
        """Steps that it needs, but whose edge leads elsewhere, because of a loop."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        return () if self.block is None else (*self.block.chain, self.block)

    @property
    def guards(self) -> list[Block]:
        return [block for block in self.blocks if not isinstance(block, Loop)]

    @property
    def loops(self) -> list[Loop]:
        return [block for block in self.blocks if isinstance(block, Loop)]


def inserted(steps: dict[str, Step], step: Step, before: Step | None = None) -> dict[str, Step]:
    """The steps with another one, at the end or before one of them."""
    ordered: dict[str, Step] = {}
    for each in steps.values():
        if each is before:
            ordered[step.id] = step
        ordered[each.id] = each
    return {**ordered, step.id: step}


def surely_happens(steps: Mapping[str, Step], name: str, guards: Iterable[Block] = ()) -> bool:
    """Whether a step, and everything that it needs, is in no other guarded block than these, and has no exits."""
    allowed, seen, waiting = set(guards), {name}, [name]
    while waiting:
        each = steps.get(waiting.pop())
        if each is None or each.leaves or each.exact or not allowed.issuperset(each.guards):
            return False
        waiting += each.needs.keys() - seen
        seen |= each.needs.keys()
    return True


def never_with(steps: Mapping[str, Step], other: Step, step: Step) -> bool:
    """Whether one step never runs where another does: it follows a node that has then taken one of its exits."""
    exits = [block for block in step.blocks if isinstance(block, Exit) and block not in other.blocks]
    holders, seen, waiting = {block.holder for block in exits}, {other.id}, [other.id]
    while holders and waiting:
        each = steps.get(waiting.pop())
        found = set() if each is None else each.needs.keys() - seen
        if found & holders:
            return True
        seen |= found
        waiting += found
    return False


def guard_reads(step: Step, loop: Loop) -> set[str]:
    """The nodes that the conditions of a step's blocks inside a loop read."""
    inner = step.blocks[step.blocks.index(loop) + 1 :]
    return {str(place.node) for block in inner if isinstance(block, Guarded) for place in block.condition.places()}


class NodeWriter:
    """Writes the nodes of a document; `next_id` gives the id of a step that has to be added."""

    def __init__(self, steps: dict[str, Step], next_id: Callable[[str], str]) -> None:
        self.steps, self._next_id = steps, next_id
        self._start: Step | None = None

    def nodes(self) -> list[dict[str, Json]]:
        for step in list(self.steps.values()):
            self._guard(step)
            for name in step.needs:
                self._link(name, step, needed=True)
            for name in step.accepts:
                self._link(name, step, needed=False)
        dying: set[str] = set()
        for step in list(self.steps.values()):
            self._join(step, dying)
        return [self._node(step) for step in self.steps.values()]

    def _guard(self, step: Step) -> None:
        """Give a step the guards of its blocks that nothing it needs has passed already."""
        guards = step.guards
        passed = max((self._depth(name, guards) for name in step.needs), default=0)
        for depth in range(len(guards), 0, -1):
            guard = guards[depth - 1]
            if isinstance(guard, Exit):
                if depth > passed or guard.holder in step.needs:
                    self.steps[guard.holder].exits.setdefault(guard.key, []).append(step.id)
                    step.needs[guard.holder] = None
                    passed = max(passed, self._depth(guard.holder, guards))
            elif isinstance(guard, Guarded) and depth > passed:
                step.conditions.insert(0, guard.condition)
                read = [place for place in guard.condition.places() if place.node in self.steps]
                for place in read:
                    target = step.needs if place.default is MISSING else step.accepts
                    target.setdefault(str(place.node))
                passed = max([passed, *(self._depth(str(p.node), guards) for p in read if p.default is MISSING)])

    def _depth(self, name: str, guards: list[Block]) -> int:
        """How many of these guards a step has passed when another one has."""
        other = self.steps.get(name)
        return 0 if other is None else len([guard for guard in other.guards if guard in guards])

    def _anchor(self, step: Step) -> str:
        """A step that always happens where this one does, whose values may all be missing."""
        for loop in reversed(step.loops):
            if loop.entry is not None and loop.entry is not step:
                return loop.entry.id
        guards = [guard for name in step.accepts if name in self.steps for guard in self.steps[name].guards]
        read = [place.node for guard in guards if isinstance(guard, Guarded) for place in guard.condition.places()]
        for name in read:
            if name in self.steps and not self.steps[name].loops and surely_happens(self.steps, name):
                return name
        if self._start is None:
            self._start = Step(self._next_id("start"), "value", None, {}, exact=False)
            self.steps = inserted(self.steps, self._start, before=next(iter(self.steps.values())))
        return self._start.id

    def _link(self, name: str, step: Step, *, needed: bool) -> None:
        """Add an edge; one into the body of a loop leads to its entry, one out of it begins at its exit."""
        source, target = self.steps.get(name), step
        if self._exit_to(name, step):
            step.inbound[name] = True
            return
        for loop in reversed(step.loops):
            if source is not None and loop not in source.blocks and loop.entry is not None:
                target = loop.entry
        for loop in reversed(source.loops if source is not None else []):
            if loop not in step.blocks and loop.exit is not None:
                source = loop.exit
        key = name if source is None else source.id
        moved = target is not step or key != name
        if moved and needed:
            step.moved[name] = None
        if source is not target:
            target.inbound[key] = target.inbound.get(key, False) or (needed and not moved)

    def _join(self, step: Step, dying: set[str]) -> None:
        """Skip a step when one that it needs was skipped; `dying` are steps whose edges may be dead."""
        risky = [name for name in step.inbound if name in dying]
        unsure = [name for name in step.moved if name in dying]
        chooses = (
            step.exits
            or step.conditions
            or step.keys.keys() & {"when", "branch"}
            or isinstance(step.keys.get("on_error"), dict)
        )
        if risky or unsure or chooses:
            dying.add(step.id)
        if step.exact:
            return
        if risky and len(risky) == len(step.inbound) and not any(step.inbound.values()):
            step.inbound[self._anchor(step)] = True
        if len(step.inbound) < 2:
            risky = []
        elif risky and all(step.inbound.values()):
            step.keys["join"], risky = "strict", []
        for name in dict.fromkeys((*risky, *unsure)):
            taken = self._exit_to(name, step)
            needed = name in unsure or step.inbound[name]
            condition = self._taken(step, name, taken) if taken else self._went_on(step, name, needed)
            if condition:
                # First, because the others may read what is missing.
                step.conditions.insert(0, Expression(condition))

    def _taken(self, step: Step, name: str, key: str) -> str:
        """A CEL condition: what a step waits for has taken one of its exits."""
        output = cel_of(Place(name))
        if key == EXHAUSTED:
            raise _unclear(step, name)
        if key == "on_error":
            return f'{output.removesuffix("output")}meta.status == "FAILED"'
        decision = "reject" if key == "rejection_path" else "changes"
        return f'has({output}) && {output}.decision == "{decision}"'

    def _went_on(self, step: Step, name: str, needed: bool) -> str:
        """A CEL condition: what a step waits for, and may be skipped, has taken its plain edges."""
        exits, output = self.steps[name].exits, cel_of(Place(name))
        if exits.keys() & {"rejection_path", "changes_path"}:
            approved = f'{output}.decision == "approve"'
            return f"has({output}) && {approved}" if needed else f"!has({output}) || {approved}"
        if not needed:
            return ""
        if EXHAUSTED in exits:
            return f"has({cel_of(Place(self._left(step, name)))})"
        return f'{output.removesuffix("output")}meta.status == "COMPLETED"' if exits else f"has({output})"

    def _left(self, step: Step, name: str) -> str:
        """A step that is skipped if the loop that ends at another one has used up its passes."""
        if name not in step.inbound:
            raise _unclear(step, name)
        left = Step(self._next_id(f"{name}_left"), "value", None, {}, exact=False)
        left.config, left.inbound[name], step.inbound[left.id] = True, True, True
        self.steps = inserted(self.steps, left, before=step)
        return left.id

    def _node(self, step: Step) -> dict[str, Json]:
        config, keys = step.config, dict(step.keys)
        for key, targets in step.exits.items():
            if key == "on_error":
                keys["on_error"] = {"route": targets}
            elif key == "timeout_path":
                keys["loop"] = {**keys["loop"], key: targets}
            else:
                config = {**(config or {}), key: targets}
        if step.conditions:
            written = [condition_of(keys["when"])] if "when" in keys else []
            keys["when"] = reduce(operator.and_, [*step.conditions, *written]).render()
        sources = [name for name in step.inbound if not self._exit_to(name, step)]
        node: dict[str, Json] = {"id": step.id, "type": step.type}
        if sources:
            node["dependencies"] = sources
        if config is not None:
            node["config"] = config
        return {**node, **keys}

    def _exit_to(self, name: str, step: Step) -> str:
        """The exit over which one step leads to another, if it is one."""
        exits = self.steps[name].exits if name in self.steps else {}
        return next((key for key, targets in exits.items() if step.id in targets), "")


def _unclear(step: Step, loop: str) -> Rejected:
    message = f"`{step.id}` depends on how the loop at `{loop}` ends, beside values that may be missing"
    hint = "call a task with `tidemill.default(…)` of these values first, and give its result to this step"
    return rejected("join_unclear", f"{step.written_at}: {message}" if step.written_at else message, hint=hint)
