"""Every corruption against a plain transcription of its definition: one image, one pixel at a time."""

import colorsys
import io
import math

import numpy as np
import pytest
from PIL import Image

from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, RECIPES, SEVERITIES, blur, corrupt, filters
from tests.helpers.shared_files import MEASURING_MODEL

ALL = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)


def pictures(count=3, size=32, seed=0):
    """Smooth coloured pictures with edges, some pixels black and some white."""
    rng = np.random.default_rng(seed)
    small = rng.integers(0, 256, (count, 6, 6, 3), dtype=np.uint8)
    images = [np.asarray(Image.fromarray(s).resize((size, size), Image.Resampling.BICUBIC)) for s in small]
    images = np.stack(images).copy()
    images[:, 4:9, 20:27] = 0
    images[:, 15:18, 3:30] = 255
    return images


def as_bytes(x):
    return (np.clip(x, 0, 1) * 255 + 1e-3).astype(np.uint8)


def assert_close(ours, plain, tolerance=1, share=0.02):
    """Equal to the last bit of a byte, where rounding decides."""
    difference = np.abs(ours.astype(int) - plain.astype(int))
    assert difference.max() <= tolerance
    assert (difference > 0).mean() < share


def parameters(name, severity, recipe="cifar"):
    return RECIPES[recipe].parameters[name][severity - 1]


def reflect101(i, n):
    while not 0 <= i < n:
        i = -i if i < 0 else 2 * n - 2 - i
    return i


def reflect(i, n):
    while not 0 <= i < n:
        i = -1 - i if i < 0 else 2 * n - 1 - i
    return i


def clamp(i, n):
    return min(max(i, 0), n - 1)


def plain_gaussian(image, sigma, truncate, edge):
    radius = int(truncate * sigma + 0.5)
    weights = [math.exp(-0.5 * (s / sigma) ** 2) for s in range(-radius, radius + 1)]
    weights = [w / sum(weights) for w in weights]
    for axis in (0, 1):
        moved = np.zeros_like(image)
        n = image.shape[axis]
        for i in range(n):
            for step, weight in zip(range(-radius, radius + 1), weights, strict=True):
                source = np.take(image, edge(i + step, n), axis=axis)
                if axis == 0:
                    moved[i] += weight * source
                else:
                    moved[:, i] += weight * source
        image = moved
    return image


def plain_zoom(image, factor):
    """The middle of a picture, enlarged linearly, cut to the old size."""
    n = len(image)
    part = math.ceil(n / factor)
    top = (n - part) // 2
    middle = image[top : top + part, top : top + part]
    big = round(part * factor)
    zoomed = np.zeros((big, big, image.shape[2]))
    for y in range(big):
        for x in range(big):
            v, u = y * (part - 1) / (big - 1), x * (part - 1) / (big - 1)
            v0, u0 = min(int(v), part - 1), min(int(u), part - 1)
            v1, u1 = min(v0 + 1, part - 1), min(u0 + 1, part - 1)
            a, b = v - v0, u - u0
            zoomed[y, x] = (1 - a) * ((1 - b) * middle[v0, u0] + b * middle[v0, u1]) + a * (
                (1 - b) * middle[v1, u0] + b * middle[v1, u1]
            )
    trim = (big - n) // 2
    return zoomed[trim : trim + n, trim : trim + n]


def plain_motion(image, radius, sigma, angle):
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(2 * radius + 1)]
    n, blurred = len(image), np.zeros_like(image)
    for i, weight in enumerate(weights):
        right = math.ceil(i * math.cos(math.radians(angle)) - 0.5)
        down = math.ceil(i * math.sin(math.radians(angle)) - 0.5)
        for y in range(n):
            for x in range(n):
                blurred[y, x] += weight / sum(weights) * image[clamp(y + down, n), clamp(x + right, n)]
    return blurred


def plain_sample(image, rows, columns, edge):
    n, sampled = len(image), np.zeros_like(image)
    for y in range(n):
        for x in range(n):
            v, u = rows[y, x], columns[y, x]
            v0, u0 = math.floor(v), math.floor(u)
            a, b = v - v0, u - u0
            corner = [image[edge(v0 + i, n), edge(u0 + j, n)] for i in (0, 1) for j in (0, 1)]
            sampled[y, x] = (1 - a) * ((1 - b) * corner[0] + b * corner[1]) + a * (
                (1 - b) * corner[2] + b * corner[3]
            )
    return sampled


