"""A predictor that looks at names alone."""

import zlib
from itertools import islice

from ramen.client.result import Result
from ramen.predict.sources import NoImage, expand
from tests.fakes.served_results import CLASSES, answer, failure


class FakePredictor:
    """Answers batches of the given sizes, then of the last of them; files that are not there fail.

    Attributes:
        learned: All keys that it was given, as a state would have learned them.
    """

    def __init__(self, *sizes: int, resumed: tuple[Result, ...] = ()) -> None:
        self.sizes = list(sizes) or [4]
        self.resumed = resumed
        self.learned: list[str] = []

    def batches(self, sources):
        found = expand(sources)
        while batch := list(islice(found, self.sizes.pop(0) if len(self.sizes) > 1 else self.sizes[0])):
            results = [self.result(source) for source in batch]
            self.learned += [source.key for source in batch]
            yield results

    def result(self, source):
        if isinstance(source.value, NoImage):
            return failure(source.key)
        label, before = (CLASSES[zlib.crc32(f"{n}{source.key}".encode()) % 3] for n in (0, 1))
        return answer(source.key, label, before)
