"""What a memory will store and how many bytes it will take, before it is created."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ramen.memory import codecs
from ramen.memory.rows import ColumnSpec
from ramen.utils.checks import readable_bytes
from ramen.utils.devices import free_bytes
from ramen.utils.numerics import aligned

ORDERS = ("exact", "float16")  # what a full queue drops: the oldest entry, or that of the published code
_CPU = torch.device("cpu")
_SHARE_TO_TAKE = 0.5  # of the free memory; encoding, retrieval and other streams need the rest
# What "auto" stands for, best first: fp32 takes twice the room and time of fp16 and gives the same labels.
_AUTO_CODECS = tuple(name for name in codecs.CODECS if name != "fp32")


@dataclass(frozen=True)
class MemoryPlan:
    """The arguments of ``ramen.memory.Memory``, and what follows from them.

    ``codec`` may be ``"auto"`` until ``within`` has chosen one.
    """

    queues: int
    capacity: int
    embedding_size: int
    gradient_size: int
    codec: str = "fp16"
    blocks: Sequence[int] | None = None
    fifo: str = "exact"
    device: torch.device = _CPU  # given as text, it is parsed
    gradient_device: torch.device | None = None  # that of the embeddings if not given

    def __post_init__(self) -> None:
        object.__setattr__(self, "device", torch.device(self.device))
        if self.gradient_device is not None:
            object.__setattr__(self, "gradient_device", torch.device(self.gradient_device))

    @property
    def slots(self) -> int:
        """The most entries in all queues together."""
        return self.queues * self.capacity

    def columns(self) -> dict[str, ColumnSpec]:
        """What is stored per entry."""
        codec = codecs.create(self.codec, self.gradient_size, self.blocks)
        with_gradients = self.gradient_device or self.device
        return {
            "embeddings": ColumnSpec(codec.embedding_dtype, self.device, self.embedding_size),
            "gradients": ColumnSpec(codec.dtype, with_gradients, codec.width),
            "scales": ColumnSpec(codec.scale_dtype, with_gradients, codec.scale_width),
            "entropies": ColumnSpec(torch.float32, self.device),
            "tags": ColumnSpec(torch.int64, self.device),
            "numbers": ColumnSpec(torch.int64, self.device),
        }

    def index(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """Shapes and dtypes of the tensors that locate the entries."""
        spec: dict[str, tuple[tuple[int, ...], torch.dtype]] = {
            "table": ((self.slots + 1,), torch.int64),  # each slot's row, -1 for none; then the spare row
            "counts": ((self.queues,), torch.int64),  # entries ever taken per queue ("float16": held)
            "used": ((), torch.int64),  # rows in use
        }
        if self.fifo == "float16":
            spec["ages"] = ((self.queues, self.capacity), torch.float16)
        return spec

    def max_bytes(self) -> dict[torch.device, int]:
        """Bytes of the memory with every queue full, per device."""
        needed = {self.device: sum(math.prod(shape) * t.itemsize for shape, t in self.index().values())}
        for column in self.columns().values():
            needed[column.device] = needed.get(column.device, 0) + aligned(self.slots + 1) * column.row_bytes
        return needed

    def within(self, budget: int | None, least_capacity: int | None = None) -> "MemoryPlan":
        """The same plan, with a codec that fits in place of ``"auto"``, and a capacity that fits.

        ``"auto"`` stands for fp16, or the most exact of the smaller codecs if that does not fit.

        Args:
            budget: The most bytes that the full memory may take. Without it, what is chosen here takes up to
                half of the free memory of each device; a plan with nothing to choose is accepted unchecked.
            least_capacity: The capacity may be lowered to this, if no codec fits otherwise; never if None.

        Raises:
            MemoryError: The memory does not fit, whatever is chosen.
        """
        auto = self.codec == "auto"
        plans = [replace(self, codec=name) for name in _AUTO_CODECS] if auto else [self]
        if budget is None and not auto and least_capacity is None:
            return self
        for plan in plans:
            excess = _excess(plan, budget)
            if excess is None:
                return plan
        smaller = None if least_capacity is None else plans[-1]._lowered(budget, least_capacity)
        if smaller is None:
            raise MemoryError(f"even the smallest codec is too large: {excess}" if auto else excess)
        return smaller

    def _lowered(self, budget: int | None, least: int) -> "MemoryPlan | None":
        """With the largest capacity that fits; None if not even ``least`` does."""
        fitting, too_large = 0, self.capacity
        while too_large - fitting > 1:
            middle = (fitting + too_large) // 2
            if _excess(replace(self, capacity=middle), budget) is None:
                fitting = middle
            else:
                too_large = middle
        return replace(self, capacity=fitting) if fitting >= max(1, least) else None


def _excess(plan: MemoryPlan, budget: int | None) -> str | None:
    """None if the memory fits, else a message that says why not."""
    needed = plan.max_bytes()
    what = f"{plan.queues} queues of capacity={plan.capacity} with codec {plan.codec!r}"
    if budget is not None:
        total = sum(needed.values())
        if total <= budget:
            return None
        return (
            f"{what} take up to {readable_bytes(total)}, but memory_budget is {readable_bytes(budget)}: "
            f"raise it or lower capacity{_smaller(plan)}"
        )
    for device, count in needed.items():
        free = free_bytes(device)
        if free is not None and count > _SHARE_TO_TAKE * free:
            share = readable_bytes(int(_SHARE_TO_TAKE * free))
            return (
                f"{what} take up to {readable_bytes(count)} on {device}, but the limit is {share}, half "
                "of the free memory: lower capacity, choose another placement, or set memory_budget to "
                "override the limit"
            )
    return None


def _smaller(plan: MemoryPlan) -> str:
    smallest = replace(plan, codec=codecs.CODECS[-1])
    if plan.codec == smallest.codec:
        return ""
    size = readable_bytes(sum(smallest.max_bytes().values()))
    return f", or choose a smaller codec ({smallest.codec!r} takes {size}, 'auto' the best that fits)"
