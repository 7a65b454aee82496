"""T3A: class vectors are the means of the surest embeddings of each predicted class, the text among them.

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS
2021.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.row_table import ColumnSpec
from ramen.methods._answers import Answer
from ramen.methods._info import MethodInfo
from ramen.methods._pass_sharing import EmbeddingMethod, without_refused
from ramen.methods._registry import register
from ramen.methods._steps import entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.peers import Group


@register(
    MethodInfo(
        name="t3a",
        title="T3A: test-time template adjuster",
        venue="NeurIPS 2021",
        paper="https://openreview.net/forum?id=e_yvNqkJKAW",
        updates="nothing in the model; class vectors made of the surest embeddings of each class",
        predicts_with="the one forward pass, compared with the class vectors",
        batch_dependent=True,
        forwards=1,
        backwards=0,
        notes=(
            "from T3A's code: the supports of a class are the K embeddings of lowest entropy that the "
            "zero-shot classifier takes for it; a batch enters before it is answered. K is chosen there from "
            "1, 5, 20, 50, 100 and all",
            "decided here: K is finite, so that the memory is bounded; T3A's code has a branch that keeps "
            "all, and then still drops one of each class per batch",
            "decided here: the text embedding is always a support, beside the K images, and text_weight says "
            "how many it counts for; text='support' lets it compete for a place by its own entropy, as T3A's "
            "code does",
            "decided here: logits have the classifier's scale; T3A's code does not scale them, which labels "
            "do not show",
            "images of a CLIP are more similar to other images than to any text: a class that has images "
            "among its supports looks likelier than one that has none. A larger text_weight helps if classes "
            "come in blocks",
        ),
    )
)
class T3A(EmbeddingMethod):
    """Compare images with the means of the surest embeddings of each class.

    Args:
        classifier: What it adapts.
        capacity: The most images per class among the supports.
        text: "kept": the text embedding is a support for ever; "support": it has one of the places, and loses
            it to images of lower entropy.
        text_weight: How many supports the text counts for; the more, the less a class gains from images.
        seed: Has no effect.
        group: As for every method.
    """

    state_parameters = ("capacity",)
    recordable = True
    joins_groups = True

    def __init__(
        self,
        classifier: ZeroShotClassifier,
        capacity: int = 20,
        *,
        text: str = "kept",
        text_weight: float = 1.0,
        seed: int = 0,
        group: Group = None,
    ) -> None:
        super().__init__(classifier, seed=seed, group=group)
        self.capacity = checks.integer("capacity", capacity, 1)
        self.text = checks.choice("text", text, ("kept", "support"))
        self.text_weight = checks.number("text_weight", text_weight, 0, exclusive=True)
        texts = classifier.class_embeddings
        columns = {"embeddings": ColumnSpec(texts.dtype, classifier.device, texts.shape[1])}
        self.supports = self.add_memory(LowestEntropyMemory(len(texts), self.capacity, columns))
        self._text_entropies = entropy(classifier.logits(texts))

    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Store the batch, then compare it with the class vectors."""
        clf = self.classifier
        zero_shot = clf.logits(embeddings)
        embeddings, usable = without_refused(embeddings, usable)
        self.supports.insert(Arrivals(zero_shot.argmax(1), entropy(zero_shot), embeddings, usable))
        return Answer(clf.logits(embeddings, self._class_vectors()), zero_shot, usable)

    def _class_vectors(self) -> Tensor:
        """The unit mean of each class's supports ``(C, d)``."""
        texts, images = self.classifier.class_embeddings, self.supports.filled
        with_text = torch.ones_like(images[:, 0])
        if self.text == "support":
            # Among the first ``capacity`` by entropy; the text was there before all images.
            surer = images & (self.supports["entropies"] < self._text_entropies[:, None])
            with_text = surer.sum(1) < self.capacity
            last = torch.arange(self.capacity, device=images.device) == self.capacity - 1
            images = images & ~(with_text[:, None] & last)
        sums = torch.where(images[:, :, None], self.supports["embeddings"], 0).sum(1)
        return F.normalize(sums + self.text_weight * with_text[:, None] * texts, dim=1)
