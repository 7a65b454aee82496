"""Ramen: for every image, one signed step along the cached gradients of past images that look like it.

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor

from ramen.memory import queue_order
from ramen.memory.codecs import CODECS
from ramen.memory.group_memory import memory_for
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Selection
from ramen.memory.storage import Staged
from ramen.methods._answers import Answer, Support
from ramen.methods._choices import choose_memory
from ramen.methods._info import MethodInfo
from ramen.methods._parameters import AUTO
from ramen.methods._pass_sharing import FirstPass, GradientMethod, OwnStep
from ramen.methods._registry import register
from ramen.methods._shape_filter import check_filter, depends_on_shape
from ramen.methods._step_size import choose_step
from ramen.methods._steps import adapted_logits, mixed_logits, sample_gradients, sign_step, unit_rows
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.byte_sizes import parse_bytes
from ramen.utils.numerics import finite_rows
from ramen.utils.peers import Group

VISIBILITIES = ("batch", "causal")
PLACEMENTS = ("encoder", "cpu", "split")
GUARD = 0.4  # a share of the prediction
_PULL = 0.5  # per standard deviation of distances
_WHY = {
    "beta": "weights in units of the model's own entropies and distances, gradients at unit length",
    "guard": f"{GUARD:g} if beta or lr is chosen, none if both are given",
}


@register(
    MethodInfo(
        name="ramen",
        title="Ramen: robust test-time adaptation with active sample selection",
        venue="CVPR 2026",
        paper="https://arxiv.org/abs/2604.21728",
        updates="weight and bias of all norm layers, separately per image, always from the pretrained ones",
        predicts_with="a second forward pass after the update",
        batch_dependent=True,
        forwards=2,
        backwards=1,
        random=True,
        notes=(
            "batch mates enter the memory before an image is answered; with visibility='causal' only those "
            "before it do, and answers do not depend on the batch size",
            "queues are exact; the published code keeps their order in float16 (fifo='float16')",
            "similarities and sums are in fp32, and gradients stored in fp16 have one scale each",
        ),
    )
)
class Ramen(GradientMethod):
    """Retrieve similar images, balanced over predicted classes, and step along their gradients.

    Without parameters it chooses for the model and the classes that it is given: ``method.parameters`` has
    the values, ``method.parameters.why`` the reasons. The paper's method is that with ``beta`` and ``lr``
    given as numbers; ``docs/methods.md`` says what "auto" adds to it.

    Args:
        classifier: What it adapts.
        capacity: K, the most entries per class; "auto" for 75,000 in all, or what fits ``memory_budget``. The
            paper's: 7500 (CIFAR-10-C), 750 (CIFAR-100-C), 75 (ImageNet-C), 300 (DomainNet).
        topk: k, how many are retrieved per class; "auto" for about 60 in all, at least 3 per class up to 1000
            in all. The paper's for these data sets: 50, 5, 1, 10.
        beta: How fast an entry's weight falls with its distance; the paper's are 5, 5, 0, 5. "auto": weights
            in units of the model's own entropies and distances, and gradients stored at unit length.
        lr: Size of the signed step; "auto" measures how large a step the model stands. The paper's is 1e-2.
        guard: The share of the zero-shot probabilities in every prediction. "auto": 0.4 if ``beta`` or ``lr``
            is "auto", and else 0, as in the paper.
        entropy_weight: Weight entries by exp(-entropy).
        similarity_weight: Weight entries by exp(-beta * distance).
        balance: Prediction balance; without it one queue of C*K entries, of which C*k are retrieved.
        consistency: Domain consistency; without it random entries, regardless of distance.
        shape_filter: DeYO's filter: store an image only if the probability of its predicted class falls by
            more than this when its patches are shuffled, which takes one more forward pass. DeYO's own is 0.2
            for mixed streams. None, as in the paper: store all.
        fifo: What a full queue drops: the oldest entry ("exact"), or that of the published code ("float16").
        visibility: "batch": a whole batch enters before it is answered; "causal": each image sees itself
            and what came before it.
        codec: How gradients are stored: "fp32", "fp16", "int8", "int4" or "sign", one bit per value; or
            "auto": fp16, or the most exact of the smaller ones that fits ``memory_budget``.
        placement: Where the memory is stored: with the "encoder", on the "cpu", or "split": embeddings with
            the encoder and gradients on the CPU.
        memory_budget: The most that the full memory may take, in bytes or as text such as "2 GiB". Without
            it, "auto" uses up to half of the free memory of its devices.
        seed: Decides what is drawn if ``consistency`` is off.
        group: As for every method; its processes share the memory, and each holds about an equal part.
    """

    state_parameters = ("capacity", "balance", "fifo", "codec", "unit_gradients")
    later_parameters: ClassVar = {"unit_gradients": False}
    retrieves = True
    recordable = True
    joins_groups = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        capacity: int | str = AUTO,
        topk: int | str = AUTO,
        beta: float | str = AUTO,
        lr: float | str = AUTO,
        *,
        guard: float | str = AUTO,
        entropy_weight: bool = True,
        similarity_weight: bool = True,
        balance: bool = True,
        consistency: bool = True,
        shape_filter: float | None = None,
        fifo: str = "exact",
        visibility: str = "batch",
        codec: str = AUTO,
        placement: str = "encoder",
        memory_budget: int | str | None = None,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.entropy_weight = checks.flag("entropy_weight", entropy_weight)
        self.similarity_weight = checks.flag("similarity_weight", similarity_weight)
        self.balance = checks.flag("balance", balance)
        self.consistency = checks.flag("consistency", consistency)
        self.shape_filter = check_filter(shape_filter, alone=group is None)
        self.fifo = checks.choice("fifo", fifo, queue_order.ORDERS)
        self.visibility = checks.choice("visibility", visibility, VISIBILITIES)
        self.placement = checks.choice("placement", placement, PLACEMENTS)
        if self.fifo == "float16" and self.visibility == "causal":
            raise ValueError(
                "fifo='float16' is the order of the published code, which has visibility='batch'"
            )
        self.memory_budget = memory_budget
        # Without balance one queue stands for all classes, and as much is retrieved of it.
        self._classes_per_queue = 1 if self.balance else classifier.num_classes
        most = None if capacity == AUTO else checks.integer("capacity", capacity, 1)
        if topk != AUTO:
            topk = checks.integer("topk", topk, 1, most, at_most="capacity")
        found = choose_memory(
            self._plan,
            classifier.num_classes,
            AUTO if most is None else most,
            topk,
            checks.choice("codec", codec, (*CODECS, AUTO)),
            None if memory_budget is None else parse_bytes("memory_budget", memory_budget),
        )
        self.capacity, self.topk, self.codec, why = self._in_common(found)
        self.memory = self.add_memory(memory_for(self._plan(self.capacity, self.codec), self.peers))
        self.beta = AUTO if beta == AUTO else checks.number("beta", beta, 0)
        self.unit_gradients = beta == AUTO
        self._entropy_unit = math.log(max(2, classifier.num_classes)) if beta == AUTO else 1.0
        self.lr: float | str = AUTO if lr == AUTO else checks.number("lr", lr, 0)
        self.guard = checks.number("guard", GUARD * (AUTO in (beta, lr)) if guard == AUTO else guard, 0)
        if self.guard >= 1:
            raise ValueError(f"guard must be below 1, got {guard}")
        auto = {"beta": beta == AUTO, "guard": guard == AUTO}
        self.chosen |= {**why, **{name: _WHY[name] for name, chosen in auto.items() if chosen}}
        if lr == AUTO:
            self._choose_lr(classifier.image_size)
        # A memory that makes the host wait cannot be recorded; then the passes are, one by one.
        self._first_pass = self.record(partial(sample_gradients, classifier))
        self._second_pass = self.record(partial(adapted_logits, classifier))

    def __repr__(self) -> str:
        step = f"topk={self.topk}, beta={self.beta}, lr={self.lr}, guard={self.guard:.3g}"
        return f"Ramen({step}, {self.memory!r})"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """The five steps of the paper, for a batch."""
        # 1. Embedding, pseudo-label and sample-level gradient of each image, at the pretrained weights.
        given, topk = images, self.topk * self._classes_per_queue
        images = self.classifier.encoder.prepare(images)
        fetch = self.memory.fetch_ahead(len(images), topk) if self.consistency else None
        first = FirstPass(*self._first_pass(images, meanwhile=fetch))

        # 2. to 4. With the memory, from gradients to each image's own weights.
        if self.shape_filter is not None:
            place = {"seed": self.seed, "first": self.images_seen}
            shaped = depends_on_shape(self.classifier, given, first.logits, self.shape_filter, **place)
            first = replace(first, storable=shaped)
        step = self.step(first, usable)

        # 5. Predict with each image's own weights; the pretrained ones were never touched.
        (logits,) = self._second_pass(images, step.affine)
        return self.answer(first, step, logits)

    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """Steps 2 to 4 of the paper."""
        memory, base = self.memory, self.classifier.encoder.base
        topk = self.topk * self._classes_per_queue
        queues = first.logits.argmax(1) if self.balance else torch.zeros_like(usable, dtype=torch.int64)

        # 2. Insert each image into the queue of its pseudo-label.
        stored = unit_rows(first.gradients) if self.unit_gradients else first.gradients
        keep = usable if first.storable is None else usable & first.storable
        entries = memory.stage(queues, first.embeddings, stored, first.entropies, keep=keep)
        staged = entries if self.visibility == "causal" else None  # inserted after all have been answered
        if staged is None:
            memory.put(entries)

        # 3. Retrieve each image's support set: the entries of every queue that are most similar to it.
        draw = None if self.consistency else (self.seed, entries.numbers)
        support = memory.select(first.embeddings, topk, staged=staged, draw=draw)
        weights = self._weights(support)

        # 4. Aggregate the cached gradients, and take one signed step from the pretrained weights.
        affine = self._moved(support, weights, staged)
        if staged is not None:
            memory.put(staged)

        kept = entries.keep.to(base.device)
        if first.storable is not None:  # what is only not stored is answered like the others
            finite = finite_rows(first.gradients) & finite_rows(first.embeddings)
            kept = kept | (usable & ~first.storable & finite)
        return OwnStep(affine, kept, partial(_as_support, support, weights))

    def answer(self, first: FirstPass, own: OwnStep, logits: Tensor) -> Answer:
        """What the second pass says, and a share of what the first one did."""
        if self.guard:
            logits = mixed_logits(first.logits, logits, self.guard)
        return Answer(logits, first.logits, own.usable, own.support)

    def _moved(self, support: Selection, weights: Tensor, staged: Staged | None) -> Tensor:
        """Each image's own weights ``(B, G)``, one signed step away from the pretrained ones."""
        base = self.classifier.encoder.base
        gradient = self.memory.aggregate(support, weights, staged=staged).to(base.device)
        return sign_step(base, gradient, float(self.lr))

    def _weights(self, support: Selection) -> Tensor:
        """exp(-entropy - beta * distance), without the parts that are switched off.

        With ``beta="auto"``, entropies are in units of the highest that is possible, and distances in
        standard deviations from the mean of those that the image retrieved, at most one to either side, of
        which half counts. So models whose embeddings keep other distances get the same weights, and no image
        outweighs the others by far: not the query itself, at distance 0, and not its own class.
        """
        log_weights = torch.zeros_like(support.distances)
        if self.entropy_weight:
            log_weights = log_weights - support.entropies / self._entropy_unit
        if self.similarity_weight and self.consistency:
            if self.beta == AUTO:
                log_weights = log_weights - _PULL * _standardized(support.distances, support.valid)
            else:
                log_weights = log_weights - float(self.beta) * support.distances
        return torch.where(support.valid, log_weights.exp(), 0)

    def passes(self) -> tuple[int, int]:
        """One forward pass more with a filter of shapes."""
        forwards, backwards = super().passes()
        return forwards + (self.shape_filter is not None), backwards

    @property
    def records_steps(self) -> bool:
        """Not with a filter of shapes: how patches are shuffled depends on a number of the host."""
        return self.shape_filter is None and super().records_steps

    @property
    def shares_passes(self) -> bool:
        """Not with a filter of shapes, which has a pass of its own."""
        return self.shape_filter is None

    # -- what it chooses ----------------------------------------------------------------------------

    def _plan(self, capacity: int, codec: str) -> MemoryPlan:
        clf = self.classifier
        return MemoryPlan(
            clf.num_classes // self._classes_per_queue,
            capacity * self._classes_per_queue,
            clf.class_embeddings.shape[1],
            len(clf.encoder.base),
            codec=codec,
            blocks=[piece.stop - piece.start for piece in clf.encoder.layout],
            fifo=self.fifo,
            device=torch.device("cpu") if self.placement == "cpu" else clf.device,
            gradient_device=torch.device("cpu") if self.placement == "split" else None,
            processes=1 if self.peers is None else self.peers.size,
        )

    def _in_common(self, found: tuple[int, int, str, Mapping[str, str]]) -> Any:
        """What all processes of a group can hold, for parameters that each has chosen itself."""

        def full(other: tuple[int, int, str, Mapping[str, str]]) -> int:
            return sum(self._plan(other[0], other[2]).max_bytes().values())

        common, why = self.together(found, smallest=full), found[3]
        pairs = zip(("capacity", "topk", "codec"), found, common, strict=False)
        return *(theirs if name in why else own for name, own, theirs in pairs), why

    def _choose_lr(self, size: tuple[int, int] | None) -> None:
        if size is None:
            self.lr, self.chosen["lr"] = AUTO, "follows when the first images show their size"
            self.on_first_images = self._choose_lr
        else:
            self.lr, self.chosen["lr"] = self.together(choose_step(self.classifier, size))
            self.on_first_images = None

    def reset(self) -> None:
        """Back to fresh."""
        super().reset()
        if "lr" in self.chosen:
            self._choose_lr(self.classifier.image_size)

    def adopt(self, saved: Mapping[str, Any]) -> Callable[[], None]:
        """Use the capacity and codec of a saved state, where they were chosen here.

        How much memory is free decides what is chosen, and may be different when a stream is resumed.
        """
        own: dict[str, Any] = {"capacity": self.capacity, "codec": self.codec}
        theirs = {name: saved.get(name) for name in own if name in self.chosen}
        capacity, codec = (own | theirs).values()
        fits = type(capacity) is int and codec in CODECS and capacity >= self.topk
        if not fits or (capacity, codec) == (self.capacity, self.codec):
            return super().adopt(saved)
        before = self.capacity, self.codec, self.memory, dict(self.chosen)

        def undo() -> None:
            self.capacity, self.codec, memory, self.chosen = before
            self.memory = self.replace_memory(memory)

        self.capacity, self.codec = capacity, codec
        self.chosen |= dict.fromkeys(theirs, "as in the state that was loaded")
        self.memory = self.replace_memory(memory_for(self._plan(capacity, codec), self.peers))
        return undo


def _standardized(distances: Tensor, valid: Tensor) -> Tensor:
    """Standard deviations from the mean of a query's valid distances, at most one to either side."""
    dims = (1, 2)
    count = valid.sum(dims, keepdim=True).clamp_min(1)
    mean = torch.where(valid, distances, 0).sum(dims, keepdim=True) / count
    apart = distances - mean
    deviation = (torch.where(valid, apart.square(), 0).sum(dims, keepdim=True) / count).sqrt()
    # Distances that are equal up to rounding count as equal.
    return (apart / deviation.clamp_min(1e-4)).clamp(-1, 1)


def _as_support(selection: Selection, weights: Tensor) -> Support:
    queues = torch.arange(selection.rows.shape[1], device=weights.device)[None, :, None]
    return Support(
        numbers=selection.numbers.flatten(1),
        tags=selection.tags.flatten(1),
        queues=queues.expand_as(selection.rows).flatten(1),
        distances=selection.distances.flatten(1),
        weights=weights.flatten(1),
        valid=selection.valid.flatten(1),
    )
