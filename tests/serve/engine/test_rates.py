import numpy as np
import pytest

from ramen.serve.engine.statistics import Rates


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_nothing_answered() -> None:
    rates = Rates()
    assert (rates.images_per_second(), rates.recent_rate(), rates.mean_batch()) == (0.0, 0.0, None)
    assert rates.latency_ms() == rates.compute_ms() == {}


def test_rates_are_over_ten_seconds() -> None:
    clock = Clock()
    rates = Rates(clock)
    for _ in range(30):
        clock.now += 1.0
        rates.add(8, 20.0, [50.0] * 8)
    assert rates.images_per_second() == pytest.approx(8, rel=0.2)
    assert rates.recent_rate() == pytest.approx(8, rel=0.2)
    assert rates.mean_batch() == 8
    clock.now += 11
    assert rates.images_per_second() == 0.0
    assert rates.latency_ms() == {}


def test_a_young_engine_does_not_divide_by_ten_seconds() -> None:
    clock = Clock()
    rates = Rates(clock)
    clock.now += 2
    rates.add(10, 1.0, [1.0])
    assert rates.images_per_second() == 5.0


def test_percentiles() -> None:
    rates = Rates(Clock())
    latencies = [float(n) for n in range(1000)]
    rates.add(1000, 7.0, latencies)
    assert rates.latency_ms() == {
        name: pytest.approx(np.percentile(latencies, q))
        for name, q in (("p50", 50), ("p90", 90), ("p99", 99))
    }
    assert rates.compute_ms() == {"p50": 7.0, "p90": 7.0, "p99": 7.0}


def test_one_slow_batch_does_not_change_how_long_a_step_usually_takes() -> None:
    clock = Clock()
    rates = Rates(clock)
    assert rates.usual_step_seconds() == 0.0
    for milliseconds in (100.0, 120.0, 5000.0, 110.0, 130.0):
        clock.now += 1.0
        rates.add(8, 20.0, [1.0])
        rates.add(8, milliseconds, [1.0])
    assert rates.usual_step_seconds() == pytest.approx(0.12)
    clock.now += 11
    assert rates.usual_step_seconds() == 0.0


def test_memory_is_bounded() -> None:
    clock = Clock()
    rates = Rates(clock)
    for _ in range(300):
        clock.now += 0.1
        rates.add(1000, 1.0, [1.0] * 1000)
    assert len(rates._seconds) <= 12
    assert max(len(second.latencies) for second in rates._seconds) <= 2000
    assert rates.images_per_second() == pytest.approx(10_000, rel=0.2)
