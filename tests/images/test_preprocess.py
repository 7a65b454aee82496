"""The same numbers as open_clip's own transform, for every kind of image; and what is refused."""

import itertools
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from image_corpus import orientation
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from ramen.images import resize
from ramen.images.decoding import UnreadableImageError
from ramen.images.preprocess import Preprocess, fitted_size, open_image


def random_image(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    channels = {"RGB": 3, "RGBA": 4, "L": 1, "CMYK": 4, "LA": 2}
    rng = np.random.default_rng(seed)
    if mode == "P":
        return random_image(width, height, seed=seed).quantize(17)
    if mode == "1":
        return random_image(width, height, "L", seed).convert("1")
    pixels = rng.integers(0, 256, (height, width, channels[mode]), dtype=np.uint8)
    return Image.fromarray(
        pixels.squeeze(-1) if channels[mode] == 1 else pixels, mode=mode if mode == "CMYK" else None
    )


SIZES = [(32, 32), (50, 33), (31, 64), (224, 300), (7, 5), (64, 64)]


@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
@pytest.mark.parametrize("size", [32, (48, 32), (24, 40)])
def test_equals_open_clip(resize_mode: str, interpolation: str, size: object) -> None:
    config = PreprocessCfg(size=size, interpolation=interpolation, resize_mode=resize_mode, fill_color=7)
    theirs = image_transform_v2(config, is_train=False)
    ours = Preprocess.from_open_clip(vars(config))
    images = [random_image(w, h, seed=i) for i, (w, h) in enumerate(SIZES)]
    assert torch.equal(ours(images), torch.stack([theirs(p) for p in images]))


@pytest.mark.parametrize("resize_to", [24, 37, 64])
def test_cutting_out_less_than_the_short_side_equals_torchvision(resize_to: int) -> None:
    transforms = pytest.importorskip("torchvision.transforms")
    theirs = transforms.Compose(
        [
            transforms.Resize(resize_to, transforms.InterpolationMode.BILINEAR),
            transforms.CenterCrop(32),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.4)),
        ]
    )
    ours = Preprocess(32, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), "bilinear", resize_to=resize_to)
    images = [random_image(w, h, seed=i) for i, (w, h) in enumerate(SIZES)]
    assert torch.equal(ours(images), torch.stack([theirs(p) for p in images]))


@pytest.mark.parametrize(("crop", "start"), [("nearest", 2), ("floor", 1)])
def test_half_a_pixel_is_rounded_as_asked(crop: str, start: int) -> None:
    image = random_image(11, 8)
    cut = np.asarray(image)[:, start : start + 8]
    assert np.array_equal(Preprocess(8, crop=crop).pixels(image)[0].permute(1, 2, 0).numpy(), cut)


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK"])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest"])
def test_every_mode_of_pillow(mode: str, resize_mode: str) -> None:
    config = PreprocessCfg(size=24, resize_mode=resize_mode)
    theirs = image_transform_v2(config, is_train=False)
    image = random_image(40, 30, mode)
    assert torch.equal(Preprocess.from_open_clip(vars(config))(image)[0], theirs(image))


def test_scalar_statistics_and_random_interpolation() -> None:
    config = PreprocessCfg(size=24, mean=0.5, std=0.25, interpolation="random")
    image = random_image(40, 30)
    theirs = image_transform_v2(config, is_train=False)(image)
    assert torch.equal(Preprocess.from_open_clip(vars(config))(image)[0], theirs)


def test_paths_tensors_and_pil_images_agree(tmp_path: Path) -> None:
    image = random_image(50, 40)
    path = tmp_path / "image.png"
    image.save(path)
    tensor = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)
    preprocess = Preprocess((32, 32))
    results = [preprocess(x) for x in (image, path, str(path), tensor, tensor[None], [image], [path])]
    assert all(r.shape == (1, 3, 32, 32) and r.dtype == torch.float32 for r in results)
    assert all(torch.equal(a, b) for a, b in itertools.pairwise(results))
    assert preprocess([image, path, tensor]).shape == (3, 3, 32, 32)


def test_the_cifar_setting_upsamples_as_pillow_does() -> None:
    image = random_image(32, 32)
    up = np.asarray(image.resize((224, 224), Image.Resampling.BICUBIC))
    preprocess = Preprocess((224, 224), mean=(0, 0, 0), std=(1, 1, 1))
    assert np.array_equal((preprocess(image)[0].permute(1, 2, 0) * 255).round().numpy(), up)


def test_the_callers_image_is_not_changed() -> None:
    image = random_image(40, 30)
    before = image.tobytes()
    Preprocess((16, 16))(image)
    assert image.tobytes() == before
    assert image.size == (40, 30)


