"""Check what callers send: ids, labels, names, reasons, and inputs against the workflow's schema.

All of it goes into the log unchanged and is read for ever, so it must be text, valid Unicode and bounded. A refusal
names the field.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from tidemill.blobs.contract import MARKED, Blobs, files_in
from tidemill.blobs.payloads import NotJson, encode_text, given_text
from tidemill.engine.attempts.results import as_payload, unknown_file
from tidemill.engine.versions import Version
from tidemill.errors import Rejected, rejected
from tidemill.expressions.errors import kind_of
from tidemill.expressions.limits import deeper_than
from tidemill.expressions.schema import compile_schema
from tidemill.kernel.commands import Start
from tidemill.kernel.document.fields import SECONDS_MAX
from tidemill.kernel.events import INLINE_BYTES_MAX, Payload

DEFAULTS_BYTES_MAX = 16 << 20
CHECKED_HERE_MAX = 1 << 18
"""Longer texts are looked through in a thread: all runs of a process wait for its loop."""
PROPERTY_BYTES = 256
"""What looking at one property counts as."""


async def checked_inputs(tenant: str, inputs: Any, schema: Any, blobs: Blobs, bytes_max: int | None = None) -> Payload:
    """The inputs with the schema's defaults, as a payload; raises `Rejected` with every mismatch."""
    value = with_defaults(inputs, schema)
    if schema is not None and value is not inputs:
        await _check_defaults(tenant, value, inputs, blobs)
    if schema is not None:
        problems = compile_schema(schema).problems(value, "/inputs", code="inputs_invalid")
        if problems:
            raise Rejected(problems)
    return await packed(tenant, value, blobs, code="inputs_not_json", path="/inputs", bytes_max=bytes_max)


def with_defaults(inputs: Any, schema: Any) -> Any:
    """The inputs with the `default` of every missing property, at any depth; the argument is not changed."""
    if not isinstance(schema, dict) or b'"default"' not in msgspec.json.encode(schema):
        return {} if inputs is None else inputs
    if inputs is None:
        inputs = schema.get("default", {})
    return inputs if deeper_than(inputs) else _filled(inputs, [schema], schema, DefaultsBudget())


async def _check_defaults(tenant: str, value: Any, inputs: Any, blobs: Blobs) -> None:
    """Refuse defaults that describe a file which is not kept: its author could read the file of another workflow."""
    try:
        text = encode_text(value)
        added = set(files_in(text)) - set(files_in(encode_text(inputs))) if MARKED in text else ()
    except NotJson:
        # `packed` says why.
        return
    for digest in added:
        known = await blobs.stat(tenant, digest)
        if known is None or not known.kept:
            hint = "give it with the inputs, or store it with `tidemill blobs put --keep`"
            message = f"a default describes {digest}, which is not kept"
            raise rejected("blob_unknown", message, path="/inputs", hint=hint)


class DefaultsBudget:
    """Bounds what defaults add to a value: a short schema can repeat a long default for every item of a list."""

    def __init__(self) -> None:
        self._left = DEFAULTS_BYTES_MAX
        self._sizes: dict[int, int] = {}

    def visit(self) -> None:
        self._spend(PROPERTY_BYTES)

    def add(self, default: Any) -> None:
        size = self._sizes.get(id(default))
        if size is None:
            size = self._sizes[id(default)] = len(msgspec.json.encode(default))
        self._spend(size)

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            message = "the defaults of the schema add too much to the inputs"
            raise rejected("inputs_too_large", message, path="/inputs", hint="shorten the defaults, or the lists")


def _filled(value: Any, schemas: list[Any], root: Any, budget: DefaultsBudget) -> Any:
    """Complete a value with the defaults of all schemas that apply; `root` resolves references, not in a default."""
    parts = _applied(schemas, root)
    if isinstance(value, list):
        items = [part["items"] for part in parts if "items" in part]
        return [_filled(each, items, root, budget) for each in value] if items else value
    if not isinstance(value, dict):
        return value
    properties: dict[str, list[Any]] = {}
    for part in parts:
        for name, below in part.get("properties", {}).items():
            budget.visit()
            properties.setdefault(name, []).append(below)
    found = dict(value)
    for name, below in properties.items():
        if name in value:
            found[name] = _filled(value[name], below, root, budget)
        else:
            defaults = [part["default"] for part in _applied(below, root) if "default" in part]
            if defaults:
                budget.add(defaults[0])
                found[name] = _filled(defaults[0], below, None, budget)
    return found


