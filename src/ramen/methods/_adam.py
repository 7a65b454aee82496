"""Adam on a flat vector, as a function: nothing is changed, a new vector and a new state come back."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

_DECAY = 0.9, 0.999
_EPS = 1e-8


@dataclass(frozen=True)
class AdamState:
    """Running means of the gradients and of their squares, and how many steps are in them."""

    first: Tensor
    second: Tensor
    steps: int = 0

    @classmethod
    def zero(cls, affine: Tensor) -> "AdamState":
        """The state before the first step."""
        return cls(torch.zeros_like(affine), torch.zeros_like(affine))


def adam_step(
    affine: Tensor, gradient: Tensor, state: AdamState, lr: float, decay: float = 0.0
) -> tuple[Tensor, AdamState]:
    """One step of Adam with its usual constants, equal to ``torch.optim.Adam``.

    With ``decay`` it is equal to ``torch.optim.AdamW``: weights are decayed by lr times that.

    A gradient that is not finite makes the vector so, and every vector after it: it is enough to look at the
    last one.

    >>> affine = torch.zeros(2)
    >>> adam_step(affine, torch.tensor([5.0, -0.1]), AdamState.zero(affine), lr=0.1)[0]
    tensor([-0.1000,  0.1000])
    """
    gradient, steps = gradient.to(affine.dtype), state.steps + 1
    first = _DECAY[0] * state.first + (1 - _DECAY[0]) * gradient
    second = _DECAY[1] * state.second + (1 - _DECAY[1]) * gradient.square()
    size = second.sqrt() / math.sqrt(1 - _DECAY[1] ** steps) + _EPS
    adapted = (1 - lr * decay) * affine - lr / (1 - _DECAY[0] ** steps) * first / size
    return adapted, AdamState(first, second, steps)
