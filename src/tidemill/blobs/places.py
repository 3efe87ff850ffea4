"""Where blobs are kept, as people write it: `dir:///folder` or `s3://bucket/prefix?endpoint=…`.

Like with SQLite files, three slashes begin a path that is relative to the current folder, and four an absolute one.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from tidemill.blobs.s3 import Bucket
from tidemill.errors import Rejected, rejected

FORMS = "write dir:///FOLDER or s3://BUCKET/PREFIX"
OPTIONS = ("endpoint", "region", "sse", "kms_key_id")
"""Options of a bucket, spelled as in `Bucket`."""
ENCRYPTIONS = ("AES256", "aws:kms")


def place_of(url: str) -> Path | Bucket:
    """The folder or bucket that a URL names."""
    try:
        parts = urlsplit(url)
        options = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)))
    except ValueError:
        raise _unknown(url, FORMS) from None
    path = unquote(parts.path)
    if parts.scheme == "dir" and not parts.netloc and len(path) > 1 and not options:
        return Path(path[1:])
    if parts.scheme == "s3" and parts.netloc:
        return _bucket(url, parts.netloc, path.strip("/"), options)
    raise _unknown(url, FORMS)


def _bucket(url: str, name: str, prefix: str, options: dict[str, str]) -> Bucket:
    other = next((option for option in options if option not in OPTIONS), None)
    if other is not None:
        raise _unknown(url, f"{other!r} is no option; there are {', '.join(OPTIONS)}")
    match options.get("sse", ""):
        case "" | "AES256" | "aws:kms" as sse:
            pass
        case _:
            raise _unknown(url, f"sse is {' or '.join(ENCRYPTIONS)}")
    key = options.get("kms_key_id", "")
    if key and sse != "aws:kms":
        raise _unknown(url, "kms_key_id needs sse=aws:kms")
    where = {"endpoint": options.get("endpoint", ""), "region": options.get("region", "")}
    return Bucket(name=name, prefix=prefix, sse=sse, kms_key_id=key, **where)


def _unknown(url: str, hint: str) -> Rejected:
    return rejected("blobs_unknown", f"no place for blobs is known for {url!r}", hint=hint)
