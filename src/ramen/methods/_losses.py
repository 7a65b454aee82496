"""Losses and measures of logits that several methods share, and notes for their records."""

import math
from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.models.classifier import MissingPartError, ZeroShotClassifier

Measure = Callable[[Tensor], Tensor]  # of logits (B, C): how uncertain each image is, (B,)


def entropy(logits: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the softmax of ``(B, C)`` logits, natural logarithm, in fp32 (fp64 stays).

    >>> entropy(torch.zeros(1, 4)).exp().round()
    tensor([4.])
    """
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    # A class of probability 0 contributes 0; its log is -inf, and 0 * -inf would not be.
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)


def mean_entropy(logits: Tensor, usable: Tensor, measure: Measure = entropy) -> Tensor:
    """The mean entropy of the usable images, or of another measure of logits; 0 where there is none."""
    # Rows are replaced before the entropy: a non-finite one would spoil the gradient even with weight 0.
    safe = torch.where(usable[:, None], logits, 0)
    return torch.where(usable, measure(safe), 0).sum() / usable.sum().clamp_min(1)


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the subjective opinions that ``(B, C)`` logits express, in fp32 (fp64 stays).

    Of COME (Zhang et al., "Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025): a loss in
    place of the entropy that hardly moves uncertain images.

    An opinion has a belief in each class, ``exp(l_c) / (sum exp(l) + C)``, and an uncertainty,
    ``C / (sum exp(l) + C)``: the softmax with one more class, whose logit is ln C. No gradient flows along
    the length of the logits, which is all that there is of it if they are nearly equal.

    The mean of an image's logits is subtracted first. A softmax does not depend on it; the uncertainty does,
    and would vanish for CLIP, whose logits are all near 20.

    >>> value = opinion_entropy(torch.full((1, 4), 20.0))  # certain of nothing: 1/2, and 1/8 for each class
    >>> round(float(value.exp()), 3)
    4.0
    """
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    centred = exact - exact.mean(-1, keepdim=True)
    length = torch.linalg.vector_norm(centred, dim=-1, keepdim=True)
    # The factor is 1; its gradient takes out what would make the logits longer or shorter.
    held = centred * (length.detach() / length.clamp_min(torch.finfo(exact.dtype).tiny))
    classes = logits.shape[-1]
    uncertainty = held.new_full((*held.shape[:-1], 1), math.log(classes))
    return entropy(torch.cat([held, uncertainty], dim=-1))


# What the parameter ``loss`` of methods that minimise an entropy chooses from.
LOSSES: Mapping[str, Callable[[Tensor], Tensor]] = {"entropy": entropy, "come": opinion_entropy}


def unit_rows(gradients: Tensor) -> Tensor:
    """Each row at length 1; a row that is zero, or next to it, stays so."""
    return F.normalize(gradients, dim=1)


def root_rows(gradients: Tensor) -> Tensor:
    """Each row at the square root of its length; a row that is zero stays so.

    >>> root_rows(torch.tensor([[0.0, 16.0], [0.0, 0.0]]))
    tensor([[0., 4.],
            [0., 0.]])
    """
    length: Tensor = torch.linalg.vector_norm(gradients, dim=1, keepdim=True)
    return gradients / length.clamp_min(torch.finfo(length.dtype).tiny).sqrt()


# How long gradients are when they are stored.
LENGTHS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "raw": lambda gradients: gradients,
    "root": root_rows,
    "unit": unit_rows,
}


def confidence_lost(logits: Tensor) -> Tensor:
    """-ln p ``(B,)`` of each image's predicted class, in fp32 (fp64 stays)."""
    exact = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return exact.logsumexp(1) - exact.amax(1)


def probability_drop(logits: Tensor, destroyed: Tensor) -> Tensor:
    """How much less probable each image's predicted class is without its object, ``(B,)``: DeYO's PLPD.

    Args:
        logits: Of the images.
        destroyed: Of the same images with their objects destroyed.
    """
    before, after = logits.softmax(1), destroyed.softmax(1)
    labels = before.argmax(1, keepdim=True)
    return (before.gather(1, labels) - after.gather(1, labels)).squeeze(1)


def mixed_logits(zero_shot: Tensor, adapted: Tensor, share: float) -> Tensor:
    """Logits of the mean of two predictions, of which the zero-shot one has this ``share``.

    Their level, which no probability shows, is the mean of both: equal predictions keep their logits.
    """
    exact = torch.promote_types(adapted.dtype, torch.float32)
    parts = [(zero_shot.to(exact), share), (adapted.to(exact), 1 - share)]
    first, second = (torch.log_softmax(logits, dim=1) + math.log(part) for logits, part in parts)
    level = sum(part * logits.logsumexp(1, keepdim=True) for logits, part in parts)
    return torch.logaddexp(first, second) + level


