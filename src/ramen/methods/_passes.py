"""How methods reach the encoder: a method asks for passes, and is given what they have seen.

``Method.adapt`` yields each ``Pass`` that it needs. ``give`` runs one and repeats it without images that
overflow; ``ramen.methods._runner`` does so for one stream or several, on a GPU from CUDA graphs.
"""

from collections.abc import Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.statistics import Statistics, of_batch
from ramen.kernels.graphs import holds
from ramen.methods._losses import entropy
from ramen.models.classifier import ZeroShotClassifier
from ramen.utils.distributed import Peers

if TYPE_CHECKING:
    from ramen.methods._method import Method

OF = ("logits", "embeddings", "features")
Loss = Callable[..., Any]
_NOT_ASKED: Any = None


class Pass:
    """Images that go through the encoder once: forward and, for a loss, back.

    Args:
        images: ``(B, 3, H, W)``.
        affine: Norm parameters, ``(G,)`` for all images or ``(B, G)``; the pretrained ones if not given.
        loss: What to differentiate. One of logits is called with these and ``tensors`` and returns a number
            per image, of which the mean over usable images counts; or a pair of these numbers and the images
            that enter the mean. One of embeddings or features is called with these, the usable images and
            ``tensors``, and returns one number for the batch, or a pair of it and the images that counted; in
            a group it is this process's part of a sum. It may be called twice, so it must not keep anything.
        usable: Which images may leave a trace.
        tensors: What the loss needs beside. Of those that require gradients it is also differentiated.
        each: Return the gradient of every image's own number, ``(B, G)``, instead of that of the mean.
        of: What the loss is of, and the last thing that is computed: "logits", "embeddings", or "features",
            which are embeddings in the length that the encoder gives them.
        statistics: What BatchNorm layers normalise with: "source" for their running statistics, "batch" for
            those of the usable images, or a tensor like ``AffineEncoder.base_statistics``.
        common: In a group: all processes have the same images, and gradients are averaged.
        repeat: Whether the pass is repeated without the images that overflow, if one does: it spoils a
            gradient of the batch, and the batch's statistics.
    """

    __slots__ = (
        "affine",
        "common",
        "each",
        "images",
        "loss",
        "of",
        "repeat",
        "statistics",
        "tensors",
        "usable",
    )

    def __init__(
        self,
        images: Tensor,
        affine: Tensor | None = None,
        loss: Loss | None = None,
        usable: Tensor | None = None,
        *tensors: Tensor,
        each: bool = False,
        of: str = "logits",
        statistics: str | Tensor = "source",
        common: bool = False,
        repeat: bool = True,
    ) -> None:
        self.images, self.affine, self.loss, self.usable, self.tensors = images, affine, loss, usable, tensors
        if of not in OF:
            raise ValueError(f"of must be one of {', '.join(OF)}, got {of!r}")
        self.each, self.of, self.statistics = each, of, statistics
        self.common, self.repeat = common, repeat

    @property
    def is_of_rows(self) -> bool:
        """Whether its loss says something of each image alone."""
        return self.of == "logits"

    @property
    def is_of_rows_alone(self) -> bool:
        """Whether what it finds of an image depends on nothing but the image and its norm parameters."""
        return self.statistics == "source" and (self.loss is None or (self.is_of_rows and not self.tensors))

    @property
    def is_shareable(self) -> bool:
        """Whether other images may pass together with these."""
        return self.statistics == "source" and not any(tensor.requires_grad for tensor in self.tensors)

    @property
    def needs_images(self) -> bool:
        """Whether images as the encoder prepares them are not enough."""
        return self.statistics == "batch" or (self.loss is not None and not self.is_of_rows)

    def pattern(self) -> tuple[Hashable, Callable[..., "Pass"]]:
        """What a recording of it depends on beside tensors, and what makes such a pass of other ``given``."""
        loss, has_affine, has_usable = self.loss, self.affine is not None, self.usable is not None
        options = {"each": self.each, "of": self.of, "statistics": self.statistics, "repeat": self.repeat}

        def like(images: Tensor, *tensors: Tensor) -> Pass:
            rest = list(tensors)
            affine = rest.pop(0) if has_affine else None
            usable = rest.pop(0) if has_usable else None
            return Pass(images, affine, loss, usable, *rest, **options)  # type: ignore[arg-type]

        return (loss, has_affine, has_usable, len(self.tensors), *options.values()), like

    def given(self) -> list[Tensor]:
        """Its tensors: images, norm parameters, usable images, others."""
        tensors = (self.images, self.affine, self.usable, *self.tensors)
        return [tensor for tensor in tensors if tensor is not None]


