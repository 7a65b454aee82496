"""Short streams for tests of stores."""

from collections.abc import Sequence

import torch
from torch import Tensor

import ramen
from ramen import testing
from ramen.client.result import Result
from ramen.methods._method import Method

# Small enough that queues overflow within a few batches.
PARAMETERS = {
    "ramen": {"capacity": 6, "topk": 2, "codec": "sign"},
    "note": {"memory": 6},
    "rotta": {"memory": 6},
    "watt": {"rounds": 1},
    "clipartt": {"iterations": 1},
    "zero": {"views": 4},
    "mta": {"views": 4},
    "tps": {"views": 4},
    "tpt": {"views": 4},
}


def make(name: str = "ramen", classifier: ramen.ZeroShotClassifier | None = None, **given: object) -> Method:
    parameters = {**PARAMETERS.get(name, {}), **given}
    return ramen.create(name, classifier or testing.small_classifier(), **parameters)


def batches(images: int, size: int = 5, seed: int = 0) -> Sequence[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(images, 3, 32, 32, generator=generator).split(size)


def results(count: int, version: int) -> list[Result]:
    top = (("a", 0.5), ("b", 0.25))
    return [
        Result(f"{version}/{place}", "a", 0.5, "b", 0.5, top, True, 3, version, 0.1, 0.2)
        for place in range(count)
    ]


def run(method: Method, store: object, stream: Sequence[Tensor]) -> list[Tensor]:
    """The logits for each batch, saved after each."""
    logits = []
    for batch in stream:
        logits.append(method.predict(batch).logits)
        if store is not None:
            store.save(results(len(batch), method.images_seen))
    return logits


def assert_same_state(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    different = [name for name in one if not torch.equal(one[name], two[name])]
    assert not different
