"""Norm parameters that a stream moves, the optimizers that move them, and which layers are trained.

All that an optimizer keeps is declared state of the method, and no step asks the device for a value: steps
can be recorded, saved and resumed.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.encoder.encoder import AffineEncoder
from ramen.methods._method import Method
from ramen.methods._registry import OPTIMIZERS
from ramen.utils import checks
from ramen.utils.numerics import finite_or_zero

_DECAY = 0.9, 0.999  # of Adam's two running means
_EPS = 1e-8  # likewise


class OnlineWeights:
    """The norm parameters of a method, a state of it, and the steps of an optimizer that move it.

    Args:
        method: What the weights and the optimizer's state are declared on.
        optimizer: "sign" moves every parameter by ``lr`` against the sign of its gradient, "sgd" along the
            gradient, "adam" and "adamw" as ``torch.optim`` does.
        lr: Step size.
        momentum: Of "sgd"; the others do not use it.
        nesterov: Nesterov's form of that momentum.
        weight_decay: Added to the gradient as a multiple of the weights; "adamw" shrinks the weights instead.
        eps: Of "adam" and "adamw".
        trained: Ones for the parameters that are trained and zeros for the others; all are if not given.
        start: Where the weights start; the pretrained norm parameters if not given.
        prefix: Of the names of the declared states, for a method with several sets of weights.
        name: Of the state that holds the weights.
    """

    def __init__(
        self,
        method: Method,
        optimizer: str,
        lr: float,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        eps: float = _EPS,
        trained: Tensor | None = None,
        start: Tensor | None = None,
        prefix: str = "",
        name: str = "affine",
    ) -> None:
        self.optimizer = checks.choice("optimizer", optimizer, OPTIMIZERS)
        self.lr = checks.number("lr", lr, 0)
        self.momentum = checks.number("momentum", momentum, 0)
        if self.momentum >= 1:
            raise ValueError(f"momentum must be at least 0 and below 1, got {momentum}")
        self.nesterov = nesterov
        self.weight_decay = checks.number("weight_decay", weight_decay, 0)
        self.eps = eps
        self._method, self._trained, self._prefix, self._name = method, trained, prefix, name
        self._start = method.classifier.encoder.base if start is None else start
        self._declare(name, self._start)
        zeros = torch.zeros_like(self._start)
        if self.momentum and optimizer == "sgd":
            self._declare("velocity", zeros)
        if optimizer in ("adam", "adamw"):
            self._declare("first", zeros)
            self._declare("second", zeros, minimum=0)
            self._declare("steps", torch.zeros((), dtype=torch.int64, device=zeros.device), minimum=0)
        self._moved: Callable[[Tensor, Tensor, Tensor], Tensor] = getattr(self, f"_{optimizer.rstrip('w')}")

    @property
    def affine(self) -> Tensor:
        """The weights now."""
        return self._get(self._name)

    @affine.setter
    def affine(self, weights: Tensor) -> None:
        self._set(self._name, weights)

    def step(self, gradient: Tensor, taken: Tensor | None = None) -> None:
        """Move the weights, and what the optimizer keeps, against a gradient ``(G,)``.

        Args:
            gradient: A coordinate that is not finite counts as zero.
            taken: A boolean: if it is false, nothing changes, as if there had been no step.
        """
        before = self.affine
        taken = torch.ones((), dtype=torch.bool, device=before.device) if taken is None else taken
        gradient = finite_or_zero(gradient).to(before.dtype)
        weights = before
        if self.optimizer == "adamw":
            weights = weights * (1 - self.lr * self.weight_decay)
        elif self.weight_decay:
            gradient = gradient + self.weight_decay * weights
        if self._trained is not None:
            gradient = gradient * self._trained
        moved = self._moved(weights, gradient, taken)
        if self._trained is not None:
            moved = torch.where(self._trained > 0, moved, before)
        self.affine = torch.where(taken, moved, before)

    def restart(self, taken: Tensor) -> None:
        """Back to the start, with a fresh optimizer, if ``taken``."""
        self.affine = torch.where(taken, self._start, self.affine)
        for name in ("velocity", "first", "second", "steps"):
            if hasattr(self._method, self._prefix + name):
                value = self._get(name)
                self._set(name, torch.where(taken, torch.zeros_like(value), value))

    # -- one step of each optimizer -----------------------------------------------------------------

    def _sign(self, weights: Tensor, gradient: Tensor, taken: Tensor) -> Tensor:
        return torch.add(weights, gradient.sign(), alpha=-self.lr)

    def _sgd(self, weights: Tensor, gradient: Tensor, taken: Tensor) -> Tensor:
        if not self.momentum:
            return torch.add(weights, gradient, alpha=-self.lr)
        # The first velocity is the gradient itself, as the velocity before it is zero.
        velocity = self._kept("velocity", self.momentum * self._get("velocity") + gradient, taken)
        direction = gradient + self.momentum * velocity if self.nesterov else velocity
        return torch.add(weights, direction, alpha=-self.lr)

    def _adam(self, weights: Tensor, gradient: Tensor, taken: Tensor) -> Tensor:
        steps = self._kept("steps", self._get("steps") + 1, taken)
        first = self._kept("first", torch.lerp(gradient, self._get("first"), _DECAY[0]), taken)
        second = self._kept("second", torch.lerp(gradient.square(), self._get("second"), _DECAY[1]), taken)
        # 1 - decay^steps, in fp64: the host does not know the number of steps.
        exact = steps.to(torch.float64)
        missing = [-torch.expm1(exact * math.log(decay)).to(weights.dtype) for decay in _DECAY]
        size = second.sqrt() / missing[1].sqrt() + self.eps
        return weights - self.lr / missing[0] * first / size

    # -- states of the method -----------------------------------------------------------------------

    def _declare(self, name: str, default: Tensor, *, minimum: float | None = None) -> None:
        self._method.add_state(self._prefix + name, default, minimum=minimum)

    def _get(self, name: str) -> Tensor:
        value: Tensor = getattr(self._method, self._prefix + name)
        return value

    def _set(self, name: str, value: Tensor) -> None:
        setattr(self._method, self._prefix + name, value)

    def _kept(self, name: str, value: Tensor, taken: Tensor) -> Tensor:
        """``value``, which the state of that name takes over if the step is taken."""
        self._set(name, torch.where(taken, value, self._get(name)))
        return value


# -- for steps that start afresh with each batch ----------------------------------------------------------


def sign_step(affine: Tensor, gradient: Tensor, lr: float | Tensor, weights: Tensor | None = None) -> Tensor:
    """One SignSGD step; a coordinate whose gradient is not finite stays where it is.

    With ``weights``, one per coordinate, steps are ``lr`` times as long as these; a tensor ``lr`` has a row
    per gradient.
    """
    direction = torch.sign(finite_or_zero(gradient)).to(affine.dtype)
    if isinstance(lr, Tensor):
        sizes = lr.to(affine.dtype)
        return torch.addcmul(affine, direction, sizes if weights is None else sizes * weights, value=-1)
    if weights is not None:
        return torch.addcmul(affine, direction, weights, value=-lr)
    return torch.add(affine, direction, alpha=-lr)


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


# -- which layers are trained -----------------------------------------------------------------------------


FROZEN = ("none", "top")
_TOP_BLOCKS = 3


def trained_part(encoder: AffineEncoder, frozen: str) -> Tensor:
    """A vector ``(G,)`` of ones where norm parameters are trained and zeros where they are ``frozen``."""
    trained = torch.ones_like(encoder.base)
    if frozen == "none":
        return trained
    top = _top_layers([piece.layer for piece in encoder.layout])
    for piece in encoder.layout:
        if piece.layer in top:
            trained[piece.start : piece.stop] = 0
    return trained


def _top_layers(layers: list[str]) -> set[str]:
    """The norm layers of a ResNet's last stage, or of a transformer's last blocks and what follows them."""
    stages = {layer: match for layer in layers if (match := re.match(r"(?:.*\.)?layer(\d)\.", layer))}
    if stages:
        last = max(int(match[1]) for match in stages.values())
        return {layer for layer, match in stages.items() if int(match[1]) == last}
    pattern = r"(.*?(?:blocks|layers|layer))\.(\d+)\.(.*)"
    blocks = {layer: match for layer in layers if (match := re.match(pattern, layer))}
    nested = any(re.match(pattern, match[3]) for match in blocks.values())
    if len({match[1] for match in blocks.values()}) != 1 or nested:
        raise ValueError(
            "frozen='top' must find the blocks of a transformer ('...blocks.N.', '...layers.N.') or the "
            f"stages of a ResNet ('layerN.') by the names of norm layers, got {', '.join(layers[:4])}, ...; "
            "use frozen='none'"
        )
    numbers = sorted({int(match[2]) for match in blocks.values()})
    top = {layer for layer, match in blocks.items() if int(match[2]) in numbers[-_TOP_BLOCKS:]}
    behind = layers[max(layers.index(layer) for layer in blocks) + 1 :]
    return top | {layer for layer in behind if layer not in blocks}
