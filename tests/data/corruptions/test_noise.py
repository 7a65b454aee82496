"""Noise has the published strength and distribution."""

import numpy as np
import pytest

from ramen.data.corruptions import SEVERITIES, corrupt
from tests.data.corruptions.plain_filters import parameters


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise(severity):
    images = np.full((40, 32, 32, 3), 128, dtype=np.uint8)
    noise = corrupt(images, "gaussian_noise", np.random.default_rng(0), severity) / 255 - 128 / 255
    assert noise.std() == pytest.approx(parameters("gaussian_noise", severity), rel=0.02)
    assert noise.mean() == pytest.approx(-0.5 / 255, abs=2e-3)  # truncation


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise(severity):
    photons = parameters("shot_noise", severity)
    for level in (30, 128):
        images = np.full((40, 32, 32, 3), level, dtype=np.uint8)
        counts = (corrupt(images, "shot_noise", np.random.default_rng(0), severity) + 0.5) / 255 * photons
        # a Poisson number's variance is its mean
        assert counts.mean() == pytest.approx(level / 255 * photons, rel=0.02)
        assert counts.var() == pytest.approx(level / 255 * photons, rel=0.05)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise(severity):
    images = np.full((40, 32, 32, 3), 128, dtype=np.uint8)
    noisy = corrupt(images, "impulse_noise", np.random.default_rng(0), severity)
    amount = parameters("impulse_noise", severity)
    assert set(np.unique(noisy)) == {0, 128, 255}
    assert (noisy == 0).mean() == pytest.approx(amount / 2, rel=0.1)
    assert (noisy == 255).mean() == pytest.approx(amount / 2, rel=0.1)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_speckle_noise(severity):
    sigma = parameters("speckle_noise", severity)
    for level in (60, 128):
        images = np.full((40, 32, 32, 3), level, dtype=np.uint8)
        noise = corrupt(images, "speckle_noise", np.random.default_rng(0), severity) / 255 - level / 255
        assert noise.std() == pytest.approx(sigma * level / 255, rel=0.02)
        assert noise.mean() == pytest.approx(-0.5 / 255, abs=2e-3)
