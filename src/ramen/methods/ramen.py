"""Ramen: for every image, one signed step along the cached gradients of past images that look like it.

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ramen.kernels.cuda_graphs import Function
from ramen.memory import queue_order as fifo_order
from ramen.memory.codecs import CODECS
from ramen.memory.memory import Memory, Selection
from ramen.memory.plan import MemoryPlan
from ramen.methods._base import Answer, Method, MethodInfo, Support
from ramen.methods._registry import register
from ramen.methods._steps import adapted_logits, sample_gradients, sign_step
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.byte_sizes import parse_bytes
from ramen.utils.devices import upload

VISIBILITIES = ("batch", "causal")
PLACEMENTS = ("encoder", "cpu", "split")


@register(
    MethodInfo(
        name="ramen",
        title="Ramen: robust test-time adaptation with active sample selection",
        venue="CVPR 2026",
        paper="https://arxiv.org/abs/2604.21728",
        updates="weight and bias of all norm layers, for each image its own; then the pretrained ones again",
        predicts_with="a second forward pass after the update",
        batch_dependent=True,
        forwards=2,
        backwards=1,
        notes=(
            "batch mates enter the memory before an image is answered; with visibility='causal' only those "
            "before it do, and answers do not depend on the batch size",
            "queues are exact; the published code keeps their order in float16 (fifo='float16')",
            "similarities and sums are in fp32, and the fp16 store has a scale for each gradient",
        ),
    )
)
class Ramen(Method):
    """Retrieve similar images, balanced over predicted classes, and step along their gradients.

    Args:
        classifier: What it adapts.
        capacity: K, the most entries of a class. The paper's: 7500 (CIFAR-10-C), 750 (CIFAR-100-C),
            75 (ImageNet-C), 300 (DomainNet).
        topk: k, how many are retrieved of each class; likewise 50, 5, 1, 10.
        beta: How fast an entry's weight falls with its distance; likewise 5, 5, 0, 5.
        lr: Size of the signed step.
        entropy_weight: Weight entries by exp(-entropy).
        similarity_weight: Weight entries by exp(-beta * distance).
        balance: Prediction balance; without it one queue of C*K entries, of which C*k are retrieved.
        consistency: Domain consistency; without it random entries, regardless of distance.
        fifo: "exact", or "float16" for the order of the published code.
        visibility: "batch": a whole batch enters before it is answered; "causal": each image sees itself
            and what came before it.
        codec: How gradients are stored: "fp32", "fp16", "int8", "int4" or "sign", one bit a value; or
            "auto", the most exact of them that fits ``memory_budget``. The attribute says which was taken.
        placement: Where the memory lies: with the "encoder", on the "cpu", or "split": embeddings with the
            encoder and gradients on the CPU.
        memory_budget: The most that the full memory may take, in bytes or as text such as "2 GiB". Without
            it, "auto" takes up to three quarters of what is free where the memory lies.
        seed: Decides what is drawn where ``consistency`` is off.
    """

    state_parameters = ("capacity", "balance", "fifo", "codec")
    retrieves = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        capacity: int = 750,
        topk: int = 5,
        beta: float = 5.0,
        lr: float = 1e-2,
        *,
        entropy_weight: bool = True,
        similarity_weight: bool = True,
        balance: bool = True,
        consistency: bool = True,
        fifo: str = "exact",
        visibility: str = "batch",
        codec: str = "fp16",
        placement: str = "encoder",
        memory_budget: int | str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(classifier, seed=seed)
        self.capacity = checks.integer("capacity", capacity, 1)
        self.topk = checks.integer("topk", topk, 1, self.capacity, at_most="capacity")
        self.beta = checks.number("beta", beta, 0)
        self.lr = checks.number("lr", lr, 0)
        self.entropy_weight = checks.flag("entropy_weight", entropy_weight)
        self.similarity_weight = checks.flag("similarity_weight", similarity_weight)
        self.balance = checks.flag("balance", balance)
        self.consistency = checks.flag("consistency", consistency)
        self.fifo = checks.choice("fifo", fifo, fifo_order.ORDERS)
        self.visibility = checks.choice("visibility", visibility, VISIBILITIES)
        self.placement = checks.choice("placement", placement, PLACEMENTS)
        if self.fifo == "float16" and self.visibility == "causal":
            raise ValueError(
                "fifo='float16' is the order of the published code, which has visibility='batch'"
            )
        classes = classifier.num_classes
        self._queues, self._of_each = (classes, 1) if self.balance else (1, classes)
        plan = MemoryPlan(
            self._queues,
            self.capacity * self._of_each,
            classifier.class_embeddings.shape[1],
            len(classifier.encoder.base),
            codec=checks.choice("codec", codec, (*CODECS, "auto")),
            blocks=[piece.stop - piece.start for piece in classifier.encoder.layout],
            fifo=self.fifo,
            device=torch.device("cpu") if self.placement == "cpu" else classifier.device,
            gradient_device=torch.device("cpu") if self.placement == "split" else None,
        )
        budget = None if memory_budget is None else parse_bytes("memory_budget", memory_budget)
        plan = plan.within(budget)
        self.codec = plan.codec
        self.memory = Memory(**vars(plan))
        self._steps = self._recorded_steps()

    def _recorded_steps(self) -> dict[bool, Function]:
        """The five steps without and with support, as CUDA graphs where the GPU can do all of them.

        Both kinds share the memory of their graphs; one that is used beside the other costs a batch of images
        and the tensors that it returns, each of which is copied in every step.
        """
        recorder = self.classifier.recorder()
        first: Function = partial(sample_gradients, self.classifier)
        second: Function = partial(adapted_logits, self.classifier)
        if not self.at_once:
            first, second = recorder.record(first), recorder.record(second)
        kinds = {
            want: _FiveSteps(self.classifier, self.memory, first, second, want) for want in (False, True)
        }
        return {want: recorder.record(steps) if self.at_once else steps for want, steps in kinds.items()}

    @property
    def at_once(self) -> bool:
        """Whether one recording may hold a whole step, the memory's part included."""
        return self.memory.recordable and self.memory.device == self.classifier.device

    def __repr__(self) -> str:
        return f"Ramen(topk={self.topk}, beta={self.beta}, lr={self.lr}, {self.memory!r})"

    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """The five steps of the paper, for a batch at once."""
        device = self.memory.device
        numbers = self.memory.admit(len(images))
        logits, zero_shot, kept, *support = self._steps[want_support](
            images.to(self.classifier.dtype),  # one recording for images of any type
            usable,
            torch.full((len(images),), -1, device=device) if tags is None else upload(tags, device),
            torch.arange(numbers.start, numbers.stop, device=device),
            settings=self._settings(),
        )
        return Answer(logits, zero_shot, kept, Support(*support) if want_support else None)

    def _settings(self) -> "_Settings":
        return _Settings(
            topk=self.topk * self._of_each,
            beta=self.beta if self.similarity_weight and self.consistency else None,
            lr=self.lr,
            entropy_weight=self.entropy_weight,
            balance=self.balance,
            causal=self.visibility == "causal",
            draw_seed=None if self.consistency else self.seed,
            generation=self.memory.generation,
            fetches_ahead=self.memory.fetches_ahead,
        )

    def clear(self) -> None:
        """Empty the memory."""
        self.memory.clear()

    def content(self) -> dict[str, Tensor]:
        """The memory."""
        return self.memory.state()

    def restore(self, content: dict[str, Tensor]) -> None:
        """Take over the memory."""
        self.memory.restore(content)

    def memory_bytes(self) -> int:
        """What the memory takes once every queue is full."""
        return sum(self.memory.max_bytes().values())

    def rehearse(self, batches: Iterable[Tensor]) -> None:
        """Answer batches as images that may not be stored: the memory stays in place, and so do graphs of it.

        Room for the full memory is made before: under traffic nothing will have to grow.
        """
        counts = self.images_seen, self._refused
        with self.memory.rehearsal():
            try:
                for images in batches:
                    self.predict(torch.full_like(images, torch.nan))
            finally:
                self.images_seen, self._refused = counts


