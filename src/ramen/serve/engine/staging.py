"""Pinned memory through which batches reach a GPU.

It is made once: to pin memory takes long, and the GPU stands still meanwhile.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_BUFFERS = 3  # a batch that is filled, one that is copied, and one to spare


@dataclass(frozen=True)
class _Buffer:
    """Memory for a batch, and when the GPU has copied the last one."""

    memory: Tensor
    copied: torch.cuda.Event | None


class Staging:
    """Joins batches of pixels in host memory, and copies them to a device in one piece.

    Each copy to a GPU takes its time, however small it is. One thread uses it.

    Args:
        shape: Of the largest batch.
        device: The device; on a CPU nothing is pinned.
    """

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self._device = device
        is_gpu = device.type == "cuda"
        self._buffers = deque(
            _Buffer(
                torch.empty(shape, dtype=torch.uint8, device="cpu", pin_memory=is_gpu),
                torch.cuda.Event() if is_gpu else None,
            )
            for _ in range(_BUFFERS)
        )

    def copy(self, batches: Sequence[Tensor]) -> Tensor:
        """The images of all batches, on the device; on a GPU as soon as the current stream gets there."""
        count = sum(map(len, batches))
        buffer = self._buffers[0]
        if count > len(buffer.memory):  # nobody sends so many
            return torch.cat(list(batches)).to(self._device)
        self._buffers.rotate(-1)
        if buffer.copied is not None:
            buffer.copied.synchronize()
        whole = buffer.memory[:count]
        torch.cat(list(batches), out=whole)
        found = whole.to(self._device, non_blocking=True, copy=True)
        if buffer.copied is not None:
            buffer.copied.record(torch.cuda.current_stream(self._device))
        return found
