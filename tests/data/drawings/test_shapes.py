"""Objects and their outlines."""

import numpy as np
import pytest

from ramen.data.drawings import shapes


@pytest.mark.parametrize("name", shapes.OBJECTS)
def test_objects_stay_inside_the_image(name):
    rng = np.random.default_rng(0)
    for _ in range(50):
        points = np.concatenate([part.points for part in shapes.random_object(name, rng)])
        assert (np.abs(points) < 1.35).all()
        assert (np.abs(points) < 1).mean() > 0.8


def test_outlines_close_what_is_closed():
    square = shapes.Part(np.array([[0.0, 0], [1, 0], [1, 1]]))
    line = shapes.Part(np.array([[0.0, 0], [1, 0]]), closed=False)
    closed, opened = shapes.outlines([square, line])
    assert closed.tolist() == [[0, 0], [1, 0], [1, 1], [0, 0]]
    assert opened.tolist() == [[0, 0], [1, 0]]
