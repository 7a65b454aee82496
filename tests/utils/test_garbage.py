"""Objects that garbage collections leave out."""

import gc

import pytest

from ramen.utils.workers import left_out_of_collections


def is_looked_through(thing: object) -> bool:
    """Whether collections look at it; not a count, as other threads make and drop objects meanwhile."""
    return any(each is thing for each in gc.get_objects())


def fail_within(old: list[object]) -> None:
    with left_out_of_collections():
        new: list[object] = []
        assert not is_looked_through(old)
        assert is_looked_through(new)
        raise RuntimeError("the service failed")


def test_what_was_there_before_is_left_out_until_the_end() -> None:
    old: list[object] = []
    with pytest.raises(RuntimeError, match="the service failed"):
        fail_within(old)
    assert is_looked_through(old)
