"""How much an attacker in the stream hurts the other users.

    python studies/poison.py --method ramen --method tent         # on the tiny model; all methods by default
    python studies/poison.py --method ramen --defences --attack entropy --attack flood --share 0.2

The protocol is that of Su et al., "On the Adversarial Risk of Test Time Adaptation: An Investigation into
Realistic Test-Time Data Poisoning", ICLR 2025: the attacker knows the pretrained model alone, never sees the
images of others, and his images come at random places among theirs. What counts is the accuracy on theirs.
"""

import math
import statistics
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from shared import classifier_of, finish, parser, planned, stream_of
from torch import Tensor

import ramen
from ramen.data.streams.stream import Stream
from ramen.experiments.experiment import Experiment
from ramen.experiments.render import Table
from ramen.experiments.values import plain
from ramen.methods import Method
from ramen.methods._passes import Seen
from ramen.methods.ramen import OwnStep, Ramen
from ramen.models.classifier import MissingPartError
from ramen.utils import checks
from ramen.utils.draws import Draws, IntArray
from ramen.utils.numerics import finite_or_zero, plain_numerics

Classifier = ramen.ZeroShotClassifier
EPS, STEPS, SHARES = 8 / 255, 20, (0.1, 0.2, 0.5)
ATTACKER, USERS = 0, 20  # who sends: the attacker, or users 1 to USERS in turn
_BATCH = 100
_REACH = 2.5  # all steps together, in units of eps; they become shorter, as the highest entropy is a ridge
_HALF_PRECISION_SCALE = 64.0  # the gradient of a pixel is near the smallest number of float16
_OTHER_DRAWINGS = 1000  # added to the seed of the tiny drawings for those of an attacker


# -- attacks ----------------------------------------------------------------------------------------
# Each turns the attacker's own images, uint8 of the model's size, into as many that are sent to the stream.
# Gradients go through the pretrained model: the attacker cannot know what a method has made of it.


def highest_entropy(classifier: Classifier, images: Tensor, seed: int, eps: float = EPS) -> Tensor:
    """Images of which the pretrained model is as unsure as possible.

    The loss is the cross-entropy of the uniform distribution. It is lowest where entropy is highest, but has
    a slope also where the model is sure: it found twice the entropy that steps along entropy itself did.
    """
    return _descend(classifier, images, eps, lambda logits: -logits.float().log_softmax(1).mean(1))


def one_target(classifier: Classifier, images: Tensor, seed: int, eps: float = EPS) -> Tensor:
    """Images that the pretrained model takes for one class, which the seed draws."""
    target = target_class(classifier, seed)
    return _descend(classifier, images, eps, lambda logits: -logits.float().log_softmax(1)[:, target])


def target_class(classifier: Classifier, seed: int) -> int:
    """The class that ``one_target`` aims at."""
    return int(Draws(seed, "target class").permutation(classifier.num_classes)[0])


def flooding(classifier: Classifier, images: Tensor, seed: int, eps: float = EPS) -> Tensor:
    """Unchanged images of the class that is predicted most often, over and over: they fill its queue."""
    predicted = zero_shot_logits(classifier, images).argmax(1)
    own = (predicted == predicted.bincount().argmax()).nonzero().flatten().tolist()
    order = Draws(seed, "flooding").permutation(len(own)).tolist()
    return images[[own[order[number % len(own)]] for number in range(len(images))]]


def noise(classifier: Classifier, images: Tensor, seed: int, eps: float = EPS) -> Tensor:
    """Uniform noise in place of the images."""
    draws = torch.Generator(device="cpu").manual_seed(seed)
    drawn = torch.randint(0, 256, images.shape, generator=draws, dtype=torch.uint8, device="cpu")
    return drawn.to(images.device)


ATTACKS: dict[str, Callable[[Classifier, Tensor, int, float], Tensor]] = {
    "entropy": highest_entropy,
    "target": one_target,
    "flood": flooding,
    "noise": noise,
}


@plain_numerics()
@torch.no_grad()
def zero_shot_logits(classifier: Classifier, images: Tensor) -> Tensor:
    """What the pretrained model answers to uint8 images, on the CPU."""
    parts = [classifier.encode(classifier.preprocess(part)) for part in images.split(_BATCH)]
    return torch.cat([classifier.logits(part) for part in parts]).cpu()