def plain_plasma(size, decay, draw):
    """Diamond-square on a torus; ``draw(shape_of_grid)`` gives one uniform array in [-1, 1] for each fill."""
    grid = np.zeros((size, size))
    step, wibble = size, 100.0
    while step >= 2:
        half, cells = step // 2, size // step
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step, j * step
                total = sum(grid[(y + a) % size, (x + b) % size] for a in (0, step) for b in (0, step))
                grid[y + half, x + half] = total / 4 + wibble * wibble * noise[i, j]
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step, j * step + half
                around = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                total = sum(grid[a % size, b % size] for a, b in around)
                grid[y, x] = total / 4 + wibble * wibble * noise[i, j]
        noise = draw(cells)
        for i in range(cells):
            for j in range(cells):
                y, x = i * step + half, j * step
                around = [(y - half, x), (y + half, x), (y, x - half), (y, x + half)]
                total = sum(grid[a % size, b % size] for a, b in around)
                grid[y, x] = total / 4 + wibble * wibble * noise[i, j]
        step, wibble = half, wibble / decay
    grid -= grid.min()
    return grid / grid.max()


@pytest.mark.parametrize("severity", SEVERITIES)
def test_gaussian_noise(severity):
    images = np.full((40, 32, 32, 3), 128, dtype=np.uint8)
    noise = corrupt(images, "gaussian_noise", np.random.default_rng(0), severity) / 255 - 128 / 255
    assert noise.std() == pytest.approx(parameters("gaussian_noise", severity), rel=0.02)
    assert noise.mean() == pytest.approx(-0.5 / 255, abs=2e-3)  # truncation


@pytest.mark.parametrize("severity", SEVERITIES)
def test_shot_noise(severity):
    photons = parameters("shot_noise", severity)
    for level in (30, 128):
        images = np.full((40, 32, 32, 3), level, dtype=np.uint8)
        counts = (corrupt(images, "shot_noise", np.random.default_rng(0), severity) + 0.5) / 255 * photons
        # a Poisson number's variance is its mean
        assert counts.mean() == pytest.approx(level / 255 * photons, rel=0.02)
        assert counts.var() == pytest.approx(level / 255 * photons, rel=0.05)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_impulse_noise(severity):
    images = np.full((40, 32, 32, 3), 128, dtype=np.uint8)
    noisy = corrupt(images, "impulse_noise", np.random.default_rng(0), severity)
    amount = parameters("impulse_noise", severity)
    assert set(np.unique(noisy)) == {0, 128, 255}
    assert (noisy == 0).mean() == pytest.approx(amount / 2, rel=0.1)
    assert (noisy == 255).mean() == pytest.approx(amount / 2, rel=0.1)


@pytest.mark.parametrize(
    ("recipe", "severity"),
    [("cifar", s) for s in SEVERITIES] + [("imagenet", 2), ("imagenet", 4), ("imagenet", 5)],
)
def test_defocus_blur(recipe, severity):
    radius, sigma = parameters("defocus_blur", severity, recipe)
    # the grid and the softening filter grow with a large disk
    reach, half = (8, 1) if radius <= 8 else (radius, 2)
    side = 2 * reach + 1
    grid = range(-reach, reach + 1)
    disk = np.array([[float(x * x + y * y <= radius**2) for x in grid] for y in grid])
    disk /= disk.sum()
    soft = np.zeros_like(disk)
    taps = [math.exp(-0.5 * (s / sigma) ** 2) for s in range(-half, half + 1)]
    for y in range(side):
        for x in range(side):
            for i in range(-half, half + 1):
                for j in range(-half, half + 1):
                    weight = taps[i + half] * taps[j + half] / sum(taps) ** 2
                    soft[y, x] += disk[reflect101(y + i, side), reflect101(x + j, side)] * weight
    assert blur.disk(radius, sigma) == pytest.approx(soft, abs=1e-9)
    images = pictures(1)
    x = images[0] / 255
    blurred = np.zeros_like(x)
    rows = np.array([reflect101(i, 32) for i in range(-reach, 32 + reach)])
    padded = x[rows[:, None], rows]
    for row in range(32):
        for column in range(32):
            window = padded[row : row + side, column : column + side]
            blurred[row, column] = (soft[..., None] * window).sum((0, 1))
    ours = corrupt(images, "defocus_blur", np.random.default_rng(0), severity, recipe)
    assert_close(ours[0], as_bytes(blurred))