def test_one_number_or_a_list_is_a_size() -> None:
    assert Preprocess(32).size == Preprocess([32, 32]).size == Preprocess((32, 32)).size == (32, 32)


def test_another_default_device_or_type_changes_nothing() -> None:
    expected = Preprocess(16)(random_image(40, 30))
    try:
        torch.set_default_dtype(torch.float64)
        with torch.device("meta"):
            result = Preprocess(16)(random_image(40, 30))
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(result, expected)


# -- unusual images ---------------------------------------------------------------------------------


def test_sixteen_bits_and_floats_are_not_cut_off(tmp_path: Path) -> None:
    """They give the numbers of the same image in eight bits, from files and as PIL images."""
    narrow = random_image(40, 30, "L")
    values = np.asarray(narrow)
    wide = {
        "wide.png": Image.fromarray(values.astype(np.uint16) * 257),
        "wide.tif": Image.fromarray(values.astype(np.uint16) * 257),
        "unit.tif": Image.fromarray(values.astype(np.float32) / 255),
        "floats.tif": Image.fromarray(values.astype(np.float32)),
        "integers.tif": Image.fromarray(values.astype(np.int32)),
    }
    preprocess = Preprocess(24)
    for name, image in wide.items():
        image.save(tmp_path / name)
        for source in (image, tmp_path / name):
            assert torch.equal(preprocess(source), preprocess(narrow)), name
    out_of_range = Image.fromarray(np.array([[0, 1000]], np.float32))
    with pytest.raises(UnreadableImageError, match=r"image 1 cannot be read .*floats from 0 to 1000"):
        preprocess([narrow, out_of_range])


def test_photographs_of_data_sets_are_not_turned(tmp_path: Path) -> None:
    plain, turned = tmp_path / "plain.jpg", tmp_path / "turned.jpg"
    random_image(40, 30).save(plain)
    random_image(40, 30).save(turned, exif=orientation(6))
    assert torch.equal(Preprocess(24)(turned), Preprocess(24)(plain))


@pytest.mark.parametrize("size", [(1, 1), (2, 1), (1, 3)])
@pytest.mark.parametrize("resize_mode", ["shortest", "longest", "squash"])
def test_the_smallest_images(size: tuple[int, int], resize_mode: str) -> None:
    config = PreprocessCfg(size=32, resize_mode=resize_mode)
    theirs = image_transform_v2(config, is_train=False)
    image = random_image(*size)
    assert torch.equal(Preprocess.from_open_clip(vars(config))(image)[0], theirs(image))


