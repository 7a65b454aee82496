"""Prompts as a function of a text tower's norm parameters, with gradients: for methods that adapt them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from ramen.encoder.flat_parameters import FlatParameters
from ramen.encoder.module_facts import weight_dtype
from ramen.encoder.norm_layers import find_replacement, replace_norms


class AffinePrompts(Protocol):
    """Some texts, as a function of one flat vector of the norm parameters of what embeds them."""

    @property
    def base(self) -> Tensor:
        """The pretrained norm parameters ``(G,)``."""

    def __call__(self, affine: Tensor) -> Tensor:
        """Unit embeddings ``(texts, d)`` with these norm parameters ``(G,)``, to which gradients go back."""


@runtime_checkable
class AffineTextEncoder(Protocol):
    """A text encoder whose norm parameters can be adapted."""

    def __call__(self, texts: list[str]) -> Tensor:
        """Embeddings ``(texts, d)``."""

    def affine_prompts(self, texts: Sequence[str], at_once: int) -> AffinePrompts:
        """These texts as a function of norm parameters; ``at_once`` of them are embedded together."""


class TowerPrompts:
    """Texts for a text tower of which every norm layer that takes part is adapted.

    The tower is not changed: this works on a private copy of its structure, which shares all weights. One
    object serves one thread at a time.

    Args:
        model: What has the text tower; other towers in it do not matter.
        inputs: What the tower takes, by name, one row per text.
        embed: Of the model and these inputs: the embeddings, of any length.
        at_once: The most texts that are embedded together. If there are more, each part is computed once
            more when gradients are, instead of being kept for them.

    Attributes:
        base: The pretrained norm parameters ``(G,)``, fp32 (fp64 for a double tower).
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: Mapping[str, Tensor],
        embed: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
        at_once: int,
    ) -> None:
        self._embed, self._inputs, self._at_once = embed, dict(inputs), at_once
        device, dtype = next(model.parameters()).device, weight_dtype(model)
        wide = torch.promote_types(dtype, torch.float32)
        found = {name: m for name, m in model.named_modules() if find_replacement(m) is not None}
        if not found:
            raise ValueError(f"{type(model).__name__} has no norm layer to adapt")
        self._model, norms = replace_norms(model, found, device, dtype)

        # Norm layers that no text passes, such as those of an image tower, are not part of the vector.
        used: set[int] = set()
        hooks = [norm.register_forward_hook(lambda layer, *_: used.add(id(layer))) for norm in norms.values()]
        self._flat = FlatParameters(found, norms, device, wide)
        with torch.no_grad():
            self._part(self._flat.base, *(rows[:1] for rows in self._inputs.values()))
        for hook in hooks:
            hook.remove()
        found = {name: layer for name, layer in found.items() if id(norms[name]) in used}
        self._flat = FlatParameters(found, norms, device, wide)
        self.base: Tensor = self._flat.base

    def __call__(self, affine: Tensor) -> Tensor:
        """Unit embeddings ``(texts, d)`` with these norm parameters ``(G,)``."""
        parts = list(zip(*(rows.split(self._at_once) for rows in self._inputs.values()), strict=True))
        if len(parts) == 1 or not (torch.is_grad_enabled() and affine.requires_grad):
            return torch.cat([self._part(affine, *part) for part in parts])
        return torch.cat([checkpoint(self._part, affine, *part, use_reentrant=False) for part in parts])

    def _part(self, affine: Tensor, *rows: Tensor) -> Tensor:
        inputs = dict(zip(self._inputs, rows, strict=True))
        with self._flat.assigned(affine.to(self._flat.base)):
            embeddings = self._embed(self._model, inputs)
        return F.normalize(embeddings.to(self._flat.base.dtype), dim=-1)
