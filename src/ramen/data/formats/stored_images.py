"""Where a domain's pictures lie: rows of an array file, or image files."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def open_array(path: Path) -> NDArray[Any]:
    """Map an ``.npy`` file into memory; the error of a damaged one names it."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}") from None
    except (ValueError, OSError, EOFError, SyntaxError) as error:
        raise ValueError(f"{path} cannot be read as an array: {error}") from error


@dataclass(frozen=True)
class ArrayPictures:
    """``count`` rows from ``start`` on of an array file ``(rows, H, W, 3)``, read when they are asked for."""

    path: Path
    start: int
    count: int

    @cached_property
    def _rows(self) -> NDArray[np.uint8]:
        return open_array(self.path)[self.start : self.start + self.count]

    def __getstate__(self) -> dict[str, Any]:
        # another process opens the file itself: the mapped array would travel with its content
        return {"path": self.path, "start": self.start, "count": self.count}

    def read(self, numbers: Sequence[int]) -> Tensor:
        """A uint8 tensor ``(n, 3, H, W)``."""
        check_numbers(numbers, self.count)
        rows = np.asarray(self._rows[np.asarray(numbers, dtype=np.int64)])
        return torch.from_numpy(rows).permute(0, 3, 1, 2).contiguous()


@dataclass(frozen=True)
class FilePictures:
    """Image files, each by its path below one folder."""

    folder: Path
    names: tuple[str, ...]

    def read(self, numbers: Sequence[int]) -> list[Path]:
        """The paths of the files."""
        check_numbers(numbers, len(self.names))
        return [self.folder / self.names[number] for number in numbers]


def check_numbers(numbers: Sequence[int], count: int) -> None:
    """A negative number would silently be a picture from the end."""
    for number in numbers:
        if not 0 <= number < count:
            raise IndexError(f"numbers must be between 0 and {count - 1}, got {number}")
