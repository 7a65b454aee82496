"""Whether tests that are shortened in ``make test`` run in full: ``make test-all`` sets RAMEN_SLOW_TESTS."""

import os
from typing import TypeVar

_Value = TypeVar("_Value")
RUN_SLOW_TESTS = bool(os.environ.get("RAMEN_SLOW_TESTS"))


def full(everything: _Value, shortened: _Value) -> _Value:
    """What a test takes in ``make test-all``, or in ``make test``."""
    return everything if RUN_SLOW_TESTS else shortened