class _Settings(NamedTuple):
    """What the five steps depend on beside tensors. A recording is good for one of these."""

    topk: int  # of each queue
    beta: float | None  # None: distances do not count
    lr: float
    entropy_weight: bool
    balance: bool
    causal: bool
    draw_seed: int | None  # None: the most similar entries
    generation: int  # of the memory's tensors
    fetches_ahead: bool  # the memory's switch


@dataclass(frozen=True)
class _FiveSteps:
    """The five steps of the paper: a function of tensors, which may be recorded, on a memory in place.

    It is apart from the method, which holds the recording: one that held the method would keep it alive.
    """

    classifier: ZeroShotClassifier
    memory: Memory
    at_pretrained_weights: Function
    at_own_weights: Function
    want_support: bool

    def __call__(
        self, images: Tensor, usable: Tensor, tags: Tensor, numbers: Tensor, *, settings: _Settings
    ) -> tuple[Tensor, ...]:
        """Logits, zero-shot logits and which images could be stored; then the parts of the ``Support``."""
        base, memory = self.classifier.encoder.base, self.memory

        # 1. Embedding, pseudo-label and sample-level gradient of each image, at the pretrained weights.
        images = self.classifier.encoder.taken_up(images)  # once for both passes
        # Gradients of likely neighbours that lie in host memory come during the backward pass: behind it they
        # are there, before the batch may overwrite some of them.
        ahead = memory.fetch_ahead(settings.topk) if settings.draw_seed is None else None
        embeddings, zero_shot, entropies, gradients = self.at_pretrained_weights(images, meanwhile=ahead)
        labels = zero_shot.argmax(1) if settings.balance else torch.zeros_like(usable, dtype=torch.int64)

        # 2. and 3. Update the memory, retrieve each image's support set from it.
        batch = memory.stage(labels, embeddings, gradients, entropies, tags, usable, numbers)
        staged = batch if settings.causal else None
        if staged is None:
            memory.put(batch, ahead)
        draw = None if settings.draw_seed is None else (settings.draw_seed, batch.numbers)
        support = memory.select(embeddings, settings.topk, staged=staged, draw=draw)

        # 4. Aggregate the cached gradients and step from the pretrained weights.
        weights = _weights(support, settings)
        gradient = memory.aggregate(support, weights, staged=staged, ahead=ahead).to(base.device)
        if staged is not None:
            memory.put(staged)
        adapted = sign_step(base, gradient, settings.lr)

        # 5. Predict with each image's own weights; the pretrained ones were never touched.
        (logits,) = self.at_own_weights(images, adapted)
        entries = vars(_as_support(support, weights)).values() if self.want_support else ()
        return logits, zero_shot, batch.keep.to(base.device), *entries


def _weights(support: Selection, settings: _Settings) -> Tensor:
    log_weights = torch.zeros_like(support.distances)
    if settings.entropy_weight:
        log_weights = log_weights - support.entropies
    if settings.beta is not None:
        log_weights = log_weights - settings.beta * support.distances
    return torch.where(support.valid, log_weights.exp(), 0)


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
