"""The tables of `docs/reference/api.md`, made from the OpenAPI document of the server.

`python -m tests.docs.http_api` writes them into the page, between its two marks; `make docs` does so first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.docs.pages import ROOT
from tidemill.api.app import PREFIX, create_app
from tidemill.bootstrap import engine_at

PAGE = ROOT / "docs" / "reference" / "api.md"
BEGIN = "<!-- Made by `make docs` from the OpenAPI document. -->"
END = "<!-- The end of what is made. -->"
TITLES = {"dead-letters": "Dead letters", "access": "Access, keys, tenants, audit", "fleet": "Workers and queues"}
COMMON = {"after", "limit", "Idempotency-Key", "Last-Event-ID", "Range"}
"""Parameters that the page explains once for all paths."""


def document() -> dict[str, Any]:
    """The OpenAPI document."""
    return create_app(engine_at("memory://", work=False)).openapi()


def _fields(body: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    """The keys of a request's body; those that are required are marked."""
    schema = body.get("content", {}).get("application/json", {}).get("schema", {})
    # A body that may be left out is one of two.
    for each in (schema, *schema.get("anyOf", ())):
        found = schemas[each["$ref"].rpartition("/")[2]] if "$ref" in each else each
        required = found.get("required", ())
        yield from (f"`{name}`{'*' if name in required else ''}" for name in found.get("properties", ()))


def _row(path: str, method: str, operation: dict[str, Any], schemas: dict[str, Any]) -> str:
    asked = [f"`{each['name']}`" for each in operation.get("parameters", ()) if each["in"] == "query"]
    asked = [each for each in asked if each.strip("`") not in COMMON]
    body = list(_fields(operation.get("requestBody", {}), schemas))
    given = "; ".join(filter(None, (f"?{', '.join(asked)}" if asked else "", ", ".join(body))))
    needs = f"`{operation['x-permission']}`" if operation.get("x-permission") else ""
    return f"| `{method.upper()} {path}` | {needs} | {operation['summary']} | {given} |"


def tables() -> str:
    """Everything between the marks."""
    found = document()
    schemas = found["components"]["schemas"]
    by_tag: dict[str, list[str]] = {}
    for path, operations in found["paths"].items():
        for method, operation in operations.items():
            tag = operation.get("tags", ["health"])[0]
            by_tag.setdefault(tag, []).append(_row(path.removeprefix(PREFIX), method, operation, schemas))
    head = ["| request | needs | what | given |", "|---|---|---|---|"]
    parts = ["\n".join([f"## {TITLES.get(tag, tag.capitalize())}\n", *head, *rows]) for tag, rows in by_tag.items()]
    return "\n\n".join(parts)


def with_tables(text: str) -> str:
    """The page with its tables made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