@plain_numerics()
def _descend(classifier: Classifier, images: Tensor, eps: float, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """Projected gradient descent on ``loss`` of each image, along signs and from the image itself."""
    if classifier.pixel_statistics is None:
        raise ValueError("classifier must have preprocessing for attacks on pixels, got one without")
    # Sent images are whole levels, so that the bound in levels is a whole number too.
    levels = math.floor(255 * eps + 1e-6)
    scale = _HALF_PRECISION_SCALE if classifier.dtype == torch.float16 else 1.0
    found = []
    for clean in images.split(_BATCH):
        whole = clean.to(classifier.device, torch.float32)
        moved = whole / 255
        mean, std = (moved.new_tensor(values)[:, None, None] for values in classifier.pixel_statistics)
        lowest, highest = (moved - eps).clamp_min(0), (moved + eps).clamp_max(1)
        for step in range(STEPS):
            with torch.enable_grad():
                moved.requires_grad_()
                logits = classifier.logits(classifier.encode((moved - mean) / std))
                (slope,) = torch.autograd.grad(scale * loss(logits).sum(), moved)
            size = 2 * (1 - step / STEPS) * _REACH * eps / STEPS
            moved = (moved.detach() - size * finite_or_zero(slope).sign()).clamp(lowest, highest)
        sent = (255 * moved).round().clamp(whole - levels, whole + levels).clamp(0, 255)
        found.append(sent.to(images.device, torch.uint8))
    return torch.cat(found)


# -- defences ---------------------------------------------------------------------------------------
# A quota needs to know who sent an image, which a method does not: it is a rule for whoever lets images into
# a stream. So these are variants for the study, not methods of the library.


class SourceQuota:
    """Of the images that were learned last, at most a share may come from one source.

    Until so many were learned, a source may have that share of the whole window.
    """

    def __init__(self, share: float = 0.1, window: int = 100) -> None:
        self._most = share * window
        self._lately: deque[int] = deque(maxlen=window)
        self._counts: Counter[int] = Counter()

    def admits(self, source: int) -> bool:
        """Whether an image may be learned from; if so, it counts."""
        if self._counts[source] + 1 > self._most:
            return False
        if len(self._lately) == self._lately.maxlen:
            self._counts[self._lately[0]] -= 1
        self._lately.append(source)
        self._counts[source] += 1
        return True


class QuotaRamen(Ramen):
    """Ramen that learns from every source no more than its quota; what is above it is answered zero-shot."""

    recordable = False  # it decides on the host

    sources: Tensor  # of the images that come next, one number each

    def __init__(self, *args: Any, **parameters: Any) -> None:
        super().__init__(*args, **parameters)
        self.quota = SourceQuota()

    def reset(self) -> None:
        """Forget everything, also who has sent what."""
        super().reset()
        self.quota = SourceQuota()

    def step(self, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        """Ramen's step, without what is above its quota."""
        pairs = zip(self.sources.tolist(), usable.tolist(), strict=True)
        admitted = [is_usable and self.quota.admits(source) for source, is_usable in pairs]
        return super().step(seen, usable & torch.tensor(admitted, device=usable.device), storable)


class EvidenceRamen(Ramen):
    """Ramen whose step grows with what is stored, until the memory could fill a whole support set."""

    recordable = False  # it looks at the memory

    def step(self, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        """Ramen's step, shorter as long as little is stored."""
        whole, base = super().step(seen, usable, storable), self.classifier.encoder.base
        evidence = min(1.0, len(self.memory) / (self.topk * self.classifier.num_classes))
        return replace(whole, affine=base + evidence * (whole.affine - base))


DEFENCES: dict[str, type[Ramen]] = {"quota per source": QuotaRamen, "evidence-scaled steps": EvidenceRamen}


# -- streams ----------------------------------------------------------------------------------------


def part_of(stream: Stream, positions: IntArray) -> Stream:
    """The images at these ascending positions, in the stream's order and with its resets."""
    resets = np.searchsorted(positions, np.array(stream.resets, dtype=np.int64))
    kept = tuple(sorted({int(reset) for reset in resets if reset < len(positions)}))
    return replace(stream, domain=stream.domain[positions], index=stream.index[positions], resets=kept)


def hold_out(stream: Stream, images: int) -> tuple[Stream, Stream]:
    """The stream without the attacker's images, and a stream of at least ``images`` for the attacker.

    Images of the same number go to the same side in all domains: data sets of corruptions have the same
    photos in every domain, and the attacker must not have those of others.
    """
    numbers, counts = np.unique(stream.index, return_counts=True)
    order = Draws(stream.seed, "images of the attacker").permutation(len(numbers))
    needed = int(np.searchsorted(np.cumsum(counts[order]), images)) + 1
    if needed >= len(numbers):
        raise ValueError(f"attacker_images must leave some of the stream's {len(stream)}, got {images}")
    own = np.isin(stream.index, numbers[order[:needed]])
    return part_of(stream, np.flatnonzero(~own)), part_of(stream, np.flatnonzero(own))


def attacker_places(benign: int, share: float, seed: int) -> NDArray[np.bool_]:
    """For each image of the whole stream, whether it is the attacker's; ``benign`` of them are not."""
    if not 0 <= share < 1:
        raise ValueError(f"share must be at least 0 and below 1, got {share}")
    count = round(benign * share / (1 - share))
    places = np.zeros(benign + count, dtype=np.bool_)
    places[Draws(seed, f"places of the attacker, {share:g}").permutation(len(places))[:count]] = True
    return places


@dataclass(frozen=True)
class PoisonedBatch:
    """A batch of preprocessed images of all users: which are benign, who sent each, is it a reset's."""

    images: Tensor
    benign: Tensor
    sources: Tensor
    reset: bool


def poisoned_batches(
    classifier: Classifier, stream: Stream, poison: Tensor, places: NDArray[np.bool_], size: int
) -> Iterator[PoisonedBatch]:
    """The stream with the attacker's images at their places, in batches that do not cross a reset.

    The benign images keep their order. If there are too few images of the attacker, they are repeated.
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
        sources[~attacked] = torch.arange(seen, seen + others) % USERS + 1
        sent, seen = sent + count, seen + others
        yield PoisonedBatch(images, ~attacked, sources, part.start in resets)


# -- the study --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PoisonedMethod:
    """A row of the study: a method, those of its parameters that are not defaults, and how many seeds."""

    label: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    defence: str = ""  # a name in ``DEFENCES``, for Ramen

    def create(self, classifier: Classifier, seed: int) -> Method:
        """A fresh method."""
        if self.defence:
            return DEFENCES[self.defence](classifier, seed=seed, **self.parameters)
        return ramen.create(self.method, classifier, seed=seed, **self.parameters)


def ramen_rows(
    classes: int, parameters: Mapping[str, Any], seeds: int, defences: bool = False
) -> list[PoisonedMethod]:
    """Ramen with the paper's values, with its own choices but no guard, as it is by default, and defended."""
    paper = ramen.paper_values(classes)
    if isinstance(parameters.get("capacity"), int):
        paper["topk"] = min(paper["topk"], parameters["capacity"])
    values = {"ramen, paper's values": paper, "ramen, no guard": {"guard": 0.0}, "ramen": {}}
    rows = [PoisonedMethod(label, "ramen", {**own, **parameters}, seeds) for label, own in values.items()]
    names = DEFENCES if defences else ()
    return rows + [PoisonedMethod(f"ramen, {name}", "ramen", parameters, seeds, name) for name in names]


@dataclass(frozen=True)
class PoisonedScene:
    """One seed: the images of the others, and those that the attacker has."""

    classifier: Classifier
    benign: Stream
    own: Tensor  # the attacker's, uint8 of the model's size
    eps: float = EPS
    _made: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        classifier: Classifier,
        stream: Stream,
        attacker: Stream | None,
        images: int,
        own: int,
        eps: float,
    ) -> "PoisonedScene":
        """The scene of a stream; without an attacker's images, a part of the stream is held out for him."""
        if attacker is None:
            stream, attacker = hold_out(stream, own)
        benign = part_of(stream, np.arange(min(images, len(stream))))
        parts = [
            attacker.read(part) for part in part_of(attacker, np.arange(min(own, len(attacker)))).batches(100)
        ]
        pixels = torch.cat([classifier.preprocess.pixels(part, device="cpu") for part in parts])
        return cls(classifier, benign, pixels, eps)

    def poison(self, name: str) -> Tensor:
        """What the attacker sends; made once for all methods."""
        if name not in self._made:
            self._made[name] = ATTACKS[name](self.classifier, self.own, self.benign.seed, self.eps)
        return self._made[name]

    def accuracy(self, row: PoisonedMethod, poison: Tensor, share: float, batch: int) -> float:
        """In percent, of a fresh method's answers to the benign images."""
        places = attacker_places(len(self.benign), share, self.benign.seed)
        method = row.create(self.classifier, self.benign.seed)
        labels: list[Tensor] = []
        for part in poisoned_batches(self.classifier, self.benign, poison, places, batch):
            if part.reset:
                method.reset()
            if isinstance(method, QuotaRamen):
                method.sources = part.sources
            labels.append(method.predict(part.images).labels.cpu()[part.benign])
        return self._share_of_right(torch.cat(labels))

    @cached_property
    def zero_shot(self) -> float:
        """The accuracy without adaptation."""
        found = []
        for part in self.benign.batches(100):
            images = self.classifier.preprocess(self.benign.read(part))
            with plain_numerics(), torch.no_grad():
                found.append(self.classifier.logits(self.classifier.encode(images)).argmax(1).cpu())
        return self._share_of_right(torch.cat(found))

    def _share_of_right(self, labels: Tensor) -> float:
        return 100 * float((labels.numpy() == self.benign.labels()).mean())


def poison_study(
    classifier: Classifier,
    scenes: Sequence[PoisonedScene],
    rows: Sequence[PoisonedMethod],
    *,
    attacks: Sequence[str] = tuple(ATTACKS),
    shares: Sequence[float] = SHARES,
    batch: int = 100,
) -> dict[str, Any]:
    """Accuracy on the images of others, without an attacker and with each attack at each share.

    Args:
        classifier: What is adapted, and what the attacker knows.
        scenes: One per seed.
        rows: What is compared; those that cannot run on this classifier are listed with the reason.
        attacks: Names in ``ATTACKS``.
        shares: The attacker's shares of the whole stream.
        batch: Images per batch, of all users together.
    """
    for name in attacks:
        checks.choice("attacks", name, ATTACKS)
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = found[row.label] = {"method": row.method, "parameters": plain(row.parameters)}
        try:
            row.create(classifier, 0)
        except MissingPartError as error:
            entry["reason"] = str(error)
            continue
        own = scenes[: row.seeds]
        entry["zero_shot"] = [scene.zero_shot for scene in own]
        entry["clean"] = [scene.accuracy(row, scene.own, 0.0, batch) for scene in own]
        entry["poisoned"] = {
            attack: {
                f"{share:g}": [scene.accuracy(row, scene.poison(attack), share, batch) for scene in own]
                for share in shares
            }
            for attack in attacks
        }
    return {
        "images": len(scenes[0].benign),
        "attacker_images": min(len(scene.own) for scene in scenes),
        "attacks": list(attacks),
        "shares": list(shares),
        "eps": scenes[0].eps,
        "steps": STEPS,
        "batch": batch,
        "seeds": [scene.benign.seed for scene in scenes],
        "classes": classifier.num_classes,
        "device": str(classifier.device),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "methods": found,
    }


def tables(data: Mapping[str, Any]) -> list[Table]:
    """The worst attack on each method, and all of them."""
    return [summary_table(data), loss_table(data)]


def summary_table(data: Mapping[str, Any]) -> Table:
    """Per method the accuracy without attacker, the most that an attack takes from it, and what is left."""
    shares = data["shares"]
    rows, notes = [], []
    for name, entry in data["methods"].items():
        if "reason" in entry:
            rows.append([name, *[""] * (3 + len(shares))])
            notes.append(f" {name} cannot run on this model: {entry['reason']}.")
            continue
        most = [
            max((losses(entry, a, share) for a in data["attacks"]), key=statistics.fmean) for share in shares
        ]
        numbers = [_spread(values) for values in (entry["zero_shot"], entry["clean"], *most)]
        rows.append([name, *numbers, _spread(worst_gain(data, entry), "+z.2f")])
    lost = [f"lost, {100 * share:g} %" for share in shares]
    return Table.of_texts(
        "The worst attack at each share of the stream",
        ["method", "zero-shot", "no attacker", *lost, "worst - zero-shot"],
        rows,
        f"Accuracy on {data['images']:,} images of other users and points of it that the worst attack "
        f"takes, if the attacker sends that share of the stream; batches of {data['batch']}. worst - "
        "zero-shot: with the worst attack and share, above zero-shot on the same images. Mean ± deviation "
        "over seeds." + "".join(notes),
    )


def loss_table(data: Mapping[str, Any]) -> Table:
    """Points that each attack takes from each method at each share."""
    cells = [(attack, share) for attack in data["attacks"] for share in data["shares"]]
    rows = []
    for name, entry in data["methods"].items():
        lost = [[] if "reason" in entry else losses(entry, *cell) for cell in cells]
        rows.append([name, *(f"{statistics.fmean(values):z.2f}" if values else "" for values in lost)])
    return Table.of_texts(
        "Points lost to each attack",
        ["method", *(f"{attack}, {100 * share:g} %" for attack, share in cells)],
        rows,
        f"Against the same method without attacker; below 0 is a gain. The attacker has "
        f"{data['attacker_images']:,} images of his own and changes pixels by at most "
        f"{255 * data['eps']:.3g}/255. entropy, target: towards the highest entropy, towards one class, by "
        f"{data['steps']} gradient steps through the pretrained model; flood: unchanged images of one "
        "predicted class; noise: uniform noise.",
    )


def losses(entry: Mapping[str, Any], attack: str, share: float) -> list[float]:
    """Points that an attack takes from a method, for each seed."""
    attacked = entry["poisoned"][attack][f"{share:g}"]
    return [clean - poisoned for clean, poisoned in zip(entry["clean"], attacked, strict=True)]


def worst_gain(data: Mapping[str, Any], entry: Mapping[str, Any]) -> list[float]:
    """How far above zero-shot a method stays with the worst attack and share, for each seed."""
    gains = [
        [found - zero for found, zero in zip(accuracies, entry["zero_shot"], strict=True)]
        for attack in data["attacks"]
        for accuracies in entry["poisoned"][attack].values()
    ]
    return min(gains, key=statistics.fmean)


def _spread(values: Sequence[float], form: str = "z.2f") -> str:
    mean = format(statistics.fmean(values), form)
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):.2f}"


