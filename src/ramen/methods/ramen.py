"""Ramen: for every image, one signed step along the cached gradients of past images that look like it.

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ramen.images.views import shuffle_patches
from ramen.memory.codecs import CODECS
from ramen.memory.plan import ORDERS, MemoryPlan
from ramen.memory.queues import Staged
from ramen.memory.retrieval import Memory, Selection
from ramen.methods._choices import (
    BLOCK,
    STATES,
    STEP_FORMS,
    Steering,
    choose_memory,
    choose_step,
    step_weights,
)
from ramen.methods._losses import LENGTHS, confidence_lost, entropy, mixed_logits, probability_drop
from ramen.methods._method import Method
from ramen.methods._optim import sign_step
from ramen.methods._passes import Answer, Pass, Seen, Steps, Support
from ramen.methods._registry import AUTO, MethodInfo, field, register
from ramen.methods._runner import Runner
from ramen.utils import checks
from ramen.utils.checks import parse_bytes
from ramen.utils.numerics import finite_rows, pair_scores

VISIBILITIES = ("batch", "causal")
PLACEMENTS = ("encoder", "cpu", "split")
CERTAINTIES = ("entropy", "scaled", "probability")
_PULL = 0.5  # per standard deviation of distances
# What "auto" stands for: the paper's form, if beta is a number, or one of ours.
_PAPER = {"gradients": "raw", "certainty": "entropy", "step_form": "equal"}
_PATCHES = 4  # along each side of an image, for DeYO's filter
STEERED = "steered"
_FORMS = {
    "0.2": {"gradients": "unit", "certainty": "scaled", "step_form": "equal"},
    STEERED: {"gradients": "root", "certainty": "probability", "step_form": "layer"},
}
_GUARDS = {"0.2": 0.4, STEERED: 0.2}  # a share of the prediction, if beta or lr is chosen


@dataclass(frozen=True)
class OwnStep:
    """Where Ramen has gone from the pretrained weights, separately for each image.

    Attributes:
        affine: The norm parameters ``(B, G)`` that the images are to be answered with.
        usable: For which images it could work; the others are answered zero-shot.
        support: Returns the entries behind each answer.
        trace: What steering must know once the step's effect is seen: tensors of a row per image, or none.
    """

    affine: Tensor
    usable: Tensor
    support: Callable[[], Support]
    trace: tuple[Tensor, ...] = ()


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
class Ramen(Method):
    """Retrieve similar images, balanced over predicted classes, and step along their gradients.

    Without parameters it chooses for the model and the classes that it is given: ``method.parameters`` has
    the values, ``method.parameters.why`` the reasons. ``ramen.paper_values`` has those of the paper's method;
    ``docs/methods.md`` says what "auto" adds to it.
    """

    state_parameters = (
        "capacity",
        "balance",
        "fifo",
        "codec",
        "gradients",
        "stores",
        "step_form",
        "defaults",
    )
    capacity: int = field(
        AUTO,
        ge=1,
        doc='K, the most entries per class; "auto" for 75,000 in all, or what fits `memory_budget`. The '
        "paper's: 7500 (CIFAR-10-C), 750 (CIFAR-100-C), 75 (ImageNet-C), 300 (DomainNet).",
    )
    topk: int = field(
        AUTO,
        ge=1,
        doc='k, how many are retrieved per class; "auto" for about 60 in all, at least 3 per class up to '
        "1000 in all. The paper's for these data sets: 50, 5, 1, 10.",
    )
    beta: float | str = field(
        AUTO,
        ge=0,
        doc="How fast an entry's weight falls with its distance; the paper's are 5, 5, 0, 5. \"auto\": "
        "distances in standard deviations of those that the image retrieved.",
    )
    lr: float | str = field(
        AUTO,
        ge=0,
        doc='Size of the signed step; "auto" measures how large a step the model stands. The paper\'s is '
        "1e-2.",
    )
    guard: float = field(
        AUTO,
        ge=0,
        lt=1,
        doc='The share of the zero-shot probabilities in every prediction. "auto": 0.4 if `beta` or `lr` is '
        '"auto", and else 0, as in the paper.',
    )
    gradients: str = field(
        AUTO,
        choices=LENGTHS,
        doc='The length at which gradients are stored: "raw" for their own, as in the paper, "root" for its '
        'square root, "unit" for 1. "auto": "raw" if `beta` is a number, else "unit".',
    )
    certainty: str = field(
        AUTO,
        choices=CERTAINTIES,
        doc='What entries are weighted by: "entropy" for exp(-entropy), as in the paper, "scaled" for '
        'exp(-entropy / ln C), "probability" for that of the predicted class. "auto": "entropy" if `beta` is '
        'a number, else "scaled".',
    )
    step_form: str = field(
        AUTO,
        choices=STEP_FORMS,
        before="equal",
        doc='How far a step moves each parameter: "equal" moves all by `lr`, as in the paper, "layer" in '
        'proportion to the root mean square of its layer\'s weights, "weight" biases by 0.3 of `lr`. "auto": '
        '"equal".',
    )
    entropy_weight: bool = field(True, doc="Weight entries by their certainty.")
    similarity_weight: bool = field(True, doc="Weight entries by exp(-beta * distance).")
    balance: bool = field(
        True, doc="Prediction balance; without it one queue of C*K entries, of which C*k are retrieved."
    )
    consistency: bool = field(
        True, doc="Domain consistency; without it random entries, regardless of distance."
    )
    shape_filter: float | None = field(
        None,
        ge=-1,
        le=1,
        doc="DeYO's filter: store an image only if the probability of its predicted class falls by more than "
        "this when its patches are shuffled, which takes one more forward pass. DeYO's own is 0.2 for mixed "
        "streams. None, as in the paper: store all.",
    )
    fifo: str = field(
        "exact",
        choices=ORDERS,
        doc='What a full queue drops: the oldest entry ("exact"), or that of the published code ("float16").',
    )
    visibility: str = field(
        "batch",
        choices=VISIBILITIES,
        doc='"batch": a whole batch enters before it is answered; "causal": each image sees itself and what '
        "came before it.",
    )
    codec: str = field(
        AUTO,
        choices=CODECS,
        doc='How gradients are stored: "fp32", "fp16" or "sign", one bit per value; or "auto": fp16, or sign '
        "if only that fits `memory_budget`.",
    )
    placement: str = field(
        "encoder",
        choices=PLACEMENTS,
        doc='Where the memory is stored: with the "encoder", on the "cpu", or "split": embeddings with the '
        "encoder, and gradients on the CPU, where they are also summed.",
    )
    defaults: str = field(
        AUTO,
        choices=_FORMS,
        before="0.2",
        doc='What "auto" stands for: "0.2" for what is said above; "steered" for a step that starts there '
        'and then follows the stream (`step_in_use`), a guard of 0.2, and, if `beta` is "auto" too, '
        'gradients "root", certainty "probability" and step_form "layer". "auto": what a loaded state had, '
        'or else "0.2".',
    )
    memory_budget: Any = field(
        None,
        doc='The most that the full memory may take, in bytes or as text such as "2 GiB". Without it, "auto" '
        "uses up to half of the free memory of its devices.",
    )
    seed: int = field(0, ge=0, doc="Decides what is drawn if `consistency` is off.")

    retrieves = True
    recordable = True
    joins_groups = True

    step_lengths: Tensor  # a state of steering

    def setup(self) -> None:
        classes = self.classifier.num_classes
        if self.shape_filter is not None:
            self.recordable = False  # patches are shuffled by a number of the host
            if self.peers is not None:
                raise ValueError(
                    f"shape_filter must be None in a group of processes, got {self.shape_filter}"
                )
        if self.fifo == "float16" and self.visibility == "causal":
            raise ValueError(
                "fifo='float16' is the order of the published code, which has visibility='batch'"
            )
        # Without balance one queue stands for all classes, and as much is retrieved of it.
        self._classes_per_queue = 1 if self.balance else classes
        if isinstance(self.capacity, int) and isinstance(self.topk, int):
            checks.integer("topk", self.topk, 1, self.capacity, at_most="capacity")
        budget = self.memory_budget
        budget = None if budget is None else parse_bytes("memory_budget", budget)
        found = choose_memory(self._plan, classes, self.capacity, self.topk, self.codec, budget)
        self.capacity, self.topk, self.codec, why = self._in_common(found)
        self.memory = self.add_memory(Memory(self._plan(self.capacity, self.codec), self.peers))
        self.chosen |= why
        if self.beta == AUTO:
            self.chosen["beta"] = "distances in units of those that an image retrieved"
        chosen = ("gradients", "certainty", "step_form", "lr", "guard", "defaults")
        self._given = {name: getattr(self, name) for name in chosen}
        self._choose(self.defaults)

    def __repr__(self) -> str:
        step = f"topk={self.topk}, beta={self.beta}, lr={self.lr}, guard={self.guard:.3g}"
        return f"Ramen({step}, {self.memory!r})"

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """The five steps of the paper, for a batch."""
        # 1. Embedding, pseudo-label and sample-level gradient of each image, at the pretrained weights.
        seen = yield Pass(images, self.classifier.encoder.base, entropy, each=True)
        storable = None
        if self.shape_filter is not None:
            shuffled = yield Pass(_shuffled(images, self.seed, self.images_seen))
            storable = probability_drop(seen.logits, shuffled.logits) > self.shape_filter

        # 2. to 4. With the memory, from gradients to each image's own weights.
        own = self.step(seen, usable, storable)

        # 5. Predict with each image's own weights; the pretrained ones were never touched.
        second, kept = Pass(images, own.affine), (seen.embeddings, seen.logits, own.usable, *own.trace)
        return Answer(second, seen.logits, own.usable, own.support, self.answer, kept)

    def step(self, seen: Seen, usable: Tensor, storable: Tensor | None = None) -> OwnStep:
        """Steps 2 to 4 of the paper."""
        memory, base = self.memory, self.classifier.encoder.base
        topk = self.topk * self._classes_per_queue
        queues = seen.logits.argmax(1) if self.balance else torch.zeros_like(usable, dtype=torch.int64)

        # 2. Insert each image into the queue of its pseudo-label.
        stored = LENGTHS[self.gradients](seen.gradient)
        uncertainty = confidence_lost(seen.logits) if self.stores == "probability" else seen.losses
        keep = usable if storable is None else usable & storable
        entries = memory.stage(queues, seen.embeddings, stored, uncertainty, keep=keep)
        staged = entries if self.visibility == "causal" else None  # inserted after all have been answered
        if staged is None:
            memory.put(entries)

        # 3. Retrieve each image's support set: the entries of every queue that are most similar to it.
        draw = None if self.consistency else (self.seed, entries.numbers[entries.own])
        support = memory.select(seen.embeddings, topk, staged=staged, draw=draw)
        weights = self._weights(support)

        # 4. Aggregate the cached gradients, and take one signed step from the pretrained weights.
        step, trace = self._step_and_trace(entries)
        affine = self._moved(support, weights, staged, step)
        if staged is not None:
            memory.put(staged)

        kept = entries.keep[entries.own].to(base.device)
        if storable is not None:  # what is only not stored is answered like the others
            finite = finite_rows(seen.gradient) & finite_rows(seen.embeddings)
            kept = kept | (usable & ~storable & finite)
        return OwnStep(affine, kept, partial(_as_support, support, weights), trace)

    def answer(
        self, second: Seen, embeddings: Tensor, zero_shot: Tensor, usable: Tensor, *trace: Tensor
    ) -> Tensor:
        """What the second pass says, and a share of what the first one did."""
        if self.follows:
            passes = (embeddings, zero_shot), (second.embeddings, second.logits)
            self._steering.learn(self, *passes, usable, *trace)
        return mixed_logits(zero_shot, second.logits, self.guard) if self.guard else second.logits

    def _step_and_trace(self, entries: Staged) -> tuple[float | Tensor, tuple[Tensor, ...]]:
        """The size of each image's step, and what steering must know of it once its effect is seen."""
        if not self.follows:
            return float(self.lr), ()
        numbers = entries.numbers.to(self.classifier.device)
        newest = torch.where(entries.keep.to(numbers.device), numbers, -1).amax()
        lengths = self._steering.lengths(self, numbers[entries.own], causal=self.visibility == "causal")
        return float(self.lr) * lengths, (numbers[entries.own], newest, lengths)

    def _moved(
        self, support: Selection, weights: Tensor, staged: Staged | None, step: float | Tensor
    ) -> Tensor:
        """Each image's own weights ``(B, G)``, one signed step away from the pretrained ones."""
        base = self.classifier.encoder.base
        gradient = self.memory.aggregate(support, weights, staged=staged).to(base.device)
        return sign_step(base, gradient, step, self._step_weights)

    def _weights(self, support: Selection) -> Tensor:
        """exp(-entropy - beta * distance), without the parts that are switched off.

        With ``certainty="scaled"``, entropies are in units of the highest that is possible; with
        "probability" the memory has -ln p of the predicted class in place of the entropy. With
        ``beta="auto"``, distances are in standard deviations from the mean of those that the image retrieved,
        at most one to either side, of which half counts. So models whose embeddings keep other distances get
        the same weights, and no image outweighs the others by far: not the query itself, at distance 0, and
        not its own class.
        """
        log_weights = torch.zeros_like(support.distances)
        if self.entropy_weight:
            uncertainty = support.entropies
            if self.certainty == "scaled":
                uncertainty = uncertainty / math.log(max(2, self.classifier.num_classes))
            log_weights = log_weights - uncertainty
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
    def _most_images(self) -> int | None:
        """A batch may span two blocks of images with the same step, if its size is to change nothing."""
        return BLOCK if self.follows and self.visibility == "causal" else None

    @property
    def stores(self) -> str:
        """What the memory has beside each gradient, for its weight."""
        return "probability" if self.certainty == "probability" else "entropy"

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
        )

    def _in_common(self, found: tuple[int, int, str, Mapping[str, str]]) -> Any:
        """What all processes of a group can hold, for parameters that each has chosen itself."""

        def full(other: tuple[int, int, str, Mapping[str, str]]) -> int:
            return sum(self._plan(other[0], other[2]).max_bytes().values())

        common, why = self.together(found, smallest=full), found[3]
        pairs = zip(("capacity", "topk", "codec"), found, common, strict=False)
        return *(theirs if name in why else own for name, own, theirs in pairs), why

    def _choose(self, defaults: str) -> None:
        """Everything that was not given, as that version of the defaults chooses it."""
        given = self._given
        self.defaults = "0.2" if defaults == AUTO else defaults
        if given["defaults"] == AUTO:
            self.chosen["defaults"] = (
                "those of 0.2" if defaults == AUTO else "as in the state that was loaded"
            )
        ours = self.beta == AUTO
        for name, value in (_FORMS[self.defaults] if ours else _PAPER).items():
            if given[name] == AUTO:
                self.chosen[name] = "ours" if ours else "the paper's, as beta is a number"
            setattr(self, name, value if given[name] == AUTO else given[name])
        if given["guard"] == AUTO:
            self.guard = _GUARDS[self.defaults] if AUTO in (self.beta, given["lr"]) else 0.0
            share = f"{_GUARDS[self.defaults]:g}"
            self.chosen["guard"] = f"{share} if beta or lr is chosen, none if both are given"
        self.follows = given["lr"] == AUTO and self.defaults == STEERED
        self._step_weights = step_weights(self.classifier.encoder, self.step_form)
        for name in STATES:  # only of a step that follows the stream
            self.state.tensors.pop(name, None)
        if self.follows:
            self._steering = Steering(self)
        self.lr = given["lr"]
        if self.lr == AUTO:
            self._choose_lr(self.classifier.image_size)

    def _choose_lr(self, size: tuple[int, int] | None) -> None:
        if size is None:
            self.lr, self.chosen["lr"] = AUTO, "follows when the first images show their size"
            self.on_first_images = self._choose_lr
        else:
            lr, why = choose_step(self.classifier, size, self.step_form)
            start = "at the start, as " if self.follows else ""
            self.lr, self.chosen["lr"] = self.together((lr, start + why))
            self.on_first_images = None

    @property
    def step_in_use(self) -> float | None:
        """The step of the images that come next; None until their size is known. It waits for the device."""
        if isinstance(self.lr, str) or not self.follows:
            return None if isinstance(self.lr, str) else self.lr
        return self.lr * float(self.step_lengths[1])

    def reset(self) -> None:
        """Back to fresh."""
        super().reset()
        if "lr" in self.chosen:
            self._choose_lr(self.classifier.image_size)

    def _upgraded(self, saved: Mapping[str, Any]) -> dict[str, Any]:
        """The parameters of a saved state by their names today."""
        named = super()._upgraded(saved)
        if "gradients" not in named:  # up to 0.2, where weights were by entropies
            unit = named.pop("unit_gradients", False)
            named |= {"gradients": "unit" if unit else "raw", "stores": "entropy"}
        return named

    def _adopt(self, saved: Mapping[str, Any]) -> Callable[[], None]:
        """Use the capacity, codec and defaults of a saved state, where they were chosen here.

        How much memory is free decides what is chosen, and may be different when a stream is resumed. A
        stream that began with older defaults continues with them.
        """
        own: dict[str, Any] = {"capacity": self.capacity, "codec": self.codec, "defaults": self.defaults}
        named = self._upgraded(saved) if saved else own
        theirs = {name: named.get(name) for name in own if name in self.chosen}
        capacity, codec, defaults = (own | theirs).values()
        fits = type(capacity) is int and codec in CODECS and capacity >= self.topk and defaults in _FORMS
        if not fits or (capacity, codec, defaults) == tuple(own.values()):
            return super()._adopt(saved)
        before = self.capacity, self.codec, self.memory, dict(self.chosen)

        def undo() -> None:
            self._choose(own["defaults"])
            self.capacity, self.codec, memory, self.chosen = before
            self.memory = self._replaced(memory)

        self.capacity, self.codec = capacity, codec
        if defaults != self.defaults:
            self._choose(defaults)
        self.chosen |= dict.fromkeys(theirs, "as in the state that was loaded")
        self.memory = self._replaced(Memory(self._plan(capacity, codec), self.peers))
        return undo

    def _replaced(self, memory: Memory) -> Memory:
        del self.state.memories[""]
        self._runner = Runner(self, self._recorder)  # what the old one has recorded holds the old addresses
        return self.add_memory(memory)


def _shuffled(images: Tensor, seed: int, first: int) -> Tensor:
    """The images with their patches shuffled, as the seed and each one's place in the stream decide."""
    numbers = first + torch.arange(len(images), device=images.device)
    places = torch.arange(_PATCHES**2, device=images.device)
    return shuffle_patches(images, pair_scores(seed, numbers, places).argsort(1), _PATCHES)


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
