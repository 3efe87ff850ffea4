"""What an agent may change of a graph: the policy of the tool `patch_workflow`, and the tool.

A patch is validated like every other, then compared with the policy, then shown to a person where the policy says so;
only then it is applied. A policy never allows: other keys of the document than nodes and edges, a node that reads
secrets, an agent, a change of or around an approval, a second run of what has run. Reasons go back to the model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from tidemill.agents.port import Draft, PatchResult, Scope
from tidemill.agents.tools import (
    PERSON_READS_MAX,
    Allowance,
    Effect,
    Ended,
    Pending,
    Tool,
    ToolContext,
    ToolResult,
    ToolSource,
    ask_person,
    error_result,
    is_approved,
    problems_result,
    remark_of,
)
from tidemill.errors import Problem
from tidemill.expressions.errors import listing, pointer, shorten
from tidemill.expressions.schema import check_schema, compile_schema
from tidemill.expressions.scope import is_template
from tidemill.handlers.contract import NodeContext, Wait, object_schema
from tidemill.kernel.document.diff import diff_documents
from tidemill.kernel.document.json_patch import NAMES
from tidemill.kernel.model import Node, Workflow

PATCH_NOT_ALLOWED = "patch_not_allowed"
HARMLESS_TYPES = frozenset({"value", "transform", "sleep", "wait_until", "search", "fail", "output"})
"""Types that reach nothing outside the run; a policy allows another one only with a schema of its configs."""
NEVER_TYPES = frozenset({"agent"})
APPROVAL_TYPE = "human"

_SECRETS = re.compile(r"\bsecrets\b")
_ENCODER = msgspec.json.Encoder(order="sorted")


class PatchPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The limits of an author on the patches of an agent."""

    node_types: list[str] | dict[str, Any]
    """Types that may be added, changed and removed, with a JSON Schema of their configs."""
    operations: tuple[str, ...] = ("add", "replace", "remove", "test")
    scopes: tuple[Scope, ...] = ("run",)
    max_nodes_per_patch: int = 5
    max_nodes_per_run: int = 20
    max_versions_per_run: int = 5
    """Versions of the workflow that the node publishes in one run."""
    max_fan_out: int = 10
    """Outgoing edges of a node, and items of a map."""
    max_attempts: int = 3
    max_iterations: int = 10
    protected: tuple[str, ...] = ()
    """Ids of nodes that stay as they are; `*` stands for any text."""
    tags: tuple[str, ...] = ()
    """Tags that a patch of the workflow may move to its version."""
    countersign: Literal["always", "workflow", "never"] = "workflow"
    approvers: tuple[str, ...] = ()
    four_eyes: bool = False
    """A person who submitted or patched the run does not countersign."""
    countersign_seconds: float = 7 * 86_400

    @property
    def configs(self) -> Mapping[str, Any]:
        """The schema of configs by node type; True is any config."""
        return dict.fromkeys(self.node_types, True) if isinstance(self.node_types, list) else self.node_types

    def needs_person(self, scope: Scope) -> bool:
        return self.countersign == "always" or (self.countersign == "workflow" and scope == "workflow")


_COUNT = {"type": "integer", "minimum": 0, "maximum": 1_000}
_NAMES = {"type": "array", "items": {"type": "string", "minLength": 1}}
POLICY_SCHEMA = object_schema(
    ("node_types",),
    node_types={"anyOf": [_NAMES, {"type": "object"}]},
    operations={"type": "array", "items": {"enum": list(NAMES)}},
    scopes={"type": "array", "items": {"enum": ["run", "workflow"]}},
    max_nodes_per_patch=_COUNT,
    max_nodes_per_run=_COUNT,
    max_versions_per_run=_COUNT,
    max_fan_out=_COUNT,
    max_attempts=_COUNT | {"minimum": 1},
    max_iterations=_COUNT,
    protected=_NAMES,
    tags=_NAMES,
    countersign={"enum": ["always", "workflow", "never"]},
    approvers=_NAMES,
    four_eyes={"type": "boolean"},
    countersign_seconds={"type": "number", "exclusiveMinimum": 0, "maximum": 366 * 86_400},
)


