"""Images of an attacker who knows the pretrained model, but never sees the images of other users.

Each attack turns the attacker's own images, uint8 of the model's size, into as many that are sent to the
stream. The pretrained model is all that the gradients go through: the attacker cannot know what a method has
made of it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero, plain_numerics
from ramen.utils.random_draws import Draws

EPS = 8 / 255
STEPS = 20
_BATCH = 100
_REACH = 2.5  # all steps together, in units of eps; they become shorter, as the highest entropy is a ridge
_HALF_PRECISION_SCALE = 64.0  # the gradient of a pixel is near the smallest number of float16


@dataclass(frozen=True)
class Budget:
    """What an attack may do to an image.

    Attributes:
        eps: The most that a pixel in [0, 1] may change.
        steps: Of projected gradient descent.
    """

    eps: float = EPS
    steps: int = STEPS

    def __post_init__(self) -> None:
        """Refuse what allows no attack."""
        if checks.number("eps", self.eps, 0) > 1:
            raise ValueError(f"eps must be at most 1, the range of a pixel, got {self.eps}")
        checks.integer("steps", self.steps, 1)


def highest_entropy(
    classifier: ZeroShotClassifier, images: Tensor, seed: int, budget: Budget | None = None
) -> Tensor:
    """Images of which the pretrained model is as unsure as possible.

    The loss is the cross-entropy of the uniform distribution. It is lowest where entropy is highest, but has
    a slope also where the model is sure: it found twice the entropy that steps along entropy itself did.
    """

    def loss(logits: Tensor) -> Tensor:
        return -logits.float().log_softmax(1).mean(1)

    return _descend(classifier, images, budget or Budget(), loss)


def one_target(
    classifier: ZeroShotClassifier, images: Tensor, seed: int, budget: Budget | None = None
) -> Tensor:
    """Images that the pretrained model takes for one class, which ``target_class`` draws."""
    target = target_class(classifier, seed)

    def loss(logits: Tensor) -> Tensor:
        return -logits.float().log_softmax(1)[:, target]

    return _descend(classifier, images, budget or Budget(), loss)


def flooding(
    classifier: ZeroShotClassifier, images: Tensor, seed: int, budget: Budget | None = None
) -> Tensor:
    """Unchanged images of the class that is predicted most often, over and over: they fill its queue."""
    predicted = zero_shot_logits(classifier, check_pixels(classifier, images)).argmax(1)
    chosen = predicted.bincount().argmax()
    own = (predicted == chosen).nonzero().flatten().tolist()
    order = Draws(seed, "flooding").permutation(len(own)).tolist()
    return images[[own[order[number % len(own)]] for number in range(len(images))]]


def noise(classifier: ZeroShotClassifier, images: Tensor, seed: int, budget: Budget | None = None) -> Tensor:
    """Uniform noise in place of the images."""
    check_pixels(classifier, images)
    draws = torch.Generator(device="cpu").manual_seed(seed)
    drawn = torch.randint(0, 256, images.shape, generator=draws, dtype=torch.uint8, device="cpu")
    return drawn.to(images.device)


Attack = Callable[[ZeroShotClassifier, Tensor, int, Budget | None], Tensor]
ATTACKS: Mapping[str, Attack] = {
    "entropy": highest_entropy,
    "target": one_target,
    "flood": flooding,
    "noise": noise,
}


def target_class(classifier: ZeroShotClassifier, seed: int) -> int:
    """The class that ``one_target`` aims at."""
    return int(Draws(seed, "target class").permutation(classifier.num_classes)[0])


def own_pixels(classifier: ZeroShotClassifier, images: Tensor | Sequence[Path | Tensor]) -> Tensor:
    """Images as attacks take them: resized and cropped, uint8 ``(n, 3, H, W)`` on the CPU."""
    return classifier.preprocess.pixels(images, device="cpu")


def check_pixels(classifier: ZeroShotClassifier, images: Tensor) -> Tensor:
    """``images``, if they are uint8 images of the model's size."""
    height, width = classifier.preprocess.size
    shape = tuple(images.shape)
    if images.dtype != torch.uint8 or len(shape) != 4 or shape[1:] != (3, height, width) or not shape[0]:
        raise ValueError(
            f"images must be uint8 of shape (n, 3, {height}, {width}), the model's size, "
            f"got {images.dtype} of shape {shape}"
        )
    return images


def normalised(classifier: ZeroShotClassifier, pixels: Tensor) -> Tensor:
    """Pixels in [0, 1] as the encoder takes them: what ``preprocess`` does, but with a gradient."""
    statistics = classifier.pixel_statistics
    if statistics is None:
        raise ValueError("classifier must have preprocessing for attacks on pixels, got one without")
    mean, std = (pixels.new_tensor(values)[:, None, None] for values in statistics)
    return (pixels - mean) / std


@plain_numerics()
@torch.no_grad()
def zero_shot_logits(classifier: ZeroShotClassifier, images: Tensor) -> Tensor:
    """What the pretrained model answers to uint8 images, on the CPU."""
    parts = [classifier.encode(classifier.preprocess(part)) for part in images.split(_BATCH)]
    return torch.cat([classifier.logits(part) for part in parts]).cpu()


@plain_numerics()
def _descend(
    classifier: ZeroShotClassifier, images: Tensor, budget: Budget, loss: Callable[[Tensor], Tensor]
) -> Tensor:
    """Projected gradient descent on ``loss`` of each image, along signs and from the image itself."""
    check_pixels(classifier, images)
    # Sent images are whole levels, so that the bound in levels is a whole number too.
    levels = math.floor(255 * budget.eps + 1e-6)
    scale = _HALF_PRECISION_SCALE if classifier.dtype == torch.float16 else 1.0
    found = []
    for clean in images.split(_BATCH):
        whole = clean.to(classifier.device, torch.float32)
        moved = whole / 255
        lowest, highest = (moved - budget.eps).clamp_min(0), (moved + budget.eps).clamp_max(1)
        for step in range(budget.steps):
            with torch.enable_grad():
                moved.requires_grad_()
                logits = classifier.logits(classifier.encode(normalised(classifier, moved)))
                (slope,) = torch.autograd.grad(scale * loss(logits).sum(), moved)
            size = 2 * (1 - step / budget.steps) * _REACH * budget.eps / budget.steps
            moved = (moved.detach() - size * finite_or_zero(slope).sign()).clamp(lowest, highest)
        sent = (255 * moved).round().clamp(whole - levels, whole + levels).clamp(0, 255)
        found.append(sent.to(images.device, torch.uint8))
    return torch.cat(found)
