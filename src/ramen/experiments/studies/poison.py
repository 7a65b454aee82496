"""How much an attacker in the stream hurts the other users.

The protocol is that of Su et al., "On the Adversarial Risk of Test Time Adaptation: An Investigation into
Realistic Test-Time Data Poisoning", ICLR 2025: the attacker knows the pretrained model alone, never sees the
images of others, and his images come at random places among theirs. What counts is the accuracy on theirs.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ramen.data.streams.stream import Stream
from ramen.experiments.plan.values import plain
from ramen.experiments.studies.attacks import ATTACKS, Budget, own_pixels
from ramen.experiments.studies.poison_defences import DEFENCES, QuotaRamen
from ramen.experiments.studies.poison_tables import loss_table, summary_table
from ramen.experiments.studies.poisoned_streams import attacker_places, hold_out, part_of, poisoned_batches
from ramen.experiments.studies.study_result import ReportProgress, no_progress, study
from ramen.methods._base import Method
from ramen.methods._choices import paper_values
from ramen.methods._registry import create, describe, list_methods
from ramen.models.classifier import MissingPartError, ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import plain_numerics

NAME = "poison"
SHARES = (0.1, 0.2, 0.5)
IMAGES, ATTACKER_IMAGES = 500, 250
SEEDS, BASELINE_SEEDS = 3, 1
# From the label of a row and the number of a stream, for each part, to the accuracies of each part
DividePoison = Callable[[Sequence[tuple[str, int]]], Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class PoisonedMethod:
    """A row of the study: a method with its parameters.

    Attributes:
        label: The row's name.
        method: A registered method.
        parameters: Those that do not have their defaults.
        seeds: On how many of the streams it runs, from the first.
        defence: A name in ``poison_defences.DEFENCES``, for Ramen; empty for none.
    """

    label: str
    method: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = BASELINE_SEEDS
    defence: str = ""

    def create(self, classifier: ZeroShotClassifier, seed: int) -> Method:
        """A fresh method."""
        if self.defence:
            return DEFENCES[self.defence](classifier, seed=seed, **self.parameters)
        return create(self.method, classifier, seed=seed, **self.parameters)


def ramen_rows(
    classes: int, parameters: Mapping[str, Any] | None = None, seeds: int = SEEDS
) -> list[PoisonedMethod]:
    """Ramen with the paper's values, with its own choices but no guard, and as it is by default.

    Args:
        classes: How many there are; the paper's memory and support set are divided among them.
        parameters: Of all three; they override the values of a row.
        seeds: On how many streams they run.
    """
    given = dict(parameters or {})
    paper = paper_values(classes)
    held = given.get("capacity")
    if isinstance(held, int):
        paper["topk"] = min(paper["topk"], held)
    rows: dict[str, dict[str, Any]] = {
        "ramen, paper's values": paper,
        "ramen, no guard": {"guard": 0.0},
        "ramen": {},
    }
    return [PoisonedMethod(label, "ramen", {**values, **given}, seeds) for label, values in rows.items()]


def defence_rows(parameters: Mapping[str, Any], seeds: int = SEEDS) -> list[PoisonedMethod]:
    """Ramen as it is by default, with each defence that is not part of it."""
    return [PoisonedMethod(f"ramen, {name}", "ramen", parameters, seeds, name) for name in DEFENCES]


def method_rows(
    classes: int,
    methods: Mapping[str, Mapping[str, Any]],
    *,
    seeds: int = SEEDS,
    baseline_seeds: int = BASELINE_SEEDS,
    defences: bool = False,
) -> list[PoisonedMethod]:
    """One row per method, three for Ramen, or five with defences; ``methods`` has names with parameters."""
    rows: list[PoisonedMethod] = []
    for name, parameters in methods.items():
        if name == "ramen":
            rows += ramen_rows(classes, parameters, seeds)
            rows += defence_rows(parameters, seeds) if defences else []
        else:
            rows.append(PoisonedMethod(name, name, parameters, baseline_seeds))
    return rows


def poison_study(
    classifier: ZeroShotClassifier,
    streams: Sequence[Stream],
    rows: Sequence[PoisonedMethod] | None = None,
    *,
    attackers: Sequence[Stream] | None = None,
    attacks: Sequence[str] = tuple(ATTACKS),
    shares: Sequence[float] = SHARES,
    images: int = IMAGES,
    attacker_images: int = ATTACKER_IMAGES,
    budget: Budget | None = None,
    batch: int = 100,
    progress: ReportProgress = no_progress,
    divide: DividePoison | None = None,
) -> dict[str, Any]:
    """Accuracy on the images of others, without an attacker and with each attack at each share.

    Args:
        classifier: What is adapted, and what the attacker knows.
        streams: One per seed, which also decides the attack and the attacker's places.
        rows: By default all methods; those that cannot run on this classifier are listed with the reason.
        attackers: For each stream one with the attacker's own images, which are other images. By default a
            part of each stream is held out for the attacker.
        attacks: Names in ``attacks.ATTACKS``.
        shares: The attacker's shares of the whole stream.
        images: Benign images: the first of each stream, or fewer if it has fewer.
        attacker_images: How many of his own images the attacker has; if a share needs more, he repeats them.
        budget: What the attacker may do to an image.
        batch: Images per batch, of all users together.
        progress: Called with the step's name, how much of it is done, and how much there is.
        divide: Runs parts of the study elsewhere: it gets the label of a row and the number of a stream for
            each, and returns what ``poisoned_accuracies`` returns for each.
    """
    for name in attacks:
        checks.choice("attacks", name, ATTACKS)
    checks.integer("images", images, 1)
    if not streams or (attackers is not None and len(attackers) != len(streams)):
        other = "one or more" if attackers is None else f"one per stream of attackers, {len(attackers)}"
        raise ValueError(f"streams must be {other}, got {len(streams)}")
    for share in shares:
        attacker_places(images, share, 0)  # raises for a bad share before anything starts
    if rows is None:
        names = {name: dict.fromkeys(describe(name).batch_sized, batch) for name in list_methods()}
        rows = method_rows(classifier.num_classes, names)
    budget = budget or Budget()
    scenes = [
        PoisonedScene.of(
            classifier, stream, None if attackers is None else attackers[n], images, attacker_images
        )
        for n, stream in enumerate(streams)
    ]
    found = {row.label: _entry(row, classifier) for row in rows}
    left = [row for row in rows if "reason" not in found[row.label]]
    parts = [(row.label, n) for row in left for n in range(min(row.seeds, len(scenes)))]
    outcomes: list[Mapping[str, Any]] = []
    if divide is None:
        attack_plan = AttackPlan(attacks, shares, budget, batch)
        by_label = {row.label: row for row in left}
        done = 0
        for label, n in parts:
            report = partial(_report, progress, f"poisoning {label}", done, len(parts) * attack_plan.runs)
            outcomes.append(poisoned_accuracies(scenes[n], by_label[label], attack_plan, report))
            done += attack_plan.runs
        progress("poisoning", done, done)
    else:
        outcomes = list(divide(parts))
    for row in left:
        own = [outcome for (label, _), outcome in zip(parts, outcomes, strict=True) if label == row.label]
        found[row.label] |= _by_seed(own)
    data = {
        "images": len(scenes[0].benign),
        "attacker_images": min(len(scene.own) for scene in scenes),
        "attacks": list(attacks),
        "shares": list(shares),
        "eps": budget.eps,
        "steps": budget.steps,
        "batch": batch,
        "seeds": [stream.seed for stream in streams],
        "classes": classifier.num_classes,
        "device": str(classifier.device),
        "dtype": str(classifier.dtype).removeprefix("torch."),
        "methods": found,
    }
    title = f"What an attacker in the stream costs the others, {data['images']:,} images of "
    return study(NAME, title + streams[0].dataset.name, [summary_table(data), loss_table(data)], data)


def _entry(row: PoisonedMethod, classifier: ZeroShotClassifier) -> dict[str, Any]:
    """What the result says about a row, with the reason if it cannot run on this classifier."""
    entry: dict[str, Any] = {"method": row.method, "parameters": plain(row.parameters)}
    try:
        create(row.method, classifier, **row.parameters)
    except MissingPartError as error:
        entry["reason"] = str(error)
    return entry


def _by_seed(outcomes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``poisoned_accuracies`` returned for each seed, with a list of all seeds in place of a number."""
    attacks = outcomes[0]["poisoned"]
    return {
        "zero_shot": [one["zero_shot"] for one in outcomes],
        "clean": [one["clean"] for one in outcomes],
        "poisoned": {
            name: {share: [one["poisoned"][name][share] for one in outcomes] for share in shares}
            for name, shares in attacks.items()
        },
    }


