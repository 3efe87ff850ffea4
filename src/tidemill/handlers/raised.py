"""What is known of an exception once it has been caught: always text, whatever it holds or does when it is looked at.

Exceptions of foreign code may raise when they are asked for their message, hold megabytes, or be their own cause.
They are described where they are caught, so that the description can also travel from another process.
"""

from __future__ import annotations

import traceback

MESSAGE_MAX = 2_000
NAME_MAX = 100
CAUSE_MAX = 500
TRACEBACK_MAX = 8_000
CAUSES_MAX = 8


class Raised(Exception):
    """An exception of foreign code as it was described."""

    def __init__(
        self, kind: str, message: str, *, retryable: bool, causes: tuple[str, ...] = (), traceback: str = ""
    ) -> None:
        super().__init__(message)
        self.kind = kind
        """The name of its class."""
        self.message = message
        self.retryable = retryable
        self.causes = causes
        self.traceback = traceback


def described(error: BaseException) -> Raised:
    """Describe an exception. What is meant to end a program, such as `SystemExit`, is nothing to try again."""
    if isinstance(error, Raised):
        return error
    return Raised(
        clipped(type(error).__name__, NAME_MAX),
        clipped(text_of(error)),
        retryable=isinstance(error, Exception),
        causes=causes_of(error),
        traceback=_traceback(error),
    )


def clipped(said: object, limit: int = MESSAGE_MAX) -> str:
    """Whatever somebody said as text that can be stored: lone surrogates as question marks, and not too long.

    An ellipsis marks the cut: a mask looks there for what is left of a secret.
    """
    # A subclass of str may lie about itself, so it is asked for its characters only.
    text = str.__str__(str(said))[: limit + 1]
    clean = text.encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else clean[: limit - 1] + "…"


def ending(said: str, limit: int) -> str:
    """The end of a text, for which the same holds."""
    clean = said[-limit - 1 :].encode("utf-8", "replace").decode("utf-8")
    return clean if len(clean) <= limit else "…" + clean[1 - limit :]


def text_of(error: BaseException) -> str:
    """The message of an exception, or that it has none to show."""
    try:
        return str(error) or type(error).__name__
    except BaseException:
        return f"{type(error).__name__} (its message cannot be shown)"


def causes_of(error: BaseException) -> tuple[str, ...]:
    """What is behind an exception, the nearest first: its notes, those it groups, what led to it; each once."""
    found, seen, sought = _notes(error), {id(error)}, _behind(error)
    while sought and len(found) < CAUSES_MAX:
        cause = sought.pop(0)
        if id(cause) in seen:
            continue
        seen.add(id(cause))
        if isinstance(cause, Raised):
            found += [clipped(f"{cause.kind}: {cause.message}", CAUSE_MAX), *cause.causes]
            continue
        found += [clipped(f"{type(cause).__name__}: {text_of(cause)}", CAUSE_MAX), *_notes(cause)]
        sought = _behind(cause) + sought
    return tuple(found[:CAUSES_MAX])


def _behind(error: BaseException) -> list[BaseException]:
    grouped = error.exceptions[:CAUSES_MAX] if isinstance(error, BaseExceptionGroup) else ()
    cause = error.__cause__ or error.__context__
    return [*grouped, *([] if cause is None else [cause])]


def _notes(error: BaseException) -> list[str]:
    notes = getattr(error, "__notes__", ())
    listed = notes[:CAUSES_MAX] if isinstance(notes, list) else ()
    return [clipped(f"note: {note}", CAUSE_MAX) for note in listed if isinstance(note, str)]


def _traceback(error: BaseException) -> str:
    try:
        return ending("".join(traceback.format_exception(error)), TRACEBACK_MAX)
    except BaseException:
        return ""
