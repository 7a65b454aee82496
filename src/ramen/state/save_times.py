"""When what was learned is written."""

import random
import re
import time

from ramen.utils import checks

_SPREAD = 0.25  # the most by which a pause is shorter, as a share of it
_PATIENCE = 20  # pause before whole states are written again, as a multiple of the time that it takes


class SaveTimes:
    """Decides when to save.

    Args:
        every: After each "batch", after that many images, or after so many seconds, such as "10s".
        spread: Whether to shorten each pause at random: stores of streams that are answered together would
            otherwise be written together, again and again, and hold up a batch all at once.
    """

    def __init__(self, every: int | str, *, spread: bool = False) -> None:
        self._images, self._seconds = 1, 0.0
        if isinstance(every, str):
            found = re.fullmatch(r"(\d+(?:\.\d+)?) ?s", every)
            if found is None and every != "batch":
                raise ValueError(
                    f"save_every must be 'batch', a number of images, or seconds such as '10s', got {every!r}"
                )
            self._seconds = float(found[1]) if found else 0.0
        else:
            self._images = checks.integer("save_every", every, 1)
        self._spread = _SPREAD if spread else 0.0
        self._pause = self._next_pause()
        self._started = self._last = time.monotonic()
        self._took = 0.0

    def _next_pause(self) -> float:
        return self._seconds * (1 - self._spread * random.random())

    @property
    def by_clock(self) -> bool:
        """Whether seconds decide, and not images."""
        return self._seconds > 0

    def due(self, images: int, *, patient: bool) -> bool:
        """Whether to save now.

        Args:
            images: That were answered since the last time.
            patient: The whole state has to be written: then no more often than costs a twentieth of the time.
        """
        pause = max(self._pause, _PATIENCE * self._took if patient else 0.0)
        return images >= self._images and time.monotonic() - self._last >= pause

    def started(self) -> None:
        """Writing begins."""
        self._started = time.monotonic()

    def ended(self) -> None:
        """It was written."""
        self._last = time.monotonic()
        self._took = self._last - self._started
        self._pause = self._next_pause()
