"""The streams of the study of harm: what adaptation is made for, and what it must not be harmed by."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import Stream, make_stream
from ramen.utils import checks
from ramen.utils.random_draws import Draws, IntArray

CLEAN = "clean"  # the domain's usual name
BEGINNINGS = (1000, 100, 10, 1)  # images after which a method is fresh again
_MOST_RESTARTS = 200  # a batch of one image costs as much as five in a larger batch
_CLASSES = 4  # that have a stream to themselves
_MIXED_SHARE = 2  # the mixed stream is twice as long as the others, to have more than a beginning
_NOTHING = ("noise", "black")


@dataclass(frozen=True)
class HarmStream:
    """A stream, and what it shows.

    Attributes:
        title: Of the table's row.
        real: The images that count, in order; the method is fresh after each of its resets.
        nothing: "noise" or "black" if an image of that comes before every real one.
        beginnings: Titles of rows for the first images of the stream, with their number.
    """

    title: str
    real: Stream
    nothing: str | None = None
    beginnings: tuple[tuple[str, int], ...] = ()

    def __len__(self) -> int:
        return len(self.real) * (1 if self.nothing is None else 2)

    def batches(self, size: int) -> list[slice]:
        """As those of a stream, with the images of nothing."""
        if self.nothing is None:
            return self.real.batches(size)
        return [slice(start, min(start + size, len(self))) for start in range(0, len(self), size)]

    def nothing_like(self, images: Tensor) -> Tensor:
        """Raw uint8 images of nothing, as many and as large as these."""
        if self.nothing == "black":
            return torch.zeros(images.shape, dtype=torch.uint8, device="cpu")
        draws = torch.Generator(device="cpu").manual_seed(self.real.seed)
        return torch.randint(0, 256, images.shape, dtype=torch.uint8, device="cpu", generator=draws)


@dataclass(frozen=True)
class HarmImages:
    """The images that the streams are made of.

    Attributes:
        pool: Those of all domains but the clean one; their order does not matter.
        clean: Images as the model knows them, in a data set of one domain; None if there are none.
    """

    pool: Stream
    clean: Dataset | None

    @classmethod
    def of(cls, source: Dataset | Stream, clean: Domain | str | None) -> "HarmImages":
        """The images of a data set or of a stream; ``clean`` as in ``harm_study``."""
        if not isinstance(source, Dataset | Stream):
            raise TypeError(f"source must be a Dataset or a Stream, got {type(source).__name__}")
        stream = make_stream("mixed", source) if isinstance(source, Dataset) else source
        if stream.severity is not None:
            raise ValueError(f"source must have one severity, got a stream of protocol {stream.protocol!r}")
        dataset = stream.dataset
        names = [domain.name for domain in dataset.domains]
        if isinstance(clean, str) and clean not in names:
            raise ValueError(f"clean: no domain is called {clean!r}{checks.nearest(clean, names)}")
        name = clean.name if isinstance(clean, Domain) else clean or CLEAN
        if name in names:
            others = stream.domain != names.index(name)
            stream = replace(stream, domain=stream.domain[others], index=stream.index[others], resets=())
            clean = clean if isinstance(clean, Domain) else dataset.domains[names.index(name)]
        if not len(stream):
            raise ValueError(f"source must have images of a domain that is not clean, got only {names}")
        assert not isinstance(clean, str)
        return cls(stream, None if clean is None else Dataset(dataset.name, dataset.classes, (clean,)))

    def streams(self, images: int, seed: int) -> Iterator[HarmStream]:
        """All streams, with up to ``images`` images each; the mixed one with twice as many.

        Args:
            images: The length of the streams, if there are as many images.
            seed: Decides which images come and in which order.
        """
        order = Draws(seed, "harm: order").permutation(len(self.pool))
        mixed = self._pick(order[: _MIXED_SHARE * images], seed)
        long = tuple((beginning_title(n), n) for n in BEGINNINGS if images <= n <= len(mixed))
        yield HarmStream("mixed domains", mixed, beginnings=long)
        for length in BEGINNINGS:
            restarts = min(images, len(order)) // length
            if restarts and length not in dict(long).values():
                count = min(restarts, _MOST_RESTARTS) * length
                chunks = self._pick(order[:count], seed, tuple(range(0, count, length)))
                yield HarmStream(beginning_title(length), chunks)
        if self.clean is not None:
            yield HarmStream("clean images", make_stream("mixed", self.clean, seed, limit=images))
        yield HarmStream("sorted by class", self._pick(self._sorted(order[:images], seed), seed))
        yield HarmStream("one class for ever", self._single_classes(order, images, seed))
        for nothing in _NOTHING:
            real = self._pick(order[: max(1, images // 2)], seed)
            yield HarmStream(f"half of it {nothing}", real, nothing)

    def _pick(self, places: IntArray, seed: int, resets: tuple[int, ...] = ()) -> Stream:
        pool = self.pool
        return replace(pool, seed=seed, domain=pool.domain[places], index=pool.index[places], resets=resets)

    def _sorted(self, places: IntArray, seed: int) -> IntArray:
        """Class after class, in a random order of the classes."""
        labels = self.pool.labels()[places]
        rank = Draws(seed, "harm: classes").permutation(int(labels.max()) + 1)
        return places[np.argsort(rank[labels], kind="stable")]

    def _single_classes(self, order: IntArray, images: int, seed: int) -> Stream:
        """Some classes, one after the other, with a fresh method for each."""
        labels = self.pool.labels()[order]
        present = np.unique(labels)
        chosen = present[Draws(seed, "harm: classes").permutation(len(present))[:_CLASSES]]
        each = max(1, images // len(chosen))
        parts = [order[labels == label][:each] for label in chosen]
        starts = np.cumsum([0, *map(len, parts[:-1])]).tolist()
        return self._pick(np.concatenate(parts), seed, tuple(starts))


def beginning_title(images: int) -> str:
    """The row of a fresh method's first images.

    >>> beginning_title(1), beginning_title(1000)
    ('first image', 'first 1,000 images')
    """
    return f"first {'image' if images == 1 else f'{images:,} images'}"
