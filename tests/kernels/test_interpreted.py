"""The Triton programs without a GPU: Triton interprets them, one element after the other."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="triton is not installed")
def test_every_program_equals_its_plain_torch_function() -> None:
    # in a process of its own: the interpreter must be chosen before triton is imported
    ran = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interpreted.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
