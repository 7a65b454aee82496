"""Small data sets whose images say which they are, and views of the streams made from them."""

from pathlib import Path

import numpy as np
import torch

from ramen.data.dataset import Dataset, Domain
from ramen.data.streams.stream import PROTOCOLS

SEVERITIES = (1, 2, 3)


class Numbered:
    """Images whose pixels say which they are."""

    def __init__(self, mark):
        self.mark = mark

    def read(self, numbers):
        return torch.stack([torch.full((3, 2, 2), self.mark + n, dtype=torch.uint8) for n in numbers])


class Files:
    def read(self, numbers):
        return [Path(f"{n}.png") for n in numbers]


def data(labels, mark=0, name="set"):
    """A data set with one domain per list of labels."""
    count = max((max(values) for values in labels if values), default=0) + 1
    domains = tuple(
        Domain(f"domain-{i}", np.array(values, dtype=np.int64), Numbered(mark + 20 * i))
        for i, values in enumerate(labels)
    )
    return Dataset(name, tuple(f"class-{c}" for c in range(count)), domains)


def source(name, labels):
    """What a stream of the protocol is made from."""
    return (
        {s: data(labels, 100 * s % 256) for s in SEVERITIES} if PROTOCOLS[name].severities else data(labels)
    )


def pairs(stream):
    return list(zip(stream.domain.tolist(), stream.index.tolist(), strict=True))


def everything(labels):
    return [(d, i) for d, values in enumerate(labels) for i in range(len(values))]


def runs(values):
    """Lengths of the runs of equal values."""
    edges = np.flatnonzero(np.diff(values)) + 1
    return np.diff([0, *edges, len(values)])


def balanced(domains=4, classes=5, each=20):
    return [list(np.repeat(np.arange(classes), each)) for _ in range(domains)]
