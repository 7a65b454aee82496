"""Divide one file of corrupted images into test images and other images to choose parameters with.

    python benchmarks/fair_table_arrays.py stream.npz --tests tests.npz --searches searches.npz

The file is as the data set `arrays` takes it, with a domain `clean`. The first images, in all of its domains,
are for tests. For searches the next ones, of which nothing is tested, get the four extra corruptions.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.data.arrays import CLEAN, LABELS
from ramen.data.corruptions import EXTRA_CORRUPTIONS, corrupt


def divide(file: Path, tests: Path, searches: Path, test_images: int, search_images: int, seed: int) -> None:
    """Write the two files; ``seed`` decides the random part of the corruptions."""
    with np.load(file, allow_pickle=False) as arrays:
        missing = [name for name in (LABELS, CLEAN) if name not in arrays]
        if missing:
            raise ValueError(f"{file} must have the array {missing[0]!r}, got {', '.join(arrays)}")
        labels = arrays[LABELS]
        end = test_images + search_images
        if len(labels) < end:
            raise ValueError(f"{file} must have {test_images} + {search_images} images, got {len(labels)}")
        domains = {name: arrays[name][:test_images] for name in arrays if name not in (LABELS, CLEAN)}
        clean = arrays[CLEAN][test_images:end]
    _save(tests, {LABELS: labels[:test_images], **domains})
    corrupted = {
        name: corrupt(clean, name, np.random.default_rng((seed, number)))
        for number, name in enumerate(EXTRA_CORRUPTIONS)
    }
    _save(searches, {LABELS: labels[test_images:end], **corrupted})


def _save(path: Path, arrays: dict[str, NDArray[Any]]) -> None:
    np.savez_compressed(path, allow_pickle=False, **arrays)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tests", type=Path, required=True)
    parser.add_argument("--searches", type=Path, required=True)
    parser.add_argument("--test-images", type=int, default=300, help="per domain")
    parser.add_argument("--search-images", type=int, default=200, help="per domain")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    counts = arguments.test_images, arguments.search_images
    divide(arguments.file, arguments.tests, arguments.searches, *counts, arguments.seed)


if __name__ == "__main__":
    main()
