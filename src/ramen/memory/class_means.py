"""Mean embeddings of the classes that a stream's images are taken for."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class ClassMeans:
    """Sums ``(C, d)`` and counts ``(C,)`` of embeddings by class; a batch more makes a new one."""

    sums: Tensor
    counts: Tensor

    @classmethod
    def empty(cls, like: Tensor) -> "ClassMeans":
        """Before the first image; ``like`` has the sums' shape, type and device."""
        return cls(torch.zeros_like(like), torch.zeros(len(like), dtype=torch.int64, device=like.device))

    def including(self, embeddings: Tensor, labels: Tensor, usable: Tensor) -> "ClassMeans":
        """With the usable ones of a batch of embeddings ``(B, d)``."""
        members = membership(labels, usable, len(self.counts))
        embeddings = torch.where(usable[:, None], embeddings, 0)
        return ClassMeans(
            self.sums + members.to(embeddings.dtype).T @ embeddings, self.counts + members.sum(0)
        )

    def by_class(self) -> Tensor:
        """A mean for each class ``(C, d)``; 0 for a class that has no image."""
        return self.sums / self.counts.clamp_min(1)[:, None]

    def overall(self) -> Tensor:
        """The mean ``(d,)`` of all embeddings; bit for bit that of the class if there is but one."""
        return self.sums.sum(0) / self.counts.sum().clamp_min(1)

    def images(self) -> Tensor:
        """How many embeddings are in it."""
        return self.counts.sum()


def membership(labels: Tensor, usable: Tensor, classes: int) -> Tensor:
    """Which usable image ``(B,)`` belongs to which class, ``(B, C)``."""
    return (labels[:, None] == torch.arange(classes, device=labels.device)) & usable[:, None]
