"""What Ramen chooses for the classes, the memory and the encoder that it is given, and how its step follows.

The paper's memories hold about 75,000 images, whatever the number of classes, and so do these. It retrieves
about 500 of them; fewer did better wherever we measured, since the most similar images are those of the
query's own domain.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.encoder import AffineEncoder
from ramen.memory.plan import MemoryPlan
from ramen.methods._method import Method
from ramen.methods._registry import AUTO
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.checks import readable_bytes
from ramen.utils.numerics import plain_numerics

MEMORY_IMAGES = 75_000  # in all classes together
_PAPER_RETRIEVED = 500  # likewise
# What differs from the rule, by the number of classes.
_PUBLISHED: dict[int, dict[str, float]] = {345: {"capacity": 300, "topk": 10}, 1000: {"beta": 0.0}}


def capacity_for(classes: int) -> int:
    """The most entries per class.

    >>> [capacity_for(classes) for classes in (1, 10, 100, 1000, 100_000)]
    [75000, 7500, 750, 75, 1]
    """
    return max(1, round(MEMORY_IMAGES / classes))


def topk_for(classes: int) -> int:
    """How many images to retrieve per class: about 60 in all, at least 3 per class up to 1,000 in all.

    >>> [topk_for(classes) for classes in (1, 2, 3, 10, 24, 100, 1000, 100_000)]
    [60, 30, 20, 6, 3, 3, 1, 1]
    """
    return max(round(60 / classes), min(3, 1000 // classes), 1)


def paper_values(classes: int) -> dict[str, Any]:
    """The parameters with which the method "ramen" is the paper's, step for step, for so many classes.

    For 10, 100, 345 and 1,000 classes they are those of CIFAR-10-C, CIFAR-100-C, DomainNet and ImageNet-C;
    for other numbers, memories of 75,000 images in all and supports of 500, and beta 5.

    >>> paper_values(345)["capacity"], paper_values(345)["topk"]
    (300, 10)
    >>> ramen.create("ramen", clf, **ramen.paper_values(clf.num_classes))  # doctest: +SKIP
    """
    checks.integer("classes", classes, 1)
    capacity = capacity_for(classes)
    found: dict[str, Any] = {
        "capacity": capacity,
        "topk": min(capacity, max(1, round(_PAPER_RETRIEVED / classes))),
        "beta": 5.0,
        **_PUBLISHED.get(classes, {}),
    }
    form = {"gradients": "raw", "certainty": "entropy", "step_form": "equal"}
    return {**found, "lr": 1e-2, "guard": 0.0, **form}


def choose_memory(
    plan_for: Callable[[int, str], MemoryPlan],
    classes: int,
    capacity: int | str,
    topk: int | str,
    codec: str,
    budget: int | None,
) -> tuple[int, int, str, Mapping[str, str]]:
    """Capacity, topk and codec in place of those that are "auto".

    Args:
        plan_for: The memory of that capacity and codec.
        classes: How many there are.
        capacity: Given, or "auto": lowered if no codec fits otherwise.
        topk: Given, or "auto".
        codec: Given, or "auto".
        budget: The most bytes that the full memory may take; see ``MemoryPlan.within``.

    Returns:
        The three, and why for those that were "auto".
    """
    why = {}
    size = f"{classes:,} {'class' if classes == 1 else 'classes'}"
    if isinstance(capacity, str):
        least = 1 if isinstance(topk, str) else topk
        wanted = max(least, capacity_for(classes))
        plan = plan_for(wanted, codec)
        per_entry = plan.capacity // wanted  # how many classes share a queue
        fitting = plan.within(budget, least * per_entry)
        capacity, lowered = fitting.capacity // per_entry, fitting.capacity < plan.capacity
        codec_found = fitting.codec
        what = f"the most that fits with codec {codec_found!r}" if lowered else f"{MEMORY_IMAGES:,} images"
        why["capacity"] = f"{what}, for {size}"
    else:
        codec_found = plan_for(capacity, codec).within(budget).codec
    if codec == AUTO:
        full = readable_bytes(sum(plan_for(capacity, codec_found).max_bytes().values()))
        why["codec"] = f"the most exact up to fp16 that fits; the full memory takes {full}"
    if isinstance(topk, str):
        topk = min(topk_for(classes), capacity)
        why["topk"] = f"{topk * classes:,} images in all, for {size}"
    return capacity, topk, codec_found, why


# -- the size of a step -----------------------------------------------------------------------------------

# A signed step of size lr changes every norm parameter by lr. How far that can move an embedding z depends
# on the encoder: on the number of its norm layers, on the size of their weights, on what comes after them.
# In a direction u it is at most lr * ||d(u.z)/dw||_1, to first order. For a direction drawn at random that
# norm is the encoder's sensitivity, and the best steps of very different encoders are those for which lr
# times the sensitivity is about the same (``docs/methods.md`` has the figures). It depends on the images so
# little that noise with the spectrum of photographs will do: no image of the stream is needed.

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


# -- a step that follows the stream -----------------------------------------------------------------------

# Two numbers say whether a step is too short or too long. ``movement`` is how far it moves an embedding of
# length 1, on the mean. ``gain`` is how much more the answers say about the images than zero-shot answers
# do, ``information(answers) - information(zero-shot answers)``, in nats. On every network that we measured
# the best step for corrupted images moves embeddings by 0.5 to 0.65 and gains far more than half a nat,
# while on clean images, where a step of that length does harm, the gain stays small. So the step aims at
#
#     movement = MOVEMENT * min(1, gain / enough),    enough = min(1/2, ln(C) / 4)
#
# where a quarter of the most that answers in C classes can say stands for few classes. Answers to noise, or
# to a single class throughout, gain next to nothing: the step shrinks. While the stream shows only few
# classes it never grows, whatever the gain.
#
# The unit is a block of images, never a batch, so that answers need not depend on the batch size: the step
# of a block follows from the blocks before the previous one, since a batch may span two. Everything is kept
# as tensors on the device, and nothing waits for their values.

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