def policy_problems(settings: dict[str, Any], path: str) -> Iterator[Problem]:
    """What an author must say more precisely, at the path of an entry of an allow-list."""
    policy = msgspec.convert(settings["policy"], PatchPolicy)
    place = f"{path}/policy/node_types"
    for name, schema in policy.configs.items():
        if name in NEVER_TYPES:
            message = f"no policy allows patches of {name} nodes: their tools are a grant of the author"
            yield Problem(code="config_invalid", message=message, path=place)
        elif name not in HARMLESS_TYPES and not isinstance(schema, dict):
            hint = f"such as {name}: {{properties: {{url: {{pattern: '^https://api.example.com/'}}}}}}"
            message = f"{name} reaches beyond the run: a patch may use it only with configs that fit a schema"
            yield Problem(code="config_invalid", message=message, path=place, hint=hint)
        for problem in check_schema(schema, pointer(place, name)):
            yield msgspec.structs.replace(problem, code="config_invalid")


# Compare a draft with a policy.


def violations(policy: PatchPolicy, draft: Draft, operations: list[dict[str, Any]], *, own: str) -> list[Problem]:
    """Every reason why the policy does not allow a patch of the agent at node `own`."""
    return [
        *_operation_violations(policy, operations),
        *_document_violations(draft),
        *_node_violations(policy, draft, own),
        *_graph_violations(policy, draft),
        *_count_violations(policy, draft),
    ]


def _refused(message: str, path: str = "", hint: str = "") -> Problem:
    return Problem(code=PATCH_NOT_ALLOWED, message=message, path=path, hint=hint)


def _operation_violations(policy: PatchPolicy, operations: list[dict[str, Any]]) -> Iterator[Problem]:
    for number, operation in enumerate(operations):
        name = operation.get("op")
        if name not in policy.operations:
            allowed = f"allowed are {listing(policy.operations)}"
            yield _refused(f"the operation {name} is not allowed", f"/{number}/op", allowed)


def _document_violations(draft: Draft) -> Iterator[Problem]:
    before, after = draft.before_document, draft.after_document
    for key in sorted({*before, *after} - {"nodes", "edges"}):
        if before.get(key) != after.get(key):
            yield _refused(f"`{key}` of the document stays as it is", f"/{key}", "patch nodes and edges only")
    for node in draft.result.rerun:
        yield _refused(f"node {node} has run and would run again", f"/nodes/{node}", "add a node instead")


def _by_id(document: Any) -> dict[str, dict[str, Any]]:
    return {node["id"]: node for node in document["nodes"]}


def type_of(node: Mapping[str, Any]) -> str:
    return str(node["type"]).partition("@")[0]


def _node_violations(policy: PatchPolicy, draft: Draft, own: str) -> Iterator[Problem]:
    before, after = _by_id(draft.before_document), _by_id(draft.after_document)
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old == new and not _rewired(draft, name):
            continue
        place = f"/nodes/{name}"
        if old is not None and (name == own or any(fnmatchcase(name, each) for each in policy.protected)):
            yield _refused(f"node {name} stays as it is", place)
        for node in (old, new):
            if node is not None:
                yield from _type_violations(policy, node, place)
        if new is not None:
            yield from _limit_violations(policy, draft.after.by_id[name], place)


def _rewired(draft: Draft, name: str) -> bool:
    """Whether a node that stays would run at other times: its incoming edges or the loops around it differ."""
    old, new = draft.before.by_id[name], draft.after.by_id[name]
    return set(old.inbound) != set(new.inbound) or set(old.loops) != set(new.loops)


def _type_violations(policy: PatchPolicy, node: dict[str, Any], place: str) -> Iterator[Problem]:
    """A node that is added, changed or removed has an allowed type, a config that fits it, and reads no secrets."""
    parts = [node, *([node["compensator"]] if "compensator" in node else [])]
    for part in parts:
        name = type_of(part)
        if name in NEVER_TYPES or name not in policy.configs:
            allowed = listing(sorted(policy.configs)) or "none"
            yield _refused(f"nodes of type {name} are not yours to change", place, f"allowed are {allowed}")
            continue
        if "config_ref" in part:
            yield _refused("a config by reference cannot be checked", f"{place}/config_ref", "write the config itself")
            continue
        schema = compile_schema(policy.configs[name])
        for problem in schema.problems(part.get("config", {}), f"{place}/config"):
            yield _refused(f"the config is not allowed: {problem.message}", problem.path, problem.hint)
    if _SECRETS.search(_ENCODER.encode(node).decode()):
        yield _refused("a patch cannot add, change or remove a node that reads secrets", place)


