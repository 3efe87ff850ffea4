"""Readers of document fields, and the tables of all keys that a node may have.

A reader `(place, key, value)` returns the normal form of a value, or records a problem and returns None, so that
reading continues as if the key were absent. A table describes a mapping; unknown keys are problems with the nearest
known key as a hint. The tables are the reference of what an author may write in a node, in our spelling and the others
we accept. What a field means for the graph is not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from tidemill.expressions.errors import number_hint
from tidemill.expressions.scope import RESERVED, is_template
from tidemill.kernel.document import synonyms
from tidemill.kernel.document.problems import DocumentPath, escaped, shown
from tidemill.kernel.model import Json

Reader = Callable[[DocumentPath, str, Json], Json]


class Table:
    """The keys of a mapping: spelling to (normal name, reader), in the order of the normal form.

    `instead` says of keys of other engines what to write, where that is no other key of this mapping.
    """

    __slots__ = ("entries", "instead", "order")

    def __init__(self, entries: Mapping[str, tuple[str, Reader]], instead: Mapping[str, str] | None = None) -> None:
        self.instead = instead or {}
        self.order = tuple(dict.fromkeys(name for name, _ in entries.values()))
        rank = {name: rank for rank, name in enumerate(self.order)}
        self.entries = {key: (name, reader, rank[name]) for key, (name, reader) in entries.items()}


NAME_LENGTH_MAX = 128
SECONDS_MAX = 10 * 366 * 24 * 3600
COUNT_MAX = 10**12

_ID = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_KINDS = {
    dict: "a mapping",
    list: "a list",
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
}


def kind(value: Json) -> str:
    return _KINDS.get(type(value), "null" if value is None else f"a {type(value).__name__}")


def wrong_type(place: DocumentPath, key: str, value: Json, wanted: str, hint: str = "") -> None:
    what = f"`{shown(key)}` must be" if key else "must be"
    place.problem("wrong_type", key, f"{what} {wanted}, not {kind(value)}", hint)


def read_table(place: DocumentPath, raw: Mapping[str, Json], table: Table) -> dict[str, Json]:
    """Read a mapping by a table, in the table's order; null is the same as absent."""
    read: dict[str, Json] = {}
    entries = table.entries
    last, ordered = -1, True
    for key, value in raw.items():
        entry = entries.get(key)
        if entry is None:
            unknown_key(place, key, table)
            continue
        if value is None:
            continue
        name, reader, rank = entry
        if name in read:
            place.problem("conflicting_keys", key, f"`{key}` repeats another key", f"keep `{name}`")
            continue
        result = reader(place, key, value)
        if result is not None:
            read[name] = result
            ordered = ordered and rank > last
            last = rank
    return read if ordered else {name: read[name] for name in table.order if name in read}


def unknown_key(place: DocumentPath, key: str, table: Table) -> None:
    word = key.replace("-", "_").lower()
    known = synonyms.our_key(word, table.entries)
    hint = f"did you mean `{known}`?" if known else place.found.nearest(key, table.entries)
    # The documented spelling is offered, also where another one that is read is nearer.
    other = next((name for other, (name, _, _) in table.entries.items() if hint == f"did you mean `{other}`?"), "")
    hint = f"did you mean `{other}`?" if other else f"known keys: {', '.join(table.order)}"
    hint = table.instead.get(word, hint)
    place.problem("unknown_key", escaped(key), f"unknown key `{shown(key)}`", hint)


def require(place: DocumentPath, read: Mapping[str, Json], raw: Mapping[str, Json], *keys: str) -> None:
    """Record missing keys; a key that was given but refused, or in another word, already has its problem."""
    for key in keys:
        if key not in read and raw.get(key) is None and not any(key in synonyms.KEYS.get(word, ()) for word in raw):
            place.problem("missing_key", "", f"`{key}` is missing")


def table_of(instead: Mapping[str, str] | None = None, /, **readers: Reader) -> Table:
    return Table({name: (name, reader) for name, reader in readers.items()}, instead)


def mapping_of(table: Table, *required: str, example: str = "") -> Reader:
    """A reader of mappings; a single required key is offered to an author who wrote only its value."""

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, dict):
            # Only a short text: a document may hold a large value in many places.
            only = shown(f'"{value[:NAME_LENGTH_MAX]}"') if len(required) == 1 and isinstance(value, str) else "…"
            form = f"write {{{', '.join(f'{name}: {only}' for name in required)}}}"
            keys = f"write {example}" if example else f"keys: {', '.join(table.order)}"
            return wrong_type(place, key, value, "a mapping", form if required else keys)
        inner = place.child(key)
        result = read_table(inner, value, table)
        require(inner, result, value, *required)
        return result

    return read


