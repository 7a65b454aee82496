"""What each part of Ramen is worth, and whether parts of other methods add to it.

    python studies/combinations.py --per-domain 60
    python studies/combinations.py --protocol correlated --per-domain 30 --variant "no guard"

All variants answer the same images in the same order, with a fresh method for each seed. Each is compared
with zero-shot and with Ramen, image by image. One that gains on several streams becomes an option of Ramen.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

import torch
from harm import HarmStream, ShownImages
from shared import classifier_of, finish, parser, percent, planned, repeated_difference, stream_of
from torch import Tensor

import ramen
from ramen.data.streams.stream import Stream
from ramen.experiments.render import Table
from ramen.experiments.scoring import changes
from ramen.experiments.values import plain
from ramen.memory.queues import Staged
from ramen.memory.retrieval import Memory, Selection
from ramen.methods import Method, sign_step
from ramen.methods._passes import Seen, drive
from ramen.methods.oga import OGA
from ramen.methods.ramen import OwnStep, Ramen
from ramen.methods.tda import TDA
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero, finite_rows

RAMEN, PARTS, ADDED = "Ramen", "parts", "combinations"
TITLES = {PARTS: "Ramen without one part at a time", ADDED: "Ramen with a part of another method"}
CACHES: dict[str, type[Method]] = {"tda": TDA, "oga": OGA}
SOURCES = ("pretrained", "adapted")
PRIORS = ("logits", "log")


# -- variants of Ramen that no parameter makes ------------------------------------------------------


class CachedRamen(Ramen):
    """Ramen's logits plus what the cache of a training-free method adds to those of its own embeddings.

    The embeddings that enter the cache and are looked up in it, and that decide labels and entropies there,
    are those of the "pretrained" weights, or the image's "adapted" ones (``source``).
    """

    recordable = False

    def __init__(
        self, classifier: ramen.ZeroShotClassifier, cache: str, source: str = "pretrained", **parameters: Any
    ) -> None:
        super().__init__(classifier, **parameters)
        self.source = checks.choice("source", source, SOURCES)
        self._cache = CACHES[checks.choice("cache", cache, CACHES)](classifier)
        for prefix, memory in self._cache.state.memories.items():
            self.add_memory(memory, f"cache.{prefix}")

    def answer(
        self, second: Seen, embeddings: Tensor, zero_shot: Tensor, usable: Tensor, *trace: Tensor
    ) -> Tensor:
        """Ramen's answer, in which the cache takes part."""
        logits = super().answer(second, embeddings, zero_shot, usable, *trace)
        seen = Seen(embeddings if self.source == "pretrained" else second.embeddings)
        cached = drive(self._cache.adapt(seen.embeddings, usable), lambda wanted: seen)
        assert cached.zero_shot_logits is not None
        assert isinstance(cached.logits, Tensor)
        return logits + (cached.logits - cached.zero_shot_logits)


class PriorRamen(Ramen):
    """Ramen's predictions with ROID's prior correction: classes that the batch has many of gain.

    The prior "logits" multiplies logits with the smoothed mean prediction of the batch, as ROID's code does;
    "log" adds its logarithm.
    """

    recordable = False

    def __init__(
        self, classifier: ramen.ZeroShotClassifier, prior: str = "logits", **parameters: Any
    ) -> None:
        super().__init__(classifier, **parameters)
        self.prior = checks.choice("prior", prior, PRIORS)

    def answer(
        self, second: Seen, embeddings: Tensor, zero_shot: Tensor, usable: Tensor, *trace: Tensor
    ) -> Tensor:
        """Ramen's answer, corrected."""
        logits = super().answer(second, embeddings, zero_shot, usable, *trace)
        prior = batch_prior(logits, usable)
        return logits * prior if self.prior == "logits" else logits + prior.log()


def batch_prior(logits: Tensor, usable: Tensor) -> Tensor:
    """ROID's prior ``(C,)`` of a batch: the mean prediction of usable images, smoothed; it adds up to 1."""
    classes = logits.shape[1]
    safe = torch.where(usable[:, None], logits, 0)
    count = usable.sum().clamp_min(1)
    mean = torch.where(usable[:, None], safe.softmax(1), 0).sum(0) / count
    smoothing = torch.clamp(1 / count, min=1 / classes) / mean.max().clamp_min(torch.finfo(mean.dtype).tiny)
    return (mean + smoothing) / (1 + smoothing * classes)