def _report(progress: ReportProgress, step: str, before: int, total: int, done: int) -> None:
    progress(step, before + done, total)


@dataclass(frozen=True)
class AttackPlan:
    """What the attacker tries: each attack with each share of the stream."""

    attacks: Sequence[str]
    shares: Sequence[float]
    budget: Budget
    batch: int

    @property
    def runs(self) -> int:
        """How often a method runs, with the run without attacker."""
        return 1 + len(self.attacks) * len(self.shares)


def poisoned_accuracies(
    scene: "PoisonedScene",
    row: PoisonedMethod,
    attack_plan: AttackPlan,
    report: Callable[[int], object] = lambda done: None,
) -> dict[str, Any]:
    """The accuracies of one row with one seed: zero-shot, without attacker, with each attack and share."""
    poisoned: dict[str, dict[str, float]] = {name: {} for name in attack_plan.attacks}
    clean = scene.accuracy(scene.answers(row, scene.own, 0.0, attack_plan.batch))
    for done, (attack, share) in enumerate(itertools.product(attack_plan.attacks, attack_plan.shares), 1):
        report(done)
        answers = scene.answers(row, scene.poison(attack, attack_plan.budget), share, attack_plan.batch)
        poisoned[attack][f"{share:g}"] = scene.accuracy(answers)
    return {"zero_shot": scene.accuracy(scene.zero_shot), "clean": clean, "poisoned": poisoned}


