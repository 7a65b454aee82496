"""Sets like ImageNet-C, from any folder of images: one JPEG file for each image, corruption and severity."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ramen.data.corruptions import SEVERITIES, corrupt
from ramen.data.make import output
from ramen.data.make.clean_images import images_by_class
from ramen.data.make.output import ALL_CORRUPTIONS
from ramen.utils import checks

PIECE = 32  # images with one generator, and what a process holds at a time: 260 MB in all
_RESIZED, _CROPPED, _QUALITY = 256, 224, 85  # as released


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

    Images are first resized, their short side to 256, and cropped to the middle 224 x 224.

    Args:
        source: Folder ``class/image``.
        out: Folder to write: new, empty, or begun by such a call.
        corruptions: Which; all nineteen without it.
        severities: Which; all five without it.
        seed: Decides everything random.
        workers: Processes; as many as there are cores without it.
        progress: Called with the images that are done and their total.
    """
    corruptions, severities = output.check_wanted(corruptions, severities)
    checks.integer("seed", seed, 0)
    workers = output.available_cores() if workers is None else checks.integer("workers", workers, 1)
    source, out = Path(source), Path(out)
    if not source.is_dir():
        raise FileNotFoundError(f"source: there is no folder {source}")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"out: {out} lies in the source {source}: choose a folder beside it")
    files = images_by_class(source)
    names = _names(files)
    output.claim(out, output.made_of("imagenetc", "imagenet", seed, PIECE, _facts(files), corruptions))

    unfinished = out / output.UNFINISHED
    unfinished.mkdir(exist_ok=True)
    pieces = [
        _Piece(out, corruption, tuple(severities), tuple(files[start : start + PIECE]), start, seed)
        for start in range(0, len(files), PIECE)  # so that a process finds its images decoded
        for corruption in corruptions
    ]
    done, total = 0, len(names) * len(corruptions) * len(severities)
    progress(done, total)
    for piece in output.in_processes(_make_piece, pieces, workers):
        done += len(piece.files) * len(severities)
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


def _names(files: Sequence[Path]) -> dict[str, Path]:
    """The names of the new files; two images of a class that differ in their ending alone would share one."""
    names: dict[str, Path] = {}
    for path in files:
        name = f"{path.parent.name}/{path.stem}"
        if name in names:
            raise ValueError(f"{names[name]} and {path} would both become {name}.JPEG: rename one")
        names[name] = path
    return names


def _facts(files: Sequence[Path]) -> dict[str, object]:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.parent.name}/{path.name}\0{path.stat().st_size}\0".encode())
    return {
        "kind": "folder class/image",
        "images": len(files),
        "sha256_of_names_and_sizes": digest.hexdigest(),
    }


@dataclass(frozen=True)
class _Piece:
    """Some images under one corruption, at all severities."""

    out: Path
    corruption: str
    severities: tuple[int, ...]
    files: tuple[Path, ...]
    start: int
    seed: int

    def targets(self, severity: int) -> list[Path]:
        folder = self.out / self.corruption / str(severity)
        return [folder / path.parent.name / f"{path.stem}.JPEG" for path in self.files]


def _make_piece(piece: _Piece) -> None:
    """The work of a process; what is there already stays."""
    for severity in piece.severities:
        targets = piece.targets(severity)
        if all(target.exists() for target in targets):
            continue
        rng = output.generator(piece.seed, piece.corruption, severity, piece.start)
        images = corrupt(_read(piece.files), piece.corruption, rng, severity, "imagenet")
        for target, image in zip(targets, images, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            _write(target, image, piece.out / output.UNFINISHED)


def _write(target: Path, image: NDArray[np.uint8], by_way_of: Path) -> None:
    picture = Image.fromarray(image)
    output.write_whole(
        target, lambda file: picture.save(file, "JPEG", quality=_QUALITY, optimize=True), by_way_of
    )


@lru_cache(maxsize=1)
def _read(files: tuple[Path, ...]) -> NDArray[np.uint8]:
    from ramen.images.preprocess import MAX_PIXELS, open_image

    images = []
    for path in files:
        image = open_image(path).convert("RGB")
        short = min(image.size)
        width, height = (_RESIZED if side == short else int(_RESIZED * side / short) for side in image.size)
        if width * height > MAX_PIXELS:
            raise ValueError(f"{path} of {image.width} x {image.height} pixels is too elongated")
        image = image.resize((width, height), Image.Resampling.BILINEAR)
        left, top = round((width - _CROPPED) / 2), round((height - _CROPPED) / 2)
        images.append(np.asarray(image.crop((left, top, left + _CROPPED, top + _CROPPED))))
    return np.stack(images)
