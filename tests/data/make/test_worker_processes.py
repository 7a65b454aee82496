"""Worker processes: what happens when one dies."""

import os

import pytest

from ramen.data.make.worker_processes import run_in_processes


def test_a_worker_that_dies_is_reported():
    with pytest.raises(RuntimeError, match=r"a worker process died .* run the same command again to resume"):
        list(run_in_processes(os._exit, [3], 1))
