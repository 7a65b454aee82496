"""Class embeddings as means of a few labelled images."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.affine_encoder import AffineEncoder
from ramen.images.preprocess import Preprocess
from ramen.utils.checks import integer

DEFAULT_SCALE = 100.0
_SCALES = tuple(float(2 ** (step / 4)) for step in range(0, 33))  # 1 to 256


@dataclass(frozen=True)
class Prototypes:
    """One unit vector per class ``(C, d)``, and the logit scale that suits them."""

    means: Tensor
    logit_scale: float


@torch.no_grad()
def class_means(
    encoder: AffineEncoder,
    images: Any,
    labels: Tensor | Sequence[int],
    preprocess: Preprocess | None,
    batch_size: int,
) -> Prototypes:
    """The unit mean of each class's unit embeddings; see ``ZeroShotClassifier.from_prototypes``."""
    integer("batch_size", batch_size, 1)
    embeddings = _embeddings(encoder, images, preprocess, batch_size)
    numbers = _check_labels(labels, len(embeddings))
    if not embeddings.isfinite().all():
        raise ValueError("images must have finite embeddings, got some that are not")
    count = int(numbers.max()) + 1
    members = F.one_hot(numbers, count).to(embeddings)  # (N, C)
    sums = members.T @ embeddings
    if (sums.norm(dim=1) < 1e-6 * members.sum(0)).any():
        raise ValueError("images: the embeddings of a class must not cancel each other")
    return Prototypes(F.normalize(sums, dim=1), _best_scale(embeddings, members, sums, numbers))


def _embeddings(
    encoder: AffineEncoder, images: Any, preprocess: Preprocess | None, batch_size: int
) -> Tensor:
    if isinstance(images, Tensor) and images.is_floating_point():
        parts = [encoder(part).cpu() for part in images.split(batch_size)]
    elif preprocess is None:
        raise ValueError(
            "preprocess must be given if images are not a float tensor (N, 3, H, W) that is preprocessed, "
            f"got {type(images).__name__}"
        )
    else:
        sources = list(images)
        starts = range(0, len(sources), batch_size)
        parts = [encoder(preprocess(sources[i : i + batch_size])).cpu() for i in starts]
    if not parts or not len(parts[0]):
        raise ValueError("images must hold at least one image, got none")
    return torch.cat(parts)


def _check_labels(labels: Tensor | Sequence[int], count: int) -> Tensor:
    numbers = torch.as_tensor(labels).cpu()
    if numbers.shape != (count,) or numbers.is_floating_point() or numbers.dtype == torch.bool:
        raise ValueError(
            f"labels must be a class number of each of the {count} images, got {numbers.dtype} of shape "
            f"{tuple(numbers.shape)}"
        )
    if int(numbers.min()) < 0:
        raise ValueError(f"labels must be at least 0, got {int(numbers.min())}")
    missing = sorted(set(range(int(numbers.max()) + 1)) - set(numbers.tolist()))
    if missing:
        listed = ", ".join(map(str, missing[:5])) + (", ..." if len(missing) > 5 else "")
        raise ValueError(f"labels must name every class up to the largest number, got none of {listed}")
    return numbers.long()


def _best_scale(embeddings: Tensor, members: Tensor, sums: Tensor, labels: Tensor) -> float:
    """The scale with the lowest cross entropy of images whose own classes' means do without them."""
    several = members.sum(0)[labels] > 1
    if not several.any() or sums.shape[0] == 1:
        return DEFAULT_SCALE
    cosines = embeddings @ F.normalize(sums, dim=1).T
    without = F.normalize(sums[labels] - embeddings, dim=1)
    own = (embeddings * without).sum(1)
    cosines[torch.arange(len(labels)), labels] = own
    losses = [float(F.cross_entropy(scale * cosines[several], labels[several])) for scale in _SCALES]
    return _SCALES[losses.index(min(losses))]
