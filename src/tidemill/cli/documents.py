"""Documents in text: as YAML, which is what people read and edit, under a line that says what they are."""

from __future__ import annotations

from typing import Any

from tidemill.cli.paint import DIM, Paint
from tidemill.cli.terminal import clean

WIDTH = 100
_LIKE_A_NUMBER = tuple("-+.0123456789~")


def tell_document(about: str, document: Any) -> None:
    """Print a document so that it can be edited and published again."""
    print(Paint()(f"# {clean(about)}", DIM))
    print(as_yaml(document), end="")


def as_yaml(document: Any) -> str:
    """A JSON value as YAML that reads back as the same value."""
    import yaml

    return str(yaml.dump(document, Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=WIDTH))


def _dumper() -> Any:
    """A writer that repeats a value instead of referring back to it, since people edit what they see."""
    import yaml

    written: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)

    class Plain(written):  # type: ignore[misc]
        def ignore_aliases(self, data: Any) -> bool:
            return True

    Plain.add_representer(str, _text)
    return Plain


def _text(dumper: Any, text: str) -> Any:
    """A string; quoted when another reader than the library's own would take it for a number."""
    style = "|" if "\n" in text else "'" if text.startswith(_LIKE_A_NUMBER) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)
