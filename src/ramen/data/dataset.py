"""A data set as the rest of the package sees it: classes, and domains of labelled images."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
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