@pytest.mark.parametrize("mode", ["RGB", "L", "LA", "RGBA", "P", "1", "CMYK"])
@pytest.mark.parametrize("size", [(4_001, 10), (10, 4_001), (3_000, 7)])
def test_elongated_images_equal_open_clip_without_enlarging_all_of_them(
    size: tuple[int, int], mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = PreprocessCfg(size=224)
    image = random_image(*size, mode)
    expected = image_transform_v2(config, is_train=False)(image)
    resize._rows_first.cache_clear()
    largest = largest_resize(monkeypatch)
    assert torch.equal(Preprocess.from_open_clip(vars(config))(image)[0], expected)
    assert max(largest) <= 2**22 + 2**16


def largest_resize(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The pixels of every image that Pillow resizes from now on."""
    original, asked = Image.Image.resize, [0]

    def counted(self: Image.Image, size: tuple[int, int], *rest: object) -> Image.Image:
        asked.append(size[0] * size[1])
        return original(self, size, *rest)

    monkeypatch.setattr(Image.Image, "resize", counted)
    return asked


@pytest.mark.parametrize("size", [(20_000, 10), (10, 20_000), (300_000, 1)])
def test_of_a_very_elongated_image_only_the_centre_counts(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gives the pixels of a short piece around its centre, up to the rounding of positions."""
    piece = random_image(min(size[0], 100), min(size[1], 100))
    image = Image.new("RGB", size, (9, 99, 200))
    image.paste(piece, ((size[0] - piece.width) // 2, (size[1] - piece.height) // 2))
    asked = largest_resize(monkeypatch)
    preprocess = Preprocess(224)
    pixels = preprocess.pixels(image)
    assert max(asked) <= 2**22 + 2**16
    assert (pixels.int() - preprocess.pixels(piece)).abs().max() <= 1
    batch = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1)[None]
    assert torch.equal(pixels_on_a_device(preprocess, batch), pixels)


# -- how tensors on a device are resized, computed on the CPU ---------------------------------------


def pixels_on_a_device(preprocess: Preprocess, batch: torch.Tensor) -> torch.Tensor:
    plan = preprocess._plan(tuple(batch.shape[2:]))
    assert resize.agrees_with_pillow(plan)
    return preprocess._padded(resize.resize(batch, plan))


@settings(max_examples=80, deadline=None)
@given(
    old=st.tuples(st.integers(1, 90), st.integers(1, 90)),
    size=st.tuples(st.integers(1, 64), st.integers(1, 64)),
    square=st.booleans(),
    interpolation=st.sampled_from(["bicubic", "bilinear", "lanczos", "nearest"]),
    mode=st.sampled_from(["shortest", "longest", "squash"]),
    seed=st.integers(0, 99),
)
def test_a_device_gives_the_same_pixels(
    old: tuple[int, int], size: tuple[int, int], square: bool, interpolation: str, mode: str, seed: int
) -> None:
    preprocess = Preprocess(
        size[0] if square else size, interpolation=interpolation, resize_mode=mode, fill_color=9
    )
    batch = torch.randint(256, (2, 3, *old), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    if 0 in fitted_size((old[1], old[0]), preprocess.size, mode):
        with pytest.raises(ValueError, match="too elongated"):
            preprocess._plan(old)
        return
    assert torch.equal(pixels_on_a_device(preprocess, batch), preprocess.pixels(batch))


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
@pytest.mark.parametrize("old", [(32, 32), (375, 500), (500, 333)])
def test_at_the_size_of_clip(old: tuple[int, int], mode: str) -> None:
    preprocess = Preprocess(224, resize_mode=mode)
    batch = torch.randint(256, (3, 3, *old), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    assert torch.equal(pixels_on_a_device(preprocess, batch), preprocess.pixels(batch))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_the_result_is_rounded_at_the_end(dtype: str) -> None:
    batch = torch.randint(256, (9, 3, 20, 20), dtype=torch.uint8)
    result = Preprocess(16)(batch, dtype=dtype)
    assert result.dtype == getattr(torch, dtype)
    assert torch.equal(result, Preprocess(16)(batch).to(result.dtype))


def test_a_device_that_cannot_do_it_exactly_leaves_it_to_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resize, "agrees_with_pillow", lambda plan: False)
    monkeypatch.setattr("ramen.images.preprocess.upload", lambda tensor, device: tensor)
    batch = torch.randint(256, (2, 3, 20, 20), dtype=torch.uint8)
    with pytest.warns(UserWarning, match="resizing on meta would not give the installed Pillow's pixels"):
        pixels = Preprocess(16).pixels(batch, device="meta")
    assert torch.equal(pixels, Preprocess(16).pixels(batch))


# -- bound to a device ------------------------------------------------------------------------------


def test_a_copy_bound_to_a_device_uses_it_unless_a_call_says_otherwise() -> None:
    image, free = random_image(20, 20), Preprocess(16)
    bound = free.to("meta")
    assert free.device is None
    assert bound.device == torch.device("meta")
    assert bound(image).device.type == bound.pixels(image).device.type == "meta"
    assert torch.equal(bound(image, device="cpu"), free(image))
    assert Preprocess(16, device=torch.device("cpu")).to("meta").device == torch.device("meta")


def test_the_device_is_no_part_of_the_settings() -> None:
    free = Preprocess((16, 24), interpolation="bilinear", fill_color=3)
    bound = free.to("cpu")
    assert bound == free
    assert hash(bound) == hash(free)
    assert repr(bound) == repr(free)
    assert "device" not in repr(free)
    assert bound.settings() == free.settings()
    names = ["size", "mean", "std", "interpolation", "resize_mode", "fill_color", "resize_to", "crop"]
    assert list(free.settings()) == names
    assert Preprocess(**bound.settings()) == free


# -- images that cannot be read ---------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Three good ones and two bad ones."""
    for index in range(3):
        random_image(40, 30, seed=index).save(tmp_path / f"{index}.png")
    (tmp_path / "bad.png").write_bytes((tmp_path / "0.png").read_bytes()[:300])
    return [tmp_path / name for name in ("0.png", "bad.png", "1.png", "missing.png", "2.png")]


def test_one_bad_file_is_an_error_unless_it_is_to_be_skipped(files: list[Path]) -> None:
    preprocess = Preprocess(24)
    good = [files[0], files[2], files[4]]
    with pytest.raises(UnreadableImageError, match=r"bad\.png cannot be read as an image"):
        preprocess(files)
    skipped: dict[int, str] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        images = preprocess(files, on_error="skip", skipped=skipped)
        assert torch.equal(preprocess.pixels(files, on_error="skip", skipped={}), preprocess.pixels(good))
    assert torch.equal(images, preprocess(good))
    assert list(skipped) == [1, 3]
    assert "bad.png cannot be read as an image: " in skipped[1]
    assert skipped[3] == f"no image file at {files[3]}"


def test_a_warning_names_skipped_files(files: list[Path]) -> None:
    with pytest.warns(UserWarning, match=r"^2 images were skipped: .*bad\.png cannot .*; no .*") as caught:
        images = Preprocess(24)(files, on_error="skip")
    assert len(images) == 3
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.warns(UserWarning, match=r"^7 images were skipped: (.*missing\.png; ){5}\.\.\.$") as caught:
        assert Preprocess(24).pixels([files[3]] * 7, on_error="skip").shape == (0, 3, 24, 24)
    assert [warning.filename for warning in caught] == [__file__]


def test_none_may_be_left(files: list[Path]) -> None:
    skipped: dict[int, str] = {}
    for preprocess in (Preprocess(24), Preprocess(24).to("meta")):
        images = preprocess([files[1]], on_error="skip", skipped=skipped)
        assert images.shape == (0, 3, 24, 24)
        assert images.dtype == torch.float32
    assert list(skipped) == [0]


def test_images_of_all_kinds_may_be_skipped(files: list[Path]) -> None:
    good = random_image(40, 30)
    too_long, truncated = Image.new("L", (1, 4_000_000)), Image.open(files[1])
    unclear = Image.fromarray(np.array([[0, 70_000]], np.int32))
    no_pixels = torch.zeros(3, 0, 8, dtype=torch.uint8)
    skipped: dict[int, str] = {}
    images = Preprocess(24)(
        [too_long, good, truncated, unclear, no_pixels, good], on_error="skip", skipped=skipped
    )
    assert torch.equal(images, Preprocess(24)([good, good]))
    assert list(skipped) == [0, 2, 3, 4]
    assert all(f"image {index} " in reason for index, reason in skipped.items())
    batch = torch.zeros(2, 3, 1, 4_000_000, dtype=torch.uint8)
    skipped.clear()
    assert Preprocess(24).to("meta").pixels(batch, on_error="skip", skipped=skipped).shape[0] == 0
    assert list(skipped) == [0, 1]


# -- errors -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RuntimeError("codec"), NotImplementedError("kind"), EOFError("end")])
def test_any_error_of_a_decoder_names_the_file(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "odd.png"
    random_image(8, 8).save(path)

    def load(self: Image.Image) -> None:
        raise error

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", load)
    with pytest.raises(ValueError, match=r"odd\.png cannot be read as an image"):
        open_image(path)


EIGHT = Preprocess(8)


@pytest.mark.parametrize(
    ("call", "error", "named"),
    [
        *[
            (lambda given=given: Preprocess(**{"size": (8, 8), **given}), ValueError, named)
            for given, named in (
                ({"interpolation": "cubic"}, "interpolation"),
                ({"resize_mode": "fit"}, "resize_mode"),
                ({"size": (8,)}, "size"),
                ({"fill_color": 256}, "fill_color"),
                ({"std": (1, 1, 0)}, "std"),
                ({"crop": "middle"}, "crop"),
                ({"resize_mode": "squash", "resize_to": 9}, "resize_to"),
            )
        ],
        (lambda: EIGHT.to("gpu"), ValueError, "device"),
        (lambda: EIGHT(random_image(20, 20), device="gpu"), ValueError, "device"),
        (lambda: EIGHT(random_image(20, 20), dtype="uint8"), ValueError, "dtype"),
        (lambda: EIGHT(random_image(9, 9), on_error="ignore"), ValueError, "on_error"),
        (lambda: EIGHT([3], on_error="skip"), TypeError, "images"),  # no image at all is never skipped
        (lambda: EIGHT([]), ValueError, "images"),
        (lambda: EIGHT(torch.zeros(2, 3, 8, 8)), ValueError, "images"),
        (lambda: EIGHT(torch.zeros(1, 8, 8, dtype=torch.uint8)), ValueError, "images"),
        (lambda: EIGHT(torch.zeros(3, 0, 8, dtype=torch.uint8)), UnreadableImageError, "image 0"),
        (lambda: Preprocess(224)(Image.new("L", (1, 500_000))), UnreadableImageError, "image 0"),
        (
            lambda: Preprocess((24, 24), resize_mode="longest")(Image.new("L", (1, 5000))),
            UnreadableImageError,
            "image 0",
        ),
        (lambda: Preprocess(224)(Image.new("PA", (20_000, 10))), UnreadableImageError, "image 0"),
    ],
)
def test_refused(call: Callable[[], object], error: type[Exception], named: str) -> None:
    with pytest.raises(error, match=named):
        call()
