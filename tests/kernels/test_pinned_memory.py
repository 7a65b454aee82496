"""Pinned host memory: how long it lives, and what the error says."""

import contextlib

import pytest
import torch

from ramen.kernels import pinned_memory


class FakeRuntime:
    """In place of CUDA: notes what is registered."""

    def __init__(self, error: int = 0) -> None:
        self.error, self.registered = error, {}

    def cudaHostRegister(self, address: int, size: int, flags: int) -> int:  # noqa: N802
        self.registered[address] = size
        return self.error

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        del self.registered[address]
        return 0

    def cudaGetErrorString(self, error: int) -> str:  # noqa: N802
        return f"error {error}"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> FakeRuntime:
    fake = FakeRuntime()
    monkeypatch.setattr(torch.cuda, "cudart", lambda: fake)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(pinned_memory, "_check_once", lambda device: None)
    monkeypatch.setattr(torch.cuda, "device", lambda device: contextlib.nullcontext())
    return fake


def test_it_lives_as_long_as_its_views(runtime: FakeRuntime) -> None:
    table = pinned_memory.shared_zeros((30, 7), torch.float16, torch.device("cuda"))
    assert runtime.registered == {table.data_ptr(): 30 * 7 * 2}
    assert not table.any()
    view = table[3:5]
    view[0, 0] = 5
    assert table[3, 0] == 5
    del table
    assert len(runtime.registered) == 1
    assert view[0, 0] == 5
    del view
    assert not runtime.registered


def test_memory_that_cannot_be_pinned(runtime: FakeRuntime) -> None:
    runtime.error = 2
    with pytest.raises(MemoryError, match=r"420 bytes .* could not be pinned for cuda \(error 2\): lower"):
        pinned_memory.shared_zeros((30, 7), torch.float16, torch.device("cuda"))