def _applied(schemas: list[Any], root: Any) -> list[dict[str, Any]]:
    """The schemas, those of their `allOf`, and those under `$defs` that they refer to; each once."""
    found: dict[int, dict[str, Any]] = {}
    waiting = list(schemas)
    for each in waiting:
        if isinstance(each, dict) and id(each) not in found:
            found[id(each)] = each
            waiting += each.get("allOf", ())
            kind, _, name = str(each.get("$ref", "")).rpartition("/")
            if root is not None and kind == "#/$defs":
                waiting.append(root.get("$defs", {}).get(name))
    return list(found.values())


async def packed(
    tenant: str, value: Any, blobs: Blobs, *, code: str, path: str, bytes_max: int | None = None
) -> Payload:
    try:
        text = encode_text(value)
        # Its size is known long before all of it is looked at.
        if bytes_max is not None and len(text) > bytes_max:
            raise rejected(
                "inputs_too_large",
                f"the value has {len(text)} bytes of JSON, and at most {bytes_max} are accepted",
                path=path,
                hint="pass large values as blobs (`tidemill blobs put`); "
                "the operator raises `input_bytes` under `[limits]`",
            )
        large = len(text) > CHECKED_HERE_MAX
        text = await asyncio.to_thread(given_text, value, text) if large else given_text(value, text)
    except NotJson as error:
        raise rejected(code, str(error), path=path) from None
    if text.find(MARKED) >= 0:
        await check_described(tenant, text, blobs, path=path)
    return text if len(text) <= INLINE_BYTES_MAX else await as_payload(blobs, tenant, text)


async def check_described(tenant: str, text: bytes, blobs: Blobs, *, path: str) -> None:
    """Refuse a value that describes a file which does not exist."""
    problem = await unknown_file(blobs, tenant, text)
    if problem is not None:
        raise Rejected(msgspec.structs.replace(problem, path=path + problem.path))


RUN_ID_BYTES_MAX = 200
RESERVED_RUN_IDS = frozenset({".", "..", "batch", "bulk", "count", "failures", "resolve", "summary"})
"""What follows `/runs/` in addresses that are those of no run."""
WORDS_MAX = 2_000
LABELS_MAX = 100
LABEL_LENGTH_MAX = 200
PROSE = frozenset(("reason", "comments", "message"))
"""Fields that may have several lines; all others are names."""
# A lone surrogate is a valid str in Python, but cannot be stored.
_NOT_IN_A_LINE = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
_NOT_IN_PROSE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def check_run_id(run_id: Any) -> None:
    if not isinstance(run_id, str) or not run_id.isprintable() or not 0 < len(run_id.encode()) <= RUN_ID_BYTES_MAX:
        message, hint = (
            "a run's key is 1 to 200 bytes of printable text",
            "use an id of your own request, e.g. an order number",
        )
        raise rejected("run_key_invalid", message, hint=hint)
    if run_id in RESERVED_RUN_IDS:
        message = f"a run with the key {run_id} would have an ambiguous address"
        raise rejected("run_key_invalid", message, hint=f"choose another key, such as {run_id.strip('.') or 'run'}-1")
    if run_id.startswith("@"):
        hint = f"leave out the @: {run_id.lstrip('@') or 'run-1'}"
        raise rejected("run_key_invalid", "a run's key does not begin with @, as @last does", hint=hint)


def check_keys(keys: Sequence[Any], inputs: int) -> None:
    """Refuse keys that are not one for each of the inputs."""
    hint = "give each input a key of its own, or leave `keys` out"
    if len(keys) != inputs:
        message = f"`inputs` has {inputs}, `keys` has {len(keys)}"
        raise rejected("keys_mismatch", message, path="/keys", hint=hint)
    first: dict[str, int] = {}
    for number, key in enumerate(keys):
        if isinstance(key, str) and (other := first.setdefault(key, number)) != number:
            message = f"inputs {other} and {number} have the same key {key}"
            raise rejected("keys_mismatch", message, path=f"/keys/{number}", hint=hint)


Seconds = float | timedelta
"""How long callers are ready to wait, or a run may take."""


def check_limit(limit: Any) -> None:
    if not isinstance(limit, int) or limit < 1:
        message = f"a page has at least one row, not {limit!r}"
        raise rejected("limit_invalid", message, path="/limit", hint="ask for 1 or more")


