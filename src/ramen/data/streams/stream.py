"""Streams: the images of a data set in the order of a protocol, determined by a seed.

The domains, labels and severities of a stream are for scoring and analysis; methods see only the images.
"""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

import ramen.data.streams.label_orders  # noqa: F401  (registers its protocols)
from ramen.data.dataset import Dataset, Domain, Labels, PreparedSource
from ramen.data.streams.orders import PROTOCOLS, Candidates, Protocol, find_protocol, resolve_protocol
from ramen.utils import checks
from ramen.utils.draws import Draws, IntArray

if TYPE_CHECKING:
    from torch import Tensor


# these register the protocols


# What a stream is made from: a data set, one data set per severity, or only the labels of each domain.
StreamSource: TypeAlias = Dataset | Mapping[int, Dataset] | Sequence[ArrayLike]

__all__ = ["PROTOCOLS", "Protocol", "Stream", "find_protocol", "make_stream", "resolve_protocol"]

# Parameters of every protocol.
COMMON = {
    "limit": "keep only this many images from the start of the finished order",
    "per_domain": "use at most this many images per domain, drawn at random before they are ordered",
}


@dataclass(frozen=True, eq=False)
class Stream:
    """Images in a fixed order. Made by ``make_stream``; nothing in it can be changed.

    Attributes:
        protocol: The name of the protocol.
        parameters: All of its parameters, as given or by default.
        seed: Determined the order.
        dataset: The data set of the images; that of the lowest severity if there are several.
        domain: The domain index of each image ``(N,)``.
        index: The index of each image within its domain ``(N,)``.
        resets: The positions before which a method is reset, ascending; the first may be 0.
        severity: The severity of each image ``(N,)``, if the stream has several.
        severities: The data set of each severity, if there are several.
        rounds: The positions at which each round begins, if the domains come again.
    """

    protocol: str
    parameters: Mapping[str, Any]
    seed: int
    dataset: Dataset
    domain: IntArray
    index: IntArray
    resets: tuple[int, ...] = ()
    severity: IntArray | None = None
    severities: Mapping[int, Dataset] = field(default_factory=dict)
    rounds: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.domain)

    def __repr__(self) -> str:
        return f"Stream({self.protocol!r}, {self.dataset.name!r}, seed={self.seed}, images={len(self)})"

    def labels(self) -> Labels:
        """The true class of each image ``(N,)``."""
        labels = np.empty(len(self), dtype=np.int64)
        for number, domain in enumerate(self.dataset.domains):
            here = self.domain == number
            labels[here] = domain.labels[self.index[here]]
        return labels

    def batches(self, size: int, *, drop_last: bool = False) -> list[slice]:
        """Cut the stream into batches; no batch crosses a reset.

        Args:
            size: Images per batch; the last batch before a reset or the end may have fewer.
            drop_last: Leave out the batches that have fewer.
        """
        size = checks.integer("size", size, 1)
        checks.flag("drop_last", drop_last)
        edges = sorted({0, *self.resets, len(self)})
        batches = [
            slice(start, min(start + size, end))
            for begin, end in itertools.pairwise(edges)
            for start in range(begin, end, size)
        ]
        return [b for b in batches if b.stop - b.start == size] if drop_last else batches

    def read(self, batch: slice) -> "Tensor | list[Path | Tensor]":
        """The images of a batch in stream order, in a form that ``ZeroShotClassifier.preprocess`` takes.

        They are one tensor if all are tensors of one size, else a list of tensors and paths.
        """
        import torch

        domains, indices = self.domain[batch], self.index[batch]
        severities = np.zeros_like(domains) if self.severity is None else self.severity[batch]
        images: list[Any] = [None] * len(domains)
        for severity, domain in sorted(set(zip(severities.tolist(), domains.tolist(), strict=True))):
            source = self.dataset if self.severity is None else self.severities[severity]
            positions = np.flatnonzero((severities == severity) & (domains == domain)).tolist()
            read = source.domains[domain].images.read(indices[positions].tolist())
            for position, image in zip(positions, read, strict=True):
                images[position] = image
        shapes = {tuple(image.shape) if isinstance(image, torch.Tensor) else "a file" for image in images}
        if len(shapes) != 1 or shapes == {"a file"}:
            return images
        return torch.stack(images)

    @property
    def waiting(self) -> int:
        """How many images are still to be made, such as drawings, before all can be read."""
        return sum(source.waiting for source in self._unprepared())

    def prepare(self, advance: Callable[[int], object] = lambda count: None) -> None:
        """Make what must be made before images can be read: reading then takes equally long for everybody.

        Args:
            advance: Called with the number of images that were made since the last call.
        """
        for source in self._unprepared():
            count = source.waiting
            source.prepare()
            advance(count)

    def _unprepared(self) -> list[PreparedSource]:
        datasets = [self.dataset, *self.severities.values()]
        used = set(self.domain.tolist())
        sources = [one.domains[number].images for one in datasets for number in sorted(used)]
        unique = {id(source): source for source in sources if isinstance(source, PreparedSource)}
        return [source for source in unique.values() if source.waiting]

    def identity(self) -> dict[str, Any]:
        """What a result records about its stream, in plain values; ``order`` is a hash of the order."""
        digest = hashlib.sha256()
        severity = np.zeros(0) if self.severity is None else self.severity
        for array in (self.domain, self.index, severity, np.array(self.resets)):
            digest.update(f"{len(array)};".encode() + array.astype("<i8").tobytes())
        return {
            "protocol": self.protocol,
            "parameters": dict(self.parameters),
            "seed": self.seed,
            "dataset": self.dataset.name,
            "domains": [domain.name for domain in self.dataset.domains],
            "severities": list(self.severities),
            "pictures": len(self),
            "resets": list(self.resets),
            "order": f"sha256:{digest.hexdigest()}",
        }


