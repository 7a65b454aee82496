"""The data set ``tiny``: drawings for the tiny CLIP, made when needed, the same on every machine."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ramen.data.dataset import Domain
from ramen.data.drawings.domains import CLEAN, DOMAINS, EXTRA_DOMAINS, draw_domain
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.formats.reading import Reading, choose_domains
from ramen.data.formats.stored_images import check_indices, rows_as_tensor
from ramen.utils import checks

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class LazyDrawings:
    """The images of a domain; all are drawn when the first is requested."""

    domain: str
    count: int
    seed: int

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        return draw_domain(self.domain, list(OBJECTS), self.count, self.seed)

    @property
    def waiting(self) -> int:
        """How many images are still to be drawn."""
        return 0 if "_pixels" in self.__dict__ else self.count

    def prepare(self) -> None:
        """Draw them now, so that no reader waits for it."""
        _ = self._pixels

    def read(self, indices: Sequence[int]) -> "Tensor":
        """A uint8 tensor ``(n, 3, 32, 32)``."""
        check_indices(indices, self.count)
        return rows_as_tensor(self._pixels, indices)


def read_tiny(
    root: Path | None = None,
    domains: Sequence[str] | None = None,
    pictures: int = 300,
    picture_seed: int = 0,
) -> Reading:
    """``pictures`` images per domain, the objects in turn; ``picture_seed`` determines how they look.

    The domain ``clean`` and the four extra corruptions are left out unless they are requested by name.
    """
    # The names of these two options are part of the identity of results.
    count = checks.integer("pictures", pictures, 1)
    seed = checks.integer("picture_seed", picture_seed, 0)
    identity = {"pictures": count, "picture_seed": seed}
    reading = Reading("tiny", Path(), tuple(OBJECTS), identity=identity)
    labels = np.arange(count, dtype=np.int64) % len(OBJECTS)
    for name in choose_domains(domains, DOMAINS, (*DOMAINS, CLEAN, *EXTRA_DOMAINS)):
        reading.domains.append(Domain(name, labels, LazyDrawings(name, count, seed)))
    return reading
