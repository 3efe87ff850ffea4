"""Tests of the stores: one conformance suite and one differential test, which every store reuses by one line."""

import pytest

# Imported as libraries, so pytest would otherwise leave their assertions without explanations.
for _library in ("harness", "laws_commit", "laws_jobs", "laws_claim", "laws_waiting", "laws_rows", "laws_follow"):
    pytest.register_assert_rewrite(f"{__name__}.{_library}")
