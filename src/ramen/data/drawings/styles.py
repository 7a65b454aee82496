"""Styles of drawing, each a function from parts and random numbers to an image of 32 x 32 pixels.

``TRAINED`` are the styles that the model has seen; ``UNSEEN`` are kept from it and are domains of the demo.
"""

from collections.abc import Callable, Iterable, Sequence
from colorsys import hsv_to_rgb
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter

from ramen.data.drawings.shapes import Part, Points, Random, outlines

SIZE = 32
_SIDE = 4 * SIZE  # drawn at four times the size, so that edges are smooth

Colour = tuple[int, int, int]
Pixels = NDArray[np.uint8]
Style = Callable[[Sequence[Part], Random], Image.Image]


@dataclass(frozen=True)
class _Palette:
    """The colours of the parts of an object by role, and of the background."""

    parts: tuple[Colour, Colour, Colour]
    background: Colour


def _hsv(hue: float, saturation: float, value: float) -> Colour:
    red, green, blue = (int(255 * channel) for channel in hsv_to_rgb(hue % 1, saturation, value))
    return red, green, blue


def _palette(rng: Random) -> _Palette:
    """Three colours, and a background that is clearly lighter or darker than the main one."""
    hue = rng.random()
    value = rng.uniform(0.25, 0.95)
    background_value = value - 0.45 if value > 0.6 else value + rng.uniform(0.4, 0.5)
    return _Palette(
        (
            _hsv(hue, rng.uniform(0.4, 1), value),
            _hsv(
                hue + rng.uniform(0.15, 0.85),
                rng.uniform(0.3, 1),
                np.clip(value + rng.normal(0, 0.2), 0.15, 1),
            ),
            _hsv(rng.random(), rng.uniform(0, 0.6), 0.15 if value > 0.5 else 0.9),
        ),
        _hsv(rng.random(), rng.uniform(0, 0.6), np.clip(background_value, 0.05, 1)),
    )


# -- drawing --------------------------------------------------------------------------------------------


def _pixels(points: Points) -> list[tuple[float, float]]:
    return [(x, y) for x, y in (points + 1) * (_SIDE / 2)]


def _fill(image: Image.Image, parts: Sequence[Part], colours: Iterable[Colour | int], line: int = 8) -> None:
    draw = ImageDraw.Draw(image)
    for part, colour in zip(parts, colours, strict=True):
        if part.closed:
            draw.polygon(_pixels(part.points), fill=colour)
        else:
            draw.line(_pixels(part.points), fill=colour, width=line, joint="curve")


def _stroke(image: Image.Image, lines: Iterable[Points], colour: Colour | int, width: int) -> None:
    draw = ImageDraw.Draw(image)
    for points in lines:
        draw.line(_pixels(points), fill=colour, width=width, joint="curve")


def _by_role(parts: Sequence[Part], palette: _Palette) -> list[Colour]:
    return [palette.parts[part.role] for part in parts]


def _plain(colour: Colour) -> Image.Image:
    return Image.new("RGB", (_SIDE, _SIDE), colour)


def _smooth_noise(rng: Random, cells: int) -> NDArray[np.float32]:
    """Noise in [-1, 1] that changes slowly: about ``cells`` hills across the image."""
    small = Image.fromarray(rng.uniform(-1, 1, (cells, cells)).astype(np.float32))
    return np.asarray(small.resize((_SIDE, _SIDE), Image.Resampling.BICUBIC))


def _tinted(image: Image.Image, change: NDArray[np.floating]) -> Image.Image:
    """``image`` with ``change``, as a fraction of full brightness, added to all channels."""
    change = change[..., None] if change.ndim == 2 else change
    return Image.fromarray(np.clip(np.asarray(image) + 255 * change, 0, 255).astype(np.uint8))


def _background(rng: Random, colour: Colour) -> Image.Image:
    """A background: plain, a gradient, a texture, stripes, or clutter."""
    image, kind = _plain(colour), rng.integers(5)
    if kind == 1:
        slope = np.linspace(-0.25, 0.25, _SIDE)
        image = _tinted(
            image, np.broadcast_to(slope[:, None] if rng.random() < 0.5 else slope, (_SIDE, _SIDE))
        )
    elif kind == 2:
        image = _tinted(image, 0.2 * _smooth_noise(rng, int(rng.integers(4, 24))))
    elif kind == 3:
        row, column = np.mgrid[:_SIDE, :_SIDE]
        angle, period = rng.uniform(0, np.pi), rng.uniform(12, 40)
        wave = np.sin(2 * np.pi * (row * np.sin(angle) + column * np.cos(angle)) / period)
        image = _tinted(image, 0.1 * np.sign(wave))
    elif kind == 4:
        draw = ImageDraw.Draw(image)
        for _ in range(rng.integers(3, 9)):
            x, y = rng.uniform(0, _SIDE, 2)
            size = rng.uniform(4, 22)
            shade = tuple(int(np.clip(c + rng.normal(0, 35), 0, 255)) for c in colour)
            draw.ellipse((x - size, y - size, x + size, y + size), fill=shade)
    return image