class AgreeingRamen(Ramen):
    """Ramen that moves a parameter only if the retrieved gradients agree about its direction.

    Their agreement is the absolute value of the weighted mean of their signs: 0 if they are divided, 1 if
    they all have one sign.
    """

    recordable = False

    def __init__(
        self, classifier: ramen.ZeroShotClassifier, agreement: float = 0.2, **parameters: Any
    ) -> None:
        super().__init__(classifier, **parameters)
        if self.visibility != "batch":
            raise ValueError(f"visibility must be 'batch' to look for agreement, got {self.visibility!r}")
        self.agreement = checks.number("agreement", agreement, 0)
        # Signs of the same gradients in the same rows; fp16 holds -1, 0 and 1 exactly.
        self._signs = self.add_memory(Memory(self._plan(self.capacity, "fp16"), self.peers), "signs.")

    def step(self, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        """Ramen's step; the signs enter their own memory first."""
        queues = seen.logits.argmax(1) if self.balance else torch.zeros_like(usable, dtype=torch.int64)
        usable = usable & finite_rows(seen.gradient)
        keep = usable if storable is None else usable & storable
        staged = self._signs.stage(queues, seen.embeddings, seen.gradient.sign(), seen.losses, keep=keep)
        self._signs.put(staged)
        return super().step(seen, usable, storable)

    def _moved(
        self, support: Selection, weights: Tensor, staged: Staged | None, step: float | Tensor
    ) -> Tensor:
        total = torch.where(support.valid, weights, 0).sum((1, 2))[:, None]
        agreeing = self._signs.aggregate(support, weights).abs() >= self.agreement * total
        base = self.classifier.encoder.base
        return torch.where(agreeing.to(base.device), super()._moved(support, weights, staged, step), base)


class PlainStepRamen(Ramen):
    """Ramen that steps along the gradient itself, as far as the signed step would go."""

    def _moved(
        self, support: Selection, weights: Tensor, staged: Staged | None, step: float | Tensor
    ) -> Tensor:
        base = self.classifier.encoder.base
        gradient = self.memory.aggregate(support, weights, staged=staged).to(base.device)
        gradient = finite_or_zero(gradient).to(torch.float32)
        length = gradient.norm(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny)
        far = step * gradient.count_nonzero(dim=1)[:, None].to(torch.float32).sqrt()
        return torch.sub(base, (far * gradient / length).to(base.dtype))


class RawGradientRamen(Ramen):
    """Ramen that stores gradients at the lengths that they have, also if ``beta`` is "auto"."""

    def __init__(self, classifier: ramen.ZeroShotClassifier, **parameters: Any) -> None:
        super().__init__(classifier, **parameters)
        self.gradients = "raw"


class OwnGradientRamen(Ramen):
    """Ramen without a support set: each image steps along its own gradient alone."""

    def step(self, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        """A signed step along the image's own gradient."""
        made, base = super().step(seen, usable, storable), self.classifier.encoder.base
        step = float(self.lr) * made.trace[-1] if made.trace else float(self.lr)
        return replace(made, affine=sign_step(base, seen.gradient, step))


# -- the study --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RamenVariant:
    """A row of the tables: ``PARTS`` if something is taken away from Ramen, ``ADDED`` if added."""

    title: str
    family: str
    make: Callable[..., Method] = Ramen
    parameters: Mapping[str, Any] = field(default_factory=dict)  # beside those that all variants share

    def create(self, classifier: ramen.ZeroShotClassifier, shared: Mapping[str, Any], seed: int) -> Method:
        """A fresh method."""
        return self.make(classifier, **{**shared, **self.parameters}, seed=seed)


def variants() -> list[RamenVariant]:
    """Ramen as it is, without each of its parts, and with parts of other methods.

    The constants of added parts are those of their papers. Those of the agreement of signs, which has no
    paper, are three degrees of strictness.
    """
    parts: dict[str, dict[str, Any]] = {
        RAMEN: {},
        "no balance": {"balance": False},
        "no retrieval (random entries)": {"consistency": False},
        "no balance, no retrieval": {"balance": False, "consistency": False},
        "no entropy weights": {"entropy_weight": False},
        "no similarity weights": {"similarity_weight": False},
        "no weights": {"entropy_weight": False, "similarity_weight": False},
        "no guard": {"guard": 0.0},
    }
    found = [RamenVariant(title, PARTS, parameters=changed) for title, changed in parts.items()]
    found.append(RamenVariant("no unit length", PARTS, RawGradientRamen))
    found.append(RamenVariant("no sign (plain gradient)", PARTS, PlainStepRamen))
    found.append(RamenVariant("own gradient only", PARTS, OwnGradientRamen))
    added: list[tuple[str, type[Ramen], dict[str, Any]]] = [
        *(
            (f"{cache.upper()}'s cache, {source}", CachedRamen, {"cache": cache, "source": source})
            for cache in CACHES
            for source in SOURCES
        ),
        *((f"ROID's prior, {prior}", PriorRamen, {"prior": prior}) for prior in PRIORS),
        *((f"DeYO's filter, {least:g}", Ramen, {"shape_filter": least}) for least in (0.0, 0.2)),
        *((f"sign agreement, {least:g}", AgreeingRamen, {"agreement": least}) for least in (0.1, 0.2, 0.4)),
    ]
    return found + [RamenVariant(f"+ {title}", ADDED, make, given) for title, make, given in added]


def chosen_variants(titles: Sequence[str] | None) -> list[RamenVariant]:
    """Ramen and the variants with these titles; all if None."""
    everything = variants()
    for title in titles or ():
        checks.choice("variant", title, [one.title for one in everything])
    return [one for one in everything if titles is None or one.title in (RAMEN, *titles)]


def combinations_study(
    classifier: ramen.ZeroShotClassifier,
    streams: Sequence[Stream],
    parameters: Mapping[str, Any] | None = None,
    rows: Sequence[RamenVariant] | None = None,
    *,
    batch: int = 100,
) -> dict[str, Any]:
    """The accuracy of each variant, its gain over zero-shot and its difference from Ramen.

    Args:
        classifier: What is adapted; it must have preprocessing.
        streams: One per seed, of one protocol and one data set; all their images are held in memory.
        parameters: Ramen's, for all variants; those that a variant sets itself override them.
        rows: The variants, of which one must be called "Ramen"; by default ``variants()``.
        batch: Images per batch.
    """
    chosen, common = list(rows or variants()), dict(parameters or {})
    for one in chosen:  # raises for a bad parameter before anything starts
        one.create(classifier, common, streams[0].seed)
    shown = [ShownImages.of(classifier, HarmStream("", stream), batch) for stream in streams]
    right = {
        one.title: [
            images.right_answers(one.create(classifier, common, images.stream.real.seed), batch)
            for images in shown
        ]
        for one in chosen
    }
    right_before = [one.zero_shot for one in shown]
    found = {}
    for one in chosen:
        own, base = right[one.title], right[RAMEN]
        changed = changes(torch.cat(own), torch.cat(base))
        found[one.title] = {
            "family": one.family,
            "parameters": plain(one.parameters),
            "accuracy": [percent(run) for run in own],
            "above_zero_shot": _difference(own, right_before, shown),
            "above_ramen": _difference(own, base, shown),
            "above_ramen_seeds": [percent(a) - percent(b) for a, b in zip(own, base, strict=True)],
            "repaired": changed.repaired,
            "broken": changed.broken,
        }
    return {
        "dataset": streams[0].dataset.name,
        "protocol": streams[0].protocol,
        "classes": classifier.num_classes,
        "seeds": [stream.seed for stream in streams],
        "images": [len(stream) for stream in streams],
        "batch": batch,
        "parameters": plain(common),
        "zero_shot": [percent(one) for one in right_before],
        "variants": found,
    }


def _difference(
    own: Sequence[Tensor], other: Sequence[Tensor], shown: Sequence[ShownImages]
) -> dict[str, float]:
    reals = [one.stream.real for one in shown]
    most = max(int(real.index.max()) for real in reals) + 1
    images = torch.cat([torch.from_numpy(real.domain * most + real.index) for real in reals])
    runs = torch.repeat_interleave(torch.tensor([len(real) for real in reals]))
    gains = torch.cat(list(own)).double() - torch.cat(list(other)).double()
    return dict(vars(repeated_difference(gains, images, runs)))


def tables(data: Mapping[str, Any]) -> list[Table]:
    """A table for each family that has variants."""
    present = {one["family"] for one in data["variants"].values()}
    return [difference_table(data, family) for family in TITLES if family in present]


def difference_table(data: Mapping[str, Any], family: str) -> Table:
    """The variants of a family, each beside Ramen."""
    rows = [["zero-shot", f"{fmean(data['zero_shot']):.2f}", "", "", "", ""]] if family == PARTS else []
    for title, one in data["variants"].items():
        if one["family"] != family:
            continue
        beside = [
            _points(one["above_ramen"]),
            f"{one['repaired']} / {one['broken']}",
            _verdict(one["above_ramen"]),
        ]
        if title == RAMEN:
            beside = [""] * 3
        rows.append([title, f"{fmean(one['accuracy']):.2f}", _points(one["above_zero_shot"]), *beside])
    table = Table.of_texts(
        f"{TITLES[family]}: {data['dataset']}, {data['protocol']}",
        ["variant", "accuracy", "above zero-shot", "above Ramen", "repaired / broken", "beside Ramen"],
        rows,
        f"Mean of seeds {', '.join(map(str, data['seeds']))}, {sum(data['images']):,} images in batches of "
        f"{data['batch']}. ±: half the 95 % interval, paired by image; images that come in several seeds "
        "count once. Repaired and broken: answers that differ from Ramen's. Better or worse: the interval "
        "leaves 0 out.",
    )
    words = [replace(column, form="") for column in table.columns[4:]]
    return replace(table, columns=[*table.columns[:4], *words])


def _points(difference: Mapping[str, float]) -> str:
    return f"{difference['points']:+z.2f} ± {difference['margin']:.2f}"


def _verdict(difference: Mapping[str, float]) -> str:
    if abs(difference["points"]) <= difference["margin"]:
        return "no difference seen"
    return "better" if difference["points"] > 0 else "worse"


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument(
        "--variant", action="append", help="a row beside Ramen; may be repeated; all by default"
    )
    given = options.parse_args()
    (first,), rows = planned(given, ["ramen"]), chosen_variants(given.variant)
    streams = [stream_of(first, number) for number in range(given.seeds)]
    classifier = classifier_of(first, streams[0].dataset.classes)
    data = combinations_study(classifier, streams, first.parameters, rows, batch=first.batch)
    title = f"What Ramen's parts are worth, and combinations with other methods ({first.protocol})"
    finish(given, title, tables(data), data, first)


if __name__ == "__main__":
    main()
