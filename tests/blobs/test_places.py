"""URLs of places for blobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemill.blobs.directory import DirectoryBlobs
from tidemill.blobs.s3 import Bucket, S3Blobs
from tidemill.bootstrap import blobs_at, place_of
from tidemill.errors import Rejected


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("dir:///blobs", Path("blobs")),
        ("dir:////var/lib/tidemill", Path("/var/lib/tidemill")),
        ("dir:///with%20blank/x", Path("with blank/x")),
        ("s3://bucket", Bucket(name="bucket")),
        ("s3://bucket/some/prefix/", Bucket(name="bucket", prefix="some/prefix")),
        (
            "s3://b/p?endpoint=http://127.0.0.1:9000&region=eu-1&sse=aws:kms&kms_key_id=k",
            Bucket(
                name="b", prefix="p", endpoint="http://127.0.0.1:9000", region="eu-1", sse="aws:kms", kms_key_id="k"
            ),
        ),
    ],
)
def test_a_url_names_a_folder_or_a_bucket(url: str, place: Path | Bucket) -> None:
    assert place_of(url) == place
    assert isinstance(blobs_at(url), DirectoryBlobs if isinstance(place, Path) else S3Blobs)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("", "dir:///FOLDER"),
        ("blobs", "dir:///FOLDER"),
        ("dir://", "dir:///FOLDER"),
        ("dir:///", "dir:///FOLDER"),
        ("dir://host/path", "dir:///FOLDER"),
        ("dir:///x?option=1", "dir:///FOLDER"),
        ("http://[", "dir:///FOLDER"),
        ("ftp://x/y", "dir:///FOLDER"),
        ("s3:///prefix", "s3://BUCKET"),
        ("s3://b?x", "dir:///FOLDER"),
        ("s3://b?endpont=x", "'endpont' is no option"),
        ("s3://b?sse=none", "AES256 or aws:kms"),
        ("s3://b?kms_key_id=k", "needs sse=aws:kms"),
    ],
)
def test_other_urls_are_refused_with_a_hint(url: str, hint: str) -> None:
    with pytest.raises(Rejected) as refused:
        blobs_at(url)
    assert refused.value.code == "blobs_unknown"
    assert hint in refused.value.problems[0].hint
