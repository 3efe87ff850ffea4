"""All attacks there are, by the language in which they are written."""

from __future__ import annotations

from collections.abc import Mapping

from tests.attacks.attack import Attack
from tests.attacks.cel import CEL
from tests.attacks.jsonpath import JSONPATH
from tests.attacks.sandbox import SANDBOX
from tests.attacks.schemas import SCHEMAS
from tests.attacks.templates import TEMPLATES

CORPORA: Mapping[str, tuple[Attack, ...]] = {
    "templates": TEMPLATES,
    "cel": CEL,
    "jsonpath": JSONPATH,
    "schemas": SCHEMAS,
    "sandbox": SANDBOX,
}
