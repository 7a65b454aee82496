"""Why logits of a stream may differ beside others: which steps have a coordinate with the other sign.

A pass with other images rounds differently in the last digits. Ramen's step takes the sign of each coordinate
of a sum of gradients; next to zero, rounding decides it. The same images are answered twice, alone and beside
those of another stream, and the steps are compared coordinate by coordinate.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ramen.methods import predict_together
from ramen.methods._method import Prediction
from ramen.methods._passes import Seen
from ramen.methods.ramen import OwnStep, Ramen
from ramen.serve.engine.settings import EngineSettings
from ramen.serve.engine.stream_cache import StreamMethods
from service_checks.options import CheckOptions
from service_checks.sent_images import domain_images


@dataclass
class SignFlips:
    """What was seen.

    Attributes:
        coordinates: Of a step.
        flipped: For each step, how many of them have another sign.
        apart: For each step, the largest difference of a logit.
    """

    coordinates: int
    flipped: list[int] = field(default_factory=list)
    apart: list[float] = field(default_factory=list)

    def largest(self, *, flipped: bool) -> float:
        """The largest difference of a logit in steps with, or without, a flipped sign."""
        chosen = [
            apart for count, apart in zip(self.flipped, self.apart, strict=True) if (count > 0) == flipped
        ]
        return max(chosen, default=0.0)


def count_sign_flips(options: CheckOptions, images: int) -> SignFlips:
    """Answer a stream alone and beside another one, image by image.

    Args:
        options: Of the run.
        images: How many are in the stream.
    """
    classifier = options.classifier
    methods = StreamMethods(classifier, "ramen", {}, EngineSettings().stream_memory)
    alone, beside, other = (methods.create() for _ in range(3))
    own, others = (
        classifier.preprocess(
            torch.from_numpy(domain_images(domain, count, options.image_size)).permute(0, 3, 1, 2)
        )
        for domain, count in ((0, min(images, 200)), (9, 64))
    )
    found = SignFlips(classifier.encoder.base.numel())
    with _steps() as taken:
        for number in range(images):
            image = own[number % len(own)][None]
            more = others[torch.arange(number, number + 1 + number % 7) % len(others)]
            first = _checked(predict_together([(alone, image)])[0])
            second = _checked(predict_together([(beside, image), (other, more)])[0])
            base = classifier.encoder.base
            signs = [torch.sign(taken[id(method)] - base) for method in (alone, beside)]
            found.flipped.append(int((signs[0] != signs[1]).sum()))
            found.apart.append(float((_centred(first) - _centred(second)).abs().max()))
    return found


@contextmanager
def _steps() -> Iterator[dict[int, Tensor]]:
    """The norm parameters after the last step of each method, by its id, while the block lasts."""
    taken: dict[int, Tensor] = {}
    plain = Ramen.step

    def step(self: Ramen, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        own = plain(self, seen, usable, storable)
        taken[id(self)] = own.affine.clone()
        return own

    Ramen.step = step  # type: ignore[method-assign]
    try:
        yield taken
    finally:
        Ramen.step = plain  # type: ignore[method-assign]


def _checked(prediction: Prediction | Exception) -> Prediction:
    if isinstance(prediction, Exception):
        raise prediction
    return prediction


def _centred(prediction: Prediction) -> Tensor:
    logits = prediction.logits.float()
    return logits - logits.mean(1, keepdim=True)
