"""DMN-ZS: a memory of the most confident test images of each class, read with attention, beside the text.

Zhang et al., "Dual Memory Networks: A Versatile Adaptation Approach for Vision-Language Models", CVPR 2024.
"""

import math

import torch
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory, Recall
from ramen.memory.rows import ColumnSpec
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register


@register(
    MethodInfo(
        name="dmn",
        title="DMN-ZS: dual memory networks, zero-shot, with the dynamic memory alone",
        venue="CVPR 2024",
        paper="https://arxiv.org/abs/2403.17589",
        updates="nothing in the model; a memory of the most confident embeddings of each predicted class",
        predicts_with="the one forward pass: its probabilities mixed with those of the memory",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from the Ramen paper: alpha 0.1 for mixed streams, 0.2/1.0/1.0/0.2 for single domains "
            "(CIFAR-10-C, CIFAR-100-C, ImageNet-C, DomainNet); DMN's code tunes alpha on test labels",
            "from DMN's code: beta 5.5 and 50 slots per class",
            "images are processed one at a time, as in DMN's code: each enters the memory, then is "
            "predicted; predictions depend on earlier images, also of the same batch, but not on how the "
            "stream is split into batches",
            "DMN's score is p_text + alpha * p_memory; logits are the logarithm of its normalised form, so "
            "labels are those of the score and softmax(logits) are the mixed probabilities",
            "decided here: one view per image, as the Ramen paper mentions no more; DMN's code averages the "
            "most confident tenth of 32 views",
            "decided here: of several slots with the same largest entropy, the latest entry is replaced; "
            "DMN's code leaves that to an unstable sort",
        ),
    )
)
class DMN(Method):
    """Mix the text's probabilities with those of class vectors that each image reads from the memory."""

    alpha: float = field(
        0.1,
        ge=0,
        doc="The memory's share in the score. The paper's: mixed streams 0.1; single domains 0.2 "
        "(CIFAR-10-C), 1.0 (CIFAR-100-C), 1.0 (ImageNet-C), 0.2 (DomainNet).",
    )
    beta: float = field(5.5, ge=0, doc="How fast an entry's weight falls with its cosine distance.")
    capacity: int = field(50, ge=1, saved=True, doc="The most entries per class.")

    recordable = True
    joins_groups = True

    def setup(self) -> None:
        classifier = self.classifier
        classes, width = classifier.class_embeddings.shape
        embeddings = ColumnSpec(classifier.class_embeddings.dtype, classifier.device, width)
        memory = LowestEntropyMemory(classes, self.capacity, {"embeddings": embeddings})
        self.memory = self.add_memory(memory)

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Enter the memory, then read it: for all images at once, as if they came one at a time."""
        clf = self.classifier
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
        log_text = zero_shot.log_softmax(1)
        p_text = log_text.exp()
        entropies = -(p_text * (p_text + 1e-8).log()).sum(1)
        batch = Arrivals(zero_shot.argmax(1), entropies, embeddings, usable)

        found = self.memory.recall(batch, self.beta)
        log_memory = (clf.logit_scale * self._read(batch, found)).log_softmax(1)
        self.memory.insert(batch, found.ranks)
        log_alpha = math.log(self.alpha) if self.alpha else -math.inf
        logits = torch.logaddexp(log_text, log_memory + log_alpha) - math.log1p(self.alpha)
        return Answer(logits, zero_shot, usable)

    def _read(self, batch: Arrivals, found: Recall) -> Tensor:
        """Cosines ``(B, C)`` of each image z with the class vectors v that it reads from the memory.

        v is the sum of a class's entries m, always including its text embedding, weighted by
        a = exp(-beta (1 - z.m)). Storing v for every image and class would take much memory; but z.v is the
        sum of a (z.m), and |v|^2 the sum of a a' (m.m') over all pairs of entries.
        """
        text = self.classifier.class_embeddings
        to_text = (batch.embeddings @ text.T)[:, :, None]
        similar = torch.cat([found.stored, to_text], 2)
        weights = torch.cat([found.stored_weights, torch.exp(-self.beta * (1 - to_text))], 2)
        entries = torch.cat([self.memory["embeddings"], text[:, None]], 1)

        # entries of before the batch (s), and those that came with it (b)
        mates, mate_weights = found.batch, found.batch_weights
        of_class = batch.of_class(len(text))
        z_v = (weights * similar).sum(2) + (mate_weights * mates) @ of_class
        by_class = weights.transpose(0, 1)
        s_s = (by_class @ (entries @ entries.mT) * by_class).sum(2).T
        own = similar[torch.arange(len(mates), device=mates.device), batch.labels]  # (B, slots): of its class
        s_b = torch.einsum("ijs,js->ij", weights[:, batch.labels], own)
        b_b = mate_weights @ (mates * (of_class @ of_class.T))
        v_v = s_s + (mate_weights * (2 * s_b + b_b)) @ of_class
        return z_v / v_v.sqrt()
