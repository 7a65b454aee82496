"""CIFAR's pickled files, read without unpickling: released, hostile and damaged."""

import io
import os
import pickle

import numpy as np
import pytest

from ramen.data.make.sources import read_clean_images

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 1, 7])
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(6, -1)


def write_batch(path, content, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def written_by_python_2(rows, labels):
    """The opcodes of the released files: byte strings under names of old numpy, protocol 2."""
    out = io.BytesIO()

    def text(value):
        out.write(b"U" + bytes([len(value)]) + value)

    def number(value):
        out.write(b"J" + int(value).to_bytes(4, "little", signed=True))

    out.write(b"\x80\x02}(")
    text(b"data")
    out.write(b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85")
    text(b"b")
    out.write(b"\x87R(K\x01(")
    number(rows.shape[0])
    number(rows.shape[1])
    out.write(b"tcnumpy\ndtype\n")
    text(b"u1")
    out.write(b"K\x00K\x01\x87R(K\x03")
    text(b"|")
    out.write(b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb\x89")
    out.write(b"T" + rows.nbytes.to_bytes(4, "little") + rows.tobytes() + b"tb")
    text(b"labels")
    out.write(b"](")
    for label in labels:
        number(label)
    out.write(b"eu.")
    return out.getvalue()


def test_cifar_10_as_released(tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "test_batch").write_bytes(written_by_python_2(ROWS, LABELS))
    for source in (tmp_path, folder, folder / "test_batch"):
        clean = read_clean_images(source, "cifar10c")
        assert np.array_equal(clean.images, IMAGES)
        assert clean.labels.tolist() == LABELS.tolist()
        assert clean.labels.dtype == np.uint8


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("rows", [ROWS, np.asfortranarray(ROWS)])
def test_cifar_100_as_python_3_writes_it(tmp_path, protocol, rows):
    path = tmp_path / "cifar-100-python" / "test"
    content = {b"data": rows, b"fine_labels": [99, 0, 3, 4, 5, 6], b"coarse_labels": [1] * 6}
    write_batch(path, content, protocol)
    clean = read_clean_images(tmp_path, "cifar100c")
    assert np.array_equal(clean.images, IMAGES)
    assert clean.labels.tolist() == [99, 0, 3, 4, 5, 6]


class Hostile:
    def __reduce__(self):
        return os.system, ("touch hostile",)


class Plain:
    """An object of some class."""


class Big:
    """Asks numpy for an array that no file could hold."""

    def __reduce__(self):
        return np.ndarray, ((1 << 40,),)


@pytest.mark.parametrize(
    "thing",
    [Hostile(), Big(), np.float64(1), np.array([b"a"], object), Plain()],
    ids=lambda one: type(one).__name__,
)
def test_a_hostile_file_runs_nothing(tmp_path, thing, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_batch(tmp_path / "test_batch", {b"data": thing, b"labels": [0] * 6})
    with pytest.raises(ValueError, match="test_batch"):
        read_clean_images(tmp_path, "cifar10c")
    assert not (tmp_path / "hostile").exists()


def test_lists_within_lists_are_not_multiplied(tmp_path):
    inner = [1]
    for _ in range(60):
        inner = [inner, inner]  # small in the file, 2**60 numbers when expanded
    write_batch(tmp_path / "test_batch", {b"data": ROWS, b"labels": [inner] * 6})
    with pytest.raises(ValueError, match="labels"):
        read_clean_images(tmp_path, "cifar10c")


@pytest.mark.parametrize("seed", range(200))
def test_damaged_bytes_are_reported(tmp_path, seed):
    """Random bytes of a good file are changed: the error names the file, or nothing important has changed."""
    rng = np.random.default_rng(seed)
    content = bytearray(written_by_python_2(ROWS[:1], LABELS[:1]))
    head = [n for n in range(len(content)) if not 130 < n < 3100]
    for place in rng.choice(head, 3):
        content[place] = rng.integers(256)
    (tmp_path / "test_batch").write_bytes(content)
    try:
        outcome = str(read_clean_images(tmp_path, "cifar10c").images.shape)
    except ValueError as error:
        outcome = str(error)
    assert outcome == "(1, 32, 32, 3)" or "test_batch" in outcome


@pytest.mark.parametrize("length", [0, 1, 100, 5000])
def test_a_truncated_file_is_reported(tmp_path, length):
    write_batch(tmp_path / "test_batch", {b"data": ROWS, b"labels": [1] * 6})
    whole = (tmp_path / "test_batch").read_bytes()
    (tmp_path / "test_batch").write_bytes(whole[:length])
    with pytest.raises(ValueError, match="test_batch"):
        read_clean_images(tmp_path, "cifar10c")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([1, 2], "test_batch"),
        *(({b"data": data, b"labels": [1] * 6}, "data") for data in (1.5, ROWS[:, :100], ROWS.tolist())),
        ({b"data": ROWS.astype(np.int16), b"labels": [1] * 6}, "bytes"),
        ({b"labels": [1] * 6}, "data"),
        ({b"data": ROWS}, "labels"),
        *(
            ({b"data": ROWS, b"labels": labels}, "label")
            for labels in (
                *([True] * 6, LABELS.astype(np.uint8), [1] * 5, ["cat"] * 6, [[1], [1, 2]] * 3),
                *([-1] * 6, [10] * 6),
            )
        ),
    ],
)
def test_a_wrong_file_is_reported(tmp_path, content, named):
    write_batch(tmp_path / "test_batch", content)
    with pytest.raises(ValueError, match=named):
        read_clean_images(tmp_path, "cifar10c")
