"""Ramen as the paper's pseudo-code reads, image by image, class by class: the slow twin of ``speed.py``."""

import torch
from torch import Tensor

import ramen
from ramen.methods._losses import entropy


class PlainRamen:
    """Lists of entries, loops over images and classes, a forward and backward pass through the module itself.

    Args:
        classifier: What it adapts, built with ``fused=False``.
        capacity: The most entries of a class.
        topk: How many are retrieved of each.
        beta: Weight of the distance.
        lr: Size of the signed step.
    """

    def __init__(
        self, classifier: ramen.ZeroShotClassifier, capacity: int, topk: int, beta: float, lr: float
    ) -> None:
        self.classifier = classifier
        self.capacity, self.topk, self.beta, self.lr = capacity, topk, beta, lr
        self.embeddings: list[list[Tensor]] = [[] for _ in classifier.classes]
        self.gradients: list[list[Tensor]] = [[] for _ in classifier.classes]
        self.entropies: list[list[Tensor]] = [[] for _ in classifier.classes]

    def predict(self, images: Tensor) -> Tensor:
        """Logits of a batch, which enters the memory first."""
        clf, base = self.classifier, self.classifier.encoder.base
        with torch.enable_grad():
            rows = base.expand(len(images), -1).clone().requires_grad_()
            embeddings = clf.encode(images, rows)
            zero_shot = clf.logits(embeddings)
            entropies = entropy(zero_shot)
            gradients = clf.gradient(entropies.sum(), rows)
        labels = zero_shot.argmax(1)
        for i in range(len(images)):
            self.insert(int(labels[i]), embeddings[i].detach(), gradients[i], entropies[i].detach())
        steps = [self._gradient(embedding) for embedding in embeddings.detach()]
        with torch.no_grad():
            adapted = base - self.lr * torch.stack(steps).sign()
            return clf.logits(clf.encode(images, adapted))

    def insert(self, label: int, embedding: Tensor, gradient: Tensor, uncertainty: Tensor) -> None:
        """Put an entry into its class's queue; the oldest of a full one makes room."""
        for queue, value in (
            (self.embeddings[label], embedding),
            (self.gradients[label], gradient.half()),
            (self.entropies[label], uncertainty),
        ):
            queue.append(value)
            del queue[: -self.capacity]

    def _gradient(self, query: Tensor) -> Tensor:
        """The weighted sum over the nearest entries of each class."""
        total = torch.zeros_like(self.classifier.encoder.base)
        for embeddings, gradients, entropies in zip(
            self.embeddings, self.gradients, self.entropies, strict=True
        ):
            if not embeddings:
                continue
            distances = (torch.stack(embeddings) - query).norm(dim=1)
            nearest = distances.topk(min(self.topk, len(embeddings)), largest=False)
            for distance, index in zip(nearest.values, nearest.indices.tolist(), strict=True):
                weight = torch.exp(-entropies[index] - self.beta * distance)
                total += weight * gradients[index].float()
        return total
