"""T3A: class vectors are the means of the surest embeddings of each predicted class, the text among them.

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS
2021.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.memory.lowest_entropy import Arrivals, LowestEntropyMemory
from ramen.memory.rows import ColumnSpec
from ramen.methods._losses import entropy
from ramen.methods._method import Method
from ramen.methods._passes import Answer, Steps, embeddings_of_all
from ramen.methods._registry import MethodInfo, field, register


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
class T3A(Method):
    """Compare images with the means of the surest embeddings of each class."""

    capacity: int = field(20, ge=1, saved=True, doc="The most images per class among the supports.")
    text: str = field(
        "kept",
        choices=("kept", "support"),
        doc='"kept": the text embedding is a support for ever; "support": it has one of the places, and '
        "loses it to images of lower entropy.",
    )
    text_weight: float = field(
        1.0, gt=0, doc="How many supports the text counts for; the more, the less a class gains from images."
    )

    recordable = True
    joins_groups = True

    def setup(self) -> None:
        classifier = self.classifier
        texts = classifier.class_embeddings
        columns = {"embeddings": ColumnSpec(texts.dtype, classifier.device, texts.shape[1])}
        self.supports = self.add_memory(LowestEntropyMemory(len(texts), self.capacity, columns))
        self._text_entropies = entropy(classifier.logits(texts))

    def adapt(self, images: Tensor, usable: Tensor) -> Steps:
        """Store the batch, then compare it with the class vectors."""
        clf = self.classifier
        zero_shot, embeddings, usable = yield from embeddings_of_all(self, images, usable)
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