def timeout_of(*given: Any) -> float | None:
    """The seconds that a caller waits, given as a number or a timedelta: the first that is not None."""
    seconds = next((in_seconds(each) for each in given if each is not None), None)
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float)):
        message = f"a time-out is a number of seconds or a timedelta, not {type(seconds).__name__}"
        raise rejected("timeout_invalid", message, path="/timeout", hint="write timeout=30")
    return seconds


def in_seconds(given: Any) -> Any:
    return given.total_seconds() if isinstance(given, timedelta) else given


def check_deadline(seconds: Any) -> int | None:
    """The milliseconds that a run may take; None sets no limit."""
    if seconds is None:
        return None
    seconds = in_seconds(seconds)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.001 <= seconds <= SECONDS_MAX:
        message = "a deadline is a number of seconds from 0.001 to ten years"
        raise rejected("deadline_invalid", message, path="/deadline_seconds", hint="leave it out for none")
    return max(1, round(seconds * 1_000))


class StartOptions(NamedTuple):
    """What the runs of one call have in common, checked."""

    tag_used: str
    labels: dict[str, str]
    submitted_by: str
    correlation_id: str
    trace: str
    deadline_ms: int | None

    def command(self, version: Version, inputs: Payload, request: str) -> Start:
        """The start of a run; `request` tells a repetition from another start."""
        return Start(
            id=f"start:{request}",
            version=version.version,
            digest=version.digest,
            inputs=inputs,
            labels=self.labels,
            submitted_by=self.submitted_by,
            actor=self.submitted_by or None,
            correlation_id=self.correlation_id,
            trace=self.trace,
            tag_used=self.tag_used,
            deadline_ms=self.deadline_ms,
        )


def check_command_id(command_id: Any) -> None:
    if command_id is not None and (not _is_text(command_id, LABEL_LENGTH_MAX) or not command_id):
        message = f"a command id is text of at most {LABEL_LENGTH_MAX} characters"
        raise rejected("command_id_invalid", message, path="/command_id", hint="use an id of your own request")


def check_words(limit: int = WORDS_MAX, **fields: Any) -> None:
    """Refuse names and reasons that cannot be stored, each under its field."""
    for field, value in fields.items():
        if not _is_text(value, limit, lines=field in PROSE):
            message = f"{field} is not text of at most {limit} characters without control characters"
            hint = "pass shorter text, in valid Unicode"
            raise rejected("text_invalid", message, path=f"/{field}", hint=hint)


def check_roles(roles: Any) -> None:
    """Refuse roles that are not a sequence of names; a single string is iterable but no sequence of names."""
    if not isinstance(roles, Sequence) or isinstance(roles, (str, bytes)):
        message, hint = (
            f"roles are names in a list, not {type(roles).__name__}",
            "pass a list of names, also for a single one",
        )
        raise rejected("text_invalid", message, path="/roles", hint=hint)
    for role in roles:
        check_words(roles=role)


def check_place(visit: Any, index: Any) -> None:
    """Refuse what is not a number of a visit or of a map's item."""
    for field, value in (("visit", visit), ("index", index)):
        if value is not None and type(value) is not int:
            hint = "visits are counted from 1, items from 0; leave it out for the latest visit itself"
            raise rejected("place_invalid", f"{field} is not a whole number", path=f"/{field}", hint=hint)


def check_labels(labels: Any) -> dict[str, str]:
    """A run's labels, or a refusal: a bounded mapping from text to text."""
    if not isinstance(labels, Mapping) or len(labels) > LABELS_MAX:
        message, hint = f"labels are a mapping of at most {LABELS_MAX} entries", "labels are for finding runs"
        raise rejected("labels_invalid", message, path="/labels", hint=hint)
    for entry in (*labels.keys(), *labels.values()):
        if not isinstance(entry, str):
            message = f"a label's key and value are text, not {kind_of(entry)}"
            raise rejected("labels_invalid", message, path="/labels", hint='put it in quotes, such as "1"')
        if not _is_text(entry, LABEL_LENGTH_MAX):
            message = f"a label's key and value are one line of at most {LABEL_LENGTH_MAX} characters"
            raise rejected("labels_invalid", message, path="/labels", hint="labels are for finding runs, not for data")
    if "" in labels:
        raise rejected("labels_invalid", "the key of a label is empty", path="/labels", hint="write KEY=VALUE")
    return dict(labels)


def _is_text(value: Any, limit: int, *, lines: bool = False) -> bool:
    """Whether a value is short text without control characters, on one line or on several."""
    if type(value) is not str or len(value) > limit:
        return False
    return value.isprintable() or not (_NOT_IN_PROSE if lines else _NOT_IN_A_LINE).search(value)
