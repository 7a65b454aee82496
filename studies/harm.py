"""Whether adaptation does harm: gains over zero-shot, also on streams on which there is nothing to gain.

    python studies/harm.py                                        # variants of Ramen on the tiny model
    python studies/harm.py --method tent --data cifar10c --root DATA --images 5000

All methods and zero-shot answer the same images. Harm is an accuracy below that of zero-shot.
"""

import argparse
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from shared import classifier_of, finish, parser, percent, planned, repeated_difference, stream_of
from torch import Tensor

import ramen
from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import Stream, make_stream
from ramen.experiments.experiment import Experiment
from ramen.experiments.render import Table
from ramen.experiments.scoring import changes
from ramen.experiments.values import plain
from ramen.methods import Method
from ramen.utils import checks
from ramen.utils.draws import Draws, IntArray
from ramen.utils.numerics import plain_numerics

CLEAN = "clean"  # the domain's usual name
BEGINNINGS = (1000, 100, 10, 1)  # images after which a method is fresh again
HARM, MARK = -0.5, "!"  # a gain below this many points is marked
_MOST_RESTARTS = 200  # a batch of one image costs as much as five in a larger batch
_CLASSES = 4  # that have a stream to themselves
_MIXED_SHARE = 2  # the mixed stream is twice as long as the others, to have more than a beginning


# -- streams ----------------------------------------------------------------------------------------


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
    """The images that the streams are made of: a pool of all domains but the clean one, and that one."""

    pool: Stream
    clean: Dataset | None

    @classmethod
    def of(cls, source: Dataset | Stream, clean: Domain | str | None) -> "HarmImages":
        """The images of a data set or of a stream.

        Args:
            source: Of a stream only the images matter: the study orders them itself.
            clean: Images as the model knows them: a domain, or the name of one of ``source``. Without it,
                the domain called "clean" if there is one. These images come in no other stream.
        """
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
        """All streams, with up to ``images`` images each; the mixed one with twice as many."""
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
        for nothing in ("noise", "black"):
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
    """The row of a fresh method's first images."""
    return f"first {'image' if images == 1 else f'{images:,} images'}"


# -- answers ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ShownImages:
    """The preprocessed images of a stream, those of nothing included, and whether zero-shot is right."""

    stream: HarmStream
    images: Tensor
    labels: Tensor  # of the real images
    zero_shot: Tensor  # for each real image

    @classmethod
    def of(cls, classifier: ramen.ZeroShotClassifier, stream: HarmStream, batch: int) -> "ShownImages":
        """Read and preprocess a stream's images."""
        real = stream.real
        labels = torch.from_numpy(real.labels())
        parts, right = [], []
        for start in range(0, len(real), batch):
            part = slice(start, start + batch)
            images = classifier.preprocess(real.read(part)).to(classifier.device)
            with plain_numerics(), torch.no_grad():
                answers = classifier.logits(classifier.encode(images)).argmax(1)
            parts.append(images)
            right.append(answers.cpu() == labels[part])
        images = torch.cat(parts)
        if stream.nothing is not None:
            nothing = classifier.preprocess(stream.nothing_like(images)).to(images)
            images = torch.stack([nothing, images], dim=1).flatten(0, 1)
        return cls(stream, images, labels, torch.cat(right))

    def right_answers(self, method: Method, batch: int) -> Tensor:
        """Whether a fresh method is right, for each real image."""
        parts = []
        for part in self.stream.batches(batch):
            if part.start in self.stream.real.resets:
                method.reset()
            parts.append(method.predict(self.images[part]).labels.cpu())
        answers = torch.cat(parts)
        return (answers if self.stream.nothing is None else answers[1::2]) == self.labels

    @property
    def numbers(self) -> Tensor:
        """A number per real image, the same for the same image."""
        real = self.stream.real
        return torch.from_numpy(real.domain * (int(real.index.max()) + 1) + real.index)


