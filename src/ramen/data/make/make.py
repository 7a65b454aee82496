"""Make sets like CIFAR-C, one array per corruption, and like ImageNet-C, one JPEG file per image.

Worker processes make blocks of images. A folder that is being made has the record of how it is made, and
room for unfinished files.
"""

import contextlib
import hashlib
import json
import os
import shutil
import signal
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image

import ramen
from ramen.data.corruptions import CORRUPTIONS, EXTRA_CORRUPTIONS, RECIPES, SEVERITIES, corrupt
from ramen.data.corruptions.frost import textures
from ramen.data.make.sources import CleanImages, list_images_by_class, read_clean_images
from ramen.data.reading import RECORD_FILE, UNFINISHED
from ramen.utils import checks
from ramen.utils.files import atomic_write, write_text
from ramen.utils.workers import available_cores, end_with_parent

ALL_CORRUPTIONS = (*CORRUPTIONS, *EXTRA_CORRUPTIONS)
CIFAR_NAMES = ("cifar10c", "cifar100c")

# Images that share a generator. A process holds one block at a time: 90 MB of arrays, 260 MB of photographs.
ARRAY_BLOCK, TREE_BLOCK = 500, 32
_RESIZED, _CROPPED, _QUALITY = 256, 224, 85  # of ImageNet-C, as released

# One thread per worker: they share the cores, and sums in another order could change a byte.
_THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")

Task = TypeVar("Task")


