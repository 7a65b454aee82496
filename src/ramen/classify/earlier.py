"""Outputs of version 0.2, read once to give them a journal: a record of runs, and the rows themselves."""

import csv
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ramen.classify.files import original
from ramen.classify.output import COLUMNS, CsvRows
from ramen.client.result import Result

_NUMBERS = ("probability", "zero_shot_probability", "entropy", "zero_shot_entropy")


@dataclass(frozen=True)
class EarlierOutput:
    """An output of version 0.2."""

    identity: dict[str, Any]  # what its results were made with
    runs: list[dict[str, Any]]  # as its record has them
    results: list[Result]
    files: Sequence[Path]  # what is of no use once there is a journal

    def lines(self) -> Iterator[dict[str, Any]]:
        """As a journal has them, after its head."""
        starts = [min(run["before"], len(self.results)) for run in self.runs]
        yield from (result.to_dict() for result in self.results[: starts[0] if starts else None])
        for run, start, end in zip(self.runs, starts, [*starts[1:], len(self.results)], strict=True):
            yield {"started": run["started"], "state": run["state"]}
            yield from (result.to_dict() for result in self.results[start:end])
            if run["seconds"] is not None:
                yield {"seconds": run["seconds"], "files": run["files"]}

    def remove(self) -> None:
        """Remove what is of no use once there is a journal."""
        for path in self.files:
            path.unlink(missing_ok=True)


def read(path: Path) -> EarlierOutput | None:
    """What version 0.2 has written; None if there is nothing of it, ValueError if it is damaged."""
    record = path.with_name(f".{path.name}.ramen.json")
    killed = path.with_name(f".{path.name}.journal.jsonl")  # rows of a Parquet file that was being written
    rows = killed if killed.exists() else path
    if not record.exists():
        return None
    if not rows.exists():  # somebody wants to start again
        record.unlink()
        return None
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
        if content["version"] != 1:
            raise ValueError(f"version {content['version']}, not 1")
        identity, runs = dict(content["identity"]), [dict(run) for run in content["runs"]]
        classes = len(identity["classes"])
        for run in runs:
            _ = run["started"], run["state"], run["before"], run["seconds"], run["files"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{record} is damaged ({error})") from None
    read_rows = {".csv": _csv_rows, ".jsonl": _json_rows, ".parquet": _parquet_rows}[rows.suffix.lower()]
    try:
        results = [_result(values) for values in read_rows(rows, classes)]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{rows} is damaged ({error})") from None
    return EarlierOutput(identity, runs, results, (record, killed))


def _result(values: dict[str, Any]) -> Result:
    rest = {name: value for name, value in values.items() if name not in ("file", "changed")}
    return Result.from_dict({**rest, "key": original(values["file"])})


def _json_rows(path: Path, classes: int) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        yield from (json.loads(line) for line in file if line.endswith(b"\n"))


def _parquet_rows(path: Path, classes: int) -> Iterator[dict[str, Any]]:
    import pyarrow.parquet

    for row in pyarrow.parquet.read_table(path).to_pylist():
        yield {**row, "top": [(entry["label"], entry["probability"]) for entry in row["top"]]}


def _csv_rows(path: Path, classes: int) -> Iterator[dict[str, Any]]:
    columns = CsvRows(classes).columns
    with path.open("rb") as file:
        for number, record in enumerate(_csv_records(file)):
            cells = next(csv.reader(io.StringIO(record.decode(), newline="")))
            if number:
                yield _csv_values(dict(zip(columns, (cell or None for cell in cells), strict=True)))
            elif tuple(cells) != columns:
                raise ValueError(f"its first line must be {','.join(columns)}")


def _csv_records(file: Any) -> Iterator[bytes]:
    record = b""
    for line in file:
        record += line
        # a quote within quotes is written twice: a complete row has an even number of them
        if line.endswith(b"\n") and record.count(b'"') % 2 == 0:
            yield record.removeprefix(b"\xef\xbb\xbf")
            record = b""


def _csv_values(cells: dict[str, Any]) -> dict[str, Any]:
    values = {name: cells[name] for name in COLUMNS}
    values |= {name: None if values[name] is None else float(values[name]) for name in _NUMBERS}
    values["adapted"] = {"true": True, "false": False}[values["adapted"]]
    values["support"] = None if values["support"] is None else int(values["support"])
    values["state_version"] = int(values["state_version"])
    others = [cell for name, cell in cells.items() if name not in COLUMNS]
    top = [cell for cell in (values["label"], values["probability"], *others) if cell is not None]
    return values | {"top": [(top[n], float(top[n + 1])) for n in range(0, len(top), 2)]}
