"""Streams and classifiers for tests of methods that need nothing but embeddings."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen import testing


def stream(batches: int = 20, size: int = 9) -> list[Tensor]:
    """Batches of noise in fp64, always the same."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(size, 3, 32, 32, generator=generator, dtype=torch.float64) for _ in range(batches)]


def unit(rows: Tensor) -> Tensor:
    """Each row at length 1."""
    return F.normalize(rows, dim=-1)


def tower_features(kind: str, images: Tensor) -> Tensor:
    """Unit embeddings by the plain module in fp64."""
    with torch.no_grad():
        return unit(_tower(kind)(images))


@cache
def _tower(kind: str) -> torch.nn.Module:
    return testing.small_tower(kind).double()


def classifier_of(text: Tensor, scale: float = 30.0) -> ramen.ZeroShotClassifier:
    """A small ViT in fp64 with these class embeddings."""
    return ramen.ZeroShotClassifier(testing.small_tower().double(), text.double(), scale)
