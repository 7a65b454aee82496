"""How filters continue an image beyond its edge."""

import numpy as np
import pytest

from ramen.data.corruptions import filters
from tests.data.corruptions.plain_filters import reflect, reflect101


@pytest.mark.parametrize(("edge", "plain"), [(filters.mirrored, reflect101), (filters.symmetric, reflect)])
def test_edges(edge, plain):
    indices = np.arange(-20, 25)
    assert edge(indices, 5).tolist() == [plain(int(i), 5) for i in indices]


def test_edge_of_one_pixel():
    assert filters.mirrored(np.arange(-2, 3), 1).tolist() == [0] * 5
