"""The clean images that a set is made from: CIFAR files, arrays, folders of images."""

import zipfile

import numpy as np
import pytest
from PIL import Image

from ramen.data.catalogue import load
from ramen.data.make.sources import list_images_by_class, read_clean_images
from ramen.images.file_checks import IMAGE_SUFFIXES

IMAGES = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 0, 9, 1, 1, 7])


def test_arrays(tmp_path):
    np.save(tmp_path / "images.npy", IMAGES)
    np.save(tmp_path / "labels.npy", LABELS)
    np.savez(tmp_path / "clean.npz", images=IMAGES, labels=LABELS)
    for source in (tmp_path, tmp_path / "images.npy", tmp_path / "clean.npz"):
        clean = read_clean_images(source, "cifar10c")
        assert np.array_equal(clean.images, IMAGES)
        assert clean.labels.tolist() == LABELS.tolist()


def test_damaged_arrays_are_named(tmp_path):
    path, archive = tmp_path / "photos.npy", tmp_path / "a.npz"
    with pytest.raises(FileNotFoundError, match=path.name):
        read_clean_images(path, "cifar10c")
    np.save(path, IMAGES)
    with pytest.raises(FileNotFoundError, match=r"labels\.npy"):
        read_clean_images(path, "cifar10c")
    np.save(tmp_path / "labels.npy", LABELS[:4])
    with pytest.raises(ValueError, match=r"labels\.npy"):
        read_clean_images(path, "cifar10c")
    for wrong in (IMAGES.astype(np.float32), np.array([{}], object)):
        np.save(path, wrong, allow_pickle=True)
        with pytest.raises(ValueError, match=path.name):
            read_clean_images(path, "cifar10c")
    np.savez(archive, photos=IMAGES)
    with pytest.raises(ValueError, match="images"):
        read_clean_images(archive, "cifar10c")
    np.savez(archive, images=IMAGES, labels=LABELS)
    content = bytearray(archive.read_bytes())
    with zipfile.ZipFile(archive) as file:
        content[file.getinfo("images.npy").header_offset + 1000] ^= 255
    for damaged in (content, content[:500]):
        archive.write_bytes(damaged)
        with pytest.raises(ValueError, match=archive.name):
            read_clean_images(archive, "cifar10c")


def write_images(root, names, size=(32, 32)):
    for number, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(IMAGES[number]).resize(size).save(root / name)


def test_folder_of_images(tmp_path):
    write_images(tmp_path, ["dog/b.png", "cat/z.png", "dog/a.png"])
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "cat" / ".DS_Store").write_bytes(b"")
    clean = read_clean_images(tmp_path, "cifar10c")
    assert clean.classes == ("cat", "dog")
    assert clean.labels.tolist() == [0, 1, 1]
    assert np.array_equal(clean.images, IMAGES[[1, 2, 0]])


@pytest.mark.parametrize("suffix", [*IMAGE_SUFFIXES, ".JPG"])
def test_every_image_format_that_can_be_loaded(tmp_path, suffix):
    grey = Image.fromarray(IMAGES[0]).convert("L")
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    grey.save(tmp_path / "photos" / "cat" / f"a{suffix}")
    clean = read_clean_images(tmp_path / "photos", "cifar10c")
    expected = np.asarray(grey.convert("RGB"))
    lossy = suffix.lower() in (".jpg", ".jpeg", ".webp")
    assert np.abs(clean.images[0].astype(int) - expected).mean() <= (30 if lossy else 0)
    (domain,) = load("folder", tmp_path).domains
    assert [path.name for path in domain.images.read([0])] == [f"a{suffix}"]


def test_sixteen_bits_are_not_cut_off(tmp_path):
    values = IMAGES[0][:, :, 0]
    (tmp_path / "cat").mkdir()
    Image.fromarray(values.astype(np.uint16) * 257).save(tmp_path / "cat" / "a.png")
    clean = read_clean_images(tmp_path, "cifar10c")
    assert np.array_equal(clean.images[0], np.stack([values] * 3, -1))


def test_unusable_folders_of_images(tmp_path):
    with pytest.raises(ValueError, match="test_batch"):
        read_clean_images(tmp_path, "cifar10c")
    write_images(tmp_path, ["cat/a.png", "dog/b.png"])
    write_images(tmp_path, ["dog/c.png"], size=(40, 32))
    with pytest.raises(ValueError, match="40 x 32"):
        read_clean_images(tmp_path, "cifar10c")
    (tmp_path / "dog" / "c.png").write_bytes((tmp_path / "dog" / "b.png").read_bytes()[:200])
    with pytest.raises(ValueError, match=r"c\.png"):
        read_clean_images(tmp_path, "cifar10c")
    (tmp_path / "dog" / "c.png").rename(tmp_path / "dog" / "c.txt")
    with pytest.raises(ValueError, match=r"c\.txt"):
        list_images_by_class(tmp_path)
    (tmp_path / "dog" / "c.txt").unlink()
    (tmp_path / "eel").mkdir()
    with pytest.raises(ValueError, match="eel"):
        list_images_by_class(tmp_path)
