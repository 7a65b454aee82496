"""The drawings that the tiny CLIP is shown, as a data set: made on the spot, the same everywhere."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.data.dataset import Domain
from ramen.data.drawings.domains import DOMAINS, draw_domain
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.formats.reading import Reading, choose_domains
from ramen.data.formats.stored_images import check_numbers
from ramen.utils import checks


@dataclass(frozen=True)
class DrawnPictures:
    """The pictures of a domain, drawn when the first of them is asked for."""

    domain: str
    count: int
    seed: int

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        return draw_domain(self.domain, list(OBJECTS), self.count, self.seed)

    def read(self, numbers: Sequence[int]) -> Tensor:
        """A uint8 tensor ``(n, 3, 32, 32)``."""
        check_numbers(numbers, self.count)
        rows = self._pixels[np.asarray(numbers, dtype=np.int64)]
        return torch.from_numpy(rows).permute(0, 3, 1, 2).contiguous()


def read_drawings(
    root: Path | None = None,
    domains: Sequence[str] | None = None,
    pictures: int = 300,
    picture_seed: int = 0,
) -> Reading:
    """As many ``pictures`` of each domain, the objects in turn; ``picture_seed`` decides how they look."""
    count = checks.integer("pictures", pictures, 1)
    seed = checks.integer("picture_seed", picture_seed, 0)
    identity = {"pictures": count, "picture_seed": seed}
    reading = Reading("tiny", Path(), tuple(OBJECTS), identity=identity)
    labels = np.arange(count, dtype=np.int64) % len(OBJECTS)
    for name in choose_domains(domains, DOMAINS, DOMAINS):
        reading.domains.append(Domain(name, labels, DrawnPictures(name, count, seed)))
    return reading
