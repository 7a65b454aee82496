"""Results as a Parquet file, which is written once and as a whole."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ramen.serve.outputs.label_file import in_parts
from ramen.serve.outputs.row_formats import as_plain, from_plain
from ramen.serve.result import Result
from ramen.utils.atomic_files import atomic_write

_ROWS = 20_000  # in memory at a time


def check_available() -> None:
    """ModuleNotFoundError, with what to install, if the package that writes Parquet is missing."""
    _pyarrow()


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "a .parquet output needs the package pyarrow: pip install 'ramen-tta[parquet]', "
            "or write .csv or .jsonl"
        ) from error
    return pyarrow


def _schema(pyarrow: Any) -> Any:
    text, number, flag, whole = pyarrow.string(), pyarrow.float64(), pyarrow.bool_(), pyarrow.int64()
    entry = pyarrow.struct([("label", text), ("probability", number)])
    types = {
        "file": text,
        "label": text,
        "probability": number,
        "zero_shot_label": text,
        "zero_shot_probability": number,
        "changed": flag,
        "adapted": flag,
        "error": text,
        "entropy": number,
        "zero_shot_entropy": number,
        "support": whole,
        "state_version": whole,
        "top": pyarrow.list_(entry),
    }
    return pyarrow.schema(list(types.items()))


def write_parquet(path: Path, results: Iterable[Result]) -> None:
    """Replace ``path`` by a file with these results, atomically."""
    pyarrow = _pyarrow()
    schema = _schema(pyarrow)
    with atomic_write(path) as file, pyarrow.parquet.ParquetWriter(file, schema) as writer:
        for part in in_parts(results, _ROWS):
            rows = [_row(result) for result in part]
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))


def _row(result: Result) -> dict[str, Any]:
    values = as_plain(result)
    top = [{"label": label, "probability": probability} for label, probability in result.top]
    return values | {"top": top}


def read_parquet(path: Path) -> Iterator[Result]:
    """The results in a file; ValueError if it cannot be read."""
    pyarrow = _pyarrow()
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(_ROWS):
                yield from (_result(row) for row in batch.to_pylist())
    except (pyarrow.ArrowException, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read as results of this command: {error}") from None


def _result(row: dict[str, Any]) -> Result:
    return from_plain({**row, "top": [(entry["label"], entry["probability"]) for entry in row["top"]]})
