"""Data sets in one file of arrays."""

import zipfile

import numpy as np
import pytest

from ramen.data.formats.reading import DataError
from ramen.data.registry import load

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 4, 5, 6, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 0])


@pytest.fixture
def write(tmp_path):
    def save(name="data.npz", **arrays):
        defaults = {"labels": LABELS, "clean": PIXELS[0], "fog": PIXELS[1], "snow": PIXELS[2]}
        content = {**defaults, "classes": np.array(["ant", "bee", "cow"]), **arrays}
        np.savez(tmp_path / name, **{key: value for key, value in content.items() if value is not None})
        return tmp_path / name

    return save


def test_arrays(write):
    data = load("arrays", write())
    assert data.classes == ("ant", "bee", "cow")
    assert [domain.name for domain in data.domains] == ["fog", "snow"]  # the clean one only on request
    fog = data.domains[0]
    assert fog.labels.tolist() == LABELS.tolist()
    read = fog.images.read([2, 0])
    assert np.array_equal(read.numpy(), PIXELS[1][[2, 0]].transpose(0, 3, 1, 2))
    with pytest.raises(IndexError, match="between 0 and 3, got -1"):
        fog.images.read([-1])
    chosen = load("arrays", write(), domains=["snow", "clean"])
    assert [domain.name for domain in chosen.domains] == ["snow", "clean"]
    assert np.array_equal(chosen.domains[1].images.read([3])[0].numpy(), PIXELS[0][3].transpose(2, 0, 1))


def test_another_file_is_another_data_set(write):
    first, second = load("arrays", write()), load("arrays", write("other.npz", fog=255 - PIXELS[1]))
    assert first.identity["sha256"] != second.identity["sha256"]


@pytest.mark.parametrize(
    ("given", "names"),
    [("cifar10", 10), ("x, y ,z", ("x", "y", "z")), (["x", "y", "z"], ("x", "y", "z"))],
)
def test_given_classes_override_those_of_the_file(write, given, names):
    classes = load("arrays", write(), classes=given).classes
    assert len(classes) == names if isinstance(names, int) else classes == names


def test_classes_that_are_not_named(write):
    with pytest.raises(ValueError, match=r"data\.npz does not name its 3 classes: give the option classes"):
        load("arrays", write(classes=None))
    with pytest.raises(ValueError, match="labels go up to 2, but only 2 classes are named: x, y"):
        load("arrays", write(), classes="x,y")
    with pytest.raises(ValueError, match="no domain is called 'rain'"):
        load("arrays", write(), domains=["rain"])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"fog": PIXELS[1][:3]}, "array 'fog' has 3 images for 4 labels"),
        ({"fog": PIXELS[1].astype(np.float32)}, r"array 'fog' must be uint8 \(n, H, W, 3\), got float32"),
        ({"fog": PIXELS[1][..., 0]}, r"array 'fog' must be uint8 .* got uint8 \(4, 5, 6\)"),
        ({"labels": None}, "has no array 'labels'; it has clean, fog, snow, classes"),
        ({"labels": LABELS - 1}, r"'labels' must be whole numbers \(n,\), at least 0"),
        ({"labels": LABELS / 2}, r"'labels' must be whole numbers \(n,\), at least 0"),
        ({"fog": None, "snow": None}, "has no array of a domain"),
        ({"fog": np.array([{}], dtype=object)}, "array 'fog' cannot be read: Object arrays cannot be loaded"),
        ({"classes": np.array([{}], dtype=object)}, "array 'classes' cannot be read: Object arrays"),
    ],
)
def test_faulty_arrays_are_named(write, arrays, message):
    with pytest.raises(DataError, match=message):
        load("arrays", write(**arrays))


def test_damaged_files(write, tmp_path):
    path = write()
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("snow.npy").header_offset + 200
    content = bytearray(path.read_bytes())
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(DataError, match="array 'snow' cannot be read: Bad CRC-32"):
        load("arrays", path)
    path.write_bytes(bytes(content[:300]))
    with pytest.raises(DataError, match=r"data\.npz: cannot be read"):
        load("arrays", path)
    np.save(tmp_path / "one.npy", PIXELS)
    with pytest.raises(DataError, match="it holds a single array"):
        load("arrays", tmp_path / "one.npy")
    with pytest.raises(DataError, match="missing"):
        load("arrays", tmp_path / "no.npz")
