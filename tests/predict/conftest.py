import pytest

import ramen
from ramen import testing


@pytest.fixture(scope="module")
def clf() -> ramen.ZeroShotClassifier:
    return testing.small_classifier()
