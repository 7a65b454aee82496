"""When to save, on a clock that the tests set."""

import pytest

from ramen.state import SaveTimes
from ramen.state import store as save_times


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(save_times, "time", made)
    return made


def pauses(clock: Clock, times: SaveTimes, count: int) -> list[float]:
    """Seconds until each of so many writes is due, found to a hundredth."""
    found = []
    for _ in range(count):
        start = clock.now
        while not times.due(1, patient=False):
            clock.now += 0.01
        found.append(clock.now - start)
        times.started()
        times.ended()
    return found


def test_a_store_by_itself_is_written_on_time(clock: Clock) -> None:
    assert pauses(clock, SaveTimes("2s"), 5) == pytest.approx([2.0] * 5, abs=0.02)


def test_stores_of_many_streams_are_written_at_different_times_and_never_later(clock: Clock) -> None:
    found = pauses(clock, SaveTimes("2s", spread=True), 200)
    assert 1.48 <= min(found) < 1.55
    assert 1.95 < max(found) <= 2.02


def test_seconds_have_no_part_in_counting_images(clock: Clock) -> None:
    times = SaveTimes(3, spread=True)
    assert not times.due(2, patient=False)
    assert times.due(3, patient=False)
    assert not times.by_clock
