"""A memory of whole images, of which a policy decides by slot numbers which ones stay."""

from collections.abc import Mapping
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from ramen.memory.base import StreamMemory, expect, expect_finite, expect_names
from ramen.memory.policies import SlotPolicy
from ramen.utils.distributed import Peers


class ImageStore:
    """Up to ``capacity`` images of one size; slots fill from the first one on and are then overwritten.

    The encoder's own type loses nothing that the encoder would see. Without a size the first images decide.
    """

    def __init__(
        self, capacity: int, dtype: torch.dtype, device: torch.device, size: tuple[int, int] | None
    ) -> None:
        self.capacity, self.dtype, self.device = capacity, dtype, device
        self._given_size = self._size = size
        self._images: Tensor | None = None  # there once an image has come
        self._filled = 0

    def __len__(self) -> int:
        return self._filled

    @property
    def images(self) -> Tensor:
        """The stored images, ``(len, 3, H, W)``; not a copy."""
        if self._images is None:
            return torch.empty(0, 3, *(self._size or (0, 0)), dtype=self.dtype, device=self.device)
        return self._images[: self._filled]

    def check(self, images: Tensor) -> None:
        """Raise ValueError unless ``images`` have the size of those that are kept."""
        if self._size is not None and tuple(images.shape[2:]) != self._size:
            came = tuple(images.shape[2:])
            raise ValueError(f"images must have the size of those in the memory, {self._size}, got {came}")

    def storable(self, images: Tensor) -> Tensor:
        """Which images stay finite as they are stored, ``(B,)``."""
        return images.to(self.dtype).isfinite().flatten(1).all(1)

    def put(self, images: Tensor, placed: Mapping[int, int]) -> None:
        """Write into each slot in ``placed`` the image of ``images`` that it names."""
        if not placed:
            return
        if self._images is None:
            self._size = (images.shape[2], images.shape[3])
            self._images = torch.zeros(self.capacity, 3, *self._size, dtype=self.dtype, device=self.device)
        slots, rows = torch.tensor([list(placed.keys()), list(placed.values())], device=self.device)
        self._images[slots] = images[rows].to(self.dtype)
        self._filled = max(self._filled, max(placed) + 1)

    def clear(self) -> None:
        """Forget the images, and the size unless it was given."""
        self._images, self._filled, self._size = None, 0, self._given_size

    def restored(self, images: object) -> "ImageStore":
        """A store like this one that holds ``images``, as they were taken from ``images`` once."""
        store = ImageStore(self.capacity, self.dtype, self.device, self._given_size)
        count = len(images) if isinstance(images, Tensor) and images.ndim == 4 else 0
        sizes = tuple(images.shape[2:]) if isinstance(images, Tensor) and images.ndim == 4 else (0, 0)
        expect("images", images, self.dtype, (count, 3, *(self._given_size or sizes)))
        assert isinstance(images, Tensor)
        if count > self.capacity:
            raise ValueError(f"images in the state must be at most {self.capacity}, got {count}")
        expect_finite("images", images)
        store.put(images.to(self.device), {slot: slot for slot in range(count)})
        return store

    def max_bytes(self) -> int:
        """What a full store takes; without a given size this is known once the first image has come."""
        height, width = self._size or (0, 0)
        return self.capacity * 3 * height * width * self.dtype.itemsize


_Policy = TypeVar("_Policy", bound=SlotPolicy)


class ImageMemory(StreamMemory, Generic[_Policy]):
    """Up to ``capacity`` images, stored as ``ImageStore`` does, and what a policy that decides knows of them.

    Each of the processes of a group keeps all images that stay; batches are then those of this process, and
    images are numbered within the global batch.
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
        self.policy = policy
        self._peers = peers
        self._store = ImageStore(capacity, dtype, device, size)
        self._batch: Tensor | None = None
        self._placed: dict[int, int] = {}  # slot to index in the batch: accepted, but not yet copied

    def __len__(self) -> int:
        return len(self.images)

    @property
    def images(self) -> Tensor:
        self.settle()
        return self._store.images

    def storable(self, images: Tensor) -> Tensor:
        self._store.check(images)
        return self._store.storable(images)

    def offer(self, batch: Tensor, index: int, *facts: Any) -> None:
        """Offer image ``index`` of a batch, with the facts that the policy decides by."""
        slot = self.policy.insert(*facts)
        if slot is not None:
            self._batch = batch
            self._placed[slot] = index

    def settle(self) -> None:
        """Copy the accepted images of a batch, of which nothing is needed any more."""
        if self._batch is not None:
            self._store.put(*self._arrived(self._batch, self._placed))
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

    # -- state --------------------------------------------------------------------------------------

    def clear(self) -> None:
        self.policy = self.policy.emptied()
        self._batch, self._placed = None, {}
        self._store.clear()

    def state(self) -> dict[str, Tensor]:
        return {"images": self.images.clone(), **self.policy.state()}

    def check(self, state: Mapping[str, Tensor]) -> None:
        self._restored(state)

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._store, self.policy = self._restored(state)
        self._batch, self._placed = None, {}

    def _restored(self, state: Mapping[str, Tensor]) -> tuple[ImageStore, _Policy]:
        expect_names("the memory's state", state, {"images", *self.policy.state()})
        store = self._store.restored(state["images"])
        return store, self.policy.restored(state, len(store))

    def most_bytes(self) -> int:
        """What it takes when full; see ``ImageStore.max_bytes`` for encoders that state no image size."""
        return self._store.max_bytes() + self.policy.most_bytes()
