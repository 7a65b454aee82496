import faulthandler
from collections.abc import Iterator

import pytest

import ramen
from ramen import testing

PATIENCE = 300  # seconds; only a deadlock takes so long


@pytest.fixture(scope="session")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()


@pytest.fixture(autouse=True)
def deadlocks_are_seen() -> Iterator[None]:
    faulthandler.dump_traceback_later(PATIENCE, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()
