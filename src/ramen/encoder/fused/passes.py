"""What fused passes of an encoder are, whatever its kind."""

from typing import Any, Protocol

from torch import Tensor


class FusedPasses(Protocol):
    """The fused passes of one encoder."""

    def is_prepared(self, images: Tensor) -> bool:
        """Whether ``images`` is a result of ``prepare``."""

    def prepare(self, images: Tensor) -> Tensor:
        """The part of a pass that no norm parameter changes."""

    def forward(self, prepared: Tensor, affine: Tensor, *, keep: bool) -> tuple[Tensor, Any]:
        """Features ``(B, d)`` of a result of ``prepare``; with ``keep`` also what ``backward`` needs."""

    def backward(self, gradient: Tensor, saved: Any) -> Tensor:
        """Each image's gradient of the norm parameters ``(B, G)``, given that of its features ``(B, d)``."""
