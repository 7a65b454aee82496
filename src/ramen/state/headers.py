"""What stored states say of the classifier that they were made with, read before any model is loaded."""

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from ramen.state.records import Record, read_records
from ramen.state.segments import LocalSegments

_HEADER = "header"


def dtypes_below(folder: str | os.PathLike[str] | None) -> Iterator[str | None]:
    """The dtype of each state in a folder or below it; None for one that does not say, as in version 0.2."""
    if folder is None:
        return
    found = Path(folder).expanduser().rglob("segment-*.log")
    for location in dict.fromkeys(path.parent for path in found):
        for classifier in _classifiers(location):
            yield classifier.get("dtype")
            break


def classes_in(folder: Path) -> tuple[str, ...] | None:
    """The class names of the state in a folder, the newest that can be read; None if there is none."""
    names: tuple[str, ...] | None = None
    with suppress(ValueError, TypeError, KeyError, OSError):  # whatever is there is no state
        for classifier in _classifiers(folder):
            names = tuple(map(str, classifier["classes"]))
    return names


def _classifiers(folder: Path) -> Iterator[dict[str, Any]]:
    segments = LocalSegments(folder)
    for number in segments.numbers():
        for record in read_records(segments.read(number)):
            if isinstance(record, Record):
                for name, tensor in record.tensors.items():
                    if name.endswith(_HEADER):
                        yield json.loads(bytes(tensor.tolist()))["classifier"]
