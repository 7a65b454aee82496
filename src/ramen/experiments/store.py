"""A folder of experiments: results, claims of those who run them, logs, plans.

What is finished, running, failed or interrupted follows from files. With ``STEM`` of a result ``STEM.json``,
``STEM.npz`` has the answer to each image, ``.STEM.lock`` is held by who runs the experiment and says how far
that is, ``.STEM.ckpt`` resumes it, and ``STEM.log`` says why it failed.
"""

import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from ramen.experiments.experiment import Experiment
from ramen.utils import files

if TYPE_CHECKING:
    from ramen.data.streams.stream import Stream

SCHEMA = 1  # increased when older files can no longer be read
_REMEDY = "remove it and run the experiment again"
_SECONDS = 0.25  # between two reports of progress


class DamagedResultError(ValueError):
    """A file that exists but is not a result of this schema."""


def write_result(path: Path | str, result: Mapping[str, Any]) -> None:
    """Write a result in plain values, atomically.

    Args:
        path: The file; missing parent folders are created.
        result: Dicts with strings as keys, lists, strings, finite numbers, True, False and None.
    """
    if "schema" in result:
        raise ValueError(f"result must not have a key 'schema', got {result['schema']!r}: it is added here")
    content = {"schema": SCHEMA, **result}
    text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
    if json.loads(text) != content:
        raise TypeError(
            "result must have strings as keys, and lists: reading the file would not restore others"
        )
    files.write_text(path, text + "\n")


def read_result(path: Path | str) -> dict[str, Any]:
    """The content that ``write_result`` wrote, without its schema number."""
    path = Path(path)
    try:
        content = json.loads(path.read_bytes().decode("utf-8"), parse_constant=_refuse_constant)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no result {path}") from None
    except (ValueError, RecursionError) as error:  # ValueError: bad UTF-8, bad JSON, non-finite numbers
        raise DamagedResultError(f"{path} is damaged ({error}); {_REMEDY}") from None
    if not isinstance(content, dict) or "schema" not in content:
        raise DamagedResultError(f"{path} is not a result: it has no schema number; {_REMEDY}")
    schema = content.pop("schema")
    if type(schema) is not int or schema != SCHEMA:
        raise DamagedResultError(
            f"{path} has schema {schema!r}, expected {SCHEMA}: it was written by another version; {_REMEDY}"
        )
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


# -- a folder -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Progress:
    """How far a run is.

    Attributes:
        done: Images, or another count.
        total: How many there are.
        step: What is counted, if it is not the images of the stream.
        rate: Images per second.
        accuracy: Of the images so far, in percent.
        zero_shot: That of the classifier without adaptation.
    """

    done: int
    total: int
    step: str = ""
    rate: float | None = None
    accuracy: float | None = None
    zero_shot: float | None = None


