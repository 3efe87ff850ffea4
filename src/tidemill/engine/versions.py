"""The records of one workflow: its versions, and the moves of its tags.

`History` folds both and answers everything that follows from them alone: which version a reference means, which tag
names are valid, the index row. The catalog reads and writes the streams.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from tidemill.engine.corruption import corrupt_stream, require_intact
from tidemill.errors import Rejected, rejected
from tidemill.kernel.codec import DAMAGE
from tidemill.kernel.document.fields import NAME_LENGTH_MAX
from tidemill.kernel.document.problems import ProblemCollector, shown
from tidemill.stores.contract import Row, Tail

WORKFLOW = "workflow"
LATEST = "latest"
FILE_ENDINGS = (".json", ".yaml", ".yml")
"""How names of files with documents end."""
TAGS_MAX = 100
SHARING_MAX = 10
"""Versions that share one tag."""
DESCRIPTION_LENGTH_MAX = 500
RECORD_FORMAT = 1

_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")
_TAG = re.compile(r"[a-z][a-z0-9-]{0,63}")
_NUMBER = re.compile(r"[0-9]{1,9}")
_SEPARATOR = re.compile(r"[@:]")


class Version(msgspec.Struct, frozen=True, kw_only=True, tag="version"):
    name: str
    version: int
    digest: str
    document: str
    """Digest of the blob with the document in its normal form."""
    at_ms: int
    author: str = ""
    message: str = ""
    parent: int = 0
    """The version it was made from; 0 for the first."""
    patch: str | None = None
    """Digest of the blob with the JSON Patch from its parent; None when it was published whole."""
    description: str = ""
    """The beginning of the document's description, for lists."""
    v: int = RECORD_FORMAT


class TagMoved(msgspec.Struct, frozen=True, kw_only=True, tag="tag_moved"):
    name: str
    tag: str
    version: int
    """The new target; 0 when the tag was removed."""
    was: int
    """The previous target; 0 when the tag did not exist."""
    at_ms: int
    actor: str = ""
    message: str = ""
    v: int = RECORD_FORMAT
    weights: tuple[tuple[int, int], ...] = ()
    """Versions that share the tag, each with its percentage; empty: it points to `version` alone."""


class WorkflowDeleted(msgspec.Struct, frozen=True, kw_only=True, tag="workflow_deleted"):
    """The versions before it can no longer be referred to. Their numbers are not used again, and runs keep them."""

    name: str
    at_ms: int
    actor: str = ""
    message: str = ""
    v: int = RECORD_FORMAT


