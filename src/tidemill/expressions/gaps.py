"""Values that are not there, known by sight to those who must not need Jinja for it; `missing` makes them."""

from __future__ import annotations

from typing import NoReturn


class Gap:
    """A value that is not there, inside a template."""

    __slots__ = ()

    def refuse(self) -> NoReturn:
        """Fail the way any use of this value fails."""
        raise NotImplementedError
