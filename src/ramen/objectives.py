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
