"""Whole steps of Ramen on one GPU, with both passes: alone, and in a group of one process with NCCL.

A group of one process makes all exchanges with itself. Alone, a step is one CUDA graph; in a group the
passes are, and the host launches piece by piece what is between them, once the first pass is done. The model
says that this takes as long in every step: the smallest setting says how long, and the others are compared
with it.
"""

import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import speed
import torch
import torch.distributed as dist

import ramen
from ramen.memory.group_memory import GroupMemory
from ramen.methods.ramen import Ramen

SMALL = speed.Setting("ViT-B-32", 10, 75, 5, 32)
NAMES = ("cifar100c", "cifar10c")  # settings of benchmarks/speed.py
CODEC = "sign"


def whole_steps(device: str = "cuda", dtype: str = "float16") -> list[dict[str, Any]]:
    """A row for each setting, the small one first.

    Args:
        device: Where the passes are; gloo takes NCCL's place on a CPU.
        dtype: Of the encoder.
    """
    with tempfile.TemporaryDirectory() as folder:
        meeting = f"file://{Path(folder) / 'meeting'}"
        backend = "nccl" if device == "cuda" else "gloo"
        dist.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        try:
            settings = {"small": SMALL} | {name: speed.SETTINGS[name] for name in NAMES}
            rows = [_row(name, setting, device, dtype) for name, setting in settings.items()]
        finally:
            dist.destroy_process_group()
    between = max(0.0, rows[0]["group_ms"] - rows[0]["alone_ms"])
    for row in rows:
        row["modelled_ms"] = row["alone_ms"] + between
        row["ratio"] = row["group_ms"] / row["modelled_ms"]
    return rows


def _row(name: str, setting: speed.Setting, device: str, dtype: str) -> dict[str, Any]:
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
    if device == "cuda":
        torch.cuda.empty_cache()
    about = f"{setting.model}, {setting.classes} classes, {setting.batch} images"
    return {"setting": name, "about": about, **spent}
