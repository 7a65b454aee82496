"""What follows the blocks of a vision transformer, as the fused passes compute it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.encoder.norm_layers import Norm
from ramen.kernels import norm
from ramen.kernels.norm import AffinePlace, NormResult


@dataclass(frozen=True)
class PoolingHead:
    """A norm, the class token or the mean of all patches, and a product.

    Attributes:
        norm_place: Of the norm.
        prefix: How many tokens stand before the patches.
        pools_class_token: Whether the features are those of the class token, or the mean of all patches.
        norm_after_pool: Whether the norm comes after the mean.
        proj: Applied to the pooled features, if there is one.
    """

    norm_place: AffinePlace
    prefix: int
    pools_class_token: bool
    norm_after_pool: bool
    proj: Tensor | None

    def forward(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, shift: Tensor | None, *, keep: bool
    ) -> tuple[Tensor, NormResult]:
        """See ``Head.forward``."""
        if self.norm_after_pool and not self.pools_class_token:
            total = x if delta is None else x + delta
            mean = total[:, self.prefix :].mean(1, keepdim=True)
            after = norm.forward(mean, None, affine, self.norm_place, shift)
            pooled = after.output[:, 0]
        else:
            after = norm.forward(x, delta, affine, self.norm_place, shift)
            pooled = after.output[:, 0] if self.pools_class_token else after.output[:, self.prefix :].mean(1)
        return (pooled if self.proj is None else pooled @ self.proj), after

    def backward(self, gradient: Tensor, saved: object, affine: Tensor, tokens: int, rows: Tensor) -> Tensor:
        """See ``Head.backward``."""
        assert isinstance(saved, NormResult)
        pooled = (gradient if self.proj is None else gradient @ self.proj.T)[:, None]
        if self.pools_class_token:
            return norm.backward(pooled, saved, affine, self.norm_place, None, rows)
        if self.norm_after_pool:
            pooled = norm.backward(pooled, saved, affine, self.norm_place, None, rows)
        patches = tokens - self.prefix
        spread = F.pad((pooled / patches).expand(-1, patches, -1), (0, 0, self.prefix, 0))
        if self.norm_after_pool:
            return spread
        return norm.backward(spread, saved, affine, self.norm_place, None, rows)


class ModuleHead:
    """The module's own layers, differentiated by autograd: a small part of a pass.

    Args:
        function: Features of the tokens ``(B, T, D)`` after the last block.
        norms: The norm layers that it uses, by name.
        places: Where they have their parameters in the flat vector; other names may be there too.
    """

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        norms: Mapping[str, Norm],
        places: Mapping[str, AffinePlace],
    ) -> None:
        self._function = function
        self._parameters = [
            (layer, kind, start, start + places[name].width)
            for name, layer in norms.items()
            for kind, start in (("weight", places[name].weight), ("bias", places[name].bias))
            if start is not None
        ]

    def forward(
        self, x: Tensor, delta: Tensor | None, affine: Tensor, shift: Tensor | None, *, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, Tensor, list[Tensor]] | None]:
        """See ``Head.forward``."""
        total = x if delta is None else x + delta
        total = total if shift is None else (total + shift).to(x.dtype)
        if not keep:
            return self._features(
                total, [affine[..., start:stop] for *_, start, stop in self._parameters]
            ), None
        with torch.enable_grad():
            total = total.detach().requires_grad_()
            rows = affine.detach().expand(len(x), -1)
            leaves = [rows[:, start:stop].requires_grad_() for *_, start, stop in self._parameters]
            features = self._features(total, leaves)
        return features.detach(), (features, total, leaves)

    def backward(self, gradient: Tensor, saved: object, affine: Tensor, tokens: int, rows: Tensor) -> Tensor:
        """See ``Head.backward``."""
        assert isinstance(saved, tuple)
        features, total, leaves = saved
        found = torch.autograd.grad(
            features, [total, *leaves], gradient.to(features.dtype), allow_unused=True
        )
        for (*_, start, stop), part in zip(self._parameters, found[1:], strict=True):
            rows[:, :, start:stop] = 0
            if part is not None:
                rows[:, 0, start:stop] = part
        stream = found[0]
        assert stream is not None
        return stream

    def _features(self, total: Tensor, parameters: list[Tensor]) -> Tensor:
        try:
            for (layer, kind, *_), part in zip(self._parameters, parameters, strict=True):
                setattr(layer, kind, part.unflatten(-1, layer.param_shape))
            return self._function(total)
        finally:
            for layer, *_ in self._parameters:
                layer.weight = layer.bias = None
