"""When what was learned is written."""

import re
import time

from ramen.utils import checks

_PATIENCE = 20  # pause before whole states are written again, as a multiple of the time that it takes


class SaveTimes:
    """Decides when to save.

    Args:
        every: After each "batch", after that many images, or after so many seconds, such as "10s".
    """

    def __init__(self, every: int | str) -> None:
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
        self._started = self._last = time.monotonic()
        self._took = 0.0

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
        pause = max(self._seconds, _PATIENCE * self._took if patient else 0.0)
        return images >= self._images and time.monotonic() - self._last >= pause

    def started(self) -> None:
        """Writing begins."""
        self._started = time.monotonic()

    def ended(self) -> None:
        """It was written."""
        self._last = time.monotonic()
        self._took = self._last - self._started
