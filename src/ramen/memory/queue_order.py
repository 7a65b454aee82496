"""Which slot of its queue a new entry takes, and which entries each image of a batch can see.

Entries arrive in batches; ``queues`` holds the queue of each, ``keep`` says which of them may be stored. The
number of a slot is ``queue * capacity + place``; ``queues * capacity``, one past the end, means "not stored".
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from ramen.utils.numerics import running_counts

ORDERS = ("exact", "float16")


def float16_slots(queues: Tensor, keep: Tensor, numbers: Tensor, counts: Tensor, ages: Tensor) -> Tensor:
    """The order of the published code. Updates ``counts``, here the entries held, and ``ages``.

    Stream numbers are kept as float16, and a full queue replaces its smallest number only by a larger one.
    Numbers therefore tie from 2,048 on, and from 65,520 on all are infinite: a queue full of those is frozen.
    What an entry replaces depends on the previous entry of its queue, so the batch is inserted in waves:
    first the first entry of every queue, then the second of every queue, and so on.
    """
    capacity = ages.shape[1]
    slots = torch.full_like(queues, len(counts) * capacity)
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
        slots[entries] = queue * capacity + place
    return slots


def visible_causally(
    queues: Tensor, keep: Tensor, counts: Tensor, capacity: int, width: int, arrived: Tensor
) -> tuple[Tensor, Tensor]:
    """What each image sees if entries are inserted one by one and images query in between.

    Args:
        queues: The queue of each of the ``n`` entries that arrive.
        keep: Which of them may be stored.
        counts: Entries per queue before the batch.
        capacity: Of each queue.
        width: How many places of the ring buffers there are to look at.
        arrived: How many entries have arrived when each of the ``B`` images asks.

    Returns:
        Two masks: ``(B, queues, width)`` over the first ``width`` places of the ring buffers before the
        batch, and ``(B, queues, n)`` over the batch itself. An entry is visible from its own arrival until
        ``capacity`` later entries have entered its queue.
    """
    running = running_counts(queues, keep, len(counts))
    so_far = F.pad(running, (0, 0, 1, 0))[arrived]
    oldest_seen = counts + so_far - capacity  # (B, queues), as a sequence number of the queue
    place = torch.arange(width, device=queues.device)
    newest = counts[:, None] - 1
    stored_sequence = newest - (newest - place) % capacity  # negative if the place is still empty
    stored = (stored_sequence >= 0) & (stored_sequence >= oldest_seen[:, :, None])

    own_sequence = counts[queues] + running.gather(1, queues[:, None])[:, 0] - 1
    has_come = torch.arange(len(queues), device=queues.device) < arrived[:, None]
    in_queue = (queues == torch.arange(len(counts), device=queues.device)[:, None]) & keep
    batch = has_come[:, None, :] & in_queue & (own_sequence >= oldest_seen[:, :, None])
    return stored, batch