def anything(place: DocumentPath, key: str, value: Json) -> Json:
    """Free-form JSON; the node type or the expression language checks it later."""
    return value


def text(place: DocumentPath, key: str, value: Json) -> Json:
    return value if isinstance(value, str) else wrong_type(place, key, value, "a string")


def flag(place: DocumentPath, key: str, value: Json) -> Json:
    return value if isinstance(value, bool) else wrong_type(place, key, value, "true or false")


def whole(low: int, high: int = COUNT_MAX) -> Reader:
    """A reader of whole numbers within bounds; true and 3.0 are not whole numbers."""

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, int) or isinstance(value, bool):
            wanted = "a whole number" if high == COUNT_MAX else f"a whole number from {low} to {high}"
            return wrong_type(place, key, value, wanted, number_hint(key, value))
        if low <= value <= high:
            return value
        place.problem("out_of_range", key, f"`{key}` is {shown(str(value))}, it must be {low} to {high}")
        return None

    return read


def number(low: float, high: float, *, above: bool = False, scale: float = 1, hint: str = "") -> Reader:
    """A reader of numbers within bounds; `scale` turns the author's unit into ours, `above` excludes the bound."""

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, int | float) or isinstance(value, bool):
            return wrong_type(place, key, value, "a number", number_hint(key, value))
        if low / scale <= value <= high / scale and not (above and value * scale <= low):
            return value if scale == 1 else _scaled(value, scale)
        limit = f"at most {high / scale:,.10g}"
        if value * scale <= low:
            limit = f"more than {low / scale:,.10g}" if above else f"at least {low / scale:,.10g}"
        place.problem("out_of_range", key, f"`{key}` is {shown(str(value))}, it must be {limit}", hint)
        return None

    return read


def _scaled(value: float, scale: float) -> float:
    """Convert a unit; whole results become integers, so that equal documents stay equal."""
    result = round(value * scale, 9)
    return int(result) if result == int(result) else result


_NO_TIME = "leave it out for none"
seconds = number(0.001, SECONDS_MAX, hint=_NO_TIME)
from_ms = number(0.001, SECONDS_MAX, scale=0.001, hint=_NO_TIME)
from_minutes = number(0.001, SECONDS_MAX, scale=60, hint=_NO_TIME)
from_hours = number(0.001, SECONDS_MAX, scale=3600, hint=_NO_TIME)


def choice(*options: str, also: str = "", hints: Mapping[str, str] | None = None) -> Reader:
    """A reader of one of some words; `also` is another form that the hint offers, `hints` are for wrong words."""

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, str):
            return wrong_type(place, key, value, "a string")
        if value in options:
            return value
        hint = (hints or {}).get(value) or place.found.nearest(value, options)
        hint = hint or f"one of {', '.join(options)}{f', or {also}' if also else ''}"
        place.problem("unknown_value", key, f"`{key}` cannot be `{shown(value)}`", hint)
        return None

    return read


def matching(pattern: str, what: str, length_max: int = NAME_LENGTH_MAX) -> Reader:
    compiled = re.compile(pattern)

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, str):
            return wrong_type(place, key, value, "a string")
        if compiled.fullmatch(value) and len(value) <= length_max:
            return value
        near = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-") if key == "name" else ""
        hint = f"{f'write {shown(near)}: ' if near else ''}{what}, at most {length_max}"
        place.problem("bad_name", key, f"`{shown(value)}` is not a name for `{key}`", hint)
        return None

    return read


def node_ids(place: DocumentPath, key: str, value: Json) -> Json:
    """Unique node ids in the author's order; the compiler checks that they exist."""
    if not isinstance(value, list):
        hint = f"write [{shown(value)}]" if isinstance(value, str) else ""
        return wrong_type(place, key, value, "a list of node ids", hint)
    if len(value) == 1 and isinstance(value[0], str):
        return value
    kept: dict[str, None] = {}
    inner = place.child(key)
    for step, item in enumerate(value):
        if isinstance(item, str):
            kept[item] = None
        else:
            inner.problem("wrong_type", str(step), f"`{key}` holds {kind(item)}, it must hold node ids")
    return list(kept)


def is_id(value: str) -> bool:
    return len(value) <= NAME_LENGTH_MAX and _ID.fullmatch(value) is not None


