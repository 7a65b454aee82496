"""The parameters of a tower's norm layers as one flat vector, handed out to the layers for a call."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ramen.encoder.norm_layers import Norm


@dataclass(frozen=True)
class AffineSlice:
    """Where one parameter of one norm layer is in the flat vector."""

    layer: str
    kind: str  # "weight" or "bias"
    start: int
    stop: int
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The parameter's name in the wrapped module."""
        return f"{self.layer}.{self.kind}" if self.layer else self.kind


class FlatParameters:
    """Layer after layer, weight before bias; a parameter that two layers share is in it once.

    Args:
        layers: The original norm layers by name, in the order of the vector.
        norms: Their replacements, by the same names.
        device: Of the vector.
        dtype: Of the vector.

    Attributes:
        base: The original values ``(G,)``.
        layout: One ``AffineSlice`` per parameter.
        wiring: Which slice goes to which layer's parameter.
    """

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        norms: Mapping[str, Norm],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        layout: list[AffineSlice] = []
        values: list[Tensor] = []
        index: dict[int, int] = {}
        self.wiring: list[tuple[Norm, str, int]] = []
        for layer_name, layer in layers.items():
            for kind in ("weight", "bias"):
                value = getattr(layer, kind, None)
                if not isinstance(value, Tensor):
                    continue
                if id(value) not in index:
                    index[id(value)] = len(layout)
                    start = layout[-1].stop if layout else 0
                    stop = start + value.numel()
                    layout.append(AffineSlice(layer_name, kind, start, stop, tuple(value.shape)))
                    values.append(value.detach().to(device, dtype).flatten())
                self.wiring.append((norms[layer_name], kind, index[id(value)]))
        self.layout, self.base = tuple(layout), torch.cat(values)

    @contextmanager
    def assigned(self, affine: Tensor) -> Iterator[None]:
        """A block in which the layers have the parameters ``(G,)`` or ``(B, G)``; after it they have none."""
        pieces = affine.split([s.stop - s.start for s in self.layout], dim=-1)
        shaped = [p.reshape(*affine.shape[:-1], *s.shape) for p, s in zip(pieces, self.layout, strict=True)]
        try:
            for norm, kind, place in self.wiring:
                setattr(norm, kind, shaped[place])
            yield
        finally:
            for norm, kind, _ in self.wiring:
                setattr(norm, kind, None)