@dataclass(frozen=True)
class Seen:
    """What a pass has found; what it was not asked for is None.

    Attributes:
        embeddings: ``(B, d)``; of an image that overflows not finite.
        logits: ``(B, C)``.
        losses: Of each image, ``(B,)``.
        gradient: ``(G,)``, zero if no image counts; or ``(B, G)``.
        counted: Which images the loss is of.
        usable: Which of the usable images were so in the end.
        others: The gradient of the loss's other parameters, in one row.
        images: Those to continue with: blank where one has overflowed.
    """

    embeddings: Tensor
    logits: Tensor = _NOT_ASKED
    losses: Tensor = _NOT_ASKED
    gradient: Tensor = _NOT_ASKED
    counted: Tensor = _NOT_ASKED
    usable: Tensor = _NOT_ASKED
    others: Tensor = _NOT_ASKED
    images: Tensor = _NOT_ASKED

    def of(self, rows: slice) -> "Seen":
        """The same for some images, of a pass with nothing of the batch as a whole."""
        parts = {name: None if value is None else value[rows] for name, value in vars(self).items()}
        return Seen(**parts)  # type: ignore[arg-type]

    def averaged(self, peers: Peers) -> "Seen":
        """With the mean gradient of a group."""
        return replace(self, gradient=peers.total(self.gradient, "averaging gradients") / peers.size)


@dataclass(frozen=True)
class Support:
    """The entries behind each answer, ``(B, S)`` each; where ``valid`` is False there is none."""

    numbers: Tensor  # which image of the stream, counted from 0
    tags: Tensor  # its tag, -1 if it had none
    queues: Tensor  # the queue it was in: with balanced predictions, its pseudo-label
    distances: Tensor
    weights: Tensor
    valid: Tensor

    def to(self, device: torch.device) -> "Support":
        """A copy on ``device``."""
        return Support(**{name: value.to(device) for name, value in vars(self).items()})


def joined_support(supports: Sequence[Support]) -> Support:
    """Of images that found different numbers of entries: what is missing is not valid."""
    width = max(support.valid.shape[1] for support in supports)

    def column(name: str) -> Tensor:
        columns = [getattr(support, name) for support in supports]
        return torch.cat([F.pad(values, (0, width - values.shape[1])) for values in columns])

    return Support(**{name: column(name) for name in vars(supports[0])})


@dataclass(eq=False, repr=False)
class Prediction:
    """The answer for a batch, on the device of the images.

    Attributes:
        logits: The method's prediction, ``(B, C)`` in fp32 (fp64 for a double encoder).
        zero_shot: The classifier's logits without adaptation, or a function that computes them.
        fallback: True for images that the method could not use (a non-finite pixel, embedding, gradient or
            logit); their ``logits`` are zero-shot.
        support: The entries behind each answer, if asked for.
    """

    logits: Tensor
    zero_shot: Tensor | Callable[[], Tensor]
    fallback: Tensor
    support: Support | None = None

    @property
    def labels(self) -> Tensor:
        """The predicted classes ``(B,)``."""
        return self.logits.argmax(1)

    @cached_property
    def zero_shot_logits(self) -> Tensor:
        """The classifier's logits without adaptation.

        If the method has no use for them, asking costs a forward pass, and the images are kept until then.
        """
        return self.zero_shot if isinstance(self.zero_shot, Tensor) else self.zero_shot()

    def of(self, images: slice) -> "Prediction":
        """The answer for some images of the batch."""
        support = self.support
        if support is not None:
            support = Support(**{name: value[images] for name, value in vars(support).items()})
        return Prediction(self.logits[images], self.zero_shot_logits[images], self.fallback[images], support)

    def __repr__(self) -> str:
        return f"Prediction(labels={self.labels.tolist()}, fallback={int(self.fallback.sum())})"