def information(logits: Tensor) -> Tensor:
    """Mutual information of answers and images, in nats: entropy of the mean answer less the mean entropy.

    It grows while answers become sharper and stay different, and falls when they collapse onto few classes.
    So, of several settings of a method that answered the same images, the one with the most information tends
    to be the best. It is between 0 and the logarithm of the number of classes or of images, whichever is
    smaller.

    Few images make it too small: their mean answer has, on average, less entropy than that of the whole
    stream, by about (C - 1) / 2N for N confident answers in C classes that are equally frequent. That is
    nearly the same for every setting if the images are the same: compare settings on the same images, 200 or
    more of them. Images of one class say nothing: what is left is the noise of uncertain answers.

    Args:
        logits: ``(N, C)``, those of any classifier or method.

    Returns:
        A number, in fp64 on the device of the logits.

    >>> sharp = 20 * torch.eye(4)
    >>> round(float(information(sharp).exp()), 3)  # four images, four different answers
    4.0
    >>> round(float(information(sharp[:1].expand(3, -1)).exp()), 3)  # always the same
    1.0
    """
    if not isinstance(logits, Tensor) or not logits.is_floating_point():
        got = logits.dtype if isinstance(logits, Tensor) else type(logits).__name__
        raise TypeError(f"logits must be a tensor of floats (N, C), got {got}")
    if logits.ndim != 2 or not logits.numel():
        raise ValueError(f"logits must be (N, C) with at least one image, got {tuple(logits.shape)}")
    if not logits.isfinite().all():
        raise ValueError("logits must be finite, got some that are not")
    log_p = torch.log_softmax(logits.detach().double(), dim=1)
    p = log_p.exp()
    mean = p.mean(0)
    found: Tensor = (p * log_p).sum(1).mean() - torch.special.xlogy(mean, mean).sum()
    return found.clamp_min(0)


# -- of embeddings ----------------------------------------------------------------------------------------


def nearest_others(similarities: Tensor, usable: Tensor, number: int) -> Tensor:
    """Whether the image of the column is among the nearest of that of the row, ``(B, B)``.

    Nobody is his own neighbour. Of equally similar images the first ones count. Images that are not usable
    neither are nor have neighbours; if there are fewer others than ``number``, all of them count.

    Args:
        similarities: Of all pairs, ``(B, B)``.
        usable: Which images count, ``(B,)``.
        number: How many neighbours.
    """
    others = usable & ~torch.eye(len(usable), dtype=torch.bool, device=usable.device)
    order = torch.where(others, similarities, -torch.inf).argsort(dim=1, descending=True, stable=True)
    nearest = torch.zeros_like(others).scatter_(1, order[:, :number], True)
    return nearest & others & usable[:, None]


def template_embeddings(
    method: str, classifier: ZeroShotClassifier, templates: tuple[str, ...] | None
) -> Tensor:
    """Unit embeddings ``(C, templates, d)`` of the classes, in the classifier's own templates if not given.

    Raises:
        MissingPartError: They are not known, and the classifier has no text encoder.
    """
    if templates is None:
        found, wanted = classifier.template_embeddings, "every template"
    else:
        found, wanted = classifier.embed_templates(templates), f"templates {', '.join(map(repr, templates))}"
    if found is None:
        raise MissingPartError(
            f"method {method!r} needs the embeddings of {wanted}: give the ZeroShotClassifier (C, templates, "
            "d) embeddings (with templates=... if they are to be found by name), or a text encoder "
            "(encode_text=...) and the method templates=..."
        )
    return found


# -- notes that several records share ---------------------------------------------------------------------


OPINION_ENTROPY = (
    "loss='come' is the opinion entropy of COME (ICLR 2025, arXiv 2410.10894), to which bounds on the "
    "entropy then apply. Decided here: an image's logits less their mean, as CLIP's are far from 0, and a "
    "mass of uncertainty of C, for which COME's code has 1,000"
)

RANDOM_VIEWS = (
    "views are crops of the preprocessed image, with at least 8 % of its area and sides of 3:4 to 4:3, half "
    "of them mirrored; the published code crops the original file in its full resolution. The first view is "
    "the image itself. Decided here: draws depend on the seed and the image's own pixels, so that neither "
    "the batch nor the order of the stream changes an answer"
)