def _limit_violations(policy: PatchPolicy, node: Node, place: str) -> Iterator[Problem]:
    attempts = max(node.retry.max_attempts, 0 if node.compensator is None else node.compensator.retry.max_attempts)
    if attempts > policy.max_attempts:
        yield _refused(f"{attempts} attempts, at most {policy.max_attempts} are allowed", f"{place}/retry")
    if node.loop is not None and (node.loop.max_iterations or policy.max_iterations + 1) > policy.max_iterations:
        message = f"a loop makes at most {policy.max_iterations} passes"
        yield _refused(message, f"{place}/loop", f"set max_iterations to at most {policy.max_iterations}")
    if node.map is not None:
        over = node.map.over
        if is_template(over) or not isinstance(over, list):
            hint = "write the items themselves"
            yield _refused("how many items the map has is known only later", f"{place}/map/over", hint)
        elif len(over) > policy.max_fan_out:
            message = f"a map over {len(over)} items, at most {policy.max_fan_out} are allowed"
            yield _refused(message, f"{place}/map/over")


def _graph_violations(policy: PatchPolicy, draft: Draft) -> Iterator[Problem]:
    before, after = draft.before.by_id, draft.after.by_id
    for node in draft.after.nodes:
        old = before.get(node.id)
        grown = old is None or set(node.outbound) - set(old.outbound)
        if grown and len(node.outbound) > policy.max_fan_out:
            message = f"node {node.id} has {len(node.outbound)} edges out, at most {policy.max_fan_out} are allowed"
            yield _refused(message, f"/nodes/{node.id}")
    documents, approved = (_by_id(draft.before_document), _by_id(draft.after_document)), _approved(draft.before)
    changed = {name for name in before if documents[0].get(name) != documents[1].get(name)}
    for name in sorted(approved):
        old, new = before[name], after.get(name)
        same = new is not None and set(old.inbound) == set(new.inbound) and set(old.loops) == set(new.loops)
        if not same or name in changed:
            message = f"node {name} is an approval or comes after one: it and the edges to it stay as they are"
            yield _refused(message, f"/nodes/{name}", "add nodes that nothing approved depends on")
    for name in sorted(changed - approved):
        if (set(before[name].outbound) - set(before[name].plain)) & approved:
            yield _refused(f"node {name} decides whether a person is asked: it stays as it is", f"/nodes/{name}")


def _approved(workflow: Workflow) -> set[str]:
    """The approvals, and every node after one: what a person decides on must not change around the decision."""
    found = {node.id for node in workflow.nodes if node.type.partition("@")[0] == APPROVAL_TYPE}
    waiting = list(found)
    while waiting:
        more = set(workflow.by_id[waiting.pop()].outbound) - found
        found |= more
        waiting += more
    return found


def _count_violations(policy: PatchPolicy, draft: Draft) -> Iterator[Problem]:
    before, after = _by_id(draft.before_document), _by_id(draft.after_document)
    touched = sum(before.get(name) != after.get(name) for name in {*before, *after})
    if touched > policy.max_nodes_per_patch:
        message = f"the patch touches {touched} nodes, at most {policy.max_nodes_per_patch} are allowed"
        yield _refused(message, hint="make a smaller patch")
    added = len(set(after) - draft.original_nodes)
    if set(after) - set(before) and added > policy.max_nodes_per_run:
        message = f"the run would have {added} nodes more than at its start, at most {policy.max_nodes_per_run}"
        yield _refused(message, hint="use the nodes that are there")


# The tool.

PATCH_DESCRIPTION = (
    "Lasting change: changes the graph of this run (scope `run`) or publishes a new version of its workflow (scope "
    "`workflow`) by a JSON Patch (RFC 6902). `/nodes/<id>` addresses a node by its id; edges are {from, to} under "
    "`/edges/-`. Call it without `operations` to read the present document. A policy limits what may be changed; a "
    "refusal lists every reason."
)
_OPERATIONS = {
    "type": "array",
    "maxItems": 50,
    "items": {
        "type": "object",
        "properties": {"op": {"enum": list(NAMES)}, "path": {"type": "string"}, "from": {"type": "string"}},
        "required": ["op", "path"],
    },
}


def patch_source() -> ToolSource:
    schema = object_schema(("policy",), policy=POLICY_SCHEMA)
    return ToolSource("patch_workflow", _make, schema, policy_problems)


