"""COME's opinion entropy: a loss in place of the entropy that hardly moves uncertain images.

Zhang et al., "COME: Test-time Adaption by Conservatively Minimizing Entropy", ICLR 2025.
"""

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from ramen.methods._steps import entropy


def opinion_entropy(logits: Tensor) -> Tensor:
    """Entropy ``(B,)`` of the subjective opinions that ``(B, C)`` logits express, in fp32 (fp64 stays).

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