def _shaky(lines: Iterable[Points], rng: Random, size: float) -> list[Points]:
    """Lines as a hand draws them."""
    return [points + rng.normal(0, size, points.shape) + rng.normal(0, size, 2) for points in lines]


# -- styles that the model has seen ---------------------------------------------------------------------


def _flat(parts: Sequence[Part], rng: Random) -> Image.Image:
    palette = _palette(rng)
    image = _background(rng, palette.background)
    _fill(image, parts, _by_role(parts, palette))
    return image


def _cartoon(parts: Sequence[Part], rng: Random) -> Image.Image:
    image = _flat(parts, rng)
    _stroke(image, outlines(parts), (20, 20, 25), int(rng.integers(3, 6)))
    return image


def _line_drawing(parts: Sequence[Part], rng: Random) -> Image.Image:
    paper = int(rng.integers(215, 256))
    image = _plain((paper, paper, int(paper * rng.uniform(0.88, 1))))
    ink = _hsv(rng.random(), rng.uniform(0, 0.9), rng.uniform(0.05, 0.5))
    _stroke(image, outlines(parts), ink, int(rng.integers(4, 8)))
    return image


def _pencil(parts: Sequence[Part], rng: Random) -> Image.Image:
    paper = int(rng.integers(205, 245))
    image = _plain((paper, paper, paper))
    hatched = Image.new("L", image.size, 0)
    _fill(hatched, parts, [255] * len(parts), 3)
    row, column = np.mgrid[:_SIDE, :_SIDE]
    hatch = (row + rng.choice([-1, 1]) * column) % int(rng.integers(7, 12)) < 3
    image = _tinted(image, -0.3 * hatch * (np.asarray(hatched) > 0))
    for _ in range(3):
        grey = int(rng.integers(30, 110))
        _stroke(image, _shaky(outlines(parts), rng, 0.018), (grey, grey, grey), 2)
    return _tinted(image, 0.05 * _smooth_noise(rng, 48))


def _silhouette(parts: Sequence[Part], rng: Random) -> Image.Image:
    sky = _hsv(rng.random(), rng.uniform(0.2, 0.9), rng.uniform(0.65, 1))
    image = _background(rng, sky)
    _fill(image, parts, [(12, 12, 18)] * len(parts))
    return image