@pytest.mark.parametrize(
    ("recipe", "severity"), [("cifar", s) for s in SEVERITIES] + [("imagenet", 3), ("imagenet", 5)]
)
def test_glass_blur(recipe, severity):
    sigma, reach, rounds = parameters("glass_blur", severity, recipe)
    images = pictures(2)
    rng = np.random.default_rng(3)
    shifts = [rng.integers(-reach, reach, (2, 2, 32, 32)) for _ in range(rounds)]
    plain = []
    for number, image in enumerate(images):
        x = as_bytes(plain_gaussian(image / 255, sigma, 4, clamp))
        for down, right in shifts:
            for h in range(32 - reach, reach, -1):
                for w in range(32 - reach, reach, -1):
                    x[h, w] = x[h + down[number, h, w], w + right[number, h, w]]
        plain.append(as_bytes(plain_gaussian(x / 255, sigma, 4, clamp)))
    ours = corrupt(images, "glass_blur", np.random.default_rng(3), severity, recipe)
    # A byte that is truncated the other way before the exchange may be copied about.
    assert_close(ours, np.stack(plain), tolerance=2, share=0.05)


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", 1), ("cifar", 5), ("imagenet", 5)])
def test_motion_blur(recipe, severity):
    radius, sigma = parameters("motion_blur", severity, recipe)
    images = pictures(3)
    angles = np.random.default_rng(1).uniform(-45, 45, 3)
    plain = [plain_motion(i / 255, radius, sigma, a) for i, a in zip(images, angles, strict=True)]
    ours = corrupt(images, "motion_blur", np.random.default_rng(1), severity, recipe)
    assert_close(ours, as_bytes(np.stack(plain)))


@pytest.mark.parametrize(
    ("recipe", "severity", "limit", "step"),
    [
        ("cifar", 1, 1.06, 0.01),
        ("cifar", 3, 1.16, 0.01),
        ("imagenet", 4, 1.26, 0.02),
        ("imagenet", 5, 1.31, 0.03),
    ],
)
def test_zoom_blur(recipe, severity, limit, step):
    images = pictures(1)
    x = images[0] / 255
    factors = np.arange(1, limit, step)
    plain = (x + sum(plain_zoom(x, factor) for factor in factors)) / (len(factors) + 1)
    ours = corrupt(images, "zoom_blur", np.random.default_rng(0), severity, recipe)
    assert_close(ours[0], as_bytes(plain))


@pytest.mark.parametrize(("recipe", "severity"), [("cifar", 1), ("cifar", 4), ("imagenet", 5)])
def test_snow(recipe, severity):
    mean, deviation, zoom, threshold, radius, sigma, mix = parameters("snow", severity, recipe)
    images = pictures(2)
    rng = np.random.default_rng(5)
    flakes = rng.normal(mean, deviation, (2, 32, 32, 1)).astype(np.float32)
    angles = rng.uniform(-135, -45, 2)
    plain = []
    for image, layer, angle in zip(images, flakes, angles, strict=True):
        layer = plain_zoom(layer, zoom)
        layer[layer < threshold] = 0
        layer = plain_motion(as_bytes(layer) / 255, radius, sigma, angle)
        x = image / 255
        grey = (0.299 * x[..., 0] + 0.587 * x[..., 1] + 0.114 * x[..., 2])[..., None]
        x = mix * x + (1 - mix) * np.maximum(x, grey * 1.5 + 0.5)
        plain.append(as_bytes(x + layer + np.rot90(layer, 2)))
    ours = corrupt(images, "snow", np.random.default_rng(5), severity, recipe)
    assert_close(ours, np.stack(plain), tolerance=2)


