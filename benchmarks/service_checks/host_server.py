"""A service whose model is a stand-in for a GPU: its passes take 10 ms per 100 images, and no core.

python -m service_checks.host_server PORT WORKERS MAX_BATCH
"""

import sys
import time
from typing import Any

import torch
from open_clip.transformer import VisionTransformer

from ramen.images.preprocess import Preprocess
from ramen.models.classifier import ZeroShotClassifier
from ramen.serve import serve_run
from ramen.serve.engine.settings import EngineSettings

SIZE = 64  # pixels
_SECONDS_PER_IMAGE = 1e-4
_CLASSES = 8


def stand_in() -> ZeroShotClassifier:
    """A small random classifier whose forward passes sleep."""
    torch.manual_seed(0)
    tower = VisionTransformer(SIZE, 32, 32, 2, 2, 2.0, output_dim=16).eval()
    tower.conv1.register_forward_pre_hook(_sleep)
    embeddings = torch.nn.functional.normalize(torch.randn(_CLASSES, 16), dim=1)
    return ZeroShotClassifier(
        tower,
        embeddings,
        30.0,
        classes=[f"class {number}" for number in range(_CLASSES)],
        preprocess=Preprocess((SIZE, SIZE)),
    )


def _sleep(module: torch.nn.Module, inputs: tuple[Any, ...]) -> None:
    time.sleep(_SECONDS_PER_IMAGE * len(inputs[0]))


def main(port: int, workers: int, max_batch: int) -> None:
    """Serve until a signal comes."""
    torch.set_num_threads(1)
    vars(serve_run)["load_classifier"] = lambda request: stand_in()  # the command line can only name models
    is_old = not hasattr(serve_run.ServeRequest, "workers")
    started: dict[str, Any] = {"http_processes" if is_old else "workers": workers}
    request = serve_run.ServeRequest(
        classes=[f"class {number}" for number in range(_CLASSES)],
        port=port,
        no_auth=True,
        engine=EngineSettings(max_batch=max_batch),
        **started,
    )
    serve_run.serve(request, print)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
