"""Memory that a GPU takes images from; without a GPU, of a runtime that only takes notes."""

import gc
import logging
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch

from ramen.serve.engine import pinned_regions
from ramen.serve.engine.pinned_regions import pinned_region

CUDA = torch.device("cuda")
SIZE = 3 * 4096


class FakeRuntime:
    """What of CUDA's runtime is used.

    Args:
        error: That registering ends with; 0 for none.
    """

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.registered: dict[int, int] = {}

    def functions(self) -> SimpleNamespace:
        """By CUDA's own names."""
        return SimpleNamespace(
            cudaHostRegister=self._register,
            cudaHostUnregister=self.registered.pop,
            cudaGetErrorString=lambda error: f"error {error}",
        )

    def _register(self, address: int, size: int, flags: int) -> int:
        if not self.error:
            self.registered[address] = size
        return self.error


def use(monkeypatch: pytest.MonkeyPatch, runtime: FakeRuntime) -> FakeRuntime:
    monkeypatch.setattr(torch.cuda, "cudart", runtime.functions)
    monkeypatch.setattr(torch.cuda, "device", lambda _: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _: None)
    return runtime


def test_a_region_is_registered_as_long_as_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = use(monkeypatch, FakeRuntime())
    region = pinned_region(SIZE, CUDA)
    assert region is not None
    assert runtime.registered == {region.address: SIZE}
    region.bytes_at(0, SIZE)[:] = 1
    del region
    gc.collect()
    assert runtime.registered == {}


def test_a_system_that_does_not_allow_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is said once, and the error that CUDA still has does no harm."""
    use(monkeypatch, FakeRuntime(error=2))
    launched: list[torch.device] = []

    def zeros(_: int, *, device: torch.device) -> None:
        launched.append(device)
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr(pinned_regions.torch, "zeros", zeros)
    with caplog.at_level(logging.WARNING, logger="ramen"):
        assert pinned_region(SIZE, CUDA) is None
    assert launched == [CUDA]
    assert [record.getMessage() for record in caplog.records] == [
        f"{SIZE} bytes for images could not be pinned, so that copies take longer: error 2"
    ]


@pytest.mark.gpu
def test_a_gpu_copies_from_it() -> None:
    region = pinned_region(SIZE, CUDA)
    assert region is not None
    pixels = torch.from_numpy(region.bytes_at(4096, 5000))
    pixels.copy_(torch.arange(5000) % 251)
    assert pixels.is_pinned()
    assert torch.equal(pixels.to(CUDA, non_blocking=True).cpu(), pixels)
