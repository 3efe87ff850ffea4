"""What an attack is: something a hostile author writes, and the one harmless way in which it must end."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.expressions.scope import Json

FILE, SECRET_NAME, URL = "<file>", "<variable>", "<url>"
"""What stands in an attack for the bait: the path of a secret file, the name of a secret variable, a web server."""


@dataclass(frozen=True)
class Refused:
    """Compiling it reports a problem with this code, and these words in it."""

    code: str
    words: str = ""


@dataclass(frozen=True)
class Failed:
    """It compiles, and has no result: a typed failure with this code, and these words in it."""

    code: str
    words: str = ""
    unless_quick: bool = False
    """Only for lack of time: on a quick machine it may have a result."""


@dataclass(frozen=True)
class Gives:
    """It has this result, exactly, which shows that it did no harm."""

    value: Json


Ending = Refused | Failed | Gives


@dataclass(frozen=True)
class Attack:
    """One attack: the source of a template, or a condition in its raw form."""

    name: str
    source: Json
    ending: Ending


def group(name: str, ending: Ending, *sources: Json) -> list[Attack]:
    """Write attacks of one kind that end in the same way."""
    return [Attack(f"{name}-{number}", source, ending) for number, source in enumerate(sources, start=1)]


def each(name: str, *pairs: tuple[Json, Ending]) -> list[Attack]:
    """Write attacks of one kind that end in different ways."""
    return [Attack(f"{name}-{number}", source, ending) for number, (source, ending) in enumerate(pairs, start=1)]
