"""The local S3 server would leave a file of its own wherever the tests are run from."""

from __future__ import annotations

import os

os.environ.setdefault("MOTO_RECORDER_FILEPATH", os.devnull)
