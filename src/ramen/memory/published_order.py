"""The order of the published code, to compare with: which slot of its queue a new entry takes.

Stream numbers are kept as float16, and a full queue replaces its smallest number only by a larger one.
Numbers therefore tie from 2,048 on, and from 65,520 on all are infinite: a queue full of those is frozen.
"""

import torch
from torch import Tensor

from ramen.utils.numerics import running_counts


def slots(queues: Tensor, keep: Tensor, numbers: Tensor, counts: Tensor, ages: Tensor) -> Tensor:
    """The slot of each entry of a batch. Updates ``counts``, here the entries held, and ``ages``.

    What an entry replaces depends on the previous entry of its queue, so the batch is inserted in waves:
    first the first entry of every queue, then the second of every queue, and so on.

    Args:
        queues: The queue of each.
        keep: Which of them may be stored; the others get the slot one past the end.
        numbers: Their stream numbers.
        counts: ``(queues,)``.
        ages: The stream numbers of the slots in float16, ``(queues, capacity)``.
    """
    capacity = ages.shape[1]
    found = torch.full_like(queues, len(counts) * capacity)
    new_ages = numbers.to(torch.float16)
    waves = torch.where(keep, running_counts(queues, keep, len(counts)).gather(1, queues[:, None])[:, 0], 0)
    for wave in range(1, int(waves.max()) + 1):
        entries = (waves == wave).nonzero()[:, 0]
        queue = queues[entries]
        full = counts[queue] == capacity
        place = torch.where(full, ages[queue].argmin(1), counts[queue])
        taken = ~full | (new_ages[entries] > ages[queue, place])
        entries, queue, place = entries[taken], queue[taken], place[taken]
        ages[queue, place] = new_ages[entries]
        counts[queue] = (counts[queue] + 1).clamp_max(capacity)
        found[entries] = queue * capacity + place
    return found
