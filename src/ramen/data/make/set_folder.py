"""The folder of a set that is being made: the record of how it is made, and room for unfinished files."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL

import ramen
from ramen.data.corruptions import RECIPES
from ramen.data.corruptions.frost import textures
from ramen.data.formats.reading import RECORD_FILE
from ramen.utils.atomic_files import write_text


def how_made(
    name: str, recipe: str, seed: int, block: int, source: Mapping[str, Any], corruptions: Sequence[str]
) -> dict[str, Any]:
    """Everything that determines the bytes of a set, for its record."""
    facts = {
        "set": name,
        "recipe": recipe,
        "parameters": dict(RECIPES[recipe].parameters),
        "seed": seed,
        "images_with_one_generator": block,
        "source": dict(source),
        "versions": {
            "ramen": ramen.__version__,
            "numpy": np.__version__,
            "pillow": PIL.__version__,
        },
    }
    return facts | ({"frost": textures().source} if "frost" in corruptions else {})


def claim_folder(out: Path, facts: Mapping[str, Any]) -> None:
    """Record how the set in ``out`` is made; refuse a folder that holds something else."""
    path, expected = out / RECORD_FILE, json.loads(json.dumps(facts))
    found: dict[str, Any] = {}
    if path.exists():
        try:
            found = dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ValueError(
                f"{path} cannot be read ({error}): delete {out} or choose another folder"
            ) from None
        for key in found.keys() & expected.keys():
            if found[key] != expected[key]:
                raise ValueError(
                    f"out: {out} holds a set made with {key} {_shortened(found[key])}, now it is "
                    f"{_shortened(expected[key])}: delete the folder or choose another"
                )
    elif out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(
            f"out: {out} must be new, empty, or started by an earlier run (it has no {RECORD_FILE})"
        )
    write_text(path, json.dumps(found | expected, indent=2) + "\n")


def _shortened(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def check_free_space(out: Path, needed: int) -> None:
    """Raise OSError if the disk cannot hold ``needed`` more bytes."""
    free = shutil.disk_usage(out).free
    if needed > free:
        raise OSError(f"out: {out} needs {needed / 1e9:.1f} GB, but only {free / 1e9:.1f} GB are free")
