"""Which norm layers a method trains, if it leaves the top of the encoder as it is."""

import re

import torch
from torch import Tensor

from ramen.encoder.affine_encoder import AffineEncoder

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
