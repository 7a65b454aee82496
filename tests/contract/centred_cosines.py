"""A method as somebody writes it who has read CONTRIBUTING.md and nothing else.

Images and texts of a CLIP are in two separate regions of the sphere. Cosines are therefore taken from two
centres: the mean of the texts, and that of the classes' surest embeddings.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

import ramen
from ramen.memory import Arrivals, ColumnSpec, LowestEntropyMemory
from ramen.methods import entropy
from ramen.utils import checks


class CentredCosines(ramen.Method):
    """Compare images and texts after their own centres have been subtracted.

    Args:
        classifier: What it adapts.
        keep: Embeddings per class that the centre of the images is made of.
        seed: Has no effect.
    """

    state_parameters = ("keep",)
    recordable = True

    def __init__(self, classifier: ramen.ZeroShotClassifier, keep: int = 20, *, seed: int = 0) -> None:
        super().__init__(classifier, seed=seed)
        self.keep = checks.integer("keep", keep, 1)
        classes, width = classifier.class_embeddings.shape
        columns = {"embeddings": ColumnSpec(classifier.class_embeddings.dtype, classifier.device, width)}
        self.surest = self.add_memory(LowestEntropyMemory(classes, self.keep, columns))

    def adapt(self, images: Tensor, usable: Tensor) -> ramen.Answer:
        """Store the batch, then compare it from the new centre."""
        clf, texts = self.classifier, self.classifier.class_embeddings
        embeddings = clf.encode(images)
        zero_shot = clf.logits(embeddings)
        usable = usable & embeddings.isfinite().all(1)
        embeddings = torch.where(usable[:, None], embeddings, 0)
        self.surest.insert(Arrivals(zero_shot.argmax(1), entropy(zero_shot), embeddings, usable))
        centre = self.surest["embeddings"].sum((0, 1)) / self.surest.filled.sum().clamp_min(1)
        cosines = F.normalize(embeddings - centre, dim=1) @ F.normalize(texts - texts.mean(0), dim=1).T
        return ramen.Answer(clf.logit_scale * cosines, zero_shot, usable)
