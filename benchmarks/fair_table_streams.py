"""The streams of the fair table."""

from dataclasses import dataclass, replace

# These answer each image by itself and keep nothing of it: other orders of the same images change no answer.
EACH_BY_ITSELF = ("mta", "tps", "tpt", "zero")
_SEARCH_DOMAINS, _TEST_DOMAINS, _SEEDS, _ALL = 4, 18, 3, 300  # about: these only decide who comes first


@dataclass(frozen=True)
class TestedStream:
    """A kind of stream.

    Attributes:
        name: What it is called in the table.
        protocol: The order of its images.
        batch: Images per batch.
        search_images: Images per domain in the search; all if None.
        test_images: Images per domain in the tests; all if None.
        left_out: Methods that are not run on it.
    """

    name: str
    protocol: str
    batch: int
    search_images: int | None
    test_images: int | None
    left_out: tuple[str, ...] = ()

    @property
    def same_images_as_mixed(self) -> bool:
        """Whether it differs from the mixed stream by its order alone."""
        return self.name != "mixed" and self.batch == STREAMS["mixed"].batch

    def limited(self, images: int | None) -> "TestedStream":
        """The same with at most so many images per domain."""
        if images is None:
            return self
        least = [
            images if own is None else min(own, images) for own in (self.search_images, self.test_images)
        ]
        return replace(self, search_images=least[0], test_images=least[1])

    def expected_batches(self, settings: int) -> float:
        """About how many batches a search of so many settings and the tests have."""
        search = settings * _SEARCH_DOMAINS * (self.search_images or _ALL)
        return (search + _SEEDS * _TEST_DOMAINS * (self.test_images or _ALL)) / self.batch


STREAMS = {
    one.name: one
    for one in (
        TestedStream("mixed", "mixed", 100, None, None),
        TestedStream("single", "single", 100, None, None),
        TestedStream("correlated", "correlated", 100, None, None),
        TestedStream("one", "mixed", 1, 30, 20),  # one image at a time: fewer, because it is slow
    )
}
