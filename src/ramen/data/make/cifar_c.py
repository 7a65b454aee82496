"""Sets like CIFAR-10-C and CIFAR-100-C: one array per corruption."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen.data.corruptions import SEVERITIES, corrupt
from ramen.data.formats.reading import UNFINISHED
from ramen.data.make.clean_images import CleanImages, read_clean_images
from ramen.data.make.set_folder import check_free_space, claim_folder, how_made
from ramen.data.make.settings import ALL_CORRUPTIONS, block_generator, check_settings
from ramen.data.make.worker_processes import run_in_processes
from ramen.utils import checks
from ramen.utils.atomic_files import atomic_write

CIFAR_NAMES = ("cifar10c", "cifar100c")
BLOCK = 500  # images that share a generator; a process holds one block at a time, 90 MB in all


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
        source: The clean images; see ``ramen.data.make.clean_images.read_clean_images``.
        out: Folder to write: new, empty, or started by an earlier call.
        name: ``"cifar10c"`` or ``"cifar100c"``.
        corruptions: Which corruptions; all nineteen by default.
        severities: Which severities; all five by default.
        seed: Determines everything random.
        workers: Number of processes; the number of cores by default.
        progress: Called with the number of finished images and their total.
    """
    checks.choice("name", name, CIFAR_NAMES)
    settings = check_settings(corruptions, severities, seed, workers)
    out, clean = Path(out), read_clean_images(Path(source), name)
    claim_folder(out, how_made(name, "cifar", settings.seed, BLOCK, _describe(clean), settings.corruptions))

    shape = clean.images.shape
    folders = _severity_folders(out, settings.severities)
    arrays = [
        _Array(folder / f"{corruption}.npy", corruption, stored, (len(stored) * shape[0], *shape[1:]))
        for corruption in settings.corruptions
        for folder, stored in folders
    ]
    missing = [array for array in arrays if not array.is_complete()]
    check_free_space(out, sum(array.size for array in missing) + clean.images.nbytes)
    unfinished = out / UNFINISHED
    unfinished.mkdir(exist_ok=True)
    _save(unfinished / "images.npy", clean.images, durable=False)
    for folder, stored in folders:
        folder.mkdir(exist_ok=True)
        _save(folder / "labels.npy", np.tile(clean.labels, len(stored)), durable=True)

    done = sum(array.shape[0] for array in arrays if array not in missing)
    total = sum(array.shape[0] for array in arrays)
    progress(done, total)
    for count in _make_arrays(missing, unfinished, shape, settings.seed, settings.workers):
        done += count
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


def _describe(clean: CleanImages) -> dict[str, object]:
    facts: dict[str, object] = {
        "kind": clean.kind,
        "images": list(clean.images.shape),
        "sha256": hashlib.sha256(clean.images.tobytes()).hexdigest(),
        "labels_sha256": hashlib.sha256(clean.labels.tobytes()).hexdigest(),
    }
    return facts | ({"classes": list(clean.classes)} if clean.classes else {})


def _severity_folders(out: Path, severities: tuple[int, ...]) -> list[tuple[Path, tuple[int, ...]]]:
    """The folders of the set, each with the severities that its arrays store."""
    if severities == SEVERITIES:
        return [(out, severities)]
    return [(out / f"severity_{severity}", (severity,)) for severity in severities]


def _save(path: Path, array: np.ndarray, *, durable: bool) -> None:
    with atomic_write(path, durable=durable) as file:
        np.save(file, array)


@dataclass(frozen=True)
class _Array:
    """One file of the set."""

    path: Path
    corruption: str
    severities: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    def is_complete(self) -> bool:
        if self.path.exists() and not _is_array_of(self.path, self.shape):
            raise ValueError(
                f"{self.path} is not the array of shape {self.shape} that belongs there: delete it"
            )
        return self.path.exists()


def _is_array_of(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether the file is an array of bytes of that shape."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        return bool(stored.shape == shape and stored.dtype == np.uint8)
    except (ValueError, OSError, EOFError):
        return False


@dataclass(frozen=True)
class _Block:
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


def _make_block(block: _Block) -> None:
    """Make the file of a block in a worker process."""
    images = np.load(block.folder / "images.npy", mmap_mode="r", allow_pickle=False)
    clean = np.asarray(images[block.start : block.start + block.shape[0]])
    rng = block_generator(block.seed, block.corruption, block.severity, block.start)
    _save(block.path, corrupt(clean, block.corruption, rng, block.severity, "cifar"), durable=False)


def _make_arrays(
    arrays: Sequence[_Array], unfinished: Path, clean_shape: tuple[int, ...], seed: int, workers: int
) -> Iterator[int]:
    """Make the blocks, and each array once its blocks are there; yield how many images were made."""
    blocks = {
        array: [
            _Block(
                *(unfinished, array.corruption, severity, start),
                shape=(min(BLOCK, clean_shape[0] - start), *clean_shape[1:]),
                seed=seed,
            )
            for severity in array.severities
            for start in range(0, clean_shape[0], BLOCK)
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


def _join(array: _Array, blocks: Sequence[_Block]) -> None:
    # Not atomic_write: the array is written through a memory map, so that it need not fit in memory.
    temporary = blocks[0].folder / array.path.name
    joined = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=array.shape)
    row = 0
    for block in blocks:
        images = np.load(block.path, allow_pickle=False)
        joined[row : row + len(images)] = images
        row += len(images)
    joined.flush()
    del joined
    temporary.replace(array.path)
    for block in blocks:
        block.path.unlink()
