"""The demo's mixed stream: corruptions at their highest severity, and styles that the model has not seen."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ramen.data.corruptions import CORRUPTIONS, corrupt
from ramen.data.drawings import styles
from ramen.data.drawings.pictures import draw_pictures

# Not frost: its textures depend on what is installed, and the demo is the same everywhere.
_CORRUPTIONS = tuple(name for name in CORRUPTIONS if name != "frost")
DOMAINS = (*_CORRUPTIONS, *styles.UNSEEN)
_SEVERITY = 5


@dataclass(frozen=True)
class Stream:
    """Images in the order in which they come; labels and domains are for scoring alone."""

    pixels: Tensor  # (N, 3, 32, 32) uint8
    labels: Tensor
    domains: Tensor

    def __len__(self) -> int:
        return len(self.labels)


def mixed_stream(
    objects: Sequence[str], per_domain: int, seed: int, progress: Callable[[int], object] = lambda _: None
) -> Stream:
    """As many images of each domain, the objects in turn, all shuffled together.

    Args:
        objects: What is drawn; label ``n`` is ``objects[n]``.
        per_domain: Images of each domain.
        seed: Decides everything.
        progress: Called with the number of images as they are made.
    """
    pixels = []
    for domain in DOMAINS:
        pixels.append(draw_domain(domain, objects, per_domain, seed))
        progress(per_domain)
    labels = torch.arange(per_domain).remainder(len(objects)).repeat(len(DOMAINS))
    domains = torch.arange(len(DOMAINS)).repeat_interleave(per_domain)
    order = torch.from_numpy(np.random.default_rng((seed, 2)).permutation(len(labels)))
    images = torch.from_numpy(np.concatenate(pixels)).permute(0, 3, 1, 2)
    return Stream(images[order].contiguous(), labels[order], domains[order])


def draw_domain(domain: str, objects: Sequence[str], count: int, seed: int) -> NDArray[np.uint8]:
    """Pictures ``(count, 32, 32, 3)`` of one of ``DOMAINS``, the objects in turn."""
    number = DOMAINS.index(domain)
    names = [objects[n % len(objects)] for n in range(count)]
    if domain in styles.UNSEEN:
        return draw_pictures(names, [domain] * count, (seed, 3, number)).pixels
    rng = np.random.default_rng((seed, 4, number))
    drawn_in = [str(style) for style in rng.choice(list(styles.TRAINED), count)]
    clean = draw_pictures(names, drawn_in, (seed, 3, number)).pixels
    return corrupt(clean, domain, rng, _SEVERITY)
