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

from ramen.encoder.encoder import AffineEncoder
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.numerics import plain_numerics

REACH = 0.18  # of an embedding of length 1: lr times the sensitivity
UNKNOWN = 1e-2  # the paper's step, for an encoder that does not react to its norm parameters
_IMAGES = 8

STEP_FORMS = ("equal", "layer", "weight")
_BIASES = 0.3  # with "weight"

_weights: "WeakKeyDictionary[AffineEncoder, dict[str, Tensor | None]]" = WeakKeyDictionary()
_found: "WeakKeyDictionary[object, dict[object, float]]" = WeakKeyDictionary()  # by encoder


def step_weights(encoder: AffineEncoder, form: str) -> Tensor | None:
    """How far a step moves each norm parameter ``(G,)``, in units of ``lr``; None if all move alike.

    With "layer", that is the root mean square of its layer's weights, in units of the mean of all layers; a
    layer without weights moves as the mean does. With "weight", it is 1 for weights and 0.3 for biases.
    """
    if form == "equal":
        return None
    known = _weights.setdefault(encoder, {})
    if form not in known:  # kept, as recorded steps know their addresses
        known[form] = _step_weights(encoder, form)
    return known[form]


def _step_weights(encoder: AffineEncoder, form: str) -> Tensor | None:
    base = encoder.base
    found = torch.ones_like(base)
    if form == "weight":
        for piece in encoder.layout:
            found[piece.start : piece.stop] = _BIASES if piece.kind == "bias" else 1.0
        return found
    sizes = {
        piece.layer: base[piece.start : piece.stop].double().square().mean().sqrt()
        for piece in encoder.layout
        if piece.kind == "weight"
    }
    mean = torch.stack([*sizes.values()]).mean() if sizes else None
    if mean is None or not mean > 0:
        return None
    for piece in encoder.layout:
        if piece.layer in sizes:
            found[piece.start : piece.stop] = sizes[piece.layer] / mean
    return found


def choose_step(
    classifier: ZeroShotClassifier, size: tuple[int, int], form: str = "equal"
) -> tuple[float, str]:
    """The step, with two significant digits, and why; for images of this height and width."""
    known = _found.setdefault(classifier.encoder, {})
    if (size, form) not in known:
        weights = step_weights(classifier.encoder, form)
        known[size, form] = sensitivity(classifier, noise_like_photographs(_IMAGES, size), weights)
    found = known[size, form]
    if not 0 < found < math.inf:
        return UNKNOWN, "the paper's, because the embeddings do not react to norm parameters"
    step = REACH / found
    digits = 1 - math.floor(math.log10(step))
    return round(step, digits), f"such a step moves an embedding by up to {REACH:g} in a random direction"


@plain_numerics()
def sensitivity(classifier: ZeroShotClassifier, images: Tensor, weights: Tensor | None = None) -> float:
    """How far a signed step of size 1 can move an embedding in a random direction: the median over images.

    With ``weights``, one per norm parameter, the step is as long as these.
    """
    encoder = classifier.encoder
    images = images.to(encoder.device)
    with torch.enable_grad():
        rows = encoder.base.expand(len(images), -1).requires_grad_()
        embeddings = classifier.encode(images, rows)
        directions = _directions_along_the_sphere(embeddings.detach())
        gradients = classifier.gradient((directions * embeddings).sum(), rows)
    rates = (gradients if weights is None else gradients * weights).abs().sum(1)
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
