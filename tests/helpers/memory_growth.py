"""How much memory a process needs that classifies image after image; run as a program, in a fresh process.

    python -m tests.helpers.memory_growth IMAGES

prints as JSON the resident bytes after a tenth of the images and after all of them: "flat" for a consumer
that keeps nothing, "keeping" for one that keeps every result together with its image.
"""

import json
import resource
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

import ramen

_SIZE = 64  # of the images


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = int(sys.argv[1])
    tower = nn.Sequential(nn.Flatten(), nn.Linear(192, 16), nn.LayerNorm(16), nn.Linear(16, 16))
    clf = ramen.ZeroShotClassifier(tower, torch.randn(4, 16), preprocess=ramen.Preprocess(8))
    flat = measure(ramen.create("ramen", clf, capacity=10), images, keep=False)
    keeping = measure(ramen.create("ensemble", clf), images, keep=True)
    print(json.dumps({"flat": flat, "keeping": keeping}))


def measure(method: ramen.Method, images: int, *, keep: bool) -> tuple[int, int]:
    """Resident bytes after a tenth of the images and after all of them, answered one by one."""
    rng = np.random.default_rng(0)
    sent: list[np.ndarray] = []
    kept: list[object] = []
    early = 0

    def generate() -> Iterator[np.ndarray]:
        for _ in range(images):
            sent[:] = [rng.integers(0, 256, (_SIZE, _SIZE, 3), dtype=np.uint8)]
            yield sent[0]

    with ramen.Predictor(method, batch_size=1) as predictor:
        for number, result in enumerate(predictor.classify(generate()), 1):
            assert result.error is None
            if keep:
                kept.append((result, sent[0].copy()))
            if number == images // 10:
                early = resident_bytes()
    return early, resident_bytes()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


if __name__ == "__main__":
    main()