@pytest.mark.parametrize(
    ("recipe", "severity", "size"), [("cifar", s, 32) for s in SEVERITIES] + [("imagenet", 5, 28)]
)
def test_fog(recipe, severity, size):
    weight, decay = parameters("fog", severity, recipe)
    images = pictures(1, size=size)
    images[0] //= 2  # so that the brightest is not white
    rng = np.random.default_rng(7)
    # the map has a side of a power of two: 256 for 224 pixels
    clouds = plain_plasma(32, decay, lambda cells: rng.uniform(-1, 1, (1, cells, cells))[0])[:size, :size]
    x = images[0] / 255
    plain = (x + weight * clouds[..., None]) * x.max() / (x.max() + weight)
    ours = corrupt(images, "fog", np.random.default_rng(7), severity, recipe)
    assert_close(ours[0], as_bytes(plain))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_brightness(severity):
    amount = parameters("brightness", severity)
    images = pictures(1)
    plain = np.zeros((32, 32, 3))
    for row in range(32):
        for column in range(32):
            hue, saturation, value = colorsys.rgb_to_hsv(*(images[0, row, column] / 255))
            plain[row, column] = colorsys.hsv_to_rgb(hue, saturation, min(value + amount, 1))
    assert_close(corrupt(images, "brightness", np.random.default_rng(0), severity)[0], as_bytes(plain))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_contrast(severity):
    images = pictures(2)
    plain = []
    for x in images / 255:
        mean = np.array([x[..., c].mean() for c in range(3)])
        plain.append(as_bytes((x - mean) * parameters("contrast", severity) + mean))
    assert_close(corrupt(images, "contrast", np.random.default_rng(0), severity), np.stack(plain))


@pytest.mark.parametrize(
    ("recipe", "severity", "shares"),
    [
        ("cifar", 1, (0, 0, 0.08)),
        ("cifar", 2, (0.05, 0.2, 0.07)),
        ("cifar", 5, (0.1, 0.03, 0.03)),
        ("imagenet", 2, (2, 0.08, 0.2)),
        ("imagenet", 5, (0.12, 0.01, 0.02)),
    ],
)
def test_elastic_transform(recipe, severity, shares):
    alpha, sigma, jitter = ({"cifar": 32, "imagenet": 244}[recipe] * share for share in shares)
    images = pictures(1)
    rng = np.random.default_rng(2)
    before = np.array([[26, 26], [26, 6], [6, 6]], dtype=float)  # 16 ± 32 // 3, as (x, y)
    after = before + rng.uniform(-jitter, jitter, (1, 3, 2))[0]
    # the affine map that takes each old point to its new place, and its inverse
    forward = np.linalg.solve(np.c_[before, np.ones(3)], after).T
    matrix, offset = forward[:, :2], forward[:, 2]
    columns, rows = np.meshgrid(np.arange(32.0), np.arange(32.0))
    source = np.stack([columns, rows], axis=-1) - offset
    source = source @ np.linalg.inv(matrix).T
    x = plain_sample(images[0] / 255, source[..., 1], source[..., 0], reflect101)
    if alpha > 0:
        shifts = rng.uniform(-1, 1, (1, 32, 32, 2))[0]
        shifts = alpha * plain_gaussian(shifts, sigma, 3, reflect)
        x = plain_sample(x, rows + shifts[..., 0], columns + shifts[..., 1], reflect)
    ours = corrupt(images, "elastic_transform", np.random.default_rng(2), severity, recipe)
    assert_close(ours[0], as_bytes(x))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_pixelate(severity):
    images = pictures(2)
    side = int(32 * parameters("pixelate", severity))
    ours = corrupt(images, "pixelate", np.random.default_rng(0), severity)
    for image, result in zip(images, ours, strict=True):
        small = Image.fromarray(image).resize((side, side), Image.BOX)
        assert np.array_equal(result, np.asarray(small.resize((32, 32), Image.BOX)))


@pytest.mark.parametrize("severity", SEVERITIES)
def test_jpeg_compression(severity):
    images = pictures(2)
    ours = corrupt(images, "jpeg_compression", np.random.default_rng(0), severity)
    for image, result in zip(images, ours, strict=True):
        file = io.BytesIO()
        Image.fromarray(image).save(file, "JPEG", quality=parameters("jpeg_compression", severity))
        assert np.array_equal(result, np.asarray(Image.open(file)))


