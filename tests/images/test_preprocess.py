"""The same numbers as open_clip's own transform, for every kind of image; and what is refused."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from open_clip.transform import PreprocessCfg, image_transform_v2
from PIL import Image

from ramen.images import resize
from ramen.images.geometry import fitted_size
from ramen.images.image_inputs import open_image
from ramen.images.preprocess import Preprocess


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


def test_an_unknown_device_or_dtype() -> None:
    with pytest.raises(ValueError, match="device must name a torch device"):
        Preprocess(16)(random_image(20, 20), device="gpu")
    with pytest.raises(ValueError, match="dtype must be one of"):
        Preprocess(16)(random_image(20, 20), dtype="uint8")


# -- bound to a device ------------------------------------------------------------------------------


def test_a_copy_bound_to_a_device_uses_it_unless_a_call_says_otherwise() -> None:
    image, free = random_image(20, 20), Preprocess(16)
    bound = free.to("meta")
    assert free.device is None
    assert bound.device == torch.device("meta")
    assert bound(image).device.type == bound.pixels(image).device.type == "meta"
    assert torch.equal(bound(image, device="cpu"), free(image))
    assert Preprocess(16, device=torch.device("cpu")).to("meta").device == torch.device("meta")
    with pytest.raises(ValueError, match="device must name a torch device"):
        free.to("gpu")


def test_the_device_is_no_part_of_the_settings() -> None:
    free = Preprocess((16, 24), interpolation="bilinear", fill_color=3)
    bound = free.to("cpu")
    assert bound == free
    assert hash(bound) == hash(free)
    assert repr(bound) == repr(free)
    assert "device" not in repr(free)
    assert bound.settings() == free.settings()
    assert list(free.settings()) == ["size", "mean", "std", "interpolation", "resize_mode", "fill_color"]
    assert Preprocess(**bound.settings()) == free


# -- errors -----------------------------------------------------------------------------------------


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no image file at .*missing\.png"):
        open_image(tmp_path / "missing.png")


@pytest.mark.parametrize("damage", ["truncated", "empty", "no image"])
def test_a_damaged_file_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "damaged.jpg"
    random_image(64, 64).save(path)
    content = {"truncated": path.read_bytes()[:400], "empty": b"", "no image": b"hello" * 100}
    path.write_bytes(content[damage])
    with pytest.raises(ValueError, match=r"damaged\.jpg cannot be read as an image"):
        Preprocess((8, 8))(path)


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


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_enormous_file_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "big.png"
    Image.new("1", (12_000, 12_000)).save(path)
    with pytest.raises(ValueError, match=r"big\.png has 12000 x 12000 pixels, more than 89478485"):
        open_image(path)


def test_an_elongated_image_is_refused() -> None:
    with pytest.raises(ValueError, match="image 0 of 1 x 5000 pixels is too elongated for 224 x 224"):
        Preprocess((224, 224))(Image.new("L", (1, 5000)))
    with pytest.raises(ValueError, match="too elongated"):
        Preprocess((24, 24), resize_mode="longest")(Image.new("L", (1, 5000)))


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (
            torch.zeros(2, 3, 8, 8),
            r"a tensor must be uint8 of shape \(3, H, W\), got torch.float32 \(3, 8, 8\)",
        ),
        (torch.zeros(1, 8, 8, dtype=torch.uint8), r"got torch.uint8 \(1, 8, 8\)"),
        ([], "images must hold at least one image, got none"),
        (torch.zeros(3, 0, 8, dtype=torch.uint8), r"image 0 has no pixels \(8 x 0\)"),
    ],
)
def test_bad_images(images: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocess((8, 8))(images)


def test_what_is_no_image() -> None:
    with pytest.raises(TypeError, match="images must be PIL images, paths or uint8 tensors, got int"):
        Preprocess((8, 8))([3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"size": (8, 8), "interpolation": "cubic"},
            "interpolation must be one of .*'bicubic'.* got 'cubic'",
        ),
        ({"size": (8, 8), "resize_mode": "fit"}, "resize_mode must be one of"),
        ({"size": (8,)}, r"size must be a height and a width, or one number for both, got \(8,\)"),
        ({"size": (8, 8), "fill_color": 256}, "fill_color must be between 0 and 255, got 256"),
        ({"size": (8, 8), "std": (1, 1, 0)}, "mean and std must be three numbers, std above 0"),
    ],
)
def test_bad_settings(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Preprocess(**settings)
