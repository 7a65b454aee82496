"""Sets like ImageNet-C, from any folder of images: one JPEG file per image, corruption and severity."""

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
from ramen.data.formats.reading import UNFINISHED
from ramen.data.make.clean_images import list_images_by_class
from ramen.data.make.set_folder import claim_folder, how_made
from ramen.data.make.settings import ALL_CORRUPTIONS, block_generator, check_settings
from ramen.data.make.worker_processes import run_in_processes
from ramen.utils.atomic_files import atomic_write

BLOCK = 32  # images that share a generator; a process holds one block at a time, 260 MB in all
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

    Images are first resized, the shorter side to 256, and center-cropped to 224 x 224.

    Args:
        source: Folder ``class/image``.
        out: Folder to write: new, empty, or started by an earlier call.
        corruptions: Which corruptions; all nineteen by default.
        severities: Which severities; all five by default.
        seed: Determines everything random.
        workers: Number of processes; the number of cores by default.
        progress: Called with the number of finished images and their total.
    """
    settings = check_settings(corruptions, severities, seed, workers)
    source, out = Path(source), Path(out)
    if not source.is_dir():
        raise FileNotFoundError(f"source: there is no folder {source}")
    if source.resolve() in (out.resolve(), *out.resolve().parents):
        raise ValueError(f"out: {out} is inside the source {source}: choose a folder outside it")
    files = list_images_by_class(source)
    _check_new_names(files)
    facts = how_made("imagenetc", "imagenet", settings.seed, BLOCK, _describe(files), settings.corruptions)
    claim_folder(out, facts)

    unfinished = out / UNFINISHED
    unfinished.mkdir(exist_ok=True)
    blocks = [
        _Block(
            out, corruption, settings.severities, tuple(files[start : start + BLOCK]), start, settings.seed
        )
        for start in range(0, len(files), BLOCK)  # so that a process has the images of the block decoded
        for corruption in settings.corruptions
    ]
    done, total = 0, len(files) * len(settings.corruptions) * len(settings.severities)
    progress(done, total)
    for block in run_in_processes(_make_block, blocks, settings.workers):
        done += len(block.files) * len(settings.severities)
        progress(done, total)
    shutil.rmtree(unfinished)
    return out


def _check_new_names(files: Sequence[Path]) -> None:
    """Refuse two images of a class whose names differ only in the suffix: they would become one file."""
    names: dict[str, Path] = {}
    for path in files:
        name = f"{path.parent.name}/{path.stem}"
        if name in names:
            raise ValueError(f"{names[name]} and {path} would both become {name}.JPEG: rename one")
        names[name] = path


def _describe(files: Sequence[Path]) -> dict[str, object]:
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.parent.name}/{path.name}\0{path.stat().st_size}\0".encode())
    return {
        "kind": "folder class/image",
        "images": len(files),
        "sha256_of_names_and_sizes": digest.hexdigest(),
    }


@dataclass(frozen=True)
class _Block:
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


def _make_block(block: _Block) -> None:
    """Make the files of a block in a worker process; severities that are complete stay as they are."""
    for severity in block.severities:
        targets = block.targets(severity)
        if all(target.exists() for target in targets):
            continue
        rng = block_generator(block.seed, block.corruption, severity, block.start)
        images = corrupt(_read_images(block.files), block.corruption, rng, severity, "imagenet")
        for target, pixels in zip(targets, images, strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(target, staging=block.out / UNFINISHED, durable=False) as file:
                Image.fromarray(pixels).save(file, "JPEG", quality=_QUALITY, optimize=True)


@lru_cache(maxsize=1)
def _read_images(files: tuple[Path, ...]) -> NDArray[np.uint8]:
    from ramen.images.image_inputs import MAX_PIXELS, open_rgb

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
