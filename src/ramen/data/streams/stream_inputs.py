"""What a stream is made from: a data set, one data set per severity, or only labels."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.protocols import Protocol
from ramen.utils import checks

if TYPE_CHECKING:
    from torch import Tensor

StreamSource: TypeAlias = Dataset | Mapping[int, Dataset] | Sequence[ArrayLike]


def resolve_source(protocol: Protocol, given: StreamSource) -> tuple[Dataset, dict[int, Dataset]]:
    """The data set that defines domains and labels, and that of each severity if the protocol has several."""
    severities: dict[int, Dataset] = {}
    if protocol.severities:
        first, severities = _check_severities(protocol.name, given)
    elif isinstance(given, Mapping):
        raise TypeError(f"dataset: protocol {protocol.name!r} needs one data set, got a mapping")
    else:
        first = given if isinstance(given, Dataset) else _from_labels(given)
    if not len(first):
        raise ValueError(f"dataset: {first.name} has no images")
    return first, severities


def _check_severities(protocol: str, given: object) -> tuple[Dataset, dict[int, Dataset]]:
    if not isinstance(given, Mapping) or not all(isinstance(d, Dataset) for d in given.values()):
        raise TypeError(
            f"dataset: protocol {protocol!r} needs a mapping from severity to data set, "
            f"such as {{1: ..., 2: ..., 3: ...}}, got {type(given).__name__}"
        )
    if len(given) < 2:
        raise ValueError(f"dataset: protocol {protocol!r} needs two severities or more, got {len(given)}")
    checked = {checks.integer("dataset: severity", severity, 0): d for severity, d in given.items()}
    severities = dict(sorted(checked.items()))
    lowest, first = next(iter(severities.items()))
    for severity, other in severities.items():
        where = f"dataset: severity {severity} must have the same"
        if other.classes != first.classes:
            raise ValueError(f"{where} classes as severity {lowest}")
        names, expected = ([domain.name for domain in d.domains] for d in (other, first))
        if names != expected:
            raise ValueError(f"{where} domains as severity {lowest}, {expected}, got {names}")
        for domain, same in zip(other.domains, first.domains, strict=True):
            if not np.array_equal(domain.labels, same.labels):
                raise ValueError(f"{where} labels as severity {lowest} in domain {domain.name!r}")
    return first, severities


class _NoImages:
    """Takes the place of the images in a stream that was made from labels."""

    def read(self, indices: Sequence[int]) -> "Tensor | list[Path]":
        raise ValueError("this stream was made from labels only: it has no images to read")


def _from_labels(given: object) -> Dataset:
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise TypeError(f"dataset must be a Dataset or the labels of each domain, got {type(given).__name__}")
    domains = []
    for number, values in enumerate(given):
        labels = np.asarray(values)
        integers = labels.ndim == 1 and (not len(labels) or np.issubdtype(labels.dtype, np.integer))
        if not integers or (labels < 0).any():
            raise ValueError(
                f"dataset: labels of domain {number} must be whole numbers, at least 0, one per image"
            )
        domains.append(Domain(str(number), labels.astype(np.int64), _NoImages()))
    count = max((int(d.labels.max()) + 1 for d in domains if len(d)), default=0)
    return Dataset("labels", tuple(map(str, range(count))), tuple(domains))
