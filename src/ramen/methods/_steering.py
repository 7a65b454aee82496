"""The step in use follows the stream: steered by the answers that are given anyway, without labels.

Two numbers say whether a step is too short or too long. ``movement`` is how far it moves an embedding of
length 1, on the mean. ``gain`` is how much more the answers say about the images than zero-shot answers do,
``information(answers) - information(zero-shot answers)``, in nats. On every network that we measured the best
step for corrupted images moves embeddings by 0.5 to 0.65 and gains far more than half a nat, while on clean
images, where a step of that length does harm, the gain stays small. So the step aims at

    movement = MOVEMENT * min(1, gain / enough),    enough = min(1/2, ln(C) / 4)

where a quarter of the most that answers in C classes can say stands for few classes. Answers that say
nothing, those to one class for ever or to noise, gain next to nothing: the step shrinks. While the stream
shows only few classes it never grows, whatever the gain.

The unit is a block of images, never a batch, so that answers need not depend on the batch size: the step of
a block follows from the blocks before the previous one, since a batch may span two. Everything is kept as
tensors on the device, and nothing waits for their values.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ramen.methods._method import Method

BLOCK = 128  # images with the same step
MOVEMENT = 0.55
WINDOW = 512  # images: what is older counts less
SHORTEST, LONGEST = (
    1 / 8,
    8.0,
)  # of the step that suits the encoder: never so short that nothing is seen of it
_PACE = 1.5  # how much longer or shorter a step may become from one block to the next
_FEW = 10  # classes
STATES = ("step_end", "step_lengths", "step_sums")


class Steering:
    """Declares states on a method and computes the steps of its next images from the answers to the last.

    It does not keep the method, which owns it: ``state`` is the method with these states as attributes.

    Args:
        method: Whose step follows the stream.
    """

    def __init__(self, method: Method) -> None:
        self._classes = classes = method.classifier.num_classes
        device = method.classifier.device
        self._labels = torch.arange(classes, device=device)
        self._parts = torch.tensor([[False], [True]], device=device)  # before the end of the block, or not
        # the number of the image with which the next block begins
        method.add_state("step_end", torch.tensor(BLOCK, device=device), minimum=BLOCK)
        # of this block and of the next, in units of the step that suits the encoder
        method.add_state("step_lengths", torch.ones(2, device=device), minimum=0)
        # sums of observations over the blocks before this one, the older the less, and over this one
        method.add_state("step_sums", torch.zeros(2, 3 * classes + 4, device=device), minimum=0)

    def lengths(self, state: Any, numbers: Tensor, *, causal: bool) -> Tensor:
        """How long a step each image takes ``(B, 1)``, given its number in the stream."""
        pair: Tensor = state.step_lengths
        if not causal:
            return pair[1].expand(len(numbers), 1)
        return torch.where(numbers >= state.step_end, pair[1], pair[0])[:, None]

    def learn(
        self,
        state: Any,
        zero_shot: tuple[Tensor, Tensor],
        adapted: tuple[Tensor, Tensor],
        usable: Tensor,
        numbers: Tensor,
        newest: Tensor,
        lengths: Tensor,
    ) -> None:
        """Take the answers to a batch into account.

        Args:
            state: The method.
            zero_shot: Embeddings and logits with the pretrained weights.
            adapted: The same after the step.
            usable: Which images count.
            numbers: Of the images in the stream, ``(B,)``.
            newest: The largest number of a usable image, in a group that of all processes; or -1.
            lengths: Of the steps that were taken, ``(B, 1)``.
        """
        moved = (adapted[0] - zero_shot[0]).float().norm(dim=1, keepdim=True) / lengths
        counts = usable[:, None] & (moved < torch.inf)
        rows = torch.where(counts, self._observations(zero_shot[1], adapted[1], moved, counts), 0)
        parts = (numbers >= state.step_end) == self._parts
        now, later = state.summed(parts.to(rows.dtype) @ rows)
        before, block = state.step_sums
        block = block + now
        end = (newest + (BLOCK + 1)) // BLOCK * BLOCK  # of the block to which the next image belongs
        is_complete, length = end > state.step_end, state.step_lengths[1]
        past = torch.add(block, before, alpha=math.exp(-BLOCK / WINDOW))
        sums = torch.stack([past, later]), torch.stack([before, block])
        following = torch.stack([length, self._next(past, length)])
        state.step_sums = torch.where(is_complete, *sums)
        state.step_lengths = torch.where(is_complete, following, state.step_lengths)
        state.step_end = torch.maximum(end, state.step_end)

    def _observations(self, zero_shot: Tensor, adapted: Tensor, moved: Tensor, counts: Tensor) -> Tensor:
        """What each image adds to the sums ``(B, 3 C + 4)``.

        Probabilities before and after the step, the predicted class, both entropies, how far the embedding
        moved per unit of the step, and 1.
        """
        p = torch.stack([zero_shot, adapted]).float().softmax(2)
        labels = zero_shot.argmax(1, keepdim=True) == self._labels
        return torch.cat([*p, labels, torch.special.entr(p).sum(2).T, moved, counts], 1)

    def _next(self, sums: Tensor, length: Tensor) -> Tensor:
        """The length that follows ``length``, given what the answers have shown."""
        classes = self._classes
        means = sums / sums[-1].clamp_min(1)
        doubts, response = means[3 * classes :][:2], means[-2]
        spread = torch.special.entr(means[: 3 * classes].view(3, classes)).sum(1)
        before, after = spread[:2] - doubts
        enough = min(0.5, math.log(max(2, classes)) / 4)
        wanted = (after - before).clamp(0, enough) / response.clamp_min(1e-6) * (MOVEMENT / enough)
        is_few = spread[2] < math.log(min(_FEW, (1 + classes) / 2))
        wanted = wanted.clamp(length / _PACE, length * torch.where(is_few, 1.0, _PACE))
        found: Tensor = wanted.clamp(SHORTEST, LONGEST)
        return found
