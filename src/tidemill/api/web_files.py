"""The built files of the web page (`make web`), served where the API has no route.

`index.html` is answered for the addresses of pages only, with the path under which the application is reached and a
nonce for style elements; other files have their content's hash in their names, so browsers cache them forever. What is
not known stays the API's problem, but a browser that was given a wrong address is shown the page that says so. Nothing
in these files is secret, so no credential is asked for.
"""

from __future__ import annotations

import asyncio
import html
import logging
import mimetypes
import re
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.types import Receive, Scope, Send

LOG = logging.getLogger(__name__)

FOLDER = Path(__file__).with_name("web")
"""Where the build puts the files; a released package contains them."""
INDEX = "index.html"
IMMUTABLE = "assets/"
API = "api"
"""What is below it is for programs."""
PAGES = frozenset(
    {"", "approvals", "dead-letters", "decide", "runs", "sign-in", "start", "workers", "workflows"}
)  # fmt: skip
"""The first segments of the addresses of pages."""
ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
"""The preferred one first; the build compresses every file that gets smaller by it."""

NOT_BUILT = """\
Tidemill's HTTP API is here (/api/v1), but the web page was not built.

In a clone of the repository, `make web` builds it; restart the server then. Released packages contain it.
"""

_BASE = re.compile(r"<base href=\"[^\"]*\" ?/?>")
_TYPES = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml", ".html": "text/html"}


def policy(nonce: str) -> str:
    """What the page may load: files of this server; no inline script, no `eval`, no other host."""
    return "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            f"style-src 'self' 'nonce-{nonce}'",
            "img-src 'self' data:",
            "font-src 'self'",
            "connect-src 'self'",
            "worker-src 'self'",
            "base-uri 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        )
    )


class WebFile(NamedTuple):
    path: Path
    media_type: str
    encodings: tuple[str, ...]

    def encoding(self, accepted: str) -> str:
        """The best encoding that is there and accepted; none is empty."""
        offers: dict[str, float] = {}
        for offer in accepted.lower().split(","):
            name, _, quality = offer.strip().partition(";q=")
            with_quality = quality.strip() or "1"
            offers[name.strip()] = float(with_quality) if re.fullmatch(r"[01](\.\d{0,3})?", with_quality) else 0.0
        return next((each for each in self.encodings if offers.get(each, 0.0) > 0), "")


class WebFiles:
    """The files of a folder; none if the page was not built."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files: dict[str, WebFile] = {}
        self._bodies: dict[Path, bytes] = {}
        compressed = tuple(ending for _, ending in ENCODINGS)
        for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
            name = path.relative_to(folder).as_posix()
            if not path.is_file() or path.name.startswith(".") or name.endswith(compressed):
                continue
            encodings = tuple(kind for kind, ending in ENCODINGS if path.with_name(path.name + ending).is_file())
            media_type = _TYPES.get(path.suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
            self._files[name] = WebFile(path, media_type, encodings)

    @property
    def is_built(self) -> bool:
        return INDEX in self._files

    async def answer(self, name: str, base: str, headers: Mapping[str, str]) -> Response | None:
        """The answer to a path below the root of the application; None if there is none."""
        name = name.strip("/")
        first = name.partition("/")[0]
        try:
            if name in self._files and name != INDEX:
                return await self._file(name, headers)
            if first in PAGES:
                return await self._index(base) if self.is_built else PlainTextResponse(NOT_BUILT)
            if first != API and self.is_built and "text/html" in headers.get("accept", ""):
                return await self._index(base, status=404)
        except OSError as error:
            # It was there when the server started: another build has replaced it.
            LOG.warning("a file of the web page cannot be read: %s; restart the server", error)
        return None

    async def _index(self, base: str, status: int = 200) -> Response:
        nonce = secrets.token_urlsafe(16)
        text = (await self._body(self._files[INDEX].path)).decode()
        # A function: backslashes of a replacement would be read as groups.
        head = f'<base href="{html.escape(base, quote=True)}" /><meta name="style-nonce" nonce="{nonce}" />'
        text = _BASE.sub(lambda _: head, text, count=1)
        # Not kept: the nonce of a copy would not be that of the policy.
        return Response(
            text,
            status,
            media_type="text/html",
            headers={"Content-Security-Policy": policy(nonce), "Cache-Control": "no-store"},
        )

    async def _file(self, name: str, headers: Mapping[str, str]) -> Response:
        file = self._files[name]
        encoding = file.encoding(headers.get("accept-encoding", ""))
        ending = dict(ENCODINGS).get(encoding, "")
        body = await self._body(file.path.with_name(file.path.name + ending))
        etag = f'"{sha256(body).hexdigest()[:20]}"'
        kept = "public, max-age=31536000, immutable" if name.startswith(IMMUTABLE) else "no-cache"
        given = {"Cache-Control": kept, "ETag": etag, "Vary": "Accept-Encoding"}
        if headers.get("if-none-match") == etag:
            return Response(status_code=304, headers=given)
        if encoding:
            given["Content-Encoding"] = encoding
        return Response(body, media_type=file.media_type, headers=given)

    async def _body(self, path: Path) -> bytes:
        if path not in self._bodies:
            self._bodies[path] = await asyncio.to_thread(path.read_bytes)
        return self._bodies[path]


def add_web_files(app: FastAPI, files: WebFiles | None = None) -> None:
    """Answer with the files of the page where the application has no route."""
    found, not_found = files or WebFiles(), app.router.default

    async def default(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            root = scope.get("root_path", "").rstrip("/")
            path: str = scope["path"]
            below = path[len(root) :] if root and (path == root or path.startswith(f"{root}/")) else path
            answer = await found.answer(below, f"{root}/", Headers(scope=scope))
            if answer is not None:
                await answer(scope, receive, send)
                return
        await not_found(scope, receive, send)

    app.router.default = default
