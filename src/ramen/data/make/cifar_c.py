"""Sets like CIFAR-10-C and CIFAR-100-C: one array for each corruption."""

import hashlib
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ramen.data.corruptions import SEVERITIES, corrupt
from ramen.data.make import output
from ramen.data.make.clean_images import Clean, read_clean
from ramen.data.make.output import ALL_CORRUPTIONS
from ramen.utils import checks

CIFAR_NAMES = ("cifar10c", "cifar100c")
PIECE = 500  # images with one generator, and what a process holds at a time: 90 MB in all


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

    With all five severities the layout is the released one: ``<corruption>.npy`` of 5 n images, severity 1
    first, and ``labels.npy`` of 5 n labels. With fewer, each severity has a folder ``severity_<number>`` with
    arrays of n images and a ``labels.npy`` of n.

    Args:
        source: The clean pictures; see ``ramen.data.make.clean_images.read_clean``.
        out: Folder to write: new, empty, or begun by such a call.
        name: ``"cifar10c"`` or ``"cifar100c"``.
        corruptions: Which; all nineteen without it.
        severities: Which; all five without it.
        seed: Decides everything random.
        workers: Processes; as many as there are cores without it.
        progress: Called with the images that are done and their total.
    """
    checks.choice("name", name, CIFAR_NAMES)
    corruptions, severities = output.check_wanted(corruptions, severities)
    checks.integer("seed", seed, 0)
    workers = output.available_cores() if workers is None else checks.integer("workers", workers, 1)
    out, clean = Path(out), read_clean(Path(source), name)
    output.claim(out, output.made_of(name, "cifar", seed, PIECE, _facts(clean), corruptions))

    shape = clean.images.shape
    arrays = [
        _Array(folder / f"{corruption}.npy", corruption, tuple(rows), (len(rows) * shape[0], *shape[1:]))
        for corruption in corruptions
        for folder, rows in _folders(out, severities)
    ]
    unmade = [array for array in arrays if not array.is_made()]
    output.check_room(out, sum(array.size for array in unmade) + clean.images.nbytes)
    unfinished = out / output.UNFINISHED
    unfinished.mkdir(exist_ok=True)
    output.write_whole(unfinished / "images.npy", lambda file: np.save(file, clean.images))
    for folder, rows in _folders(out, severities):
        folder.mkdir(exist_ok=True)
        _save(folder / "labels.npy", np.tile(clean.labels, len(rows)))

    done, total = (
        sum(array.shape[0] for array in arrays if array not in unmade),
        sum(a.shape[0] for a in arrays),
    )
    progress(done, total)
    for count in _make(unmade, unfinished, shape, seed, workers):
        done += count
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


def _facts(clean: Clean) -> dict[str, object]:
    facts: dict[str, object] = {
        "kind": clean.kind,
        "images": list(clean.images.shape),
        "sha256": hashlib.sha256(clean.images.tobytes()).hexdigest(),
        "labels_sha256": hashlib.sha256(clean.labels.tobytes()).hexdigest(),
    }
    return facts | ({"classes": list(clean.classes)} if clean.classes else {})


def _folders(out: Path, severities: Sequence[int]) -> list[tuple[Path, Sequence[int]]]:
    if tuple(severities) == SEVERITIES:
        return [(out, severities)]
    return [(out / f"severity_{severity}", [severity]) for severity in severities]


def _save(path: Path, array: np.ndarray) -> None:
    output.write_whole(path, lambda file: np.save(file, array), durable=True)


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

    def is_made(self) -> bool:
        if self.path.exists() and not _holds(self.path, self.shape):
            raise ValueError(
                f"{self.path} is not the array of shape {self.shape} that belongs there: delete it"
            )
        return self.path.exists()


def _holds(path: Path, shape: tuple[int, ...]) -> bool:
    """Whether there is an array of bytes of that shape."""
    try:
        stored = np.load(path, mmap_mode="r", allow_pickle=False)
        return bool(stored.shape == shape and stored.dtype == np.uint8)
    except (ValueError, OSError, EOFError):
        return False


@dataclass(frozen=True)
class _Piece:
    """Some images under one corruption and severity, in a file of their own until the array is whole."""

    folder: Path
    corruption: str
    severity: int
    start: int
    shape: tuple[int, ...]
    seed: int

    @property
    def path(self) -> Path:
        return self.folder / f"{self.corruption}-{self.severity}-{self.start}.npy"


def _make_piece(piece: _Piece) -> None:
    """The work of a process."""
    images = np.load(piece.folder / "images.npy", mmap_mode="r", allow_pickle=False)
    clean = np.asarray(images[piece.start : piece.start + piece.shape[0]])
    rng = output.generator(piece.seed, piece.corruption, piece.severity, piece.start)
    corrupted = corrupt(clean, piece.corruption, rng, piece.severity, "cifar")
    output.write_whole(piece.path, lambda file: np.save(file, corrupted))


def _make(
    arrays: Sequence[_Array], unfinished: Path, clean: tuple[int, ...], seed: int, workers: int
) -> Iterator[int]:
    """Make the pieces, and each array as soon as its own are there; yield how many images were made."""
    pieces = {
        array: [
            _Piece(
                *(unfinished, array.corruption, severity, start),
                shape=(min(PIECE, clean[0] - start), *clean[1:]),
                seed=seed,
            )
            for severity in array.severities
            for start in range(0, clean[0], PIECE)
        ]
        for array in arrays
    }
    missing = {
        array: {piece for piece in group if not _holds(piece.path, piece.shape)}
        for array, group in pieces.items()
    }
    for array in arrays:
        yield sum(piece.shape[0] for piece in set(pieces[array]) - missing[array])
        if not missing[array]:
            _join(array, pieces[array])
    owner = {piece: array for array, group in missing.items() for piece in group}
    in_order = [piece for group in pieces.values() for piece in group if piece in owner]
    for piece in output.in_processes(_make_piece, in_order, workers):
        array = owner[piece]
        missing[array].remove(piece)
        if not missing[array]:
            _join(array, pieces[array])
        yield piece.shape[0]


def _join(array: _Array, pieces: Sequence[_Piece]) -> None:
    temporary = pieces[0].folder / array.path.name
    whole = np.lib.format.open_memmap(temporary, mode="w+", dtype=np.uint8, shape=array.shape)
    row = 0
    for piece in pieces:
        images = np.load(piece.path, allow_pickle=False)
        whole[row : row + len(images)] = images
        row += len(images)
    whole.flush()
    del whole
    temporary.replace(array.path)
    for piece in pieces:
        piece.path.unlink()
