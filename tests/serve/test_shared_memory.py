"""Memory of several processes: what one writes, another reads; parts are lent to one at a time."""

import multiprocessing
from multiprocessing.connection import Connection

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ramen.serve.shared_memory import Lender, SharedRegion, SharedRegions

PAGE = 4096


def _double(connection: Connection, regions: SharedRegions) -> None:
    place, shape = connection.recv()
    array = regions.array_at(place, shape)
    array *= 2
    connection.send(int(array.sum()))


def test_another_process_sees_it() -> None:
    regions = [SharedRegion(PAGE), SharedRegion(3 * PAGE)]
    array = regions[1].bytes_at(PAGE, 6).reshape(2, 3)
    array[:] = [[1, 2, 3], [4, 5, 6]]
    known = SharedRegions(regions)
    place = known.place_of(array)
    assert place == (1, PAGE)
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_double, args=(theirs, known))
    process.start()
    ours.send((place, array.shape))
    assert ours.recv() == 42
    process.join()
    assert array.tolist() == [[2, 4, 6], [8, 10, 12]]
    assert not regions[0].bytes_at(0, PAGE).any()


def test_where_arrays_are() -> None:
    region, other = SharedRegion(PAGE), SharedRegion(PAGE)
    array = region.bytes_at(10, 100).reshape(10, 10)
    assert region.offset_of(array) == 10
    assert region.offset_of(array[3]) == 40
    assert region.offset_of(array[:, 3]) is None  # it has gaps
    assert other.offset_of(array) is None
    assert region.offset_of(np.zeros(3)) is None
    assert SharedRegions([other]).place_of(array) is None


@pytest.mark.parametrize(("offset", "length"), [(0, PAGE + 1), (PAGE, 1), (-1, 2), (5, -1)])
def test_parts_are_within_the_region(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes at {offset} are not within a region of 4096 bytes"):
        SharedRegion(PAGE).bytes_at(offset, length)


def test_told_when_nobody_has_it() -> None:
    gone: list[int] = []
    whole = SharedRegion(PAGE).bytes_at(0, 100, lambda: gone.append(1))
    view = memoryview(whole[10:20].reshape(2, 5))
    del whole
    again = np.frombuffer(view, np.uint8)[3:]
    del view
    assert not gone
    del again
    assert gone == [1]


def test_nothing_is_lent_twice_and_neighbours_are_joined() -> None:
    lender = Lender(SharedRegion(4 * PAGE))
    lent = [lender.lend(length) for length in (PAGE, 1, 0, PAGE + 1)]
    assert [one is None for one in lent] == [False, False, False, True]
    assert lender.lent_bytes == 3 * PAGE
    del lent[:2]
    first = lender.lend(2 * PAGE)  # where the first two were
    assert first is not None
    assert lender.region.offset_of(first) == 0
    lent.clear()
    del first
    whole = lender.lend(4 * PAGE)
    assert whole is not None
    assert lender.lend(1) is None


@given(st.lists(st.one_of(st.integers(0, 5 * PAGE), st.floats(0, 1, exclude_max=True)), max_size=60))
def test_any_order_of_lending_and_giving_back(steps: list[int | float]) -> None:
    """A number of bytes is lent; a share says which of those that are lent is given back."""
    lender, held = Lender(SharedRegion(16 * PAGE)), []
    for number, step in enumerate(steps):
        if isinstance(step, float):
            if held:
                del held[int(step * len(held))]
            continue
        held.append((number % 256, lender.lend(step)))
        if held[-1][1] is None:
            del held[-1]
            assert held  # a region that is free lends whatever fits
        else:
            held[-1][1][:] = held[-1][0]
        assert all((array == written).all() for written, array in held)  # nobody else has written to it
    held.clear()
    assert lender.lent_bytes == 0
    assert lender.lend(16 * PAGE) is not None
