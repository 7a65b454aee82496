"""Whether tests that are shortened in ``make test`` run in full: ``make test-all`` sets RAMEN_SLOW_TESTS."""

import os

RUN_SLOW_TESTS = bool(os.environ.get("RAMEN_SLOW_TESTS"))
