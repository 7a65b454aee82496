"""What a step of a group of processes costs: memory, bytes sent and seconds, from sizes alone.

The model follows ``ramen.memory.group_memory`` exchange by exchange. Bytes are exact, but for gradient rows,
of which a process keeps those that it owns itself: on average one of as many as there are processes.
``docs/scaling.md`` explains the model, and ``benchmarks/scaling.py`` compares it with measurements.
"""

from dataclasses import dataclass, replace

from ramen.memory.plan import MemoryPlan

_COUNT = 8  # bytes of an integer
_FACTS = 4 * _COUNT  # pseudo-label, tag, whether it may be stored, entropy
_FOUND = 1 + 4 + 4 + _COUNT + _COUNT  # valid, distance, entropy, tag, stream number
_SCORE = 8  # to compare candidates of several pieces
_FLOAT = 4
_MOST_PROCESSES = 1025  # that are looked at


@dataclass(frozen=True)
class NetworkLink:
    """What connects the processes: bytes per second that each can send, and seconds that an exchange adds.

    The messages of one exchange travel side by side.
    """

    name: str
    bandwidth: float
    latency: float


# What these links reach in practice, about four fifths of what they are named for.
LINKS = (
    NetworkLink("NVLink", 360e9, 20e-6),
    NetworkLink("PCIe", 25e9, 30e-6),
    NetworkLink("100 Gbit/s Ethernet", 10e9, 60e-6),
    NetworkLink("10 Gbit/s Ethernet", 1e9, 100e-6),
)


@dataclass(frozen=True)
class GroupStep:
    """One step of a group.

    Args:
        plan: The whole memory, with its number of processes.
        images: Per process.
        topk: Entries that are retrieved per queue.
    """

    plan: MemoryPlan
    images: int
    topk: int

    @property
    def processes(self) -> int:
        """How many there are."""
        return self.plan.processes

    @property
    def batch(self) -> int:
        """Images of all processes."""
        return self.images * self.processes

    @property
    def candidates(self) -> int:
        """Entries that each process offers per query."""
        pieces = self.plan.pieces
        return pieces.queues_each * min(self.topk, pieces.piece_capacity)

    def memory_bytes(self) -> int:
        """What each process's share of a full memory takes."""
        return sum(self.plan.max_bytes().values())

    def row_bytes(self) -> int:
        """A gradient as it is stored."""
        columns = self.plan.columns()
        return columns["gradients"].row_bytes + columns["scales"].row_bytes

    def packed(self) -> dict[str, float]:
        """Bytes that each process puts into each exchange, including those that stay with it."""
        everybody = self.processes * self.images
        found = _FOUND + (_SCORE if self.plan.pieces.per_queue > 1 else 0)
        return {
            "batch sizes": self.processes * _COUNT,
            "embeddings": everybody * self.plan.embedding_size * _FLOAT,
            "pseudo-labels": everybody * _FACTS,
            "gradients": self.images * self.row_bytes(),
            "candidates": everybody * self.candidates * found,
            "weights": everybody * self.candidates * _FLOAT,
            "sums": everybody * self.plan.gradient_size * _FLOAT,
        }

    def sent(self) -> dict[str, float]:
        """Bytes that each process sends to others, by exchange."""
        others = (self.processes - 1) / self.processes
        return {name: others * count for name, count in self.packed().items()}

    def sent_bytes(self) -> float:
        """Bytes that each process sends to others."""
        return sum(self.sent().values())

    def messages(self) -> int:
        """Messages that each process sends."""
        return len(self.packed()) * (self.processes - 1)

    def exchange_seconds(self, link: NetworkLink) -> float:
        """How long the exchanges take, if nothing else happens meanwhile."""
        return self.sent_bytes() / link.bandwidth + len(self.packed()) * link.latency

    # -- work of a process --------------------------------------------------------------------------

    def products(self) -> float:
        """Products of numbers in the search: all queries with all entries of a full share."""
        return self.batch * self.plan.pieces.entries_each * self.plan.embedding_size

    def summed(self) -> float:
        """Numbers that are added up for sums of gradients."""
        return self.batch * self.plan.queues * self.topk / self.processes * self.plan.gradient_size

    def rows_read(self) -> float:
        """Gradients of a full share that some query takes, if queries choose independently."""
        share = self.topk / self.plan.capacity
        return self.plan.slots / self.processes * (1 - (1 - share) ** self.batch)

    # -- with the passes ----------------------------------------------------------------------------

    def images_a_second(self, link: NetworkLink, seconds_an_image: float, launching: float = 0.0) -> float:
        """What all processes answer together, if exchanges and passes follow each other.

        Args:
            link: Between the processes.
            seconds_an_image: What a process takes by itself, with a memory of its own.
            launching: Seconds that a step of a group takes in addition, however many images it has: by itself
                a process has one CUDA graph for the whole step, and in a group only for the passes.
        """
        if self.processes == 1:
            return 1 / seconds_an_image
        return self.batch / (self.images * seconds_an_image + launching + self.exchange_seconds(link))

    def processes_for(
        self, rate: float, link: NetworkLink, seconds_an_image: float, launching: float = 0.0
    ) -> int | None:
        """The fewest processes that answer ``rate`` images a second; None if no number of them does."""
        steps = (self.of(count) for count in range(1, _MOST_PROCESSES))
        enough = (one for one in steps if one.images_a_second(link, seconds_an_image, launching) >= rate)
        return next((one.processes for one in enough), None)

    def crossing(self, link: NetworkLink, seconds_an_image: float) -> int | None:
        """From how many processes on exchanges take longer than the rest of a step; None if they never do."""
        steps = (self.of(count) for count in range(2, _MOST_PROCESSES))
        own = self.images * seconds_an_image
        return next((one.processes for one in steps if one.exchange_seconds(link) > own), None)

    def of(self, processes: int) -> "GroupStep":
        """The same for another number of processes."""
        return replace(self, plan=replace(self.plan, processes=processes))
