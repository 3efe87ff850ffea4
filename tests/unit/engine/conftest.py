import pytest

from tests.fixtures.scripted_functions import Ledger


@pytest.fixture
def ledger() -> Ledger:
    """The calls of the `work` function that a test gives to its workers."""
    return Ledger()
