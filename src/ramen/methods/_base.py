"""What every method is: the contract between methods and those who call them.

A method is a subclass of ``Method`` with one function to write, ``adapt``: it takes a batch of images and
returns logits. ``predict`` around it checks the input, keeps non-finite images away from the method's state,
answers those zero-shot, and counts. ``ramen.testing.check_method`` runs a method through the whole contract.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from typing import Any, ClassVar

import torch
from torch import Tensor

from ramen.kernels import cuda_graphs
from ramen.methods import _state as state_format
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero, finite_rows, plain_numerics

_INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class MethodInfo:
    """The record of facts that a method registers with."""

    name: str
    title: str
    venue: str
    paper: str
    updates: str  # what changes in the model
    predicts_with: str  # which of its forward passes, with which parameters
    batch_dependent: bool  # whether, by default, an image's answer depends on the others of its batch
    forwards: int  # encoder passes an image, with the default parameters
    backwards: int
    notes: tuple[str, ...] = ()  # decisions that the papers leave open
    batch_sized: tuple[str, ...] = ()  # parameters that the counts of passes take to be the batch size
    defaults: Mapping[str, Any] = field(default_factory=dict)  # filled in from the class on registration

    def __str__(self) -> str:
        sized = f", with {' and '.join(self.batch_sized)} the batch size" if self.batch_sized else ""
        rows = {
            "paper": f"{self.paper} ({self.venue})" if self.venue else self.paper,
            "updates": self.updates,
            "predicts with": self.predicts_with,
            "depends on batch mates": "yes" if self.batch_dependent else "no",
            "passes an image": f"{self.forwards} forward, {self.backwards} backward{sized}",
            "parameters": ", ".join(f"{name}={value!r}" for name, value in self.defaults.items()) or "none",
        }
        lines = [f"{self.name}: {self.title}", *(f"  {key}: {value}" for key, value in rows.items())]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])


@dataclass(frozen=True)
class Support:
    """The entries behind each answer, ``(B, S)`` each; where ``valid`` is False there is none."""

    numbers: Tensor  # which image of the stream, counted from 0
    tags: Tensor  # its tag, -1 if it had none
    queues: Tensor  # the queue it was in: with balanced predictions, its pseudo-label
    distances: Tensor
    weights: Tensor
    valid: Tensor


@dataclass(frozen=True)
class Answer:
    """What ``adapt`` returns.

    ``zero_shot_logits`` is a tensor where the method has them anyway, or a function that computes them.
    ``usable`` says for which images the method could work; the others are answered zero-shot.
    """

    logits: Tensor
    zero_shot_logits: Tensor | Callable[[], Tensor]
    usable: Tensor
    support: Support | None = None


class Prediction:
    """A batch's answer, on the device of the images that were asked about.

    Attributes:
        logits: The method's prediction, ``(B, C)`` in fp32 (fp64 for a double encoder).
        fallback: True for images that the method could not use (a non-finite pixel, embedding, gradient or
            logit); their ``logits`` are zero-shot.
        support: The entries behind each answer, where asked for.
    """

    def __init__(
        self,
        logits: Tensor,
        zero_shot: Tensor | Callable[[], Tensor],
        fallback: Tensor,
        support: Support | None = None,
    ) -> None:
        self.logits = logits
        self.fallback = fallback
        self.support = support
        self._zero_shot = zero_shot

    @property
    def labels(self) -> Tensor:
        """The predicted classes ``(B,)``."""
        return self.logits.argmax(1)

    @cached_property
    def zero_shot_logits(self) -> Tensor:
        """What the classifier says without adaptation.

        Where the method has no use for it, asking costs a forward pass, and the images are kept until then.
        """
        return self._zero_shot if isinstance(self._zero_shot, Tensor) else self._zero_shot()

    def __repr__(self) -> str:
        return f"Prediction(labels={self.labels.tolist()}, fallback={int(self.fallback.sum())})"


class Method(ABC):
    """A test-time adaptation method on a zero-shot classifier.

    One object is one stream; it serves one thread at a time.

    Args:
        classifier: What it adapts; never changed.
        seed: Decides everything random.
    """

    info: ClassVar[MethodInfo]
    # the parameters that a saved state depends on, beside the classifier
    state_parameters: ClassVar[tuple[str, ...]] = ()
    # whether answers come with the entries behind them, if asked for
    retrieves: ClassVar[bool] = False

    def __init__(self, classifier: ZeroShotClassifier, *, seed: int = 0) -> None:
        self.classifier = check_classifier(classifier)
        self.seed = checks.integer("seed", seed, 0)
        self.images_seen = 0
        self._refused = torch.zeros((), dtype=torch.int64, device=classifier.device)

    # -- to be written by a method ------------------------------------------------------------------

    @abstractmethod
    def adapt(self, images: Tensor, usable: Tensor, tags: Tensor | None, want_support: bool) -> Answer:
        """Answer a batch and take over what it teaches.

        Called without gradients; a method that needs them switches them on.

        Args:
            images: Finite images on the classifier's device.
            usable: False for images that came with non-finite pixels and must leave no trace.
            tags: The caller's integers, to be stored with entries, never to be read.
            want_support: Whether the caller asked for the entries behind each answer.
        """

    def clear(self) -> None:  # noqa: B027 - nothing to do for a method without state
        """Forget what the stream has taught."""

    def content(self) -> dict[str, Tensor]:
        """Copies of what the stream has taught."""
        return {}

    def restore(self, content: dict[str, Tensor]) -> None:
        """Take over what ``content`` gave, all of it or, with an error, nothing."""
        if content:
            raise ValueError(f"{self.info.name} keeps no state, got {sorted(content)}")

    def rehearse(self, batches: Iterable[Tensor]) -> None:
        """Answer blank batches and forget them, as if nothing had been asked.

        A method whose recordings hold what it keeps does so without putting copies in its place.
        """
        state = self.state_dict()
        try:
            for images in batches:
                self.predict(images)
        finally:
            self.load_state_dict(state)

    def memory_bytes(self) -> int:
        """The most that the method will ever keep of the stream."""
        return 0

    def passes(self) -> tuple[int, int]:
        """Forward and backward passes an image, where parameters decide that; else those of the record."""
        return self.info.forwards, self.info.backwards

    @property
    def batch_dependent(self) -> bool:
        """Whether batch mates change an answer, where parameters decide that; else what the record says."""
        return self.info.batch_dependent

    # -- what callers use ---------------------------------------------------------------------------

    def predict(
        self, images: Tensor, *, tags: Tensor | None = None, return_support: bool = False
    ) -> Prediction:
        """Answer a batch of preprocessed images ``(B, 3, H, W)`` and adapt.

        Args:
            images: Floats; on any device.
            tags: One integer an image, kept beside it for analyses and never read by the method.
            return_support: Also return which entries were used, with weights and tags.
        """
        images = self.classifier.check_images(images)
        tags = _check_tags(tags, len(images))
        if return_support and not self.retrieves:
            raise ValueError(f"return_support: method {self.info.name!r} retrieves no entries")
        home, device = images.device, self.classifier.device
        with plain_numerics(), torch.no_grad():
            usable, images = finite_rows(images), finite_or_zero(images).to(device)
            answer = self.adapt(images, usable.to(device), tags, return_support)
            self.images_seen += len(images)
            return self._finish(answer, images, home)

    def _finish(self, answer: Answer, images: Tensor, home: torch.device) -> Prediction:
        usable = answer.usable & finite_rows(answer.logits)
        refused, zero_shot = ~usable, answer.zero_shot_logits
        self._refused = self._refused + refused.sum()

        def computed() -> Tensor:
            with plain_numerics(), torch.no_grad():
                logits = zero_shot if isinstance(zero_shot, Tensor) else zero_shot()
                return finite_or_zero(logits).to(home)

        logits = answer.logits
        if isinstance(zero_shot, Tensor) or not usable.all():
            zero_shot_logits = computed()
            logits = torch.where(usable.to(home)[:, None], logits.to(home), zero_shot_logits)
            return Prediction(logits, zero_shot_logits, refused.to(home), _moved(answer.support, home))
        return Prediction(logits.to(home), computed, refused.to(home), _moved(answer.support, home))

    @plain_numerics()
    def warm_up(self, *batch_sizes: int) -> None:
        """Answer blank batches of these sizes until nothing is left to compile or record; forget them then.

        For before traffic. What the method keeps is copied meanwhile, or takes all the room that it will ever
        need (``rehearse``).
        """
        sizes = [checks.integer("batch_sizes", size, 1) for size in batch_sizes]
        if self.classifier.image_size is None:
            raise ValueError("warm_up: the classifier does not know its images' size; give it a preprocess")
        shapes = [(size, 3, *self.classifier.image_size) for size in sizes]
        self.rehearse(
            torch.zeros(shape, device=self.classifier.device)
            for shape in shapes
            for _ in range(cuda_graphs.CALLS_TO_RECORD)
        )

    @property
    def images_refused(self) -> int:
        """How many images were answered zero-shot because something about them was not finite."""
        return int(self._refused)

    @plain_numerics()
    def reset(self) -> None:
        """Back to fresh."""
        self.clear()
        self.images_seen = 0
        self._refused = torch.zeros_like(self._refused)

    def generator(self, device: str | torch.device = "cpu", *, place: int | None = None) -> torch.Generator:
        """Random numbers decided by the seed and the place in the stream alone.

        The place is the number of images seen so far, for what the coming batch needs; a method that counts
        otherwise, images that it could use for one, gives its own.
        """
        digest = sha256(f"{self.seed} {self.images_seen if place is None else place}".encode()).digest()
        return torch.Generator(device=device).manual_seed(int.from_bytes(digest[:8]) >> 1)

    # -- state --------------------------------------------------------------------------------------

    def _identity(self) -> dict[str, Any]:
        return {
            "version": state_format.VERSION,
            "method": self.info.name,
            "parameters": {"seed": self.seed} | {name: getattr(self, name) for name in self.state_parameters},
            "classifier": self.classifier.fingerprint(),
        }

    def state_dict(self) -> dict[str, Tensor]:
        """Everything needed to continue, as tensors; safetensors and ``torch.save`` take it as it is."""
        return {
            "header": state_format.write_header(self._identity()),
            "class_embeddings": self.classifier.class_embeddings.clone(),
            "images_seen": torch.tensor(self.images_seen, device="cpu"),
            "images_refused": self._refused.clone(),
            **{f"content.{name}": tensor for name, tensor in self.content().items()},
        }

    @plain_numerics()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue where ``state`` was taken; a ValueError says what differs and leaves this as it was."""
        images_seen, refused = state_format.check(state, self._identity(), self.classifier.class_embeddings)
        prefix = "content."
        self.restore({name[len(prefix) :]: state[name] for name in state if name.startswith(prefix)})
        self.images_seen = images_seen
        self._refused = torch.full_like(self._refused, refused)


def check_classifier(classifier: object) -> ZeroShotClassifier:
    """``classifier``, if it is one; for methods that ask it something before they are one."""
    if not isinstance(classifier, ZeroShotClassifier):
        raise TypeError(f"classifier must be a ZeroShotClassifier, got {type(classifier).__name__}")
    return classifier


def _check_tags(tags: object, batch: int) -> Tensor | None:
    if tags is None:
        return None
    try:
        given = torch.as_tensor(tags)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(f"tags must be {batch} integers, got {type(tags).__name__}: {error}") from error
    if given.dtype not in _INTEGERS or tuple(given.shape) != (batch,):
        raise ValueError(f"tags must be {batch} integers, got {given.dtype} of shape {tuple(given.shape)}")
    return given.to(torch.int64)


def _moved(support: Support | None, device: torch.device) -> Support | None:
    if support is None:
        return None
    return Support(**{name: value.to(device) for name, value in vars(support).items()})
