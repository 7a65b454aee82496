"""The domains of the demo: corruptions at the highest severity, and styles that the model has not seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, corrupt
from ramen.data.drawings import styles
from ramen.data.drawings.images import draw_images

if TYPE_CHECKING:
    from torch import Tensor

# Without frost: its textures depend on what is installed, and the demo must be the same everywhere.
_CORRUPTIONS = tuple(name for name in CORRUPTIONS if name != "frost")
DOMAINS = (*_CORRUPTIONS, *styles.UNSEEN)
CLEAN = "clean"  # new drawings in the styles that the model was trained on; no domain of the demo
EXTRA_DOMAINS = EXTRA_CORRUPTIONS  # no domains of the demo either: parameters may be tuned on them
_ALL = (*DOMAINS, CLEAN, *EXTRA_DOMAINS)  # a domain's place decides its drawings: new ones come last
_SEVERITY = 5


@dataclass(frozen=True)
class DrawnStream:
    """Drawn images in stream order; labels and domains are only for scoring."""

    pixels: "Tensor"  # (N, 3, 32, 32) uint8
    labels: "Tensor"
    domains: "Tensor"

    def __len__(self) -> int:
        return len(self.labels)


def mixed_stream(
    objects: Sequence[str], per_domain: int, seed: int, progress: Callable[[int], object] = lambda _: None
) -> DrawnStream:
    """Draw the same number of images per domain, the objects in turn, and shuffle them all together.

    Args:
        objects: What is drawn; label ``n`` is ``objects[n]``.
        per_domain: Images per domain.
        seed: Determines everything.
        progress: Called with the number of images that were drawn since the last call.
    """
    import torch

    pixels = []
    for domain in DOMAINS:
        pixels.append(draw_domain(domain, objects, per_domain, seed))
        progress(per_domain)
    labels = torch.arange(per_domain).remainder(len(objects)).repeat(len(DOMAINS))
    domains = torch.arange(len(DOMAINS)).repeat_interleave(per_domain)
    order = torch.from_numpy(np.random.default_rng((seed, 2)).permutation(len(labels)))
    images = torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2)
    return DrawnStream(images[order].contiguous(), labels[order], domains[order])


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