TYPE_SPELLINGS = {
    "call_external_service": "http",
    "llm_service": "llm",
    "task": "python",
    "function": "python",
    "decision": "value",
}
UNLIMITED = "unlimited"
PYTHON_FUNCTION_FIELD = "function"
"""The `python` type's field for the function name; a compensator may give it as `action`."""

_ESCALATION_POLICIES = {"auto_approve_after_timeout": "approve", "auto_reject_after_timeout": "reject"}
_TYPE_NAME = matching(r"[A-Za-z_][A-Za-z0-9_.-]*(@[1-9][0-9]{0,5})?", "a name such as `http` or `http@1`")
_BLOB = matching(r"sha256:[A-Za-z0-9_-]+", "a digest such as sha256:…")


def ident(place: DocumentPath, key: str, value: Json) -> Json:
    """An ill-formed id is still used to resolve edges, so that one mistake gives one problem."""
    if not isinstance(value, str):
        return wrong_type(place, key, value, "a string")
    if value in RESERVED:
        place.problem("reserved_id", key, f"`{value}` is a reserved word", f"for example `{value}_1`")
    elif not is_id(value):
        hint = "a letter or _, then letters, digits, _ and -, at most 128"
        place.problem("bad_name", key, f"`{shown(value)}` cannot be the id of a node", hint)
    return value


def type_name(place: DocumentPath, key: str, value: Json) -> Json:
    name = _TYPE_NAME(place, key, value)
    if name is None:
        return None
    base, at, major = name.partition("@")
    return TYPE_SPELLINGS.get(base, base) + at + major


def config_ref(place: DocumentPath, key: str, value: Json) -> Json:
    """A blob's digest: plain, with a scheme, or in a mapping beside a type."""
    if isinstance(value, dict):
        read = read_table(place.child(key), value, table_of(type_url=text, cas_ref=text))
        require(place.child(key), read, value, "cas_ref")
        value = read.get("cas_ref")
        if value is None:
            return None
    return _BLOB(place, key, value.removeprefix("cas://") if isinstance(value, str) else value)


_attempts = whole(1, 1_000_000)
RETRY = Table(
    {
        "max_attempts": ("max_attempts", _attempts),
        "backoff_seconds": ("backoff_seconds", number(0, SECONDS_MAX)),
        "backoff_ms": ("backoff_seconds", number(0, SECONDS_MAX, scale=0.001)),
        "multiplier": ("multiplier", number(1, 1000)),
        "max_backoff_seconds": ("max_backoff_seconds", number(0, SECONDS_MAX)),
        "max_backoff_ms": ("max_backoff_seconds", number(0, SECONDS_MAX, scale=0.001)),
        "jitter": ("jitter", number(0, 1)),
    }
)


def retry(place: DocumentPath, key: str, value: Json) -> Json:
    """A bare number is the number of attempts."""
    if isinstance(value, int) and not isinstance(value, bool):
        attempts = _attempts(place, key, value)
        return None if attempts is None else {"max_attempts": attempts}
    if not isinstance(value, dict):
        wanted = "a number of attempts or a mapping"
        return wrong_type(place, key, value, wanted, "for example 3, or {max_attempts: 3, backoff_seconds: 5}")
    return mapping_of(RETRY)(place, key, value)


def join(place: DocumentPath, key: str, value: Json) -> Json:
    if isinstance(value, dict):
        return mapping_of(table_of(quorum=whole(1)), "quorum")(place, key, value) or None
    return choice("all", "strict", "any", also="{quorum: 2}")(place, key, value)


def wait_for_all(place: DocumentPath, key: str, value: Json) -> Json:
    value = flag(place, key, value)
    return None if value is None else ("all" if value else "any")


def seed_limits(place: DocumentPath, key: str, value: Json) -> Json:
    """A node's deadline is its time-out; `max_hops` exists only for a whole run."""
    read = mapping_of(table_of(deadline_s=seconds, max_hops=whole(1)))(place, key, value)
    if read and "max_hops" in read:
        hint = "set `limits.max_hops` of the workflow"
        place.warning("ignored_key", key, "`max_hops` bounds a run, not a node, and is ignored here", hint)
    return read.get("deadline_s") if read else None


_ON_ERROR = dict.fromkeys(("ignore", "skip", "pass"), "write continue: the run continues with the error as the output")


def on_error(place: DocumentPath, key: str, value: Json) -> Json:
    if isinstance(value, dict):
        return mapping_of(table_of(route=node_ids), "route")(place, key, value) or None
    return choice("fail", "continue", also="{route: [node]}", hints=_ON_ERROR)(place, key, value)