def make_cifar_c(
    source: str | Path,
    out: str | Path,
    name: str = "cifar10c",
    corruptions: Sequence[str] = ALL_CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Make a set like CIFAR-10-C or CIFAR-100-C.

    With all five severities the layout is that of the release: ``<corruption>.npy`` with 5 n images, severity
    1 first, and ``labels.npy`` with 5 n labels. With fewer, each severity has a folder
    ``severity_<number>`` with arrays of n images and a ``labels.npy`` with n labels.

    Args:
        source: The clean images; see ``ramen.data.make.sources.read_clean_images``.
        out: Folder to write: new, empty, or started by an earlier call.
        name: ``"cifar10c"`` or ``"cifar100c"``.
        corruptions: Which corruptions; all nineteen by default.
        severities: Which severities; all five by default.
        seed: Determines everything random.
        workers: Number of processes; the number of cores by default.
        progress: Called with the number of finished images and their total.
    """
    checks.choice("name", name, CIFAR_NAMES)
    corruptions, severities, seed, workers = _check(corruptions, severities, seed, workers)
    out, clean = Path(out), read_clean_images(Path(source), name)
    _claim(out, _how_made(name, "cifar", seed, ARRAY_BLOCK, _describe_arrays(clean), corruptions))

    shape = clean.images.shape
    folders: list[tuple[Path, tuple[int, ...]]] = [(out / f"severity_{one}", (one,)) for one in severities]
    if severities == SEVERITIES:
        folders = [(out, severities)]
    arrays = [
        _Array(folder / f"{corruption}.npy", corruption, stored, (len(stored) * shape[0], *shape[1:]))
        for corruption in corruptions
        for folder, stored in folders
    ]
    missing = [array for array in arrays if not array.is_complete()]
    _check_free_space(out, sum(map(_Array.size, missing)) + clean.images.nbytes)
    unfinished = out / UNFINISHED
    unfinished.mkdir(exist_ok=True)
    _save(unfinished / "images.npy", clean.images, durable=False)
    for folder, stored in folders:
        folder.mkdir(exist_ok=True)
        _save(folder / "labels.npy", np.tile(clean.labels, len(stored)), durable=True)

    done = sum(array.shape[0] for array in arrays if array not in missing)
    total = sum(array.shape[0] for array in arrays)
    progress(done, total)
    for count in _make_arrays(missing, unfinished, shape, seed, workers):
        done += count
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


def make_imagenet_c(
    source: str | Path,
    out: str | Path,
    corruptions: Sequence[str] = ALL_CORRUPTIONS,
    severities: Sequence[int] = SEVERITIES,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> Path:
    """Make a set like ImageNet-C: ``<corruption>/<severity>/<class>/<image>.JPEG``, 224 x 224, quality 85.

    Images are first resized, the shorter side to 256, and center-cropped to 224 x 224. ``source`` is a folder
    ``class/image``; the other arguments are those of ``make_cifar_c``.
    """
    corruptions, severities, seed, workers = _check(corruptions, severities, seed, workers)
    source, out = Path(source), Path(out)
    if not source.is_dir():
        raise FileNotFoundError(f"source: there is no folder {source}")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"out: {out} is inside the source {source}: choose a folder outside it")
    files = list_images_by_class(source)
    names: dict[str, Path] = {}
    for path in files:
        name = f"{path.parent.name}/{path.stem}"
        if name in names:
            raise ValueError(f"{names[name]} and {path} would both become {name}.JPEG: rename one")
        names[name] = path
    _claim(out, _how_made("imagenetc", "imagenet", seed, TREE_BLOCK, _describe_files(files), corruptions))

    unfinished = out / UNFINISHED
    unfinished.mkdir(exist_ok=True)
    blocks = [
        _TreeBlock(out, corruption, severities, tuple(files[start : start + TREE_BLOCK]), start, seed)
        for start in range(0, len(files), TREE_BLOCK)  # so that a process has its images decoded
        for corruption in corruptions
    ]
    done, total = 0, len(files) * len(corruptions) * len(severities)
    progress(done, total)
    for block in run_in_processes(_make_files, blocks, workers):
        done += len(block.files) * len(severities)
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


# -- what both share --------------------------------------------------------------------------------------


def _check(
    corruptions: Sequence[str], severities: Sequence[int], seed: int, workers: int | None
) -> tuple[tuple[str, ...], tuple[int, ...], int, int]:
    """The checked arguments; corruptions and severities are in the order of the tables, each once."""
    for name in corruptions:
        if name not in ALL_CORRUPTIONS:
            raise ValueError(f"corruption {name!r} is unknown{checks.nearest(name, ALL_CORRUPTIONS)}")
    for severity in severities:
        checks.integer("severity", severity, SEVERITIES[0], SEVERITIES[-1])
    if not corruptions or not severities:
        raise ValueError("corruptions and severities must name at least one each")
    return (
        tuple(name for name in ALL_CORRUPTIONS if name in corruptions),
        tuple(severity for severity in SEVERITIES if severity in severities),
        checks.integer("seed", seed, 0),
        available_cores() if workers is None else checks.integer("workers", workers, 1),
    )


def _generator(seed: int, corruption: str, severity: int, first: int) -> np.random.Generator:
    """The random generator of the block whose first image has the index ``first``."""
    return np.random.default_rng((seed, ALL_CORRUPTIONS.index(corruption), severity, first))


def _how_made(
    name: str, recipe: str, seed: int, block: int, source: Mapping[str, Any], corruptions: Sequence[str]
) -> dict[str, Any]:
    """Everything that determines the bytes of a set, for its record."""
    return {
        "set": name,
        "recipe": recipe,
        "parameters": dict(RECIPES[recipe].parameters),
        "seed": seed,
        "images_with_one_generator": block,
        "source": dict(source),
        "versions": {"ramen": ramen.__version__, "numpy": np.__version__, "pillow": PIL.__version__},
        **({"frost": textures().source} if "frost" in corruptions else {}),
    }


def _claim(out: Path, facts: Mapping[str, Any]) -> None:
    """Record how the set in ``out`` is made; refuse a folder that holds something else."""
    path, expected = out / RECORD_FILE, json.loads(json.dumps(facts))
    found: dict[str, Any] = {}
    if path.exists():
        try:
            found = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path} cannot be read ({error}): delete {out} or choose another") from None
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"out: {out} must be new, empty, or started by an earlier run: no {RECORD_FILE}")
    for key in found.keys() & expected.keys():
        if found[key] != expected[key]:
            was, now = (textwrap.shorten(json.dumps(facts[key]), 100) for facts in (found, expected))
            raise ValueError(f"out: {out} holds a set made with {key} {was}, now it is {now}: choose another")
    write_text(path, json.dumps(found | expected, indent=2) + "\n")


def _check_free_space(out: Path, needed: int) -> None:
    free = shutil.disk_usage(out).free
    if needed > free:
        raise OSError(f"out: {out} needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free")


# -- arrays -----------------------------------------------------------------------------------------------


def _describe_arrays(clean: CleanImages) -> dict[str, object]:
    return {
        "kind": clean.kind,
        "images": list(clean.images.shape),
        "sha256": hashlib.sha256(clean.images.tobytes()).hexdigest(),
        "labels_sha256": hashlib.sha256(clean.labels.tobytes()).hexdigest(),
        **({"classes": list(clean.classes)} if clean.classes else {}),
    }


def _save(path: Path, array: NDArray[Any], *, durable: bool) -> None:
    with atomic_write(path, durable=durable) as file:
        np.save(file, array)


@dataclass(frozen=True)
class _Array:
    """One file of the set."""

    path: Path
    corruption: str
    severities: tuple[int, ...]
    shape: tuple[int, ...]

    def size(self) -> int:
        return int(np.prod(self.shape))

    def is_complete(self) -> bool:
        if self.path.exists() and not _is_array_of(self.path, self.shape):
            raise ValueError(f"{self.path} is not the array of shape {self.shape}: delete it")
        return self.path.exists()


def _is_array_of(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether the file is an array of bytes of that shape."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        return bool(stored.shape == shape and stored.dtype == np.uint8)
    except (ValueError, OSError, EOFError):
        return False


@dataclass(frozen=True)
class _ArrayBlock:
    """Some images under one corruption and severity, in a file of their own until the array is complete."""

    folder: Path
    corruption: str
    severity: int
    start: int
    shape: tuple[int, ...]
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.corruption}-{self.severity}-{self.start}.npy"


def _make_block(block: _ArrayBlock) -> None:
    """Make the file of a block in a worker process."""
    images = np.load(block.folder / "images.npy", mmap_mode="r", allow_pickle=False)
    clean = np.asarray(images[block.start : block.start + block.shape[0]])
    rng = _generator(block.seed, block.corruption, block.severity, block.start)
    _save(block.path, corrupt(clean, block.corruption, rng, block.severity, "cifar"), durable=False)


def _make_arrays(
    arrays: Sequence[_Array], unfinished: Path, clean_shape: tuple[int, ...], seed: int, workers: int
) -> Iterator[int]:
    """Make the blocks, and each array once its blocks are there; yield how many images were made."""
    blocks = {
        array: [
            _ArrayBlock(
                *(unfinished, array.corruption, severity, start),
                shape=(min(ARRAY_BLOCK, clean_shape[0] - start), *clean_shape[1:]),
                seed=seed,
            )
            for severity in array.severities
            for start in range(0, clean_shape[0], ARRAY_BLOCK)
        ]
        for array in arrays
    }
    missing = {
        array: {block for block in group if not _is_array_of(block.path, block.shape)}
        for array, group in blocks.items()
    }
    for array in arrays:
        yield sum(block.shape[0] for block in set(blocks[array]) - missing[array])
        if not missing[array]:
            _join(array, blocks[array])
    owner = {block: array for array, group in missing.items() for block in group}
    in_order = [block for group in blocks.values() for block in group if block in owner]
    for block in run_in_processes(_make_block, in_order, workers):
        array = owner[block]
        missing[array].remove(block)
        if not missing[array]:
            _join(array, blocks[array])
        yield block.shape[0]


def _join(array: _Array, blocks: Sequence[_ArrayBlock]) -> None:
    # Not atomic_write: the array is written through a memory map, so that it need not fit in memory.
    temporary = blocks[0].folder / array.path.name
    joined = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=array.shape)
    np.concatenate([np.load(b.path, mmap_mode="r", allow_pickle=False) for b in blocks], out=joined)
    joined.flush()
    del joined
    temporary.replace(array.path)
    for block in blocks:
        block.path.unlink()


# -- trees of files ---------------------------------------------------------------------------------------


def _describe_files(files: Sequence[Path]) -> dict[str, object]:
    listed = "".join(f"{path.parent.name}/{path.name}\0{path.stat().st_size}\0" for path in files)
    digest = hashlib.sha256(listed.encode()).hexdigest()
    return {"kind": "folder class/image", "images": len(files), "sha256_of_names_and_sizes": digest}


@dataclass(frozen=True)
class _TreeBlock:
    """Some images under one corruption, at all severities."""

    out: Path
    corruption: str
    severities: tuple[int, ...]
    files: tuple[Path, ...]
    start: int
    seed: int


def _make_files(block: _TreeBlock) -> None:
    """Make the files of a block in a worker process; severities that are complete stay as they are."""
    for severity in block.severities:
        folder = block.out / block.corruption / str(severity)
        targets = [folder / path.parent.name / f"{path.stem}.JPEG" for path in block.files]
        if all(target.exists() for target in targets):
            continue
        rng = _generator(block.seed, block.corruption, severity, block.start)
        images = corrupt(_read_images(block.files), block.corruption, rng, severity, "imagenet")
        for target, pixels in zip(targets, images, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(target, staging=block.out / UNFINISHED, durable=False) as file:
                Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, optimize=True)


@lru_cache(maxsize=1)
def _read_images(files: tuple[Path, ...]) -> NDArray[np.uint8]:
    from ramen.images.preprocess import MAX_PIXELS, open_rgb

    images = []
    for path in files:
        image = open_rgb(path)
        short = min(image.size)
        width, height = (_RESIZED if side == short else int(_RESIZED * side / short) for side in image.size)
        if width * height > MAX_PIXELS:
            raise ValueError(f"{path} of {image.width} x {image.height} pixels is too elongated")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - _CROPPED) / 2), round((height - _CROPPED) / 2)
        images.append(np.asarray(image.crop((left, top, left + _CROPPED, top + _CROPPED))))
    return np.stack(images)


# -- worker processes -------------------------------------------------------------------------------------


def run_in_processes(work: Callable[[Task], object], tasks: Iterable[Task], workers: int) -> Iterator[Task]:
    """Run every task in one of the worker processes; yield each task when it is done, in any order."""
    with _single_threaded():
        pool = ProcessPoolExecutor(workers, get_context("spawn"), initializer=_prepare_worker)
        try:
            waiting = {pool.submit(work, task): task for task in tasks}
            for done in as_completed(waiting):
                done.result()
                yield waiting.pop(done)
        except BrokenProcessPool:
            advice = "run the same command again to resume, with fewer workers"
            raise RuntimeError(f"a worker process died (out of memory?): {advice}") from None
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _single_threaded() -> Iterator[None]:
    """Worker processes that start in this block compute on one thread."""
    before = {name: os.environ[name] for name in _THREADS if name in os.environ}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name in _THREADS:
            del os.environ[name]
        os.environ.update(before)


def _prepare_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles interrupts
    end_with_parent()
