"""Memory of several processes: what one writes, another reads; parts are lent to one at a time."""

import multiprocessing
from contextlib import nullcontext
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ramen.serve.arena import Arena, SharedRegion

PAGE = 4096


def _double(connection: Connection, region: SharedRegion) -> None:
    array = region.bytes_at(*connection.recv())
    array *= 2
    connection.send(int(array.sum()))


def test_another_process_sees_it() -> None:
    region = SharedRegion(3 * PAGE)
    array = region.bytes_at(PAGE, 6)
    array[:] = [1, 2, 3, 4, 5, 6]
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_double, args=(theirs, region))
    process.start()
    ours.send((PAGE, 6))
    assert ours.recv() == 42
    process.join()
    assert array.tolist() == [2, 4, 6, 8, 10, 12]
    assert not region.bytes_at(0, PAGE).any()


def test_where_arrays_are() -> None:
    region, other = SharedRegion(PAGE), SharedRegion(PAGE)
    array = region.bytes_at(10, 100).reshape(10, 10)
    assert region.offset_of(array) == 10
    assert region.offset_of(array[3]) == 40
    assert region.offset_of(array[:, 3]) is None  # it has gaps
    assert other.offset_of(array) is None
    assert region.offset_of(np.zeros(3)) is None


@pytest.mark.parametrize(("offset", "length"), [(0, PAGE + 1), (PAGE, 1), (-1, 2), (5, -1)])
def test_parts_are_within_the_region(offset: int, length: int) -> None:
    with pytest.raises(ValueError, match=f"{length} bytes at {offset} are not within a region of 4096 bytes"):
        SharedRegion(PAGE).bytes_at(offset, length)


def test_a_block_is_lent_as_long_as_somebody_has_a_view() -> None:
    arena = Arena(SharedRegion(PAGE))
    whole = arena.lend(100)
    assert whole is not None
    view = memoryview(whole[10:20].reshape(2, 5))
    del whole
    again = np.frombuffer(view, np.uint8)[3:]
    del view
    assert arena.lent_bytes == PAGE
    del again
    assert arena.lent_bytes == 0


class FakeRuntime:
    """What of CUDA's runtime is used; registering ends with an error, or 0 for none."""

    def __init__(self, error: int) -> None:
        self.error, self.registered = error, []

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.registered.append((address, size))
        return self.error

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return f"error {error}"


@pytest.mark.parametrize("error", [0, 2])
def test_a_region_is_pinned_if_the_system_allows_it(monkeypatch, caplog, error: int) -> None:
    """If it does not, that is said, and the error that CUDA still has does no harm."""
    runtime = FakeRuntime(error)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: runtime)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    region = SharedRegion(3 * PAGE)
    region.pin(2 * PAGE, torch.device("cuda"))
    region.pin(9 * PAGE, torch.device("cuda"))
    assert runtime.registered == [(region.address, 2 * PAGE), (region.address, 3 * PAGE)]
    assert len(caplog.records) == (2 if error else 0)


@pytest.mark.gpu
def test_a_gpu_copies_from_pinned_memory() -> None:
    region = SharedRegion(3 * PAGE)
    region.pin(3 * PAGE, torch.device("cuda"))
    pixels = torch.from_numpy(region.bytes_at(PAGE, 5000))
    pixels.copy_(torch.arange(5000) % 251)
    assert pixels.is_pinned()
    assert torch.equal(pixels.to("cuda", non_blocking=True).cpu(), pixels)


def test_nothing_is_lent_twice_and_neighbours_are_joined() -> None:
    arena = Arena(SharedRegion(4 * PAGE))
    lent = [arena.lend(length) for length in (PAGE, 1, 0, PAGE + 1)]
    assert [one is None for one in lent] == [False, False, False, True]
    assert arena.lent_bytes == 3 * PAGE
    del lent[:2]
    first = arena.lend(2 * PAGE)  # where the first two were
    assert first is not None
    assert arena.region.offset_of(first) == 0
    lent.clear()
    del first
    whole = arena.lend(4 * PAGE)
    assert whole is not None
    assert arena.lend(1) is None


@given(st.lists(st.one_of(st.integers(0, 5 * PAGE), st.floats(0, 1, exclude_max=True)), max_size=60))
def test_any_order_of_lending_and_giving_back(steps: list[int | float]) -> None:
    """A number of bytes is lent; a share says which of those that are lent is given back."""
    arena, held = Arena(SharedRegion(16 * PAGE)), []
    for number, step in enumerate(steps):
        if isinstance(step, float):
            if held:
                del held[int(step * len(held))]
            continue
        held.append((number % 256, arena.lend(step)))
        if held[-1][1] is None:
            del held[-1]
            assert held  # a region that is free lends whatever fits
        else:
            held[-1][1][:] = held[-1][0]
        assert all((array == written).all() for written, array in held)  # nobody else has written to it
    held.clear()
    assert arena.lent_bytes == 0
    assert arena.lend(16 * PAGE) is not None
