"""Memory stays flat, however long the stream; the check is shown to notice a consumer that keeps things."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.slow_tests import RUN_SLOW_TESTS

ROOT = Path(__file__).resolve().parents[2]
IMAGES = 5_000 if RUN_SLOW_TESTS else 1_000


def is_flat(early: int, late: int) -> bool:
    """Grown by less than 1 % and less than 50 MB."""
    return late - early < min(0.01 * early, 50e6)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc to measure memory")
def test_memory_stays_flat_over_a_long_stream() -> None:
    measured = subprocess.run(
        [sys.executable, "-m", "tests.helpers.memory_growth", str(IMAGES)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])},
        check=True,
        capture_output=True,
        text=True,
        timeout=1800,
    ).stdout
    figures = json.loads(measured)
    assert is_flat(*figures["flat"])
    assert not is_flat(*figures["keeping"])
