"""Methods whose passes through the encoder can be shared with those of other streams.

A pass treats each image by itself, so that images of many streams can go through the encoder together. What
a method does between the passes is its own: ``together`` makes the passes and calls the methods in turn.
"""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.methods._answers import Answer, Support
from ramen.methods._base import Method


class EmbeddingMethod(Method):
    """A method that makes one forward pass with the pretrained weights, and does the rest with embeddings."""

    def adapt(self, images: Tensor, usable: Tensor) -> Answer:
        """One forward pass, and what follows from it.

        In a group, every process learns from all images and keeps all that is remembered of them: embeddings
        are small. Only a method that treats each image by itself and learns nothing stays with its own.
        """
        embeddings = self.classifier.encode(images)
        if self.peers is None or not (self.batch_dependent or self.memories or self._states):
            return self.from_embeddings(embeddings, usable)
        return self.from_embeddings(self.whole(embeddings), self.whole(usable)).of(self.peers.own)

    @abstractmethod
    def from_embeddings(self, embeddings: Tensor, usable: Tensor) -> Answer:
        """Answer a batch and learn from it, given its unit embeddings ``(B, d)``; see ``adapt``."""


def without_refused(embeddings: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
    """The embeddings, 0 for images that may leave no trace or have no finite one; and which are the others.

    A NaN times a weight of 0 would be NaN.
    """
    usable = usable & embeddings.isfinite().all(1)
    return torch.where(usable[:, None], embeddings, 0), usable


@dataclass(frozen=True)
class FirstPass:
    """What a forward and a backward pass with the pretrained weights say about a batch.

    Attributes:
        embeddings: ``(B, d)``.
        logits: ``(B, C)``.
        entropies: ``(B,)``.
        gradients: Of each image's own entropy, ``(B, G)``.
        storable: Which images a memory may take, ``(B,)``; None for all usable ones.
    """

    embeddings: Tensor
    logits: Tensor
    entropies: Tensor
    gradients: Tensor
    storable: Tensor | None = None

    def of(self, images: slice) -> "FirstPass":
        """The same for some images of the batch."""
        return FirstPass(
            self.embeddings[images],
            self.logits[images],
            self.entropies[images],
            self.gradients[images],
            None if self.storable is None else self.storable[images],
        )


@dataclass(frozen=True)
class OwnStep:
    """Where a method has gone from the pretrained weights, separately for each image.

    Attributes:
        affine: The norm parameters ``(B, G)`` that the images are to be answered with.
        usable: For which images the method could work; the others are answered zero-shot.
        support: Returns the entries behind each answer.
    """

    affine: Tensor
    usable: Tensor
    support: Callable[[], Support]


class GradientMethod(Method):
    """A method that makes a first pass with gradients, takes a step, and answers with a second pass."""

    @property
    def shares_passes(self) -> bool:
        """Whether these two are all of its passes, so that they can be shared with other streams."""
        return True

    @abstractmethod
    def step(self, first: FirstPass, usable: Tensor) -> OwnStep:
        """Learn from a batch, and say with which weights it is to be answered."""

    @abstractmethod
    def answer(self, first: FirstPass, own: OwnStep, logits: Tensor) -> Answer:
        """The answer, given the logits of the second pass."""
