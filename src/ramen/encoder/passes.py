"""The module's own forward pass, with norm parameters that a call hands out to its layers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from ramen.encoder.norms import BatchNorm, Norm, replace_norms, with_parameters
from ramen.encoder.probe import pooled
from ramen.encoder.statistics import LayerStatistics, Statistics
from ramen.kernels.norm import AffinePlace

# Of a norm layer's name and the means of its input, one row per image ``(B, *shape)``: what is added to its
# norm parameters, weight before bias, one row per image ``(B, size)``; None for nothing.
Router = Callable[[str, Tensor], Tensor | None]


class OwnPasses:
    """A private copy of a module whose norm layers take their parameters from a flat vector.

    Those in ``adapted`` are replaced, by name; all other weights are of ``dtype``.
    """

    def __init__(
        self, module: nn.Module, adapted: Mapping[str, nn.Module], device: torch.device, dtype: torch.dtype
    ) -> None:
        self.module, self.norms = replace_norms(module, adapted, device, dtype)
        self._compiled: Callable[[Tensor], object] | None = None
        exact = torch.promote_types(dtype, torch.float32)
        self._flat = FlatParameters(adapted, self.norms, device, exact)
        self.layout: tuple[AffineSlice, ...] = self._flat.layout
        self.base: Tensor = self._flat.base
        self._batch_norms = [norm for norm in self.norms.values() if isinstance(norm, BatchNorm)]
        running = [torch.stack([norm.running_mean, norm.running_var]) for norm in self._batch_norms]
        self.base_statistics = torch.cat([self.base.new_empty(2, 0), *(r.to(self.base) for r in running)], 1)

    def __call__(
        self,
        images: Tensor,
        affine: Tensor,
        statistics: Statistics | None = None,
        router: Router | None = None,
        *,
        may_be_compiled: bool = True,
    ) -> Tensor:
        """The output for images in the module's type, on its device; see ``AffineEncoder``."""
        module: Callable[[Tensor], object] = self.module
        if self._compiled is not None and may_be_compiled and statistics is None and router is None:
            module = self._compiled  # with statistics or a router every call would be compiled again
        try:
            if router is not None:
                for name, norm in self.norms.items():
                    norm.router = partial(router, name)
            if statistics is not None:
                self._hand_out(statistics, len(images))
            with self._flat.assigned(affine):
                features = pooled(module(images))
            if statistics is not None:
                statistics.mixed = self._collected()
            return features
        finally:
            for norm in self.norms.values():
                norm.statistics = norm.router = None

    def arrange_for_gpu(self) -> None:
        """Put the channels of a pixel next to each other, on a GPU: its convolutions are made for that."""
        if self.base.device.type == "cuda":
            for layer in self.module.modules():
                if isinstance(layer, nn.Conv2d):
                    layer.weight.data = layer.weight.data.contiguous(memory_format=torch.channels_last)

    def compile(self) -> None:
        self._compiled = torch.compile(self.module)

    @property
    def compiled(self) -> bool:
        return self._compiled is not None

    def places(self) -> dict[str, AffinePlace] | None:
        """Where each norm layer has its parameters in the flat vector; None if some share theirs."""
        if len(self._flat.wiring) > len(self.layout):
            return None
        starts = {(piece.layer, piece.kind): piece.start for piece in self.layout}
        return {
            name: AffinePlace(
                starts.get((name, "weight")), starts.get((name, "bias")), norm.param_shape.numel(), norm.eps
            )
            for name, norm in self.norms.items()
        }

    def frozen(self, affine: Tensor) -> nn.Module:
        names = {id(norm): name for name, norm in self.norms.items()}
        values = {
            (names[id(norm)], kind): affine[piece.start : piece.stop].detach().view(piece.shape)
            for norm, kind, piece in ((norm, kind, self.layout[i]) for norm, kind, i in self._flat.wiring)
        }
        return with_parameters(self.module, values)

    def _hand_out(self, statistics: Statistics, batch: int) -> None:
        """Give every BatchNorm layer its part of what the call counts and stores."""
        base, counted = self.base_statistics, statistics.counted
        counted = base.new_ones(batch, dtype=torch.bool) if counted is None else counted.to(base.device)
        stored = base if statistics.stored is None else statistics.stored.to(base)
        parts = stored.split([len(norm.running_mean) for norm in self._batch_norms], dim=1)
        for norm, (mean, var) in zip(self._batch_norms, parts, strict=True):
            norm.statistics = LayerStatistics(mean, var, statistics.share, counted)

    def _collected(self) -> Tensor:
        parts = [norm.statistics for norm in self._batch_norms]
        return torch.cat([torch.stack([part.mean, part.var]) for part in parts if part is not None], dim=1)


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
        return f"{self.layer}.{self.kind}" if self.layer else self.kind


class FlatParameters:
    """Layer after layer, weight before bias; a parameter that two layers share is in it once.

    ``wiring`` says which slice of ``base`` goes to which layer's parameter.
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
