"""The clean images that a corrupted set is made from: CIFAR's own files, arrays, or a folder of images.

CIFAR's files are pickles: they are read with stand-ins for what they name (``ramen.utils.pickles``).
"""

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ramen.images.file_checks import IMAGE_SUFFIXES, has_image_suffix
from ramen.utils.pickles import Function, Sealed, read_pickle

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
    if source.is_dir() and batch is None:
        images = source / "images.npy"
        clean = _from_arrays(images) if images.is_file() else _from_folder(source, folder, file)
    elif source.suffix in (".npz", ".npy"):
        clean = _from_arrays(source)
    else:
        clean = _from_batch(batch or source, key)
    if len(clean.labels) and clean.labels.max() >= classes:
        where = batch or source
        raise ValueError(f"{where} has label {clean.labels.max()}, but {name} has {classes} classes")
    return clean


def _from_batch(path: Path, key: bytes) -> CleanImages:
    rows, labels = _read_batch(path, key)
    images = rows.reshape(-1, 3, _CIFAR_SIDE, _CIFAR_SIDE).transpose(0, 2, 3, 1)
    return CleanImages(np.ascontiguousarray(images), _check_labels(labels, len(images), path), "CIFAR's file")


def _read_batch(path: Path, key: bytes) -> tuple[NDArray[np.uint8], list[int]]:
    """The rows ``(n, 3072)`` and the labels of a file of CIFAR's python version."""
    hint = "expected an unpacked test file of CIFAR's python version; download and unpack it again"
    try:
        content = read_pickle(path.read_bytes(), _stand_in)
        entries = {k.encode() if isinstance(k, str) else k: v for k, v in content.items()}
    except Exception as error:  # a damaged file can fail in any way
        raise ValueError(f"{path} cannot be read: {error}; {hint}") from error
    missing = [name.decode() for name in (b"data", key) if name not in entries]
    if missing:
        raise ValueError(f"{path} has no {' and no '.join(missing)}; {hint}")
    rows = getattr(entries[b"data"], "values", None)
    if not isinstance(rows, np.ndarray) or rows.ndim != 2 or rows.shape[1] != 3072:
        raise ValueError(f"{path}: data must be bytes of shape (n, 3072); {hint}")
    numbers = entries[key]
    if not isinstance(numbers, list) or len(numbers) != len(rows) or not all(type(n) is int for n in numbers):
        raise ValueError(f"{path}: {key.decode()} must be {len(rows)} whole numbers, one per image")
    return rows, numbers


class _Array:
    """An array of bytes, once its state has been set."""

    values: NDArray[np.uint8]

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, column_major, content = state
        if not isinstance(dtype, _DType) or dtype.code not in ("u1", b"u1") or not isinstance(content, bytes):
            raise ValueError("an array in it does not hold bytes")
        if math.prod(shape) != len(content):
            raise ValueError(f"an array in it has {len(content)} bytes for a shape of {shape}")
        flat = np.frombuffer(content, np.uint8)
        self.values = flat.reshape(shape[::-1]).T if column_major else flat.reshape(shape)


class _DType:
    def __init__(self, code: object) -> None:
        self.code = code

    def __setstate__(self, state: object) -> None:
        """Ignore the byte order and the like: numbers of one byte have none."""


def _encoded(text: str, encoding: str) -> bytes:
    """Python 3 writes bytes for Python 2 in this way."""
    if encoding != "latin1":
        raise ValueError(f"it encodes text as {encoding}")
    return text.encode("latin1")


_STAND_INS = {
    "numpy.core.multiarray._reconstruct": Function(lambda *_: _Array()),
    "numpy.ndarray": Sealed(None),  # the array's type is named, and not called
    "numpy.dtype": Function(lambda code, *_: _DType(code)),
    "_codecs.encode": Function(_encoded),
}


def _stand_in(name: str) -> object:
    # NumPy moved its modules; the released files have the old name.
    name = name.replace("numpy._core.", "numpy.core.")
    if name not in _STAND_INS:
        raise ValueError(f"it asks for {name}, which no file of CIFAR does")
    return _STAND_INS[name]


def _check_labels(values: object, count: int, path: Path) -> NDArray[np.uint8]:
    labels = np.asarray(values)
    if labels.ndim != 1 or labels.dtype.kind not in "iu" or len(labels) != count:
        found = f"{labels.dtype} {labels.shape}"
        raise ValueError(f"{path}: labels must be {count} whole numbers, one per image, got {found}")
    if count and (labels.min() < 0 or labels.max() > 255):
        raise ValueError(f"{path}: labels must be between 0 and 255, got {labels.min()} to {labels.max()}")
    return labels.astype(np.uint8)


def _load(path: Path) -> Any:
    try:
        return np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise FileNotFoundError(f"no file at {path}, which must hold the labels") from None
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path} cannot be read as a numpy file: {error}") from error


def _from_arrays(path: Path) -> CleanImages:
    """An ``.npz`` file with both, or an ``.npy`` file beside ``labels.npy``."""
    labels_path = path
    if path.suffix == ".npy":
        labels_path = path.with_name("labels.npy")
        images, labels = _load(path), _load(labels_path)
    else:
        with _load(path) as stored:
            missing = [key for key in ("images", "labels") if key not in stored.files]
            if missing:
                raise ValueError(f"{path} has no {' and no '.join(missing)}, only {', '.join(stored.files)}")
            try:
                images, labels = stored["images"], stored["labels"]
            except (OSError, EOFError, zipfile.BadZipFile) as error:
                raise ValueError(f"{path} is damaged: {error}") from error
    if images.dtype != np.uint8 or images.ndim != 4 or images.shape[-1] != 3 or images.size == 0:
        found = f"{images.dtype} {images.shape}"
        raise ValueError(f"{path}: images must be uint8 of shape (n, height, width, 3), got {found}")
    return CleanImages(images, _check_labels(labels, len(images), labels_path), "arrays")


def _from_folder(root: Path, cifar_folder: str, cifar_file: str) -> CleanImages:
    from ramen.images.preprocess import open_rgb

    otherwise = f"; it has no {cifar_file}, {cifar_folder}/{cifar_file} or images.npy either"
    files = list_images_by_class(root, otherwise)
    classes = sorted({path.parent.name for path in files})
    images = [np.asarray(open_rgb(path)) for path in files]
    for path, image in zip(files, images, strict=True):
        if image.shape != images[0].shape:
            (height, width), first = image.shape[:2], f"{images[0].shape[1]} x {images[0].shape[0]}"
            raise ValueError(f"{path} has {width} x {height} pixels, others {first}: all must have one size")
    labels = _check_labels([classes.index(path.parent.name) for path in files], len(files), root)
    return CleanImages(np.stack(images), labels, "folder class/image", tuple(classes))


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
