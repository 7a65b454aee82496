"""The clean images that a corrupted set is made from: CIFAR's own files, arrays, or a folder of images."""

import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.data.formats.cifar_pickle import read_cifar_file
from ramen.images.file_suffixes import IMAGE_SUFFIXES, has_image_suffix

_CIFAR_SIDE = 32
# For each set: the unpacked folder, the test file in it, the key of its labels, the number of classes.
_CIFAR_FILES = {
    "cifar10c": ("cifar-10-batches-py", "test_batch", b"labels", 10),
    "cifar100c": ("cifar-100-python", "test", b"fine_labels", 100),
}


@dataclass(frozen=True)
class CleanImages:
    """Images of one size with their labels."""

    images: NDArray[np.uint8]  # (n, H, W, 3)
    labels: NDArray[np.uint8]
    kind: str  # what they were read from, for the record
    classes: tuple[str, ...] = ()  # if folders name them


def read_clean_images(source: Path, name: str) -> CleanImages:
    """Read the clean images of a CIFAR-like set.

    Args:
        source: The folder of CIFAR's python version (or one above it, or its test file); an ``.npz`` file
            with ``images`` and ``labels``; an ``.npy`` file of images with a ``labels.npy`` next to it; a
            folder with ``images.npy`` and ``labels.npy``; or a folder ``class/image``, all images of one
            size, whose labels are the indices of the sorted class folders.
        name: ``"cifar10c"`` or ``"cifar100c"``: determines the labels and the number of classes.
    """
    folder, file, key, classes = _CIFAR_FILES[name]
    if not source.exists():
        raise FileNotFoundError(f"source: there is nothing at {source}")
    batch = next((p for p in (source / file, source / folder / file) if p.is_file()), None)
    if batch is not None:
        clean = _from_batch(batch, key)
    elif source.is_dir() and (source / "images.npy").is_file():
        clean = _from_npy(source / "images.npy")
    elif source.is_dir():
        clean = _from_folder(source, folder, file)
    elif source.suffix == ".npz":
        clean = _from_npz(source)
    elif source.suffix == ".npy":
        clean = _from_npy(source)
    else:
        clean = _from_batch(source, key)
    if len(clean.labels) and clean.labels.max() >= classes:
        raise ValueError(
            f"{batch or source} has label {clean.labels.max()}, but {name} has {classes} classes"
        )
    return clean


def _from_batch(path: Path, key: bytes) -> CleanImages:
    rows, labels = read_cifar_file(path, key)
    images = rows.reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(0, 2, 3, 1)
    return CleanImages(np.ascontiguousarray(images), _check_labels(labels, len(images), path), "CIFAR's file")


def _check_labels(values: object, count: int, path: Path) -> NDArray[np.uint8]:
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != count:
        raise ValueError(
            f"{path}: labels must be {count} whole numbers, one per image, got {labels.dtype} {labels.shape}"
        )
    if count and (labels.min() < 0 or labels.max() > 255):
        raise ValueError(f"{path}: labels must be between 0 and 255, got {labels.min()} to {labels.max()}")
    return labels.astype(np.uint8)


def _check_arrays(
    images: NDArray[Any], labels: NDArray[Any], images_path: Path, labels_path: Path, kind: str
) -> CleanImages:
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or images.size == 0:
        raise ValueError(
            f"{images_path}: images must be uint8 of shape (n, height, width, 3), "
            f"got {images.dtype} {images.shape}"
        )
    return CleanImages(images, _check_labels(labels, len(images), labels_path), kind)


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}, which must hold the labels") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a numpy file: {error}") from error


def _from_npy(path: Path) -> CleanImages:
    labels_path = path.with_name("labels.npy")
    return _check_arrays(_load(path), _load(labels_path), path, labels_path, "arrays")


def _from_npz(path: Path) -> CleanImages:
    with _load(path) as stored:
        missing = [key for key in ("images", "labels") if key not in stored.files]
        if missing:
            raise ValueError(f"{path} has no {' and no '.join(missing)}, only {', '.join(stored.files)}")
        try:
            return _check_arrays(stored["images"], stored["labels"], path, path, "arrays")
        except (OSError, EOFError, zipfile.BadZipFile) as error:
            raise ValueError(f"{path} is damaged: {error}") from error


def _from_folder(root: Path, cifar_folder: str, cifar_file: str) -> CleanImages:
    from ramen.images.image_inputs import open_rgb

    files = list_images_by_class(
        root, f"; it has no {cifar_file}, {cifar_folder}/{cifar_file} or images.npy either"
    )
    images: list[NDArray[np.uint8]] = []
    labels: list[int] = []
    classes = sorted({path.parent.name for path in files})
    for path in files:
        image = np.asarray(open_rgb(path))
        if images and image.shape != images[0].shape:
            raise ValueError(
                f"{path} has {image.shape[1]} x {image.shape[0]} pixels, the images before it "
                f"{images[0].shape[1]} x {images[0].shape[0]}: all must have one size"
            )
        images.append(image)
        labels.append(classes.index(path.parent.name))
    stacked = np.stack(images)
    return CleanImages(
        stacked, _check_labels(labels, len(stacked), root), "folder class/image", tuple(classes)
    )


def list_images_by_class(root: Path, otherwise: str = "") -> list[Path]:
    """The files of a folder ``class/image``, sorted; hidden files are ignored, all others must be images."""
    folders = sorted(p for p in root.iterdir() if p.is_dir() and not p.name.startswith("."))
    files = [p for folder in folders for p in sorted(folder.iterdir()) if not p.name.startswith(".")]
    if not files:
        raise ValueError(f"{root} has no images in folders class/image{otherwise}")
    for path in files:
        if not has_image_suffix(path.name) or not path.is_file():
            raise ValueError(f"{path} is not an image file ({', '.join(IMAGE_SUFFIXES)}): remove it")
    empty = next((folder for folder in folders if not any(p.parent == folder for p in files)), None)
    if empty is not None:
        raise ValueError(f"{empty} holds no images: remove the folder or fill it")
    return files
