"""What the processes of a group have of each batch of a run, and how all of them get all answers."""

from torch import Tensor

from ramen.methods._answers import Prediction, Support
from ramen.utils.peers import Peers


def own_part(batch: slice, peers: Peers | None) -> slice:
    """The part of a batch that this process has: parts are consecutive, and as equal as possible.

    >>> own_part(slice(10, 20), None)
    slice(10, 20, None)
    """
    if peers is None:
        return batch
    count = batch.stop - batch.start
    start, stop = (batch.start + count * rank // peers.size for rank in (peers.rank, peers.rank + 1))
    return slice(start, stop)


def readable_part(batch: slice, peers: Peers | None) -> slice:
    """The same, with one image in place of none, as there must be something to read."""
    own = own_part(batch, peers)
    return own if own.stop > own.start else slice(batch.start, batch.start + 1)


def everybodys(answer: Prediction, peers: Peers | None) -> Prediction:
    """The answer to the whole batch, of this process's part of it."""
    if peers is None:
        return answer

    def whole(rows: Tensor) -> Tensor:
        return peers.gather(rows, peers.sizes, "gathering answers")

    support = answer.support
    if support is not None:
        support = Support(**{name: whole(value) for name, value in vars(support).items()})
    return Prediction(whole(answer.logits), whole(answer.zero_shot_logits), whole(answer.fallback), support)


def for_all(peers: Peers | None, condition: bool) -> bool:
    """Whether a condition holds, or in a group, whether it holds in any process."""
    return condition if peers is None else any(peers.numbers(condition, "agreeing on what to do next"))
