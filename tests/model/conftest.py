"""The servers of the conformance suites, for many more seeds."""

from __future__ import annotations

from tests.conformance.conftest import postgres, redis

__all__ = ["postgres", "redis"]