def _crayon(parts: Sequence[Part], rng: Random) -> Image.Image:
    palette = _palette(rng)
    paper = _plain((240, 236, 225))
    image = paper.copy()
    _fill(image, parts, _by_role(parts, palette))
    _stroke(image, _shaky(outlines(parts), rng, 0.02), palette.parts[0], 6)
    streaks = Image.fromarray(rng.uniform(0, 1, (_SIDE, _SIDE // 8)).astype(np.float32))
    wax = np.asarray(streaks.resize((_SIDE, _SIDE), Image.Resampling.BILINEAR).rotate(rng.uniform(0, 180)))
    return Image.composite(image, paper, Image.fromarray((255 * (wax > 0.35)).astype(np.uint8)))


def _watercolour(parts: Sequence[Part], rng: Random) -> Image.Image:
    image = _plain((246, 244, 238))
    palette = _palette(rng)
    for part, colour in zip(parts, _by_role(parts, palette), strict=True):
        wash = Image.new("L", image.size, 0)
        _fill(wash, [part], [int(rng.integers(120, 220))])
        wash = wash.filter(ImageFilter.GaussianBlur(rng.uniform(1.5, 4)))
        image.paste(_tinted(_plain(colour), 0.15 * _smooth_noise(rng, 7)), mask=wash)
    return image


def _origami(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Every part folded into facets of different shades."""
    palette = _palette(rng)
    image = _background(rng, palette.background)
    draw = ImageDraw.Draw(image)
    for part, colour in zip(parts, _by_role(parts, palette), strict=True):
        centre, corners = part.points.mean(0), part.points
        fold = max(1, len(corners) // 6)
        for start in range(0, len(corners), fold):
            facet = np.concatenate([[centre], corners[np.arange(start, start + fold + 1) % len(corners)]])
            shade = rng.uniform(0.6, 1.25)
            draw.polygon(_pixels(facet), fill=tuple(int(min(255, c * shade)) for c in colour))
    return image


def _photo(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Lit from one side, with a shadow on a textured background."""
    palette = _palette(rng)
    image = _tinted(_background(rng, palette.background), 0.08 * _smooth_noise(rng, 32))
    body = Image.new("L", image.size, 0)
    _fill(body, parts, [255] * len(parts))
    light = rng.uniform(-8, 8, 2).astype(int)
    shadow = np.asarray(body.filter(ImageFilter.GaussianBlur(5)), dtype=np.float32) / 255
    image = _tinted(image, -0.35 * np.roll(shadow, light, (0, 1)))
    _fill(image, parts, _by_role(parts, palette))
    soft = np.asarray(body.filter(ImageFilter.GaussianBlur(7)), dtype=np.float32) / 255
    relief = np.roll(soft, light, (0, 1)) - np.roll(soft, -light, (0, 1))
    return _tinted(image, 0.45 * relief * (np.asarray(body) > 0))


# -- styles that the model has not seen -----------------------------------------------------------------


def _chalk(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Broken pale lines on a dusty blackboard."""
    board = _tinted(_plain((38, 62, 50)), 0.1 * _smooth_noise(rng, 5))
    image = board.copy()
    chalk = _hsv(rng.random(), rng.uniform(0, 0.35), 0.95)
    _stroke(image, _shaky(outlines(parts), rng, 0.012), chalk, 5)
    grain = Image.fromarray((255 * (rng.random((_SIDE, _SIDE)) > 0.3)).astype(np.uint8))
    return _tinted(Image.composite(image, board, grain), 0.06 * rng.random((_SIDE, _SIDE)))


def _neon(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Glowing tubes on black."""
    glow = np.zeros((_SIDE, _SIDE, 3), dtype=np.float32)
    hues = rng.random(3)
    for part, line in zip(parts, outlines(parts), strict=True):
        tube = Image.new("L", (_SIDE, _SIDE), 0)
        _stroke(tube, [line], 255, 4)
        halo = tube.filter(ImageFilter.GaussianBlur(5))
        colour = np.array(_hsv(float(hues[part.role]), 0.9, 1.0), dtype=np.float32)
        glow += np.asarray(halo)[..., None] / 255 * colour * 1.6
        glow = np.maximum(glow, np.asarray(tube)[..., None] / 255 * (0.4 * colour + 150))
    return Image.fromarray(np.clip(glow + 10, 0, 255).astype(np.uint8))


def _stained_glass(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Panes of bright glass between thick lead, in the background as well."""
    image = _plain(_hsv(rng.random(), 0.5, 0.8))
    corners = rng.uniform(-1.1, 1.1, (14, 2))
    draw = ImageDraw.Draw(image)
    for corner in corners:
        reach = rng.uniform(0.3, 0.7, 5)[:, None]
        angles = np.sort(rng.uniform(0, 2 * np.pi, 5))
        pane = corner + reach * np.stack([np.cos(angles), np.sin(angles)], axis=1)
        draw.polygon(_pixels(pane), fill=_hsv(rng.random(), 0.55, 0.75), outline=(15, 15, 15), width=3)
    _fill(image, parts, [_hsv(rng.random(), 0.95, 0.95) for _ in parts])
    _stroke(image, outlines(parts), (10, 10, 10), 7)
    return image


def _thermal(parts: Sequence[Part], rng: Random) -> Image.Image:
    """Warm bodies in a cold room, in the colours of a thermal camera."""
    warmth = Image.new("L", (_SIDE, _SIDE), int(rng.integers(20, 70)))
    _fill(warmth, parts, [int(rng.integers(140, 250)) for _ in parts])
    heat = np.asarray(warmth.filter(ImageFilter.GaussianBlur(4)), dtype=np.float32) / 255
    heat = np.clip(heat + 0.05 * _smooth_noise(rng, 24), 0, 1)
    red, green, blue = np.clip(3 * heat - 0.6, 0, 1), np.clip(3 * heat - 1.6, 0, 1), np.sin(np.pi * heat) ** 2
    return Image.fromarray((255 * np.stack([red, green, blue * (heat < 0.75)], axis=2)).astype(np.uint8))


def _by_name(*drawn: Style) -> dict[str, Style]:
    return {style.__name__.removeprefix("_").replace("_", " "): style for style in drawn}


TRAINED = _by_name(
    *(_flat, _cartoon, _line_drawing, _pencil, _silhouette),
    *(_crayon, _watercolour, _origami, _photo),
)
UNSEEN = _by_name(_chalk, _neon, _stained_glass, _thermal)


def draw(parts: Sequence[Part], style: str, rng: Random) -> Pixels:
    """Draw ``parts``: pixels ``(32, 32, 3)``."""
    image = (TRAINED | UNSEEN)[style](parts, rng)
    return np.asarray(image.resize((SIZE, SIZE), Image.Resampling.BOX))
