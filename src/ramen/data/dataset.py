"""A data set as the rest of the package sees it: classes, and domains of labelled images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Labels = NDArray[np.int64]


class ImageSource(Protocol):
    """Images by index, in a form that ``ZeroShotClassifier.preprocess`` takes."""

    def read(self, indices: Sequence[int]) -> "Tensor | list[Path]":
        """A uint8 tensor ``(n, 3, H, W)``, or the paths of the files."""


@runtime_checkable
class PreparedSource(Protocol):
    """Images that must be made before the first can be read."""

    @property
    def waiting(self) -> int:
        """How many images are still to be made."""

    def prepare(self) -> None:
        """Make them now."""


@dataclass(frozen=True)
class Domain:
    """Images that were made in the same way: one corruption, one style, one camera."""

    name: str
    labels: Labels  # (n,), indices of classes
    images: ImageSource

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Domains that share the same classes."""

    name: str  # as on the command line
    classes: tuple[str, ...]  # as used in prompts
    domains: tuple[Domain, ...]
    identity: Mapping[str, Any] = field(default_factory=dict)  # what a result records to be reproducible

    def __len__(self) -> int:
        return sum(map(len, self.domains))


@dataclass(frozen=True)
class ArrayFileImages:
    """``count`` rows, from row ``start``, of an array file ``(rows, H, W, 3)``; read when requested."""

    path: Path
    start: int
    count: int

    @cached_property
    def _rows(self) -> NDArray[np.uint8]:
        return open_array(self.path)[self.start : self.start + self.count]

    def __getstate__(self) -> dict[str, Any]:
        # Another process opens the file itself: the mapped array would be sent with its content.
        return {"path": self.path, "start": self.start, "count": self.count}

    def read(self, indices: Sequence[int]) -> "Tensor":
        """A uint8 tensor ``(n, 3, H, W)``."""
        return read_rows(self._rows, indices)


@dataclass(frozen=True)
class LoadedImages:
    """Images in memory, ``(n, H, W, 3)``."""

    pixels: NDArray[np.uint8]

    def read(self, indices: Sequence[int]) -> "Tensor":
        """A uint8 tensor ``(n, 3, H, W)``."""
        return read_rows(self.pixels, indices)


@dataclass(frozen=True)
class ImageFiles:
    """Image files, by their paths relative to one folder."""

    folder: Path
    names: tuple[str, ...]

    def read(self, indices: Sequence[int]) -> list[Path]:
        """The paths of the files."""
        check_indices(indices, len(self.names))
        return [self.folder / self.names[index] for index in indices]


def open_array(path: Path) -> NDArray[Any]:
    """Memory-map an ``.npy`` file; if it is damaged, the error names it."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an array: {error}") from error


def check_indices(indices: Sequence[int], count: int) -> None:
    """Raise IndexError for an index out of range; a negative one would silently count from the end."""
    for index in indices:
        if not 0 <= index < count:
            raise IndexError(f"indices must be between 0 and {count - 1}, got {index}")


def read_rows(array: NDArray[np.uint8], indices: Sequence[int]) -> "Tensor":
    """Rows of ``array`` ``(rows, H, W, 3)`` as a tensor ``(n, 3, H, W)``."""
    import torch

    check_indices(indices, len(array))
    rows = np.asarray(array[np.asarray(indices, dtype=np.int64)])
    return torch.from_numpy(rows).permute(0, 3, 1, 2).contiguous()
