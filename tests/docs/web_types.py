"""The page's types of the API, `web/src/api/schema.d.ts`, made from the OpenAPI document.

`python -m tests.docs.web_types` (`make web-types`) writes them. The file's first line has the hash of the document, so
that a test without Node sees whether the two belong together.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tests.docs.http_api import document
from tests.docs.pages import ROOT

WEB = ROOT / "web"
TYPES = WEB / "src" / "api" / "schema.d.ts"


def described() -> dict[str, Any]:
    """The OpenAPI document without the version of the package."""
    return {**document(), "info": {"title": "Tidemill", "version": ""}}


def head() -> str:
    digest = hashlib.sha256(json.dumps(described(), sort_keys=True).encode()).hexdigest()
    return f"// Made by `make web-types` from the OpenAPI document {digest[:16]}.\n"


def web_build() -> Any:
    """The module `web/build.py`."""
    spec = spec_from_file_location("web_build", Path(WEB, "build.py"))
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    command, environment = web_build().install()
    text = json.dumps(described())
    run = [*command, "run", "--silent", "types"]
    made = subprocess.run(run, cwd=WEB, env=environment, input=text, text=True, check=True, stdout=subprocess.PIPE)
    TYPES.write_text(f"{head()}\n{made.stdout}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
