"""Shared fixtures of the data tests."""

import numpy as np
import pytest


@pytest.fixture
def released(tmp_path):
    """CIFAR-10-C at its full size, with one corruption; the images are a hole in the file."""
    np.save(tmp_path / "labels.npy", np.tile(np.arange(10_000) % 10, 5))
    array = np.lib.format.open_memmap(tmp_path / "fog.npy", "w+", np.uint8, (50_000, 32, 32, 3))
    del array
    return tmp_path
