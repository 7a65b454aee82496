"""A predictor that looks at names alone."""

import zlib
from dataclasses import dataclass
from itertools import islice

from ramen.serve.result import Result
from ramen.serve.sources import NoImage, expand
from tests.fakes.served_results import CLASSES, answer, failure


@dataclass
class FakeCounts:
    images: int = 0
    errors: int = 0


class FakePredictor:
    """Answers batches of the given sizes, then of the last of them; files that are not there fail.

    Attributes:
        learned: All keys that it was given, as a state would have learned them.
    """

    def __init__(self, *sizes: int, resumed: tuple[Result, ...] = ()) -> None:
        self.sizes = list(sizes) or [4]
        self.resumed = resumed
        self.counts = FakeCounts()
        self.learned: list[str] = []

    def classify(self, sources):
        found = expand(sources)
        while batch := list(islice(found, self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0])):
            results = [self.result(source) for source in batch]
            failed = sum(result.error is not None for result in results)
            self.learned += [source.key for source in batch]
            self.counts = FakeCounts(self.counts.images + len(batch) - failed, self.counts.errors + failed)
            yield from results

    def result(self, source):
        if isinstance(source.value, NoImage):
            return failure(source.key)
        label, before = (CLASSES[zlib.crc32(f"{n}{source.key}".encode()) % 3] for n in (0, 1))
        return answer(source.key, label, before)