def switchable(reader: Reader) -> Reader:
    """`enabled: false` is the same as an absent key."""

    def read(place: DocumentPath, key: str, value: Json) -> Json:
        if not isinstance(value, dict) or "enabled" not in value:
            return reader(place, key, value)
        enabled = flag(place.child(key), "enabled", value["enabled"])
        if enabled is False:
            return None
        return reader(place, key, {name: item for name, item in value.items() if name != "enabled"})

    return read


_RULE = table_of(condition=anything, next_nodes=node_ids)


def rules(place: DocumentPath, key: str, value: Json) -> Json:
    if not isinstance(value, list):
        return wrong_type(place, key, value, "a list of rules")
    read_rule = mapping_of(_RULE, "condition", "next_nodes")
    inner = place.child(key)
    # A refused rule keeps its index, so that the paths of the others stay valid.
    return [read_rule(inner, str(step), rule) or {} for step, rule in enumerate(value)]


BRANCH = table_of(
    type=choice("conditional", "agent_driven"), rules=rules, available_next_nodes=node_ids, default=node_ids
)


def branch(place: DocumentPath, key: str, value: Json) -> Json:
    read = mapping_of(BRANCH)(place, key, value)
    if read is None:
        return None
    inner = place.child(key)
    read = {"type": "conditional", **read}
    wanted, other = ("rules", "available_next_nodes")
    if read["type"] == "agent_driven":
        wanted, other = other, wanted
    if not read.get(wanted) and not (wanted in value and wanted not in read):
        inner.problem(
            "empty_branch", "", f"the branch is {read['type']} but has no `{wanted}`", "it could never choose a node"
        )
    if other in read:
        inner.problem("conflicting_keys", other, f"`{other}` has no effect in a branch of type {read['type']}")
    return read


def max_iterations(place: DocumentPath, key: str, value: Json) -> Json:
    return value if value == UNLIMITED else whole(1)(place, key, value)


def delay(place: DocumentPath, key: str, value: Json) -> Json:
    """A number of seconds, or one template that renders to it."""
    if not is_template(value):
        return seconds(place, key, value)
    bare = value.strip()
    if bare.startswith("{{") and bare.endswith("}}") and bare.count("{{") == 1:
        return bare
    hint = 'for example "{{ output.retry_after }}"'
    place.problem("wrong_type", key, f"`{key}` must be a number or a single {{{{ expression }}}}", hint)
    return None


LOOP = table_of(
    synonyms.OF_LOOP,
    condition=anything,
    max_iterations=max_iterations,
    loop_back_to=text,
    break_path=node_ids,
    timeout_path=node_ids,
    delay_seconds=delay,
)


def map_over(place: DocumentPath, key: str, value: Json) -> Json:
    """A list, or one template that can render to a list; any other text stays a string."""
    if isinstance(value, list):
        return value
    if isinstance(value, str):
        bare = value.strip()
        if bare.startswith("{{") and bare.endswith("}}"):
            return value
        hint = 'for example "{{ fetch.output.items }}"'
        place.problem("map_over", key, "`over` is a plain string, so it can never be a list", hint)
        return None
    return wrong_type(place, key, value, "a list or a template of one")


def tolerate(place: DocumentPath, key: str, value: Json) -> Json:
    if isinstance(value, str) and value.endswith("%"):
        return wrong_type(place, key, value, "a whole number", "write how many items may fail, such as 10")
    return whole(0)(place, key, value)


MAP = table_of(over=map_over, max_parallel=whole(1), tolerate=tolerate)


def mapped(place: DocumentPath, key: str, value: Json) -> Json:
    """A refused map is still one, so that its `item` is not refused, too."""
    return mapping_of(MAP, "over")(place, key, value) or {}


TIMEOUTS = {
    "timeout_seconds": ("timeout_seconds", seconds),
    "timeout_sec": ("timeout_seconds", seconds),
    "timeout_ms": ("timeout_seconds", from_ms),
    "timeout_minutes": ("timeout_seconds", from_minutes),
    "timeout_hours": ("timeout_seconds", from_hours),
}

COMPENSATOR = Table(
    {
        "type": ("type", type_name),
        "handler": ("type", type_name),
        "action": ("action", text),
        "config": ("config", anything),
        **TIMEOUTS,
        "retry": ("retry", retry),
    }
)


def compensator(place: DocumentPath, key: str, value: Json) -> Json:
    read = mapping_of(COMPENSATOR)(place, key, value)
    if read is None:
        return None
    inner = place.child(key)
    action = read.pop("action", None)
    if action is None:
        require(inner, read, {**value, "type": value.get("type", value.get("handler"))}, "type")
        return read
    for other in ("type", "config"):
        if read.pop(other, None) is not None:
            inner.problem("conflicting_keys", other, f"`action` and `{other}` cannot be given together", "use `type`")
    return {"type": "python", "config": {PYTHON_FUNCTION_FIELD: action}, **read}


