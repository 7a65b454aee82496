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
