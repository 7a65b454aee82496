"""What a method needs of a memory: forget, save, restore, know its size, and whether a graph may hold it."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor


class StreamMemory(ABC):
    """What a method remembers of a stream, beyond tensors of a fixed size.

    A method registers it with ``Method.add_memory``, which then clears, saves, restores and counts it.
    """

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Copies of the whole content."""

    @abstractmethod
    def check(self, state: Mapping[str, Tensor]) -> None:
        """Raise ValueError unless ``state`` could be the content of this memory."""

    @abstractmethod
    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state`` returned; a ValueError leaves the memory unchanged."""

    @abstractmethod
    def most_bytes(self) -> int:
        """The most that it will ever take."""

    # -- for recorded steps -------------------------------------------------------------------------

    def recordable_on(self, device: torch.device) -> bool:
        """Whether a CUDA graph on ``device`` may hold all that a step does with it, ``admit`` excepted."""
        return False

    def recording_key(self) -> Hashable:
        """A recording is valid only as long as this stays equal: it changes if tensors are replaced."""
        return None

    def admit(self, batch: int) -> range | None:
        """The host's share of storing a batch, before a step.

        Returns:
            The stream numbers of its images, if the memory counts them.
        """
        return None

    def announce(  # noqa: B027 - most memories store neither
        self, tags: Tensor | None, numbers: Tensor | None = None
    ) -> None:
        """The caller's tags for the coming batch, to be stored with its entries.

        Args:
            tags: If there are any.
            numbers: Its stream numbers, as ``admit`` returned them, if they are on the device already.
        """

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """A block that leaves no trace, provided that nothing offered in it may be stored.

        Before it, the memory allocates all that it can ever need.
        """
        yield


def expect(name: str, tensor: object, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless something saved is a tensor of this type and shape."""
    if not isinstance(tensor, Tensor):
        raise ValueError(f"{name} in the state must be a tensor, got {type(tensor).__name__}")
    if tensor.dtype != dtype or tuple(tensor.shape) != shape:
        raise ValueError(
            f"{name} in the state must be {dtype} of shape {shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )


def expect_finite(name: str, tensor: Tensor) -> None:
    """Raise ValueError if a saved tensor holds a number that is not finite."""
    if tensor.is_floating_point() and not tensor.isfinite().all():
        raise ValueError(f"{name} in the state must be finite, got numbers that are not")


def expect_at_least(name: str, tensor: Tensor, minimum: float) -> None:
    """Raise ValueError if a saved tensor holds a number below ``minimum``."""
    if tensor.numel() and (tensor < minimum).any():
        raise ValueError(f"{name} in the state must be at least {minimum:g}, got {tensor.min().item():g}")


def expect_names(owner: str, state: Mapping[str, Tensor], names: set[str]) -> None:
    """Raise ValueError unless a saved state has these parts and no others."""
    if state.keys() != names:
        raise ValueError(f"{owner} must hold {', '.join(sorted(names)) or 'nothing'}, got {sorted(state)}")
