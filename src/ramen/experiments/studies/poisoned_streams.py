"""Streams that an attacker takes part in: who owns which image, and where the attacker's images come."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.studies.poison_defences import ATTACKER, user_of
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.random_draws import Draws, IntArray


def part_of(stream: Stream, positions: IntArray) -> Stream:
    """The images at these ascending positions, in the stream's order and with its resets."""
    resets = np.searchsorted(positions, np.array(stream.resets, dtype=np.int64))
    return replace(
        stream,
        domain=stream.domain[positions],
        index=stream.index[positions],
        severity=None if stream.severity is None else stream.severity[positions],
        resets=tuple(sorted({int(reset) for reset in resets if reset < len(positions)})),
    )


def hold_out(stream: Stream, images: int) -> tuple[Stream, Stream]:
    """The stream without the attacker's images, and a stream of at least ``images`` for the attacker.

    Images of the same number go to the same side in all domains: data sets of corruptions have the same
    photos in every domain, and the attacker must not have those of others.
    """
    checks.integer("images", images, 1)
    numbers, counts = np.unique(stream.index, return_counts=True)
    order = Draws(stream.seed, "images of the attacker").permutation(len(numbers))
    needed = int(np.searchsorted(np.cumsum(counts[order]), images)) + 1
    if needed >= len(numbers):
        raise ValueError(f"images must leave some of the stream's {len(stream)} to others, got {images}")
    own = np.isin(stream.index, numbers[order[:needed]])
    return part_of(stream, np.flatnonzero(~own)), part_of(stream, np.flatnonzero(own))


def attacker_places(benign: int, share: float, seed: int) -> NDArray[np.bool_]:
    """For each image of the whole stream, whether it is the attacker's; ``benign`` of them are not.

    >>> attacker_places(6, 0.25, seed=0).sum(), len(attacker_places(6, 0.25, seed=0))
    (np.int64(2), 8)
    """
    if not 0 <= checks.number("share", share, 0) < 1:
        raise ValueError(f"share must be below 1, got {share}")
    count = round(benign * share / (1 - share))
    places = np.zeros(benign + count, dtype=np.bool_)
    places[Draws(seed, f"places of the attacker, {share:g}").permutation(len(places))[:count]] = True
    return places


@dataclass(frozen=True)
class PoisonedBatch:
    """A batch of preprocessed images.

    Attributes:
        images: Of all users.
        benign: Which of them are not the attacker's.
        sources: Who sent each: the attacker, or one of the users.
        reset: Whether the method is reset before it.
    """

    images: Tensor
    benign: Tensor
    sources: Tensor
    reset: bool


def poisoned_batches(
    classifier: ZeroShotClassifier, stream: Stream, poison: Tensor, places: NDArray[np.bool_], size: int
) -> Iterator[PoisonedBatch]:
    """The stream with the attacker's images at their places, in batches that do not cross a reset.

    Args:
        classifier: Preprocesses the images.
        stream: The benign images; their order stays as it is.
        poison: The attacker's images, uint8 of the model's size; if there are too few, they are repeated.
        places: As ``attacker_places`` draws them.
        size: Images per batch.
    """
    benign_places = np.flatnonzero(~places)
    resets = tuple(int(benign_places[reset]) if reset else 0 for reset in stream.resets)
    outline = replace(stream, domain=np.zeros(len(places), np.int64), index=np.arange(len(places)))
    sent = seen = 0
    for part in replace(outline, resets=resets).batches(size):
        attacked = torch.from_numpy(places[part])
        count, others = int(attacked.sum()), int((~attacked).sum())
        images = torch.empty(len(attacked), 3, *classifier.preprocess.size, device=classifier.device)
        if others:
            read = stream.read(slice(seen, seen + others))
            images[~attacked] = classifier.preprocess(read).to(images)
        if count:
            repeated = [number % len(poison) for number in range(sent, sent + count)]
            images[attacked] = classifier.preprocess(poison[repeated]).to(images)
        sources = torch.full_like(attacked, ATTACKER, dtype=torch.int64)
        sources[~attacked] = torch.tensor([user_of(number) for number in range(seen, seen + others)])
        sent, seen = sent + count, seen + others
        yield PoisonedBatch(images, ~attacked, sources, part.start in resets)
