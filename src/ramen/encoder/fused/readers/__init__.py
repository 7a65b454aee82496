"""Readers of towers: one per library, each makes the description that the fused passes compute from.

Any part that the fused passes would compute differently, or not at all, is refused by name, so that nothing
is left out without a word.
"""

from collections.abc import Mapping

from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from ramen.encoder.fused.description import NotCoveredError
from ramen.encoder.fused.passes import FusedPasses
from ramen.encoder.fused.readers import open_clip, residual, timm, transformers
from ramen.encoder.fused.readers.parts import TowerNorms
from ramen.encoder.fused.residual import FusedResidual
from ramen.encoder.fused.transformer import FusedTransformer
from ramen.encoder.norm_layers import Norm
from ramen.kernels.norm import AffinePlace

_TRANSFORMERS = (open_clip.read, timm.read, transformers.read)


def read_passes(
    module: nn.Module, norms: Mapping[str, Norm], places: Mapping[str, AffinePlace]
) -> FusedPasses:
    """The fused passes of a tower.

    Args:
        module: Its norm layers are replaced.
        norms: The replacements, by name.
        places: Where each of them, by name, has its parameters in the flat vector.

    Raises:
        NotCoveredError: The tower has a part that the fused passes do not cover.
    """
    for name, part in module.named_modules():
        # the fused passes would not call them
        if part._forward_hooks or part._forward_pre_hooks or "forward" in vars(part) or is_parametrized(part):
            raise NotCoveredError(f"its part {name!r} has hooks, a parametrization or a forward of its own")
    tower_norms = TowerNorms(norms, places)
    passes = _read(module, tower_norms)
    tower_norms.require_all_used()
    return passes


def _read(module: nn.Module, norms: TowerNorms) -> FusedPasses:
    for read in _TRANSFORMERS:
        if (tower := read(module, norms)) is not None:
            return FusedTransformer(tower)
    if (network := residual.read(module, norms)) is not None:
        return FusedResidual(network)
    raise NotCoveredError(
        f"it is a {type(module).__name__}; covered are transformers of open_clip, timm and transformers, and "
        "ResNets of open_clip, torchvision and timm"
    )