@dataclass
class GainRow:
    """Whether each method and zero-shot were right on one kind of stream, a run per seed."""

    zero_shot: list[Tensor] = field(default_factory=list)
    images: list[Tensor] = field(default_factory=list)
    right: dict[str, list[Tensor]] = field(default_factory=lambda: defaultdict(list))

    def summary(self) -> dict[str, Any]:
        """Accuracies of zero-shot and gains, per seed and in all."""
        return {
            "images": sum(map(len, self.zero_shot)),
            "zero_shot": [percent(right) for right in self.zero_shot],
            "methods": {method: self._gain(right) for method, right in self.right.items()},
        }

    def _gain(self, right: Sequence[Tensor]) -> dict[str, Any]:
        runs = torch.repeat_interleave(torch.tensor([len(run) for run in right]))
        after, before = torch.cat(list(right)), torch.cat(self.zero_shot)
        changed = changes(after, before)
        return {
            **vars(repeated_difference(after.double() - before.double(), torch.cat(self.images), runs)),
            "seeds": [percent(now) - percent(then) for now, then in zip(right, self.zero_shot, strict=True)],
            "repaired": changed.repaired,
            "broken": changed.broken,
        }


# -- the study --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StudiedMethod:
    """A column of the table: a registered method with some of its parameters."""

    title: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def given(self, batch: int) -> dict[str, Any]:
        """Its parameters; memories that are as large as a batch by its record are so here."""
        return {**dict.fromkeys(ramen.describe(self.method).batch_sized, batch), **self.parameters}


def ramen_variants(classes: int) -> list[StudiedMethod]:
    """Ramen with the paper's values for this number of classes, without its guard, and as it is."""
    return [
        StudiedMethod("Ramen: paper", "ramen", ramen.paper_values(classes)),
        StudiedMethod("Ramen: no guard", "ramen", {"guard": 0.0}),
        StudiedMethod("Ramen", "ramen"),
    ]