@dataclass(frozen=True)
class Answer:
    """What ``adapt`` returns.

    Args:
        logits: The prediction ``(B, C)``, or the pass whose logits it is.
        zero_shot_logits: The classifier's own, if the method has them anyway; None to compute them only if
            somebody asks.
        usable: For which images the method could work; the others are answered zero-shot.
        support: Returns the entries behind each answer; called only if the caller asked for them.
        then: Returns the prediction, given what the pass has seen and ``kept``. It may assign new values to
            states; the next images of the stream may come before that.
        kept: Tensors with a row per image, or without one, that ``then`` needs.
    """

    logits: Tensor | Pass
    zero_shot_logits: Tensor | None
    usable: Tensor
    support: Callable[[], Support] | None = None
    then: Callable[..., Tensor] | None = None
    kept: tuple[Tensor, ...] = ()

    def of(self, images: slice) -> "Answer":
        """The answer for some images of the batch, without what is behind it."""
        assert isinstance(self.logits, Tensor)
        zero_shot = None if self.zero_shot_logits is None else self.zero_shot_logits[images]
        return Answer(self.logits[images], zero_shot, self.usable[images])

    def given(self, seen: Seen) -> "Answer":
        """The same, when its pass has been given."""
        logits = seen.logits if self.then is None else self.then(seen, *self.kept)
        usable = self.usable if seen.usable is None else self.usable & seen.usable
        return Answer(logits, self.zero_shot_logits, usable, self.support)


Steps = Generator[Pass, Seen, Answer]


def drive(steps: Answer | Steps, give: Callable[[Pass], Seen]) -> Answer:
    """The answer that a method comes to when it is given its passes."""
    seen: Any = None
    while not isinstance(steps, Answer):
        try:
            wanted = steps.send(seen)
        except StopIteration as end:
            steps = end.value
        else:
            seen = give(wanted)
    return steps.given(give(steps.logits)) if isinstance(steps.logits, Pass) else steps


# -- one pass ---------------------------------------------------------------------------------------------


def give(
    classifier: ZeroShotClassifier,
    wanted: Pass,
    *,
    peers: Peers | None = None,
    prepared: Tensor | None = None,
) -> Seen:
    """A pass by itself.

    Args:
        classifier: Whose encoder.
        wanted: The pass.
        peers: The processes of a group, whose images all count; only this process's if not given.
        prepared: Its images, as the encoder prepares them, if they are already.
    """
    images = wanted.images if prepared is None else prepared
    if wanted.loss is None:
        return _forward(classifier, wanted, images)
    if wanted.each:
        return each_of(classifier, images, wanted)
    if peers is not None and wanted.common:
        return _gradient(classifier, wanted, images, None).averaged(peers)
    return _gradient(classifier, wanted, images, peers)


def _forward(classifier: ZeroShotClassifier, wanted: Pass, images: Tensor) -> Seen:
    def once(images: Tensor, usable: Tensor | None) -> tuple[Tensor, Tensor]:
        embeddings = classifier.encode(
            images,
            wanted.affine,
            statistics=_statistics(wanted, usable),
            normalize=wanted.of != "features",
        )
        return embeddings, classifier.logits(embeddings) if wanted.of == "logits" else _NOT_ASKED

    usable = wanted.usable
    embeddings, logits = once(images, usable)
    if usable is None:
        return Seen(embeddings, logits, images=wanted.images)
    finite, raw = _finite(embeddings, logits), wanted.images
    if wanted.statistics == "batch" and wanted.repeat and not holds((finite | ~usable).all()):
        raw, usable = refuse_overflowing(classifier, raw, usable)
        embeddings, logits = once(raw, usable)
        finite = _finite(embeddings, logits)
    return Seen(embeddings, logits, usable=usable & finite, images=raw)


def _statistics(wanted: Pass, usable: Tensor | None) -> Statistics | None:
    if isinstance(wanted.statistics, Tensor):
        return Statistics(share=0, stored=wanted.statistics)
    return None if usable is None else of_batch(wanted.statistics, usable)


def _finite(embeddings: Tensor, logits: Tensor | None) -> Tensor:
    return (embeddings if logits is None else logits).isfinite().all(1)


def each_of(classifier: ZeroShotClassifier, images: Tensor, wanted: Pass) -> Seen:
    start = classifier.encoder.base if wanted.affine is None else wanted.affine.detach()
    with torch.enable_grad():
        rows = (start.expand(len(images), -1) if start.ndim == 1 else start).requires_grad_()
        embeddings = classifier.encode(images, rows)
        logits = classifier.logits(embeddings)
        losses, counted = loss_of(wanted, logits)
        gradients = classifier.gradient(losses.sum(), rows)
    return Seen(embeddings.detach(), logits.detach(), losses.detach(), gradients, counted=counted)


