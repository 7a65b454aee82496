"""Random changes of each corpus, the same ones in each run; ``make fuzz`` looks further."""

import logging
import random

import pytest
from image_corpus import mutated

from tests.fuzz.targets import TARGETS, answered
from tests.helpers.slow_tests import RUN_SLOW_TESTS

COUNTS = {"connection": 100, "image": 300, "state": 100}


@pytest.mark.parametrize("name", list(TARGETS))
def test_no_input_is_a_failure(name: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "ramen")
    read, corpus, rng = TARGETS[name].read, list(TARGETS[name].corpus()), random.Random(name)
    for data in corpus:
        read(data)
    for _ in range(COUNTS.get(name, 200) * (20 if RUN_SLOW_TESTS else 1)):
        read(mutated(rng.choice(corpus), rng))


def test_a_failure_is_found() -> None:
    """What the server answers with 500 is none of the expected answers."""
    with pytest.raises(AssertionError):
        answered("/v1/streams/camera-1/nothing", {}, b"")
