"""Streams: the pictures of a data set in the order of a protocol, decided by a seed.

What a stream says of domains, labels and severities is for scoring and analysis; methods see pictures alone.
"""

import hashlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

import ramen.data.streams.orders  # noqa: F401  # enters the protocols
from ramen.data.dataset import Dataset, Domain, Labels
from ramen.data.streams.inputs import Source, resolve
from ramen.data.streams.protocols import PROTOCOLS, Pool, Protocol, find_protocol
from ramen.utils import checks
from ramen.utils.random_draws import Draws, Whole

__all__ = ["PROTOCOLS", "Protocol", "Stream", "find_protocol", "make_stream"]

COMMON = {
    "limit": "only the first so many pictures of the finished order",
    "per_domain": "at most so many pictures of each domain, drawn at random before they are ordered",
}


@dataclass(frozen=True, eq=False)
class Stream:
    """Pictures in the order in which they come. Made by ``make_stream``; nothing in it can be changed.

    Attributes:
        protocol: The protocol's name.
        parameters: All of its parameters, as given or by default.
        seed: What decided the order.
        dataset: Whose pictures these are; of several severities, the lowest one's.
        domain: Each picture's domain, a number ``(N,)``.
        index: Each picture's number within its domain ``(N,)``.
        resets: The positions before which a method is reset, rising; the first may be 0.
        severity: Each picture's severity ``(N,)``, where the stream goes through several.
        severities: The data set of each severity, where there are several.
    """

    protocol: str
    parameters: Mapping[str, Any]
    seed: int
    dataset: Dataset
    domain: Whole
    index: Whole
    resets: tuple[int, ...] = ()
    severity: Whole | None = None
    severities: Mapping[int, Dataset] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.domain)

    def __repr__(self) -> str:
        return f"Stream({self.protocol!r}, {self.dataset.name!r}, seed={self.seed}, pictures={len(self)})"

    def labels(self) -> Labels:
        """The true class of each picture ``(N,)``."""
        labels = np.empty(len(self), dtype=np.int64)
        for number, domain in enumerate(self.dataset.domains):
            here = self.domain == number
            labels[here] = domain.labels[self.index[here]]
        return labels

    def batches(self, size: int, *, drop_last: bool = False) -> list[slice]:
        """The stream cut into batches, none across a reset.

        Args:
            size: Pictures in a batch; the last one before a reset or the end may have fewer.
            drop_last: Leave out those that have fewer.
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

    def read(self, batch: slice) -> Tensor | list[Path]:
        """The pictures of a batch in their order, in a form that ``ZeroShotClassifier.preprocess`` takes."""
        domains, numbers = self.domain[batch], self.index[batch]
        severities = np.zeros_like(domains) if self.severity is None else self.severity[batch]
        pictures: list[Any] = [None] * len(domains)
        for severity, domain in sorted(set(zip(severities.tolist(), domains.tolist(), strict=True))):
            source = self.dataset if self.severity is None else self.severities[severity]
            places = np.flatnonzero((severities == severity) & (domains == domain)).tolist()
            read = source.domains[domain].pictures.read(numbers[places].tolist())
            for place, picture in zip(places, read, strict=True):
                pictures[place] = picture
        shapes = {tuple(p.shape) if isinstance(p, Tensor) else "a file" for p in pictures}
        if shapes == {"a file"} or not pictures:
            return pictures
        if len(shapes) > 1:
            found = ", ".join(sorted(map(str, shapes)))
            raise ValueError(f"pictures of a batch must be alike to be read together, got {found}")
        return torch.stack(pictures)

    def identity(self) -> dict[str, Any]:
        """What a result tells of its stream, in plain values; ``order`` is a hash of the order itself."""
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
    dataset: Source,
    seed: int = 0,
    *,
    limit: int | None = None,
    per_domain: int | None = None,
    **parameters: Any,
) -> Stream:
    """A stream of that protocol.

    Args:
        name: One of ``PROTOCOLS``.
        dataset: A data set; for ``gradual``, one for each severity, with the same domains, classes and
            labels. Instead of a data set, the labels of each domain will do, for a stream whose pictures are
            not read.
        seed: Decides the order, and which pictures where not all are used.
        limit: Only the first so many pictures of the finished order, all if None.
        per_domain: At most so many pictures of each domain, all if None. They are drawn uniformly at random
            before anything is ordered: with one seed the same ones for every protocol.
        **parameters: The protocol's own; ``PROTOCOLS[name].parameters`` has their defaults.

    >>> stream = make_stream("single", [[0, 1, 1], [1, 0]], seed=0)
    >>> stream.domain.tolist(), stream.resets
    ([0, 0, 0, 1, 1], (0, 3))
    >>> [(b.start, b.stop) for b in stream.batches(2)]
    [(0, 2), (2, 3), (3, 5)]
    """
    protocol = find_protocol(name)
    for given in parameters:
        if given not in protocol.parameters:
            hint = checks.nearest(given, [*protocol.parameters, *COMMON])
            raise TypeError(f"protocol {name!r} has no parameter {given!r}{hint}")
    seed = checks.integer("seed", seed, 0)
    limit = None if limit is None else checks.integer("limit", limit, 1)
    per_domain = None if per_domain is None else checks.integer("per_domain", per_domain, 1)
    first, severities = resolve(protocol, dataset)
    numbers = [_chosen(domain, per_domain, seed) for domain in first.domains]
    pool = Pool(
        names=tuple(domain.name for domain in first.domains),
        domain=np.repeat(np.arange(len(numbers)), [len(n) for n in numbers]),
        label=np.concatenate([d.labels[n] for d, n in zip(first.domains, numbers, strict=True)]),
        severities=tuple(severities),
    )
    order = protocol.arrange(pool, Draws(seed, "order"), **parameters)
    places = order.places[:limit]
    all_parameters = {**protocol.parameters, **parameters, "limit": limit, "per_domain": per_domain}
    return Stream(
        protocol=name,
        parameters=MappingProxyType({key: _plain(value) for key, value in all_parameters.items()}),
        seed=seed,
        dataset=first,
        domain=_frozen(pool.domain[places]),
        index=_frozen(np.concatenate(numbers)[places]),
        resets=tuple(reset for reset in order.resets if reset < len(places)),
        severity=None if order.severity is None else _frozen(order.severity[:limit]),
        severities=MappingProxyType(severities),
    )


def _chosen(domain: Domain, count: int | None, seed: int) -> Whole:
    """Numbers of the pictures that a stream may use."""
    if count is None or count >= len(domain):
        return np.arange(len(domain))
    # by name: which pictures are taken does not depend on what other domains there are
    return np.sort(Draws(seed, f"pictures of {domain.name}").permutation(len(domain))[:count])


def _frozen(array: Whole) -> Whole:
    array.setflags(write=False)
    return array


def _plain(value: object) -> object:
    """As JSON has it."""
    if isinstance(value, np.generic):
        return value.item()
    return value if value is None or isinstance(value, str | int | float) else list(value)  # type: ignore[call-overload]
