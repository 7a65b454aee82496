import io
import os
import pickle
import zipfile

import numpy as np
import pytest
from PIL import Image

from ramen.data.make.clean_images import images_by_class, read_clean
from ramen.data.registry import load
from ramen.images.file_suffixes import IMAGE_ENDINGS

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 1, 7])
ROWS = IMAGES.transpose(0, 3, 1, 2).reshape(6, -1)


def write_batch(path, content, protocol=2):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol=protocol))


def as_python_2_wrote_it(rows, labels):
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
    (folder / "test_batch").write_bytes(as_python_2_wrote_it(ROWS, LABELS))
    for source in (tmp_path, folder, folder / "test_batch"):
        clean = read_clean(source, "cifar10c")
        assert np.array_equal(clean.images, IMAGES)
        assert clean.labels.tolist() == LABELS.tolist()
        assert clean.labels.dtype == np.uint8


@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("rows", [ROWS, np.asfortranarray(ROWS)])
def test_cifar_100_as_python_3_writes_it(tmp_path, protocol, rows):
    path = tmp_path / "cifar-100-python" / "test"
    content = {b"data": rows, b"fine_labels": [99, 0, 3, 4, 5, 6], b"coarse_labels": [1] * 6}
    write_batch(path, content, protocol)
    clean = read_clean(tmp_path, "cifar100c")
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
    ("thing", "message"),
    [
        (Hostile(), "it calls (posix|nt).system, which no file of CIFAR does"),
        (Big(), "it calls numpy.ndarray"),
        (np.float64(1), "it calls numpy.core.multiarray.scalar"),
        (np.array([b"a"], object), "an array in it does not hold bytes"),
        (Plain(), "it has the instruction NEWOBJ"),
    ],
)
def test_a_hostile_file_runs_nothing(tmp_path, thing, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "test_batch"
    write_batch(path, {b"data": thing, b"labels": [0] * 6})
    with pytest.raises(ValueError, match=f"test_batch.*{message}.*CIFAR's python version"):
        read_clean(tmp_path, "cifar10c")
    assert not (tmp_path / "hostile").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([1, 2], "cannot be read"),
        ({b"data": 1.5, b"labels": [1] * 6}, "has the instruction BINFLOAT"),
        ({b"data": ROWS, b"labels": [True] * 6}, "labels must be 6 whole numbers"),
        ({b"data": ROWS, b"labels": LABELS.astype(np.uint8)}, "labels must be 6 whole numbers"),
        ({b"data": ROWS}, "has no labels"),
        ({b"labels": [1] * 6}, "has no data"),
        ({b"data": ROWS[:, :100], b"labels": [1] * 6}, r"data must be bytes of shape \(n, 3072\)"),
        ({b"data": ROWS.astype(np.int16), b"labels": [1] * 6}, "does not hold bytes"),
        ({b"data": ROWS.tolist(), b"labels": [1] * 6}, "data must be bytes of shape"),
        (
            {b"data": ROWS, b"labels": [1] * 5},
            "labels must be 6 whole numbers, one for each image",
        ),
        ({b"data": ROWS, b"labels": ["cat"] * 6}, "labels must be 6 whole numbers"),
        ({b"data": ROWS, b"labels": [[1], [1, 2]] * 3}, "labels must be 6 whole numbers"),
        ({b"data": ROWS, b"labels": [-1] * 6}, "labels must be between 0 and 255, got -1"),
        ({b"data": ROWS, b"labels": [10] * 6}, "has label 10, but cifar10c has 10 classes"),
    ],
)
def test_a_wrong_batch_is_named(tmp_path, content, message):
    write_batch(tmp_path / "test_batch", content)
    with pytest.raises(ValueError, match=message):
        read_clean(tmp_path, "cifar10c")


def test_lists_within_lists_are_not_multiplied(tmp_path):
    inner = [1]
    for _ in range(60):
        inner = [inner, inner]  # small in the file, 2**60 numbers when spelt out
    write_batch(tmp_path / "test_batch", {b"data": ROWS, b"labels": [inner] * 6})
    with pytest.raises(ValueError, match="labels must be 6 whole numbers"):
        read_clean(tmp_path, "cifar10c")


@pytest.mark.parametrize("seed", range(200))
def test_nonsense_is_named(tmp_path, seed):
    """Bytes of a good file changed at random: it is refused by name, or nothing that counts has changed."""
    rng = np.random.default_rng(seed)
    content = bytearray(as_python_2_wrote_it(ROWS[:1], LABELS[:1]))
    head = [n for n in range(len(content)) if not 130 < n < 3100]
    for place in rng.choice(head, 3):
        content[place] = rng.integers(256)
    (tmp_path / "test_batch").write_bytes(content)
    try:
        outcome = str(read_clean(tmp_path, "cifar10c").images.shape)
    except ValueError as error:
        outcome = str(error)
    assert outcome == "(1, 32, 32, 3)" or "test_batch" in outcome


