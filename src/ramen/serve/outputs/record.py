"""The record beside an output: what its results were made with, and when.

It is a hidden file, so that the output itself stays clean: ``.labels.csv.ramen.json`` for ``labels.csv``.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ramen.utils import atomic_files

VERSION = 1
_NAMES = {
    "weights": "other weights",
    "classes": "other classes",
    "templates": "other prompt templates",
    "method": "another method",
    "parameters": "other parameters of the method",
    "orient": "another setting of --no-orient",
}


class OtherOutputError(ValueError):
    """The output holds results that do not fit the new ones, or something else altogether."""


@dataclass(frozen=True)
class Identity:
    """What all results in an output have in common.

    Attributes:
        model: The model's name; two names for the same weights are the same model.
        weights: A hash of its weights.
        classes: Their names, in order.
        templates: The prompt templates.
        method: The method's name.
        parameters: Those that were given; the method chooses the others.
        orient: Whether images were turned as their EXIF data say.
    """

    model: str
    weights: str
    classes: tuple[str, ...]
    templates: tuple[str, ...]
    method: str
    parameters: Mapping[str, Any]
    orient: bool

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self) | {"classes": list(self.classes), "templates": list(self.templates)}

    def differences(self, stored: Mapping[str, Any]) -> list[str]:
        """In words, how this differs from what a record has."""
        own = self.to_dict()
        return [
            f"{words} ({_short(stored.get(name))} there, {_short(own[name])} now)"
            for name, words in _NAMES.items()
            if stored.get(name) != own[name]
        ]


@dataclass
class RunRecord:
    """One run of the command.

    Attributes:
        started: When, in UTC.
        state: Where what it learned is kept, if anywhere.
        before: How many results were in the output.
        seconds: How long it took; None while it runs, and for ever if it was killed.
        files: How many files it added to the output.
        processes: How many answered together; None for one without a group.
    """

    started: str
    state: str | None
    before: int = 0
    seconds: float | None = None
    files: int = 0
    processes: int | None = None


@dataclass
class OutputRecord:
    """The record of one output.

    Attributes:
        path: The output.
        identity: As plain values.
        runs: In order.
    """

    path: Path
    identity: dict[str, Any]
    runs: list[RunRecord] = field(default_factory=list)

    def start(self, state: str | None, before: int, processes: int | None = None) -> RunRecord:
        """Note that a run starts, with so many results in the output."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.runs.append(RunRecord(now, state, before, processes=processes))
        self.write()
        return self.runs[-1]

    def write(self) -> None:
        """Replace the file."""
        content = {
            "version": VERSION,
            "identity": self.identity,
            "runs": [asdict(run) for run in self.runs],
        }
        text = json.dumps(content, indent=1, ensure_ascii=True)
        atomic_files.write_text(record_path(self.path), text + "\n")


def record_path(output: Path) -> Path:
    """Where the record of an output is."""
    return output.with_name(f".{output.name}.ramen.json")


def read_record(output: Path, identity: Identity, files: Sequence[Path]) -> OutputRecord:
    """The record of an output that exists; OtherOutputError if it does not fit ``identity``.

    Args:
        output: The output.
        identity: What new results are made with.
        files: What there is of the output, to be removed by somebody who wants to start again.
    """
    place = record_path(output)
    start_again = f"choose another --out, or remove {' and '.join(map(str, files))} to start again"
    try:
        content = json.loads(place.read_text(encoding="utf-8"))
        stored, runs = dict(content["identity"]), [RunRecord(**run) for run in content["runs"]]
    except FileNotFoundError:
        raise OtherOutputError(
            f"{output} exists but has no record ({place.name}) of what made it: {start_again}"
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise OtherOutputError(f"{place} is damaged ({error}): {start_again}") from None
    if content.get("version") != VERSION:
        raise OtherOutputError(f"{place} has version {content.get('version')}, not {VERSION}: {start_again}")
    differences = identity.differences(stored)
    if differences:
        raise OtherOutputError(f"{output} holds results of {'; '.join(differences)}: {start_again}")
    return OutputRecord(output, stored, runs)


def _short(value: object) -> str:
    if isinstance(value, list):
        listed = ", ".join(map(str, value[:4]))
        return f"{listed}, ... ({len(value)})" if len(value) > 4 else listed
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={entry}" for name, entry in value.items()) or "none"
    text = str(value)
    return text if len(text) <= 24 else f"{text[:16]}..."
