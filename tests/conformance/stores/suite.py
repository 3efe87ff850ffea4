"""The one conformance suite of all stores; a store joins by a subclass with a fixture `sut` in its test module."""

from __future__ import annotations

import pytest

from tests.conformance.stores.harness import StoreUnderTest
from tests.conformance.stores.laws_claim import ClaimLaws
from tests.conformance.stores.laws_commit import CommitLaws
from tests.conformance.stores.laws_follow import FollowLaws
from tests.conformance.stores.laws_idle import IdleLaws
from tests.conformance.stores.laws_jobs import JobLaws
from tests.conformance.stores.laws_rows import RowLaws
from tests.conformance.stores.laws_waiting import WaitingLaws

__all__ = ["StoreConformance", "StoreUnderTest"]


@pytest.mark.asyncio
class StoreConformance(CommitLaws, JobLaws, IdleLaws, ClaimLaws, WaitingLaws, RowLaws, FollowLaws):
    """All laws. The subclass gives a fixture `sut`: an opened, empty store, closed again afterwards."""
