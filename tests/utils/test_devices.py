"""Devices, dtypes, how much memory is free, and copies that do not wait."""

from pathlib import Path

import pytest
import torch

from ramen.utils import devices
from tests.helpers.device_waits import no_waiting

MEMINFO = "MemTotal:       16 kB\nMemFree:         1 kB\nMemAvailable:    5 kB\n"


@pytest.mark.parametrize("device", ["gpu", "cpu:cpu", 3.5])
def test_unknown_devices(device: object) -> None:
    with pytest.raises(ValueError, match="device"):
        devices.parse_device(device)


def test_a_cuda_device_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices.parse_device("cuda:1") == torch.device("cuda", 1)
    assert devices.parse_device("cuda") == torch.device("cuda")
    with pytest.raises(ValueError, match="device 'cuda:2' is not available: torch sees 2 CUDA devices"):
        devices.parse_device("cuda:2")


def test_dtypes() -> None:
    assert devices.parse_dtype("bfloat16") == devices.parse_dtype(torch.bfloat16) == torch.bfloat16
    with pytest.raises(ValueError, match="dtype"):
        devices.parse_dtype(torch.int8)
    with pytest.raises(ValueError, match="dtype"):
        devices.parse_dtype("half")


# -- free memory ------------------------------------------------------------------------------------


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that stands in for the root of the file system."""
    monkeypatch.setattr(devices, "Path", lambda path: tmp_path / path.lstrip("/"))
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    return tmp_path


def limit(system: Path, maximum: str, current: int, inactive: int) -> None:
    group = system / "sys/fs/cgroup"
    (group / "memory.max").write_text(f"{maximum}\n")
    (group / "memory.current").write_text(f"{current}\n")
    (group / "memory.stat").write_text(f"anon 7\ninactive_file {inactive}\n")


def test_free_memory_of_a_machine(system: Path) -> None:
    cpu = torch.device("cpu")
    assert devices.free_bytes(cpu) is None
    (system / "proc/meminfo").write_text(MEMINFO)
    assert devices.free_bytes(cpu) == 5 * 1024
    (system / "proc/meminfo").write_text("MemTotal: 16 kB\n")
    assert devices.free_bytes(cpu) is None


def test_free_memory_respects_a_container(system: Path) -> None:
    """What its limit leaves, if that is less; file pages that can be dropped count as free."""
    cpu = torch.device("cpu")
    limit(system, "4000", 3000, 500)
    assert devices.free_bytes(cpu) == 1500
    (system / "proc/meminfo").write_text(MEMINFO)
    assert devices.free_bytes(cpu) == 1500
    limit(system, "40000", 3000, 500)
    assert devices.free_bytes(cpu) == 5 * 1024
    limit(system, "max", 3000, 500)
    assert devices.free_bytes(cpu) == 5 * 1024


def test_free_memory_of_a_device_that_does_not_say() -> None:
    assert devices.free_bytes(torch.device("meta")) is None


@pytest.mark.gpu
def test_free_memory_of_a_gpu_counts_what_torch_keeps() -> None:
    device = torch.device("cuda")
    torch.cuda.empty_cache()
    held = torch.empty(2**28, dtype=torch.uint8, device=device)
    before = devices.free_bytes(device)
    del held  # torch keeps it for the next tensor
    assert devices.free_bytes(device) == before + 2**28


# -- copies -----------------------------------------------------------------------------------------


def test_upload_to_the_same_device_is_the_tensor_itself() -> None:
    tensor = torch.arange(5)
    assert devices.upload(tensor, torch.device("cpu")) is tensor


def test_upload_keeps_dtype_and_shape() -> None:
    there = devices.upload(torch.zeros(2, 3, dtype=torch.float16), torch.device("meta"))
    assert (there.device.type, there.dtype, there.shape) == ("meta", torch.float16, (2, 3))


@pytest.mark.gpu
@pytest.mark.parametrize("strided", [False, True])
def test_upload_does_not_wait_and_the_tensor_may_be_written_to(strided: bool) -> None:
    device = torch.device("cuda")
    tensor = torch.arange(2_000_000).view(2, -1)
    tensor = tensor.T if strided else tensor
    expected = tensor.clone()
    with no_waiting():
        torch.cuda._sleep(100_000_000)  # the device is busy, so the copy has not begun
        there = devices.upload(tensor, device)
        tensor.zero_()
    assert there.device.type == "cuda"
    assert torch.equal(there.cpu(), expected)
