"""Small data sets in their real layouts, written to a folder."""

import numpy as np
from PIL import Image

from ramen.data.corruptions import CORRUPTIONS


def write_cifar_c(folder, count=4, classes=10, corruptions=CORRUPTIONS, severities=5):
    """The red channel of each image is its row, the green one its severity, the blue one its corruption."""
    folder.mkdir(parents=True, exist_ok=True)
    labels = np.tile(np.arange(count) * 7 % classes, severities)
    np.save(folder / "labels.npy", labels)
    for number, corruption in enumerate(corruptions):
        array = np.empty((count * severities, 32, 32, 3), dtype=np.uint8)
        array[..., 0] = np.arange(count * severities)[:, None, None]
        array[..., 1] = np.repeat(np.arange(1, severities + 1), count)[:, None, None]
        array[..., 2] = number
        np.save(folder / f"{corruption}.npy", array)
    return labels


def write_image(path, colour=(255, 0, 0), size=(9, 7)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path, "PNG" if path.suffix == ".png" else "JPEG")


def write_tree(root, domains, classes, images=("b.jpg", "a.jpg")):
    for domain in domains:
        for name in classes:
            for image in images:
                write_image(root / domain / name / image)


def wnids(count=1000):
    return [f"n{number:08d}" for number in range(1, count + 1)]


def touch_imagenet_c(root, corruptions, classes, severity=5, images=("ILSVRC2012_val_00000002.JPEG",)):
    """Write empty files: reading a tree does not open them."""
    for corruption in corruptions:
        for name in classes:
            folder = root / corruption / str(severity) / name
            folder.mkdir(parents=True)
            for image in images:
                (folder / image).touch()


def write_clean_arrays(path, count=25):
    """The clean images and labels of a set that is to be made, in one file of arrays."""
    images = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=np.arange(count) % 10)
    return path


def write_photos(root, count=3):
    """A folder ``class/image`` of images in two sizes."""
    rng = np.random.default_rng(0)
    for number in range(count):
        for name, size in (("n01", (300, 260)), ("n02", (90, 200))):
            small = rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)
            path = root / name / f"val_{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(small).resize(size).save(path)
