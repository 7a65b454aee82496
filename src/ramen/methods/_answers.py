"""What a method returns for a batch, and what its caller gets."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Support:
    """The entries behind each answer, ``(B, S)`` each; where ``valid`` is False there is none."""

    numbers: Tensor  # which image of the stream, counted from 0
    tags: Tensor  # its tag, -1 if it had none
    queues: Tensor  # the queue it was in: with balanced predictions, its pseudo-label
    distances: Tensor
    weights: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> "Support":
        """A copy on ``device``."""
        return Support(**{name: value.to(device) for name, value in vars(self).items()})


@dataclass(frozen=True)
class Answer:
    """What ``adapt`` returns.

    Args:
        logits: The prediction ``(B, C)``.
        zero_shot_logits: The classifier's own, if the method has them anyway; None to compute them only if
            somebody asks.
        usable: For which images the method could work; the others are answered zero-shot.
        support: Returns the entries behind each answer; called only if the caller asked for them.
    """

    logits: Tensor
    zero_shot_logits: Tensor | None
    usable: Tensor
    support: Callable[[], Support] | None = None

    def of(self, images: slice) -> "Answer":
        """The answer for some images of the batch, without what is behind it."""
        zero_shot = None if self.zero_shot_logits is None else self.zero_shot_logits[images]
        return Answer(self.logits[images], zero_shot, self.usable[images])


@dataclass(eq=False, repr=False)
class Prediction:
    """The answer for a batch, on the device of the images.

    Attributes:
        logits: The method's prediction, ``(B, C)`` in fp32 (fp64 for a double encoder).
        zero_shot: The classifier's logits without adaptation, or a function that computes them.
        fallback: True for images that the method could not use (a non-finite pixel, embedding, gradient or
            logit); their ``logits`` are zero-shot.
        support: The entries behind each answer, if asked for.
    """

    logits: Tensor
    zero_shot: Tensor | Callable[[], Tensor]
    fallback: Tensor
    support: Support | None = None

    @property
    def labels(self) -> Tensor:
        """The predicted classes ``(B,)``."""
        return self.logits.argmax(1)

    @cached_property
    def zero_shot_logits(self) -> Tensor:
        """The classifier's logits without adaptation.

        If the method has no use for them, asking costs a forward pass, and the images are kept until then.
        """
        return self.zero_shot if isinstance(self.zero_shot, Tensor) else self.zero_shot()

    def of(self, images: slice) -> "Prediction":
        """The answer for some images of the batch."""
        support = self.support
        if support is not None:
            support = Support(**{name: value[images] for name, value in vars(support).items()})
        return Prediction(self.logits[images], self.zero_shot_logits[images], self.fallback[images], support)

    def __repr__(self) -> str:
        return f"Prediction(labels={self.labels.tolist()}, fallback={int(self.fallback.sum())})"
