"""The predictor against the same batches answered by hand, its settings, and the place of the store."""

import io
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import ramen
from ramen import testing
from ramen.predict import predictor as module
from ramen.predict.predictor import Counts
from tests.fakes.crashing_decoder import CrashingDecoder
from tests.helpers.leftovers import left_running
from tests.helpers.photos import encoded, photo
from tests.oracles.answers_by_hand import assert_same_results, results_by_hand

PATIENCE = 120  # seconds; only a failure takes so long


@pytest.fixture
def method(clf: ramen.ZeroShotClassifier) -> ramen.Method:
    return make(clf)


def make(clf: ramen.ZeroShotClassifier) -> ramen.Method:
    return ramen.create("ramen", clf, capacity=6, topk=2, beta=5.0, lr=1e-2, codec="sign")


def in_batches(pairs: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [pairs[start : start + size] for start in range(0, len(pairs), size)]


def many_kinds(folder: Path) -> tuple[list[Any], list[tuple[str, Any]]]:
    """Sources of every kind, and for each of their images the key and what it shows, or the error."""
    folder.mkdir(parents=True, exist_ok=True)
    photos = [photo(seed, (30 + seed, 60 - seed)) for seed in range(20)]
    for number in range(4):
        photos[number].save(folder / f"{number}.png")
    (folder / "bad.jpg").write_bytes(b"junk")
    (folder / "notes.txt").write_text("no image")
    batch = torch.from_numpy(np.stack([np.asarray(photo(seed)) for seed in (30, 31)])).permute(0, 3, 1, 2)
    sources: list[Any] = [
        folder,
        str(folder / "[01].png"),
        folder / "2.png",
        encoded(photos[5]),
        io.BytesIO(encoded(photos[6])),
        photos[7],
        np.asarray(photos[8]),
        torch.from_numpy(np.array(photos[9])).permute(2, 0, 1),
        batch,
        ("door", encoded(photos[10], "BMP")),
        (3, photos[11]),
        [iter([photos[12]]), (image for image in photos[13:15])],
        None,
        str(folder / "no.png"),
        photos[15],
    ]
    names = [str(folder / f"{number}.png") for number in range(4)]
    bad = str(folder / "bad.jpg")
    unreadable = "it is none of JPEG, PNG, WEBP, BMP, GIF, TIFF, HEIF, AVIF, or its header is damaged"
    expected: list[tuple[str, Any]] = [
        *zip(names, photos, strict=False),
        (bad, f"{bad} cannot be read as an image: {unreadable}"),
        (names[0], photos[0]),
        (names[1], photos[1]),
        (names[2], photos[2]),
        *((f"image {8 + number}", photos[5 + number]) for number in range(5)),
        ("image 13", photo(30)),
        ("image 14", photo(31)),
        ("door", photos[10]),
        ("3", photos[11]),
        *((f"image {5 + number}", photos[number]) for number in (12, 13, 14)),
        ("image 20", "image 20: NoneType is no source of images"),
        (str(folder / "no.png"), f"{folder / 'no.png'}: no such file or folder"),
        ("image 22", photos[15]),
    ]
    return sources, expected


@pytest.mark.parametrize(("workers", "batch_size"), [(0, 1), (0, 5), (0, 100), (2, 5)])
def test_every_kind_of_source_is_answered_as_by_hand(
    clf: ramen.ZeroShotClassifier, tmp_path: Path, workers: int, batch_size: int
) -> None:
    sources, expected = many_kinds(tmp_path / "photos")
    with ramen.Predictor(make(clf), batch_size=batch_size, workers=workers) as predictor:
        found = list(predictor.classify(iter(sources)))
        assert not left_running()
        counts = predictor.counts
    by_hand = results_by_hand(make(clf), in_batches(expected, batch_size))
    assert_same_results(found, by_hand)
    errors = sum(isinstance(shown, str) for _, shown in expected)
    assert counts == Counts(
        images=len(expected) - errors, errors=errors, changed=sum(result.changed for result in by_hand)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["ramen", "tent"])
def test_on_a_gpu(name: str) -> None:
    """With batches often enough for CUDA graphs to be recorded and replayed."""
    clf = testing.small_classifier(device="cuda")
    with ramen.Predictor(ramen.create(name, clf), batch_size=4) as predictor:
        found = list(predictor.classify(photo(seed) for seed in range(30)))
        found.append(predictor.classify_one(photo(30)))
    pairs = [(f"image {seed}", photo(seed)) for seed in range(30)]
    batches = [*in_batches(pairs, 4), [("image 0", photo(30))]]
    assert_same_results(found, results_by_hand(ramen.create(name, clf), batches))


def test_one_stream_after_another_continues_the_same_adaptation(clf: ramen.ZeroShotClassifier) -> None:
    with ramen.Predictor(make(clf), batch_size=4) as predictor:
        first = list(predictor.classify(photo(seed) for seed in range(6)))
        second = list(predictor.classify(photo(seed) for seed in range(6, 9)))
        alone = predictor.classify_one(photo(9))
    batches = [[(f"image {n}", photo(n)) for n in part] for part in (range(4), range(4, 6))]
    batches += [[(f"image {n - 6}", photo(n)) for n in range(6, 9)], [("image 0", photo(9))]]
    assert_same_results([*first, *second, alone], results_by_hand(make(clf), batches))
    assert alone.state_version == 10


def test_the_callers_modes_change_nothing(clf: ramen.ZeroShotClassifier) -> None:
    """Inference mode, autocast and a default dtype are settings of the thread that reads the results."""
    torch.set_default_dtype(torch.float64)
    try:
        with (
            torch.inference_mode(),
            torch.autocast("cpu", torch.bfloat16),
            ramen.Predictor(make(clf), batch_size=4) as predictor,
        ):
            found = list(predictor.classify(photo(seed) for seed in range(6)))
            found.append(predictor.classify_one(photo(6)))
    finally:
        torch.set_default_dtype(torch.float32)
    pairs = [(f"image {seed}", photo(seed)) for seed in range(6)]
    batches = [*in_batches(pairs, 4), [("image 0", photo(6))]]
    assert_same_results(found, results_by_hand(make(clf), batches))


def test_a_bad_source_changes_no_other_answer(clf: ramen.ZeroShotClassifier) -> None:
    """The others of its batch are answered as a batch without it; the batches after it stay the same."""
    with ramen.Predictor(make(clf), batch_size=4) as predictor:
        found = list(predictor.classify([photo(0), photo(1), b"junk", *map(photo, range(2, 8))]))
    good = [result for result in found if result.error is None]
    batches = [[0, 1, 2], [3, 4, 5, 6], [7]]
    keys = iter([0, 1, 3, 4, 5, 6, 7, 8])
    expected = results_by_hand(
        make(clf), [[(f"image {next(keys)}", photo(seed)) for seed in batch] for batch in batches]
    )
    assert_same_results(good, expected)
    assert [result.key for result in found if result.error] == ["image 2"]


def test_a_batch_of_bad_sources_does_not_reach_the_method(
    method: ramen.Method, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ramen.Predictor(method, batch_size=2) as predictor:
        predictor.classify_one(photo(0))
        monkeypatch.setattr(method, "predict", None)
        found = list(predictor.classify([b"junk", None, b""]))
    assert [(result.state_version, result.adapted, result.label) for result in found] == [
        (1, False, None)
    ] * 3
    assert all(result.error.startswith(result.key) for result in found)
    assert predictor.counts == Counts(images=1, errors=3, changed=predictor.counts.changed)


@pytest.mark.parametrize(
    ("source", "error"),
    [
        (b"junk", "image 0 cannot be read as an image"),
        ("no such file.jpg", "no such file.jpg: no such file or folder"),
        (None, "image 0: NoneType is no source of images"),
        ([], "image 0: classify_one takes one image, got none"),
        ([b"a", b"b"], "image 0: classify_one takes one image, got several"),
        (("door", b"junk"), "door cannot be read as an image"),
    ],
)
def test_one_bad_image(method: ramen.Method, source: object, error: str) -> None:
    with ramen.Predictor(method) as predictor:
        result = predictor.classify_one(source)
    assert result.error.startswith(error)
    assert method.images_seen == 0


def test_limits_are_the_users(method: ramen.Method) -> None:
    with ramen.Predictor(
        method, formats=("PNG",), max_pixels=1000, max_bytes=5000, orient=False
    ) as predictor:
        jpeg = predictor.classify_one(encoded(photo(0, (10, 10)), "JPEG"))
        large = predictor.classify_one(photo(0, (40, 50)))
        heavy = predictor.classify_one(bytes(5001))
        fine = predictor.classify_one(encoded(photo(0, (10, 10))))
    assert jpeg.error.endswith("it is none of PNG, or its header is damaged")
    assert "40 pixels, more than 1000" in large.error
    assert "more than" in heavy.error
    assert fine.error is None


def test_phones_are_held_in_any_way(clf: ramen.ZeroShotClassifier) -> None:
    upright = photo(3, (32, 32))
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    upright.rotate(90).save(file, "PNG", exif=exif)
    with ramen.Predictor(make(clf)) as turning, ramen.Predictor(make(clf), orient=False) as leaving:
        turned, left = turning.classify_one(file.getvalue()), leaving.classify_one(file.getvalue())
    batches = [[("image 0", image)] for image in (upright, upright.rotate(90))]
    assert_same_results([turned], results_by_hand(make(clf), batches[:1]))
    assert_same_results([left], results_by_hand(make(clf), batches[1:]))


def test_files_that_kill_a_worker_cost_one_result(
    clf: ramen.ZeroShotClassifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "Decoder", CrashingDecoder)
    keys = [f"deadly {n}" if n == 4 else f"image {n}" for n in range(9)]
    with ramen.Predictor(make(clf), batch_size=3, workers=1) as predictor:
        found = list(predictor.classify([(key, photo(n)) for n, key in enumerate(keys)]))
    reason = "deadly 4 cannot be decoded: the process died of it, or memory ran out"
    pairs = [(key, reason if n == 4 else photo(n)) for n, key in enumerate(keys)]
    assert_same_results(found, results_by_hand(make(clf), in_batches(pairs, 3)))
    assert not left_running()


# -- failing adaptation -----------------------------------------------------------------------------------


def test_a_method_that_fails_now_and_then(
    clf: ramen.ZeroShotClassifier, caplog: pytest.LogCaptureFixture
) -> None:
    method, calls = make(clf), itertools.count()
    adapt = method.adapt

    def flaky(images: Tensor, usable: Tensor) -> Any:
        if next(calls) % 3 == 1:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return adapt(images, usable)

    method.adapt = flaky
    with ramen.Predictor(method, batch_size=2) as predictor:
        found = list(predictor.classify(photo(seed) for seed in range(12)))
    failed = [seed // 2 % 3 == 1 for seed in range(12)]
    assert [not result.adapted for result in found] == failed
    assert all(result.error is None for result in found)
    assert predictor.counts.zero_shot_fallbacks == 4
    assert predictor.counts.images == 12
    assert method.images_seen == 8
    assert len(caplog.records) == 1
    pairs = [(f"image {seed}", photo(seed)) for seed in range(12) if not failed[seed]]
    by_hand = results_by_hand(make(clf), in_batches(pairs, 2))
    assert_same_results([result for result in found if result.adapted], by_hand)


def test_an_interrupt_is_never_swallowed(method: ramen.Method) -> None:
    adapt = method.adapt

    def interrupted(images: Tensor, usable: Tensor) -> Any:
        method.adapt = adapt
        raise KeyboardInterrupt

    method.adapt = interrupted
    with ramen.Predictor(method, batch_size=2) as predictor:
        with pytest.raises(KeyboardInterrupt):
            list(predictor.classify(photo(seed) for seed in range(6)))
        assert not left_running()
        assert len(list(predictor.classify(photo(seed) for seed in range(6)))) == 6
        assert predictor.counts.images == 6


# -- settings and the store -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be a whole number"),
        ({"workers": -1}, ValueError, "workers must be at least 0, got -1"),
        ({"max_delay": -1}, ValueError, "max_delay must be finite and at least 0, got -1"),
        ({"formats": ("EPS",)}, ValueError, "formats must be one of 'JPEG', .* got 'EPS'"),
        ({"formats": "PNG"}, ValueError, "formats must be some of"),
        ({"max_pixels": 0}, ValueError, "max_pixels must be at least 1"),
        ({"max_bytes": 0}, ValueError, "max_bytes must be at least 1"),
        ({"orient": "yes"}, TypeError, "orient must be True or False"),
        ({"store": 3}, TypeError, "store must be a path or None, got int"),
        ({"save_every": 100}, ValueError, "save_every=100 needs a store"),
    ],
)
def test_bad_settings(
    method: ramen.Method, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        ramen.Predictor(method, **settings)


def test_bad_methods(clf: ramen.ZeroShotClassifier) -> None:
    with pytest.raises(TypeError, match=r"method must be a ramen\.Method, got ZeroShotClassifier"):
        ramen.Predictor(clf)
    bare = ramen.ZeroShotClassifier(testing.small_tower(), torch.randn(3, 16))
    with pytest.raises(ValueError, match="built without preprocessing"):
        ramen.Predictor(ramen.create("ensemble", bare))


def test_without_a_store_there_is_nothing_to_resume(method: ramen.Method) -> None:
    with ramen.Predictor(method) as predictor:
        assert predictor.resumed == ()
        assert predictor.recovered is None
        assert predictor.method is method
        assert predictor.counts == Counts()
        predictor.flush()
