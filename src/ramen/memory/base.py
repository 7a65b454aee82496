"""What a method needs of a memory: forget, save, restore, know its size, and whether a graph may hold it."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from ramen.utils.numerics import all_finite

SHARES = "a group of processes saved it as shares: load it and save it once in one process with 0.2"


@dataclass(frozen=True)
class Patch:
    """New values of some rows of tensors in a memory's state."""

    places: Tensor  # the rows, ``(n,)``
    values: dict[str, Tensor]  # by the name of a tensor, ``(n, ...)`` each
    length: int  # how many rows these tensors have now
    fill: int  # what rows hold that no patch has named so far


class StreamMemory(ABC):
    """What a method remembers of a stream, beyond tensors of a fixed size.

    A method registers it with ``Method.add_memory``, which then clears, saves, restores and counts it.

    Attributes:
        seen: How many images have been offered so far, if the memory counts them.
    """

    seen = 0

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

    def allocated_bytes(self) -> int:
        """What it takes now; unless a memory says otherwise, it has all that it will ever take."""
        return self.most_bytes()

    def fill(self) -> tuple[int, int] | None:
        """How many entries it holds, and how many it can hold; None if it does not count."""
        return None

    # -- for states that are saved bit by bit -------------------------------------------------------

    def changed_rows(self, since: int) -> Tensor | None:
        """The rows that were written when the stream had ``since`` images or more, on the CPU.

        None if the memory does not know: then only its whole state will do.
        """
        return None

    def patches(self, rows: Tensor) -> list[Patch]:
        """What of the state belongs to these rows, as copies on the CPU.

        The patches of all rows, on top of ``unpatched``, are the whole state.
        """
        raise NotImplementedError(f"{type(self).__name__} does not know which rows changed")

    def unpatched(self) -> dict[str, Tensor]:
        """Copies of the parts of the state that no patch holds."""
        return self.state()

    def salvage(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A sound state of what is left in one that lacks some patches; the same if nothing can be done."""
        return dict(state)

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

        Its stream numbers too, as ``admit`` returned them, if they are on the device already.
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
    if tensor.is_floating_point() and not all_finite(tensor):
        raise ValueError(f"{name} in the state must be finite, got numbers that are not")


def expect_at_least(name: str, tensor: Tensor, minimum: float) -> None:
    """Raise ValueError if a saved tensor holds a number below ``minimum``."""
    if tensor.numel() and (tensor < minimum).any():
        raise ValueError(f"{name} in the state must be at least {minimum:g}, got {tensor.min().item():g}")


def expect_names(owner: str, state: Mapping[str, Tensor], names: set[str]) -> None:
    """Raise ValueError unless a saved state has these parts and no others."""
    if state.keys() != names:
        raise ValueError(f"{owner} must hold {', '.join(sorted(names)) or 'nothing'}, got {sorted(state)}")
