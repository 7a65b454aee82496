"""Drawings as files, for the tiny model."""

from pathlib import Path

from PIL import Image

from ramen.data.drawings.tiny import DOMAINS
from ramen.experiments.demo import drawings

CLASSES = ("cat", "house", "boat")


def write_drawings(folder: Path, per_domain: int = 2) -> list[Path]:
    """Write drawings of ``CLASSES`` from all domains, as PNG files; their names say nothing about them."""
    folder.mkdir(parents=True, exist_ok=True)
    stream = drawings(CLASSES, per_domain, 0)
    paths = [folder / f"{number:03}.png" for number in range(per_domain * len(DOMAINS))]
    for path, pixels in zip(paths, stream.read(slice(0, len(stream))), strict=True):
        Image.fromarray(pixels.permute(1, 2, 0).numpy()).save(path)
    return paths
