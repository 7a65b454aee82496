"""What the engine answers, against ``method.predict`` on the same images, one stream at a time."""

import itertools
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import ramen
from ramen import testing
from ramen.client.operations import (
    DeadlineExceededError,
    InvalidRequestError,
    NoSuchStreamError,
    SentImage,
    StoppingError,
)
from ramen.serve.pixels import PixelRules
from ramen.state import open_store
from tests.helpers.leftovers import left_running
from tests.helpers.photos import encoded, photo
from tests.helpers.sent_images import pixels, sent
from tests.oracles.answers_by_hand import assert_same_results, results_by_hand
from tests.serve.engine.engines import PATIENCE, ask, engine, make


def by_hand(method: ramen.Method, *seeds: int) -> list[ramen.Result]:
    return results_by_hand(method, [[(str(seed), Image.fromarray(pixels(seed)))] for seed in seeds])


def without_versions(results: list[ramen.Result]) -> list[ramen.Result]:
    """Which depend on what came together."""
    return [replace(result, state_version=0) for result in results]


def test_streams_are_answered_as_if_each_were_alone_and_one_image_came_at_a_time(clf) -> None:
    order = {name: [100 * place + n for n in range(25)] for place, name in enumerate("abc")}
    with engine(clf) as where:
        tickets = [(name, where.submit(name, sent(order[name][n]))) for n in range(25) for name in order]
        answers = [(name, ticket.future.result(PATIENCE)) for name, ticket in tickets]
        assert where.statistics().batches < 75  # some came together
        for name, seeds in order.items():
            found = [answer.result for owner, (answer,) in answers if owner == name]
            expected = by_hand(make(clf), *seeds)
            # passes of another size round otherwise, and a signed step makes that visible
            assert_same_results(without_versions(found), without_versions(expected), within=1e-4)
            info = where.stream(name)
            assert (info.images, info.entries) == (25, _entries(make(clf), seeds))
            assert info.changed == sum(result.changed for result in found)
    assert not left_running()


def _entries(method: ramen.Method, seeds: list[int]) -> int:
    by_hand(method, *seeds)
    return len(method.memory)


def test_the_order_of_a_stream_is_that_of_the_calls_although_decoding_is_parallel(clf) -> None:
    """The first image of each pair takes much longer to decode than the second."""
    large, small = encoded(photo(1, (1500, 1500))), encoded(photo(2))
    pairs = [SentImage(str(n), large if n % 2 == 0 else small) for n in range(8)]
    with engine(clf) as where:
        tickets = [where.submit("a", [image]) for image in pairs]
        found = [ticket.future.result(PATIENCE)[0].result for ticket in tickets]
    images = [photo(1, (1500, 1500)), photo(2)]
    expected = results_by_hand(make(clf), [[(str(n), images[n % 2])] for n in range(8)])
    assert_same_results(without_versions(found), without_versions(expected), within=1e-4)


def test_an_answer_has_all_that_operators_need(clf) -> None:
    with engine(clf) as where:
        first, second = ask(where, "a", 1, 2)
    assert first.stream == "a"
    assert first.id != second.id
    assert first.probabilities is not None
    assert first.probabilities.dtype == np.float32
    assert first.probabilities.shape == (5,)
    assert first.probabilities.sum() == pytest.approx(1)
    assert clf.classes[first.probabilities.argmax()] == first.result.label
    assert first.probabilities.max() == pytest.approx(first.result.probability)
    assert first.result.state_version == second.result.state_version == 2
    assert first.queued_ms >= 0
    assert first.computed_ms > 0


@pytest.mark.parametrize("method", ["clip", "tent", "tda"])
def test_other_methods(clf, method: str) -> None:
    with engine(clf, method=method) as where:
        found = [answer.result for seed in range(4) for answer in ask(where, "a", seed)]
        assert where.stream("a").method == method
    assert_same_results(found, by_hand(ramen.create(method, clf), *range(4)))


