"""The size of a signed step that suits a model: chosen from the model alone, before any image is seen.

A signed step of size lr changes every norm parameter by lr. How far that moves an embedding depends on the
model: on the number of its norm layers, on the size of their weights, on what comes after them. It can be
read off the gradients of an image's entropy H. A step along the signs of the gradient with respect to the
norm parameters lowers H by lr * ||dH/dw||_1; the same is achieved by moving the embedding z by
lr * ||dH/dw||_1 / ||dH/dz||_2 straight downhill. That ratio is the model's sensitivity, and the best step of
very different models turned out to be the one for which lr times the sensitivity is about the same
(``docs/methods.md``). It hardly depends on the images: noise with the spectrum of photographs has the
sensitivity of real ones to within 15 %, so that no image of the stream is needed.
"""

import math
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from ramen.methods._steps import sample_gradients
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import plain_numerics

REACH = 0.55  # of an embedding of length 1: lr times the sensitivity
UNKNOWN = 1e-2  # the paper's step, for a model whose sensitivity cannot be measured
_IMAGES = 8
_LEAST_PULL = 1e-6  # a gradient dH/dz below this is rounding

_found: "WeakKeyDictionary[ZeroShotClassifier, dict[tuple[int, int], float | None]]" = WeakKeyDictionary()


def choose_step(classifier: ZeroShotClassifier, size: tuple[int, int]) -> tuple[float, str]:
    """The step, with two significant digits, and why; for images of this height and width."""
    by_size = _found.setdefault(classifier, {})
    if size not in by_size:
        by_size[size] = sensitivity(classifier, noise_like_photographs(_IMAGES, size))
    sensitive = by_size[size]
    if sensitive is None:
        return UNKNOWN, "the paper's, because the model's entropies have no gradient"
    step = REACH / sensitive
    digits = 1 - math.floor(math.log10(step))
    return round(step, digits), f"a step of this size moves an embedding by up to {REACH:g} of its length"


@plain_numerics()
def sensitivity(classifier: ZeroShotClassifier, images: Tensor) -> float | None:
    """How far an embedding moves downhill per unit of a signed step: the median over ``images``.

    None if no image has an entropy with a gradient, as with a single class.
    """
    with torch.no_grad():
        images = images.to(classifier.device)
        embeddings, _, _, gradients = sample_gradients(classifier, images)
    with torch.enable_grad():
        ends = embeddings.detach().requires_grad_()
        log_p = torch.log_softmax(classifier.logits(ends).float(), dim=1)
        (pulls,) = torch.autograd.grad(-(log_p.exp() * log_p).sum(), ends)
    pulls = (pulls - (pulls * embeddings).sum(1, keepdim=True) * embeddings).norm(dim=1)
    rates = gradients.abs().sum(1) / pulls
    rates = rates[(pulls > _LEAST_PULL) & rates.isfinite() & (rates > 0)]
    return float(rates.median()) if len(rates) else None


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
