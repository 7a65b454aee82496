"""A run that several processes share, as each of them sees it: what is its own, and what all agree on.

Without a group, each question has the answer of this process alone.
"""

from collections.abc import Callable
from typing import TypeVar

from torch import Tensor

from ramen.methods._passes import Prediction, Support
from ramen.utils.distributed import Group, Peers

_Value = TypeVar("_Value")


class Team:
    """The processes that share runs.

    Args:
        group: They; None for this process alone.

    Attributes:
        leads: Whether this process reads and writes files, and reports.
    """

    def __init__(self, group: Group = None) -> None:
        self.group = group
        self.peers = None if group is None else Peers(group)
        self.leads = self.peers is None or self.peers.rank == 0

    @property
    def size(self) -> int:
        """How many processes there are."""
        return 1 if self.peers is None else self.peers.size

    # -- files ------------------------------------------------------------------------------------------

    def attempt(self, work: Callable[[], _Value], what: str) -> _Value:
        """What ``work`` returns, if it succeeds in all processes; the first one reports an error."""
        return work() if self.peers is None else self.peers.attempt(work, what, report_once=True)

    def first(self, work: Callable[[], _Value]) -> _Value:
        """What ``work`` returns in the first process, which alone does it; all get it, by way of JSON."""
        if self.peers is None:
            return work()
        what = "running an experiment"
        done = self.attempt(lambda: work() if self.leads else None, what)
        values: list[_Value] = self.peers.values(done, what)
        return values[0]

    def any(self, condition: bool) -> bool:
        """Whether the condition holds in any process."""
        if self.peers is None:
            return condition
        return any(self.peers.numbers(condition, "agreeing on what to do next"))

    # -- batches ----------------------------------------------------------------------------------------

    def part(self, batch: slice) -> slice:
        """The part of a batch that this process has: parts are consecutive, and as equal as possible."""
        return batch if self.peers is None else _part(batch, self.peers.rank, self.peers.size)

    def readable(self, batch: slice) -> slice:
        """The same, with one image in place of none, as there must be something to read."""
        own = self.part(batch)
        return own if own.stop > own.start else slice(batch.start, batch.start + 1)

    def whole(self, batch: slice, answer: Prediction) -> Prediction:
        """The answer to the whole batch, of this process's part of it."""
        peers = self.peers
        if peers is None:
            return answer
        parts = [_part(batch, rank, peers.size) for rank in range(peers.size)]
        sizes = [part.stop - part.start for part in parts]

        def whole(rows: Tensor) -> Tensor:
            return peers.gather(rows, sizes, "gathering answers")

        support = answer.support
        if support is not None:
            support = Support(**{name: whole(value) for name, value in vars(support).items()})
        return Prediction(
            whole(answer.logits), whole(answer.zero_shot_logits), whole(answer.fallback), support
        )


def _part(batch: slice, rank: int, size: int) -> slice:
    count = batch.stop - batch.start
    return slice(batch.start + count * rank // size, batch.start + count * (rank + 1) // size)
