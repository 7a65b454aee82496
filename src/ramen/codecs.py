"""How a gradient is stored.

``encode`` turns rows of gradients into rows of stored numbers and one scale a row; ``stored * scale`` is the
gradient again. The scale keeps every row inside the range of its type, whatever the size of the gradients:
fp16 alone would flush those of confident images to zero and overflow for others.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Codec:
    """A storage format; ``dtype`` holds the gradients, ``embedding_dtype`` the embeddings beside them."""

    name: str
    dtype: torch.dtype
    embedding_dtype: torch.dtype

    def encode(self, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Stored rows ``(n, G)`` and their fp32 scales ``(n,)``."""
        if self.dtype == torch.float32:
            return gradients.to(self.dtype), gradients.new_ones(len(gradients), dtype=torch.float32)
        largest = gradients.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny)
        return (gradients / largest[:, None]).to(self.dtype), largest.float()


CODECS = {
    "fp32": Codec("fp32", torch.float32, torch.float32),
    "fp16": Codec("fp16", torch.float16, torch.float16),
}