@dataclass(frozen=True)
class PoisonedScene:
    """One seed: the images of the others, and those that the attacker has."""

    classifier: ZeroShotClassifier
    benign: Stream
    own: Tensor  # the attacker's, uint8 of the model's size
    _made: dict[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, classifier: ZeroShotClassifier, stream: Stream, attacker: Stream | None, images: int, own: int
    ) -> "PoisonedScene":
        """The scene of a stream; without an attacker's images, a part of the stream is held out for him."""
        if attacker is None:
            stream, attacker = hold_out(stream, own)
        benign = part_of(stream, np.arange(min(images, len(stream))))
        count = min(checks.integer("attacker_images", own, 1), len(attacker))
        parts = [slice(start, min(start + 100, count)) for start in range(0, count, 100)]
        pixels = torch.cat([own_pixels(classifier, attacker.read(part)) for part in parts])
        return cls(classifier, benign, pixels)

    def poison(self, name: str, budget: Budget) -> Tensor:
        """What the attacker sends; made once for all methods."""
        if name not in self._made:
            self._made[name] = ATTACKS[name](self.classifier, self.own, self.benign.seed, budget)
        return self._made[name]

    def answers(self, row: PoisonedMethod, poison: Tensor, share: float, batch: int) -> Tensor:
        """The labels that a fresh method gives to the benign images, in their order."""
        places = attacker_places(len(self.benign), share, self.benign.seed)
        method = row.create(self.classifier, self.benign.seed)
        labels: list[Tensor] = []
        for part in poisoned_batches(self.classifier, self.benign, poison, places, batch):
            if part.reset:
                method.reset()
            if isinstance(method, QuotaRamen):
                method.sources = part.sources
            labels.append(method.predict(part.images).labels.cpu()[part.benign])
        return torch.cat(labels)

    def accuracy(self, labels: Tensor) -> float:
        """In percent."""
        return 100 * float((labels.numpy() == self.benign.labels()).mean())

    @cached_property
    def zero_shot(self) -> Tensor:
        """The labels that the classifier gives to the benign images without adaptation."""
        return torch.cat(list(self._zero_shot()))

    def _zero_shot(self) -> Iterator[Tensor]:
        for part in self.benign.batches(100):
            images = self.classifier.preprocess(self.benign.read(part))
            with plain_numerics(), torch.no_grad():
                yield self.classifier.logits(self.classifier.encode(images)).argmax(1).cpu()
