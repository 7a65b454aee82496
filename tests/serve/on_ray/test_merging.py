from dataclasses import replace

from ramen.serve.on_ray.merging import MergedStatistics, merged_streams
from tests.fakes.engine_reports import STATISTICS, stream_info


def test_statistics_are_added_up():
    slow = replace(STATISTICS, latency_ms={"p50": 8.0, "p99": 8.5}, compute_ms={}, streams=9, mean_batch=12.0)
    found = MergedStatistics().merged({"a": STATISTICS, "b": slow})
    assert (found.images, found.parked, found.waiting_bytes) == (200, 14, 1400)
    assert (found.queue_images, found.streams_budget, found.images_per_second) == (2048, 2**31, 24.0)
    assert found.latency_ms == {"p50": 8.0, "p99": 9.0}
    assert found.compute_ms == STATISTICS.compute_ms
    assert found.streams == 9
    assert found.mean_batch == 6.0  # 12 images in 3 batches and 12 in 1


def test_nobody_is_there():
    found = MergedStatistics().merged({})
    assert (found.images, found.mean_batch, found.latency_ms) == (0, None, {})


def test_counters_never_go_down():
    merging = MergedStatistics()
    merging.merged({"a": STATISTICS, "b": STATISTICS})
    found = merging.merged({"b": replace(STATISTICS, images=101)})
    assert (found.images, found.requests) == (201, 100)
    assert found.queue_images == STATISTICS.queue_images


def test_a_stream_is_reported_by_the_replica_that_has_it():
    old, here = stream_info("b", images=1, last_used=5.0), stream_info("b", images=2, resident=True)
    newer = stream_info("c", images=4, last_used=9.0)
    reports = [[stream_info("a"), old, stream_info("c", last_used=2.0)], [here, newer, stream_info("d")]]
    assert merged_streams(reports, 3) == [stream_info("a"), here, newer]
    assert merged_streams(reversed(reports), 3) == [stream_info("a"), here, newer]