def loss_of(wanted: Pass, of: Tensor) -> tuple[Tensor, Tensor]:
    """The loss of each image or of a batch, and which images count, if it says that."""
    return _loss(wanted, of, wanted.usable, wanted.tensors)


def _loss(
    wanted: Pass, of: Tensor, usable: Tensor | None, tensors: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    assert wanted.loss is not None
    found = wanted.loss(of, *tensors) if wanted.is_of_rows else wanted.loss(of, usable, *tensors)
    return found if isinstance(found, tuple) else (found, _NOT_ASKED)


def _gradient(classifier: ZeroShotClassifier, wanted: Pass, images: Tensor, peers: Peers | None) -> Seen:
    """With the gradient of the mean, or of the batch's number; without the images that spoil it."""

    def once(images: Tensor, usable: Tensor) -> Seen:
        seen = _differentiated(classifier, wanted, images, usable)
        if peers is None or wanted.is_of_rows:
            return seen
        return replace(seen, gradient=peers.total(seen.gradient, "adding up gradients"))

    assert wanted.usable is not None
    raw, usable = wanted.images, wanted.usable
    seen = once(images, usable)
    if wanted.repeat and not holds(seen.gradient.isfinite().all()):
        if wanted.is_of_rows and wanted.statistics == "source":
            seen = mean_of_rows(wanted, each_of(classifier, images, wanted))
            usable = seen.usable
        else:
            first = seen.embeddings
            raw, usable = refuse_overflowing(classifier, raw, usable)
            seen = once(raw, usable)
            usable = usable & seen.embeddings.isfinite().all(1)
            seen = replace(seen, embeddings=torch.where(usable[:, None], seen.embeddings, first))
    elif wanted.repeat and not wanted.is_of_rows:
        usable = usable & seen.embeddings.isfinite().all(1)
    if peers is not None and wanted.is_of_rows:
        number = seen.counted.sum()
        count = peers.total(number, "counting images").clamp_min(1)
        seen = replace(seen, gradient=peers.total(seen.gradient * number, "averaging gradients") / count)
    size = len(classifier.encoder.base)
    others = seen.gradient[size:] if len(seen.gradient) > size else _NOT_ASKED
    return replace(seen, gradient=seen.gradient[:size], usable=usable, others=others, images=raw)


def _differentiated(classifier: ZeroShotClassifier, wanted: Pass, images: Tensor, usable: Tensor) -> Seen:
    """With the gradients of other parameters behind those of the norm layers."""
    start = classifier.encoder.base if wanted.affine is None else wanted.affine
    learned = [start, *(tensor.to(start) for tensor in wanted.tensors if tensor.requires_grad)]
    with torch.enable_grad():
        parameters = (torch.cat(learned) if len(learned) > 1 else start).detach().requires_grad_()
        affine, *others = (
            parameters.split([len(part) for part in learned]) if len(learned) > 1 else [parameters]
        )
        rest = iter(others)
        tensors = [next(rest) if tensor.requires_grad else tensor for tensor in wanted.tensors]
        embeddings = classifier.encode(
            images,
            affine,
            statistics=_statistics(wanted, usable),
            normalize=wanted.of != "features",
        )
        if not wanted.is_of_rows:
            loss, counted = _loss(wanted, embeddings, usable, tensors)
            gradient = classifier.gradient(loss, parameters)
            return Seen(embeddings.detach(), gradient=gradient, counted=counted)
        logits = classifier.logits(embeddings)
        # Rows are replaced before the loss: a non-finite one would spoil the gradient even with weight 0.
        losses, counted = _loss(wanted, torch.where(usable[:, None], logits, 0), usable, tensors)
        counted = usable if counted is None else usable & counted
        mean = torch.where(counted, losses, 0).sum() / counted.sum().clamp_min(1)
        gradient = classifier.gradient(mean, parameters)
    return Seen(embeddings.detach(), logits.detach(), losses.detach(), gradient, counted)


def mean_of_rows(wanted: Pass, each: Seen) -> Seen:
    """What a pass finds for the mean, given each image's own gradient: those that overflow do not count."""
    assert wanted.usable is not None
    usable = wanted.usable & each.gradient.isfinite().all(1) & each.logits.isfinite().all(1)
    counted = usable if each.counted is None else usable & each.counted
    gradient = torch.where(counted[:, None], each.gradient, 0).sum(0) / counted.sum().clamp_min(1)
    return replace(each, gradient=gradient, usable=usable, counted=counted, images=wanted.images)


def refuse_overflowing(
    classifier: ZeroShotClassifier, images: Tensor, usable: Tensor
) -> tuple[Tensor, Tensor]:
    """What to continue with after a joint gradient was not finite: the images, and which are usable.

    An image is refused if its own gradient, with the pretrained weights and running statistics, is not
    finite. Images that are not usable are blank from here on, and so can spoil nothing. If that does not
    help, because the steps themselves overflow, the answers are not finite and the whole batch is answered
    zero-shot.
    """
    usable = usable & sample_gradients(classifier, images)[3].isfinite().all(1)
    return torch.where(usable[:, None, None, None], images, 0), usable


def embeddings_of_all(
    method: "Method", images: Tensor, usable: Tensor
) -> Generator[Pass, Seen, tuple[Tensor, Tensor, Tensor]]:
    """One forward pass, for methods that do the rest with embeddings; in a group those of all processes.

    Returns:
        Zero-shot logits ``(B, C)``; unit embeddings ``(B, d)``, 0 for images that may leave no trace or have
        no finite one, as a NaN times a weight of 0 would be NaN; and which are the others.
    """
    seen = yield Pass(images, of="embeddings")
    embeddings, usable = method.whole(seen.embeddings), method.whole(usable)
    zero_shot = method.classifier.logits(embeddings)
    usable = usable & embeddings.isfinite().all(1)
    return zero_shot, torch.where(usable[:, None], embeddings, 0), usable


# -- for methods that call the classifier -----------------------------------------------------------------


def sample_gradients(
    classifier: ZeroShotClassifier, images: Tensor, affine: Tensor | None = None, *, measure: Loss = entropy
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch in which every image has its own norm parameters.

    Args:
        classifier: What encodes.
        images: The batch.
        affine: The norm parameters ``(G,)`` that all images start from; the pretrained ones if not given.
        measure: What to differentiate in place of the entropy.

    Returns:
        Embeddings ``(B, d)``, logits ``(B, C)``, entropies ``(B,)``, and the gradients ``(B, G)``: row ``i``
        is that of image ``i``'s entropy alone.
    """
    seen = each_of(classifier, images, Pass(images, affine, measure, each=True))
    return seen.embeddings, seen.logits, seen.losses, seen.gradient


def entropy_gradient(
    classifier: ZeroShotClassifier,
    images: Tensor,
    affine: Tensor,
    usable: Tensor,
    *,
    measure: Loss = entropy,
    statistics: str = "source",
) -> tuple[Tensor, Tensor, Tensor]:
    """One forward and one backward pass of a batch that shares its norm parameters.

    Args:
        classifier: What encodes.
        images: The batch.
        affine: Its norm parameters ``(G,)``.
        usable: Which images may leave a trace.
        measure: What to minimise in place of the entropy.
        statistics: What BatchNorm layers normalise with; see ``Pass``.

    Returns:
        The logits; the gradient ``(G,)`` of the mean entropy, zero if no image enters it; and which images
        were usable in the end. If an image overflows, the gradient is computed again without it.
    """
    seen = give(classifier, Pass(images, affine, measure, usable, statistics=statistics))
    return seen.logits, seen.gradient, seen.usable


def joint_gradient(
    classifier: ZeroShotClassifier, images: Tensor, affine: Tensor, loss: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """One forward and one backward pass for a ``loss`` of unit embeddings in which images meet.

    Returns:
        The embeddings and the gradient ``(G,)``. One image that overflows spoils the gradient, also if the
        loss leaves it out.
    """
    every = torch.ones(len(images), dtype=torch.bool, device=images.device)

    def of_embeddings(embeddings: Tensor, usable: Tensor) -> Tensor:
        return loss(embeddings)

    seen = give(classifier, Pass(images, affine, of_embeddings, every, of="embeddings", repeat=False))
    return seen.embeddings, seen.gradient
