"""What a data set is to the rest: classes, and domains that hold labelled pictures."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Labels = NDArray[np.int64]


class Pictures(Protocol):
    """Pictures by number, in a form that ``ZeroShotClassifier.preprocess`` takes."""

    def read(self, numbers: Sequence[int]) -> Tensor | list[Path]:
        """A uint8 tensor ``(n, 3, H, W)``, or the paths of the files."""


@dataclass(frozen=True)
class Domain:
    """Pictures that were made alike: one corruption, one style, one camera."""

    name: str
    labels: Labels  # (n,), numbers of classes
    pictures: Pictures

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Dataset:
    """Domains with the same classes."""

    name: str  # as the command line has it
    classes: tuple[str, ...]  # as prompts name them
    domains: tuple[Domain, ...]
    identity: Mapping[str, Any] = field(default_factory=dict)  # what a result must tell to be repeated

    def __len__(self) -> int:
        return sum(map(len, self.domains))
