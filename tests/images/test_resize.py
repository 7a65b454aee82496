"""The same pixels as Pillow's own, for every size, filter, window and mode."""

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from ramen.images import resize
from ramen.images.resize import FILTERS, Plan, Span


def noise(count: int, height: int, width: int, seed: int, extreme: bool) -> np.ndarray:
    """Uniform pixels, or black and white ones, whose sums overshoot the most."""
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (count, 3, height, width), dtype=np.uint8)
    return np.where(pixels > 127, 255, 0).astype(np.uint8) if extreme else pixels


def by_pillow(images: np.ndarray, plan: Plan) -> np.ndarray:
    size = (plan.columns.new, plan.rows.new)
    pil_images = [Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0))) for image in images]
    resized = [np.asarray(image.resize(size, FILTERS[plan.interpolation])) for image in pil_images]
    return np.stack(resized)[:, plan.kept[0], plan.kept[1]].transpose(0, 3, 1, 2)


@st.composite
def spans(draw: st.DrawFn) -> Span:
    old, new = draw(st.integers(1, 260)), draw(st.integers(1, 120))
    start = draw(st.integers(0, new - 1))
    return Span(old, new, start, draw(st.integers(start + 1, new)))


@settings(max_examples=80, deadline=None)
@given(spans(), spans(), st.sampled_from(sorted(FILTERS)), st.integers(0, 99), st.booleans())
def test_equals_pillow(rows: Span, columns: Span, interpolation: str, seed: int, extreme: bool) -> None:
    plan = Plan(rows, columns, interpolation)
    images = noise(2, rows.old, columns.old, seed, extreme)
    assert resize.agrees_with_pillow(plan)
    assert np.array_equal(resize.resize(torch.from_numpy(images), plan).numpy(), by_pillow(images, plan))


def whole(old: tuple[int, int], new: tuple[int, int], interpolation: str = "bicubic") -> Plan:
    return Plan(*(Span(o, n, 0, n) for o, n in zip(old, new, strict=True)), interpolation)


@pytest.mark.parametrize("interpolation", sorted(FILTERS))
@pytest.mark.parametrize(
    ("old", "new"),
    [
        ((32, 32), (224, 224)),  # CIFAR
        ((375, 500), (224, 298)),  # photographs
        ((500, 200), (224, 90)),  # Pillow 13 begins with the height
        ((7, 3000), (3, 20)),  # hundreds of pixels in a sum: smaller digits
        ((48, 64), (48, 32)),  # one axis stays
        ((16, 16), (16, 16)),
    ],
)
def test_common_sizes(old: tuple[int, int], new: tuple[int, int], interpolation: str) -> None:
    plan = whole(old, new, interpolation)
    images = noise(3, *old, seed=0, extreme=False)
    assert resize.agrees_with_pillow(plan)
    assert np.array_equal(resize.resize(torch.from_numpy(images), plan).numpy(), by_pillow(images, plan))


def test_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, images = whole((20, 30), (40, 25)), torch.from_numpy(noise(5, 20, 30, 0, False))
    at_once = resize.resize(images, plan)
    for workspace in (1, 60_000):  # one image at a time, two at a time
        monkeypatch.setitem(resize._WORKSPACE, "cpu", workspace)
        assert torch.equal(resize.resize(images, plan), at_once)


def test_more_pixels_in_a_sum_than_float32_can_add_are_left_to_pillow() -> None:
    assert not resize.agrees_with_pillow(whole((1, 60_000), (1, 1)))
    with pytest.raises(OverflowError, match="60000 pixels are too many to be resized exactly to 1"):
        resize.resize(torch.zeros(1, 3, 1, 60_000, dtype=torch.uint8), whole((1, 60_000), (1, 1)))