@pytest.mark.parametrize("recipe", RECIPES)
@pytest.mark.parametrize("name", ALL)
def test_seed_decides_and_input_stays(name, recipe):
    images = pictures()
    kept = images.copy()
    first = corrupt(images, name, np.random.default_rng(0), recipe=recipe)
    assert first.shape == images.shape
    assert first.dtype == np.uint8
    assert np.array_equal(first, corrupt(images, name, np.random.default_rng(0), recipe=recipe))
    assert np.array_equal(images, kept)
    assert not np.array_equal(first, images)


@pytest.mark.parametrize("name", ALL)
def test_other_shapes(name):
    images = np.stack([np.asarray(Image.fromarray(i).resize((40, 48))) for i in pictures()])
    assert corrupt(images, name, np.random.default_rng(0)).shape == (3, 48, 40, 3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "gausian_noise"}, "name must be one of .*gausian_noise"),
        ({"recipe": "svhn"}, "recipe must be one of 'cifar', 'imagenet', got 'svhn'"),
        ({"severity": 6}, "severity must be between 1 and 5, got 6"),
        ({"images": np.zeros((2, 32, 32, 3))}, "images must be a uint8 array of shape .* got float64"),
        ({"images": np.zeros((32, 32, 3), dtype=np.uint8)}, r"got uint8 \(32, 32, 3\)"),
        ({"images": [1]}, "got list"),
    ],
)
def test_bad_input(arguments, message):
    given = {"images": pictures(1), "name": "fog", "rng": np.random.default_rng(0)} | arguments
    with pytest.raises(ValueError, match=message):
        corrupt(**given)


@pytest.mark.parametrize(("edge", "plain"), [(filters.mirrored, reflect101), (filters.symmetric, reflect)])
def test_edges(edge, plain):
    indices = np.arange(-20, 25)
    assert edge(indices, 5).tolist() == [plain(int(i), 5) for i in indices]


def test_edge_of_one_pixel():
    assert filters.mirrored(np.arange(-2, 3), 1).tolist() == [0] * 5


TESTBED = MEASURING_MODEL.path / "cifar10c_s5_1000.npz"
DRAWN = {"gaussian_noise", "shot_noise", "impulse_noise", "glass_blur", "motion_blur", "snow", "frost", "fog"}
DRAWN |= {"elastic_transform"}


@pytest.mark.testbed
@pytest.mark.parametrize("name", CORRUPTIONS)
def test_against_other_draws_of_the_same_recipe(name):
    stored = np.load(TESTBED)
    ours = corrupt(stored["clean"], name, np.random.default_rng(0)).astype(float)
    theirs = stored[name].astype(float)
    if name not in DRAWN:
        assert np.abs(ours - theirs).mean() < 0.01
    assert ours.mean() == pytest.approx(theirs.mean(), abs=1)
    assert ours.std() == pytest.approx(theirs.std(), abs=0.3)
    roughness = [np.abs(np.diff(x, axis=2)).mean() for x in (ours, theirs)]
    assert roughness[0] == pytest.approx(roughness[1], rel=0.03 if name == "frost" else 0.02)


def test_order_of_the_tables():
    assert (
        *("gaussian_noise", "shot_noise", "impulse_noise"),
        *("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
        *("snow", "frost", "fog", "brightness"),
        *("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    ) == CORRUPTIONS
    assert EXTRA_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for recipe in RECIPES.values():
        assert tuple(recipe.parameters) == ALL
        assert all(len(values) == 5 for values in recipe.parameters.values())


@pytest.mark.parametrize("name", [n for n in ALL if n not in {"elastic_transform", "saturate", "frost"}])
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_higher_severity_leaves_less_of_the_picture(name, recipe):
    """Not elastic transform and saturation, which change in kind, nor frost, which also darkens."""
    size = RECIPES[recipe].side
    images = pictures(6 if size == 32 else 1, size)
    mild, strong = (
        np.abs(corrupt(images, name, np.random.default_rng(0), severity, recipe).astype(int) - images).mean()
        for severity in (1, 5)
    )
    assert strong > 1.2 * mild
