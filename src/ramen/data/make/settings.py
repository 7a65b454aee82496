"""The settings of every maker of a corrupted set: corruptions, severities, seed and workers."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, SEVERITIES
from ramen.data.make.worker_processes import available_cores
from ramen.utils import checks

ALL_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


@dataclass(frozen=True)
class MakeSettings:
    """Checked arguments; corruptions and severities are in the order of the tables, each once."""

    corruptions: tuple[str, ...]
    severities: tuple[int, ...]
    seed: int
    workers: int


def check_settings(
    corruptions: Sequence[str], severities: Sequence[int], seed: int, workers: int | None
) -> MakeSettings:
    """Check the arguments; ``workers`` is the number of cores if None."""
    for name in corruptions:
        if name not in ALL_CORRUPTIONS:
            raise ValueError(f"corruption {name!r} is unknown{checks.nearest(name, ALL_CORRUPTIONS)}")
    for severity in severities:
        checks.integer("severity", severity, SEVERITIES[0], SEVERITIES[-1])
    if not corruptions or not severities:
        raise ValueError("corruptions and severities must name at least one each")
    return MakeSettings(
        corruptions=tuple(name for name in ALL_CORRUPTIONS if name in corruptions),
        severities=tuple(severity for severity in SEVERITIES if severity in severities),
        seed=checks.integer("seed", seed, 0),
        workers=available_cores() if workers is None else checks.integer("workers", workers, 1),
    )


def block_generator(seed: int, corruption: str, severity: int, first: int) -> np.random.Generator:
    """The random generator of the block whose first image has the index ``first``."""
    return np.random.default_rng((seed, ALL_CORRUPTIONS.index(corruption), severity, first))
