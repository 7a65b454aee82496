"""What a clause of the contract works with: fresh methods, a stream, and how close is equal."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.encoder.passes import Router
from ramen.encoder.statistics import Statistics
from ramen.methods._method import Method
from ramen.methods._passes import Prediction
from ramen.models.classifier import ZeroShotClassifier


@dataclass(frozen=True)
class Bench:
    """What a clause of the contract needs: fresh methods and a stream."""

    make: Callable[..., Method]  # of a classifier, and parameters that replace those of the bench
    classifier: ZeroShotClassifier
    batches: tuple[Tensor, ...]  # the last one is short

    def fresh(self) -> Method:
        """The method as it is created."""
        return self.make(self.classifier)

    def run(self, method: Method, start: int = 0, stop: int | None = None) -> list[Prediction]:
        """What a method predicts for the batches from ``start`` to before ``stop``."""
        return [method.predict(batch) for batch in self.batches[start:stop]]


def assert_same(a: list[Prediction], b: list[Prediction], what: str) -> None:
    for index, (left, right) in enumerate(zip(a, b, strict=True)):
        assert torch.equal(left.logits, right.logits), f"{what}: logits differ in batch {index}"


def tolerance(bench: Bench) -> float:
    """How far logits may lie apart that were computed in batches of other sizes."""
    return 0.5 if bench.classifier.dtype in (torch.float16, torch.bfloat16) else 1e-3


class CountingClassifier(ZeroShotClassifier):
    """A classifier that notes how many images each pass through its encoder has."""

    def __init__(self, original: ZeroShotClassifier) -> None:
        self.__dict__.update(original.__dict__)
        self.fused = False  # a replayed graph makes no calls that could be counted
        self.forwards: list[int] = []
        self.backwards: list[int] = []

    def encode(
        self,
        images: Tensor,
        affine: Tensor | None = None,
        *,
        statistics: Statistics | None = None,
        normalize: bool = True,
        router: Router | None = None,
    ) -> Tensor:
        self.forwards.append(len(images))
        return super().encode(images, affine, statistics=statistics, normalize=normalize, router=router)

    def gradient(self, loss: Tensor, affine: Tensor) -> Tensor:
        """The gradient, noted as a pass back through the last forward pass."""
        self.backwards.append(self.forwards[-1])
        return super().gradient(loss, affine)
