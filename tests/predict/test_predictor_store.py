"""A predictor with a store: killed or stopped at any place, it goes on as if nothing had happened."""

import pytest
import torch

import ramen
from ramen.utils.files import LockedError
from tests.state.streams import assert_same_state, make

IMAGES = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_resumes_as_if_never_stopped(tmp_path):
    with ramen.Predictor(make(), batch_size=4) as predictor:
        expected = list(predictor.classify(IMAGES))
        whole = predictor.method.state_dict()
    found = []
    for start in range(0, len(IMAGES), 8):
        sources = [(f"image {place}", IMAGES[place]) for place in range(start, start + 8)]
        with ramen.Predictor(make(), tmp_path / "state", batch_size=4) as predictor:
            assert list(predictor.resumed) == found[-4:]
            assert predictor.recovered is None
            found += predictor.classify(sources)
    assert found == expected
    assert_same_state(predictor.method.state_dict(), whole)


def test_what_was_answered_is_durable_before_the_next_answers(tmp_path):
    """Whoever stops reading after a batch, and is killed then, finds at least the batch before."""
    predictor = ramen.Predictor(make(), tmp_path, batch_size=4)
    results = predictor.classify(IMAGES)
    for _ in range(12):
        next(results)
    copy = tmp_path.with_name("copy")
    copy.mkdir()
    for path in tmp_path.glob("segment-*"):
        (copy / path.name).write_bytes(path.read_bytes())
    predictor.close()
    with ramen.Predictor(make(), copy) as other:
        assert other.method.images_seen in (8, 12)


def test_failed_sources_are_part_of_what_is_remembered(tmp_path):
    with ramen.Predictor(make(), tmp_path, batch_size=4) as predictor:
        results = list(predictor.classify([IMAGES[0], b"no image", IMAGES[1]]))
    assert results[1].error is not None
    with ramen.Predictor(make(), tmp_path) as predictor:
        assert list(predictor.resumed) == results


def test_batches_without_adaptation_are_saved_too(tmp_path):
    def failing(images, usable):
        raise RuntimeError("singular matrix")

    method = make()
    method.adapt = failing
    with ramen.Predictor(method, tmp_path) as predictor:
        result = predictor.classify_one(IMAGES[0])
    with ramen.Predictor(make(), tmp_path) as predictor:
        assert list(predictor.resumed) == [result]


def test_a_store_in_use_or_of_something_else_is_refused(tmp_path):
    with ramen.Predictor(make(), tmp_path) as predictor:
        list(predictor.classify(IMAGES[:4]))
        with pytest.raises(LockedError):
            ramen.Predictor(make(), tmp_path)
    with pytest.raises(ValueError, match="belongs to something else"):
        ramen.Predictor(make("tent"), tmp_path)


def test_a_disk_that_fills_up_costs_no_answer(tmp_path, monkeypatch):
    def no_room(handle, piece):
        raise OSError(28, "No space left on device")

    with ramen.Predictor(make(), tmp_path, batch_size=4) as predictor:
        with monkeypatch.context() as patch:
            patch.setattr("ramen.state.log.os.write", no_room)
            results = list(predictor.classify(IMAGES[:8]))
            with pytest.raises(OSError, match="No space left"):
                predictor.flush()
        assert [result.error for result in results] == [None] * 8
        predictor.flush()
    with ramen.Predictor(make(), tmp_path) as predictor:
        assert predictor.method.images_seen == 8
