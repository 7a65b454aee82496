"""Argument checks: every message names the argument, what was expected and what it got."""

import difflib
import math
import numbers
import operator
import re
from collections.abc import Iterable


def nearest(name: str, valid: Iterable[str]) -> str:
    """The end of an "unknown name" message: the closest valid name, then all of them."""
    names = sorted(valid)
    if not names:
        return " (there are none)"
    close = difflib.get_close_matches(name.lower(), [n.lower() for n in names], n=1, cutoff=0.5)
    hint = next((f"; did you mean {n!r}?" for n in names if close and n.lower() == close[0]), "")
    listed = ", ".join(names) if len(names) <= 30 else f"{', '.join(names[:30])}, ... ({len(names)} in all)"
    return f"{hint} Valid: {listed}"


def choice(argument: str, value: object, valid: Iterable[str]) -> str:
    """Return ``value`` if it is one of the ``valid`` strings."""
    names = list(valid)
    if value not in names:
        raise ValueError(f"{argument} must be one of {', '.join(map(repr, names))}, got {value!r}")
    return str(value)


def integer(
    argument: str, value: object, minimum: float, maximum: float | None = None, at_most: str = ""
) -> int:
    """Return ``value`` if it is a whole number in the range; ``at_most`` names the source of the maximum."""
    try:
        whole = operator.index(value)  # type: ignore[arg-type]  # accepts numpy integers too
    except TypeError:
        whole = None
    if whole is None or isinstance(value, bool):
        raise TypeError(f"{argument} must be a whole number, got {type(value).__name__} {value!r}")
    if maximum is None:
        if whole < minimum:
            raise ValueError(f"{argument} must be at least {minimum}, got {whole}")
    elif not minimum <= whole <= maximum:
        upper = f"{at_most}={maximum}" if at_most else str(maximum)
        raise ValueError(f"{argument} must be between {minimum} and {upper}, got {whole}")
    return whole


def number(
    argument: str,
    value: object,
    minimum: float,
    *,
    exclusive: bool = False,
    maximum: float | None = None,
    below: float | None = None,
) -> float:
    """Return ``value`` as a float if it is finite and in the range; ``exclusive`` leaves the minimum out."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, got {type(value).__name__} {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < minimum or (exclusive and number == minimum):
        relation = "above" if exclusive else "at least"
        raise ValueError(f"{argument} must be finite and {relation} {minimum:g}, got {value}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{argument} must be at most {maximum:g}, got {value}")
    if below is not None and number >= below:
        raise ValueError(f"{argument} must be below {below:g}, got {value}")
    return number


def flag(argument: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {type(value).__name__} {value!r}")
    return value


def one_line(error: Exception, most: int = 600) -> str:
    """What an error of a library says, without line breaks and not at any length."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text if len(text) <= most else f"{text[:most]} ..."


_UNITS = {"B": 1} | {
    prefix + infix + "B": base**power
    for power, prefix in enumerate("KMGT", 1)
    for infix, base in (("i", 1024), ("", 1000))
}


def parse_bytes(argument: str, value: object) -> int:
    """Parse a positive number of bytes, given as a number or as text with a unit.

    >>> parse_bytes("memory_budget", "1.5 GiB"), parse_bytes("memory_budget", 100)
    (1610612736, 100)
    """
    if not isinstance(value, str):
        return integer(argument, value, 1)
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([A-Za-z]*)\s*", value)
    units = {unit.lower(): size for unit, size in _UNITS.items()}
    size = units.get((match[2] or "B").lower()) if match else None
    if match is None or size is None or float(match[1]) * size < 1:
        raise ValueError(
            f"{argument} must be a number of bytes or text such as '2 GiB' (units: {', '.join(_UNITS)}), "
            f"got {value!r}"
        )
    return int(float(match[1]) * size)


def readable_bytes(count: int) -> str:
    """``count`` with a binary unit: 6067200000 gives '5.65 GiB'."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.2f} {unit}"
        value /= 1024
    return f"{value:.2f} GiB"


DTYPES = ("float64", "float32", "float16", "bfloat16")
AUTO = "auto"  # what computes fastest where the model is


def check_dtype_name(dtype: object) -> str:
    """Return ``dtype`` if it is one of the names.

    >>> check_dtype_name("float16")
    'float16'
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}")
    return str(dtype)
