"""The data set ``tiny``: drawings for the tiny CLIP, made when needed, the same on every machine.

Its domains are corruptions at the highest severity, and styles that the model has not seen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from ramen.data.dataset import Domain, read_rows
from ramen.data.drawings import shapes, styles
from ramen.data.drawings.shapes import OBJECTS
from ramen.data.reading import DataInfo, Reading, choose_domains
from ramen.utils import checks

if TYPE_CHECKING:
    from torch import Tensor

# Without frost: its textures depend on what is installed, and the demo must be the same everywhere.
_CORRUPTIONS = tuple(name for name in CORRUPTIONS if name != "frost")
DOMAINS = (*_CORRUPTIONS, *styles.UNSEEN)
CLEAN = "clean"  # new drawings in the styles that the model was trained on; no domain of the demo
EXTRA_DOMAINS = EXTRA_CORRUPTIONS  # no domains of the demo either: parameters may be tuned on them
_ALL = (*DOMAINS, CLEAN, *EXTRA_DOMAINS)  # a domain's place decides its drawings: new ones come last
_SEVERITY = 5

# Names that people use for the same object; the first is the class name.
NAMES: dict[str, tuple[str, ...]] = {
    **{name: (name,) for name in OBJECTS},
    "boat": ("boat", "sailboat", "ship"),
    "butterfly": ("butterfly", "moth"),
    "car": ("car", "automobile"),
    "cat": ("cat", "kitten"),
    "chair": ("chair", "seat"),
    "cup": ("cup", "mug"),
    "flower": ("flower", "blossom"),
    "hat": ("hat", "top hat"),
    "house": ("house", "home", "cottage"),
    "lamp": ("lamp", "table lamp"),
    "moon": ("moon", "crescent"),
    "mushroom": ("mushroom", "toadstool"),
    "rocket": ("rocket", "spaceship"),
    "tree": ("tree", "fir"),
    "umbrella": ("umbrella", "parasol"),
}


def object_called(word: str) -> str | None:
    """The object that ``word`` means; None if it is not one that can be drawn."""
    word = " ".join(word.lower().split())
    return next((name for name, words in NAMES.items() if word in words), None)


@dataclass(frozen=True)
class DrawnImages:
    """Pixels ``(N, 32, 32, 3)``, and the share of the image's side that each object takes."""

    pixels: NDArray[np.uint8]
    extents: NDArray[np.float32]


def draw_images(objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]) -> DrawnImages:
    """Draw one image per pair of object and style; image ``n`` depends on ``(*seed, n)``."""
    rows = list(_draw(objects, drawn_in, seed))
    return DrawnImages(
        np.stack([pixels for pixels, _ in rows]), np.array([e for _, e in rows], dtype=np.float32)
    )


def _draw(
    objects: Sequence[str], drawn_in: Sequence[str], seed: Sequence[int]
) -> Iterator[tuple[styles.Pixels, float]]:
    for number, (name, style) in enumerate(zip(objects, drawn_in, strict=True)):
        rng = np.random.default_rng((*seed, number))
        parts = shapes.random_object(name, rng)
        corners = np.concatenate([part.points for part in parts])
        yield styles.draw(parts, style, rng), float(np.ptp(corners, axis=0).max() / 2)


def draw_domain(domain: str, objects: Sequence[str], count: int, seed: int) -> NDArray[np.uint8]:
    """Images ``(count, 32, 32, 3)`` of a domain, also ``CLEAN`` or an extra one, the objects in turn."""
    number = _ALL.index(domain)
    names = [objects[n % len(objects)] for n in range(count)]
    if domain in styles.UNSEEN:
        return draw_images(names, [domain] * count, (seed, 3, number)).pixels
    rng = np.random.default_rng((seed, 4, number))
    drawn_in = [str(style) for style in rng.choice(list(styles.TRAINED), count)]
    clean = draw_images(names, drawn_in, (seed, 3, number)).pixels
    return clean if domain == CLEAN else corrupt(clean, domain, rng, _SEVERITY)


@dataclass(frozen=True)
class LazyDrawings:
    """The images of a domain; all are drawn when the first is requested."""

    domain: str
    count: int
    seed: int
    objects: tuple[str, ...] = tuple(OBJECTS)

    @cached_property
    def _pixels(self) -> NDArray[np.uint8]:
        return draw_domain(self.domain, self.objects, self.count, self.seed)

    @property
    def waiting(self) -> int:
        """How many images are still to be drawn."""
        return 0 if "_pixels" in self.__dict__ else self.count

    def prepare(self) -> None:
        """Draw them now, so that no reader waits for it."""
        _ = self._pixels

    def read(self, indices: Sequence[int]) -> "Tensor":
        """A uint8 tensor ``(n, 3, 32, 32)``."""
        return read_rows(self._pixels, indices)


def read_tiny(
    info: DataInfo,
    root: Path,
    domains: Sequence[str] | None = None,
    pictures: int = 300,
    picture_seed: int = 0,
    classes: str | Sequence[str] | None = None,
) -> Reading:
    """``pictures`` images per domain, the objects in turn; ``picture_seed`` determines how they look.

    ``classes`` are in any of the ``NAMES``, all objects if None; what cannot be drawn has no images. The
    domain ``clean`` and the four extra corruptions are left out unless they are requested by name.
    """
    # The names of these options are part of the identity of results.
    count = checks.integer("pictures", pictures, 1)
    seed = checks.integer("picture_seed", picture_seed, 0)
    reading = Reading(info.name, root, tuple(OBJECTS), identity={"pictures": count, "picture_seed": seed})
    if classes is not None:
        words = classes.split(",") if isinstance(classes, str) else classes
        reading.classes = tuple(word.strip() for word in words)
        reading.identity["classes"] = list(reading.classes)
    drawn = [(label, found) for label, word in enumerate(reading.classes) if (found := object_called(word))]
    if not drawn:
        raise ValueError(
            f"classes: none of {', '.join(reading.classes)} can be drawn; these can: {', '.join(OBJECTS)}"
        )
    labels = np.array([drawn[number % len(drawn)][0] for number in range(count)], dtype=np.int64)
    objects = tuple(name for _, name in drawn)
    for name in choose_domains(domains, DOMAINS, (*DOMAINS, CLEAN, *EXTRA_DOMAINS)):
        reading.domains.append(Domain(name, labels, LazyDrawings(name, count, seed, objects)))
    return reading
