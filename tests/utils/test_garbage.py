"""Objects that garbage collections leave out."""

import gc

import pytest

from ramen.utils.garbage import left_out_of_collections


def fail_within() -> None:
    with left_out_of_collections():
        frozen, new = gc.get_freeze_count(), [object() for _ in range(10)]
        assert frozen > 1000
        assert gc.get_freeze_count() == frozen, new
        raise RuntimeError("the service failed")


def test_what_was_there_before_is_left_out_until_the_end() -> None:
    with pytest.raises(RuntimeError, match="the service failed"):
        fail_within()
    assert gc.get_freeze_count() < 1000