def test_a_pillow_that_resizes_differently_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Image.Image.resize

    def brighter(self: Image.Image, *arguments: object, **named: object) -> Image.Image:
        return original(self, *arguments, **named).point(lambda value: value + (value == 100))

    monkeypatch.setattr(Image.Image, "resize", brighter)
    assert not resize.agrees_with_pillow(whole((21, 23), (31, 37)))
    monkeypatch.undo()
    assert resize.agrees_with_pillow(whole((22, 23), (31, 37)))


@pytest.mark.parametrize("rows_first", [False, True])
def test_either_order_of_the_axes_is_found(rows_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Image.Image.resize

    def in_order(self: Image.Image, size: tuple[int, int], *rest: object) -> Image.Image:
        between = (self.width, size[1]) if rows_first else (size[0], self.height)
        return original(original(self, between, *rest), size, *rest)

    monkeypatch.setattr(Image.Image, "resize", in_order)
    plan = whole((40, 41 + rows_first), (33, 29))
    images = noise(2, plan.rows.old, plan.columns.old, 0, False)
    assert resize._rows_first(plan) is rows_first
    assert np.array_equal(resize.resize(torch.from_numpy(images), plan).numpy(), by_pillow(images, plan))


def test_switches_of_the_caller_change_nothing() -> None:
    plan, images = whole((20, 30), (40, 25)), torch.from_numpy(noise(2, 20, 30, 0, False))
    expected = resize.resize(images, plan)
    resize._matrix.cache_clear()
    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16), torch.device("meta"):
        result = resize.resize(images, plan)
    assert torch.equal(result, expected)
    assert not result.is_inference()


# -- what is kept of one image ----------------------------------------------------------------------


def drawn(mode: str, width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = noise(1, height, width, seed, extreme=False)[0].transpose(1, 2, 0)
    image = Image.fromarray(np.ascontiguousarray(pixels))
    if mode == "P":
        return image.quantize(11)
    image = image.convert(mode)
    if mode in ("LA", "RGBA"):  # transparent in places, where premultiplied colours differ
        image.putalpha(Image.fromarray(noise(1, height, width, seed + 1, extreme=False)[0, 0]))
    return image


@settings(max_examples=60, deadline=None)
@given(
    spans(),
    spans(),
    st.sampled_from(sorted(FILTERS)),
    st.sampled_from(["RGB", "L", "1", "P", "LA", "RGBA", "CMYK", "YCbCr", "HSV", "RGBX"]),
)
@example(Span(1, 1, 0, 1), Span(2, 2, 0, 2), "bicubic", "RGBA")
def test_what_is_kept_of_an_image(rows: Span, columns: Span, interpolation: str, mode: str) -> None:
    image = drawn(mode, columns.old, rows.old)
    resized = image.resize((columns.new, rows.new), FILTERS[interpolation])
    expected = np.asarray(resized.convert("RGB"))[rows.start : rows.stop, columns.start : columns.stop]
    kept = resize.resize_kept(image, Plan(rows, columns, interpolation))
    assert kept.mode == "RGB"
    assert np.array_equal(np.asarray(kept), expected)


@pytest.mark.parametrize("mode", ["F", "I;16", "PA"])
def test_modes_that_are_left_to_pillow(mode: str) -> None:
    assert resize.resize_kept(Image.new(mode, (3, 3)), whole((3, 3), (5, 5))) is None


def test_a_pillow_that_resizes_an_elongated_image_differently_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    image = drawn("RGB", 500, 2)
    plan = Plan(Span(2, 700, 0, 700), Span(500, 175_000, 87_150, 87_850), "bicubic")
    assert resize.resize_kept(image, plan) is not None
    resize._rows_first.cache_clear()
    original = Image.Image.resize

    def mirrored(self: Image.Image, *arguments: object, **named: object) -> Image.Image:
        return original(self, *arguments, **named).transpose(Image.Transpose.FLIP_LEFT_RIGHT)

    monkeypatch.setattr(Image.Image, "resize", mirrored)
    assert resize.resize_kept(image, plan) is None
    resize._rows_first.cache_clear()
