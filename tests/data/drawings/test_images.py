"""Drawn images: every object in every style, determined by seed and position."""

import numpy as np
import pytest

from ramen.data.drawings import shapes, styles
from ramen.data.drawings.tiny import draw_images


@pytest.mark.parametrize("style", [*styles.TRAINED, *styles.UNSEEN])
def test_every_object_in_every_style(style):
    names = list(shapes.OBJECTS)
    drawn = draw_images(names, [style] * len(names), (0,))
    assert drawn.pixels.shape == (len(names), 32, 32, 3)
    assert drawn.pixels.dtype == np.uint8
    # something is visible in each: the pixels differ
    assert all(np.ptp(image.astype(int)) > 60 for image in drawn.pixels)
    assert len(np.unique(drawn.pixels.reshape(len(names), -1), axis=0)) == len(names)


def test_an_image_depends_only_on_seed_and_position():
    names, drawn_in = ["cat", "car", "key"], ["flat", "pencil", "neon"]
    whole = draw_images(names, drawn_in, (5, 1)).pixels
    assert np.array_equal(whole, draw_images(names, drawn_in, (5, 1)).pixels)
    assert np.array_equal(whole[:2], draw_images(names[:2], drawn_in[:2], (5, 1)).pixels)
    assert not np.array_equal(whole, draw_images(names, drawn_in, (5, 2)).pixels)
