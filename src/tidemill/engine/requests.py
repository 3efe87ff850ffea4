"""What callers may say beside a document and its inputs: keys, labels, names and reasons.

All of it goes into the log as it is and is read for ever, so it is checked at the door: text, valid Unicode,
bounded. A refusal names the field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemill.errors import rejected

RUN_ID_BYTES_MAX = 200
WORDS_MAX = 2_000
LABELS_MAX = 100
LABEL_LENGTH_MAX = 200


def check_run_id(run_id: Any) -> None:
    """Refuse what cannot name a run."""
    if not isinstance(run_id, str) or not run_id.isprintable() or not 0 < len(run_id.encode()) <= RUN_ID_BYTES_MAX:
        raise rejected(
            "run_key_invalid",
            "a run's key is 1 to 200 bytes of printable text",
            hint="use an id of your own request, e.g. an order number",
        )


def check_command_id(command_id: Any) -> None:
    """Refuse what cannot name a request."""
    if command_id is not None and (not _is_text(command_id, LABEL_LENGTH_MAX) or not command_id):
        raise rejected(
            "command_id_invalid",
            f"a command id is text of at most {LABEL_LENGTH_MAX} characters",
            path="/command_id",
            hint="use an id of your own request",
        )


def check_words(limit: int = WORDS_MAX, **said: Any) -> None:
    """Refuse names and reasons that cannot be stored, each under the field it was given for."""
    for field, words in said.items():
        if not _is_text(words, limit):
            message, hint = f"{field} is not text of at most {limit} characters", "pass shorter text, in valid Unicode"
            raise rejected("text_invalid", message, path=f"/{field}", hint=hint)


def check_roles(roles: Any) -> None:
    """Refuse roles that are not a sequence of names; a single text is none, though it could be gone through."""
    if not isinstance(roles, Sequence) or isinstance(roles, (str, bytes)):
        hint = "pass a list of names, also for a single one"
        raise rejected(
            "text_invalid", f"roles are names in a list, not {type(roles).__name__}", path="/roles", hint=hint
        )
    for role in roles:
        check_words(roles=role)


def check_place(visit: Any, index: Any) -> None:
    """Refuse what cannot count a visit or an item of a map."""
    for field, value in (("visit", visit), ("index", index)):
        if value is not None and type(value) is not int:
            hint = "visits are counted from 1, items from 0; leave it out for the latest visit itself"
            raise rejected("place_invalid", f"{field} is no whole number", path=f"/{field}", hint=hint)


def check_labels(labels: Any) -> dict[str, str]:
    """A run's labels, or a refusal: a bounded mapping from text to text."""
    if not isinstance(labels, Mapping) or len(labels) > LABELS_MAX:
        message, hint = f"labels are a mapping of at most {LABELS_MAX} entries", "labels are for finding runs"
        raise rejected("labels_invalid", message, path="/labels", hint=hint)
    for entry in (*labels.keys(), *labels.values()):
        if not _is_text(entry, LABEL_LENGTH_MAX):
            message = f"a label's key and value are text of at most {LABEL_LENGTH_MAX} characters"
            raise rejected("labels_invalid", message, path="/labels", hint="labels are for finding runs, not for data")
    return dict(labels)


def _is_text(said: Any, limit: int) -> bool:
    if type(said) is not str or len(said) > limit:
        return False
    # Half of a surrogate pair is a str in Python, but no text that could be stored.
    return said.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in said)
