import faulthandler
from collections.abc import Iterator

import pytest

import ramen
from ramen import testing
from tests.helpers.slow_tests import RUN_SLOW_TESTS

PATIENCE = 7200 if RUN_SLOW_TESTS else 300  # seconds; only a deadlock takes so long


@pytest.fixture(scope="session")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


@pytest.fixture(autouse=True)
def deadlocks_are_seen() -> Iterator[None]:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
