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

    return str(yaml.dump(_ordered(document), Dumper=_dumper(), sort_keys=False, allow_unicode=True, width=WIDTH))


def _ordered(document: Any) -> Any:
    """The same document with its keys in the order in which people write them."""
    if not isinstance(document, dict):
        return document
    nodes = document.get("nodes")
    ordered = _sorted(document, first=("name", "description"), last=("nodes", "edges", "outputs"))
    if isinstance(nodes, list):
        ordered["nodes"] = [
            _sorted(node, first=("id", "type"), last=("config",)) if isinstance(node, dict) else node for node in nodes
        ]
    return ordered


def _sorted(mapping: dict[str, Any], *, first: tuple[str, ...], last: tuple[str, ...]) -> dict[str, Any]:
    between = [key for key in mapping if key not in first + last]
    return {key: mapping[key] for key in (*first, *between, *last) if key in mapping}


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
