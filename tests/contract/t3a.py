"""T3A, as somebody writes it who has read CONTRIBUTING.md and nothing else.

Iwasawa and Matsuo, "Test-Time Classifier Adjustment Module for Model-Agnostic Domain Generalization", NeurIPS
2021: the classes' vectors are the means of their texts and of the surest embeddings predicted as them.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen.memory import Arrivals, ColumnSpec, LowestEntropyMemory
from ramen.methods import entropy
from ramen.utils import checks


class T3A(ramen.Method):
    """Nearest mean of the surest embeddings of each class.

    Args:
        classifier: What it adapts.
        keep: Embeddings per class.
        seed: Has no effect.
    """

    state_parameters = ("keep",)
    recordable = True

    def __init__(self, classifier: ramen.ZeroShotClassifier, keep: int = 20, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.keep = checks.integer("keep", keep, 1)
        classes, width = classifier.class_embeddings.shape
        columns = {"embeddings": ColumnSpec(classifier.class_embeddings.dtype, classifier.device, width)}
        self.supports = self.add_memory(LowestEntropyMemory(classes, self.keep, columns))

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        """Store the batch, then compare it with the means."""
        clf = self.classifier
        embeddings = clf.encode(images)
        zero_shot = clf.logits(embeddings)
        usable = usable & embeddings.isfinite().all(1)
        embeddings = torch.where(usable[:, None], embeddings, 0)
        self.supports.insert(Arrivals(zero_shot.argmax(1), entropy(zero_shot), embeddings, usable))
        means = F.normalize(clf.class_embeddings + self.supports["embeddings"].sum(1), dim=-1)
        return ramen.Answer(clf.logit_scale * embeddings @ means.T, zero_shot, usable)
