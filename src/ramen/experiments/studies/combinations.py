"""What each part of Ramen is worth, and whether parts of other methods add to it.

All variants answer the same images in the same order, with a fresh method for each seed. Each is compared
with zero-shot and with Ramen, image by image.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.analysis.scoring import Difference, changes, repeated_difference
from ramen.experiments.plan.values import plain
from ramen.experiments.studies import combined_methods as combined
from ramen.experiments.studies.harm_gains import ShownImages
from ramen.experiments.studies.harm_streams import HarmStream
from ramen.experiments.studies.study_result import ReportProgress, no_progress, study, text_table
from ramen.experiments.tables.table import Table
from ramen.methods._base import Method
from ramen.methods.ramen import Ramen
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks

NAME = "combinations"
RAMEN, PARTS, ADDED = "Ramen", "parts", "combinations"
FAMILIES = (PARTS, ADDED)  # a table each
# From the title of a variant and the number of a stream, for each part, to which of its answers were right
DivideCombinations = Callable[[Sequence[tuple[str, int]]], Sequence[Tensor]]


@dataclass(frozen=True)
class RamenVariant:
    """A row of the tables.

    Attributes:
        title: Its name there.
        family: ``PARTS`` if something is taken away from Ramen, ``ADDED`` if something is added.
        make: Ramen, or a subclass of it.
        parameters: What it is made with, beside the parameters that all variants share.
    """

    title: str
    family: str
    make: Callable[..., Method] = Ramen
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def create(self, classifier: ZeroShotClassifier, shared: Mapping[str, Any], seed: int) -> Method:
        """A fresh method."""
        return self.make(classifier, **{**shared, **self.parameters}, seed=seed)


def variants() -> list[RamenVariant]:
    """Ramen as it is, without each of its parts, and with parts of other methods.

    The constants of added parts are those of their papers. Those of the agreement of signs, which has no
    paper, are three degrees of strictness.
    """
    parts: dict[str, Any] = {
        "no balance": {"balance": False},
        "no retrieval (random entries)": {"consistency": False},
        "no balance, no retrieval": {"balance": False, "consistency": False},
        "no entropy weights": {"entropy_weight": False},
        "no similarity weights": {"similarity_weight": False},
        "no weights": {"entropy_weight": False, "similarity_weight": False},
        "no guard": {"guard": 0.0},
    }
    classes = {
        "no unit length": combined.RawGradientRamen,
        "no sign (plain gradient)": combined.PlainStepRamen,
        "own gradient only": combined.OwnGradientRamen,
    }
    caches = [(cache, source) for cache in combined.CACHES for source in combined.SOURCES]
    return [
        RamenVariant(RAMEN, PARTS),
        *(RamenVariant(title, PARTS, parameters=changed) for title, changed in parts.items()),
        *(RamenVariant(title, PARTS, make) for title, make in classes.items()),
        *(
            RamenVariant(
                f"+ {cache.upper()}'s cache, {source}",
                ADDED,
                combined.CachedRamen,
                {"cache": cache, "source": source},
            )
            for cache, source in caches
        ),
        *(
            RamenVariant(f"+ ROID's prior, {prior}", ADDED, combined.PriorRamen, {"prior": prior})
            for prior in combined.PRIORS
        ),
        *(
            RamenVariant(f"+ DeYO's filter, {threshold:g}", ADDED, parameters={"shape_filter": threshold})
            for threshold in (0.0, 0.2)
        ),
        *(
            RamenVariant(
                f"+ sign agreement, {agreement:g}", ADDED, combined.AgreeingRamen, {"agreement": agreement}
            )
            for agreement in (0.1, 0.2, 0.4)
        ),
    ]


def chosen_variants(titles: Sequence[str] | None) -> list[RamenVariant]:
    """Ramen and the variants with these titles; all if None."""
    everything = variants()
    for title in titles or ():
        checks.choice("variant", title, [one.title for one in everything])
    return [one for one in everything if titles is None or one.title in (RAMEN, *titles)]


def combinations_study(
    classifier: ZeroShotClassifier,
    streams: Sequence[Stream],
    parameters: Mapping[str, Any] | None = None,
    rows: Sequence[RamenVariant] | None = None,
    *,
    batch: int = 100,
    progress: ReportProgress = no_progress,
    divide: DivideCombinations | None = None,
) -> dict[str, Any]:
    """The accuracy of each variant, its gain over zero-shot and its difference from Ramen.

    The preprocessed images of one stream at a time are held in memory, on the classifier's device.

    Args:
        classifier: What is adapted; it must have preprocessing.
        streams: One per seed, of one protocol and one data set.
        parameters: Ramen's, for all variants; those that a variant sets itself override them.
        rows: The variants, of which one must be called "Ramen"; by default ``variants()``.
        batch: Images per batch.
        progress: Called with the step's name, how much of it is done, and how much there is.
        divide: Runs parts of the study elsewhere: it gets the title of a variant and the number of a stream
            for each, and returns what ``right_answers`` returns for each.
    """
    checks.integer("batch", batch, 1)
    chosen, shared = list(rows or variants()), dict(parameters or {})
    titles = [one.title for one in chosen]
    if RAMEN not in titles or len(set(titles)) < len(titles):
        raise ValueError(f"rows must have a title each and one called {RAMEN!r}, got {titles}")
    seeds = [stream.seed for stream in streams]
    if not streams or len(set(seeds)) < len(seeds):
        raise ValueError(f"streams must be at least one, each with a seed of its own, got seeds {seeds}")
    for one in chosen:  # raises for a bad parameter before anything starts
        one.create(classifier, shared, seeds[0])
    shown = [ShownImages.of(classifier, HarmStream(NAME, stream), batch) for stream in streams]
    if divide is None:
        right = _all_answers(classifier, shown, chosen, shared, batch, progress)
    else:
        parts = [(title, number) for title in titles for number in range(len(streams))]
        right = dict(zip(parts, divide(parts), strict=True))
    answers = {title: [right[title, number] for number in range(len(streams))] for title in titles}
    first = streams[0]
    data = {
        "dataset": first.dataset.name,
        "protocol": first.protocol,
        "classes": classifier.num_classes,
        "seeds": seeds,
        "images": [len(stream) for stream in streams],
        "batch": batch,
        "parameters": plain(shared),
        "zero_shot": [_percent(one.zero_shot) for one in shown],
        "variants": {one.title: _scores(one, answers, shown) for one in chosen},
    }
    return study(
        NAME,
        f"What Ramen's parts are worth, and combinations with other methods ({first.protocol})",
        tables(data),
        data,
    )


def _all_answers(
    classifier: ZeroShotClassifier,
    shown: Sequence[ShownImages],
    chosen: Sequence[RamenVariant],
    shared: Mapping[str, Any],
    batch: int,
    progress: ReportProgress,
) -> dict[tuple[str, int], Tensor]:
    right: dict[tuple[str, int], Tensor] = {}
    total = len(shown) * len(chosen)
    for number, images in enumerate(shown):
        for one in chosen:
            progress("variants and seeds", len(right), total)
            right[one.title, number] = right_answers(classifier, images, one, shared, batch)
    progress("variants and seeds", total, total)
    return right


def right_answers(
    classifier: ZeroShotClassifier,
    shown: ShownImages,
    variant: RamenVariant,
    shared: Mapping[str, Any],
    batch: int,
) -> Tensor:
    """Whether a fresh method of that kind is right, for each image."""
    return shown.right_answers(variant.create(classifier, shared, shown.stream.real.seed), batch)


def _scores(
    variant: RamenVariant, answers: Mapping[str, Sequence[Tensor]], shown: Sequence[ShownImages]
) -> dict[str, Any]:
    own, before, base = answers[variant.title], [one.zero_shot for one in shown], answers[RAMEN]
    changed = changes(torch.cat(list(own)), torch.cat(list(base)))
    return {
        "family": variant.family,
        "parameters": plain(variant.parameters),
        "accuracy": [_percent(right) for right in own],
        "above_zero_shot": vars(_difference(own, before, shown)),
        "above_ramen": vars(_difference(own, base, shown)),
        "above_ramen_seeds": [_percent(a) - _percent(b) for a, b in zip(own, base, strict=True)],
        "repaired": changed.repaired,
        "broken": changed.broken,
    }


def _difference(own: Sequence[Tensor], other: Sequence[Tensor], shown: Sequence[ShownImages]) -> Difference:
    gains = torch.cat(list(own)).double() - torch.cat(list(other)).double()
    images, runs = [], []
    for number, one in enumerate(shown):
        real = one.stream.real
        most = max(int(each.stream.real.index.max()) for each in shown) + 1
        images.append(torch.from_numpy(real.domain * most + real.index))
        runs.append(torch.full((len(real),), number))
    return repeated_difference(gains, torch.cat(images), torch.cat(runs))


def tables(data: Mapping[str, Any]) -> list[Table]:
    """A table for each family that has variants."""
    present = {one["family"] for one in data["variants"].values()}
    return [difference_table(data, family) for family in FAMILIES if family in present]


def difference_table(data: Mapping[str, Any], family: str) -> Table:
    """The variants of a family, each beside Ramen."""
    rows = [["zero-shot", f"{fmean(data['zero_shot']):.2f}", "", "", "", ""]] if family == PARTS else []
    for title, one in data["variants"].items():
        if one["family"] != family:
            continue
        against = "" if title == RAMEN else _points(one["above_ramen"])
        verdict = "" if title == RAMEN else _verdict(one["above_ramen"])
        changed = "" if title == RAMEN else f"{one['repaired']} / {one['broken']}"
        gain = _points(one["above_zero_shot"])
        rows.append([title, f"{fmean(one['accuracy']):.2f}", gain, against, changed, verdict])
    seeds = ", ".join(map(str, data["seeds"]))
    titles = {PARTS: "Ramen without one part at a time", ADDED: "Ramen with a part of another method"}
    return text_table(
        f"{titles[family]}: {data['dataset']}, {data['protocol']}",
        ["variant", "accuracy", "above zero-shot", "above Ramen", "repaired / broken", "beside Ramen"],
        rows,
        f"Mean of seeds {seeds}, {sum(data['images']):,} images in batches of {data['batch']}. ±: half the "
        "95 % interval, paired by image; images that come in several seeds count once. Repaired and broken: "
        "answers that differ from Ramen's. Better or worse: the interval leaves 0 out.",
    )


def _points(difference: Mapping[str, float]) -> str:
    return f"{difference['points']:+z.2f} ± {difference['margin']:.2f}"


def _verdict(difference: Mapping[str, float]) -> str:
    """In words.

    >>> _verdict({"points": 0.3, "margin": 0.2}), _verdict({"points": -0.1, "margin": 0.2})
    ('better', 'no difference seen')
    """
    if abs(difference["points"]) <= difference["margin"]:
        return "no difference seen"
    return "better" if difference["points"] > 0 else "worse"


def _percent(right: Tensor) -> float:
    return 100 * float(right.double().mean())