class Claim:
    """The right to run an experiment.

    Args:
        write: Writes what others may know into the lock file.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], object]) -> None:
        self._write, self._last, self._step = write, 0.0, ""

    def report(self, progress: Progress) -> None:
        """Say how far the run is; most of what comes within a quarter of a second is left out."""
        now = time.monotonic()
        is_new = progress.step != self._step or progress.done == progress.total
        if is_new or now - self._last >= _SECONDS:
            self._last, self._step = now, progress.step
            self._write({"progress": asdict(progress)})


class Store:
    """A folder of results.

    Args:
        folder: It may be shared by several machines.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).resolve()

    def path(self, experiment: Experiment) -> Path:
        """The file of its result."""
        return experiment.path(self.folder)

    def log(self, experiment: Experiment, owner: str | None = None) -> Path:
        """The log of a failure; with the name of a command, its own log while it runs the experiment."""
        path = self.path(experiment).with_suffix(".log")
        return path if owner is None else path.with_name(f".{path.stem}.{owner}.log")

    def checkpoint(self, experiment: Experiment) -> Path:
        """What resumes it."""
        path = self.path(experiment)
        return path.with_name(f".{path.stem}.ckpt")

    def result(
        self, experiment: Experiment, stream: "Callable[[Experiment], Stream]"
    ) -> dict[str, Any] | None:
        """Its result, if it is there; ValueError if the file is of something else.

        Args:
            experiment: What may have been run.
            stream: Makes its stream, if its data must be compared.
        """
        path = self.path(experiment)
        try:
            result = read_result(path)
        except FileNotFoundError:
            return None
        try:
            recorded = result["provenance"]["method"]["parameters"]
            same = {**result["experiment"], "parameters": recorded} == {
                **experiment.identity(),
                "parameters": experiment.all_parameters(),
            }
            data = {"root": None, **result["provenance"]["dataset"]}
        except (KeyError, TypeError) as error:
            raise DamagedResultError(
                f"{path} is not the result of a run: it has no {error}; remove it"
            ) from None
        if not same:
            raise ValueError(
                f"{path} is the result of another experiment; remove it, or choose another folder"
            )
        root = None if experiment.root is None else str(Path(experiment.root).expanduser().resolve())
        if data["root"] != root:  # data in another folder may be the same or not
            _require_same_data(path, data, root, stream(experiment))
        return result

    def answers(self, experiment: Experiment) -> dict[str, NDArray[Any]]:
        """What was answered to each image; nothing beside results of earlier versions."""
        path = self._answers(experiment)
        try:
            with np.load(path) as arrays:
                return dict(arrays)
        except FileNotFoundError:
            return {}
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise DamagedResultError(
                f"{path} is damaged ({error}); remove it and its result, and run the experiment again"
            ) from None

    def write(
        self, experiment: Experiment, result: Mapping[str, Any], answers: Mapping[str, NDArray[Any]]
    ) -> None:
        """Write its result, after what was answered to each image."""
        if answers:
            with files.atomic_write(self._answers(experiment)) as file:
                np.savez(file, **answers)  # type: ignore[arg-type]  # of a newer option with a fixed name
        write_result(self.path(experiment), result)

    def write_plan(self, name: str, plan: Mapping[str, Any]) -> None:
        """Say beside the results what they belong to, as a report shows it."""
        write_result(self.folder / "plans" / f"{name}.json", {"kind": "plan", **plan})

    @contextmanager
    def claim(self, experiment: Experiment, owner: str | None = None) -> Iterator[Claim]:
        """The right to run it, within the block; LockedError if another process has it.

        Args:
            experiment: What is to be run.
            owner: Who runs it, possibly again: a claim that a host left behind when it died does not keep the
                same owner out.
        """
        with files.file_lock(
            self._lock(experiment), "is running this experiment", trust_hosts=True, owner=owner
        ) as write:
            yield Claim(write)

    def holder(self, experiment: Experiment) -> dict[str, Any]:
        """Who has claimed it, with ``pid``, ``host`` and ``progress``; nothing if nobody has."""
        try:
            holder = json.loads(self._lock(experiment).read_bytes())
            found = holder.get("progress")
            return {**holder, "progress": None if found is None else Progress(**found)}
        except (OSError, ValueError, TypeError, AttributeError):  # nobody, or it is being written
            return {}

    def _answers(self, experiment: Experiment) -> Path:
        return self.path(experiment).with_suffix(".npz")

    def _lock(self, experiment: Experiment) -> Path:
        path = self.path(experiment)
        return path.with_name(f".{path.stem}.lock")


def _require_same_data(path: Path, recorded: Mapping[str, Any], root: str | None, stream: "Stream") -> None:
    """A result of other data must not be returned."""
    from ramen.experiments import provenance

    found = provenance.dataset_block(stream.dataset, None)
    differing = [key for key in found if key != "root" and found[key] != recorded.get(key)]
    if differing:
        raise ValueError(
            f"{path} is the result of other data, in {recorded['root']}: {root} differs in "
            f"{', '.join(differing)}; choose another folder for results"
        )