def harm_study(
    classifier: ramen.ZeroShotClassifier,
    source: Dataset | Stream,
    methods: Sequence[StudiedMethod] | None = None,
    *,
    clean: Domain | str | None = None,
    seeds: Sequence[int] = (0, 1, 2),
    images: int = 1000,
    batch: int = 100,
) -> dict[str, Any]:
    """Accuracy minus that of zero-shot, for streams in which adaptation may help or harm.

    The preprocessed images of one stream at a time are held in memory, on the classifier's device.

    Args:
        classifier: What is adapted; it must have preprocessing.
        source: Where the images are from.
        methods: The columns of the table; by default ``ramen_variants``.
        clean: As in ``HarmImages.of``.
        seeds: Each draws images and orders anew.
        images: Per stream, if there are as many; the mixed stream has twice as many.
        batch: Images per batch.
    """
    parts = HarmImages.of(source, clean)
    columns = ramen_variants(classifier.num_classes) if methods is None else list(methods)
    if len({column.title for column in columns}) < len(columns):
        raise ValueError(f"methods must have a title each, got {[column.title for column in columns]}")
    described = {}
    for column in columns:  # raises for a bad name or parameter before anything starts
        values = ramen.create(column.method, classifier, **column.given(batch)).parameters
        described[column.title] = {
            "method": column.method,
            "parameters": plain(column.given(batch)),
            "runs_with": plain({name: value for name, value in values.items() if name != "seed"}),
        }
    rows: dict[str, GainRow] = defaultdict(GainRow)
    for stream in (stream for seed in seeds for stream in parts.streams(images, seed)):
        shown = ShownImages.of(classifier, stream, batch)
        for title, count in ((stream.title, len(stream.real)), *stream.beginnings):
            rows[title].zero_shot.append(shown.zero_shot[:count])
            rows[title].images.append(shown.numbers[:count])
        for column in columns:
            # Never two at a time: how much memory is free decides what a method chooses.
            method = ramen.create(
                column.method, classifier, **{"seed": stream.real.seed, **column.given(batch)}
            )
            right = shown.right_answers(method, batch)
            for title, count in ((stream.title, len(right)), *stream.beginnings):
                rows[title].right[column.title].append(right[:count])
    missing = [f"{beginning_title(n)} (too few images)" for n in BEGINNINGS if beginning_title(n) not in rows]
    return {
        "dataset": parts.pool.dataset.name,
        "classes": classifier.num_classes,
        "seeds": list(seeds),
        "images": images,
        "batch": batch,
        "device": str(classifier.device),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "methods": described,
        "rows": {title: row.summary() for title, row in rows.items()},
        "left_out": missing + ([] if parts.clean else ["clean images (no domain is known to be clean)"]),
    }


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The mean gain over seeds with half of its 95 % interval, and the gain of the worst seed."""
    means, worst = [], []
    for title, row in data["rows"].items():
        gains = row["methods"].values()
        changed = [gain["margin"] if gain["repaired"] + gain["broken"] else None for gain in gains]
        shown = [marked(gain["points"], margin) for gain, margin in zip(gains, changed, strict=True)]
        means.append([title, f"{fmean(row['zero_shot']):.2f}", *shown])
        worst.append([title, f"{row['images']:,}", *(marked(min(gain["seeds"])) for gain in gains)])
    left_out, names = data["left_out"], list(data["methods"])
    return [
        Table.of_texts(
            f"Points above zero-shot, mean of seeds {', '.join(map(str, data['seeds']))}",
            ["stream", "zero-shot", *names],
            means,
            f"On the same images, in batches of {data['batch']}. First images: of the mixed stream, with a "
            "fresh method after that many. Half of it noise or black: every second image, and only the "
            "others count. ±: half the 95 % interval; without it, no answer changed. "
            f"{MARK} marks what is below {HARM:g}; if its interval includes 0, it may be noise."
            + (f" Left out: {', '.join(left_out)}." if left_out else ""),
        ),
        Table.of_texts(
            "Points above zero-shot, the worst seed",
            ["stream", "images", *names],
            worst,
            "Images: those that count, of all seeds.",
        ),
    ]


def marked(points: float, margin: float | None = None) -> str:
    """A gain in points, marked if it is harm."""
    spread = "" if margin is None else f" ± {margin:.2f}"
    return f"{points:+z.2f}{spread}{f' {MARK}' if points < HARM else ''}"


def clean_images(e: Experiment, dataset: Dataset, name: str | None, images: int) -> Domain | str | None:
    """The clean domain, which some data sets leave out unless it is requested; None if there is none."""
    wanted = name or CLEAN
    if wanted in [domain.name for domain in dataset.domains]:
        return wanted
    # as many drawings as needed can be made
    more = {"pictures": images} if e.data == "tiny" else {}
    try:
        found = stream_of(replace(e, protocol_parameters={}), domains=[wanted], **more).dataset
    except ValueError:
        if name is not None:
            raise
        return None
    if found.classes != dataset.classes:
        raise ValueError(f"--clean: the domain {wanted!r} must have the classes of the other domains")
    return found.domains[0]


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--method", action="append", help="instead of variants of Ramen; may be repeated")
    options.add_argument("--images", type=int, default=1000, help="per stream")
    options.add_argument("--clean", help="the domain of clean images")
    given: argparse.Namespace = options.parse_args()
    if given.set and not given.method:
        options.error("--set needs --method: without it, there are variants of Ramen")
    plans = planned(given, given.method or ["ramen"])
    stream = stream_of(plans[0])
    classifier = classifier_of(plans[0], stream.dataset.classes)
    columns = [StudiedMethod(one.method, one.method, one.parameters) for one in plans]
    data = harm_study(
        classifier,
        stream,
        columns if given.method else None,
        clean=clean_images(plans[0], stream.dataset, given.clean, given.images * given.seeds),
        seeds=range(given.seed, given.seed + given.seeds),
        images=given.images,
        batch=plans[0].batch,
    )
    title = f"Harm on {data['dataset']}: accuracy minus that of zero-shot, {given.seeds} seeds"
    finish(given, title, tables(data), data, plans[0])


if __name__ == "__main__":
    main()