def streams_of(e: Experiment, number: int) -> tuple[Stream, Stream | None]:
    """The stream of a seed, and one with an attacker's own images if as many as needed can be drawn."""
    if e.data != "tiny":
        return stream_of(e, number), None
    other = stream_of(e, number, picture_seed=e.data_options.get("picture_seed", 0) + _OTHER_DRAWINGS)
    return stream_of(e, number), other


def main() -> None:
    """The command line."""
    options = parser(__doc__)
    options.add_argument("--method", action="append", help="may be repeated; all by default")
    options.add_argument("--baseline-seeds", type=int, default=1, help="of other methods than Ramen")
    options.add_argument(
        "--defences", action="store_true", help="also Ramen with those that are no part of it"
    )
    options.add_argument("--attack", action="append", help="may be repeated; all by default")
    options.add_argument("--share", action="append", type=float, help="may be repeated")
    options.add_argument("--images", type=int, default=500, help="of other users")
    options.add_argument("--attacker-images", type=int, default=250)
    options.add_argument("--eps", type=float, default=EPS, help="the most that a pixel in [0, 1] changes")
    given = options.parse_args()
    plans = planned(given, given.method or ramen.list_methods())
    first = plans[0]
    classifier = classifier_of(first, stream_of(first).dataset.classes)
    rows: list[PoisonedMethod] = []
    for e in plans:  # Ramen's rows start from its own choices, not from the preset
        if e.method == "ramen":
            rows += ramen_rows(classifier.num_classes, e.overrides, given.seeds, given.defences)
        else:
            rows.append(PoisonedMethod(e.method, e.method, e.parameters, given.baseline_seeds))
    scenes = [
        PoisonedScene.of(
            classifier, *streams_of(first, number), given.images, given.attacker_images, given.eps
        )
        for number in range(max(row.seeds for row in rows))
    ]
    chosen = {"attacks": given.attack or tuple(ATTACKS), "shares": given.share or SHARES}
    data = poison_study(classifier, scenes, rows, **chosen, batch=first.batch)
    title = f"What an attacker in the stream costs the others, {data['images']:,} images of {first.data}"
    finish(given, title, tables(data), data, first)


if __name__ == "__main__":
    main()
