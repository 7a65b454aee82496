"""Losses of predictions."""

import torch
from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the softmax of ``(B, C)`` logits, natural logarithm, in fp32 (fp64 stays).

    >>> entropy(torch.zeros(1, 4)).exp().round()
    tensor([4.])
    """
    log_p = torch.log_softmax(logits.to(torch.promote_types(logits.dtype, torch.float32)), dim=-1)
    # A class of probability 0 contributes 0; its log is -inf, and 0 * -inf would not be.
    return -(log_p.exp() * log_p.clamp_min(torch.finfo(log_p.dtype).min)).sum(-1)


def mean_entropy(logits: Tensor, usable: Tensor) -> Tensor:
    """The mean entropy of the usable images; 0 where there is none."""
    # Rows are replaced before the entropy: a non-finite one would spoil the gradient even with weight 0.
    safe = torch.where(usable[:, None], logits, 0)
    return torch.where(usable, entropy(safe), 0).sum() / usable.sum().clamp_min(1)


def contrastive_loss(
    images: Tensor,
    texts: Tensor,
    usable: Tensor,
    scale: float,
    *,
    temperature: float = 0.01,
    detach_targets: bool = False,
) -> Tensor:
    """How far the images of a batch are from telling their own texts from those of the others.

    With unit embeddings ``Z`` of the images and ``U`` of one text for each, ``(B, d)`` both, it is the mean
    over images ``i`` of ``-sum_j Q[j, i] log softmax_j(scale Z[i] U[j])``, where row ``j`` of ``Q`` is the
    softmax of ``(Z Z^T + U U^T)[j] / 2 / temperature``: images and texts that look alike may be mixed up.

    ``Q`` is transposed after the softmax, and the gradient flows through it too, as in the code of CLIPArTT
    and WATT: the targets of one image then need not sum to 1. Images that are not usable take no part, as if
    they were not in the batch.

    Args:
        images: ``Z``.
        texts: ``U``.
        usable: Which images take part, ``(B,)``.
        scale: Of the logits.
        temperature: Of the targets.
        detach_targets: Take ``Q`` as constant.
    """
    # Rows are replaced before anything else: a non-finite one would spoil the gradient even with weight 0.
    images, texts = (torch.where(usable[:, None], rows, 0) for rows in (images, texts))
    nothing = torch.finfo(images.dtype).min  # not -inf: with no usable image a softmax would be 0 / 0
    alike = (images @ images.T + texts @ texts.T) / 2 / temperature
    targets = torch.softmax(torch.where(usable, alike, nothing), dim=1).T
    if detach_targets:
        targets = targets.detach()
    log_p = torch.log_softmax(torch.where(usable, scale * images @ texts.T, nothing), dim=1)
    both = usable[:, None] & usable
    return -torch.where(both, targets * log_p, 0).sum() / usable.sum().clamp_min(1)
