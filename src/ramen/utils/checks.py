"""Argument checks: every message names the argument, what was expected and what it got."""

import difflib
import math
import numbers
import operator
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


def integer(argument: str, value: object, minimum: int, maximum: int | None = None, at_most: str = "") -> int:
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


def number(argument: str, value: object, minimum: float, *, exclusive: bool = False) -> float:
    """Return ``value`` as a float if it is finite and at least ``minimum`` (above it if ``exclusive``)."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{argument} must be a number, got {type(value).__name__} {value!r}")
    if not math.isfinite(value) or value < minimum or (exclusive and value == minimum):
        relation = "above" if exclusive else "at least"
        raise ValueError(f"{argument} must be finite and {relation} {minimum:g}, got {value}")
    return float(value)


def flag(argument: str, value: object) -> bool:
    """Return ``value`` if it is True or False."""
    if not isinstance(value, bool):
        raise TypeError(f"{argument} must be True or False, got {type(value).__name__} {value!r}")
    return value
