"""Whole steps of Ramen on one GPU, with both passes: alone, and in a group of one process with NCCL.

The model says that a group takes what one process takes, and its exchanges. A group of one process makes all
exchanges with itself. Alone, a step is one CUDA graph; in a group the passes are, and what is between them is
launched piece by piece.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import speed
import torch
import torch.distributed as dist

import ramen
from ramen.memory.group_cost import GroupStep
from ramen.memory.group_memory import GroupMemory
from ramen.methods.ramen import Ramen

NAMES = ("cifar100c", "cifar10c")  # settings of benchmarks/speed.py
CODEC = "sign"


def whole_steps(rates: dict[str, float], device: str = "cuda", dtype: str = "float16") -> list[dict[str, Any]]:
    """A row for each setting.

    Args:
        rates: Seconds per exchange and per byte that is packed.
        device: Where the passes are; gloo takes NCCL's place on a CPU.
        dtype: Of the encoder.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        try:
            return [_row(name, speed.SETTINGS[name], rates, device, dtype) for name in NAMES]
        finally:
            dist.destroy_process_group()


def _row(name: str, setting: speed.Setting, rates: dict[str, float], device: str, dtype: str) -> dict[str, Any]:
    classifier = speed.random_classifier(setting, device, dtype, "auto")
    images = speed.random_images(classifier, setting.batch)
    clock = speed.Clock(classifier.device, repeats=20, rounds=3)
    alone = speed.full_ramen(classifier, setting, codec=CODEC)
    content = alone.memory.state()
    spent = {"alone_ms": clock(partial(alone.predict, images))}
    parameters = {name: alone.parameters[name] for name in ("capacity", "topk", "beta", "lr", "codec")}
    del alone
    grouped = ramen.create("ramen", classifier, group=dist.group.WORLD, **parameters)
    assert isinstance(grouped, Ramen)
    memory: Any = grouped.memory
    assert isinstance(memory, GroupMemory)
    memory.restore(content)
    spent["group_ms"] = clock(partial(grouped.predict, images))
    step = GroupStep(memory.plan, setting.batch, setting.topk)
    packed = sum(step.packed().values())
    exchanges = 1000 * (len(step.packed()) * rates["calls"] + packed * rates["packed"])
    modelled = spent["alone_ms"] + exchanges
    if device == "cuda":
        torch.cuda.empty_cache()
    return {
        "setting": f"{name}: {setting.model}, {setting.batch} images",
        **spent,
        "exchanges_ms": exchanges,
        "modelled_ms": modelled,
        "ratio": spent["group_ms"] / modelled,
    }