def make_stream(
    name: str,
    dataset: StreamSource,
    seed: int = 0,
    *,
    limit: int | None = None,
    per_domain: int | None = None,
    **parameters: Any,
) -> Stream:
    """Put the images of a data set into the order of a protocol.

    Args:
        name: One of ``PROTOCOLS`` or ``ALIASES``.
        dataset: A data set; for ``gradual``, a mapping from severity to data set, all with the same domains,
            classes and labels. The labels of each domain are enough for a stream whose images are not read.
        seed: Determines the order, and which images are used if not all are.
        limit: Keep only this many images from the start of the finished order; all if None.
        per_domain: Use at most this many images per domain; all if None. They are drawn uniformly at random
            before anything is ordered: one seed gives the same images for every protocol.
        **parameters: Those of the protocol; ``PROTOCOLS[name].parameters`` has their defaults.

    >>> stream = make_stream("single", [[0, 1, 1], [1, 0]], seed=0)
    >>> stream.domain.tolist(), stream.resets
    ([0, 0, 0, 1, 1], (0, 3))
    >>> [(b.start, b.stop) for b in stream.batches(2)]
    [(0, 2), (2, 3), (3, 5)]
    """
    protocol, parameters = resolve_protocol(name, parameters)
    for given in parameters:
        if given not in protocol.parameters:
            hint = checks.nearest(given, [*protocol.parameters, *COMMON])
            raise TypeError(f"protocol {protocol.name!r} has no parameter {given!r}{hint}")
    seed = checks.integer("seed", seed, 0)
    limit = None if limit is None else checks.integer("limit", limit, 1)
    per_domain = None if per_domain is None else checks.integer("per_domain", per_domain, 1)
    first, severities = resolve_source(protocol, dataset)
    chosen = [_choose(domain, per_domain, seed) for domain in first.domains]
    candidates = Candidates(
        domain_names=tuple(domain.name for domain in first.domains),
        domain=np.repeat(np.arange(len(chosen)), [len(indices) for indices in chosen]),
        label=np.concatenate([d.labels[i] for d, i in zip(first.domains, chosen, strict=True)]),
        severities=tuple(severities),
    )
    order = protocol.arrange(candidates, Draws(seed, "order"), **parameters)
    kept = order.indices[:limit]
    all_parameters = {**protocol.parameters, **parameters, "limit": limit, "per_domain": per_domain}
    return Stream(
        protocol=protocol.name,
        parameters=MappingProxyType({key: _plain(value) for key, value in all_parameters.items()}),
        seed=seed,
        dataset=first,
        domain=_read_only(candidates.domain[kept]),
        index=_read_only(np.concatenate(chosen)[kept]),
        resets=tuple(reset for reset in order.resets if reset < len(kept)),
        severity=None if order.severity is None else _read_only(order.severity[:limit]),
        severities=MappingProxyType(severities),
        rounds=tuple(start for start in order.rounds if start < len(kept)),
    )


def _choose(domain: Domain, count: int | None, seed: int) -> IntArray:
    """The indices of the images that a stream may use."""
    if count is None or count >= len(domain):
        return np.arange(len(domain))
    # By name: the choice must not depend on which other domains there are. The text is part of the seed.
    return np.sort(Draws(seed, f"pictures of {domain.name}").permutation(len(domain))[:count])


def _read_only(array: IntArray) -> IntArray:
    array.setflags(write=False)
    return array


def _plain(value: object) -> object:
    """The value as JSON stores it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float) else list(value)  # type: ignore[call-overload]


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
