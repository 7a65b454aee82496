"""Ramen: for every image, one signed step along the cached gradients of past images that look like it.

Bao et al., "Ramen: Robust Test-Time Adaptation of Vision-Language Models with Active Sample Selection",
CVPR 2026.
"""

from functools import partial

import torch
from torch import Tensor

from ramen.memory import queue_order
from ramen.memory.codecs import CODECS
from ramen.memory.plan import MemoryPlan
from ramen.memory.retrieval import Memory, Selection
from ramen.methods._answers import Answer, Support
from ramen.methods._base import Method
from ramen.methods._info import MethodInfo
from ramen.methods._registry import register
from ramen.methods._steps import adapted_logits, sample_gradients, sign_step
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.byte_sizes import parse_bytes

VISIBILITIES = ("batch", "causal")
PLACEMENTS = ("encoder", "cpu", "split")


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

    Args:
        classifier: What it adapts.
        capacity: K, the most entries per class. The paper's: 7500 (CIFAR-10-C), 750 (CIFAR-100-C),
            75 (ImageNet-C), 300 (DomainNet).
        topk: k, how many are retrieved per class; the paper's for these are 50, 5, 1, 10.
        beta: How fast an entry's weight falls with its distance; the paper's are 5, 5, 0, 5.
        lr: Size of the signed step.
        entropy_weight: Weight entries by exp(-entropy).
        similarity_weight: Weight entries by exp(-beta * distance).
        balance: Prediction balance; without it one queue of C*K entries, of which C*k are retrieved.
        consistency: Domain consistency; without it random entries, regardless of distance.
        fifo: "exact", or "float16" for the order of the published code.
        visibility: "batch": a whole batch enters before it is answered; "causal": each image sees itself
            and what came before it.
        codec: How gradients are stored: "fp32", "fp16", "int8", "int4" or "sign", one bit per value; or
            "auto", the most exact of them that fits ``memory_budget``. The attribute says which was chosen.
        placement: Where the memory is stored: with the "encoder", on the "cpu", or "split": embeddings with
            the encoder and gradients on the CPU.
        memory_budget: The most that the full memory may take, in bytes or as text such as "2 GiB". Without
            it, "auto" uses up to three quarters of the free memory of its devices.
        seed: Decides what is drawn if ``consistency`` is off.
    """

    state_parameters = ("capacity", "balance", "fifo", "codec")
    retrieves = True
    recordable = True

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
        self.fifo = checks.choice("fifo", fifo, queue_order.ORDERS)
        self.visibility = checks.choice("visibility", visibility, VISIBILITIES)
        self.placement = checks.choice("placement", placement, PLACEMENTS)
        if self.fifo == "float16" and self.visibility == "causal":
            raise ValueError(
                "fifo='float16' is the order of the published code, which has visibility='batch'"
            )
        classes = classifier.num_classes
        # Without balance one queue stands for all classes, and as much is retrieved of it.
        queues, self._classes_per_queue = (classes, 1) if self.balance else (1, classes)
        plan = MemoryPlan(
            queues,
            self.capacity * self._classes_per_queue,
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
        self.memory = self.add_memory(Memory(plan))
        # A memory that makes the host wait cannot be recorded; then the passes are, one by one.
        self._first_pass = self.record(partial(sample_gradients, classifier))
        self._second_pass = self.record(partial(adapted_logits, classifier))

    def __repr__(self) -> str:
        return f"Ramen(topk={self.topk}, beta={self.beta}, lr={self.lr}, {self.memory!r})"

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """The five steps of the paper, for a batch."""
        clf, memory = self.classifier, self.memory
        base, topk = clf.encoder.base, self.topk * self._classes_per_queue

        # 1. Embedding, pseudo-label and sample-level gradient of each image, at the pretrained weights.
        images = clf.encoder.prepare(images)  # once for both passes
        fetch = memory.fetch_ahead(len(images), topk) if self.consistency else None
        embeddings, zero_shot, entropies, gradients = self._first_pass(images, meanwhile=fetch)
        queues = zero_shot.argmax(1) if self.balance else torch.zeros_like(usable, dtype=torch.int64)

        # 2. Insert each image into the queue of its pseudo-label.
        entries = memory.stage(queues, embeddings, gradients, entropies, keep=usable)
        staged = entries if self.visibility == "causal" else None  # inserted after all have been answered
        if staged is None:
            memory.put(entries)

        # 3. Retrieve each image's support set: the entries of every queue that are most similar to it.
        draw = None if self.consistency else (self.seed, entries.numbers)
        support = memory.select(embeddings, topk, staged=staged, draw=draw)
        weights = self._weights(support)

        # 4. Aggregate the cached gradients, and take one signed step from the pretrained weights.
        gradient = memory.aggregate(support, weights, staged=staged).to(base.device)
        if staged is not None:
            memory.put(staged)
        adapted = sign_step(base, gradient, self.lr)

        # 5. Predict with each image's own weights; the pretrained ones were never touched.
        (logits,) = self._second_pass(images, adapted)
        kept = entries.keep.to(base.device)
        return Answer(logits, zero_shot, kept, support=partial(_as_support, support, weights))

    def _weights(self, support: Selection) -> Tensor:
        """exp(-entropy - beta * distance), without the parts that are switched off."""
        log_weights = torch.zeros_like(support.distances)
        if self.entropy_weight:
            log_weights = log_weights - support.entropies
        if self.similarity_weight and self.consistency:
            log_weights = log_weights - self.beta * support.distances
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
