"""A queue in which those who wait take turns."""

import threading
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

_Item = TypeVar("_Item")


class FairQueue(Generic[_Item]):
    """First in, first out for each key; keys take turns. Several threads may put and get."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._items: OrderedDict[Hashable, deque[_Item]] = OrderedDict()  # in the order of their turns
        self._closed = False

    def put(self, key: Hashable, items: Iterable[_Item]) -> None:
        """Add items for a key."""
        with self._changed:
            added = list(items)
            self._items.setdefault(key, deque()).extend(added)
            self._changed.notify(len(added))

    def get(self) -> _Item | None:
        """Wait for the next item; None when the queue is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._items or self._closed)
            if not self._items:
                return None
            key, items = next(iter(self._items.items()))
            item = items.popleft()
            if items:
                self._items.move_to_end(key)
            else:
                del self._items[key]
            return item

    def close(self) -> None:
        """Whoever waits gets what is left, and then None."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
