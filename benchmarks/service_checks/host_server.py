"""A service whose model is a stand-in for a GPU: its passes take 10 ms per 100 images, and no core.

python -m service_checks.host_server PORT WORKERS MAX_BATCH
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from open_clip.transformer import VisionTransformer

from ramen.cli import app
from ramen.images.preprocess import Preprocess
from ramen.models.classifier import ZeroShotClassifier

_SIZE = 64  # pixels
_SECONDS_PER_IMAGE = 1e-4
_CLASSES = tuple(f"class {number}" for number in range(8))


def stand_in(classes: Sequence[str], device: str, dtype: str) -> ZeroShotClassifier:
    """A small random classifier whose forward passes sleep."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    tower = VisionTransformer(_SIZE, 32, 32, 2, 2, 2.0, output_dim=16).eval()
    tower.conv1.register_forward_pre_hook(_sleep)
    embeddings = torch.nn.functional.normalize(torch.randn(len(classes), 16), dim=1)
    size = Preprocess((_SIZE, _SIZE))
    return ZeroShotClassifier(
        tower, embeddings, 30.0, classes=classes, preprocess=size, device=device, dtype=dtype
    )


def _sleep(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    time.sleep(_SECONDS_PER_IMAGE * len(inputs[0]))


if __name__ == "__main__":
    port, workers, max_batch = sys.argv[1:]
    words = ["serve", "--model", f"{__file__}:stand_in", "--classes", ",".join(_CLASSES), "--no-auth"]
    words += ["--device", "cpu", "--dtype", "float32", "--port", port]
    app([*words, "--workers", workers, "--max-batch", max_batch])
