"""The local S3 server records requests into a file: not into the folder that the tests are run from."""

from __future__ import annotations

import os
import tempfile

os.environ.setdefault("MOTO_RECORDER_FILEPATH", os.path.join(tempfile.mkdtemp(), "requests"))