@pytest.mark.parametrize("length", [0, 1, 100, 5000])
def test_a_truncated_batch_is_named(tmp_path, length):
    write_batch(tmp_path / "test_batch", {b"data": ROWS, b"labels": [1] * 6})
    whole = (tmp_path / "test_batch").read_bytes()
    (tmp_path / "test_batch").write_bytes(whole[:length])
    with pytest.raises(ValueError, match=r"test_batch cannot be read.*download and unpack it again"):
        read_clean(tmp_path, "cifar10c")


def test_arrays(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    np.savez(tmp_path / "clean.npz", images=IMAGES, labels=LABELS)
    for source in (tmp_path, tmp_path / "images.npy", tmp_path / "clean.npz"):
        clean = read_clean(source, "cifar10c")
        assert np.array_equal(clean.images, IMAGES)
        assert clean.labels.tolist() == LABELS.tolist()


def test_damaged_arrays_are_named(tmp_path):
    path = tmp_path / "pictures.npy"
    with pytest.raises(FileNotFoundError, match=r"there is nothing at .*pictures.npy"):
        read_clean(path, "cifar10c")
    np.save(path, IMAGES)
    with pytest.raises(FileNotFoundError, match=r"no file at .*labels.npy"):
        read_clean(path, "cifar10c")
    np.save(tmp_path / "labels.npy", LABELS[:4])
    with pytest.raises(ValueError, match=r"labels.npy: labels must be 6 whole numbers.*\(4,\)"):
        read_clean(path, "cifar10c")
    np.save(path, IMAGES.astype(np.float32))
    with pytest.raises(ValueError, match=r"pictures.npy: images must be uint8 .* got float32"):
        read_clean(path, "cifar10c")
    np.save(path, np.array([Hostile()], object), allow_pickle=True)
    with pytest.raises(ValueError, match=r"pictures.npy cannot be read as a numpy file"):
        read_clean(path, "cifar10c")
    np.savez(tmp_path / "a.npz", pictures=IMAGES)
    with pytest.raises(ValueError, match=r"a.npz has no images and no labels, only pictures"):
        read_clean(tmp_path / "a.npz", "cifar10c")


def test_damaged_archive_is_named(tmp_path):
    path = tmp_path / "clean.npz"
    np.savez(path, images=IMAGES, labels=LABELS)
    content = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("images.npy").header_offset + 1000
    content[place] ^= 255
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"clean.npz is damaged"):
        read_clean(path, "cifar10c")
    path.write_bytes(content[:500])
    with pytest.raises(ValueError, match=r"clean.npz cannot be read"):
        read_clean(path, "cifar10c")


def write_images(root, names, size=(32, 32)):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).resize(size).save(root / name)


def test_folder_of_images(tmp_path):
    write_images(tmp_path, ["dog/b.png", "cat/z.png", "dog/a.png"])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"")
    clean = read_clean(tmp_path, "cifar10c")
    assert clean.classes == ("cat", "dog")
    assert clean.labels.tolist() == [0, 1, 1]
    assert np.array_equal(clean.images, IMAGES[[1, 2, 0]])


@pytest.mark.parametrize("ending", [*IMAGE_ENDINGS, ".JPG"])
def test_a_set_can_be_made_of_whatever_can_be_read(tmp_path, ending):
    grey = Image.fromarray(IMAGES[0]).convert("L")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    grey.save(tmp_path / "photos" / "cat" / f"a{ending}")
    clean = read_clean(tmp_path / "photos", "cifar10c")
    expected = np.asarray(grey.convert("RGB"))
    lossy = ending.lower() in (".jpg", ".jpeg", ".webp")
    assert np.abs(clean.images[0].astype(int) - expected).mean() <= (30 if lossy else 0)
    (domain,) = load("folder", tmp_path).domains
    assert [path.name for path in domain.pictures.read([0])] == [f"a{ending}"]


def test_folder_of_images_that_will_not_do(tmp_path):
    with pytest.raises(ValueError, match=r"has no images in folders class/image; nor are there test_batch"):
        read_clean(tmp_path, "cifar10c")
    write_images(tmp_path, ["cat/a.png", "dog/b.png"])
    write_images(tmp_path, ["dog/c.png"], size=(40, 32))
    with pytest.raises(ValueError, match=r"c.png has 40 x 32 pixels, the images before it 32 x 32"):
        read_clean(tmp_path, "cifar10c")
    (tmp_path / "dog" / "c.png").write_bytes((tmp_path / "dog" / "b.png").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"c.png cannot be read as an image"):
        read_clean(tmp_path, "cifar10c")
    (tmp_path / "dog" / "c.png").rename(tmp_path / "dog" / "c.txt")
    with pytest.raises(ValueError, match=r"c.txt is not an image file .*: remove it"):
        images_by_class(tmp_path)
    (tmp_path / "dog" / "c.txt").unlink()
    (tmp_path / "eel").mkdir()
    with pytest.raises(ValueError, match=r"eel holds no images"):
        images_by_class(tmp_path)
