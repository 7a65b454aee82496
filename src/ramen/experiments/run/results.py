"""Result files: one JSON file per result, written atomically and checked when read."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from ramen.utils import atomic_files

SCHEMA = 1  # increased when older files can no longer be read
_REMEDY = "remove it and run the experiment again"


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
    _require_plain("result", content)
    atomic_files.write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


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


def _require_plain(where: str, value: object) -> None:
    """Refuse values that reading the file would not restore."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            if type(key) is not str:
                raise TypeError(f"{where}: keys must be strings, got {type(key).__name__} {key!r}")
            _require_plain(f"{where}[{key!r}]", inner)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            _require_plain(f"{where}[{number}]", inner)
    elif type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{where} must be finite, got {value}; use None for a missing value")
    elif value is not None and type(value) not in (str, int, bool):
        raise TypeError(f"{where} must be a plain value, got {type(value).__name__} {value!r}")
