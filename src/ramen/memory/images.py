"""A memory of whole images, of which a policy decides by slot numbers which ones stay."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ramen.memory.base import StreamMemory, expect, expect_finite, expect_names
from ramen.memory.policies import SlotPolicy
from ramen.utils.distributed import Peers

_Policy = TypeVar("_Policy", bound=SlotPolicy)


class ImageMemory(StreamMemory, Generic[_Policy]):
    """Up to ``capacity`` images of one size, and what a policy that decides knows of them.

    Slots fill from the first one on and are then overwritten. The encoder's own type loses nothing that the
    encoder would see. Without a size the first images decide. Each of the processes of a group keeps all
    images that stay; batches are then those of this process, and images are numbered within the global batch.
    """

    def __init__(
        self,
        policy: _Policy,
        capacity: int,
        dtype: torch.dtype,
        device: torch.device,
        size: tuple[int, int] | None,
        peers: Peers | None = None,
    ) -> None:
        self.policy, self.capacity, self.dtype, self.device = policy, capacity, dtype, device
        self._given_size, self._peers = size, peers
        self._images: Tensor | None = None  # there once an image has come
        self._batch: Tensor | None = None
        self._placed: dict[int, int] = {}  # slot to index in the batch: accepted, but not yet copied
        self._filled, self._size = 0, size

    def __len__(self) -> int:
        return len(self.images)

    @property
    def images(self) -> Tensor:
        """The stored images, ``(len, 3, H, W)``; not a copy."""
        self.settle()
        if self._images is None:
            return torch.empty(0, 3, *(self._size or (0, 0)), dtype=self.dtype, device=self.device)
        return self._images[: self._filled]

    def storable(self, images: Tensor) -> Tensor:
        """Which images stay finite as they are stored, ``(B,)``; ValueError if they have another size."""
        if self._size is not None and tuple(images.shape[2:]) != self._size:
            came = tuple(images.shape[2:])
            raise ValueError(f"images must have the size of those in the memory, {self._size}, got {came}")
        return images.to(self.dtype).isfinite().flatten(1).all(1)

    def offer(self, batch: Tensor, index: int, *facts: Any) -> None:
        """Offer image ``index`` of a batch, with the facts that the policy decides by."""
        slot = self.policy.insert(*facts)
        if slot is not None:
            self._batch = batch
            self._placed[slot] = index

    def settle(self) -> None:
        """Copy the accepted images of a batch, of which nothing is needed any more."""
        if self._batch is not None:
            self._put(*self._arrived(self._batch, self._placed))
        self._batch, self._placed = None, {}

    def _arrived(self, batch: Tensor, placed: dict[int, int]) -> tuple[Tensor, dict[int, int]]:
        """A batch with all accepted images, and their places in it by slot."""
        if self._peers is None:
            return batch, placed
        wanted, sizes = sorted(set(placed.values())), self._peers.sizes
        ends = [sum(sizes[: rank + 1]) for rank in range(len(sizes))]
        by_process = [
            [number - end + size for number in wanted if end - size <= number < end]
            for end, size in zip(ends, sizes, strict=True)
        ]
        own = batch[torch.tensor(by_process[self._peers.rank], dtype=torch.int64, device=batch.device)]
        every = self._peers.gather(own, [len(numbers) for numbers in by_process], "gathering images")
        return every, {slot: wanted.index(number) for slot, number in placed.items()}

    def _put(self, images: Tensor, placed: Mapping[int, int]) -> None:
        """Write into each slot in ``placed`` the image that it names."""
        if not placed:
            return
        if self._images is None:
            self._size = (images.shape[2], images.shape[3])
            self._images = torch.zeros(self.capacity, 3, *self._size, dtype=self.dtype, device=self.device)
        slots, rows = torch.tensor([list(placed.keys()), list(placed.values())], device=self.device)
        self._images[slots] = images[rows].to(self.dtype)
        self._filled = max(self._filled, max(placed) + 1)

    # -- state --------------------------------------------------------------------------------------

    def clear(self) -> None:
        self.policy = self.policy.emptied()
        self._images, self._filled, self._size = None, 0, self._given_size
        self._batch, self._placed = None, {}

    def state(self) -> dict[str, Tensor]:
        return {"images": self.images.clone(), **self.policy.state()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        self._restored(state)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        policy = self._restored(state)
        self.clear()
        self.policy = policy
        self._put(state["images"].to(self.device), {slot: slot for slot in range(len(state["images"]))})

    def _restored(self, state: Mapping[str, Tensor]) -> _Policy:
        """The policy that continues from a state, which has been checked."""
        expect_names("the memory's state", state, {"images", *self.policy.state()})
        images: Any = state["images"]
        are_images = isinstance(images, Tensor) and images.ndim == 4
        count, size = (len(images), tuple(images.shape[2:])) if are_images else (0, (0, 0))
        expect("images", images, self.dtype, (count, 3, *(self._given_size or size)))
        if count > self.capacity:
            raise ValueError(f"images in the state must be at most {self.capacity}, got {count}")
        expect_finite("images", state["images"])
        return self.policy.restored(state, count)

    def most_bytes(self) -> int:
        """What it takes when full; without a given size this is known once the first image has come."""
        height, width = self._size or (0, 0)
        return self.capacity * 3 * height * width * self.dtype.itemsize + self.policy.most_bytes()