async def _make(allowance: Allowance, context: NodeContext) -> tuple[Tool, ...]:
    policy = msgspec.convert(allowance.settings["policy"], PatchPolicy)
    if allowance.four_eyes:
        policy = msgspec.structs.replace(policy, four_eyes=True)

    async def call(context: ToolContext, arguments: dict[str, Any]) -> Ended:
        return await _propose(policy, context, arguments)

    async def resume(context: ToolContext, arguments: dict[str, Any], state: Any, resumed: Any) -> Ended:
        if not is_approved(resumed):
            return error_result("not_countersigned", f"the patch was refused{remark_of(resumed)}")
        return await _apply(policy, context, arguments, str(state))

    properties: dict[str, Any] = {
        "operations": _OPERATIONS,
        "scope": {"enum": list(policy.scopes), "default": policy.scopes[0]} if policy.scopes else {"enum": ["run"]},
        "reason": {"type": "string", "maxLength": 500},
    }
    if policy.tags:
        properties["tag"] = {"enum": list(policy.tags)}
    tool = Tool(
        name="patch_workflow",
        description=PATCH_DESCRIPTION,
        parameters=object_schema((), **properties),
        call=call,
        resume=resume,
        effect=Effect(idempotent=True),
        lane="patch",
    )
    return (tool,)


def _scope_of(policy: PatchPolicy, arguments: Mapping[str, Any]) -> Scope:
    scope: Scope = arguments.get("scope", next(iter(policy.scopes), "run"))
    return scope


async def _propose(policy: PatchPolicy, context: ToolContext, arguments: dict[str, Any]) -> Ended:
    scope, operations = _scope_of(policy, arguments), arguments.get("operations")
    if scope not in policy.scopes:
        return error_result(PATCH_NOT_ALLOWED, f"patches of the {scope} are not allowed")
    if not operations:
        shown = await context.port.document(scope)
        return ToolResult(content={"document": shown.document, "digest": shown.digest})
    if done := await context.port.patched(context.key, scope=scope):
        return ToolResult(content=described(done))
    draft = await context.port.draft(operations, scope=scope)
    if found := violations(policy, draft, operations, own=context.node.node):
        return problems_result(PATCH_NOT_ALLOWED, "the policy does not allow this patch", found)
    if policy.needs_person(scope):
        difference = _difference(draft)
        if len(difference) > PERSON_READS_MAX:
            message = "the patch is too long for a person to read"
            return error_result("patch_too_large", message, hint="make several small ones")
        asked = _request(policy, context, arguments, draft.result, difference)
        return Pending(wait=asked, state=draft.base_digest)
    return await _apply(policy, context, arguments, draft.base_digest)


async def _apply(policy: PatchPolicy, context: ToolContext, arguments: dict[str, Any], base: str) -> Ended:
    applied = await context.port.patch(
        arguments["operations"],
        scope=_scope_of(policy, arguments),
        base_digest=base,
        key=context.key,
        message=str(arguments.get("reason", "")),
        tag=str(arguments.get("tag", "")) if arguments.get("tag") in policy.tags else "",
        versions_max=policy.max_versions_per_run,
    )
    return ToolResult(content=described(applied))


def described(result: PatchResult) -> dict[str, Any]:
    """A patch as the model reads it, without what is empty."""
    shown = msgspec.to_builtins(result)
    return {key: value for key, value in shown.items() if value not in (None, "", [], ())}


def _difference(draft: Draft) -> str:
    changes = diff_documents(draft.before_document, draft.after_document)
    return "\n".join(_ENCODER.encode(each).decode() for each in changes)


def _request(
    policy: PatchPolicy, context: ToolContext, arguments: Mapping[str, Any], result: PatchResult, difference: str
) -> Wait:
    """The question to a person, with the whole difference and not only what the model says of it."""
    parts = {"adds": result.added, "changes": result.changed, "removes": result.removed}
    summary = "; ".join(f"{verb} {listing(names)}" for verb, names in parts.items() if names) or "changes edges"
    reason = shorten(str(arguments.get("reason", "")), 500)
    title = f"{context.node.node} wants to patch the {_scope_of(policy, arguments)}"
    text = f"{summary}\n\nReason given by the model: {reason or 'none'}\n\n{difference}"
    timeout_ms = round(policy.countersign_seconds * 1_000)
    return ask_person(title, text, policy.approvers, policy.four_eyes, timeout_ms=timeout_ms)