def test_images_that_cannot_be_decoded_are_not_learned_from_and_the_others_are_answered(clf) -> None:
    image = encoded(photo(3))
    with engine(clf) as where:
        images = [SentImage("x", b"junk"), SentImage("y", image), SentImage("z", image[:50])]
        bad, good, cut = where.submit("a", images).future.result(PATIENCE)
        info, statistics = where.stream("a"), where.statistics()
        (only,) = where.submit("b", [SentImage("x", b"")]).future.result(PATIENCE)
        with pytest.raises(NoSuchStreamError):  # it would exist from its first image on
            where.stream("b")
    assert bad.result.error is not None
    assert bad.result.error.startswith("x cannot be read as an image")
    assert (bad.id, bad.probabilities, bad.result.label) == ("", None, None)
    assert cut.result.error is not None
    assert only.result.error is not None
    assert good.result.error is None
    assert good.result.state_version == 1
    assert (info.images, info.errors, info.entries) == (1, 2, 1)
    assert (statistics.images, statistics.undecodable, statistics.requests) == (1, 2, 1)


def test_a_path_is_never_opened(clf, tmp_path: Path) -> None:
    path = tmp_path / "photo.png"
    photo(1).save(path)
    with engine(clf) as where:
        for data in (str(path), path, np.zeros((32, 32, 3), np.float32), None, bytearray(path.read_bytes())):
            with pytest.raises(InvalidRequestError, match="image 'k' must be bytes or an array of uint8"):
                where.submit("a", [SentImage("k", data)])  # type: ignore[arg-type]
        (answer,) = where.submit("a", [SentImage("k", str(path).encode())]).future.result(PATIENCE)
    assert answer.result.error is not None


def test_requests_that_make_no_sense_are_refused(clf) -> None:
    with engine(clf, create_on_use=False) as where:
        where.create_stream("a")
        with pytest.raises(InvalidRequestError, match="1 to 8 images, got 0"):
            where.submit("a", [])
        with pytest.raises(InvalidRequestError, match="1 to 8 images, got 9"):
            where.submit("a", sent(*range(9)))
        with pytest.raises(InvalidRequestError, match="name"):
            where.submit("../a", sent(1))
        with pytest.raises(InvalidRequestError, match="timeout"):
            where.submit("a", sent(1), timeout=float("nan"))
        with pytest.raises(NoSuchStreamError, match="no stream 'b'"):
            where.submit("b", sent(1))
        assert len(ask(where, "a", 1)) == 1
        assert where.statistics().streams == 1
    with engine(clf, max_queue_images=3, max_queue_bytes=5000) as where:
        with pytest.raises(InvalidRequestError, match="1 to 3 images, got 4"):
            where.submit("a", sent(*range(4)))
        with pytest.raises(InvalidRequestError, match="at most 5000 bytes, got 6144"):
            where.submit("a", sent(1, 2))


def test_cancelled_and_expired_images_leave_no_trace(clf) -> None:
    with engine(clf, max_delay_ms=300.0) as where:
        gone = [where.submit("a", sent(seed)) for seed in (50, 51)]
        kept = where.submit("a", sent(1))
        late = where.submit("a", sent(52), timeout=0.001)
        for one in gone:
            one.cancel()
        found = [answer.result for answer in kept.future.result(PATIENCE)]
        assert isinstance(late.future.exception(PATIENCE), DeadlineExceededError)
        found += [answer.result for answer in ask(where, "a", 2)]
        statistics = where.statistics()
        assert where.stream("a").images == where.stream("a").entries == 2
    assert_same_results(found, by_hand(make(clf), 1, 2))
    assert (statistics.cancelled, statistics.expired, statistics.images) == (2, 1, 2)