class WorkflowRow(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: int
    """The latest version."""
    digest: str
    versions: int
    tags: dict[str, int]
    created_ms: int
    updated_ms: int
    description: str = ""
    v: int = RECORD_FORMAT
    weights: dict[str, dict[int, int]] = {}
    """By tag that several versions share: their percentages."""


Record = Version | TagMoved | WorkflowDeleted

_ENCODE = msgspec.msgpack.Encoder().encode
_RECORD = msgspec.msgpack.Decoder(Record)
_TAGS = frozenset(str(kind.__struct_config__.tag) for kind in (Version, TagMoved, WorkflowDeleted))
_ROW = msgspec.msgpack.Decoder(WorkflowRow)


class History:
    __slots__ = ("deleted", "deletions", "first_move", "moves", "name", "tags", "versions", "weights")

    def __init__(self, name: str, records: Iterable[Record] = ()) -> None:
        self.name = name
        self.versions: list[Version] = []
        self.moves: list[TagMoved] = []
        self.tags: dict[str, int] = {}
        """The target of each tag, without `latest`."""
        self.weights: dict[str, dict[int, int]] = {}
        """Of each tag that several versions share: their percentages."""
        self.deletions: list[WorkflowDeleted] = []
        self.deleted = 0
        """The last version that was deleted; 0 if none was."""
        self.first_move = 0
        """The first move of a tag after the last deletion."""
        for record in records:
            self.add(record)

    @property
    def length(self) -> int:
        """The version of the stream that this history was read from."""
        return len(self.versions) + len(self.moves) + len(self.deletions)

    @property
    def published(self) -> list[Version]:
        """The versions that can be referred to."""
        return self.versions[self.deleted :]

    def add(self, record: Record) -> None:
        if isinstance(record, Version):
            self.versions.append(record)
        elif isinstance(record, WorkflowDeleted):
            self.deletions.append(record)
            self.deleted, self.first_move = len(self.versions), len(self.moves)
            self.tags, self.weights = {}, {}
        else:
            self.moves.append(record)
            self.tags.pop(record.tag, None)
            self.weights.pop(record.tag, None)
            if record.version:
                self.tags[record.tag] = record.version
            if record.weights:
                self.weights[record.tag] = dict(record.weights)

    def numbered(self, number: Any) -> Version:
        """The version of a number, as a caller gave it."""
        if not isinstance(number, int | str):
            message = f"a version is a number, not {type(number).__name__}"
            raise rejected(
                "version_unknown", message, path="/version", hint=f"`mill.versions({self.name!r})` lists them"
            )
        # Longer numbers than any published version are not parsed.
        text = number if isinstance(number, str) else f"{number:d}" if abs(number) < 10**9 else "so large"
        known = not isinstance(number, bool) and _NUMBER.fullmatch(text)
        if known and self.deleted < int(text) <= len(self.versions):
            return self.versions[int(text) - 1]
        is_tag = text in self.all_tags()
        exist = f"versions {self.deleted + 1} to {len(self.versions)} exist"
        hint = f"a tag is written {self.name}:{text}" if is_tag else exist
        raise rejected("version_unknown", f"{self.name} has no version {shown(text)}", hint=hint)

    def tagged(self, tag: str, run_id: str = "") -> Version:
        """The version that a tag points to: of several that share it that of a run with this id, else the main one."""
        tags = self.all_tags()
        if run_id and tag in self.weights:
            return self.versions[chosen(self.weights[tag], f"{self.name}:{tag}:{run_id}") - 1]
        if tag in tags:
            return self.versions[tags[tag] - 1]
        hint = f"a version is written {self.name}@{tag}" if _NUMBER.fullmatch(tag) else ""
        hint = hint or ProblemCollector().nearest(tag, tags) or f"its tags are {', '.join(sorted(tags))}"
        raise rejected("tag_unknown", f"{self.name} has no tag {shown(tag)}", hint=hint)

    def meant_by(self, reference: str, run_id: str = "") -> Version:
        """The version that a reference with this workflow's name stands for, for a run of this id."""
        separator, rest = split_reference(reference)[1:]
        if separator == "@":
            return self.numbered(rest)
        return self.tagged(rest, run_id) if separator else self.versions[-1]

    def all_tags(self) -> dict[str, int]:
        """The target of each tag, including `latest`, the newest version."""
        return {LATEST: len(self.versions), **self.tags}

    def shares(self, tag: str, version: int | Mapping[Any, int], weight: int | None = None) -> dict[int, int]:
        """The percentages of the versions that are to share a tag, as a caller asked for them; they add up to 100.

        A mapping names all of them. With a `weight`, `version` gets that much, and the versions that have the tag now
        share the rest as before.
        """
        if isinstance(version, Mapping):
            if weight is not None:
                raise _weights_invalid("a single weight cannot apply to several versions", "give each version a weight")
            shares = {self.numbered(number).version: percent for number, percent in version.items()}
        elif weight is None:
            shares = {self.numbered(version).version: 100}
        else:
            own = self.numbered(version).version
            now = self.weights.get(tag) or ({self.tags[tag]: 100} if tag in self.tags else {})
            others = {number: percent for number, percent in now.items() if number != own}
            _check_weight(weight)
            if weight < 100 and not others:
                message = f"no other version has the remaining {100 - weight} % of {self.name}:{tag}"
                raise _weights_invalid(message, "point the tag to the present version first")
            shares = {**_scaled(others, 100 - weight), own: weight}
        for percent in shares.values():
            _check_weight(percent)
        if sum(shares.values()) != 100:
            raise _weights_invalid(f"the weights add up to {sum(shares.values())}, not to 100", "they are percentages")
        shares = {number: percent for number, percent in sorted(shares.items()) if percent}
        if len(shares) > SHARING_MAX:
            raise _weights_invalid(f"at most {SHARING_MAX} versions share a tag, not {len(shares)}", "name fewer")
        return shares

    def before(self, tag: str) -> dict[int, int]:
        """The percentages of the versions that a tag pointed to before its last move."""
        moves = [move for move in self.moves[self.first_move :] if move.tag == tag]
        if not moves:
            self.tagged(tag)
        earlier = moves[-2] if len(moves) > 1 else None
        if earlier is None or not earlier.version:
            message = f"{self.name}:{tag} pointed to no version before its last move"
            raise rejected("tag_without_past", message, path="/tag", hint="see `tidemill workflows tags`")
        return dict(earlier.weights) or {earlier.version: 100}

    def check_new_tag(self, tag: str) -> None:
        """Refuse an invalid tag name, and a tag beyond the limit of a workflow."""
        check_tag(tag)
        if tag not in self.tags and len(self.tags) >= TAGS_MAX:
            message = f"{self.name} has {len(self.tags)} tags, and at most {TAGS_MAX} are kept"
            raise rejected("too_many_tags", message, path="/tag", hint="remove tags that are not used")

    def row(self) -> Row:
        """The row of the workflow; that of a deleted one removes it from the lists."""
        if not self.published:
            return Row(kind=WORKFLOW, key=self.name, sort=0, deleted=True)
        last, tags = self.versions[-1], self.all_tags()
        updated_ms = max(last.at_ms, *(move.at_ms for move in self.moves[-1:]), 0)
        body = WorkflowRow(
            name=self.name,
            version=last.version,
            digest=last.digest,
            versions=len(self.published),
            tags=tags,
            created_ms=self.published[0].at_ms,
            updated_ms=updated_ms,
            description=last.description,
            weights=self.weights,
        )
        terms = ("workflow", *(f"tag:{tag}" for tag in self.tags))
        return Row(kind=WORKFLOW, key=self.name, sort=updated_ms, terms=terms, body=_ENCODE(body))


def main_version(shares: Mapping[int, int]) -> int:
    """The version with the largest share, of equals the newest: what the tag means where no run starts."""
    return max(shares, key=lambda number: (shares[number], number))


def chosen(shares: Mapping[int, int], key: str) -> int:
    """The version that a key gets, always the same one; a version whose share grows keeps the keys that it has."""
    place = int.from_bytes(sha256(key.encode("utf-8", "surrogatepass")).digest()[:8], "big") % 100
    for number in sorted(shares, reverse=True):
        if place < shares[number]:
            return number
        place -= shares[number]
    raise AssertionError("shares add up to 100")


def _scaled(shares: Mapping[int, int], to: int) -> dict[int, int]:
    """Shares in the same proportions that add up to another sum; what rounding leaves goes to the largest fractions."""
    total = sum(shares.values())
    whole = {number: percent * to // total for number, percent in shares.items()}
    by_fraction = sorted(shares, key=lambda number: (-(shares[number] * to % total), number))
    for number in by_fraction[: to - sum(whole.values())]:
        whole[number] += 1
    return whole


def _check_weight(percent: Any) -> None:
    if isinstance(percent, bool) or not isinstance(percent, int) or not 0 <= percent <= 100:
        raise _weights_invalid(f"`{shown(str(percent))}` is not a weight", "a weight is a whole number from 0 to 100")


def _weights_invalid(message: str, hint: str) -> Rejected:
    return rejected("tag_weights_invalid", message, path="/weight", hint=hint)


def is_name(name: Any) -> bool:
    """Whether a workflow can have this name; the store is asked for no other."""
    return isinstance(name, str) and len(name) <= NAME_LENGTH_MAX and _NAME.fullmatch(name) is not None


def check_tag(tag: Any) -> None:
    if tag == LATEST:
        hint = "publish something new, or use a tag of your own"
        raise rejected("tag_reserved", "`latest` moves by itself to the newest version", path="/tag", hint=hint)
    if not isinstance(tag, str) or not _TAG.fullmatch(tag):
        hint = "a lower-case letter, then letters, digits and -, at most 64"
        raise rejected("tag_invalid", f"`{shown(str(tag))}` cannot be a tag", path="/tag", hint=hint)


def split_reference(reference: Any) -> tuple[str, str, str]:
    """The parts of `name`, `name@3` or `name:stable`: the name, the separator, and what follows it."""
    if not isinstance(reference, str):
        message = f"a workflow is referenced by its name, not by a {type(reference).__name__}"
        raise rejected(
            "reference_invalid", message, hint="publish the document first; in Python, `run` and `start` do both"
        )
    return _split(reference)


@lru_cache(maxsize=1_024)
def _split(reference: str) -> tuple[str, str, str]:
    found = _SEPARATOR.search(reference)
    if found is None:
        return reference, "", ""
    return reference[: found.start()], found.group(), reference[found.end() :]


def read_history(name: str, tail: Tail) -> History:
    """The history in a workflow's stream; refused when it cannot be read, which differs from an empty one."""
    try:
        return History(name, map(decode_record, require_intact(tail).records))
    except DAMAGE as error:
        raise corrupt_stream(tail.stream, error) from None


def decode_record(raw: bytes) -> Record:
    """A record of this or an older format; one of a newer version is refused."""
    try:
        record: Record = _RECORD.decode(raw)
        newer = record.v > RECORD_FORMAT
    except msgspec.ValidationError:
        fields = msgspec.msgpack.decode(raw)
        kind = fields.get("type") if isinstance(fields, dict) else None
        newer = isinstance(kind, str) and (kind not in _TAGS or fields.get("v", 0) > RECORD_FORMAT)
        if not newer:
            raise
    if newer:
        message = "a record of the workflow was written by a newer version"
        raise rejected("event_newer", message, hint="upgrade Tidemill")
    return record


def encode_record(record: Record) -> bytes:
    return _ENCODE(record)


def read_workflow_row(row: Row) -> WorkflowRow:
    return _ROW.decode(row.body)


def unknown_workflow(name: str, known: Sequence[str]) -> Rejected:
    if name.endswith(FILE_ENDINGS):
        file = shown(name)
        hint = f'this names a file: `tidemill publish {file}` first, or in Python `mill.run(Path("{file}"))`'
    else:
        hint = ProblemCollector().nearest(name, known) or "publish it first: `tidemill publish FILE`"
    return rejected("workflow_unknown", f"no workflow {shown(name)} is published", hint=hint)
