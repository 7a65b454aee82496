"""The size of a signed step that suits an encoder: chosen from the encoder alone, before any image is seen.

A signed step of size lr changes every norm parameter by lr. How far that can move an embedding z depends on
the encoder: on the number of its norm layers, on the size of their weights, on what comes after them. In a
direction u it is at most lr * ||d(u.z)/dw||_1, to first order. For a direction drawn at random that norm is
the encoder's sensitivity, and the best steps of very different encoders are those for which lr times the
sensitivity is about the same (``docs/methods.md`` has the figures). It depends on the images so little that
noise with the spectrum of photographs will do: no image of the stream is needed.
"""

import math
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import plain_numerics

REACH = 0.18  # of an embedding of length 1: lr times the sensitivity
UNKNOWN = 1e-2  # the paper's step, for an encoder that does not react to its norm parameters
_IMAGES = 8

_found: "WeakKeyDictionary[object, dict[tuple[int, int], float]]" = WeakKeyDictionary()  # by encoder


def choose_step(classifier: ZeroShotClassifier, size: tuple[int, int]) -> tuple[float, str]:
    """The step, with two significant digits, and why; for images of this height and width."""
    by_size = _found.setdefault(classifier.encoder, {})
    if size not in by_size:
        by_size[size] = sensitivity(classifier, noise_like_photographs(_IMAGES, size))
    if not 0 < by_size[size] < math.inf:
        return UNKNOWN, "the paper's, because the embeddings do not react to norm parameters"
    step = REACH / by_size[size]
    digits = 1 - math.floor(math.log10(step))
    return round(step, digits), f"such a step moves an embedding by up to {REACH:g} in a random direction"


@plain_numerics()
def sensitivity(classifier: ZeroShotClassifier, images: Tensor) -> float:
    """How far a signed step of size 1 can move an embedding in a random direction: the median over images."""
    encoder = classifier.encoder
    images = images.to(encoder.device)
    with torch.enable_grad():
        rows = encoder.base.expand(len(images), -1).requires_grad_()
        embeddings = classifier.encode(images, rows)
        directions = _directions_along_the_sphere(embeddings.detach())
        gradients = classifier.gradient((directions * embeddings).sum(), rows)
    rates = gradients.abs().sum(1)
    return float(rates[rates.isfinite()].nanmedian())


def _directions_along_the_sphere(embeddings: Tensor) -> Tensor:
    """A random direction of length 1 for each embedding, at right angles to it."""
    draws = torch.Generator(device="cpu").manual_seed(1)
    drawn = torch.randn(embeddings.shape, generator=draws, device="cpu").to(embeddings)
    return F.normalize(drawn - (drawn * embeddings).sum(1, keepdim=True) * embeddings, dim=1)


def noise_like_photographs(count: int, size: tuple[int, int]) -> Tensor:
    """Images ``(count, 3, H, W)`` whose amplitudes fall with 1 / frequency, mean 0 and deviation 1."""
    height, width = size
    draws = torch.Generator(device="cpu").manual_seed(0)
    white = torch.randn(count, 4, height, width, generator=draws, device="cpu")
    down = torch.fft.fftfreq(height, device="cpu")
    across = torch.fft.rfftfreq(width, device="cpu")
    frequency = (down[:, None] ** 2 + across**2).sqrt().clamp_min(1 / max(size))
    layers = torch.fft.irfft2(torch.fft.rfft2(white) / frequency, s=size)
    layers = layers / layers.std((2, 3), keepdim=True, correction=0).clamp_min(1e-6)
    images: Tensor = layers[:, :1] + 0.4 * layers[:, 1:]  # mostly grey, with some colour
    images -= images.mean((1, 2, 3), keepdim=True)
    return images / images.std((1, 2, 3), keepdim=True, correction=0).clamp_min(1e-6)
