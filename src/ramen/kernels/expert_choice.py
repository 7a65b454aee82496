"""Experts of a norm layer: which of them each image gets, by the mean of what the layer gets of it.

A router's probabilities are a softmax of products with the mean. The likeliest expert's offsets are added to
the layer's parameters, times its probability relative to itself: a factor of 1 that has a gradient. Layers
are many, and on a GPU each costs what its kernels cost to start: of autograd's about forty, five are left.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ramen import kernels

_BLOCK = 256


@dataclass(frozen=True)
class Experts:
    """Of one layer.

    Attributes:
        offsets: What each adds to the layer's parameters, ``(E, S)``.
        weight: Of the router, ``(E, D)``.
        bias: Of the router, ``(E,)``.
    """

    offsets: Tensor
    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class Choice:
    """Of images.

    Attributes:
        added: The offsets of the likeliest expert, ``(B, S)``.
        probabilities: Of all experts, ``(B, E)``.
        chosen: The likeliest, ``(B,)``.
    """

    added: Tensor
    probabilities: Tensor
    chosen: Tensor


def forward(means: Tensor, experts: Experts) -> Choice:
    """The choice for images with these means ``(B, D)``."""
    return _forward_triton(means, experts) if _uses_triton(means) else _forward_torch(means, experts)


def backward(
    of_added: Tensor, of_probabilities: Tensor, means: Tensor, experts: Experts, choice: Choice
) -> tuple[Tensor, Experts]:
    """The gradients of means and experts, given those of what was added and of the probabilities."""
    back = _rows_backward_triton if _uses_triton(means) else _rows_backward_torch
    of_logits, is_chosen, of_means = back(of_added, of_probabilities, experts, choice)
    of_experts = Experts(is_chosen.T @ of_added, of_logits.T @ means, of_logits.sum(0))
    return of_means, of_experts


def _uses_triton(means: Tensor) -> bool:
    return kernels.usable_on(means.device) and means.dtype == torch.float32


# -- plain torch ------------------------------------------------------------------------------------


def _forward_torch(means: Tensor, experts: Experts) -> Choice:
    probabilities = (means @ experts.weight.T + experts.bias).softmax(1)
    likeliest, chosen = probabilities.max(1)
    # what is not finite stays so
    return Choice(experts.offsets[chosen] * (likeliest / likeliest)[:, None], probabilities, chosen)


def _rows_backward_torch(
    of_added: Tensor, of_probabilities: Tensor, experts: Experts, choice: Choice
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of logits, whether an expert was chosen, as a number, and gradients of means."""
    p = choice.probabilities
    is_chosen = torch.zeros_like(p).scatter_(1, choice.chosen[:, None], 1.0)
    of_factor = (of_added * choice.added).sum(1, keepdim=True)
    of_p = of_probabilities + is_chosen * of_factor / p.amax(1, keepdim=True)
    of_logits = p * (of_p - (of_p * p).sum(1, keepdim=True))
    return of_logits, is_chosen, of_logits @ experts.weight


# -- Triton -----------------------------------------------------------------------------------------


def _options(experts: Experts) -> dict[str, int]:
    return {"EXPERTS": kernels.power_of_two(len(experts.bias)), "BLOCK": _BLOCK, "num_warps": 4}


def _forward_triton(means: Tensor, experts: Experts) -> Choice:
    count, size = experts.offsets.shape
    images, inputs = means.shape
    added = torch.empty((images, size), dtype=means.dtype, device=means.device)
    probabilities = torch.empty((images, count), dtype=means.dtype, device=means.device)
    chosen = torch.empty((images,), dtype=torch.int64, device=means.device)
    given = means, experts.offsets, experts.weight, experts.bias
    with kernels.current_device(means.device):
        kernels.load("expert_choice").choose[(images,)](
            *(tensor.contiguous() for tensor in given),
            added,
            probabilities,
            chosen,
            count,
            size,
            inputs,
            **_options(experts),
        )
    return Choice(added, probabilities, chosen)


def _rows_backward_triton(
    of_added: Tensor, of_probabilities: Tensor, experts: Experts, choice: Choice
) -> tuple[Tensor, Tensor, Tensor]:
    count, inputs = experts.weight.shape
    images, size = of_added.shape
    of_logits, is_chosen = torch.empty_like(choice.probabilities), torch.empty_like(choice.probabilities)
    of_means = torch.empty((images, inputs), dtype=of_added.dtype, device=of_added.device)
    given = of_added, of_probabilities, choice.added, choice.probabilities, choice.chosen, experts.weight
    with kernels.current_device(of_added.device):
        kernels.load("expert_choice").choose_backward[(images,)](
            *(tensor.contiguous() for tensor in given),
            of_logits,
            is_chosen,
            of_means,
            count,
            size,
            inputs,
            **_options(experts),
        )
    return of_logits, is_chosen, of_means
