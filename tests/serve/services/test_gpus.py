"""Where engines in processes of their own compute."""

import os

import pytest
import torch

from ramen.serve.engine_processes import devices_for, on_its_own


def test_each_engine_has_a_gpu_unless_all_are_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_for(None, 2) == devices_for("cuda", 2) == ["cuda:0", "cuda:1"]
    assert devices_for("cpu", 3) == ["cpu"] * 3
    for device, gpus in ((None, 3), ("cuda:1", 1)):
        with pytest.raises(ValueError, match="--gpus"):
            devices_for(device, gpus)


@pytest.mark.parametrize(("visible", "seen"), [(None, "1"), ("4,6", "6"), ("GPU-a,GPU-b", "GPU-b")])
def test_an_engine_sees_no_other_gpu(monkeypatch: pytest.MonkeyPatch, visible, seen: str) -> None:
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert on_its_own("cuda:1") == "cuda"
    assert os.environ["CUDA_VISIBLE_DEVICES"] == seen
    assert on_its_own("cpu") == "cpu"