_DELIVERY = {
    "exactly_once": "a call to the outside happens at least once or at most once: write at_least_once and send the"
    " attempt's effect key along, or at_most_once; `sql` on the store is done exactly once"
}

NODE = Table(
    {
        "id": ("id", ident),
        "node_id": ("id", ident),
        "type": ("type", type_name),
        "handler": ("type", type_name),
        "config": ("config", anything),
        "human_config": ("config", anything),
        "agent_config": ("config", anything),
        "config_ref": ("config_ref", config_ref),
        "dependencies": ("dependencies", node_ids),
        "dependents": ("dependents", node_ids),
        "when": ("when", anything),
        "join": ("join", join),
        "wait_for_all": ("join", wait_for_all),
        "map": ("map", mapped),
        "loop": ("loop", switchable(mapping_of(LOOP, "condition", "max_iterations"))),
        "branch": ("branch", switchable(branch)),
        "on_error": ("on_error", on_error),
        "compensator": ("compensator", compensator),
        **TIMEOUTS,
        "limits": ("timeout_seconds", seed_limits),
        "retry": ("retry", retry),
        "delivery": ("delivery", choice("at_least_once", "at_most_once", hints=_DELIVERY)),
        "queue": ("queue", matching(r"[A-Za-z0-9_.:-]+", "letters, digits, _ . : -")),
        "priority": ("priority", whole(0, 9)),
    },
    synonyms.OF_NODE,
)


_AGENT_SPELLINGS = {"available_tools": "tools", "timeout_sec": "timeout_seconds", "session_id": "session"}


def _renamed(place: DocumentPath, config: dict[str, Json]) -> dict[str, Json]:
    """The settings of an agent with other spellings of their names translated."""
    read: dict[str, Json] = {}
    for key, value in config.items():
        name = _AGENT_SPELLINGS.get(key, key)
        if name in read or (name != key and name in config):
            place.problem("conflicting_keys", key, f"`{key}` repeats `{name}`", f"keep `{name}`")
            continue
        read[name] = value
    return read


def read_node(place: DocumentPath, raw: Json, given_id: str | None = None) -> dict[str, Json] | None:
    """A node in normal form, but with its edges; `given_id` is its key where nodes are written as a mapping."""
    if not isinstance(raw, dict):
        wrong_type(place, "", raw, "a mapping")
        return None
    node = read_table(place, raw, NODE)
    if given_id is not None:
        own = node.pop("id", None)
        if own is None:
            ident(place, "", given_id)
        elif own != given_id:
            place.problem("conflicting_keys", "id", f"the key above says `{shown(given_id)}`", "keep one of the two")
        node = {"id": given_id, **node}
    for key, *others in (("id", "node_id", "name"), ("type", "handler")):
        if key not in node and all(raw.get(each) is None for each in (key, *others)):
            place.problem("missing_key", "", f"`{key}` is missing")
    if "loop" in node and "id" in node:
        full = {"loop_back_to": node["id"], **node["loop"]}
        node["loop"] = {name: full[name] for name in LOOP.order if name in full}
    if "config_ref" in node and "config" in node:
        # An inline `human_config` or `agent_config` wins over `config_ref`; an inline `config` conflicts.
        if raw.get("config") is not None:
            place.problem("conflicting_keys", "config_ref", "`config` and `config_ref` are both given", "keep one")
        else:
            hint = "remove one of the two"
            place.warning("ignored_key", "config_ref", "`config_ref` is ignored because `config` is given", hint)
            del node["config_ref"]
    kind = str(node.get("type")).partition("@")[0]
    if kind == "agent" and isinstance(node.get("config"), dict):
        node["config"] = _renamed(place.child("config"), node["config"])
    if isinstance(node.get("config"), dict) and kind == "human":
        # Translate other spellings of approval settings.
        renamed = dict(node["config"])
        if "approval_ui_url" in renamed:
            renamed["approval_url"] = renamed.pop("approval_ui_url")
        policy = renamed.pop("escalation_policy", None)
        if policy is not None:
            read = choice(*_ESCALATION_POLICIES)(place.child("config"), "escalation_policy", policy)
            renamed["on_timeout"] = _ESCALATION_POLICIES.get(str(read), "fail")
        node["config"] = renamed
    return node
