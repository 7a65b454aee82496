"""Numbers of bytes in readable form, such as "2 GiB"."""

import re

from ramen.utils import checks

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
        return checks.integer(argument, value, 1)
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
