"""Which process of a group holds which entries: queues are cut into pieces, and these are dealt out in turn.

The ``n``-th entry of a queue belongs to its piece ``n % pieces``. If the pieces divide the capacity, each is
a first-in-first-out queue of its own, and together they hold what the whole queue would. Every query takes
the same number of entries from every queue, so that processes with as many pieces have as much to do, however
uneven the classes are.
"""

from dataclasses import dataclass

from torch import Tensor

_MOST_PER_PROCESS = 4  # pieces of a queue: each of them offers candidates
_NEGLIGIBLE = 1.1  # a load so many times the smallest one is as good, if it takes fewer pieces


@dataclass(frozen=True)
class QueuePieces:
    """``queues`` of ``capacity`` entries, each cut into ``per_queue`` pieces, for so many ``processes``.

    Piece ``j`` of queue ``c`` has the number ``c * per_queue + j``; piece ``p`` belongs to process
    ``p % processes``, where it is queue ``p // processes``.
    """

    queues: int
    capacity: int
    processes: int
    per_queue: int

    @classmethod
    def dealt(cls, queues: int, capacity: int, processes: int, most: int | None = None) -> "QueuePieces":
        """With the fewest pieces that balance the processes.

        Args:
            queues: How many there are.
            capacity: Of each.
            processes: How many share them.
            most: Pieces of a queue.

        >>> [QueuePieces.dealt(*case).per_queue for case in ((1000, 75, 8), (10, 7500, 8), (1, 75000, 3))]
        [1, 3, 3]
        """
        most = min(capacity, _MOST_PER_PROCESS * processes) if most is None else most
        choices = [cls(queues, capacity, processes, n) for n in range(1, most + 1) if capacity % n == 0]
        best = min(choice.entries_each for choice in choices)
        return next(choice for choice in choices if choice.entries_each <= _NEGLIGIBLE * best)

    @property
    def piece_capacity(self) -> int:
        """Entries of a full piece."""
        return self.capacity // self.per_queue

    @property
    def queues_each(self) -> int:
        """Pieces of a process, at most."""
        return -(-self.queues * self.per_queue // self.processes)

    @property
    def entries_each(self) -> int:
        """Entries of a process, at most."""
        return self.queues_each * self.piece_capacity

    def piece(self, queues: Tensor, sequence: Tensor) -> Tensor:
        """The piece of the ``sequence``-th entry of each queue; the place in a ring buffer will also do."""
        return queues * self.per_queue + sequence % self.per_queue

    def owner(self, pieces: Tensor) -> Tensor:
        """The process that holds each piece."""
        return pieces % self.processes

    def queue_there(self, pieces: Tensor) -> Tensor:
        """The number of each piece among the queues of its owner."""
        return pieces // self.processes

    def slot_there(self, slots: Tensor) -> tuple[Tensor, Tensor]:
        """Owners of the slots of whole queues, and which slots of theirs these are."""
        places = slots % self.capacity
        pieces = self.piece(slots // self.capacity, places)
        there = self.queue_there(pieces) * self.piece_capacity + places // self.per_queue
        return self.owner(pieces), there

    def slot_here(self, rank: int, slots_there: Tensor) -> Tensor:
        """The slots of whole queues that the slots of process ``rank`` are."""
        pieces = slots_there // self.piece_capacity * self.processes + rank
        places = slots_there % self.piece_capacity * self.per_queue + pieces % self.per_queue
        return pieces // self.per_queue * self.capacity + places

    def counts_there(self, rank: int, counts: Tensor) -> Tensor:
        """Of entries ever taken by the queues, those of each piece of process ``rank``."""
        there = counts.new_zeros(self.queues_each)
        pieces = range(rank, self.queues * self.per_queue, self.processes)
        own = counts.new_tensor(list(pieces))
        taken = counts[own // self.per_queue] - own % self.per_queue + self.per_queue - 1
        there[: len(own)] = (taken // self.per_queue).clamp_min(0)
        return there