def test_closing_answers_what_was_accepted_and_refuses_the_rest(clf) -> None:
    where = engine(clf, max_delay_ms=1000.0)
    assert where.ready()
    tickets = [where.submit(name, sent(seed)) for seed in range(3) for name in "ab"]
    where.close()
    assert not where.ready()
    assert all(ticket.future.done() and len(ticket.future.result()) == 1 for ticket in tickets)
    with pytest.raises(StoppingError):
        where.submit("a", sent(1))
    with pytest.raises(StoppingError):
        where.stream("a")
    where.close()
    assert not left_running()


def test_what_is_served_is_described() -> None:
    with engine(testing.small_classifier(classes=3), max_batch=5) as where:
        model = where.model
    assert (model.name, model.method, model.max_batch) == ("model", "ramen", 5)
    assert model.classes == ("class 0", "class 1", "class 2")
    assert (model.image_size, model.can_set_classes) == ((32, 32), True)
    assert (model.device, model.dtype) == ("cpu", "float32")


def test_statistics_of_the_whole_engine(clf) -> None:
    with engine(clf, max_queue_images=50) as where:
        empty = where.statistics()
        assert (empty.latency_ms, empty.mean_batch, empty.images_per_second) == ({}, None, 0.0)
        for seed in range(6):
            ask(where, "ab"[seed % 2], seed)
        found = where.statistics()
    assert (found.images, found.requests, found.batches) == (6, 6, 6)
    assert (found.streams, found.resident_streams, found.queue_images) == (2, 2, 50)
    assert found.waiting_images == found.waiting_bytes == 0
    assert found.resident_bytes > 0
    assert 0 < found.images_per_second <= 6
    assert 0 < found.compute_ms["p50"] <= found.latency_ms["p50"] <= found.latency_ms["p99"]
    assert found.mean_batch == 1.0


def test_without_a_state_nothing_is_left_on_the_disk(clf, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with engine(clf) as where:
        ask(where, "a", 1)
        assert list(tmp_path.iterdir())
    assert not list(tmp_path.iterdir())


def test_a_stream_that_pauses_is_written_in_time(clf, tmp_path: Path) -> None:
    with engine(clf, state=str(tmp_path / "state"), save_every="0.1s") as where:
        ask(where, "a", 1)
        ask(where, "a", 2)
        until, attempts = time.monotonic() + PATIENCE, itertools.count()
        while _images_in_copy(clf, tmp_path / "state/streams/a", tmp_path / f"copy-{next(attempts)}") < 2:
            assert time.monotonic() < until
            time.sleep(0.05)


def _images_in_copy(clf, folder: Path, copy: Path) -> int:
    """How many images somebody would find who took the files as they are now."""
    copy.mkdir()
    for path in folder.glob("segment-*.log"):
        (copy / path.name).write_bytes(path.read_bytes())
    method = make(clf)
    open_store(copy, method).close()
    return method.images_seen


def test_images_that_the_device_resizes_have_the_same_answers(clf, monkeypatch) -> None:
    """Frames of a camera, as pixels and as files, some of another size; a GPU does so by itself."""
    sizes = [(40, 50)] * 6 + [(60, 50), (40, 50)]
    frames = [np.asarray(photo(n, size)) for n, size in enumerate(sizes)]
    requests = [
        [SentImage(str(n), encoded(Image.fromarray(frame), "PNG")) for n, frame in enumerate(frames)],
        [SentImage(str(n), frame) for n, frame in enumerate(np.stack(frames[:6]).copy())],
        [SentImage("bad", b"nothing"), SentImage("7", encoded(Image.fromarray(frames[7]), "PNG"))],
    ]
    found = []
    for resizes in (False, True):
        rules = PixelRules(clf.preprocess, resizes=resizes)
        monkeypatch.setattr("ramen.serve.engine.engine.PixelRules", lambda *_, rules=rules, **__: rules)
        with engine(clf) as where:
            answered = [where.submit("a", request).future.result(PATIENCE) for request in requests * 2]
        found.append([replace(one.result, support=0) for answers in answered for one in answers])
    assert found[0] == found[1]
    assert [one.error is None for one in found[0][-2:]] == [False, True]
