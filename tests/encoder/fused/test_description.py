"""Which towers the fused passes cover, and what they refuse."""

from typing import Any

import pytest
import torch
from open_clip.transformer import VisionTransformer
from torch import Tensor, nn

from ramen.encoder.encoder import AffineEncoder
from tests.encoder.fused.small_towers import SIZE, tower


def convolutional() -> nn.Module:
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *pooled)


class Squashed(VisionTransformer):
    """Does something after what it has in common with all others."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).tanh()


class HalfGradient(VisionTransformer):
    """Its features are the same, its gradients are not."""

    def forward(self, x: Tensor) -> Tensor:
        features = super().forward(x)
        return features + 0.5 * (features.detach() - features)


def with_class(kind: type[nn.Module]) -> nn.Module:
    module = tower(torch.float32)
    module.__class__ = kind
    return module


@pytest.mark.parametrize(
    "make",
    [
        lambda: tower(torch.float32, attentional_pool=True),
        lambda: tower(torch.float32, qk_norm=True),
        lambda: tower(torch.float32, act_layer=nn.ReLU),
        lambda: with_class(Squashed),
        lambda: with_class(HalfGradient),
        convolutional,
    ],
)
def test_a_tower_that_is_not_covered_is_computed_by_its_module_and_says_why(make: Any) -> None:
    encoder = AffineEncoder(make())
    assert not encoder.fused
    assert encoder.plain_reason
    with pytest.raises(ValueError, match="fused"):
        AffineEncoder(make(), example=torch.zeros(1, 3, SIZE, SIZE), fused=True)


class _Adapted(nn.Linear):
    """A linear layer that adds something small, as low-rank adapters do."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 1e-4 * x.mean()


def with_hook(module: VisionTransformer) -> None:
    module.transformer.resblocks[1].mlp.c_fc.register_forward_hook(lambda _, inputs, output: output * 1.0001)


def with_other_linear_layer(module: VisionTransformer) -> None:
    module.transformer.resblocks[0].mlp.c_proj.__class__ = _Adapted


def with_parametrization(module: VisionTransformer) -> None:
    nn.utils.parametrizations.weight_norm(module.transformer.resblocks[2].mlp.c_fc)


def with_own_forward(module: VisionTransformer) -> None:
    own = module.transformer.forward
    module.transformer.forward = lambda x, **options: own(x, **options) * 1.0001


def with_shared_parameters(module: VisionTransformer) -> None:
    blocks = module.transformer.resblocks
    blocks[1].ln_1.weight = blocks[0].ln_1.weight


@pytest.mark.parametrize(
    "change",
    [with_hook, with_other_linear_layer, with_parametrization, with_own_forward, with_shared_parameters],
    ids=lambda f: f.__name__,
)
def test_changes_to_a_tower_are_not_left_out(change: Any) -> None:
    """Their effect is too small to be noticed when the passes are compared."""
    module = tower(torch.float32)
    change(module)
    encoder = AffineEncoder(module)
    assert not encoder.fused, encoder.plain_reason
